// The options of the command line. Everything is checked here; the rest of the tool trusts it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mep.h"

namespace mep::perf {

enum class RoutingKind { kUniform, kZipf, kDeepseekV3, kFile };

struct Routing {
  RoutingKind kind = RoutingKind::kUniform;
  double exponent = 0;  // of zipf
  std::string path;     // of file
  std::string text = "uniform";
};

struct Options {
  std::string operation;
  // Collectives.
  uint64_t min_bytes = 8;
  uint64_t max_bytes = 16 << 20;
  double factor = 4;
  mep_dtype_t dtype = MEP_FLOAT32;
  mep_op_t reduction = MEP_SUM;
  bool use_mep_memory = false;
  bool has_size_option = false;
  // Expert parallelism.
  std::vector<uint32_t> tokens = {128};
  uint32_t hidden = 7168;
  uint32_t top_k = 8;
  uint32_t experts = 256;
  uint32_t buffers = 1;
  bool wire_is_fp8 = false;
  bool is_slotted = false;
  bool is_expanded = false;
  bool is_high_throughput = false;
  bool run_expert = true;  // of moe, in the timed iterations
  std::string preset;      // the model whose shape it is; empty: none
  std::string phase;       // prefill or decode; empty: neither
  Routing routing;
  bool has_expert_option = false;
  // Queues.
  std::vector<uint32_t> warps = {1, 2, 4, 8};
  std::vector<uint64_t> put_sizes = {8, 4096, 65536};
  std::string nic;  // the adapter; empty: the software NIC
  bool has_queue_option = false;
  // Recovery.
  uint32_t kills = 20;
  double memory_gib = 0;  // that each rank has filled
  uint64_t allreduce_bytes = 8;
  bool has_recovery_option = false;
  // Running.
  uint64_t iterations = 0;  // of one size and side; 0: by time
  double seconds = 0;       // of one size and side; 0: the default
  bool check = false;
  bool run_mep = true;
  bool run_mpi = false;
  bool run_nccl = false;  // beside MEP, on GPUs
  bool measure_machine = true;
  bool show_switches = false;
  int threads = 0;  // ranks as threads of this process; 0: ranks are processes
  bool on_device = false;
  int32_t device = 0;  // CUDA's number of the GPU, or -1: by rank
  std::string json_path;
  std::string csv_path;
};

enum class ParseResult { kRun, kHelp, kVersion, kBad };

// dispatch, combine and moe.
bool is_expert_operation(const std::string& name);
// queue: one process, no ranks.
bool is_queue_operation(const std::string& name);
// recovery: ranks that are killed and replaced.
bool is_recovery_operation(const std::string& name);

// kBad: *message says what is wrong, in one line. By itself each value is right; parse_options() looks at all together.
ParseResult read_options(int argc, char** argv, Options* options, std::string* message);
ParseResult parse_options(int argc, char** argv, Options* options, std::string* message);
// Empty: all is well with the options of queue.
std::string find_queue_conflict(const Options& options);
// The same of recovery.
std::string find_recovery_conflict(const Options& options);

// The options in groups.
std::string option_lines();
std::string help_text();

}  // namespace mep::perf
