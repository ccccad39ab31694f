// Every measuring thread is pinned to a core of its own. The cores are those that any rank may use,
// not only rank 0's: mpirun may have bound it to one.
#include "machine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>

#include "types.hpp"

namespace mep::perf {
namespace {

constexpr int kMaxCpus = 1024;  // more are not looked at
constexpr size_t kCopySizes[] = {64 << 10, 1 << 20, 16 << 20, 64 << 20};
constexpr double kTrialSeconds = 8e-3;
constexpr int kTrials = 3;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  (void)sched_setaffinity(0, sizeof set, &set);  // unpinned, the figures are only less steady
}

// Keeps the compiler from dropping or merging copies.
void touch(void* memory) {
  asm volatile("" : : "r"(memory) : "memory");
}

// One thread's part: copies between its own buffers until the trial's time is over; bytes per
// second.
double copy_rate(uint8_t* to, const uint8_t* from, size_t bytes) {
  uint64_t copies = 0;
  const uint64_t batch = std::max<uint64_t>(1, (1 << 20) / bytes);
  const double start = now_seconds();
  double end = 0;
  do {
    for (uint64_t i = 0; i < batch; ++i) {
      std::memcpy(to, from, bytes);
      touch(to);
    }
    copies += batch;
    end = now_seconds();
  } while (end - start < kTrialSeconds);
  return static_cast<double>(copies) * static_cast<double>(bytes) / (end - start);
}

// The best of a few trials, all threads copying at the same time.
double all_copy_gbps(const std::vector<int>& cpus, size_t bytes) {
  std::barrier<> ready(static_cast<std::ptrdiff_t>(cpus.size()));
  std::vector<std::vector<double>> rates(cpus.size(), std::vector<double>(kTrials));
  const auto work = [&](size_t index) {
    pin_to(cpus[index]);
    const std::unique_ptr<uint8_t[]> memory(new uint8_t[2 * bytes]);
    std::memset(memory.get(), 1, 2 * bytes);
    for (int trial = 0; trial < kTrials; ++trial) {
      ready.arrive_and_wait();
      rates[index][static_cast<size_t>(trial)] =
          copy_rate(memory.get() + bytes, memory.get(), bytes);
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < cpus.size(); ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  double best = 0;
  for (size_t trial = 0; trial < kTrials; ++trial) {
    double total = 0;
    for (const std::vector<double>& rate : rates) total += rate[trial];
    best = std::max(best, total);
  }
  return best / 1e9;
}

struct alignas(128) Line {
  std::atomic<uint64_t> word{0};
};

// Half of the best round trip of a word that two cores write in turn, each on its own line.
double line_one_way_ns(int first_cpu, int second_cpu) {
  constexpr uint64_t kRounds = 2000;
  constexpr uint64_t kTrialCount = 9;
  Line there;
  Line back;
  // acquire/release on each word: the value itself is what is handed over.
  std::thread echo([&] {
    pin_to(second_cpu);
    for (uint64_t i = 1; i <= kRounds * kTrialCount; ++i) {
      while (there.word.load(std::memory_order_acquire) != i) {
      }
      back.word.store(i, std::memory_order_release);
    }
  });
  double best = 1e9;
  std::thread measure([&] {
    pin_to(first_cpu);
    uint64_t value = 0;
    for (uint64_t trial = 0; trial < kTrialCount; ++trial) {
      const double start = now_seconds();
      for (uint64_t i = 0; i < kRounds; ++i) {
        there.word.store(++value, std::memory_order_release);
        while (back.word.load(std::memory_order_acquire) != value) {
        }
      }
      best = std::min(best, (now_seconds() - start) / kRounds);
    }
  });
  measure.join();
  echo.join();
  return best / 2 * 1e9;
}

// CPUs that at least one rank may use.
std::vector<int> cpus_of_team(Team& team) {
  std::vector<double> flags(kMaxCpus, 0);
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < kMaxCpus; ++cpu) flags[static_cast<size_t>(cpu)] = CPU_ISSET(cpu, &set);
  }
  team.maximum(flags.data(), flags.size());
  std::vector<int> cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (flags[static_cast<size_t>(cpu)] > 0) cpus.push_back(cpu);
  }
  return cpus;
}

// Ranks in different containers of one host count as on one host only if they see the same boot.
bool is_one_host(Team& team) {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  const auto id = static_cast<double>(std::hash<std::string>()(boot) >> 12);
  double extremes[2] = {id, -id};
  team.maximum(extremes, 2);
  return extremes[0] == -extremes[1];
}

// No more than an eighth of the memory for all threads together.
bool fits_memory(size_t bytes, size_t threads) {
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return 2.0 * static_cast<double>(bytes) * static_cast<double>(threads) <= memory / 8;
}

Machine measure_here(const std::vector<int>& cpus, int ranks) {
  Machine machine;
  machine.cores = static_cast<int>(cpus.size());
  std::vector<int> counts = {1};
  if (ranks > 1 && ranks < machine.cores) counts.push_back(ranks);
  if (machine.cores > 1) counts.push_back(machine.cores);
  for (const size_t bytes : kCopySizes) {
    for (const int count : counts) {
      if (!fits_memory(bytes, static_cast<size_t>(count))) continue;
      const std::vector<int> some(cpus.begin(), cpus.begin() + count);
      machine.copies.push_back({bytes, count, all_copy_gbps(some, bytes)});
    }
  }
  if (machine.cores > 1) machine.line_ns = line_one_way_ns(cpus[0], cpus[1]);
  return machine;
}

}  // namespace

Machine measure_machine(Team& team) {
  Machine machine;
  const std::vector<int> cpus = cpus_of_team(team);
  const bool is_local = is_one_host(team);
  if (team.rank() == 0 && is_local && !cpus.empty()) machine = measure_here(cpus, team.size());
  team.wait_quietly();
  return machine;
}

double copy_gbps(const Machine& machine, int cores, double bytes_per_core) {
  cores = std::min(cores, machine.cores);
  const CopyRate* below = nullptr;
  const CopyRate* above = nullptr;
  for (const CopyRate& rate : machine.copies) {
    if (rate.cores != cores) continue;
    if (static_cast<double>(rate.bytes) <= bytes_per_core) below = &rate;
    if (above == nullptr && static_cast<double>(rate.bytes) >= bytes_per_core) above = &rate;
  }
  if (below == nullptr && above == nullptr) return 0;
  if (below == nullptr || above == nullptr || below == above) {
    return below != nullptr ? below->gbps : above->gbps;
  }
  const double span =
      std::log(static_cast<double>(above->bytes) / static_cast<double>(below->bytes));
  const double part = std::log(bytes_per_core / static_cast<double>(below->bytes)) / span;
  return below->gbps + part * (above->gbps - below->gbps);
}

double floor_us(const DeviceFloors& device, double bytes, double taken_in, int signals) {
  if (device.copy_gbps <= 0) return 0;
  const double local_us = bytes / device.gpus / device.copy_gbps / 1e3;
  if (device.gpus == 1) return local_us + signals * device.signal_us;
  if (device.link_gbps <= 0) return 0;
  // Both go on at one time.
  return std::max(local_us, taken_in / device.link_gbps / 1e3) + signals * device.link_signal_us;
}

std::string describe(const Machine& machine) {
  std::string text;
  char part[160];
  if (machine.device.copy_gbps > 0) {
    (void)std::snprintf(
        part, sizeof part,
        "# copy of 1 GiB: %.0f GB/s read + written; a signal between kernels: %.2f us "
        "one way; an empty launch: %.2f us\n",
        machine.device.copy_gbps, machine.device.signal_us, machine.device.launch_us);
    text = part;
    if (machine.device.link_gbps <= 0) return text;
    (void)std::snprintf(part, sizeof part,
                        "# from GPU 0 to GPU 1: copy of 1 GiB %.0f GB/s; a signal between their "
                        "kernels: %.2f us one way\n",
                        machine.device.link_gbps, machine.device.link_signal_us);
    return text + part;
  }
  if (machine.cores == 0) return "";
  for (const int cores : {1, machine.cores}) {
    (void)std::snprintf(part, sizeof part, "# copy, GB/s on %d core%s:", cores,
                        cores > 1 ? "s" : "");
    text += part;
    for (const CopyRate& rate : machine.copies) {
      if (rate.cores != cores) continue;
      (void)std::snprintf(part, sizeof part, "  %.1f at %s", rate.gbps,
                          bytes_text(static_cast<double>(rate.bytes)).c_str());
      text += part;
    }
    text += '\n';
    if (machine.cores == 1) break;
  }
  if (machine.line_ns > 0) {
    (void)std::snprintf(part, sizeof part, "# a cache line from core to core: %.0f ns one way\n",
                        machine.line_ns);
    text += part;
  }
  return text;
}

}  // namespace mep::perf
