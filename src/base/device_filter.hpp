// Which devices and ports a user allows: "mlx5_*:1,mlx5_3,^mlx5_2:2". Entries are globs (* ? [..])
// of device names with an optional port; ^ before an entry excludes. Something is allowed if an
// entry includes it, or no entry includes anything, and no entry excludes it. The order of the
// entries means nothing.
#pragma once

#include <string>
#include <vector>

#include "mep.h"

namespace mep {

class DeviceFilter {
 public:
  // `source` names the variable or field in the texts of errors. An empty text allows everything.
  [[nodiscard]] static mep_result_t parse(const std::string& text, const char* source,
                                          DeviceFilter* out);
  bool allows(const std::string& device, int port) const;

 private:
  struct Entry {
    std::string glob;
    int port = 0;  // 0: all
    bool excludes = false;
  };
  [[nodiscard]] static mep_result_t parse_entry(const std::string& text, const char* source,
                                                Entry* out);
  std::vector<Entry> entries_;
};

}  // namespace mep
