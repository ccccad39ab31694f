// mep_chaos: a job of N ranks under seeded faults, with every result checked. The same program is the
// director and, started by it with --worker, each of the ranks.
#include <cstdio>
#include <exception>
#include <fstream>

#include "director.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "worker.hpp"

int main(int argc, char** argv) {
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
