// Ranks through the C ABI: communicators of threads and of processes, on hosts and on the GPUs that
// gpu_check.hpp deals.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gpu_check.hpp"
#include "mep.h"
#include "support/random_numbers.hpp"

namespace gpu_test {

using mep_reference::seed_of_run;

inline void need(mep_result_t result, const char* what) {
  if (result == MEP_SUCCESS) return;
  std::printf("FAILED: %s: %s: %s\n", what, mep_result_string(result), mep_last_error());
  std::exit(1);
}

inline void in_threads(uint32_t count, const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

inline mep_comm_config_t comm_config(bool on_gpus, uint32_t timeout_ms) {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  if (on_gpus) config.device_type = MEP_DEVICE_CUDA_BY_RANK;
  config.timeout_ms = timeout_ms;
  return config;
}

// -1: it is on host memory.
inline int32_t gpu_of_comm(mep_comm_t comm) {
  mep_device_type_t type = MEP_DEVICE_HOST;
  int32_t gpu = -1;
  need(mep_comm_device(comm, &type, &gpu), "mep_comm_device");
  return type == MEP_DEVICE_HOST ? -1 : gpu;
}

// Ranks of this process.
inline std::vector<mep_comm_t> open_comms(uint32_t ranks, bool on_gpus,
                                          uint32_t timeout_ms = 20'000) {
  mep_comm_config_t config = comm_config(on_gpus, timeout_ms);
  config.heartbeat_ms = 20;
  std::vector<mep_comm_t> comms(ranks);
  need(mep_comm_init_all(static_cast<int32_t>(ranks), &config, comms.data()), "mep_comm_init_all");
  for (uint32_t i = 0; i < ranks; ++i) {
    const int32_t wanted = on_gpus ? gpu_of(i) : -1;
    GPU_CHECK(gpu_of_comm(comms[i]) == wanted, "rank %u is on GPU %d, not %d", i,
              gpu_of_comm(comms[i]), wanted);
  }
  return comms;
}

// Ranks leave as threads do: each waits for nobody.
inline void close_comms(const std::vector<mep_comm_t>& comms) {
  in_threads(static_cast<uint32_t>(comms.size()),
             [&](uint32_t i) { need(mep_comm_destroy(comms[i]), "mep_comm_destroy"); });
}

// GPU_TEST_HOSTS=N: ranks take each other to be on N hosts, which meet in a folder.
inline void play_host() {
  const char* hosts = std::getenv("GPU_TEST_HOSTS");
  const char* rank = std::getenv("MEP_RANK");
  const char* size = std::getenv("MEP_SIZE");
  if (hosts == nullptr || rank == nullptr || size == nullptr) return;
  const int host = std::atoi(rank) * std::atoi(hosts) / std::atoi(size);
  (void)setenv("MEP_TEST_HOST", std::to_string(host).c_str(), 1);
  (void)setenv("MEP_ALLOW_INSECURE", "1", 1);
}

// This process's rank of those that start_ranks() started; its GPU is the thread's afterwards.
inline mep_comm_t open_own_comm(uint32_t timeout_ms = 20'000) {
  play_host();
  const char* rank = std::getenv("MEP_RANK");
  cuda(cudaSetDevice(gpu_of(static_cast<uint32_t>(std::atoi(rank == nullptr ? "0" : rank)))));
  const mep_comm_config_t config = comm_config(true, timeout_ms);
  mep_comm_t comm = nullptr;
  need(mep_comm_init(&config, &comm), "mep_comm_init");
  int gpu = -1;
  cuda(cudaGetDevice(&gpu));
  GPU_CHECK(gpu_of_comm(comm) == gpu, "the communicator is on GPU %d, not %d", gpu_of_comm(comm),
            gpu);
  return comm;
}

// Runs `program` with these arguments once for each rank. The last rank has to die of SIGKILL, the others
// to end with 0; else 1.
inline int start_ranks(const char* program, uint32_t ranks, const std::string& name,
                       std::vector<std::string> args) {
  std::vector<char*> words{const_cast<char*>(program)};
  for (std::string& arg : args) words.push_back(arg.data());
  words.push_back(nullptr);
  (void)setenv("MEP_SIZE", std::to_string(ranks).c_str(), 1);
  (void)setenv("MEP_JOB", (name + std::to_string(getpid())).c_str(), 1);
  char folder[] = "/tmp/gpu-test-hosts-XXXXXX";
  const bool meets = std::getenv("GPU_TEST_HOSTS") != nullptr;
  if (meets && mkdtemp(folder) == nullptr) return 1;
  if (meets) (void)setenv("MEP_RENDEZVOUS", folder, 1);
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      (void)setenv("MEP_RANK", std::to_string(rank).c_str(), 1);
      (void)execv(program, words.data());
      _exit(2);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    int status = 0;
    (void)waitpid(children[rank], &status, 0);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const bool good = rank == ranks - 1 ? killed : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (good) continue;
    std::printf("FAILED: rank %u of %u ended with status 0x%x\n", rank, ranks, status);
    failed = 1;
  }
  std::error_code ignored;
  if (meets) std::filesystem::remove_all(folder, ignored);
  return failed;
}

[[noreturn]] inline void die_now() {
  (void)kill(getpid(), SIGKILL);
  std::abort();
}

}  // namespace gpu_test
