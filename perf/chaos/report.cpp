#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace mep::chaos {
namespace {

double quantile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(std::ceil(fraction * last))];
}

struct Row {
  const char* name;
  const char* key;
  const std::vector<double>* values;
};

std::vector<Row> rows_of(const Report& report) {
  return {{"detect", "detect", &report.detect},
          {"freeze", "freeze", &report.freeze},
          {"agree", "agree", &report.agree},
          {"fence", "fence", &report.fence},
          {"install", "install", &report.install},
          {"resume", "resume", &report.resume},
          {"first success", "first_success", &report.first_success},
          {"all succeeded", "all_succeeded", &report.all_succeeded},
          {"rejoin", "rejoin", &report.rejoin}};
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out;
}

template <typename... Values>
void append(std::string* out, const char* format, Values... values) {
  char line[512];
  std::snprintf(line, sizeof line, format, values...);
  *out += line;
}

}  // namespace

bool Report::clean(const Options& options) const {
  return wrong_results == 0 && hangs == 0 && false_evictions == 0 && failed_joins == 0 &&
         leaked_fds <= 0 && leaked_threads <= 0 && leaked_mappings <= 0 &&
         leaked_pages <= options.leak_pages && leaked_children == 0 && leaked_files == 0;
}

std::string Report::text(const Options& options) const {
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::string out;
  append(&out, "mep_chaos: %u ranks, seed %llu, workload %s, %.1f s, load %s\n", ranks,
         number(seed), workload.c_str(), seconds, load.c_str());
  append(&out,
         "faults %llu (points not reached %llu), wrong results %llu, hangs %llu, evictions %llu "
         "(false %llu), joins %llu (failed %llu)\n",
         number(faults), number(not_reached), number(wrong_results), number(hangs),
         number(evictions), number(false_evictions), number(joins), number(failed_joins));
  append(&out, "operations %llu, compared %llu\n", number(operations), number(compared));
  append(&out,
         "leaks: fds %lld, threads %lld, mappings %lld, pages %lld, children %llu, files %llu\n",
         static_cast<long long>(leaked_fds), static_cast<long long>(leaked_threads),
         static_cast<long long>(leaked_mappings), static_cast<long long>(leaked_pages),
         number(leaked_children), number(leaked_files));
  append(&out, "%-14s %8s %10s %10s %10s   (ms)\n", "", "samples", "p50", "p99", "max");
  for (const Row& row : rows_of(*this)) {
    if (row.values->empty()) continue;
    append(&out, "%-14s %8zu %10.3f %10.3f %10.3f\n", row.name, row.values->size(),
           quantile(*row.values, 0.5) / 1000, quantile(*row.values, 0.99) / 1000,
           quantile(*row.values, 1) / 1000);
  }
  for (const std::string& finding : findings) out += "! " + finding + "\n";
  out += clean(options) ? "clean\n" : "NOT CLEAN\n";
  return out;
}

std::string Report::json(const Options& options) const {
  std::string out = "{";
  const auto number = [&](const char* name, double value) {
    append(&out, "\"%s\": %.15g, ", name, value);
  };
  append(&out, "\"workload\": \"%s\", \"load\": \"%s\", \"clean\": %s, ", workload.c_str(),
         load.c_str(), clean(options) ? "true" : "false");
  number("ranks", ranks);
  number("seed", static_cast<double>(seed));
  number("seconds", seconds);
  const std::pair<const char*, uint64_t> counts[] = {{"faults", faults},
                                                     {"not_reached", not_reached},
                                                     {"wrong_results", wrong_results},
                                                     {"hangs", hangs},
                                                     {"evictions", evictions},
                                                     {"false_evictions", false_evictions},
                                                     {"joins", joins},
                                                     {"failed_joins", failed_joins},
                                                     {"operations", operations},
                                                     {"compared", compared},
                                                     {"leaked_children", leaked_children},
                                                     {"leaked_files", leaked_files}};
  for (const auto& [name, value] : counts) number(name, static_cast<double>(value));
  number("leaked_fds", static_cast<double>(leaked_fds));
  number("leaked_threads", static_cast<double>(leaked_threads));
  number("leaked_mappings", static_cast<double>(leaked_mappings));
  number("leaked_pages", static_cast<double>(leaked_pages));
  out += "\"us\": {";
  bool first = true;
  for (const Row& row : rows_of(*this)) {
    if (row.values->empty()) continue;
    append(&out, "%s\"%s\": {\"samples\": %zu, \"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f}",
           first ? "" : ", ", row.key, row.values->size(), quantile(*row.values, 0.5),
           quantile(*row.values, 0.99), quantile(*row.values, 1));
    first = false;
  }
  out += "}, \"findings\": [";
  for (size_t i = 0; i < findings.size(); ++i) {
    out += (i == 0 ? "\"" : ", \"") + escaped(findings[i]) + "\"";
  }
  return out + "]}\n";
}

}  // namespace mep::chaos
