// The layer by MEP, in the way that needs no copy: rows are read where the library received them,
// and the expert writes where combine reads.
#include "error.hpp"
#include "moe_kernels.hpp"
#include "moe_side.hpp"

namespace mep::perf {
namespace {

struct BufferState {
  mep_ep_handle_t handle = nullptr;
  mep_ep_view_t view = {};
};

class MepMoe : public MoeSide {
 public:
  MepMoe(const MoeProblem& problem, const Options& options, mep_comm_t comm)
      : problem_(problem), comm_(comm), is_slotted_(options.is_slotted) {
    const mep_ep_config_t config = ep_config_of(problem.shape(), options);
    row_capacity_ = static_cast<size_t>(problem.shape().size) * config.max_tokens_per_rank;
    require(mep_ep_create(comm, &config, &ep_), "mep_ep_create");
    buffers_.resize(options.buffers);
    for (uint32_t i = 0; i < options.buffers; ++i) {
      require(mep_ep_handle_create(ep_, i, &buffers_[i].handle), "mep_ep_handle_create");
      mep_ep_view_defaults(&buffers_[i].view);
      require(mep_ep_buffer_view(ep_, i, &buffers_[i].view), "mep_ep_buffer_view");
    }
  }
  // A failure here would follow one that is already reported.
  ~MepMoe() override {
    for (const BufferState& buffer : buffers_) (void)mep_ep_handle_destroy(buffer.handle);
    (void)mep_ep_destroy(ep_);
  }
  MepMoe(const MepMoe&) = delete;
  MepMoe& operator=(const MepMoe&) = delete;

  void sync() override { require(mep_barrier(comm_, nullptr), "mep_barrier"); }

  void dispatch() override {
    current_ = (current_ + 1) % buffers_.size();
    require(mep_dispatch(buffers_[current_].handle, problem_.x(), problem_.topk_idx().data(),
                         problem_.topk_weights().data(), problem_.shape().tokens, nullptr, nullptr,
                         nullptr),
            "mep_dispatch");
  }

  void replay() override {
    mep_dispatch_options_t options;
    mep_dispatch_options_defaults(&options);
    options.flags = MEP_DISPATCH_REPLAY;
    require(mep_dispatch(buffers_[current_].handle, problem_.x(), nullptr, nullptr,
                         problem_.shape().tokens, nullptr, &options, nullptr),
            "mep_dispatch");
  }

  void expert() override {
    const MoeShape& shape = problem_.shape();
    const mep_ep_view_t& view = buffers_[current_].view;
    if (shape.is_expanded) return run_expanded_rows();
    if (shape.is_high_throughput) return run_local_experts_of_rows();
    for (uint32_t expert = 0; expert < shape.experts_per_rank; ++expert) {
      if (!is_slotted_) {
        run_expert(expert, 0, static_cast<size_t>(view.recv_count[expert]));
        continue;
      }
      for (int source = 0; source < shape.size; ++source) {
        run_expert(expert, first_row(expert, source), received_count(expert, source));
      }
    }
  }

  void combine() override {
    const auto& buffer = buffers_[current_];
    require(mep_combine(buffer.handle, buffer.view.combine_input, problem_.out(), nullptr, nullptr),
            "mep_combine");
  }

  uint64_t received_count(uint32_t local_expert, int source) const override {
    return static_cast<uint64_t>(range(local_expert, source).count);
  }

  ReceivedRow received_row(uint32_t local_expert, int source, uint64_t index) const override {
    const MoeShape& shape = problem_.shape();
    const mep_ep_view_t& view = buffers_[current_].view;
    const size_t group = shape.is_expanded ? 0 : local_expert * row_capacity_;
    const size_t row = group + first_row(local_expert, source) + index;
    ReceivedRow received;
    received.data = static_cast<const uint8_t*>(view.recv_x) + row * wire_stride();
    received.token = view.src_info[row];
    if (shape.wire_is_fp8) {
      received.scales = static_cast<const float*>(view.recv_scales) + row * shape.scales_per_row();
    }
    if (shape.is_expanded) {
      received.topk_weights = view.recv_topk_weights + row;
    } else if (shape.is_high_throughput) {
      received.topk_idx = view.recv_topk_idx + row * shape.top_k;
      received.topk_weights = view.recv_topk_weights + row * shape.top_k;
    }
    return received;
  }

 private:
  // Rows of high throughput lie without gaps from the first on.
  void run_local_experts_of_rows() {
    const MoeShape& shape = problem_.shape();
    auto* y = static_cast<uint16_t*>(buffers_[current_].view.combine_input);
    for (int source = 0; source < shape.size; ++source) {
      for (uint64_t i = 0; i < received_count(0, source); ++i, y += shape.hidden) {
        const ReceivedRow row = received_row(0, source, i);
        run_local_experts(shape, row.data, row.scales, row.topk_idx, row.topk_weights, y);
      }
    }
  }

  // Groups follow each other; nothing sums by weight behind this, so the output has it.
  void run_expanded_rows() {
    const MoeShape& shape = problem_.shape();
    const mep_ep_view_t& view = buffers_[current_].view;
    size_t row = 0;
    for (uint32_t expert = 0; expert < shape.experts_per_rank; ++expert) {
      const float factor = factor_of(expert);
      const size_t end = row + static_cast<size_t>(view.recv_count[expert]);
      for (; row < end; ++row) scale_rows(row, 1, view.recv_topk_weights[row] * factor);
    }
  }

  const mep_range_t& range(uint32_t local_expert, int source) const {
    const size_t size = static_cast<size_t>(problem_.shape().size);
    return buffers_[current_].view.layout_range[local_expert * size + static_cast<size_t>(source)];
  }
  size_t first_row(uint32_t local_expert, int source) const {
    return static_cast<size_t>(range(local_expert, source).begin);
  }
  size_t wire_stride() const {
    return problem_.shape().hidden * (problem_.shape().wire_is_fp8 ? 1 : sizeof(uint16_t));
  }

  void run_expert(uint32_t expert, size_t begin, size_t rows) {
    if (rows == 0) return;
    scale_rows(expert * row_capacity_ + begin, rows, factor_of(expert));
  }

  float factor_of(uint32_t expert) const {
    const MoeShape& shape = problem_.shape();
    return expert_factor(static_cast<int64_t>(shape.rank) * shape.experts_per_rank + expert);
  }

  void scale_rows(size_t row, size_t rows, float factor) {
    const MoeShape& shape = problem_.shape();
    const mep_ep_view_t& view = buffers_[current_].view;
    const auto* x = static_cast<const uint8_t*>(view.recv_x) + row * wire_stride();
    uint16_t* y = static_cast<uint16_t*>(view.combine_input) + row * shape.hidden;
    if (!shape.wire_is_fp8) {
      scale_rows_bf16(reinterpret_cast<const uint16_t*>(x), rows, shape.hidden, factor, y);
      return;
    }
    const size_t scales_stride = shape.scales_per_row() * sizeof(float);
    const auto* scales = static_cast<const uint8_t*>(view.recv_scales) + row * scales_stride;
    scale_rows_fp8(x, shape.hidden, scales, scales_stride, rows, shape.hidden, factor, y);
  }

  const MoeProblem& problem_;
  mep_comm_t comm_;
  bool is_slotted_;
  size_t row_capacity_ = 0;  // of one expert
  mep_ep_t ep_ = nullptr;
  std::vector<BufferState> buffers_;
  size_t current_ = 0;
};

}  // namespace

mep_ep_config_t ep_config_of(const MoeShape& shape, const Options& options) {
  mep_ep_config_t config;
  mep_ep_config_defaults(&config);
  config.max_tokens_per_rank = shape.tokens > 0 ? shape.tokens : 1;
  config.hidden = shape.hidden;
  config.top_k = shape.top_k;
  config.num_experts = shape.experts;
  config.experts_per_rank = shape.experts_per_rank;
  config.num_buffers = options.buffers;
  config.input_type = MEP_BFLOAT16;
  config.wire_type = shape.wire_is_fp8 ? MEP_FLOAT8_E4M3 : MEP_BFLOAT16;
  config.combine_type = MEP_BFLOAT16;
  config.layout = options.is_expanded        ? MEP_EP_EXPANDED
                  : shape.is_high_throughput ? MEP_EP_HIGH_THROUGHPUT
                  : options.is_slotted       ? MEP_EP_SLOTTED
                                             : MEP_EP_LOW_LATENCY;
  return config;
}

std::unique_ptr<MoeSide> make_mep_moe(const MoeProblem& problem, const Options& options,
                                      mep_comm_t comm) {
  return std::make_unique<MepMoe>(problem, options, comm);
}

}  // namespace mep::perf
