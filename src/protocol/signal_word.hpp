// A signal: one 64-bit word of a window with one writer.
//
//   bit 63      always 1, so zero is never a signal
//   bits 48-62  low 15 bits of the comm's epoch          \  the tag: compared for equality
//   bits 24-47  low 24 bits of the word's own use count  /
//   bits 0-23   payload
//
// A word is written at every operation that owns it and never cleared in between. Its writer is at most
// a few uses ahead of its reader, so a stale tag differs from the awaited one although both wrap.
#pragma once

#include <cstdint>

#include "protocol/host_device.hpp"

namespace mep {

constexpr unsigned kSignalPayloadBits = 24;
constexpr uint64_t kSignalPayloadMask = (uint64_t{1} << kSignalPayloadBits) - 1;

// The tag in its place, payload 0.
MEP_HOST_DEVICE constexpr uint64_t signal_tag(uint64_t epoch, uint64_t use) {
  return (uint64_t{1} << 63) | ((epoch & 0x7fff) << 48) | ((use & 0xffffff) << kSignalPayloadBits);
}

// A word that has no other payload counts its uses in 48 bits, compared whole: however seldom it is
// written, an old one is never taken for the awaited one.
MEP_HOST_DEVICE constexpr uint64_t counted_signal(uint64_t epoch, uint64_t use) {
  return signal_tag(epoch, use) | ((use >> kSignalPayloadBits) & kSignalPayloadMask);
}

MEP_HOST_DEVICE constexpr bool signal_matches(uint64_t word, uint64_t tag) {
  return ((word ^ tag) >> kSignalPayloadBits) == 0;
}

MEP_HOST_DEVICE constexpr uint32_t signal_payload(uint64_t word) {
  return static_cast<uint32_t>(word & kSignalPayloadMask);
}

}  // namespace mep
