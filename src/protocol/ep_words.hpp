// The payloads of an EP buffer's words; the same from hosts and from kernels.
//
// A count word and a count are the number of rows of one source for one expert. The payload of a combine-ready
// word is a kind in bits 0-1 and above it 22 bits that name the dispatch, which may belong to an earlier epoch
// than the word.
#pragma once

#include <cstdint>

#include "protocol/host_device.hpp"

namespace mep {

enum class CombineWord : uint8_t {
  kNone = 0,    // rows given back without terms: nothing was received, or it is not combined
  kPull = 1,    // the terms lie in the writer's combine_out
  kPushed = 2,  // they lie in the reader's combine_in
};

MEP_HOST_DEVICE constexpr uint32_t dispatch_mark(uint64_t epoch, uint64_t use) {
  return static_cast<uint32_t>((epoch * 0x9e3779b1u + use) & 0x3fffff);
}
MEP_HOST_DEVICE constexpr uint32_t combine_payload(CombineWord kind, uint32_t mark) {
  return static_cast<uint32_t>(kind) | mark << 2;
}
MEP_HOST_DEVICE constexpr CombineWord combine_kind(uint32_t payload) {
  return static_cast<CombineWord>(payload & 3);
}

}  // namespace mep
