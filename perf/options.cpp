// One table: every option's names, its help line and how its value is read. Errors name the option
// and the text that was given.
#include "options.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "types.hpp"

namespace mep::perf {
namespace {

constexpr uint32_t kMaxWarps = 256;
constexpr uint64_t kMaxPutBytes = uint64_t{256} << 20;
constexpr uint32_t kMaxKills = 100'000;
constexpr uint64_t kMaxAllreduceBytes = uint64_t{1} << 30;

// The whole text must be a number between the limits.
template <typename Number>
bool read_number(const std::string& text, Number min, Number max, Number* value) {
  Number parsed{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, parsed);
  if (error != std::errc() || stop != end || !(parsed >= min && parsed <= max)) {
    return false;  // not a number, too
  }
  *value = parsed;
  return true;
}

// "64", "64K", "64KiB", "1M", "1g".
bool read_bytes(const std::string& text, uint64_t* bytes) {
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  uint64_t value = 0;
  if (!read_number<uint64_t>(text.substr(0, digits), 0, uint64_t{1} << 40, &value)) return false;
  const std::string unit = text.substr(digits);
  unsigned shift = 0;
  if (!unit.empty()) {
    const char* found = std::strchr("kKmMgG", unit[0]);
    if (found == nullptr || (unit.size() > 1 && unit.substr(1) != "iB" && unit.substr(1) != "B")) {
      return false;
    }
    shift = 10 * (1 + static_cast<unsigned>(found - "kKmMgG") / 2);
  }
  *bytes = value << shift;
  return true;
}

// "1,2,4", each by *read.
template <typename Value, typename Read>
bool read_list(const std::string& text, const Read& read, std::vector<Value>* values) {
  values->clear();
  size_t begin = 0;
  while (true) {
    const size_t comma = text.find(',', begin);
    Value value = 0;
    if (!read(text.substr(begin, comma - begin), &value)) return false;
    values->push_back(value);
    if (comma == std::string::npos) return true;
    begin = comma + 1;
  }
}

bool read_counts(const std::string& text, uint32_t min, uint32_t max,
                 std::vector<uint32_t>* counts) {
  const auto read = [&](const std::string& part, uint32_t* value) {
    return read_number(part, min, max, value);
  };
  return read_list(text, read, counts);
}

bool read_put_sizes(const std::string& text, std::vector<uint64_t>* sizes) {
  const auto read = [](const std::string& part, uint64_t* value) {
    return read_bytes(part, value) && *value > 0 && *value <= kMaxPutBytes;
  };
  return read_list(text, read, sizes);
}

bool read_routing(const std::string& text, Routing* routing) {
  routing->text = text;
  if (text == "uniform") {
    routing->kind = RoutingKind::kUniform;
    return true;
  }
  if (text == "deepseek-v3") {
    routing->kind = RoutingKind::kDeepseekV3;
    return true;
  }
  if (text.rfind("zipf:", 0) == 0) {
    routing->kind = RoutingKind::kZipf;
    return read_number<double>(text.substr(5), 0, 100, &routing->exponent);
  }
  if (text.rfind("file:", 0) != 0 || text.size() == 5) return false;
  routing->kind = RoutingKind::kFile;
  routing->path = text.substr(5);
  return true;
}

// "host", "cuda" (GPUs are dealt to the ranks), "cuda:1".
bool read_device(const std::string& text, Options* options) {
  options->on_device = text.rfind("cuda", 0) == 0;
  options->device = -1;
  if (text == "host" || text == "cuda") return true;
  return text.rfind("cuda:", 0) == 0 && read_number(text.substr(5), 0, 1023, &options->device);
}

bool read_side(const std::string& text, Options* options) {
  options->run_mep = text == "mep";
  options->run_mpi = text == "mpi";
  return options->run_mep || options->run_mpi;
}

// The MoE layer of a model.
struct Preset {
  const char* name;
  uint32_t hidden;
  uint32_t experts;
  uint32_t top_k;
};

constexpr Preset kPresets[] = {
    {"deepseek-v3", 7168, 256, 8},
    {"qwen3-235b", 4096, 128, 8},
    {"kimi-k2", 7168, 384, 8},
};

const Preset* find_preset(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (name == preset.name) return &preset;
  }
  return nullptr;
}

// The options that a preset and a phase stand for.
void set_defaults(const std::string& preset, const std::string& phase, Options* options) {
  if (const Preset* found = find_preset(preset)) {
    options->hidden = found->hidden;
    options->experts = found->experts;
    options->top_k = found->top_k;
  }
  if (phase.empty()) return;
  options->is_high_throughput = phase == "prefill";
  options->tokens = {options->is_high_throughput ? 4096u : 128u};
}

enum class Group { kCollective, kExpert, kQueue, kRecovery, kRun, kHidden };

struct Entry {
  const char* name;
  const char* value;  // what stands after it; null: nothing
  Group group;
  const char* help;
  bool (*read)(const std::string& text, Options* options);
};

constexpr uint32_t kMax = 1u << 30;

const Entry kEntries[] = {
    {"-b", "MIN", Group::kCollective, "smallest size in bytes, K M G may follow [8]",
     [](const std::string& t, Options* o) { return read_bytes(t, &o->min_bytes); }},
    {"-e", "MAX", Group::kCollective, "largest size [16M]",
     [](const std::string& t, Options* o) { return read_bytes(t, &o->max_bytes); }},
    {"-f", "FACTOR", Group::kCollective, "from one size to the next [4]",
     [](const std::string& t, Options* o) { return read_number(t, 1.01, 1e9, &o->factor); }},
    {"--dtype", "T", Group::kCollective, "element type [float32]",
     [](const std::string& t, Options* o) { return parse_dtype(t, &o->dtype); }},
    {"--reduce", "R", Group::kCollective, "reduction of allreduce [sum]",
     [](const std::string& t, Options* o) { return parse_reduction(t, &o->reduction); }},
    {"--mep-memory", nullptr, Group::kCollective, "buffers from mep_mem_alloc, not from malloc",
     [](const std::string&, Options* o) { return o->use_mep_memory = true; }},
    {"--preset", "P", Group::kExpert,
     "deepseek-v3, qwen3-235b or kimi-k2: its hidden, experts and topk",
     [](const std::string& t, Options* o) { return find_preset(o->preset = t) != nullptr; }},
    {"--phase", "F", Group::kExpert,
     "prefill, --mode ht --tokens 4096; or decode, --mode ll --tokens 128",
     [](const std::string& t, Options* o) {
       o->phase = t;
       return t == "prefill" || t == "decode";
     }},
    {"--tokens", "T[,T..]", Group::kExpert, "tokens a rank; one row of the table each [128]",
     [](const std::string& t, Options* o) { return read_counts(t, 0, 1u << 20, &o->tokens); }},
    {"--hidden", "H", Group::kExpert, "values of a token [7168]",
     [](const std::string& t, Options* o) { return read_number(t, 1u, kMax, &o->hidden); }},
    {"--topk", "K", Group::kExpert, "experts of a token [8]",
     [](const std::string& t, Options* o) { return read_number(t, 1u, 64u, &o->top_k); }},
    {"--experts", "E", Group::kExpert, "experts of all ranks [256]",
     [](const std::string& t, Options* o) { return read_number(t, 1u, kMax, &o->experts); }},
    {"--wire", "W", Group::kExpert, "bf16, or fp8 (e4m3 with a scale per 128 values) [bf16]",
     [](const std::string& t, Options* o) {
       o->wire_is_fp8 = t == "fp8";
       return t == "fp8" || t == "bf16";
     }},
    {"--routing", "R", Group::kExpert, "uniform, zipf:S, deepseek-v3 or file:PATH [uniform]",
     [](const std::string& t, Options* o) { return read_routing(t, &o->routing); }},
    {"--buffers", "N", Group::kExpert, "buffers of the EP object, used in turn [1]",
     [](const std::string& t, Options* o) { return read_number(t, 1u, 8u, &o->buffers); }},
    {"--slotted", nullptr, Group::kExpert, "slotted receive layout; default packed",
     [](const std::string&, Options* o) { return o->is_slotted = true; }},
    {"--expanded", nullptr, Group::kExpert,
     "expanded receive layout of --mode ht: a row for each local expert of a token",
     [](const std::string&, Options* o) { return o->is_expanded = true; }},
    {"--mode", "M", Group::kExpert,
     "ll, a row for each expert of a token; ht, one for each rank that has some of them [ll]",
     [](const std::string& t, Options* o) {
       o->is_high_throughput = t == "ht";
       return t == "ht" || t == "ll";
     }},
    {"--no-expert", nullptr, Group::kExpert,
     "moe without the stand-in expert: its output is made once, before the timing",
     [](const std::string&, Options* o) { return !(o->run_expert = false); }},
    {"--warps", "W[,W..]", Group::kQueue, "threads that post, as warps would [1,2,4,8]",
     [](const std::string& t, Options* o) { return read_counts(t, 1, kMaxWarps, &o->warps); }},
    {"--size", "S[,S..]", Group::kQueue, "bytes of a put, at most 256M [8,4096,65536]",
     [](const std::string& t, Options* o) { return read_put_sizes(t, &o->put_sizes); }},
    {"--nic", "NAME", Group::kQueue, "two queue pairs of this adapter in place of the software NIC",
     [](const std::string& t, Options* o) { return !(o->nic = t).empty(); }},
    {"--kills", "N", Group::kRecovery, "ranks that are killed and replaced, in turn [20]",
     [](const std::string& t, Options* o) { return read_number(t, 1u, kMaxKills, &o->kills); }},
    {"--memory", "GIB", Group::kRecovery, "GiB that each rank has filled [0]",
     [](const std::string& t, Options* o) { return read_number(t, 0.0, 1024.0, &o->memory_gib); }},
    {"--bytes", "B", Group::kRecovery,
     "size of the allreduce that the ranks repeat, at most 1G [8]",
     [](const std::string& t, Options* o) {
       return read_bytes(t, &o->allreduce_bytes) && o->allreduce_bytes > 0 &&
              o->allreduce_bytes <= kMaxAllreduceBytes;
     }},
    {"-i", "ITERS", Group::kRun, "iterations of a size; default by time, about half a second",
     [](const std::string& t, Options* o) {
       return read_number<uint64_t>(t, 1, uint64_t{1} << 40, &o->iterations);
     }},
    {"--seconds", "S", Group::kRun,
     "time of a size and side in place of -i; at least three blocks run",
     [](const std::string& t, Options* o) { return read_number(t, 0.001, 3600.0, &o->seconds); }},
    {"--check", nullptr, Group::kRun, "compare the results with a plain reference",
     [](const std::string&, Options* o) { return o->check = true; }},
    {"--device", "D", Group::kRun,
     "host; cuda: local rank n on GPU n, then from the first again; cuda:N: all there [host]",
     read_device},
    {"--vs", "L", Group::kRun,
     "the same by mpi, or on GPUs by nccl, in turn with MEP, and the ratio of the medians",
     [](const std::string& t, Options* o) {
       o->run_mpi = t == "mpi";
       o->run_nccl = t == "nccl";
       return o->run_mpi || o->run_nccl;
     }},
    {"--json", "FILE", Group::kRun, "write the rows as one JSON array",
     [](const std::string& t, Options* o) { return !(o->json_path = t).empty(); }},
    {"--csv", "FILE", Group::kRun, "write the rows as CSV, with one line of column names",
     [](const std::string& t, Options* o) { return !(o->csv_path = t).empty(); }},
    {"--threads", "N", Group::kRun, "N ranks as threads of this process",
     [](const std::string& t, Options* o) { return read_number(t, 1, 4096, &o->threads); }},
    {"--no-machine", nullptr, Group::kRun, "do not measure the machine; no shares in the table",
     [](const std::string&, Options* o) { return !(o->measure_machine = false); }},
    {"--switches", nullptr, Group::kRun,
     "context switches of a rank in one operation, voluntary and involuntary",
     [](const std::string&, Options* o) { return o->show_switches = true; }},
    {"--only", "SIDE", Group::kHidden, "mep or mpi alone", read_side},
};

const Entry* find_entry(const std::string& name) {
  for (const Entry& entry : kEntries) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

ParseResult read_words(int argc, char** argv, Options* options, std::string* message) {
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    if (name == "-h" || name == "--help") return ParseResult::kHelp;
    if (name == "--version") return ParseResult::kVersion;
    if (name.empty() || name[0] != '-') {
      if (!options->operation.empty()) {
        *message = "'" + name + "' is a second operation after '" + options->operation + "'";
        return ParseResult::kBad;
      }
      options->operation = name;
      continue;
    }
    std::string value;
    const size_t equals = name.rfind("--", 0) == 0 ? name.find('=') : std::string::npos;
    const bool has_inline_value = equals != std::string::npos;
    if (has_inline_value) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const Entry* entry = find_entry(name);
    if (entry == nullptr) {
      *message = "unknown option " + name + "; try mep_perf --help";
      return ParseResult::kBad;
    }
    if (entry->value != nullptr && !has_inline_value) {
      if (i + 1 == argc) {
        message->assign(name).append(" needs a value: ").append(entry->help);
        return ParseResult::kBad;
      }
      value = argv[++i];
    }
    if ((entry->value == nullptr && has_inline_value) || !entry->read(value, options)) {
      message->assign(name).append(" cannot be '").append(value).append("': ").append(entry->help);
      return ParseResult::kBad;
    }
    options->has_size_option |= entry->group == Group::kCollective;
    options->has_expert_option |= entry->group == Group::kExpert;
    options->has_queue_option |= entry->group == Group::kQueue;
    options->has_recovery_option |= entry->group == Group::kRecovery;
  }
  return ParseResult::kRun;
}

// Options of operations that are timed in blocks.
bool has_block_option(const Options& options) {
  return options.has_size_option || options.has_expert_option || options.check || options.run_mpi ||
         options.run_nccl || options.show_switches || options.threads > 0 || options.seconds > 0;
}

}  // namespace

bool is_queue_operation(const std::string& name) {
  return name == "queue";
}

bool is_recovery_operation(const std::string& name) {
  return name == "recovery";
}

bool is_expert_operation(const std::string& name) {
  return name == "dispatch" || name == "combine" || name == "moe";
}

ParseResult read_options(int argc, char** argv, Options* options, std::string* message) {
  Options first;
  const ParseResult result = read_words(argc, argv, &first, message);
  if (result != ParseResult::kRun) return result;
  set_defaults(first.preset, first.phase, options);
  return read_words(argc, argv, options, message);
}

std::string find_queue_conflict(const Options& options) {
  const bool has_others =
      has_block_option(options) || options.has_recovery_option || options.on_device;
  return has_others ? "queue takes --warps, --size, --nic, -i, --json and --csv" : "";
}

std::string find_recovery_conflict(const Options& options) {
  const bool has_others =
      has_block_option(options) || options.has_queue_option || options.iterations > 0;
  return has_others ? "recovery takes --kills, --memory, --bytes, --device, --json and --csv" : "";
}

std::string option_lines() {
  std::string text;
  constexpr const char* kTitles[] = {"Collectives", "Dispatch, combine, moe", "Queue", "Recovery",
                                     "Running"};
  for (const Group group :
       {Group::kCollective, Group::kExpert, Group::kQueue, Group::kRecovery, Group::kRun}) {
    text += std::string("\n") + kTitles[static_cast<int>(group)] + ":\n";
    for (const Entry& entry : kEntries) {
      if (entry.group != group) continue;
      std::string left = std::string("  ") + entry.name;
      if (entry.value != nullptr) left += std::string(" ") + entry.value;
      left.resize(left.size() < 20 ? 20 : left.size() + 1, ' ');
      text += wrapped(left, 20, entry.help);
    }
  }
  return text;
}

}  // namespace mep::perf
