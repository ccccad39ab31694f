// API structs begin with `uint32_t struct_size`, so that callers and library may be of different
// age: a shorter struct of an older caller counts as zero behind its end, which is never inside a
// field; a longer one of a newer caller is taken only if what this library does not know is zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/status.hpp"
#include "mep.h"

namespace mep {

// Far above any struct to come: a larger struct_size is memory that nobody has set.
constexpr uint32_t kMaxStructBytes = 65536;
// struct_size and flags are in every version of every struct.
constexpr uint32_t kMinStructBytes = 8;

namespace sized_struct {

struct Any {
  template <typename Field>
  operator Field() const;
};
template <size_t Bytes>
struct AnyOf {
  template <typename Field>
  requires(sizeof(Field) == Bytes) operator Field() const;
};

template <typename Struct, size_t Bytes, size_t... Before>
constexpr bool has_field(std::index_sequence<Before...>) {
  return requires {
    Struct{(static_cast<void>(Before), Any{})..., AnyOf<Bytes>{}};
  };
}

// Bytes of the scalar that `Before` others precede, in an array each counts; 0: there is none.
template <typename Struct, size_t Before>
constexpr size_t field_bytes() {
  constexpr std::make_index_sequence<Before> kBefore;
  if (has_field<Struct, 8>(kBefore)) return 8;
  return has_field<Struct, 4>(kBefore) ? 4 : 0;
}

// Whether the byte at `size` is in the midst of a field. The scalars of a struct follow each other, each aligned to
// its own size.
template <typename Struct, size_t Before = 0, size_t End = 0>
constexpr bool cuts_field(size_t size) {
  constexpr size_t kBytes = field_bytes<Struct, Before>();
  if constexpr (kBytes == 0) {
    static_assert(sizeof(Struct) - End < alignof(Struct), "a field is neither 4 nor 8 bytes long");
    return false;
  } else {
    constexpr size_t kBegin = (End + kBytes - 1) / kBytes * kBytes;
    return (size > kBegin && size < kBegin + kBytes) ||
           cuts_field<Struct, Before + 1, kBegin + kBytes>(size);
  }
}

}  // namespace sized_struct

// Copies the struct at `from` over a zeroed *out; afterwards out->struct_size is what the caller
// gave. `name` is the struct's type, for the error text. `from` is not null.
template <typename Struct>
[[nodiscard]] mep_result_t read_sized_struct(const void* from, const char* name, Struct* out) {
  static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) >= kMinStructBytes);
  uint32_t struct_size = 0;
  std::memcpy(&struct_size, from, sizeof struct_size);
  if (struct_size < kMinStructBytes || struct_size > kMaxStructBytes) {
    return fail(MEP_ERR_INVALID_ARGUMENT,
                "%s.struct_size is %u; set it with the struct's _defaults or _init function", name,
                struct_size);
  }
  if (sized_struct::cuts_field<Struct>(struct_size)) {
    return fail(
        MEP_ERR_INVALID_ARGUMENT,
        "%s.struct_size is %u, which ends inside a field; set it with the struct's _defaults "
        "or _init function",
        name, struct_size);
  }
  const auto* bytes = static_cast<const unsigned char*>(from);
  for (size_t i = sizeof(Struct); i < struct_size; ++i) {
    if (bytes[i] != 0) {
      return fail(MEP_ERR_INVALID_ARGUMENT,
                  "%s has %u bytes, this library knows %zu, and byte %zu behind them is not zero: "
                  "the program uses a feature of a newer MEP",
                  name, struct_size, sizeof(Struct), i - sizeof(Struct));
    }
  }
  std::memset(static_cast<void*>(out), 0, sizeof(Struct));
  std::memcpy(static_cast<void*>(out), from, std::min<size_t>(struct_size, sizeof(Struct)));
  return MEP_SUCCESS;
}

// Writes `value` to the caller's struct, never beyond the size the caller gave in it; struct_size
// itself stays as it is.
template <typename Struct>
void write_sized_struct(const Struct& value, void* to) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  uint32_t struct_size = 0;
  std::memcpy(&struct_size, to, sizeof struct_size);
  const size_t bytes = std::min<size_t>(struct_size, sizeof(Struct));
  if (bytes <= sizeof struct_size) return;
  std::memcpy(static_cast<unsigned char*>(to) + sizeof struct_size,
              reinterpret_cast<const unsigned char*>(&value) + sizeof struct_size,
              bytes - sizeof struct_size);
}

// The body of every exported mep_X_init(void* x, size_t size): touches `size` bytes only.
inline void init_sized_struct(void* to, size_t size) {
  if (to == nullptr || size < sizeof(uint32_t)) return;
  std::memset(to, 0, size);
  const auto struct_size = static_cast<uint32_t>(std::min<size_t>(size, kMaxStructBytes));
  std::memcpy(to, &struct_size, sizeof struct_size);
}

}  // namespace mep
