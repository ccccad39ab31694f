// The data of one MoE layer on one rank, the same for MEP and for MPI. Everything is a function of
// (rank, token, round), so the check can compute any rank's part.
#pragma once

#include <cstdint>
#include <vector>

#include "buffer.hpp"
#include "protocol/row_formats.hpp"
#include "routing.hpp"

namespace mep::perf {

constexpr uint32_t kScaleBlock =  // values per scale of fp8
    row_format(MEP_FLOAT8_E4M3, MEP_SCALE_FLOAT32).group;

struct MoeShape {
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  uint32_t top_k = 0;
  uint32_t experts = 0;
  uint32_t experts_per_rank = 0;
  bool wire_is_fp8 = false;
  bool is_high_throughput = false;
  bool is_expanded = false;  // of high throughput
  int rank = 0;
  int size = 0;

  uint32_t scales_per_row() const { return (hidden + kScaleBlock - 1) / kScaleBlock; }
  // The bytes that cross the wire for one row of a dispatch and of a combine.
  size_t dispatch_row_bytes() const {
    return wire_is_fp8 ? hidden + scales_per_row() * sizeof(float) : combine_row_bytes();
  }
  size_t combine_row_bytes() const { return hidden * sizeof(uint16_t); }
};

// x[hidden] of a token, bfloat16.
void make_token(const MoeShape& shape, int rank, uint32_t token, uint32_t round, uint16_t* x);
// The factor that the stand-in expert multiplies its rows with.
float expert_factor(int64_t expert);

class MoeProblem {
 public:
  // The router outlives the problem.
  MoeProblem(const MoeShape& shape, const Router& router);
  void load(uint32_t round);
  // Other rows; the routing stays.
  void load_tokens(uint32_t round);
  // Bytes into out that no result has.
  void poison_output();

  const MoeShape& shape() const { return shape_; }
  const Router& router() const { return router_; }
  const uint16_t* x() const { return x_.as<uint16_t>(); }
  const std::vector<int64_t>& topk_idx() const { return choice_.experts; }
  const std::vector<float>& topk_weights() const { return choice_.weights; }
  uint16_t* out() const { return out_.as<uint16_t>(); }
  // Those that this rank sends to each rank.
  std::vector<double> count_rows() const;

 private:
  MoeShape shape_;
  const Router& router_;
  Buffer x_;
  Buffer out_;
  Choice choice_;
};

}  // namespace mep::perf
