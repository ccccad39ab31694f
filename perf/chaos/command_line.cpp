#include "command_line.hpp"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mep::programs {
namespace {

constexpr const char* kHelp =
    "usage: mep_chaos [OPTION]...\n"
    "\n"
    "Runs random programs: each follows from its seed, has 2 to 8 ranks on 1 to 3\n"
    "hosts (played on this one), and calls collectives, splits, agreements,\n"
    "recoveries, dispatch and combine while ranks are killed, stopped and replaced.\n"
    "What the ranks were told and given is compared with what mep.h promises. A\n"
    "finding names its seed and the command that runs it again.\n"
    "\n"
    "  --programs N     how many (default 100)\n"
    "  --seed S         of the first; the others follow (default 1)\n"
    "  --seconds T      no new program after T seconds\n"
    "  --jobs J         so many at a time (default 2)\n"
    "  --batch B        so many in each process, one after the other (default 1);\n"
    "                   with --threads --device the GPUs are opened once for all\n"
    "                   (default 25 there)\n"
    "  --mode M         any (of the first four; default), shm, tcp, mixed (both), put\n"
    "                   (shm, unmapped), verbs (alone, or two hosts with shm in each)\n"
    "                   or threads\n"
    "  --threads        the same as --mode threads: ranks are threads, and nobody is\n"
    "                   killed\n"
    "  --no-faults      nobody is killed, stopped or late\n"
    "  --no-ep          no dispatch and combine\n"
    "  --device         communicators are on GPUs: rank r has GPU r modulo their\n"
    "                   number. Calls go on streams, over memory of the GPU\n"
    "  --shape S        each has this shape:\n"
    "                   joins: a rank is stopped while a replacement of another joins\n"
    "                   points: a rank dies, stands still or crawls at a named point\n"
    "                   last: 8 ranks die until one is left\n"
    "                   grown: old and new ranks of a grown world die\n"
    "                   cycles: 100 deaths and replacements; nothing leaks\n"
    "                   computing, dead-root, batch, free, split, recover, grow: one\n"
    "                   of those that a third of all programs have\n"
    "  --patience F     all limits of time are F times as long (default 1)\n"
    "  --steps N        no more than the first N steps of each program\n"
    "  --findings DIR   where all that was said goes when something was wrong\n"
    "                   (default mep_chaos_findings)\n"
    "  --max-findings N no new program after N with findings (default 20; 0: no\n"
    "                   limit)\n"
    "  --ignore TEXT    a finding with this text is none; may be given again\n"
    "  --hang-ms T      a program that takes longer hangs (default 180000)\n"
    "  --print          the programs in words; nothing is run\n"
    "  --sabotage WHAT:SLOT:STEP\n"
    "                   the rank lies, to see that it is found: data (a wrong bit),\n"
    "                   skip (a step), verdict (another result), crash\n"
    "  -v               all that each program's ranks said\n"
    "\n"
    "Every 10 s a line on stderr says how far the programs are.\n"
    "\n"
    "Exit status: 0 when nothing was wrong, 1 when something was, 2 for a wrong\n"
    "command line.\n";

bool parse_number(const char* text, uint64_t min, uint64_t max, uint64_t* value) {
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, *value);
  return error == std::errc() && stop == end && *value >= min && *value <= max;
}

bool parse_mode(const std::string& text, Mode* mode) {
  for (const Mode candidate : {Mode::kAny, Mode::kShm, Mode::kTcp, Mode::kMixed, Mode::kPut,
                               Mode::kVerbs, Mode::kThreads}) {
    if (text != name_of(candidate)) continue;
    *mode = candidate;
    return true;
  }
  return false;
}

bool parse_sabotage(const std::string& text, Sabotage* sabotage) {
  const size_t first = text.find(':');
  const size_t second = text.find(':', first + 1);
  uint64_t slot = 0;
  uint64_t step = 0;
  if (first == std::string::npos || second == std::string::npos ||
      !parse_number(text.substr(first + 1, second - first - 1).c_str(), 0, kMaxSlots, &slot) ||
      !parse_number(text.c_str() + second + 1, 0, UINT32_MAX, &step)) {
    return false;
  }
  sabotage->what = text.substr(0, first);
  sabotage->slot = static_cast<uint32_t>(slot);
  sabotage->step = static_cast<uint32_t>(step);
  return sabotage->what == "data" || sabotage->what == "skip" || sabotage->what == "verdict" ||
         sabotage->what == "crash";
}

// Options without a value.
bool parse_flag(const std::string& name, Campaign* campaign) {
  if (name == "--threads") {
    campaign->limits.mode = Mode::kThreads;
  } else if (name == "--no-faults") {
    campaign->limits.faults = false;
  } else if (name == "--no-ep") {
    campaign->limits.ep = false;
  } else if (name == "--device") {
    campaign->limits.device = true;
    // With fewer, kernels of ranks that share a GPU may wait behind each other.
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // NOLINT(concurrency-mt-unsafe)
  } else if (name == "--print") {
    campaign->prints = true;
  } else if (name == "-v") {
    campaign->verbose = true;
  } else {
    return false;
  }
  return true;
}

}  // namespace

Parsed parse_command_line(int argc, char** argv, Campaign* campaign, std::string* message) {
  struct {
    const char* name;
    uint64_t min;
    uint64_t max;
    uint64_t value;
  } numbers[] = {{"--programs", 1, UINT64_MAX, campaign->programs},
                 {"--seed", 0, UINT64_MAX, campaign->seed},
                 {"--seconds", 1, 1'000'000, campaign->seconds},
                 {"--jobs", 1, 256, campaign->jobs},
                 {"--batch", 1, UINT32_MAX, campaign->batch},
                 {"--steps", 1, UINT32_MAX, campaign->limits.steps},
                 {"--patience", 1, 60, campaign->limits.patience},
                 {"--hang-ms", 1000, 3'600'000, campaign->hang_ms},
                 {"--max-findings", 0, UINT32_MAX, campaign->max_findings}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      std::fputs(kHelp, stdout);
      return Parsed::kLeave;
    }
    if (name == "--version") {
      std::printf("mep_chaos %d.%d.%d\n", MEP_VERSION_MAJOR, MEP_VERSION_MINOR, MEP_VERSION_PATCH);
      return Parsed::kLeave;
    }
    if (parse_flag(name, campaign)) continue;
    const char* const value = i + 1 < argc ? argv[++i] : "";
    bool known = true;
    bool right = true;
    if (name == "--mode") {
      right = parse_mode(value, &campaign->limits.mode);
    } else if (name == "--shape") {
      campaign->limits.shape = value;
      right = is_shape(value);
    } else if (name == "--findings") {
      campaign->folder = value;
      right = *value != '\0';
    } else if (name == "--ignore") {
      campaign->ignored.emplace_back(value);
    } else if (name == "--sabotage") {
      right = parse_sabotage(value, &campaign->sabotage);
    } else {
      known = false;
      for (auto& number : numbers) {
        if (name != number.name) continue;
        known = true;
        right = parse_number(value, number.min, number.max, &number.value);
      }
    }
    if (!known || !right) {
      *message = known ? name + " does not take \"" + value + "\"" : "unknown option " + name;
      return Parsed::kBad;
    }
  }
  size_t next = 0;
  campaign->programs = numbers[next++].value;
  campaign->seed = numbers[next++].value;
  campaign->seconds = numbers[next++].value;
  campaign->jobs = static_cast<uint32_t>(numbers[next++].value);
  campaign->batch = static_cast<uint32_t>(numbers[next++].value);
  campaign->limits.steps = static_cast<uint32_t>(numbers[next++].value);
  campaign->limits.patience = static_cast<uint32_t>(numbers[next++].value);
  campaign->hang_ms = static_cast<uint32_t>(numbers[next++].value);
  campaign->max_findings = static_cast<uint32_t>(numbers[next++].value);
  return Parsed::kRun;
}

}  // namespace mep::programs
