// The vector operations that depend on the instruction set of the including file: widening,
// narrowing, f16, tails, non-temporal stores. All else is written with the compilers' vector types
// and is the same text for every level.
// Everything is in an unnamed namespace and nothing of std:: is called: code compiled for AVX must
// not be what the linker keeps for the whole library.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/host/scalar_convert.hpp"

#if !defined(MEP_SIMD_PORTABLE) && defined(__AVX512F__) && defined(__AVX512BW__) && \
    defined(__AVX512DQ__) && defined(__AVX512VL__)
#define MEP_SIMD_AVX512 1
#elif !defined(MEP_SIMD_PORTABLE) && defined(__AVX2__) && defined(__F16C__)
#define MEP_SIMD_AVX2 1
#endif

// Before a loop of constant length whose arrays are to live in registers.
#if defined(__clang__)
#define MEP_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MEP_UNROLL _Pragma("GCC unroll 32")
#endif

namespace mep {
namespace {

#if defined(MEP_SIMD_AVX512)
constexpr size_t kVectorBytes = 64;
#elif defined(MEP_SIMD_AVX2)
constexpr size_t kVectorBytes = 32;
#else
constexpr size_t kVectorBytes = 16;
#endif

template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::Type;
using F32 = Vector<float>;
using I32 = Vector<int32_t>;
using U32 = Vector<uint32_t>;
constexpr size_t kLanes = kVectorBytes / sizeof(float);

// The same bits as another vector type.
template <class To, class From>
inline __attribute__((always_inline)) To as(From vector) {
  static_assert(sizeof(To) == sizeof(From));
  return (To)vector;
}

// All lanes `value`.
template <class V, class T>
inline __attribute__((always_inline)) V splat(T value) {
  return V{} + value;
}

template <class V>
inline __attribute__((always_inline)) V load_vector(const uint8_t* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof(V));
  return vector;
}

template <class V>
inline __attribute__((always_inline)) void store_vector(uint8_t* to, V vector) {
  __builtin_memcpy(to, &vector, sizeof(V));
}

// A store that goes past the caches when kStream; `to` is then aligned to the size of the vector.
template <bool kStream, class V>
inline __attribute__((always_inline)) void put(uint8_t* to, V vector) {
#if defined(__x86_64__)
  if constexpr (kStream) {
    if constexpr (sizeof(V) == 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to), as<__m128i>(vector));
    }
#if defined(MEP_SIMD_AVX2) || defined(MEP_SIMD_AVX512)
    if constexpr (sizeof(V) == 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), as<__m256i>(vector));
    }
#endif
#if defined(MEP_SIMD_AVX512)
    if constexpr (sizeof(V) == 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), as<__m512i>(vector));
    }
#endif
    return;
  }
#endif
  store_vector(to, vector);
}

// put() of the low 4 or 8 bytes of a 16-byte vector.
#if defined(__x86_64__)
template <bool kStream>
inline void put_low_8(uint8_t* to, __m128i vector) {
  if constexpr (kStream) {
    _mm_stream_si64(reinterpret_cast<long long*>(to), _mm_cvtsi128_si64(vector));
  } else {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), vector);
  }
}
template <bool kStream>
inline void put_low_4(uint8_t* to, __m128i vector) {
  const int32_t low = _mm_cvtsi128_si32(vector);
  if constexpr (kStream) {
    _mm_stream_si32(reinterpret_cast<int*>(to), low);
  } else {
    __builtin_memcpy(to, &low, sizeof low);
  }
}
#endif

// kLanes elements of 1 or 2 bytes, zero-extended; the inverse takes lanes that are known to fit.
#if defined(MEP_SIMD_AVX512)
inline I32 widen_8(const uint8_t* from) {
  return as<I32>(_mm512_maskz_cvtepu8_epi32(0xffff, load_vector<__m128i>(from)));
}
inline I32 widen_16(const uint8_t* from) {
  return as<I32>(_mm512_maskz_cvtepu16_epi32(0xffff, load_vector<__m256i>(from)));
}
template <bool kStream>
inline void narrow_8(uint8_t* to, I32 lanes) {
  put<kStream>(to, _mm512_maskz_cvtepi32_epi8(0xffff, as<__m512i>(lanes)));
}
template <bool kStream>
inline void narrow_16(uint8_t* to, I32 lanes) {
  put<kStream>(to, _mm512_maskz_cvtepi32_epi16(0xffff, as<__m512i>(lanes)));
}
inline F32 load_f16(const uint8_t* from) {
  return as<F32>(_mm512_maskz_cvtph_ps(0xffff, load_vector<__m256i>(from)));
}
template <bool kStream>
inline void store_f16(uint8_t* to, F32 lanes) {
  put<kStream>(to, _mm512_maskz_cvtps_ph(0xffff, as<__m512>(lanes),
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline I32 smaller(I32 a, I32 b) {
  return as<I32>(_mm512_maskz_min_epi32(0xffff, as<__m512i>(a), as<__m512i>(b)));
}
inline I32 larger(I32 a, I32 b) {
  return as<I32>(_mm512_maskz_max_epi32(0xffff, as<__m512i>(a), as<__m512i>(b)));
}
#elif defined(MEP_SIMD_AVX2)
inline I32 widen_8(const uint8_t* from) {
  return as<I32>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
inline I32 widen_16(const uint8_t* from) {
  return as<I32>(_mm256_cvtepu16_epi32(load_vector<__m128i>(from)));
}
inline __m128i pack_16(I32 lanes) {
  const __m256i vector = as<__m256i>(lanes);
  return _mm_packus_epi32(_mm256_castsi256_si128(vector), _mm256_extracti128_si256(vector, 1));
}
template <bool kStream>
inline void narrow_8(uint8_t* to, I32 lanes) {
  const __m128i packed = pack_16(lanes);
  put_low_8<kStream>(to, _mm_packus_epi16(packed, packed));
}
template <bool kStream>
inline void narrow_16(uint8_t* to, I32 lanes) {
  put<kStream>(to, pack_16(lanes));
}
inline F32 load_f16(const uint8_t* from) {
  return as<F32>(_mm256_cvtph_ps(load_vector<__m128i>(from)));
}
template <bool kStream>
inline void store_f16(uint8_t* to, F32 lanes) {
  put<kStream>(to, _mm256_cvtps_ph(as<__m256>(lanes), _MM_FROUND_TO_NEAREST_INT));
}
inline I32 smaller(I32 a, I32 b) {
  return as<I32>(_mm256_min_epi32(as<__m256i>(a), as<__m256i>(b)));
}
inline I32 larger(I32 a, I32 b) {
  return as<I32>(_mm256_max_epi32(as<__m256i>(a), as<__m256i>(b)));
}
#else
inline I32 smaller(I32 a, I32 b) {
  return a < b ? a : b;
}
inline I32 larger(I32 a, I32 b) {
  return a > b ? a : b;
}
#if defined(__x86_64__)
inline I32 widen_8(const uint8_t* from) {
  int32_t four;
  __builtin_memcpy(&four, from, sizeof four);
  const __m128i zero = _mm_setzero_si128();
  const __m128i words = _mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero);
  return as<I32>(_mm_unpacklo_epi16(words, zero));
}
inline I32 widen_16(const uint8_t* from) {
  const __m128i words = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return as<I32>(_mm_unpacklo_epi16(words, _mm_setzero_si128()));
}
template <bool kStream>
inline void narrow_8(uint8_t* to, I32 lanes) {
  const __m128i words = _mm_packs_epi32(as<__m128i>(lanes), as<__m128i>(lanes));
  put_low_4<kStream>(to, _mm_packus_epi16(words, words));
}
template <bool kStream>
inline void narrow_16(uint8_t* to, I32 lanes) {
  // SSE2 packs signed words only: the sign of each word is extended first.
  const __m128i extended = as<__m128i>((lanes << 16) >> 16);
  put_low_8<kStream>(to, _mm_packs_epi32(extended, extended));
}
#else
inline I32 widen_8(const uint8_t* from) {
  return I32{from[0], from[1], from[2], from[3]};
}
inline I32 widen_16(const uint8_t* from) {
  uint16_t element[4];
  __builtin_memcpy(element, from, sizeof element);
  return I32{element[0], element[1], element[2], element[3]};
}
template <bool kStream>
inline void narrow_8(uint8_t* to, I32 lanes) {
  for (size_t lane = 0; lane < kLanes; ++lane) to[lane] = static_cast<uint8_t>(lanes[lane]);
}
template <bool kStream>
inline void narrow_16(uint8_t* to, I32 lanes) {
  uint16_t element[4];
  for (size_t lane = 0; lane < kLanes; ++lane) element[lane] = static_cast<uint16_t>(lanes[lane]);
  __builtin_memcpy(to, element, sizeof element);
}
#endif
#endif

// The largest lane; no lane is NaN.
#if defined(__x86_64__)
inline float largest_lane(__m128 lanes) {
  const __m128 pair = _mm_max_ps(lanes, _mm_movehl_ps(lanes, lanes));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
}
#if defined(MEP_SIMD_AVX2) || defined(MEP_SIMD_AVX512)
inline float largest_lane(__m256 lanes) {
  return largest_lane(_mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1)));
}
#endif
#if defined(MEP_SIMD_AVX512)
inline float largest_lane(__m512 lanes) {
  const __m256 lower = _mm512_maskz_extractf32x8_ps(0xff, lanes, 0);
  const __m256 upper = _mm512_maskz_extractf32x8_ps(0xff, lanes, 1);
  return largest_lane(_mm256_max_ps(lower, upper));
}
#endif
#else
inline float largest_lane(F32 lanes) {
  float best = lanes[0];
  for (size_t lane = 1; lane < kLanes; ++lane) best = lanes[lane] > best ? lanes[lane] : best;
  return best;
}
#endif

// A tail of fewer than kVectorBytes bytes, to and from a buffer of kVectorBytes; the rest of the
// buffer becomes 0. The buffer is written by one store that covers every later load: a load that
// needs two stores would wait for both to reach the cache.
#if defined(MEP_SIMD_AVX512)
inline void load_tail(uint8_t* buffer, const uint8_t* from, size_t bytes) {
  const __mmask64 mask = (uint64_t{1} << bytes) - 1;
  store_vector(buffer, _mm512_maskz_loadu_epi8(mask, from));
}
inline void store_tail(uint8_t* to, const uint8_t* buffer, size_t bytes) {
  const __mmask64 mask = (uint64_t{1} << bytes) - 1;
  _mm512_mask_storeu_epi8(to, mask, load_vector<__m512i>(buffer));
}
#else
template <class T>
inline uint64_t load_word(const uint8_t* from) {
  T word;
  __builtin_memcpy(&word, from, sizeof word);
  return word;
}
// Up to 8 bytes as a number, first byte lowest.
inline uint64_t load_up_to_8(const uint8_t* from, size_t bytes) {
  if (bytes >= 8) return load_word<uint64_t>(from);
  if (bytes >= 4) {
    const uint64_t high = load_word<uint32_t>(from + bytes - 4);
    return load_word<uint32_t>(from) | high << (8 * (bytes - 4));
  }
  uint64_t word = 0;
  for (size_t i = 0; i < bytes; ++i) word |= uint64_t{from[i]} << (8 * i);
  return word;
}
inline void load_tail(uint8_t* buffer, const uint8_t* from, size_t bytes) {
  Vector<uint64_t> words = {};
  MEP_UNROLL
  for (size_t word = 0; word < kVectorBytes / 8; ++word) {
    if (word * 8 >= bytes) break;
    words[word] = load_up_to_8(from + word * 8, bytes - word * 8);
  }
  store_vector(buffer, words);
}
// Fixed sizes: a call of memcpy would cost more than the whole reduction of a few bytes.
inline void store_tail(uint8_t* to, const uint8_t* buffer, size_t bytes) {
  size_t done = 0;
  for (; done + 8 <= bytes; done += 8) __builtin_memcpy(to + done, buffer + done, 8);
  if (bytes & 4) {
    __builtin_memcpy(to + done, buffer + done, 4);
    done += 4;
  }
  if (bytes & 2) {
    __builtin_memcpy(to + done, buffer + done, 2);
    done += 2;
  }
  if (bytes & 1) to[done] = buffer[done];
}
#endif

constexpr size_t kCacheLine = 64;

// Orders this thread's non-temporal stores before its later stores.
inline void fence_streamed() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

inline void prefetch(const uint8_t* address) {
  __builtin_prefetch(address, 0, 3);
}

}  // namespace
}  // namespace mep
