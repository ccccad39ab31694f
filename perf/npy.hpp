// Reads arrays that NumPy wrote: a .npy, or one of a .npz by np.savez. The bytes are not trusted: what is not whole is
// refused by PerfError.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace mep::perf {

// `count` bytes from `at` on as one number, the lowest first. The caller knows that they are there.
uint64_t read_little_endian(std::string_view bytes, size_t at, size_t count);

// The file of this name in a .npz, as a part of `archive`; nothing: there is none.
std::optional<std::string_view> find_in_npz(std::string_view archive, std::string_view name);

struct NpyType {
  std::string_view name;  // as a header has it: "<i4"
  size_t width;           // bytes of an element
};

struct NpyRows {
  NpyType type = {};
  uint64_t count = 0;     // of rows
  std::string_view data;  // as many bytes as the rows have, in C order
};

// A .npy of two dimensions, the second one `columns` long, of one of `types`. Texts call it `name`.
NpyRows read_npy(std::string_view bytes, const std::string& name,
                 std::initializer_list<NpyType> types, uint64_t columns);

}  // namespace mep::perf
