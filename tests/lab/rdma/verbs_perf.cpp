// How long put + signal takes over verbs, and how fast large puts go: between two processes, each on a
// device of its own, with signals that would wake, as the library sends them. For comparison with
// ib_write_lat and ib_write_bw, which write without a signal.
//   verbs_perf lat|bw BYTES ROUNDS     prints us one way, fastest and median round, or MB/s
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "adapters.hpp"
#include "base/clock.hpp"
#include "base/status.hpp"
#include "support/posting.hpp"
#include "transport/transport.hpp"

namespace mep {
namespace {

constexpr uint64_t kData = 5;
constexpr size_t kWordOffset = 4032;
constexpr size_t kPutsInFlight = 16;

struct Side {
  uint32_t number = 0;
  int socket = -1;
  std::unique_ptr<Transport> transport;
  std::shared_ptr<Window> world;
  std::shared_ptr<Window> data;

  uint32_t slot() const { return number; }
  uint32_t peer() const { return 1 - number; }
  std::atomic<uint64_t>& word() const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(world->data() + kWordOffset);
  }
};

void check(mep_result_t result) {
  if (result == MEP_SUCCESS) return;
  std::fprintf(stderr, "verbs_perf: %s\n", last_error_text());
  std::exit(1);  // NOLINT(concurrency-mt-unsafe): one thread
}

void exchange(int socket, const std::vector<std::byte>& mine, std::vector<std::byte>* theirs) {
  theirs->resize(2048);
  const bool sent = send(socket, mine.data(), mine.size(), 0) == static_cast<ssize_t>(mine.size());
  const ssize_t got = sent ? recv(socket, theirs->data(), theirs->size(), 0) : -1;
  check(got > 0 ? MEP_SUCCESS : fail(MEP_ERR_SYSTEM, "the other side is gone"));
  theirs->resize(static_cast<size_t>(got));
}

void share(Side& side, const std::shared_ptr<Window>& window) {
  WindowExport exported;
  check(side.transport->export_window(side.peer(), window, &exported));
  std::vector<std::byte> theirs;
  exchange(side.socket, exported.blob, &theirs);
  check(side.transport->import_window(side.peer(), window->id(), window->bytes(), theirs, {}));
}

void open(Side& side, size_t bytes) {
  TransportOptions options;
  options.near_adapters = test::only_adapters(side.number == 0 ? "rxe0:1" : "rxe1:1");
  for (const TransportEntry& entry : transport_table()) {
    if (std::string(entry.name) == "verbs") side.transport = entry.make(options);
  }
  std::vector<std::byte> offer;
  std::vector<std::byte> theirs;
  check(side.transport->open(&offer));
  exchange(side.socket, offer, &theirs);
  const PeerIdentity self{side.slot(), 10 + side.number, 1, 1 + side.number, 0};
  const PeerIdentity peer{side.peer(), 10 + side.peer(), 1, 1 + side.peer(), 0};
  check(side.transport->add_peer(self, peer, theirs, {}));
  check(Window::create(kWorldWindowId, 4096, &side.world));
  check(Window::create(kData, std::max<size_t>(bytes, 4096), &side.data));
  share(side, side.world);
  share(side, side.data);
  exchange(side.socket, offer, &theirs);  // both are connected
}

void wait_for_word(Side& side, uint64_t value) {
  while (side.word().load(std::memory_order_acquire) != value) {
    (void)side.transport->progress(false);
  }
}

void put_and_signal(Side& side, size_t bytes, uint64_t value) {
  check(test::post_put(*side.transport, side.peer(), kData, 0, side.data->data(), bytes));
  check(test::post_signal(*side.transport, side.peer(), kWorldWindowId, kWordOffset, value, true));
}

struct Latency {
  double fastest = 0;
  double median = 0;
};

Latency latency_us(Side& side, size_t bytes, uint64_t rounds) {
  std::vector<uint64_t> times;
  for (uint64_t round = 1; round <= rounds; ++round) {
    if (side.number == 1) {
      wait_for_word(side, round);
      put_and_signal(side, bytes, round);
      continue;
    }
    const uint64_t start = now_ns();
    put_and_signal(side, bytes, round);
    wait_for_word(side, round);
    times.push_back(now_ns() - start);
  }
  if (times.empty()) return {};
  std::sort(times.begin(), times.end());
  return {static_cast<double>(times[0]) / 2000.0,
          static_cast<double>(times[times.size() / 2]) / 2000.0};
}

// Puts with a signal behind every few; the other side answers the last one.
double bandwidth(Side& side, size_t bytes, uint64_t rounds) {
  if (side.number == 1) {
    wait_for_word(side, rounds);
    check(
        test::post_signal(*side.transport, side.peer(), kWorldWindowId, kWordOffset, rounds, true));
    check(test::flush_posted(*side.transport, side.peer()));
    return 0;
  }
  const uint64_t start = now_ns();
  for (uint64_t round = 1; round <= rounds; ++round) {
    check(test::post_put(*side.transport, side.peer(), kData, 0, side.data->data(), bytes));
    if (round % kPutsInFlight != 0 && round != rounds) continue;
    check(
        test::post_signal(*side.transport, side.peer(), kWorldWindowId, kWordOffset, round, true));
  }
  wait_for_word(side, rounds);
  return static_cast<double>(bytes * rounds) * 1000.0 / static_cast<double>(now_ns() - start);
}

}  // namespace
}  // namespace mep

int main(int argc, char** argv) {
  using namespace mep;
  if (argc != 4) {
    std::fprintf(stderr, "usage: verbs_perf lat|bw BYTES ROUNDS\n");
    return 2;
  }
  const size_t bytes = std::strtoull(argv[2], nullptr, 0);
  const uint64_t rounds = std::strtoull(argv[3], nullptr, 0);
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) return 1;
  const pid_t child = fork();
  Side side;
  side.number = child == 0 ? 1 : 0;
  side.socket = sockets[side.number];
  open(side, bytes);
  const bool is_latency = std::string(argv[1]) == "lat";
  if (is_latency) (void)latency_us(side, bytes, std::max<uint64_t>(rounds / 10, 1));
  if (is_latency) {  // the words of the rounds before are not taken for these
    std::vector<std::byte> token(1);
    exchange(side.socket, token, &token);
    side.word().store(0, std::memory_order_relaxed);
    exchange(side.socket, std::vector<std::byte>(1), &token);
  }
  Latency latency;
  double rate = 0;
  if (is_latency) {
    latency = latency_us(side, bytes, rounds);
  } else {
    rate = bandwidth(side, bytes, rounds);
  }
  std::vector<std::byte> token(1);
  exchange(side.socket, std::vector<std::byte>(1), &token);  // nobody leaves before the other
  if (child == 0) _exit(0);
  if (is_latency) {
    std::printf("%.2f %.2f\n", latency.fastest, latency.median);
  } else {
    std::printf("%.2f\n", rate);
  }
  return waitpid(child, nullptr, 0) == child ? 0 : 1;
}
