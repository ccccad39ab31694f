// The text comes from the environment: bounded, and every character is checked.
#include "base/device_filter.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/status.hpp"

namespace mep {
namespace {

constexpr size_t kMaxTextBytes = 4096;
constexpr int kMaxPort = 255;

bool is_glob_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string("_-.*?[]!").find(c) != std::string::npos;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

}  // namespace

mep_result_t DeviceFilter::parse_entry(const std::string& text, const char* source, Entry* out) {
  const size_t begin = text.rfind('^', 0) == 0 ? 1 : 0;
  const size_t colon = std::min(text.find(':'), text.size());
  out->excludes = begin == 1;
  out->glob = text.substr(begin, colon - begin);
  if (out->glob.empty() || !std::all_of(out->glob.begin(), out->glob.end(), is_glob_character)) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%s: '%.64s' has no device name; an entry looks like mlx5_0, mlx5_*:1 or ^mlx5_2",
                source, text.c_str());
  }
  const std::string port = colon == text.size() ? "*" : text.substr(colon + 1);
  if (port == "*") return MEP_SUCCESS;
  const char* end = port.data() + port.size();
  const auto [stop, error] = std::from_chars(port.data(), end, out->port, 10);
  if (error != std::errc() || stop != end || out->port < 1 || out->port > kMaxPort) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s: '%.64s' has the port '%.16s', which is not 1 to %d",
                source, text.c_str(), port.c_str(), kMaxPort);
  }
  return MEP_SUCCESS;
}

mep_result_t DeviceFilter::parse(const std::string& text, const char* source, DeviceFilter* out) {
  out->entries_.clear();
  if (text.size() > kMaxTextBytes) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "%s is longer than %zu bytes", source, kMaxTextBytes);
  }
  if (trimmed(text).empty()) return MEP_SUCCESS;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    Entry entry;
    MEP_TRY(parse_entry(trimmed(text.substr(begin, comma - begin)), source, &entry));
    out->entries_.push_back(std::move(entry));
    begin = comma + 1;
  }
  return MEP_SUCCESS;
}

bool DeviceFilter::allows(const std::string& device, int port) const {
  bool is_included = false;
  bool has_include = false;
  for (const Entry& entry : entries_) {
    has_include |= !entry.excludes;
    if (entry.port != 0 && entry.port != port) continue;
    if (fnmatch(entry.glob.c_str(), device.c_str(), 0) != 0) continue;
    if (entry.excludes) return false;
    is_included = true;
  }
  return is_included || !has_include;
}

}  // namespace mep
