// Records of MEP_FLIGHT_RECORDER, read whatever bytes they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/world/flight_record.hpp"

namespace mep {

struct RecorderFile {
  std::string path;
  flight::Header header{};
  std::vector<flight::Record> records;  // as they began
  size_t torn = 0;                      // places that hold no whole record
  bool is_running = false;              // the process that writes it
  uint32_t pid = 0;                     // of that one, as this process sees it
};

// False: the bytes are none of such a file; `problem` says why. A file that is cut short has fewer records.
[[nodiscard]] bool parse_recorder(std::span<const std::byte> bytes, RecorderFile* file,
                                  std::string* problem);
[[nodiscard]] bool read_recorder(const std::string& path, RecorderFile* file, std::string* problem);

}  // namespace mep
