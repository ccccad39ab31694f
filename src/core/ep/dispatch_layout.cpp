#include "core/ep/dispatch_layout.hpp"

#include <algorithm>
#include <vector>

#include "base/status.hpp"
#include "core/comm/gpu_backend.hpp"
#include "core/ep/ep_config.hpp"
#include "core/ep/routing.hpp"

namespace mep {
namespace {

mep_result_t check_layout(const device::DispatchLayout& layout) {
  if (layout.top_k > MEP_MAX_TOP_K) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "top_k is %u; at most %d work", layout.top_k,
                MEP_MAX_TOP_K);
  }
  if (layout.experts == 0 || layout.experts > INT32_MAX) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "num_experts is %u; it must be 1 to 2^31 - 1",
                layout.experts);
  }
  if (layout.topk_idx == nullptr && layout.tokens != 0 && layout.top_k != 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "topk_idx is NULL, but there are %u tokens",
                layout.tokens);
  }
  return MEP_SUCCESS;
}

// Counts on the host what the caller may not want, too.
template <typename Index>
mep_result_t count_on_host(const device::DispatchLayout& layout) {
  const auto* index = static_cast<const Index*>(layout.topk_idx);
  const uint32_t local = layout.local_experts();
  std::vector<int32_t> per_rank(layout.ranks), per_expert(layout.experts);
  std::vector<uint32_t> seen(layout.experts);  // the last token that named the expert, plus 1
  std::vector<uint8_t> in_rank(layout.ranks);
  for (uint32_t token = 0; token < layout.tokens; ++token) {
    std::fill(in_rank.begin(), in_rank.end(), 0);
    for (uint32_t k = 0; k < layout.top_k; ++k) {
      const auto expert = static_cast<int64_t>(*index++);
      if (expert == -1) continue;
      MEP_TRY(check_expert(token, expert, layout.experts));
      const auto at = static_cast<size_t>(expert);
      if (seen[at] == token + 1) return fail_repeated(token, static_cast<uint32_t>(expert));
      seen[at] = token + 1;
      ++per_expert[at];
      uint8_t& is_there = in_rank[at / local];
      per_rank[at / local] += is_there == 0 ? 1 : 0;
      is_there = 1;
    }
    if (layout.in_rank == nullptr) continue;
    std::copy(in_rank.begin(), in_rank.end(), layout.in_rank + size_t{token} * layout.ranks);
  }
  if (layout.per_rank != nullptr) std::copy(per_rank.begin(), per_rank.end(), layout.per_rank);
  if (layout.per_expert != nullptr) {
    std::copy(per_expert.begin(), per_expert.end(), layout.per_expert);
  }
  return MEP_SUCCESS;
}

}  // namespace

mep_result_t count_layout(Backend& backend, const device::DispatchLayout& layout, void* stream) {
  MEP_TRY(check_layout(layout));
  if (GpuBackend* side = backend.gpu_backend()) return side->count_layout(layout, stream);
  MEP_TRY(check_no_stream(stream));
  return layout.idx_is_int32 != 0 ? count_on_host<int32_t>(layout) : count_on_host<int64_t>(layout);
}

}  // namespace mep
