// The entry to the kernels: picks the level of this processor once, and puts the caller's
// floating-point mode aside where a kernel rounds.
#include "kernels/host/kernels.hpp"

#include <cstring>

#include "kernels/host/kernel_table.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace mep {

extern const KernelTable kPortableKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

const KernelTable* kernels_for(SimdLevel level) {
  if (level > highest_simd_level(cpu_features())) return nullptr;
#if defined(__x86_64__)
  if (level == SimdLevel::kAvx512) return &kAvx512Kernels;
  if (level == SimdLevel::kAvx2) return &kAvx2Kernels;
#endif
  return level == SimdLevel::kPortable ? &kPortableKernels : nullptr;
}

namespace {

const KernelTable& active_kernels() {
  static const KernelTable* const table = kernels_for(simd_level());
  return *table;
}

// Round to nearest even, denormals kept, exceptions masked, for as long as it lives. Costs one read
// of the mode where the mode is the default one.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) {
    if (is_changed()) _mm_setcsr(kDefault);
  }
  ~FloatMode() {
    if (is_changed()) _mm_setcsr(saved_);
  }
#else
  FloatMode() = default;
  ~FloatMode() = default;
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

#if defined(__x86_64__)
 private:
  static constexpr unsigned kDefault = 0x1f80;
  static constexpr unsigned kStickyFlags = 0x3f;
  bool is_changed() const {
    return (saved_ & ~kStickyFlags) != kDefault;
  }
  unsigned saved_;
#endif
};

// Nothing where the type has no such kernel.
template <class Function, class... Arguments>
void run(const Function (&row)[kDtypeSlots], mep_dtype_t dtype, Arguments... arguments) {
  if (dtype >= kDtypeSlots || row[dtype] == nullptr) return;
  const FloatMode mode;
  row[dtype](arguments...);
}

}  // namespace

void reduce_rows(mep_dtype_t dtype, mep_op_t op, void* out, const void* const* inputs,
                 size_t n_inputs, size_t count, uint32_t divisor) {
  if (!reduce_supported(dtype, op) || n_inputs == 0) return;
  const FloatMode mode;
  active_kernels().reduce[dtype][op](out, inputs, n_inputs, count, divisor);
}

void convert_to_f32(mep_dtype_t dtype, const void* in, float* out, size_t count) {
  run(active_kernels().to_f32, dtype, in, out, count);
}

void convert_from_f32(mep_dtype_t dtype, const float* in, void* out, size_t count) {
  run(active_kernels().from_f32, dtype, in, out, count);
}

void quantize_row(const RowFormat& format, mep_dtype_t dtype, const void* x, size_t hidden, void* q,
                  void* scales, bool non_temporal) {
  const auto& row = active_kernels().quantize[static_cast<size_t>(format.kind)];
  run(row, dtype, x, hidden, static_cast<uint8_t*>(q), scales, non_temporal);
}

void combine_rows(mep_dtype_t dtype, void* out, const void* const* rows, const float* weights,
                  size_t n_rows, size_t hidden, bool non_temporal) {
  run(active_kernels().combine, dtype, out, rows, weights, n_rows, hidden, non_temporal);
}

void copy_row(void* destination, const void* source, size_t bytes, bool non_temporal) {
  if (bytes == 0) return;
  if (!non_temporal) {
    std::memcpy(destination, source, bytes);
    return;
  }
  active_kernels().copy_past_caches(destination, source, bytes);
}

}  // namespace mep
