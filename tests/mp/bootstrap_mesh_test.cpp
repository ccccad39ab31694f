// Starts of real processes: right ones, and each way in which a start can be wrong. Every rank must
// end by itself with the stated result, within its time, without losing a descriptor. usage:
// bootstrap_mesh_test PATH_OF_BOOTSTRAP_RANK
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "mep.h"
#include "support/bootstrap_ranks.hpp"
#include "support/cmocka_cpp.hpp"
#include "support/random_numbers.hpp"
#include "support/temporary_folder.hpp"

namespace {

constexpr uid_t kOtherUser = 65534;
// A start that waits out its own time, or one that must not: far apart, so that load decides
// nothing.
constexpr unsigned kShortMs = 1500;
constexpr unsigned kLongMs = 60000;
constexpr unsigned kClearlyBeforeLongMs = 40000;

int connect_to(const std::string& name) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const mep::Deadline limit = mep::Deadline::after_ms(30000);
  while (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (limit.expired()) fail_msg("nobody listens as %s", name.c_str());
    usleep(1000);
  }
  return fd;
}

int listen_as(const std::string& name) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd, 10) != 0)
    return -1;
  return fd;
}

std::string place(const std::string& job, int rank) {
  return "mep/" + std::to_string(geteuid()) + "/" + job + "/" + std::to_string(rank);
}

// A child that does something and then lives until it is killed; it is ready when this returns.
template <typename Action>
pid_t start_bystander(Action action) {
  int sides[2];
  assert_int_equal(pipe2(sides, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    const bool done = action();
    if (write(sides[1], done ? "y" : "n", 1) != 1) _exit(1);
    for (;;) pause();
  }
  close(sides[1]);
  char answer = 0;
  assert_int_equal(read(sides[0], &answer, 1), 1);
  assert_int_equal(answer, 'y');
  close(sides[0]);
  return pid;
}

void end_bystander(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

bool skip_without_root() {
  if (geteuid() == 0) return false;
  print_message("skipped: needs root to become another user\n");
  return true;
}

void right_starts_succeed(void**) {
  for (const int size : {1, 2, 3, 8}) {
    const std::string job = new_job();
    std::vector<Process> ranks;
    // The highest first: it has to wait for all others.
    for (int rank = size - 1; rank >= 0; --rank) ranks.push_back(launch(rank, size, job, kLongMs));
    for (const Process& rank : ranks) {
      const Outcome outcome = finish(rank);
      expect(outcome, MEP_SUCCESS, {});
      assert_int_equal(outcome.peers, size - 1);
    }
  }
}

void one_process_calast_completedt_again_and_again(void**) {
  const std::string job = new_job();
  std::vector<Process> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(launch(rank, 4, job, kLongMs, {"--twice"}));
  for (const Process& rank : ranks) {
    const std::vector<Outcome> outcomes = finish_all(rank);
    assert_int_equal(outcomes.size(), 2);
    for (const Outcome& outcome : outcomes) expect(outcome, MEP_SUCCESS, {});
  }
}

// A job name of any length and letters.
void odd_job_names_work(void**) {
  const std::string job = new_job() + std::string(200, 'x') + " / \xc3\xa4";
  const Process first = launch(0, 2, job, kLongMs);
  const Process second = launch(1, 2, job, kLongMs);
  expect(finish(first), MEP_SUCCESS, {});
  expect(finish(second), MEP_SUCCESS, {});
}

void a_wrong_size_is_named_everywhere(void**) {
  const std::string job = new_job();
  const Process ranks[] = {launch(0, 3, job, kLongMs), launch(2, 4, job, kLongMs),
                           launch(1, 3, job, kLongMs)};
  for (const Process& rank : ranks) {
    const Outcome outcome = finish(rank);
    // Ranks 0 and 1 always need rank 2, so nobody can succeed.
    expect(outcome, MEP_ERR_BOOTSTRAP,
           {"rank 2 (pid " + std::to_string(ranks[1].pid) + ")", "world of 4", "world of 3"});
    assert_true(outcome.ms < kClearlyBeforeLongMs);
  }
}

void a_wrong_max_size_is_named(void**) {
  const std::string job = new_job();
  const Process ranks[] = {launch(0, 2, job, kLongMs, {"--max-size", "4"}),
                           launch(1, 2, job, kLongMs)};
  for (const Process& rank : ranks) expect(finish(rank), MEP_ERR_BOOTSTRAP, {"max_size"});
}

void a_number_given_twice_is_named_everywhere(void**) {
  const std::string job = new_job();
  // Rank 2 comes last, so the start cannot be over before the second rank 1 is there.
  const Process first = launch(1, 3, job, kLongMs);
  const Process second = launch(1, 3, job, kLongMs);
  const Process zero = launch(0, 3, job, kLongMs);
  for (const Process& rank : {first, second, zero}) {
    const Outcome outcome = finish(rank);
    expect(outcome, MEP_ERR_BOOTSTRAP,
           {"rank 1", std::to_string(first.pid), std::to_string(second.pid)});
    assert_true(outcome.ms < kClearlyBeforeLongMs);
  }
}

void missing_ranks_are_named(void**) {
  const std::string job = new_job();
  const Process ranks[] = {launch(0, 5, job, kShortMs), launch(3, 5, job, kShortMs)};
  for (const Process& rank : ranks) {
    const Outcome outcome = finish(rank);
    expect(outcome, MEP_ERR_BOOTSTRAP, {"ranks 1-2, 4 of 5", job, std::to_string(kShortMs)});
    assert_true(outcome.ms < kClearlyBeforeLongMs);
  }
}

void a_rank_that_dies_meanwhile_is_named(void**) {
  const std::string job = new_job();
  const Process zero = launch(0, 3, job, kLongMs);
  const Process one = launch(1, 3, job, kLongMs);
  // Rank 1 has its place; it may have its link to rank 0 or not when it dies.
  close(connect_to(place(job, 1)));
  kill(one.pid, SIGKILL);
  waitpid(one.pid, nullptr, 0);
  close(one.output);
  close(one.input);
  const Process two = launch(2, 3, job, kShortMs);
  // Whether its link was there already or not, rank 1 is what the others are told about.
  expect(finish(zero), MEP_ERR_BOOTSTRAP, {"rank 1"});
  expect(finish(two), MEP_ERR_BOOTSTRAP, {"rank"});
}

void another_users_rank_is_not_let_in(void**) {
  if (skip_without_root()) return;
  const std::string job = new_job();
  const Process own = launch(0, 2, job, kShortMs);
  const Process other = launch(1, 2, job, kLongMs, {"--uid", std::to_string(kOtherUser)});
  const Outcome outcome = finish(own);
  expect(outcome, MEP_ERR_DENIED, {"rank 1", "user id " + std::to_string(kOtherUser)});
  kill(other.pid, SIGKILL);
  waitpid(other.pid, nullptr, 0);
  close(other.output);
  close(other.input);
}

void a_squatter_is_named_everywhere(void**) {
  if (skip_without_root()) return;
  const std::string job = new_job();
  const pid_t squatter = start_bystander([&] {
    const std::string name = place(job, 1);
    return setuid(kOtherUser) == 0 && listen_as(name) >= 0;
  });
  const Process ranks[] = {launch(0, 3, job, kLongMs), launch(1, 3, job, kLongMs),
                           launch(2, 3, job, kLongMs)};
  for (const Process& rank : ranks) {
    const Outcome outcome = finish(rank);
    expect(
        outcome, MEP_ERR_DENIED,
        {"rank 1", "process " + std::to_string(squatter), "user id " + std::to_string(kOtherUser)});
    assert_true(outcome.ms < kClearlyBeforeLongMs);
  }
  end_bystander(squatter);
}

// A process of the same user holds a place and says nothing.
void a_silent_holder_is_named_everywhere(void**) {
  const std::string job = new_job();
  const int holder = listen_as(place(job, 1));
  assert_true(holder >= 0);
  const Process ranks[] = {launch(0, 3, job, kLongMs), launch(1, 3, job, kLongMs),
                           launch(2, 3, job, kLongMs)};
  for (const Process& rank : ranks) {
    const Outcome outcome = finish(rank);
    expect(outcome, MEP_ERR_BOOTSTRAP, {"rank 1", std::to_string(getpid())});
    assert_true(outcome.ms < kClearlyBeforeLongMs);
  }
  close(holder);
}

// One that answers with what is no frame.
void a_babbling_holder_is_named(void**) {
  const std::string job = new_job();
  const int listener = listen_as(place(job, 0));
  assert_true(listener >= 0);
  const pid_t holder = fork();
  if (holder == 0) {
    for (;;) {
      const int fd = accept(listener, nullptr, nullptr);
      if (fd < 0 || write(fd, "HTTP/1.1 400 Bad Request", 24) != 24) _exit(1);
    }
  }
  close(listener);
  const Process one = launch(1, 2, job, kLongMs);
  const Outcome outcome = finish(one);
  expect(outcome, MEP_ERR_BOOTSTRAP, {"rank 0", "not a MEP frame"});
  end_bystander(holder);
}

// Strangers' garbage, half-open connections and connections that break off disturb nobody.
void garbage_disturbs_nobody(void**) {
  std::mt19937_64 random(mep_reference::seed_of_run());
  const std::string job = new_job();
  const Process zero = launch(0, 3, job, kLongMs);
  const Process one = launch(1, 3, job, kLongMs);
  std::vector<int> open_ends;
  for (int i = 0; i < 200; ++i) {
    const int fd = connect_to(place(job, static_cast<int>(random() % 2)));
    unsigned char bytes[64];
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    const unsigned char half_a_header[] = {'M', 'E', 'P', '1', 1, 0};
    if (i % 3 == 0) (void)!send(fd, bytes, random() % sizeof bytes + 1, MSG_NOSIGNAL);
    if (i % 3 == 1) (void)!send(fd, half_a_header, sizeof half_a_header, MSG_NOSIGNAL);
    if (random() % 2 == 0) {
      close(fd);
    } else {
      open_ends.push_back(fd);
    }
  }
  const Process two = launch(2, 3, job, kLongMs);
  for (const Process& rank : {zero, one, two}) expect(finish(rank), MEP_SUCCESS, {});
  for (const int fd : open_ends) close(fd);
}

void a_store_brings_ranks_together(void**) {
  const mep_test::TemporaryFolder store;
  const std::string& folder = store.path();
  std::vector<Process> ranks;
  for (int rank = 2; rank >= 0; --rank) {
    ranks.push_back(launch(rank, 3, "stored", kLongMs, {"--store", folder, "--twice"}));
  }
  for (const Process& rank : ranks) {
    const std::vector<Outcome> outcomes = finish_all(rank);
    assert_int_equal(outcomes.size(), 2);
    for (const Outcome& outcome : outcomes) expect(outcome, MEP_SUCCESS, {});
  }
  expect(finish(launch(1, 2, "other", 300, {"--store", folder})), MEP_ERR_BOOTSTRAP,
         {"rank 0", "store"});
  const std::string missing = folder + "/none";
  expect(finish(launch(0, 2, "other", 300, {"--store", missing})), MEP_ERR_BOOTSTRAP, {"put"});
}

// Ranks of the next start over a store, which find the record that is there before rank 0 has put another.
std::vector<Process> launch_early(int size, const std::string& folder) {
  const std::string found = folder + "/mep_stored_name.found";
  unlink(found.c_str());
  std::vector<Process> ranks;
  for (int rank = size - 1; rank > 0; --rank) {
    ranks.push_back(launch(rank, size, "stored", kLongMs, {"--store", folder}));
  }
  const mep::Deadline limit = mep::Deadline::after_ms(kLongMs);
  while (access(found.c_str(), F_OK) != 0 && !limit.expired()) usleep(1000);
  return ranks;
}

void expect_later_start(std::vector<Process> early, int size, const std::string& folder) {
  early.push_back(launch(0, size, "stored", kLongMs, {"--store", folder}));
  for (const Process& rank : early) {
    const Outcome outcome = finish(rank);
    expect(outcome, MEP_SUCCESS, {});
    assert_int_equal(outcome.peers, size - 1);
    assert_true(outcome.ms < kClearlyBeforeLongMs);
  }
}

void a_store_outlives_starts(void**) {
  const mep_test::TemporaryFolder store;
  const std::string& folder = store.path();
  expect_later_start({launch(1, 2, "stored", kLongMs, {"--store", folder})}, 2, folder);
  // Rank 0 of the earlier start has ended.
  for (const int size : {3, 2}) expect_later_start(launch_early(size, folder), size, folder);
  // It is in its world.
  const Process zero = launch(0, 2, "stored", kLongMs, {"--store", folder, "--serve"});
  const Process one = launch(1, 2, "stored", kLongMs, {"--store", folder, "--serve"});
  await_serving(zero);
  await_serving(one);
  std::vector<Process> early = launch_early(3, folder);
  expect(finish(zero), MEP_SUCCESS, {});
  expect_later_start(std::move(early), 3, folder);
  expect(finish(one), MEP_SUCCESS, {});
}

void joiners_are_let_in(void**) {
  const std::string job = new_job();
  std::vector<Process> members;
  for (int rank = 0; rank < 3; ++rank) {
    members.push_back(launch(rank, 3, job, kLongMs, {"--max-size", "5", "--serve"}));
  }
  for (const Process& member : members) await_serving(member);
  const Process named = launch(4, 0, job, kLongMs, {"--join"});
  const Outcome first = finish(named);
  expect(first, MEP_SUCCESS, {});
  assert_int_equal(first.slot, 4);
  assert_int_equal(first.peers, 3);
  const Outcome outside = finish(launch(7, 0, job, kLongMs, {"--join"}));
  expect(outside, MEP_ERR_BOOTSTRAP, {"room for 5 ranks"});
  const Outcome any = finish(launch(-1, 0, job, kLongMs, {"--join"}));
  expect(any, MEP_SUCCESS, {});
  assert_int_equal(any.slot, 3);
  const Outcome alive = finish(launch(1, 0, job, 300, {"--join"}));
  expect(alive, MEP_ERR_BOOTSTRAP, {"rank 1 is still running"});
  for (const Process& member : members) expect(finish(member), MEP_SUCCESS, {});
  expect(finish(launch(0, 0, new_job(), 300, {"--join"})), MEP_ERR_BOOTSTRAP, {"no member"});
}

// A second start of a job that runs does not harm it.
void a_running_job_refuses_a_second_start(void**) {
  const std::string job = new_job();
  const Process zero = launch(0, 2, job, kLongMs, {"--serve"});
  const Process one = launch(1, 2, job, kLongMs, {"--serve"});
  await_serving(zero);
  await_serving(one);
  const Outcome again = finish(launch(1, 2, job, 3000));
  expect(again, MEP_ERR_BOOTSTRAP, {"rank 1", std::to_string(one.pid)});
  expect(finish(zero), MEP_SUCCESS, {});
  expect(finish(one), MEP_SUCCESS, {});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  rank_program = argv[1];
  const CMUnitTest tests[] = {
      cmocka_unit_test(right_starts_succeed),
      cmocka_unit_test(one_process_calast_completedt_again_and_again),
      cmocka_unit_test(odd_job_names_work),
      cmocka_unit_test(a_wrong_size_is_named_everywhere),
      cmocka_unit_test(a_wrong_max_size_is_named),
      cmocka_unit_test(a_number_given_twice_is_named_everywhere),
      cmocka_unit_test(missing_ranks_are_named),
      cmocka_unit_test(a_rank_that_dies_meanwhile_is_named),
      cmocka_unit_test(another_users_rank_is_not_let_in),
      cmocka_unit_test(a_squatter_is_named_everywhere),
      cmocka_unit_test(a_silent_holder_is_named_everywhere),
      cmocka_unit_test(a_babbling_holder_is_named),
      cmocka_unit_test(garbage_disturbs_nobody),
      cmocka_unit_test(a_store_brings_ranks_together),
      cmocka_unit_test(a_store_outlives_starts),
      cmocka_unit_test(joiners_are_let_in),
      cmocka_unit_test(a_running_job_refuses_a_second_start),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
