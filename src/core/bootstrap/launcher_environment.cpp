// Values are read once and checked whole, like MEP's own variables.
#include "core/bootstrap/launcher_environment.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/bootstrap/hello.hpp"

namespace mep {
namespace {

// Null: unset or empty.
const char* text_of(const char* name) {
  const char* text = secure_getenv(name);
  return text != nullptr && *text != '\0' ? text : nullptr;
}

[[nodiscard]] mep_result_t number_of(const char* name, int64_t* value, bool* is_set) {
  const char* text = text_of(name);
  *is_set = text != nullptr;
  if (text == nullptr) return MEP_SUCCESS;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, *value, 10);
  if (error != std::errc() || stop != end || *value < 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s=%.64s, set by the launcher, is no number", name,
                text);
  }
  return MEP_SUCCESS;
}

// Fills rank and size from the first size variable that is set. rank_name unset: not found.
[[nodiscard]] mep_result_t read_place(const char* rank_name,
                                      std::initializer_list<const char*> size_names,
                                      LauncherPlace* out) {
  int64_t rank = 0;
  int64_t size = 0;
  bool has_rank = false;
  bool has_size = false;
  MEP_TRY(number_of(rank_name, &rank, &has_rank));
  if (!has_rank) return MEP_SUCCESS;
  const char* size_name = nullptr;
  for (const char* name : size_names) {
    size_name = name;
    MEP_TRY(number_of(name, &size, &has_size));
    if (has_size) break;
  }
  if (!has_size) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s=%lld is set but %s is not: set MEP_RANK and MEP_SIZE",
                rank_name, static_cast<long long>(rank), size_name);
  }
  if (size < 1 || size > kMaxRanks || rank >= size) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s=%lld and %s=%lld, set by the launcher, do not fit",
                rank_name, static_cast<long long>(rank), size_name, static_cast<long long>(size));
  }
  out->found = true;
  out->rank = static_cast<int32_t>(rank);
  out->size = static_cast<int32_t>(size);
  return MEP_SUCCESS;
}

std::string job_of(std::initializer_list<const char*> names) {
  std::string job;
  for (const char* name : names) {
    const char* text = text_of(name);
    if (text != nullptr) job += (job.empty() ? "" : "-") + std::string(text);
  }
  if (job.size() > kMaxJobBytes) job.resize(kMaxJobBytes);
  return job;
}

// A batch script sees its allocation's variables without being a task of it: only a real step
// counts.
bool in_slurm_step() {
  const char* step = text_of("SLURM_STEP_ID");
  if (step == nullptr) step = text_of("SLURM_STEPID");
  if (step == nullptr) return false;
  constexpr unsigned long kFirstSpecialStep = 0xfffffff0ul;  // batch, external and interactive ones
  return std::strtoul(step, nullptr, 10) < kFirstSpecialStep;
}

// The port of torch's own store is its own: ranks meet at the next one.
[[nodiscard]] mep_result_t find_torch_rendezvous(int64_t size, LauncherPlace* out) {
  const char* host = text_of("MASTER_ADDR");
  int64_t port = 0;
  int64_t local_size = 0;
  bool has_port = false;
  bool has_local_size = false;
  MEP_TRY(number_of("MASTER_PORT", &port, &has_port));
  MEP_TRY(number_of("LOCAL_WORLD_SIZE", &local_size, &has_local_size));
  if (has_local_size && local_size == size) return MEP_SUCCESS;
  const std::string name = host == nullptr ? "" : host;
  const bool is_loopback = name == "localhost" || name == "::1" || name.starts_with("127.");
  if (name.empty() || !has_port || is_loopback) {
    if (!has_local_size || local_size > size) return MEP_SUCCESS;
    const std::string fault = is_loopback    ? "MASTER_ADDR=" + name + " leads them to themselves"
                              : name.empty() ? "MASTER_ADDR is not set"
                                             : "MASTER_PORT is not set";
    out->no_rendezvous =
        "only " + std::to_string(local_size) + " of " + std::to_string(size) +
        " ranks are on this host (LOCAL_WORLD_SIZE) and the others cannot find it: " + fault +
        "; set MASTER_ADDR and MASTER_PORT, or MEP_RENDEZVOUS, to where "
        "all hosts reach a rank of this job";
    return MEP_SUCCESS;
  }
  constexpr int64_t kLastPort = 65535;
  if (port < 1 || port > kLastPort) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "MASTER_PORT=%lld, set by the launcher, is no port",
                static_cast<long long>(port));
  }
  const bool is_bare_v6 = name.find(':') != std::string::npos && name[0] != '[';
  out->rendezvous = (is_bare_v6 ? "[" + name + "]" : name) + ":" +
                    std::to_string(port < kLastPort ? port + 1 : port - 1);
  return MEP_SUCCESS;
}

// torchrun, and whoever sets the variables of torch's env:// in its place.
[[nodiscard]] mep_result_t read_torch(LauncherPlace* out) {
  out->launcher = "torchrun";
  int64_t size = 0;
  bool has_size = false;
  MEP_TRY(number_of("WORLD_SIZE", &size, &has_size));
  if (!has_size) {
    int64_t rank = 0;
    bool has_rank = false;
    // RANK is too common a name to mean a launcher's if it is no number.
    if (number_of("RANK", &rank, &has_rank) != MEP_SUCCESS || !has_rank) return MEP_SUCCESS;
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "RANK=%lld is set but WORLD_SIZE is not: set both, or MEP_RANK and MEP_SIZE "
                "(MEP_RANK=0 MEP_SIZE=1 for a world of this process alone)",
                static_cast<long long>(rank));
  }
  MEP_TRY(read_place("RANK", {"WORLD_SIZE"}, out));
  if (!out->found) {
    if (size <= 1) return MEP_SUCCESS;
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "WORLD_SIZE=%lld is set but RANK is not: set both, or MEP_RANK and MEP_SIZE "
                "(MEP_RANK=0 MEP_SIZE=1 for a world of this process alone)",
                static_cast<long long>(size));
  }
  // A restart is another world, while processes of the last one may still be ending.
  out->job =
      job_of({"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"});
  if (!out->job.empty()) out->job = "torch-" + out->job;
  if (out->job.size() > kMaxJobBytes) out->job.resize(kMaxJobBytes);
  return find_torch_rendezvous(size, out);
}

bool find_launched_rank(uint32_t* rank) {
  LauncherPlace place;
  if (is_error(read_launcher_environment(&place)) || !place.found) return false;
  *rank = static_cast<uint32_t>(place.rank);
  return true;
}

[[maybe_unused]] const bool kTellsLog = [] {
  set_log_rank_finder(find_launched_rank);
  return true;
}();

}  // namespace

mep_result_t read_launcher_environment(LauncherPlace* out) {
  *out = LauncherPlace{};
  if (text_of("TORCHELASTIC_RUN_ID") != nullptr) {
    MEP_TRY(read_torch(out));
    if (out->found) return MEP_SUCCESS;
  }
  out->launcher = "Open MPI";
  MEP_TRY(read_place("OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"}, out));
  if (out->found) {
    // The namespace alone has only 16 bits that tell jobs apart; the key is random.
    out->job = job_of({"PMIX_NAMESPACE", "OMPI_MCA_orte_precondition_transports"});
    if (out->job.empty()) out->job = job_of({"OMPI_MCA_ess_base_jobid"});
    if (!out->job.empty()) out->job = "ompi-" + out->job;
    return MEP_SUCCESS;
  }
  out->launcher = "PMIx";
  MEP_TRY(read_place("PMIX_RANK", {"PMIX_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "PMI_SIZE"},
                     out));
  if (out->found) {
    out->job = job_of({"PMIX_NAMESPACE"});
    if (!out->job.empty()) out->job = "pmix-" + out->job;
    return MEP_SUCCESS;
  }
  out->launcher = "PMI";
  MEP_TRY(read_place("PMI_RANK", {"PMI_SIZE"}, out));
  if (out->found) {
    if (in_slurm_step()) out->job = job_of({"SLURM_JOB_ID", "SLURM_STEP_ID"});
    if (!out->job.empty()) out->job = "slurm-" + out->job;
    return MEP_SUCCESS;
  }
  if (!in_slurm_step()) return read_torch(out);
  out->launcher = "Slurm";
  MEP_TRY(read_place("SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, out));
  if (!out->found) return read_torch(out);
  out->job = "slurm-" + job_of({"SLURM_JOB_ID", "SLURM_STEP_ID"});
  return MEP_SUCCESS;
}

mep_result_t find_local_rank(uint64_t* rank) {
  bool is_told = false;
  MEP_TRY(env_number("MEP_LOCAL_RANK", rank, &is_told));
  if (is_told) return MEP_SUCCESS;
  constexpr const char* kNames[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_LOCAL_RANK",
                                    "MPI_LOCALRANKID"};
  int64_t value = 0;
  bool is_set = false;
  for (const char* name : kNames) {
    MEP_TRY(number_of(name, &value, &is_set));
    if (is_set) break;
  }
  if (!is_set && text_of("WORLD_SIZE") != nullptr) {
    MEP_TRY(number_of("LOCAL_RANK", &value, &is_set));
  }
  if (!is_set && in_slurm_step()) MEP_TRY(number_of("SLURM_LOCALID", &value, &is_set));
  if (is_set) *rank = static_cast<uint64_t>(value);
  return MEP_SUCCESS;
}

}  // namespace mep
