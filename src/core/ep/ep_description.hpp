// A member's description of an EP object, by which a joiner makes its own part of it. The shape
// travels in this process's own layout: members and joiners run the same version, which their hello
// has made sure of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/ep/ep_config.hpp"
#include "mep.h"

namespace mep {

struct EpDescription {
  std::string name;
  uint64_t window_seed = 0;
  EpShape shape;
  std::vector<int32_t> map;  // as the caller gave it; empty: physical ids
  EpDeviceOptions options;
};

std::vector<std::byte> encode_ep_description(const EpDescription& description);
// Safe on any bytes. The shape that comes out is one that resolve_ep_config() would have made for this
// rank of so many, and the map has its size; what the map says is not looked at.
[[nodiscard]] mep_result_t decode_ep_description(std::span<const std::byte> bytes, uint32_t rank,
                                                 uint32_t ranks, EpDescription* out);

}  // namespace mep
