// The formats of rows on the wire: what the tables say of each (row_formats.def).
#pragma once

#include <cstddef>
#include <cstdint>

#include "mep.h"
#include "protocol/row_formats.def"

namespace mep {

enum class LastGroup : uint8_t { kShort, kWhole };
enum class RowFormatKind : uint32_t {
  kNone,
#define MEP_KIND(name, ...) k_##name,
  MEP_PLAIN_ROW_FORMATS(MEP_KIND) MEP_SCALED_ROW_FORMATS(MEP_KIND)
#undef MEP_KIND
      kEnd
};

struct RowFormat {
  RowFormatKind kind = RowFormatKind::kNone;
  mep_dtype_t value = 0;
  uint32_t bits = 0;                // of a value
  mep_scale_type_t scale_type = 0;  // if it has scales
  uint32_t group = 0;               // values that share a scale; 0: there are none
  uint32_t scale_bytes = 0;
  LastGroup last = LastGroup::kShort;

  constexpr bool has_scales() const { return group != 0; }
  constexpr bool holds(size_t hidden) const {
    return last == LastGroup::kShort || hidden % group == 0;
  }
  constexpr size_t row_bytes(size_t hidden) const { return hidden * bits / 8; }
  constexpr size_t scales(size_t hidden) const {
    return has_scales() ? (hidden + group - 1) / group : 0;
  }
};

// By kind.
inline constexpr RowFormat kRowFormats[] = {
#define MEP_PLAIN(name, value, bits) {RowFormatKind::k_##name, MEP_##value, bits},
#define MEP_SCALED(name, value, bits, scale, group, last, element, codec)      \
  {RowFormatKind::k_##name, MEP_##value,       bits, MEP_SCALE_##scale, group, \
   sizeof(element),         LastGroup::k##last},
    {}, MEP_PLAIN_ROW_FORMATS(MEP_PLAIN) MEP_SCALED_ROW_FORMATS(MEP_SCALED)
#undef MEP_PLAIN
#undef MEP_SCALED
};

// Their names, for messages.
#define MEP_NAME(name, ...) " " #name
inline constexpr char kRowFormatNames[] =
    MEP_PLAIN_ROW_FORMATS(MEP_NAME) MEP_SCALED_ROW_FORMATS(MEP_NAME);
inline constexpr char kScaledFormatNames[] = MEP_SCALED_ROW_FORMATS(MEP_NAME);
#undef MEP_NAME

// kNone: no rows have such values and scales. Rows without scales do not ask for the scale type.
constexpr const RowFormat& row_format(mep_dtype_t value, mep_scale_type_t scale_type) {
  for (const RowFormat& format : kRowFormats) {
    const bool fits = !format.has_scales() || format.scale_type == scale_type;
    if (format.value == value && fits) return format;
  }
  return kRowFormats[0];
}

constexpr bool scale_type_exists(mep_scale_type_t scale_type) {
  for (const RowFormat& format : kRowFormats) {
    if (format.has_scales() && format.scale_type == scale_type) return true;
  }
  return false;
}

}  // namespace mep
