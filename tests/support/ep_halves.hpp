// Dispatch and combine by halves: what a test gives to each, and which of mep.h's calls takes it.
#pragma once

#include "mep.h"

namespace mep_test {

enum class Halves { kBoth, kSend, kReceive };

constexpr bool sends(Halves halves) {
  return halves != Halves::kReceive;
}
constexpr bool receives(Halves halves) {
  return halves != Halves::kSend;
}

// The struct of a half for a call: null if it does not do that half.
template <class Struct>
const Struct* if_sends(Halves halves, const Struct& given) {
  return sends(halves) ? &given : nullptr;
}
template <class Struct>
const Struct* if_receives(Halves halves, const Struct& given) {
  return receives(halves) ? &given : nullptr;
}

// A rank's tokens, with the options of the half that sends.
struct DispatchTokens {
  uint32_t flags = 0;
  uint32_t num_tokens = 0;
  mep_dtype_t topk_idx_type = 0;
  const void* x = nullptr;
  uint64_t x_stride_bytes = 0;
  const void* x_scales = nullptr;
  uint64_t x_scales_stride_bytes = 0;
  const void* topk_idx = nullptr;
  const float* topk_weights = nullptr;
};

// The options of the half that receives.
struct DispatchRows : mep_dispatch_options_t {
  bool later = false;  // the call gives the counts alone
  DispatchRows() : mep_dispatch_options_t{} { mep_dispatch_options_defaults(this); }
};

struct CombineTerms {
  const void* y = nullptr;
  const float* topk_weights = nullptr;
};

struct CombineSums : mep_combine_options_t {
  void* out = nullptr;
  CombineSums() : mep_combine_options_t{} { mep_combine_options_defaults(this); }
};

// tokens or rows null: not that half; one of them is given.
inline mep_result_t dispatch_halves(mep_ep_handle_t handle, const DispatchTokens* tokens,
                                    const DispatchRows* rows, mep_stream_t stream) {
  if (tokens == nullptr) return mep_dispatch_receive(handle, nullptr, rows, stream);
  mep_dispatch_options_t options = rows != nullptr ? *rows : DispatchRows();
  options.flags |= tokens->flags;
  options.topk_idx_type = tokens->topk_idx_type;
  options.x_stride_bytes = tokens->x_stride_bytes;
  options.x_scales = tokens->x_scales;
  options.x_scales_stride_bytes = tokens->x_scales_stride_bytes;
  if (rows == nullptr) {
    return mep_dispatch_send(handle, tokens->x, tokens->topk_idx, tokens->topk_weights,
                             tokens->num_tokens, &options, stream);
  }
  if (rows->later) {
    return mep_dispatch_counts(handle, tokens->x, tokens->topk_idx, tokens->topk_weights,
                               tokens->num_tokens, &options, stream);
  }
  return mep_dispatch(handle, tokens->x, tokens->topk_idx, tokens->topk_weights, tokens->num_tokens,
                      nullptr, &options, stream);
}

inline mep_result_t combine_halves(mep_ep_handle_t handle, const CombineTerms* terms,
                                   const CombineSums* sums, mep_stream_t stream) {
  if (terms == nullptr) return mep_combine_receive(handle, sums->out, sums, stream);
  mep_combine_options_t options = sums != nullptr ? *sums : CombineSums();
  options.topk_weights = terms->topk_weights;
  if (sums == nullptr) return mep_combine_send(handle, terms->y, &options, stream);
  return mep_combine(handle, terms->y, sums->out, &options, stream);
}

}  // namespace mep_test
