// A parser of bytes from a peer under fuzz. Each NAME_fuzz.cpp defines the two functions below; with
// clang it becomes a libFuzzer program, with any compiler a program that replays its corpus
// (replay_main.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace fuzz {

// Must come back, whatever the bytes are, and leave nothing behind. Accepted input is checked.
void one(std::span<const std::byte> input);
// Inputs made by the library's own encoders, to begin with.
using Sink = std::function<void(const std::string& name, std::span<const std::byte> bytes)>;
void seeds(const Sink& sink);

// Checks what a parser promises of accepted bytes, in release builds too.
inline void require(bool condition, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
  if (condition) return;
  std::fprintf(stderr, "%s:%d: not as promised\n", file, line);
  std::abort();
}

inline std::span<const uint8_t> as_uint8(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}
inline std::span<const std::byte> as_byte(std::span<const uint8_t> bytes) {
  return std::as_bytes(bytes);
}

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
