#include "options.hpp"

#include <charconv>
#include <cstdio>
#include <cstring>

#include "mep.h"
#include "page.hpp"

namespace mep::chaos {
namespace {

constexpr const char* kHelp =
    "usage: mep_chaos --job [OPTION]...\n"
    "\n"
    "--job may be left out beside an option that it alone has.\n"
    "\n"
    "Starts a job of N ranks on this host, kills, stops and slows its ranks by a\n"
    "seeded plan, starts replacements, and checks every byte of every result on every\n"
    "survivor.\n"
    "\n"
    "  -n N             ranks, 1 to 31 (default 4)\n"
    "  --seed S         of the plan and of the workload (default 1)\n"
    "  --faults K       faults of the generated plan (default 20)\n"
    "  --mix LIST       their kinds: kill,two,stop,slow,point (default kill)\n"
    "  --plan TEXT      this plan instead: steps separated by ';'\n"
    "                     kill R[,R..] [at ITERATION | at POINT[:NTH]]\n"
    "                                         then replaced by: rejoin\n"
    "                     stop R SECONDS [at POINT[:NTH]]\n"
    "                     slow R FACTOR SECONDS\n"
    "                     arm R[,R..] POINT[:NTH]=kill\n"
    "                                         strikes whenever it is passed\n"
    "                     rejoin | rejoin POINT=kill | grow COUNT | wait ITERATIONS\n"
    "  --seconds S      no new fault after S seconds\n"
    "  --workload W     allreduce, mixed (collectives), moe (collectives, dispatch\n"
    "                   and combine) or moe-throughput (the same in high-throughput\n"
    "                   mode)\n"
    "  --timeout-ms T   of operations (default 20000)\n"
    "  --suspect-ms T, --heartbeat-ms T   thresholds; default the library's\n"
    "  --hang-ms T      no progress for so long is a hang (default 60000)\n"
    "  --leak-pages P   growth of a rank's memory that is still no leak (default 256)\n"
    "  --starter FILE   program that becomes each rank: FILE mep_chaos ARGUMENT...\n"
    "  --json FILE      the report as JSON\n"
    "  -v               say each step\n"
    "\n"
    "Exit status: 0 when nothing was wrong, 1 when something was, 2 for a wrong\n"
    "command line.\n";

bool parse_number(const char* text, uint64_t min, uint64_t max, uint64_t* value) {
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, *value);
  return error == std::errc() && stop == end && *value >= min && *value <= max;
}

struct NumberOption {
  const char* name;
  uint64_t min;
  uint64_t max;
  uint64_t value;
};

}  // namespace

bool is_about_a_job(int argc, char** argv) {
  constexpr const char* kNames[] = {
      "--job",          "-n",           "--faults",  "--mix",        "--plan",
      "--workload",     "--json",       "--starter", "--timeout-ms", "--suspect-ms",
      "--heartbeat-ms", "--leak-pages", "--worker"};
  for (int i = 1; i < argc; ++i) {
    for (const char* name : kNames) {
      if (std::strcmp(argv[i], name) == 0) return true;
    }
  }
  return false;
}

ParseResult parse_options(int argc, char** argv, Options* options, std::string* message) {
  constexpr uint64_t kHourMs = 3'600'000;
  NumberOption numbers[] = {{"-n", 1, 31, options->ranks},
                            {"--seed", 0, UINT64_MAX, options->seed},
                            {"--faults", 0, 1'000'000, options->faults},
                            {"--seconds", 1, 1'000'000, options->seconds},
                            {"--timeout-ms", 1, kHourMs, options->timeout_ms},
                            {"--suspect-ms", 1, kHourMs, options->suspect_ms},
                            {"--heartbeat-ms", 1, kHourMs, options->heartbeat_ms},
                            {"--hang-ms", 1, kHourMs, options->hang_ms},
                            {"--leak-pages", 0, 1u << 30, options->leak_pages},
                            {"--worker", 0, 1u << 20, 0},
                            {"--generation", 0, UINT32_MAX, 0}};
  struct TextOption {
    const char* name;
    std::string* value;
  };
  const TextOption texts[] = {{"--plan", &options->plan},
                              {"--mix", &options->mix},
                              {"--workload", &options->workload},
                              {"--starter", &options->starter},
                              {"--json", &options->json_path}};
  bool is_worker = false;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      std::fputs(kHelp, stdout);
      return ParseResult::kLeave;
    }
    if (name == "--version") {
      std::printf("mep_chaos %d.%d.%d\n", MEP_VERSION_MAJOR, MEP_VERSION_MINOR, MEP_VERSION_PATCH);
      return ParseResult::kLeave;
    }
    if (name == "--job") continue;
    if (name == "-v") {
      options->verbose = true;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : "";
    bool known = false;
    for (NumberOption& number : numbers) {
      if (name != number.name) continue;
      known = true;
      if (!parse_number(value, number.min, number.max, &number.value)) {
        *message = name + " needs a number from " + std::to_string(number.min);
        return ParseResult::kBad;
      }
    }
    for (const TextOption& text : texts) {
      if (name != text.name) continue;
      known = true;
      *text.value = value;
    }
    if (!known) {
      *message = "unknown option " + name;
      return ParseResult::kBad;
    }
    is_worker = is_worker || name == "--worker";
  }
  if (options->workload != "allreduce" && options->workload != "mixed" && !options->has_moe()) {
    *message = "--workload is allreduce, mixed, moe or moe-throughput";
    return ParseResult::kBad;
  }
  size_t next = 0;
  options->ranks = static_cast<uint32_t>(numbers[next++].value);
  options->seed = numbers[next++].value;
  options->faults = numbers[next++].value;
  options->seconds = numbers[next++].value;
  options->timeout_ms = static_cast<uint32_t>(numbers[next++].value);
  options->suspect_ms = static_cast<uint32_t>(numbers[next++].value);
  options->heartbeat_ms = static_cast<uint32_t>(numbers[next++].value);
  options->hang_ms = static_cast<uint32_t>(numbers[next++].value);
  options->leak_pages = static_cast<uint32_t>(numbers[next++].value);
  if (is_worker) options->worker_fd = static_cast<int>(numbers[next].value);
  options->generation = static_cast<uint32_t>(numbers[next + 1].value);
  return ParseResult::kRun;
}

}  // namespace mep::chaos
