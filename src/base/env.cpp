// The table is the only list of MEP's environment variables; docs/reference/environment.md follows it (a lint
// test compares the two). Values are read afresh at each call and checked whole: "12x" is no
// number.
#include "base/env.hpp"

#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/device_filter.hpp"
#include "base/status.hpp"

namespace mep {
namespace {

constexpr size_t kLongestName = 64;

// Null: unset or empty. secure_getenv, so that a set-uid program takes no paths from its caller.
[[nodiscard]] mep_result_t find_text(const char* name, const char** text) {
  *text = nullptr;
  for (const EnvVariable& variable : env_table()) {
    if (std::strcmp(variable.name, name) != 0) continue;
    const char* value = secure_getenv(name);
    if (value != nullptr && *value != '\0') *text = value;
    return MEP_SUCCESS;
  }
  return fail(MEP_ERR_INTERNAL, "environment variable %s is read but not in the table of env.cpp",
              name);
}

constexpr std::string_view kPrefix = "MEP_";

// Variables of MEP's Python package, its tests and its developers' tools.
bool is_of_others(std::string_view name) {
  const std::string_view rest = name.substr(kPrefix.size());
  return rest == "LIBRARY" || rest == "DEEP_EP" || rest == "MOONCAKE" || rest == "NIXL_EP" ||
         rest == "SGLANG" || rest.starts_with("TEST_") || rest.starts_with("DEV_") ||
         rest.starts_with("LAB_");
}

// How many letters must be added, left out or changed to make one word of the other.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({changed, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row[b.size()];
}

struct Choice {
  const char* name;
  std::array<const char*, 4> words;  // the rest null
};

constexpr Choice kChoices[] = {
    {"MEP_CUDA_REACH", {"auto", "host", "queues", "mixed"}},
    {"MEP_GPU_QUEUES", {"host", "adapter", "auto", "assisted"}},
    {"MEP_SIMD", {"portable", "avx2", "avx512"}},
    {"MEP_LOG", {"error", "warn", "info", "debug"}},
};

[[nodiscard]] mep_result_t check_choice(const Choice& choice) {
  const char* text = nullptr;
  MEP_TRY(find_text(choice.name, &text));
  std::string allowed;
  for (const char* word : choice.words) {
    if (word == nullptr) break;
    if (text == nullptr || std::strcmp(text, word) == 0) return MEP_SUCCESS;
    allowed += (allowed.empty() ? "" : ", ") + std::string(word);
  }
  return fail(MEP_ERR_INVALID_ARGUMENT, "%s=%.64s is none of %s", choice.name, text,
              allowed.c_str());
}

struct Range {
  const char* name;
  uint64_t least;
  uint64_t most;
};

constexpr Range kRanges[] = {
    {"MEP_LOCAL_RANK", 0, INT32_MAX},
    {"MEP_LAUNCH_FD", 0, INT32_MAX},
    {"MEP_SPIN_US", 0, 10'000'000},
    {"MEP_IB_SL", 0, 15},
    {"MEP_IB_TC", 0, 255},
    {"MEP_IB_GID_INDEX", 0, 255},
    {"MEP_IB_TIMEOUT", 8, 22},
    {"MEP_METRICS_INTERVAL_S", 1, 86400},
    {"MEP_TCP_STREAMS", 1, 8},
    {"MEP_IB_CACHE_MIB", 0, uint64_t{1} << 20},
};

constexpr const char* kFlags[] = {
    "MEP_ALLOW_INSECURE", "MEP_PROGRESS_THREAD", "MEP_AUTHENTICATE", "MEP_ENCRYPT", "MEP_MAP",
    "MEP_ONE_COPY"};

std::string text_about_unknown(std::string_view name) {
  // Names that share less than that are not meant for each other.
  constexpr size_t kNear = 3;
  size_t least = kNear + 1;
  const char* nearest = nullptr;
  for (const EnvVariable& variable : env_table()) {
    const size_t found = distance(name, variable.name);
    if (found < least) nearest = variable.name;
    least = std::min(least, found);
  }
  const std::string text = std::string(name) + " is no variable of MEP";
  return nearest == nullptr ? text : text + "; is " + nearest + " meant?";
}

}  // namespace

std::vector<std::string> unknown_variables() {
  std::vector<std::string> texts;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view entry = *each;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with(kPrefix) || name.size() > kLongestName) continue;
    const auto table = env_table();
    const bool is_known = std::any_of(table.begin(), table.end(),
                                      [&](const auto& known) { return name == known.name; });
    if (!is_known && !is_of_others(name)) texts.push_back(text_about_unknown(name));
  }
  return texts;
}

namespace {

// One line or two a variable, so that additions do not collide.
constexpr EnvVariable kTable[] = {
    // This process's place in the job.
    {"MEP_RANK", "", "rank of this process in the world"},
    {"MEP_SIZE", "", "number of ranks of the world"},
    {"MEP_LOCAL_RANK", "", "index of this process among the ranks of its host"},
    {"MEP_JOB", "", "name that the ranks of one job share and no other job on the host has"},
    {"MEP_JOIN", "",
     "mep_run sets it to 1 in a replacement, for the program, which calls mep_comm_join then; "
     "the "
     "library does not read it"},
    {"MEP_LAUNCH_FD", "",
     "set by mep_run: a descriptor by which a start learns which ranks have ended"},
    // How ranks find and trust each other.
    {"MEP_RENDEZVOUS", "", "where ranks meet: a list of addresses, or a directory"},
    {"MEP_WITNESS", "",
     "directory that all hosts share, for even splits (MEP_QUORUM_WITNESS); else "
     "MEP_RENDEZVOUS's"},
    {"MEP_SECRET_FILE", "", "file with the job's secret, readable by its owner only"},
    {"MEP_ALLOW_INSECURE", "0", "1 lets a job over several hosts start without a secret"},
    // Time limits.
    {"MEP_INIT_TIMEOUT_MS", "60000", "limit of the start-up, milliseconds"},
    {"MEP_TIMEOUT_MS", "30000", "limit of one operation, milliseconds"},
    {"MEP_HEARTBEAT_MS", "100", "interval of the sign of life, milliseconds"},
    {"MEP_SUSPECT_MS", "5000", "silence after which a member is suspected, milliseconds"},
    {"MEP_SPIN_US", "",
     "microseconds that a wait spins before it gives its core away or sleeps; default by the "
     "load"},
    {"MEP_PROGRESS_THREAD", "0",
     "1 starts a thread that carries nonblocking operations on (MEP_COMM_PROGRESS_THREAD)"},
    // Which ways are used.
    {"MEP_TRANSPORTS", "", "transports to use, comma list in order of preference; default all"},
    {"MEP_HCA", "",
     "HCAs to use, e.g. mlx5_*:1,^mlx5_2: globs with an optional port, ^ excludes; default all"},
    {"MEP_NET_IF", "", "glob of network interfaces to use between hosts, e.g. eth*; default all"},
    {"MEP_IB_SL", "0", "InfiniBand service level of MEP's connections, 0 to 15"},
    {"MEP_IB_TC", "0", "traffic class (RoCE: DSCP * 4 + ECN bits) of MEP's connections, 0 to 255"},
    {"MEP_IB_GID_INDEX", "", "index of the GID to use; default: RoCE v2, of an IPv4 address"},
    {"MEP_IB_TIMEOUT", "16", "8 to 22: a packet is repeated after 4.096 us * 2^N, six times"},
    {"MEP_IB_CACHE_MIB", "0",
     "MiB of callers' memory kept registered with HCAs; 0: puts from it are copied"},
    {"MEP_TCP_STREAMS", "1",
     "TCP connections of a pair of ranks, 1 to 8, that share large puts; the lower of both ranks "
     "holds"},
    {"MEP_AUTHENTICATE", "0", "1 makes tcp authenticate its data between ranks of one host too"},
    {"MEP_ENCRYPT", "0", "1 makes tcp encrypt its data"},
    {"MEP_MAP", "1", "0 forbids mapped peer memory: put and signal only"},
    {"MEP_ONE_COPY", "1",
     "0: ranks of the host do not read this one's memory: large data is copied twice"},
    {"MEP_CUDA_REACH", "auto",
     "host: no GPU maps another's memory, windows lie in pinned memory of the host; queues: "
     "GPUs post to queues; mixed: even and odd ranks post to queues of each other, for tests"},
    {"MEP_GPU_QUEUES", "host",
     "what executes the queues that GPUs post to, the same on all ranks: host, a thread of the "
     "library; adapter, a ConnectX adapter of each rank; auto, adapters where they pass a test on "
     "all ranks, else host; assisted, as adapter, and a thread rings the adapter where GPUs could. "
     "No adapter has executed a queue yet, only a model of one"},
    {"MEP_NUM_SMS", "",
     "blocks of a kernel on GPUs at most, the least that any rank says; default: no limit"},
    {"MEP_SIMD", "", "portable, avx2 or avx512: at most this instruction set; default the CPU's"},
    // For tests.
    {"MEP_TEST_HOST", "", "ranks with different names here take each other to be on other hosts"},
    {"MEP_FAILPOINT", "",
     "NAME[:NTH]=kill, =stop or =pause: what the process, or a thread of it, does at that point"},
    // Log and error output.
    {"MEP_LOG", "warn", "error, warn, info or debug"},
    {"MEP_LOG_FILE", "",
     "file that log lines are appended to; %r is the rank where MEP_RANK or the launcher says it, "
     "%p the pid, %% a percent sign; default stderr"},
    // Counters.
    {"MEP_METRICS_FILE", "",
     "file that each rank writes its counters to, in Prometheus' text format; %r is the rank, %p "
     "the pid, %% a percent sign; %r must be in it if the world has or may have several ranks"},
    {"MEP_METRICS_INTERVAL_S", "10",
     "seconds between two writes of MEP_METRICS_FILE, 1 to 86400; mep_comm_destroy of the world "
     "writes it too"},
    {"MEP_FLIGHT_RECORDER", "1",
     "each rank keeps its last operations for mep_info --recorder: 1 in memory while it lives, 0 "
     "not at all; else the name of a file, which stays, as in MEP_METRICS_FILE"},
};

}  // namespace

std::span<const EnvVariable> env_table() {
  return kTable;
}

mep_result_t env_string(const char* name, std::string* value, bool* is_set) {
  const char* text = nullptr;
  *is_set = false;
  MEP_TRY(find_text(name, &text));
  if (text == nullptr) return MEP_SUCCESS;
  *value = text;
  *is_set = true;
  return MEP_SUCCESS;
}

mep_result_t env_uint(const char* name, uint64_t min, uint64_t max, uint64_t* value, bool* is_set) {
  const char* text = nullptr;
  *is_set = false;
  MEP_TRY(find_text(name, &text));
  if (text == nullptr) return MEP_SUCCESS;
  const char* end = text + std::strlen(text);
  uint64_t parsed = 0;
  const auto [stop, error] = std::from_chars(text, end, parsed, 10);
  if (error == std::errc::invalid_argument || stop != end) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s=%.64s is not a whole number", name, text);
  }
  if (error == std::errc::result_out_of_range || parsed < min || parsed > max) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s=%.64s is outside %llu to %llu", name, text,
                static_cast<unsigned long long>(min), static_cast<unsigned long long>(max));
  }
  *value = parsed;
  *is_set = true;
  return MEP_SUCCESS;
}

mep_result_t env_number(const char* name, uint64_t* value, bool* is_set) {
  for (const Range& range : kRanges) {
    if (std::strcmp(range.name, name) == 0) {
      return env_uint(name, range.least, range.most, value, is_set);
    }
  }
  return fail(MEP_ERR_INTERNAL, "environment variable %s has no range in env.cpp", name);
}

bool is_flag_word(const char* text, bool* value) {
  constexpr const char* kTrue[] = {"1", "true", "yes", "on"};
  constexpr const char* kFalse[] = {"0", "false", "no", "off"};
  for (int i = 0; i < 4; ++i) {
    const bool is_true = strcasecmp(text, kTrue[i]) == 0;
    if (!is_true && strcasecmp(text, kFalse[i]) != 0) continue;
    *value = is_true;
    return true;
  }
  return false;
}

mep_result_t env_bool(const char* name, bool* value, bool* is_set) {
  const char* text = nullptr;
  *is_set = false;
  MEP_TRY(find_text(name, &text));
  if (text == nullptr) return MEP_SUCCESS;
  *is_set = is_flag_word(text, value);
  if (*is_set) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "%s=%.64s is neither 1 (true, yes, on) nor 0 (false, no, off)", name, text);
}

mep_result_t check_environment() {
  uint64_t number = 0;
  bool flag = false;
  bool is_set = false;
  for (const Choice& choice : kChoices) MEP_TRY(check_choice(choice));
  for (const Range& range : kRanges) MEP_TRY(env_number(range.name, &number, &is_set));
  for (const char* name : kFlags) MEP_TRY(env_bool(name, &flag, &is_set));
  std::string list;
  MEP_TRY(env_string("MEP_HCA", &list, &is_set));
  DeviceFilter filter;
  return DeviceFilter::parse(list, "MEP_HCA", &filter);
}

}  // namespace mep
