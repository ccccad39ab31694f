// mep_chaos: random programs (folder program/), or a job of N ranks under seeded faults, with every
// result checked. In such a job the same program is the director and, started by it with --worker, each
// of the ranks.
#include <cstdio>
#include <exception>
#include <fstream>

#include "director.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "program/command_line.hpp"
#include "worker.hpp"

namespace {

int run_programs(int argc, char** argv) {
  mep::programs::Campaign campaign;
  std::string message;
  switch (mep::programs::parse_command_line(argc, argv, &campaign, &message)) {
    case mep::programs::Parsed::kLeave:
      return 0;
    case mep::programs::Parsed::kBad:
      std::fprintf(stderr, "mep_chaos: %s\nTry 'mep_chaos --help'.\n", message.c_str());
      return 2;
    case mep::programs::Parsed::kRun:
      break;
  }
  return mep::programs::run_campaign(campaign);
}

int run_job(int argc, char** argv) {
  using namespace mep::chaos;
  Options options;
  std::string message;
  switch (parse_options(argc, argv, &options, &message)) {
    case ParseResult::kLeave:
      return 0;
    case ParseResult::kBad:
      std::fprintf(stderr, "mep_chaos: %s\nTry 'mep_chaos --help'.\n", message.c_str());
      return 2;
    case ParseResult::kRun:
      break;
  }
  try {
    if (options.worker_fd >= 0) return run_worker(options);
    const std::vector<Step> plan =
        options.plan.empty() ? generate_plan(options) : parse_plan(options.plan, options.ranks);
    std::ofstream json;
    if (!options.json_path.empty()) {
      json.open(options.json_path);
      if (!json) throw std::runtime_error(options.json_path + " cannot be written");
    }
    Director director(options);
    const Report report = director.run(plan);
    std::fputs(report.text(options).c_str(), stdout);
    if (json.is_open()) json << report.json(options);
    return report.clean(options) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mep_chaos: %s\n", error.what());
    return 2;
  }
}

}  // namespace

int main(int argc, char** argv) {
  return mep::chaos::is_about_a_job(argc, argv) ? run_job(argc, argv) : run_programs(argc, argv);
}
