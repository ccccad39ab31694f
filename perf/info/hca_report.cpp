#include "hca_report.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/status.hpp"
#include "core/topo/hca_choice.hpp"
#include "core/topo/hca_topology.hpp"

namespace mep {
namespace {

int print_choice(const HcaQuestion& question) {
  HcaChoice choice;
  if (is_error(choose_preferred_hca(question, &choice))) {
    (void)std::fprintf(stderr, "mep_info: %s\n", last_error_text());
    return 1;
  }
  (void)std::printf("\nHCA for %s\n", question.location.c_str());
  (void)std::printf("  %s\n", choice.summary.c_str());
  size_t width = 0;
  for (const RankedPort& ranked : choice.ports) width = std::max(width, ranked.name().size());
  for (size_t i = 0; i < choice.ports.size(); ++i) {
    const RankedPort& ranked = choice.ports[i];
    (void)std::printf("  %c %-*s  %s (%s)\n", i < choice.usable ? (i == 0 ? '*' : ' ') : '-',
                      static_cast<int>(width), ranked.name().c_str(), ranked.outcome.c_str(),
                      ranked.properties.c_str());
  }
  return 0;
}

}  // namespace

int print_hca_report(const std::string& xml_file, const std::string& location) {
  std::vector<std::string> locations = {location};
  if (location.empty()) {
    HcaTopology topology;
    if (is_error(read_hca_topology(xml_file, &topology))) {
      (void)std::fprintf(stderr, "mep_info: %s\n", last_error_text());
      return 1;
    }
    locations = {"cpu"};
    for (size_t i = 0; i < topology.gpus.size(); ++i) {
      locations.push_back("gpu:" + std::to_string(i));
    }
  }
  for (const std::string& each : locations) {
    HcaQuestion question;
    question.location = each;
    question.xml_file = xml_file;
    const int status = print_choice(question);
    if (status != 0) return status;
  }
  return 0;
}

}  // namespace mep
