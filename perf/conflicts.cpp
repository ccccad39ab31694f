// Options that exclude each other, or that this build cannot follow. The help, which names all operations.
#include <string>

#include "collectives.hpp"
#include "device_side.hpp"
#include "messages.hpp"
#include "mpi_side.hpp"
#include "options.hpp"
#include "routing.hpp"
#include "types.hpp"

namespace mep::perf {
namespace {

// Empty: the routing can be had with these experts.
std::string find_routing_conflict(const Options& options) {
  if (options.top_k > options.experts) return "--topk is larger than --experts";
  if (options.routing.kind != RoutingKind::kDeepseekV3) return "";
  const std::string groups = std::to_string(kExpertGroups) + " groups";
  if (options.experts % kExpertGroups != 0 || options.experts < 2 * kExpertGroups) {
    return "--routing deepseek-v3 has " + groups +
           " of experts, of the same size and two at least: --experts " +
           std::to_string(options.experts) + " does not fit";
  }
  const uint32_t most = options.experts / kExpertGroups * kKeptGroups;
  if (options.top_k > most) {
    return "--routing deepseek-v3 takes a token's experts from " + std::to_string(kKeptGroups) +
           " of " + groups + ": with --experts " + std::to_string(options.experts) +
           " --topk is at most " + std::to_string(most);
  }
  return "";
}

// Conflicts that show only when all options are known; empty: all is well.
std::string find_conflict(const Options& options) {
  const std::string& op = options.operation;
  if (op.empty()) return "no operation is given; try mep_perf --help";
  if (is_queue_operation(op)) return find_queue_conflict(options);
  const bool is_recovery = is_recovery_operation(op);
  std::string conflict = is_recovery ? find_recovery_conflict(options) : "";
  if (!conflict.empty()) return conflict;
  if (options.has_queue_option) return "--warps, --size and --nic are for queue";
  if (!is_recovery && options.has_recovery_option) {
    return "--kills, --memory and --bytes are for recovery";
  }
  const bool is_expert = is_expert_operation(op);
  const bool is_message = find_message_pattern(op).has_value();
  if (!is_expert && !is_message && !is_recovery && find_collective(op) == nullptr) {
    return "unknown operation '" + op + "'; there are " + all_collective_names() + " " +
           all_message_names() + " dispatch combine moe queue recovery";
  }
  if (is_message && (options.on_device || options.use_mep_memory)) {
    return "messages have no --device cuda and no --mep-memory";
  }
  if (is_expert && options.has_size_option) {
    return "-b, -e, -f, --dtype, --reduce and --mep-memory are for collectives; " + op +
           " takes --tokens, --hidden and --wire";
  }
  if (!is_expert && options.has_expert_option) {
    return "--preset, --phase, --tokens, --hidden, --topk, --experts, --wire, --routing, "
           "--buffers, --slotted, --expanded, --mode and --no-expert are for dispatch, combine and "
           "moe";
  }
  if (options.iterations > 0 && options.seconds > 0) return "-i and --seconds exclude each other";
  if (options.min_bytes > options.max_bytes) return "-b is larger than -e";
  if (options.max_bytes > (uint64_t{1} << 30)) return "-e is larger than 1G";
  std::string routing_conflict = is_expert ? find_routing_conflict(options) : "";
  if (!routing_conflict.empty()) return routing_conflict;
  if (is_expert && options.hidden % 8 != 0) {
    return "--hidden is no multiple of 8 (a row must be a multiple of 16 bytes)";
  }
  if (is_expert && options.wire_is_fp8 && options.hidden % 16 != 0) {
    return "--hidden is no multiple of 16 (a row of fp8 must be a multiple of 16 bytes)";
  }
  if (options.is_high_throughput && options.is_slotted) {
    return "--slotted is for --mode ll: rows of --mode ht lie packed or expanded";
  }
  if (options.is_expanded && (!options.is_high_throughput || options.on_device)) {
    return "--expanded is for --mode ht without --device cuda";
  }
  if (options.is_expanded && options.run_mpi) return "--expanded has no --vs mpi";
  if (!options.run_expert && op != "moe") return "--no-expert is for moe";
  if (options.on_device && !options.run_expert) return "--device cuda has no --no-expert";
  if (options.on_device && (options.run_mpi || options.use_mep_memory)) {
    return "--device cuda has no --vs mpi and no --mep-memory";
  }
  if (options.run_nccl && !options.on_device) return "--vs nccl needs --device cuda";
  if (options.run_nccl && options.threads > 0) {
    return "--vs nccl and --threads exclude each other: NCCL's ranks are processes here, by "
           "mep_run";
  }
  if (options.run_nccl && (find_collective(op) == nullptr || op == "barrier")) {
    return "--vs nccl is for collectives with data";
  }
  if (options.on_device && !device_is_built()) {
    return "this mep_perf was built without CUDA: --device cuda is not possible (configure with "
           "MEP_CUDA=ON)";
  }
  if (options.run_mpi && !mpi_is_built()) {
    return "this mep_perf was built without MPI: --vs mpi is not possible (configure with "
           "MEP_MPI=ON)";
  }
  if (options.run_mpi && options.threads > 0) {
    return "--vs mpi and --threads exclude each other: ranks of MPI are processes";
  }
  return "";
}

}  // namespace

ParseResult parse_options(int argc, char** argv, Options* options, std::string* message) {
  const ParseResult result = read_options(argc, argv, options, message);
  if (result != ParseResult::kRun) return result;
  *message = find_conflict(*options);
  return message->empty() ? ParseResult::kRun : ParseResult::kBad;
}

std::string help_text() {
  std::string text =
      "Usage: mpirun -n N mep_perf OP [OPTION..]\n"
      "       mep_run -n N mep_perf OP [OPTION..]\n"
      "       mep_perf OP --threads N [OPTION..]\n"
      "       mep_perf queue [OPTION..]\n"
      "       mep_perf suite --vs mpi|nccl [OPTION..]   tables; see suite --help\n\n"
      "Times MEP's operations, checks their results and compares them with MPI.\n\n" +
      wrapped("OP: ", 4, all_collective_names()) + "    " + all_message_names() +
      " (messages between pairs of ranks)\n    dispatch combine moe\n"
      "    (moe is dispatch, a stand-in expert and combine)\n    queue\n"
      "    (send queues that kernels post to, by threads and the software NIC; one\n     "
      "process)\n    recovery\n    (ranks are killed and replaced: how long the others wait, and a "
      "replacement\n     takes to join)\n" +
      option_lines();
  text += "  --version, --help\n\n" + wrapped("Types: ", 7, all_dtype_names()) +
          wrapped("Reductions: ", 12, all_reduction_names());
  return text;
}

}  // namespace mep::perf
