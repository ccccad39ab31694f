// The cost of the protection against failures in an allreduce of 8 bytes when nothing fails: mep_allreduce beside the
// same flat exchange with nothing around it, in turn in the same processes.
//
//   fault_free_cost RANKS [ROUNDS]
//
// The bare exchange knows no epochs, views, deadlines, retained contributions, types or mismatches, and
// hangs for ever when a rank dies. Each rank has a slot of two cells (odd and even operations) for every
// source in memory that all map; a rank stores value and number into all, and waits for all.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "mep.h"

namespace {

constexpr int kMaxRanks = 64;
constexpr int kMaxRounds = 1000;
constexpr uint64_t kIterations = 2000;  // of each side in a round

struct alignas(64) Cell {
  std::atomic<uint64_t> number;
  float values[2];
};

struct Shared {
  Cell cells[2][kMaxRanks][kMaxRanks];  // [operation % 2][reader][source]
  double bare_us[kMaxRounds][kMaxRanks];
  double mep_us[kMaxRounds][kMaxRanks];
};

struct Rank {
  Shared* shared;
  int rank;
  int size;
  bool crowded;  // more ranks than cores
  uint64_t number = 0;
};

void bare_allreduce(Rank& self, const float* input, float* output) {
  const uint64_t number = ++self.number;
  auto& cells = self.shared->cells[number % 2];
  for (int reader = 0; reader < self.size; ++reader) {
    Cell& cell = cells[reader][self.rank];
    cell.values[0] = input[0];
    cell.values[1] = input[1];
    // Release: the reader that sees the number sees the values.
    cell.number.store(number, std::memory_order_release);
  }
  float sums[2] = {0, 0};
  for (int source = 0; source < self.size; ++source) {
    Cell& cell = cells[self.rank][source];
    // Acquire: pairs with the store above. A cell is written again only two operations later, when its
    // writer has seen this rank's number of the next one.
    while (cell.number.load(std::memory_order_acquire) != number) {
      if (self.crowded) {
        (void)sched_yield();
      } else {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    }
    sums[0] += cell.values[0];
    sums[1] += cell.values[1];
  }
  output[0] = sums[0];
  output[1] = sums[1];
}

template <class Operation>
double microseconds(const Operation& operation) {
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < kIterations; ++i) operation();
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
  return time.count() / kIterations;
}

bool require(mep_result_t result, const char* what) {
  if (result == MEP_SUCCESS) return true;
  (void)std::fprintf(stderr, "%s: %s (%s)\n", what, mep_result_string(result), mep_last_error());
  return false;
}

int run_rank(Rank self, int rounds, const std::string& job) {
  setenv("MEP_RANK", std::to_string(self.rank).c_str(), 1);
  setenv("MEP_SIZE", std::to_string(self.size).c_str(), 1);
  setenv("MEP_JOB", job.c_str(), 1);
  mep_comm_t comm = nullptr;
  if (!require(mep_comm_init(nullptr, &comm), "mep_comm_init")) return 1;
  const float input[2] = {static_cast<float>(self.rank), 1};
  float output[2] = {0, 0};
  mep_result_t result = MEP_SUCCESS;
  for (int round = 0; round < rounds && result == MEP_SUCCESS; ++round) {
    self.shared->mep_us[round][self.rank] = microseconds([&] {
      if (result != MEP_SUCCESS) return;
      result = mep_allreduce(input, output, 2, MEP_FLOAT32, MEP_SUM, comm, nullptr);
    });
    if (!require(result, "mep_allreduce")) break;
    self.shared->bare_us[round][self.rank] =
        microseconds([&] { bare_allreduce(self, input, output); });
    if (output[1] != static_cast<float>(self.size)) return 1;
  }
  return require(mep_comm_destroy(comm), "mep_comm_destroy") && result == MEP_SUCCESS ? 0 : 1;
}

// The median over rounds of each round's slowest rank.
double median_of_slowest(const double (*times)[kMaxRanks], int rounds, int size) {
  std::vector<double> slowest;
  slowest.reserve(static_cast<size_t>(rounds));
  for (int round = 0; round < rounds; ++round) {
    slowest.push_back(*std::max_element(times[round], times[round] + size));
  }
  std::sort(slowest.begin(), slowest.end());
  return slowest[slowest.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 0;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 101;
  if (size < 1 || size > kMaxRanks || rounds < 1 || rounds > kMaxRounds) {
    (void)std::fprintf(stderr, "usage: fault_free_cost RANKS [ROUNDS], at most %d and %d\n",
                       kMaxRanks, kMaxRounds);
    return 2;
  }
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    return 1;
  }
  auto* shared = static_cast<Shared*>(memory);
  const std::string job = "fault-free-cost-" + std::to_string(getpid());
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      std::perror("fork");
      return 1;
    }
    if (child == 0)
      _exit(run_rank({shared, rank, size, size > sysconf(_SC_NPROCESSORS_ONLN)}, rounds, job));
  }
  bool all_right = true;
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    all_right = wait(&status) > 0 && status == 0 && all_right;
  }
  if (!all_right) return 1;
  const double mep_us = median_of_slowest(shared->mep_us, rounds, size);
  const double bare_us = median_of_slowest(shared->bare_us, rounds, size);
  (void)std::printf(
      "%d ranks: mep %.3f us, bare %.3f us, mep / bare %.3f (median of %d rounds, slowest rank)\n",
      size, mep_us, bare_us, mep_us / bare_us, rounds);
  return 0;
}
