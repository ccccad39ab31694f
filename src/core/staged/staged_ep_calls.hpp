// What staged dispatch and combine of one buffer are on the host: operations of an EP object of the host, on
// memory that kernels have filled. One thread serves a buffer.
//
// Rows that arrive and terms that go back are handed over without gaps, in the order of (local expert,
// source, row): so the staging is as large as all rows that can come, not as all places that there are.
// They lie in their places in the object's own window, which takes memory where it is touched.
#pragma once

#include <cstdint>

#include "core/ep/ep_object.hpp"
#include "kernels/cuda/stage_kernels.hpp"

namespace mep {

// Where what lies in a buffer's staging.
struct StagedEpLayout {
  uint64_t x, x_scales, topk_idx, weights, bias, out;
  uint64_t layout_range, recv_count, src_info, scales, rows;
  uint64_t bytes;
};
StagedEpLayout make_staged_ep_layout(const EpShape& shape);
// What mep_ep_create takes besides the object of the host.
uint64_t staged_ep_bytes(const EpShape& shape, const device::EpGeometry& geometry);
device::StageEpMemory staged_ep_memory(const StagedEpLayout& layout, std::byte* base);

class StagedEpCalls {
 public:
  StagedEpCalls(Comm& comm, EpObject& object, uint32_t buffer, const device::StageEpMemory& memory)
      : comm_(comm), object_(object), buffer_(object.buffer(buffer)), memory_(memory) {}

  [[nodiscard]] mep_result_t serve(const device::StageRequest& request,
                                   device::StageAnswer* answer);
  // Of the last dispatch or combine that ended; version 0: there was none. While no request is open.
  const device::OpStatus& last_status() const { return last_status_; }

 private:
  // What was refused is remembered: what the kernels ask next belongs to it.
  struct Refusal {
    mep_result_t result = MEP_SUCCESS;
    std::string text;
  };

  mep_result_t dispatch(const device::StageEp& call, EpHandle& handle, device::StageAnswer* answer);
  mep_result_t combine(const device::StageEp& call, EpHandle& handle, device::StageAnswer* answer);
  mep_result_t refused(const Refusal& refusal, device::StageAnswer* answer) const;
  void note(Refusal* refusal, mep_result_t result, bool begun) const;
  uint32_t clean_routing(const device::StageEp& call) const;
  mep_result_t hand_over(const device::StageEp& call, device::StageAnswer* answer) const;
  void take_terms() const;

  Comm& comm_;
  EpObject& object_;
  EpBuffer& buffer_;
  const device::StageEpMemory memory_;
  Refusal dispatch_refused_;
  Refusal combine_refused_;
  uint32_t bad_entries_ = 0;  // of the last dispatch that was sent
  device::OpStatus last_status_{};
};

}  // namespace mep
