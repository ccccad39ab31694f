// Starts over several hosts, played on one by MEP_TEST_HOST: right ones by address list and directory,
// and what strangers, wrong secrets and old files can do to them. usage:
// bootstrap_network_test PATH_OF_BOOTSTRAP_RANK
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <random>
#include <set>
#include <thread>

#include "base/clock.hpp"
#include "support/bootstrap_ranks.hpp"
#include "support/random_numbers.hpp"
#include "support/temporary_folder.hpp"

namespace {

constexpr unsigned kShortMs = 1500;
constexpr unsigned kLongMs = 60000;
constexpr unsigned kClearlyBeforeLongMs = 40000;

std::string new_secret(const char* letters = "0123456789abcdef") {
  char path[] = "/tmp/mep-secret-XXXXXX";
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, letters, 16), 16);
  close(fd);
  return path;
}

// Gives the socket a free port, and tells it.
int bind_to_free_port(int fd) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  assert_int_equal(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  assert_int_equal(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  return ntohs(address.sin_port);
}

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int port = bind_to_free_port(fd);
  close(fd);
  return port;
}

struct Net {
  std::string secret = new_secret();
  int port = free_port();
  std::string rendezvous = "127.0.0.1:" + std::to_string(port);
  std::string job = new_job();

  Net() = default;
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;
  ~Net() { unlink(secret.c_str()); }

  Variables on_host(int host) const {
    return {{"MEP_RENDEZVOUS", rendezvous},
            {"MEP_SECRET_FILE", secret},
            {"MEP_TEST_HOST", "host" + std::to_string(host)}};
  }
  Process start(int rank, int size, int host, unsigned timeout_ms = kLongMs,
                const std::vector<std::string>& options = {}) const {
    return launch(rank, size, job, timeout_ms, options, on_host(host));
  }
  // Ranks 0..size-1, two a host, the highest first.
  std::vector<Process> start_all(int size, const std::vector<std::string>& options = {}) const {
    std::vector<Process> ranks;
    for (int rank = size - 1; rank >= 0; --rank) {
      ranks.push_back(start(rank, size, rank / 2, kLongMs, options));
    }
    return ranks;
  }
};

void expect_all(const std::vector<Process>& ranks, size_t peers, size_t starts = 1) {
  for (const Process& rank : ranks) {
    const std::vector<Outcome> outcomes = finish_all(rank);
    assert_int_equal(outcomes.size(), starts);
    for (const Outcome& outcome : outcomes) {
      expect(outcome, MEP_SUCCESS, {});
      assert_int_equal(outcome.peers, peers);
    }
  }
}

void end(const Process& process) {
  kill(process.pid, SIGKILL);
  waitpid(process.pid, nullptr, 0);
  close(process.output);
  close(process.input);
}

// The TCP ports that a process listens at.
std::set<int> listening_ports(pid_t pid) {
  std::set<unsigned long> sockets;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* entries = opendir(folder.c_str());
  assert_non_null(entries);
  while (const dirent* entry = readdir(entries)) {
    char target[64] = "";
    const std::string path = folder + "/" + entry->d_name;
    unsigned long inode = 0;
    if (readlink(path.c_str(), target, sizeof target - 1) > 0 &&
        sscanf(target, "socket:[%lu]", &inode) == 1) {
      sockets.insert(inode);
    }
  }
  closedir(entries);
  std::set<int> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    FILE* file = fopen(table, "re");
    char line[512];
    while (file != nullptr && fgets(line, sizeof line, file) != nullptr) {
      unsigned port = 0;
      unsigned state = 0;
      unsigned long inode = 0;
      if (sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x %*s %*s %*s %*d %*d %lu", &port,
                 &state, &inode) == 3 &&
          state == 0x0a && sockets.contains(inode)) {
        ports.insert(static_cast<int>(port));
      }
    }
    if (file != nullptr) fclose(file);
  }
  return ports;
}

// Waits for the port; -1 when nobody is there in time.
int connect_port(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const mep::Deadline limit = mep::Deadline::after_ms(20000);
  while (!limit.expired()) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
    close(fd);
    usleep(1000);
  }
  fail_msg("nobody listens at port %d", port);
  return -1;
}

// Garbage, half a frame, a frame that is too large, or nothing at all.
int throw_garbage(int port, std::mt19937_64* random) {
  const int fd = connect_port(port);
  unsigned char bytes[64];
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>((*random)());
  const unsigned char half[] = {'M', 'E', 'P', '1', 1, 0};
  const unsigned char large[] = {'M', 'E', 'P', '1', 1, 0, 0, 0, 255, 255, 15, 0, 0, 0, 0, 0};
  switch ((*random)() % 4) {
    case 0:
      (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
      break;
    case 1:
      (void)!send(fd, half, sizeof half, MSG_NOSIGNAL);
      break;
    case 2:
      (void)!send(fd, large, sizeof large, MSG_NOSIGNAL);
      break;
    default:
      break;
  }
  if ((*random)() % 2 == 0) return fd;
  close(fd);
  return -1;
}

std::string new_folder() {
  char folder[] = "/tmp/mep-meet-XXXXXX";
  assert_non_null(mkdtemp(folder));
  return folder;
}

void addresses_bring_ranks_together(void**) {
  for (const char* host : {"127.0.0.1", "[::1]", "localhost"}) {
    Net net;
    net.rendezvous = std::string(host) + ":" + std::to_string(net.port);
    expect_all(net.start_all(4), 3);
  }
  // Some of several addresses are nobody's.
  Net net;
  net.rendezvous = "192.0.2.1:9,127.0.0.1:" + std::to_string(net.port) +
                   ", localhost:" + std::to_string(free_port()) + ",no-such-host.invalid:7";
  expect_all(net.start_all(5), 4);
}

void a_directory_brings_ranks_together(void**) {
  Net net;
  net.rendezvous = new_folder();
  expect_all(net.start_all(4), 3);
  // Nothing is left behind: the folder can be removed.
  assert_int_equal(rmdir(net.rendezvous.c_str()), 0);
  expect(finish(net.start(0, 2, 0)), MEP_ERR_NOT_FOUND, {net.rendezvous});
}

// Files of ranks that were killed lead to nobody, or to strangers.
void old_files_are_ignored(void**) {
  Net net;
  net.rendezvous = new_folder();
  std::vector<Process> ranks = net.start_all(4, {"--serve"});
  for (const Process& rank : ranks) await_serving(rank);
  for (const Process& rank : ranks) end(rank);
  expect_all(net.start_all(4), 3);
  // The entries that the killed ranks left on their hosts were removed by those that took their places.
  assert_int_equal(rmdir(net.rendezvous.c_str()), 0);
}

void one_process_calast_completedt_again_and_again(void**) {
  Net net;
  expect_all(net.start_all(4, {"--twice"}), 3, 2);
  Net other;
  other.rendezvous = new_folder();
  expect_all(other.start_all(4, {"--twice"}), 3, 2);
  assert_int_equal(rmdir(other.rendezvous.c_str()), 0);
}

void a_store_brings_hosts_together(void**) {
  Net net;
  const mep_test::TemporaryFolder store;
  const std::string& folder = store.path();
  const auto begin = [&](int size, int (*host_of)(int rank)) {
    std::vector<Process> ranks;
    for (int rank = size - 1; rank >= 0; --rank) {
      Variables variables = net.on_host(host_of(rank));
      variables[0].second = "";
      ranks.push_back(launch(rank, size, net.job, kLongMs, {"--store", folder}, variables));
    }
    expect_all(ranks, static_cast<size_t>(size) - 1);
  };
  begin(4, [](int rank) { return rank / 2; });
  // The store has the record of this start, whose rank 0 was on another host.
  begin(5, [](int rank) { return rank == 4 ? 0 : 1; });
  // Without a secret only rank 0's host can take part.
  const std::string job = new_job();
  const Process zero = launch(0, 2, job, kShortMs, {"--store", folder}, {{"MEP_TEST_HOST", "a"}});
  const Process one = launch(1, 2, job, kShortMs, {"--store", folder}, {{"MEP_TEST_HOST", "b"}});
  expect(finish(one), MEP_ERR_DENIED, {"MEP_SECRET_FILE"});
  expect(finish(zero), MEP_ERR_BOOTSTRAP, {"rank 1"});
  const std::string later = new_job();
  const auto start = [&](int rank, const char* host) {
    return launch(rank, 2, later, kLongMs, {"--store", folder}, {{"MEP_TEST_HOST", host}});
  };
  expect_all({start(0, "a"), start(1, "a")}, 1);
  expect_all({start(1, "b"), start(0, "b")}, 1);
}

void without_a_secret_nothing_starts_unless_allowed(void**) {
  Net net;
  Variables open = {{"MEP_RENDEZVOUS", net.rendezvous}};
  expect(finish(launch(0, 2, net.job, kLongMs, {}, open)), MEP_ERR_DENIED,
         {"MEP_SECRET_FILE", "MEP_ALLOW_INSECURE"});
  open.emplace_back("MEP_ALLOW_INSECURE", "1");
  std::vector<Process> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Variables variables = open;
    variables.emplace_back("MEP_TEST_HOST", std::to_string(rank));
    ranks.push_back(launch(rank, 2, net.job, kLongMs, {}, variables));
  }
  expect_all(ranks, 1);
}

void wrong_rendezvous_is_named(void**) {
  Net net;
  for (const char* text : {"host", "host:", ":7", "host:99999", "::1:7", "a:1,,b:2"}) {
    net.rendezvous = text;
    expect(finish(net.start(0, 2, 0)), MEP_ERR_INVALID_ARGUMENT, {"HOST:PORT"});
  }
  net.rendezvous = "no-such-host.invalid:7";
  expect(finish(net.start(1, 2, 0, kShortMs)), MEP_ERR_BOOTSTRAP,
         {"the name 'no-such-host.invalid'"});
}

// At the rendezvous port: it sends what is not MEP's, closes each connection, or is silent.
class OtherProgram {
 public:
  OtherProgram(const char* sends, bool closes) {
    assert_int_equal(listen(listener_, 64), 0);
    thread_ = std::thread([this, sends, closes] { serve(sends, closes); });
  }
  OtherProgram(const OtherProgram&) = delete;
  ~OtherProgram() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    for (const int fd : open_ends_) close(fd);
    close(listener_);
  }
  int port() const { return port_; }

 private:
  void serve(const char* sends, bool closes) {
    int fd = -1;
    while ((fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0) {
      (void)!send(fd, sends, strlen(sends), MSG_NOSIGNAL);
      if (closes) {
        close(fd);
      } else {
        open_ends_.push_back(fd);
      }
    }
  }

  int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int port_ = bind_to_free_port(listener_);
  std::vector<int> open_ends_;  // of the thread, until it is joined
  std::thread thread_;
};

void another_program_at_the_rendezvous_is_named(void**) {
  struct Case {
    const char* sends;
    bool closes;
    bool is_early;
    const char* told;
  };
  for (const Case& each :
       {Case{"HTTP/1.1 400 Bad Request\r\n\r\n", true, true, "is not a rendezvous of MEP"},
        Case{"220 mail.example ESMTP\r\n", false, true, "is not a rendezvous of MEP"},
        Case{"", true, true, "is not a rendezvous of MEP"},
        Case{"", false, false, "says nothing"}}) {
    const OtherProgram other(each.sends, each.closes);
    Net net;
    net.rendezvous = "127.0.0.1:" + std::to_string(other.port());
    const unsigned limit_ms = each.is_early ? kLongMs : 3 * kShortMs;
    const Process ranks[] = {net.start(0, 2, 0, limit_ms), net.start(1, 2, 1, limit_ms)};
    for (const Process& rank : ranks) {
      const Outcome outcome = finish(rank);
      expect(outcome, MEP_ERR_BOOTSTRAP,
             {net.rendezvous, each.told, "choose another port", "the address is in use"});
      if (each.is_early) assert_true(outcome.ms < kClearlyBeforeLongMs);
    }
  }
}

// It is refused and told so; the right one comes in, and the start succeeds.
void a_wrong_secret_stays_outside(void**) {
  for (const bool by_directory : {false, true}) {
    Net net;
    if (by_directory) net.rendezvous = new_folder();
    const std::string wrong = new_secret("fedcba9876543210");
    const Process zero = net.start(0, 3, 0);
    const Process one = net.start(1, 3, 0);
    // The first that serves at the address is the meeting point: it shall not be the stranger.
    const mep::Deadline limit = mep::Deadline::after_ms(kLongMs);
    while (!by_directory && !listening_ports(zero.pid).contains(net.port) &&
           !listening_ports(one.pid).contains(net.port) && !limit.expired()) {
      usleep(1000);
    }
    Variables variables = net.on_host(1);
    variables[1].second = wrong;
    // Its own hosts's place of rank 2 is not the right rank's: that one is on a third host.
    const Process stranger =
        launch(2, 3, net.job, by_directory ? kShortMs : kLongMs, {}, variables);
    const Outcome refused = finish(stranger);
    expect(refused, MEP_ERR_DENIED, {"MEP_SECRET_FILE"});
    assert_true(refused.ms < kClearlyBeforeLongMs);
    const Process two = net.start(2, 3, 2);
    expect_all({zero, one, two}, 2);
    if (by_directory) rmdir(net.rendezvous.c_str());
    unlink(wrong.c_str());
  }
}

// On one host, too: there the kernel vouches for the user, but the keys of the pair would differ.
void a_wrong_secret_is_named_on_one_host(void**) {
  const std::string right = new_secret();
  const std::string wrong = new_secret("fedcba9876543210");
  const std::string job = new_job();
  const Process zero = launch(0, 2, job, kShortMs, {}, {{"MEP_SECRET_FILE", right}});
  const Process one = launch(1, 2, job, kShortMs, {}, {{"MEP_SECRET_FILE", wrong}});
  expect(finish(zero), MEP_ERR_DENIED, {"rank"});
  assert_int_not_equal(finish(one).result, MEP_SUCCESS);
  unlink(right.c_str());
  unlink(wrong.c_str());
}

void a_number_given_twice_is_named(void**) {
  Net net;
  const Process first = net.start(1, 3, 0);
  const Process second = net.start(1, 3, 1);
  const Process zero = net.start(0, 3, 2);
  for (const Process& rank : {first, second, zero}) {
    const Outcome outcome = finish(rank);
    expect(outcome, MEP_ERR_BOOTSTRAP, {"rank 1", std::to_string(first.pid)});
    assert_true(outcome.ms < kClearlyBeforeLongMs);
  }
}

void a_wrong_size_is_named_everywhere(void**) {
  Net net;
  const Process ranks[] = {net.start(0, 3, 0), net.start(2, 4, 1), net.start(1, 3, 2)};
  for (const Process& rank : ranks) {
    const Outcome outcome = finish(rank);
    expect(outcome, MEP_ERR_BOOTSTRAP, {"rank 2", "world of 4", "world of 3"});
    assert_true(outcome.ms < kClearlyBeforeLongMs);
  }
}

void missing_ranks_are_named(void**) {
  Net net;
  const Process ranks[] = {net.start(0, 5, 0, kShortMs), net.start(3, 5, 1, kShortMs)};
  for (const Process& rank : ranks) {
    expect(finish(rank), MEP_ERR_BOOTSTRAP, {"ranks 1-2, 4 of 5", net.job});
  }
}

std::string text_of(const std::string& path) {
  std::string text(1 << 16, '\0');
  FILE* file = fopen(path.c_str(), "re");
  if (file == nullptr) return {};
  text.resize(fread(text.data(), 1, text.size(), file));
  fclose(file);
  return text;
}

void expect_log(const std::string& path, const std::vector<std::string>& parts) {
  const std::string text = text_of(path);
  unlink(path.c_str());
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) {
      fail_msg("the log \"%s\" lacks \"%s\"", text.c_str(), part.c_str());
    }
  }
}

// With what it logs in a file.
Process launch_logged(const std::string& log, int rank, int size, const std::string& job,
                      unsigned timeout_ms, Variables variables) {
  const int kept = dup(STDERR_FILENO);
  const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  assert_true(kept >= 0 && file >= 0);
  fcntl(kept, F_SETFD, FD_CLOEXEC);
  dup2(file, STDERR_FILENO);
  variables.emplace_back("MEP_LOG", "warn");
  const Process process = launch(rank, size, job, timeout_ms, {}, variables);
  dup2(kept, STDERR_FILENO);
  close(kept);
  close(file);
  return process;
}

void who_is_awaited_is_logged_after_five_seconds(void**) {
  Net net;
  const std::string log = "/tmp/mep-log-" + net.job;
  const std::string lost_log = log + "-lost";
  Variables lost = net.on_host(0);
  lost[0].second = "no-such-host.invalid:7000";
  const Process alone = launch_logged(log, 0, 3, net.job, 6000, net.on_host(0));
  const Process other = launch_logged(lost_log, 1, 3, net.job + "-lost", 6000, lost);
  expect(finish(alone), MEP_ERR_BOOTSTRAP, {"ranks 1-2 of 3"});
  expect_log(log, {"still waiting for ranks 1-2 of 3 after 5 s", net.job, net.rendezvous});
  // Which rank is missing is not known there.
  const Outcome outcome = finish(other);
  expect(outcome, MEP_ERR_BOOTSTRAP, {"no-such-host.invalid", "no other rank"});
  assert_true(outcome.text.find("rank 0") == std::string::npos);
  expect_log(lost_log, {"after 5 s", "the name 'no-such-host.invalid' is not known"});
}

void the_innocent_side_logs_a_wrong_secret(void**) {
  for (const bool by_directory : {false, true}) {
    Net net;
    if (by_directory) net.rendezvous = new_folder();
    const std::string log = "/tmp/mep-log-" + net.job;
    const std::string wrong = new_secret("fedcba9876543210");
    const Process zero = launch_logged(log, 0, 2, net.job, 4 * kShortMs, net.on_host(0));
    const mep::Deadline limit = mep::Deadline::after_ms(kLongMs);
    while (!by_directory && !listening_ports(zero.pid).contains(net.port) && !limit.expired()) {
      usleep(1000);
    }
    Variables variables = net.on_host(1);
    variables[1].second = wrong;
    const Process stranger =
        launch(1, 2, net.job, by_directory ? kShortMs : kLongMs, {}, variables);
    assert_int_equal(finish(stranger).result, MEP_ERR_DENIED);
    expect(finish(zero), MEP_ERR_BOOTSTRAP, {"rank 1", "another secret"});
    expect_log(log, {"it has another secret"});
    if (by_directory) rmdir(net.rendezvous.c_str());
    unlink(wrong.c_str());
  }
}

void garbage_disturbs_nobody(void**) {
  std::mt19937_64 random(mep_reference::seed_of_run());
  Net net;
  const Process zero = net.start(0, 4, 0);
  const Process one = net.start(1, 4, 1);
  const mep::Deadline limit = mep::Deadline::after_ms(20000);
  while (listening_ports(zero.pid).size() + listening_ports(one.pid).size() < 3) {
    assert_false(limit.expired());
  }
  std::vector<int> open_ends;
  std::set<int> ports = listening_ports(zero.pid);
  ports.merge(listening_ports(one.pid));
  assert_int_equal(ports.size(), 3);
  for (int i = 0; i < 200; ++i) {
    for (const int port : ports) open_ends.push_back(throw_garbage(port, &random));
  }
  const Process two = net.start(2, 4, 2);
  const Process three = net.start(3, 4, 0);
  expect_all({zero, one, two, three}, 3);
  for (const int fd : open_ends) close(fd);
}

void joiners_come_from_other_hosts_through_garbage(void**) {
  std::mt19937_64 random(mep_reference::seed_of_run());
  for (const bool by_directory : {false, true}) {
    Net net;
    if (by_directory) net.rendezvous = new_folder();
    std::vector<Process> members;
    for (int rank = 0; rank < 3; ++rank) {
      members.push_back(net.start(rank, 3, rank, kLongMs, {"--max-size", "6", "--serve"}));
    }
    for (const Process& member : members) await_serving(member);
    std::vector<int> open_ends;
    for (const Process& member : members) {
      for (const int port : listening_ports(member.pid)) {
        for (int i = 0; i < 50; ++i) open_ends.push_back(throw_garbage(port, &random));
      }
    }
    const Outcome named = finish(net.start(4, 0, 9, kLongMs, {"--join"}));
    expect(named, MEP_SUCCESS, {});
    assert_int_equal(named.slot, 4);
    assert_int_equal(named.peers, 3);
    Variables wrong = net.on_host(8);
    wrong[1].second = new_secret("fedcba9876543210");
    const Outcome stranger = finish(launch(5, 0, net.job, 4000, {"--join"}, wrong));
    expect(stranger, MEP_ERR_DENIED, {"MEP_SECRET_FILE"});
    unlink(wrong[1].second.c_str());
    const Outcome any = finish(net.start(-1, 0, 1, kLongMs, {"--join"}));
    expect(any, MEP_SUCCESS, {});
    assert_int_equal(any.slot, 3);
    for (const Process& member : members) expect(finish(member), MEP_SUCCESS, {});
    for (const int fd : open_ends) close(fd);
    if (by_directory) assert_int_equal(rmdir(net.rendezvous.c_str()), 0);
  }
}

// The rank that serves may die; another member of its host takes the address over.
void the_meeting_points_death_stops_nothing(void**) {
  Net net;
  std::vector<Process> members;
  for (int rank = 0; rank < 3; ++rank) {
    members.push_back(net.start(rank, 3, rank, kLongMs, {"--max-size", "5", "--serve"}));
  }
  for (const Process& member : members) await_serving(member);
  for (int deaths = 0; deaths < 2; ++deaths) {
    const auto serving = std::find_if(members.begin(), members.end(), [&](const Process& member) {
      return listening_ports(member.pid).contains(net.port);
    });
    assert_true(serving != members.end());
    end(*serving);
    members.erase(serving);
    const Outcome outcome = finish(net.start(4, 0, 7, kLongMs, {"--join"}));
    expect(outcome, MEP_SUCCESS, {});
    assert_int_equal(outcome.peers, members.size());
  }
  expect(finish(members[0]), MEP_SUCCESS, {});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  rank_program = argv[1];
  for (const char* name : {"MEP_RENDEZVOUS", "MEP_SECRET_FILE", "MEP_ALLOW_INSECURE"}) {
    unsetenv(name);
  }
  const CMUnitTest tests[] = {
      cmocka_unit_test(addresses_bring_ranks_together),
      cmocka_unit_test(a_directory_brings_ranks_together),
      cmocka_unit_test(old_files_are_ignored),
      cmocka_unit_test(one_process_calast_completedt_again_and_again),
      cmocka_unit_test(a_store_brings_hosts_together),
      cmocka_unit_test(without_a_secret_nothing_starts_unless_allowed),
      cmocka_unit_test(wrong_rendezvous_is_named),
      cmocka_unit_test(another_program_at_the_rendezvous_is_named),
      cmocka_unit_test(a_wrong_secret_stays_outside),
      cmocka_unit_test(a_wrong_secret_is_named_on_one_host),
      cmocka_unit_test(a_number_given_twice_is_named),
      cmocka_unit_test(a_wrong_size_is_named_everywhere),
      cmocka_unit_test(missing_ranks_are_named),
      cmocka_unit_test(who_is_awaited_is_logged_after_five_seconds),
      cmocka_unit_test(the_innocent_side_logs_a_wrong_secret),
      cmocka_unit_test(garbage_disturbs_nobody),
      cmocka_unit_test(joiners_come_from_other_hosts_through_garbage),
      cmocka_unit_test(the_meeting_points_death_stops_nothing),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
