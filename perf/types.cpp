#include "types.hpp"

#include <algorithm>
#include <cstdio>
#include <span>

#include "protocol/types.def"

namespace mep::perf {
namespace {

struct Name {
  const char* text;
  uint32_t value;
};

constexpr Name kTypes[] = {
#define MEP_TYPE_NAME(with, number, constant, kind, element, arithmetic, name, short_name, ...) \
  {#short_name, MEP_##constant},
    MEP_TYPES(MEP_TYPE_NAME, )
#undef MEP_TYPE_NAME
};
// Accepted too.
constexpr Name kOtherNames[] = {
    {"f16", MEP_FLOAT16},    {"half", MEP_FLOAT16},    {"bf16", MEP_BFLOAT16},
    {"f32", MEP_FLOAT32},    {"float", MEP_FLOAT32},   {"f64", MEP_FLOAT64},
    {"double", MEP_FLOAT64}, {"fp8", MEP_FLOAT8_E4M3},
};

constexpr Name kReductions[] = {
    {"sum", MEP_SUM}, {"prod", MEP_PROD}, {"min", MEP_MIN}, {"max", MEP_MAX},
    {"avg", MEP_AVG}, {"and", MEP_AND},   {"or", MEP_OR},   {"xor", MEP_XOR},
};

bool find_value(std::span<const Name> names, const std::string& text, uint32_t* value) {
  for (const Name& name : names) {
    if (text != name.text) continue;
    *value = name.value;
    return true;
  }
  return false;
}

const char* find_name(std::span<const Name> names, uint32_t value) {
  for (const Name& name : names) {
    if (name.value == value) return name.text;
  }
  return "?";
}

std::string join(std::span<const Name> names) {
  std::string all;
  for (const Name& name : names) {
    if (!all.empty()) all += ' ';
    all += name.text;
  }
  return all;
}

}  // namespace

bool parse_dtype(const std::string& text, mep_dtype_t* dtype) {
  return find_value(kTypes, text, dtype) || find_value(kOtherNames, text, dtype);
}
bool parse_reduction(const std::string& text, mep_op_t* reduction) {
  return find_value(kReductions, text, reduction);
}
const char* dtype_name(mep_dtype_t dtype) {
  return find_name(kTypes, dtype);
}
const char* reduction_name(mep_op_t reduction) {
  return find_name(kReductions, reduction);
}
std::string all_dtype_names() {
  return join(kTypes);
}
std::string all_reduction_names() {
  return join(kReductions);
}

std::string wrapped(const std::string& left, size_t indent, const std::string& text) {
  constexpr size_t kColumns = 80;
  std::string all;
  std::string line = left;
  bool has_word = false;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (has_word && line.size() + 1 + word.size() > kColumns) {
      all += line + "\n";
      line.assign(indent, ' ');
      has_word = false;
    }
    line += (has_word ? " " : "") + word;
    has_word = true;
    begin = end + 1;
  }
  return all + line + "\n";
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  char text[32];
  (void)std::snprintf(text, sizeof text, "%.4g %s", bytes, kUnits[unit]);
  return text;
}

std::string figure_text(double value) {
  char text[64];
  (void)std::snprintf(text, sizeof text,
                      value >= 100  ? "%.0f"
                      : value >= 10 ? "%.1f"
                                    : "%.2f",
                      value);
  return text;
}

}  // namespace mep::perf
