// Bytes of a frame's payload, written and read field by field. The reader never goes beyond its
// end: the first field that does not fit makes it invalid for good, and every later field reads as
// zero. Little endian by the byte order of the machine; the frame's magic differs on others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace mep {

constexpr uint16_t kLongBlock = 0xffff;

class ByteWriter {
 public:
  template <typename Number>
  void number(Number value) {
    static_assert(std::is_integral_v<Number>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof value);
  }
  // A 16-bit length, then the bytes. From kLongBlock on the length is kLongBlock and 64 bits follow.
  void block(std::span<const std::byte> block) {
    if (block.size() < kLongBlock) {
      number(static_cast<uint16_t>(block.size()));
    } else {
      number(kLongBlock);
      number(static_cast<uint64_t>(block.size()));
    }
    bytes_.insert(bytes_.end(), block.begin(), block.end());
  }
  void text(std::string_view text) { block(std::as_bytes(std::span(text.data(), text.size()))); }

  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename Number>
  Number number() {
    static_assert(std::is_integral_v<Number>);
    Number value = 0;
    if (!has(sizeof value)) return 0;
    std::memcpy(&value, bytes_.data() + position_, sizeof value);
    position_ += sizeof value;
    return value;
  }
  // A block longer than `limit` is invalid.
  std::vector<std::byte> block(size_t limit) {
    const std::span<const std::byte> found = raw_block(limit);
    return {found.begin(), found.end()};
  }
  std::string text(size_t limit) {
    const std::span<const std::byte> found = raw_block(limit);
    return {reinterpret_cast<const char*>(found.data()), found.size()};
  }

  bool valid() const { return valid_; }
  // Valid, and everything was read.
  bool complete() const { return valid_ && position_ == bytes_.size(); }

 private:
  bool has(size_t count) {
    if (!valid_ || bytes_.size() - position_ < count) valid_ = false;
    return valid_;
  }
  std::span<const std::byte> raw_block(size_t limit) {
    uint64_t length = number<uint16_t>();
    if (length == kLongBlock) {
      length = number<uint64_t>();
      // One length has one form.
      if (length < kLongBlock) valid_ = false;
    }
    if (length > limit) valid_ = false;
    if (!has(length)) return {};
    const auto found = bytes_.subspan(position_, length);
    position_ += length;
    return found;
  }

  std::span<const std::byte> bytes_;
  size_t position_ = 0;
  bool valid_ = true;
};

}  // namespace mep
