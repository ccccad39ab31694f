// The first source that has a field gives it: the config, MEP_*, the launcher's variables, the default. Every field is
// checked here, so that the rest of the library can rely on a ResolvedConfig.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/rank_path.hpp"
#include "base/sized_struct.hpp"
#include "base/status.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/bootstrap/hello.hpp"
#include "core/bootstrap/launcher_environment.hpp"

namespace mep {
namespace {

constexpr uint32_t kKnownFlags =
    MEP_COMM_SET_RANK | MEP_COMM_AUTO_RECOVER | MEP_COMM_PROGRESS_THREAD;
constexpr size_t kMaxTextBytes = 4096;

[[nodiscard]] mep_result_t check_device(const mep_comm_config_t& config) {
  switch (config.device_type) {
    case MEP_DEVICE_HOST:
    case MEP_DEVICE_CUDA_BY_RANK:
      if (config.device == 0) break;
      return fail(MEP_ERR_INVALID_ARGUMENT,
                  "config.device is %d but config.device_type is not MEP_DEVICE_CUDA",
                  config.device);
    case MEP_DEVICE_CUDA:
      if (config.device >= 0) break;
      return fail(MEP_ERR_INVALID_ARGUMENT, "config.device is %d, it must be the number of a GPU",
                  config.device);
    default:
      return fail(MEP_ERR_UNSUPPORTED,
                  "config.device_type is %u; known are MEP_DEVICE_HOST, MEP_DEVICE_CUDA and "
                  "MEP_DEVICE_CUDA_BY_RANK",
                  config.device_type);
  }
  if (config.device_type != MEP_DEVICE_HOST && (config.flags & MEP_COMM_AUTO_RECOVER) != 0) {
    return fail(MEP_ERR_UNSUPPORTED,
                "MEP_COMM_AUTO_RECOVER on a device is not built yet: call mep_recover_ranks");
  }
  return MEP_SUCCESS;
}

[[nodiscard]] mep_result_t check_fields(const mep_comm_config_t& config) {
  if ((config.flags & ~kKnownFlags) != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "config.flags 0x%x has unknown bits 0x%x", config.flags,
                config.flags & ~kKnownFlags);
  }
  MEP_TRY(check_device(config));
  if (config.rank != 0 && (config.flags & MEP_COMM_SET_RANK) == 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "config.rank is %d but config.flags lacks MEP_COMM_SET_RANK", config.rank);
  }
  if (config.rank < 0 || config.rank >= kMaxRanks) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "config.rank %d is outside 0 to %d", config.rank,
                kMaxRanks - 1);
  }
  if (config.size < 0 || config.size > kMaxRanks) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "config.size %d is outside 0 to %d", config.size,
                kMaxRanks);
  }
  if (config.max_size < 0 || config.max_size > kMaxRanks) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "config.max_size %d is outside 0 to %d", config.max_size,
                kMaxRanks);
  }
  if (config.quorum > MEP_QUORUM_WITNESS) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "config.quorum %u is no MEP_QUORUM_ value",
                config.quorum);
  }
  return MEP_SUCCESS;
}

// *out: the config's text, else the variable's, else empty.
[[nodiscard]] mep_result_t pick_text(const char* given, const char* variable, std::string* out) {
  bool is_set = false;
  if (given != nullptr && *given != '\0') {
    out->assign(given, strnlen(given, kMaxTextBytes + 1));
  } else {
    MEP_TRY(env_string(variable, out, &is_set));
  }
  if (out->size() > kMaxTextBytes) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "the text given in place of %s is longer than %zu bytes",
                variable, kMaxTextBytes);
  }
  return MEP_SUCCESS;
}

[[nodiscard]] mep_result_t pick_number(uint32_t given, const char* variable, uint32_t* out) {
  if (given != 0) {
    *out = given;
    return MEP_SUCCESS;
  }
  uint64_t value = 0;
  bool is_set = false;
  MEP_TRY(env_uint(variable, 1, std::numeric_limits<uint32_t>::max() - 1, &value, &is_set));
  if (is_set) *out = static_cast<uint32_t>(value);
  return MEP_SUCCESS;
}

// Splits "shm, tcp" into names.
[[nodiscard]] mep_result_t split_transports(const std::string& text,
                                            std::vector<std::string>* out) {
  out->clear();
  if (text.empty()) return MEP_SUCCESS;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    std::string name = text.substr(begin, comma - begin);
    const size_t first = name.find_first_not_of(' ');
    name = first == std::string::npos ? ""
                                      : name.substr(first, name.find_last_not_of(' ') + 1 - first);
    if (name.empty()) {
      return fail(MEP_ERR_INVALID_ARGUMENT, "transports '%.100s' has an empty name", text.c_str());
    }
    if (std::find(out->begin(), out->end(), name) != out->end()) {
      return fail(MEP_ERR_INVALID_ARGUMENT, "transports '%.100s' names '%.32s' twice", text.c_str(),
                  name.c_str());
    }
    out->push_back(std::move(name));
    begin = comma + 1;
  }
  return MEP_SUCCESS;
}

// Finds rank and sizes. *alone: no source names rank or size, so the process is a world of one.
[[nodiscard]] mep_result_t resolve_entry(const mep_comm_config_t& config, ResolvedConfig* out,
                                         LauncherPlace* launcher, bool* alone) {
  uint64_t env_rank = 0;
  uint64_t env_size = 0;
  bool has_env_rank = false;
  bool has_env_size = false;
  MEP_TRY(env_uint("MEP_RANK", 0, kMaxRanks - 1, &env_rank, &has_env_rank));
  MEP_TRY(env_uint("MEP_SIZE", 1, kMaxRanks, &env_size, &has_env_size));
  const bool has_rank = (config.flags & MEP_COMM_SET_RANK) != 0;
  const bool has_size = config.size != 0;
  // Other programs' variables are read only when they are needed: they must not spoil a start that does without them.
  if (!(has_rank || has_env_rank) || !(has_size || has_env_size)) {
    MEP_TRY(read_launcher_environment(launcher));
  }
  const bool rank_known = has_rank || has_env_rank || launcher->found;
  const bool size_known = has_size || has_env_size || launcher->found;
  if (size_known) {
    out->size = has_size       ? config.size
                : has_env_size ? static_cast<int32_t>(env_size)
                               : launcher->size;
  }
  if (rank_known) {
    out->rank = has_rank       ? config.rank
                : has_env_rank ? static_cast<int32_t>(env_rank)
                               : launcher->rank;
  }
  out->rank_given = has_rank || has_env_rank;
  *alone = !rank_known && !size_known;
  const char* rank_source = has_rank       ? "config.rank"
                            : has_env_rank ? "MEP_RANK"
                                           : launcher->launcher;
  const char* size_source = has_size       ? "config.size"
                            : has_env_size ? "MEP_SIZE"
                                           : launcher->launcher;
  if (size_known && out->size > 1 && !rank_known) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%s is %d but no rank is given: set MEP_RANK, or start the program by mep_run or "
                "mpirun",
                size_source, out->size);
  }
  const bool is_from_environment = !has_rank && has_env_rank;
  if (rank_known && !size_known && (out->rank > 0 || is_from_environment)) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s is %d but no size is given: set MEP_SIZE",
                rank_source, out->rank);
  }
  if (out->rank >= out->size) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "rank %d (%s) is not below size %d (%s)", out->rank,
                rank_source, out->size, size_source);
  }
  out->max_size = config.max_size != 0 ? config.max_size : out->size;
  if (out->max_size < out->size) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "config.max_size %d is below the size %d", out->max_size,
                out->size);
  }
  return MEP_SUCCESS;
}

[[nodiscard]] mep_result_t check_job(const ResolvedConfig& config) {
  if (config.job.size() <= kMaxJobBytes) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "the job's name '%.32s...' is longer than %zu bytes",
              config.job.c_str(), kMaxJobBytes);
}

// A joiner's size and max_size only bound its search for the job's ranks; the members tell it the real values.
[[nodiscard]] mep_result_t resolve_joiner(const mep_comm_config_t& config, ResolvedConfig* out) {
  uint64_t value = 0;
  bool is_set = false;
  MEP_TRY(env_uint("MEP_RANK", 0, kMaxRanks - 1, &value, &is_set));
  if (is_set) out->rank = static_cast<int32_t>(value);
  out->rank_given = is_set;
  if ((config.flags & MEP_COMM_SET_RANK) != 0) {
    out->rank = config.rank;
    out->rank_given = true;
  }
  MEP_TRY(env_uint("MEP_SIZE", 1, kMaxRanks, &value, &is_set));
  out->size = config.size != 0 ? config.size : is_set ? static_cast<int32_t>(value) : out->rank + 1;
  out->max_size = std::max({config.max_size, out->size, out->rank + 1});
  MEP_TRY(pick_text(config.job, "MEP_JOB", &out->job));
  if (out->job.empty()) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "the job to join has no name: set config.job or MEP_JOB");
  }
  return check_job(*out);
}

[[nodiscard]] mep_result_t resolve_job(const mep_comm_config_t& config,
                                       const LauncherPlace& launcher, bool alone,
                                       ResolvedConfig* out) {
  MEP_TRY(pick_text(config.job, "MEP_JOB", &out->job));
  if (!out->job.empty()) return check_job(*out);
  LauncherPlace place = launcher;
  if (!place.found) {
    // Rank and size came from elsewhere, yet the launcher may know the job. Malformed variables name no job.
    if (read_launcher_environment(&place) != MEP_SUCCESS) place = LauncherPlace{};
  }
  if (!place.job.empty()) {
    out->job = place.job;
  } else if (alone) {
    out->job = "pid-" + std::to_string(getpid());
  } else if (out->store != nullptr) {
    out->job = "job";  // one store serves one job, so its name need not tell jobs apart
  } else {
    // Ranks that one shell has started have the same parent.
    out->job = "shell-" + std::to_string(getppid());
  }
  return MEP_SUCCESS;
}

[[nodiscard]] mep_result_t resolve_store(const mep_store_t* store, ResolvedConfig* out) {
  if (store == nullptr) return MEP_SUCCESS;
  mep_store_t copy;
  MEP_TRY(read_sized_struct(store, "mep_store_t", &copy));
  if (copy.flags != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "store.flags is 0x%x, must be 0", copy.flags);
  }
  if (copy.put == nullptr || copy.get == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "store.%s is NULL", copy.put == nullptr ? "put" : "get");
  }
  out->store = store;
  return MEP_SUCCESS;
}

[[nodiscard]] mep_result_t resolve_across_hosts(const mep_comm_config_t& config,
                                                const LauncherPlace& launcher,
                                                ResolvedConfig* out) {
  MEP_TRY(pick_text(config.rendezvous, "MEP_RENDEZVOUS", &out->rendezvous));
  if (out->rendezvous.empty() && out->store == nullptr) {
    out->rendezvous = launcher.rendezvous;
    out->no_rendezvous = launcher.no_rendezvous;
  }
  MEP_TRY(pick_text(config.secret_file, "MEP_SECRET_FILE", &out->secret_file));
  bool is_set = false;
  return env_bool("MEP_ALLOW_INSECURE", &out->allow_insecure, &is_set);
}

// The witness, a directory that decides even splits of the world: MEP_WITNESS, else the directory where the ranks meet.
[[nodiscard]] mep_result_t resolve_witness(ResolvedConfig* out) {
  if (out->quorum != MEP_QUORUM_WITNESS) return MEP_SUCCESS;
  bool is_set = false;
  MEP_TRY(env_string("MEP_WITNESS", &out->witness, &is_set));
  if (out->witness.empty() && out->rendezvous.find('/') != std::string::npos) {
    out->witness = out->rendezvous;
  }
  if (!out->witness.empty()) return MEP_SUCCESS;
  return fail(
      MEP_ERR_INVALID_ARGUMENT,
      "MEP_QUORUM_WITNESS needs a directory that all hosts share: set MEP_WITNESS, or let the "
      "ranks meet in one (MEP_RENDEZVOUS)");
}

[[nodiscard]] mep_result_t resolve_times(const mep_comm_config_t& config, ResolvedConfig* out) {
  MEP_TRY(pick_number(config.timeout_ms, "MEP_TIMEOUT_MS", &out->timeout_ms));
  MEP_TRY(pick_number(config.init_timeout_ms, "MEP_INIT_TIMEOUT_MS", &out->init_timeout_ms));
  MEP_TRY(pick_number(config.heartbeat_ms, "MEP_HEARTBEAT_MS", &out->heartbeat_ms));
  MEP_TRY(pick_number(config.suspect_ms, "MEP_SUSPECT_MS", &out->suspect_ms));
  if (out->suspect_ms <= out->heartbeat_ms) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "suspect_ms %u must be larger than heartbeat_ms %u, or every member is suspected",
                out->suspect_ms, out->heartbeat_ms);
  }
  return MEP_SUCCESS;
}

[[nodiscard]] mep_result_t resolve_ways(const mep_comm_config_t& config, ResolvedConfig* out) {
  std::string transports;
  MEP_TRY(pick_text(config.transports, "MEP_TRANSPORTS", &transports));
  MEP_TRY(split_transports(transports, &out->transports));
  bool is_set = false;
  MEP_TRY(env_bool("MEP_MAP", &out->maps, &is_set));
  MEP_TRY(env_bool("MEP_ONE_COPY", &out->reads_memory, &is_set));
  return MEP_SUCCESS;
}

// MEP_PROGRESS_THREAD may differ between ranks.
[[nodiscard]] mep_result_t resolve_progress(ResolvedConfig* out) {
  bool wanted = false;
  bool is_set = false;
  MEP_TRY(env_bool("MEP_PROGRESS_THREAD", &wanted, &is_set));
  if (wanted) out->flags |= MEP_COMM_PROGRESS_THREAD;
  return MEP_SUCCESS;
}

[[nodiscard]] mep_result_t resolve_metrics(ResolvedConfig* out) {
  bool is_set = false;
  MEP_TRY(env_string("MEP_METRICS_FILE", &out->metrics_file, &is_set));
  std::string unused;
  MEP_TRY(rank_path("MEP_METRICS_FILE", out->metrics_file, 0, out->max_size == 1, &unused));
  MEP_TRY(env_string("MEP_FLIGHT_RECORDER", &out->flight_recorder, &is_set));
  if (is_flag_word(out->flight_recorder.c_str(), &out->keeps_flight)) out->flight_recorder.clear();
  MEP_TRY(rank_path("MEP_FLIGHT_RECORDER", out->flight_recorder, 0, out->max_size == 1, &unused));
  uint64_t seconds = out->metrics_interval_s;
  MEP_TRY(env_number("MEP_METRICS_INTERVAL_S", &seconds, &is_set));
  out->metrics_interval_s = static_cast<uint32_t>(seconds);
  return MEP_SUCCESS;
}

// Warns once in a process: a misspelt variable has no effect that anybody could notice.
void warn_of_unknown_variables() {
  static std::atomic<bool> warned{false};  // relaxed: it publishes nothing
  if (warned.exchange(true, std::memory_order_relaxed)) return;
  for (const std::string& text : unknown_variables()) log(LogLevel::kWarn, "%s", text.c_str());
}

}  // namespace

mep_result_t resolve_config(const mep_comm_config_t* given, ResolvedConfig* out, ConfigUse use) {
  mep_comm_config_t config{};
  if (given != nullptr) MEP_TRY(read_sized_struct(given, "mep_comm_config_t", &config));
  MEP_TRY(check_fields(config));
  MEP_TRY(check_environment());
  warn_of_unknown_variables();
  ResolvedConfig resolved;
  resolved.flags = config.flags;
  resolved.quorum = config.quorum;
  MEP_TRY(resolve_store(config.store, &resolved));
  LauncherPlace launcher;
  bool alone = false;
  if (use == ConfigUse::kJoin) {
    MEP_TRY(resolve_joiner(config, &resolved));
  } else {
    MEP_TRY(resolve_entry(config, &resolved, &launcher, &alone));
    MEP_TRY(resolve_job(config, launcher, alone, &resolved));
  }
  if (use != ConfigUse::kThreads) MEP_TRY(resolve_across_hosts(config, launcher, &resolved));
  MEP_TRY(resolve_witness(&resolved));
  MEP_TRY(resolve_times(config, &resolved));
  MEP_TRY(pick_number(config.num_sms, "MEP_NUM_SMS", &resolved.num_sms));
  MEP_TRY(resolve_ways(config, &resolved));
  MEP_TRY(resolve_progress(&resolved));
  MEP_TRY(resolve_metrics(&resolved));
  *out = std::move(resolved);
  return MEP_SUCCESS;
}

}  // namespace mep
