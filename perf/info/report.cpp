#include "report.hpp"

#include <algorithm>
#include <cstdio>

#include "../records.hpp"
#include "../types.hpp"

namespace mep {
namespace {

using perf::json_text;

struct JsonReport {
  bool is_on = false;
  bool is_in_section = false;
  bool has_entry = false;  // of the section
  std::string text;
};

JsonReport report;

void begin_field(const std::string& key) {
  if (report.is_in_section) report.text += "\n  ]";
  report.is_in_section = false;
  report.text += (report.text.empty() ? "{\n  " : ",\n  ") + json_text(key) + ": ";
}

void add_entry(const std::string& json) {
  report.text += (report.has_entry ? ",\n    " : "\n    ") + json;
  report.has_entry = true;
}

constexpr size_t kNameColumns = 23;

std::string padded(std::string text, size_t columns) {
  text.resize(std::max(columns, text.size() + 1), ' ');
  return text;
}

// In text; lines behind the first begin where the values of print_line() do.
void print_columns(const std::string& left, const std::string& text) {
  (void)std::fputs(perf::wrapped(left, 2 + kNameColumns, text).c_str(), stdout);
}

}  // namespace

void print_as_json() {
  report.is_on = true;
}

void end_report() {
  if (!report.is_on) return;
  if (report.is_in_section) report.text += "\n  ]";
  (void)std::printf("%s\n}\n", report.text.c_str());
}

void print_version(const std::string& version) {
  if (!report.is_on) {
    (void)std::printf("MEP %s\n", version.c_str());
    return;
  }
  begin_field("version");
  report.text += json_text(version);
}

void print_title(const char* key, const char* title) {
  if (!report.is_on) {
    (void)std::printf("\n%s\n", title);
    return;
  }
  begin_field(key);
  report.text += "[";
  report.is_in_section = true;
  report.has_entry = false;
}

void print_line(const char* name, const std::string& value) {
  if (!report.is_on) {
    print_columns("  " + padded(name, kNameColumns), value);
    return;
  }
  const std::string text = name;
  const size_t start = text.find_first_not_of(' ');
  add_entry("{\"name\": " + json_text(start == std::string::npos ? "" : text.substr(start)) +
            ", \"value\": " + json_text(value) + "}");
}

void print_variable(const EnvVariable& variable, bool is_set, const std::string& value) {
  if (!report.is_on) {
    print_columns((is_set ? "* " : "  ") + padded(variable.name, kNameColumns) +
                      padded(value.empty() ? "-" : value, 13),
                  variable.help);
    return;
  }
  add_entry("{\"name\": " + json_text(variable.name) + ", \"value\": " + json_text(value) +
            ", \"set\": " + (is_set ? "true" : "false") +
            ", \"help\": " + json_text(variable.help) + "}");
}

void print_unknown_variables(const std::vector<std::string>& texts) {
  if (report.is_on) {
    print_title("unknown_variables", "");
    for (const std::string& text : texts) add_entry(json_text(text));
    return;
  }
  for (const std::string& text : texts) print_columns("! ", text);
}

}  // namespace mep
