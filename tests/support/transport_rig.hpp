// Ranks for transport tests: threads of this process or forked processes, with one transport each,
// fully connected, and their windows exchanged over socket pairs like over control links. A rank's
// findings are recorded in shared memory and asserted by the test's own process at the end.
#pragma once

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/status.hpp"
#include "support/cmocka_cpp.hpp"
#include "support/posting.hpp"
#include "support/random_numbers.hpp"
#include "transport/doorbell.hpp"
#include "transport/transport.hpp"

namespace mep::test {

constexpr uint64_t kLimitMs = 60000;  // of every wait; none comes near it unless something is wrong

inline uint64_t test_seed() {
  static const uint64_t seed = mep_reference::seed_of_run();
  return seed;
}

// The byte at `index` of the data that `seed` stands for.
inline std::byte pattern(uint64_t seed, size_t index) {
  const uint64_t x = mep_reference::scrambled(mep_reference::scrambled(seed) ^ index / 8);
  return static_cast<std::byte>((x >> (index % 8 * 8)) & 0xff);
}

struct SharedState {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> phase;
  std::atomic<uint32_t> failed;
  std::atomic<uint64_t> words[64];  // for the tests; visible to all ranks
  char failure[1024];
};

enum class RankKind { kThreads, kProcesses };

struct RigOptions {
  RankKind kind = RankKind::kThreads;
  bool put_only = false;
  uint32_t ranks = 2;
  TransportOptions transport{};  // put_only is set by the one above
  // Threads tell each other that they are processes: for transports between processes, under ThreadSanitizer.
  bool poses_as_processes = false;
};

class Rank {
 public:
  Rank(uint32_t number, const RigOptions& options, SharedState* shared, std::vector<int> sockets)
      : number_(number),
        options_(options),
        shared_(shared),
        sockets_(std::move(sockets)),
        random_(test_seed() * 1000 + number) {}

  ~Rank() {
    stop_.store(true, std::memory_order_relaxed);
    if (pump_.joinable()) pump_.join();
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  uint32_t number() const { return number_; }
  uint32_t size() const { return options_.ranks; }
  bool put_only() const { return options_.put_only; }
  Transport& transport() { return *transport_; }
  SharedState& shared() { return *shared_; }
  std::mt19937_64& random() { return random_; }
  Window& window(uint64_t id) { return *windows_.at(id); }
  Doorbell* doorbell() { return reinterpret_cast<Doorbell*>(window(kWorldWindowId).data()); }
  // Slots are not ranks, so that nobody mixes them up.
  static uint32_t slot(uint32_t rank) { return 3 + 5 * rank; }

  TransportOptions transport_options() const {
    TransportOptions options = options_.transport;
    options.put_only = options_.put_only;
    return options;
  }

  // The same on both sides of a pair and on no other.
  PeerSession session_with(uint32_t peer) const {
    PeerSession session;
    session.key[0] = std::byte(std::min(number_, peer) + 1);
    session.key[1] = std::byte(std::max(number_, peer) + 1);
    return session;
  }

  PeerIdentity identity(uint32_t rank) const {
    const bool threads = options_.kind == RankKind::kThreads && !options_.poses_as_processes;
    return {slot(rank), 0x1000u + rank, 7, threads ? 1u : 100u + rank, 0};
  }

  bool failed() const { return shared_->failed.load(std::memory_order_acquire) != 0; }

  void fail_here(const char* file, int line, const char* what) {
    if (shared_->failed.exchange(1, std::memory_order_acq_rel) != 0) return;
    std::snprintf(shared_->failure, sizeof(shared_->failure), "rank %u, %s:%d: %s (last error: %s)",
                  number_, file, line, what, last_error_text());
    shared_->failed.store(2, std::memory_order_release);
  }

  bool wait_for(const std::function<bool()>& condition) const {
    const Deadline deadline = Deadline::after_ms(kLimitMs);
    while (!condition()) {
      if (failed() || deadline.expired()) return false;
      sched_yield();
    }
    return true;
  }

  bool barrier() {
    const uint32_t phase = shared_->phase.load(std::memory_order_acquire);
    if (shared_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
      shared_->arrived.store(0, std::memory_order_relaxed);
      shared_->phase.fetch_add(1, std::memory_order_release);
      return !failed();
    }
    return wait_for([&] { return shared_->phase.load(std::memory_order_acquire) != phase; });
  }

  // Collective: everybody learns everybody's address.
  bool start(const TransportEntry& entry) {
    transport_ = entry.make(transport_options());
    WindowExport own;
    if (transport_->open(&own.blob) != MEP_SUCCESS) return false;
    own.blob.push_back(std::byte{1});  // an empty packet would look like an end
    for (uint32_t peer = 0; peer < size(); ++peer) {
      if (peer != number_ && !send_bytes(peer, own)) return false;
    }
    offers_.resize(size());
    for (uint32_t peer = 0; peer < size(); ++peer) {
      if (peer == number_) continue;
      WindowExport theirs;
      if (!receive_bytes(peer, &theirs)) return false;
      theirs.blob.pop_back();
      offers_[peer] = std::move(theirs.blob);
      if (transport_->add_peer(identity(number_), identity(peer), offers_[peer],
                               session_with(peer)) != MEP_SUCCESS) {
        return false;
      }
    }
    if (transport_->traits().has_events) pump_ = std::thread([this] { pump(); });
    return true;
  }
  bool connected() const {
    for (uint32_t peer = 0; peer < size(); ++peer) {
      if (peer != number_ && !transport_->status(slot(peer)).is_connected) return false;
    }
    return true;
  }
  const std::vector<std::byte>& offer_of(uint32_t peer) const { return offers_[peer]; }

  // Does the work of the library's waiting threads and its control thread: transports that need it make progress in
  // the background of every test.
  void pump() {
    while (!stop_.load(std::memory_order_relaxed)) {
      pollfd ready[2] = {{transport_->events().data, POLLIN, 0},
                         {transport_->events().control, POLLIN, 0}};
      if (poll(ready, 2, 5) <= 0) continue;
      (void)transport_->progress(false);
      transport_->serve();
    }
  }

  // Collective: creates the window and imports everybody's. Everybody is connected after the first.
  bool add_window(uint64_t id, size_t bytes) {
    if (Window::create(id, bytes, &windows_[id]) != MEP_SUCCESS) return false;
    if (id == kWorldWindowId) doorbell_open(doorbell());
    return exchange(id);
  }

  // Collective: exports this rank's window to all and imports theirs.
  bool exchange(uint64_t id) {
    for (uint32_t peer = 0; peer < size(); ++peer) {
      if (peer != number_ && !send_export(peer, id)) return false;
    }
    for (uint32_t peer = 0; peer < size(); ++peer) {
      if (peer != number_ && !receive_import(peer, id)) return false;
    }
    return wait_for([&] { return connected(); }) && barrier();
  }

  bool send_export(uint32_t peer, uint64_t id) {
    WindowExport exported;
    if (transport_->export_window(slot(peer), windows_.at(id), &exported) != MEP_SUCCESS)
      return false;
    return send_bytes(peer, exported);
  }

  bool receive_import(uint32_t peer, uint64_t id) {
    WindowExport exported;
    if (!receive_bytes(peer, &exported)) return false;
    return transport_->import_window(slot(peer), id, window(id).bytes(), exported.blob,
                                     std::move(exported.fd)) == MEP_SUCCESS;
  }

  bool send_bytes(uint32_t peer, const WindowExport& exported) {
    iovec bytes{const_cast<std::byte*>(exported.blob.data()), exported.blob.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    if (exported.fd.valid()) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = exported.fd.get();
      std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    return sendmsg(sockets_[peer], &message, MSG_NOSIGNAL) ==
           static_cast<ssize_t>(exported.blob.size());
  }

  bool receive_bytes(uint32_t peer, WindowExport* exported) {
    exported->blob.resize(2048);  // a window's blob, or an offer
    iovec bytes{exported->blob.data(), exported->blob.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(sockets_[peer], &message, MSG_CMSG_CLOEXEC);
    if (got <= 0) return false;
    exported->blob.resize(static_cast<size_t>(got));
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
      exported->fd.reset(fd);
    }
    return true;
  }

  std::atomic<uint64_t>& own_word(uint64_t id, uint64_t offset) {
    return *reinterpret_cast<std::atomic<uint64_t>*>(window(id).data() + offset);
  }
  bool wait_word(uint64_t id, uint64_t offset, uint64_t expected) {
    std::atomic<uint64_t>& word = own_word(id, offset);
    return wait_for([&] { return word.load(std::memory_order_acquire) == expected; });
  }

 private:
  uint32_t number_;
  RigOptions options_;
  SharedState* shared_;
  std::vector<int> sockets_;  // by peer; owned by the rig
  std::mt19937_64 random_;
  std::map<uint64_t, std::shared_ptr<Window>> windows_;
  std::vector<std::vector<std::byte>> offers_;  // by peer
  std::unique_ptr<Transport> transport_;
  std::atomic<bool> stop_{false};  // relaxed: the pump looks again soon
  std::thread pump_;
};

#define RANK_CHECK(rank, condition)                     \
  do {                                                  \
    if (!(condition)) {                                 \
      (rank).fail_here(__FILE__, __LINE__, #condition); \
      return;                                           \
    }                                                   \
  } while (0)

using RankBody = std::function<void(Rank&)>;

inline void run_rank(Rank& rank, const TransportEntry& entry, const RankBody& body) {
  if (!rank.start(entry)) {
    rank.fail_here(__FILE__, __LINE__, "start");
    return;
  }
  body(rank);
}

inline bool wait_for_child(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return false;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  std::printf("child %d: wait status %#x\n", static_cast<int>(child),
              static_cast<unsigned>(status));
  return false;
}

// Runs `body` on every rank of a fresh world and asserts that none found anything wrong.
inline void run_ranks(const TransportEntry& entry, const RigOptions& options,
                      const RankBody& body) {
  test_seed();
  void* memory =
      mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(memory, MAP_FAILED);
  auto* shared = new (memory) SharedState();
  std::vector<std::vector<int>> sockets(options.ranks, std::vector<int>(options.ranks, -1));
  for (uint32_t a = 0; a < options.ranks; ++a) {
    for (uint32_t b = a + 1; b < options.ranks; ++b) {
      int pair[2];
      assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
      // A rank that failed sends nothing more; who waits for it must end.
      const timeval limit{kLimitMs / 1000, 0};
      for (const int end : pair) {
        assert_int_equal(setsockopt(end, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
      }
      sockets[a][b] = pair[0];
      sockets[b][a] = pair[1];
    }
  }
  bool children_fine = true;
  if (options.kind == RankKind::kThreads) {
    std::vector<std::thread> threads;
    for (uint32_t number = 0; number < options.ranks; ++number) {
      threads.emplace_back([&, number] {
        Rank rank(number, options, shared, sockets[number]);
        run_rank(rank, entry, body);
      });
    }
    for (std::thread& thread : threads) thread.join();
  } else {
    std::vector<pid_t> children;
    for (uint32_t number = 0; number < options.ranks; ++number) {
      const pid_t child = fork();
      assert_true(child >= 0);
      if (child == 0) {
        alarm(300);
        {
          Rank rank(number, options, shared, sockets[number]);
          run_rank(rank, entry, body);
        }
        _exit(0);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) children_fine = wait_for_child(child) && children_fine;
  }
  for (const std::vector<int>& row : sockets) {
    for (const int socket : row) {
      if (socket >= 0) close(socket);
    }
  }
  if (shared->failed.load(std::memory_order_acquire) != 0) {
    const std::string failure = shared->failure;
    munmap(memory, sizeof(SharedState));
    fail_msg("%s, put_only=%d: %s", entry.name, options.put_only, failure.c_str());
  }
  munmap(memory, sizeof(SharedState));
  assert_true(children_fine);
}

// Every transport that reaches ranks of this kind, mapped and put_only.
inline void for_each_transport(RankKind kind, uint32_t ranks, const RankBody& body) {
  uint32_t runs = 0;
  for (const TransportEntry& entry : transport_table()) {
    const bool threads = kind == RankKind::kThreads;
    const PeerIdentity self{0, 1, 7, 1, 0};
    const PeerIdentity peer{1, 2, 7, threads ? 1u : 2u, 0};
    const std::unique_ptr<Transport> transport = entry.make({});
    if (!transport->reaches(self, peer)) continue;
    std::vector<std::byte> offer;
    const mep_result_t opened = transport->open(&offer);
    if (opened == MEP_ERR_UNSUPPORTED) {  // no HCA, say: the lab's guest has some
      std::printf("%s is left out: %s\n", entry.name, last_error_text());
      continue;
    }
    assert_int_equal(opened, MEP_SUCCESS);
    assert_string_equal(transport->name(), entry.name);
    for (const bool put_only : {false, true}) {
      run_ranks(entry, {kind, put_only, ranks, {}}, body);
      ++runs;
    }
  }
  assert_true(runs > 0);
}

}  // namespace mep::test
