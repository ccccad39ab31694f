// Tokens and outputs of several rounds lie side by side; operation i of a graph takes those of round i
// modulo their number. Rows are read where the library received them, and the expert writes where
// combine reads.
#include "device/moe.hpp"

#include <algorithm>

#include "device/expert.hpp"
#include "device_side.hpp"
#include "error.hpp"
#include "moe_check.hpp"

namespace mep::perf {
namespace {

constexpr uint8_t kPoisonOfOut = 0xa5;

class DeviceMoe : public MoeSide {
 public:
  DeviceMoe(DeviceContext& context, MoeProblem& problem, const Options& options);
  // A failure here would follow one that is already reported.
  ~DeviceMoe() override {
    (void)cudaStreamSynchronize(context_.stream());
    for (const BufferState& buffer : buffers_) (void)mep_ep_handle_destroy(buffer.handle);
    (void)mep_ep_destroy(ep_);
  }
  DeviceMoe(const DeviceMoe&) = delete;
  DeviceMoe& operator=(const DeviceMoe&) = delete;

  uint32_t rounds() const { return rounds_; }
  // The next dispatch and its combine are of this round, on the next buffer.
  void begin(uint32_t round) {
    round_ = round;
    current_ = (current_ + 1) % buffers_.size();
  }
  size_t current() const { return current_; }
  // Restores the state after a begin() long ago: a graph's replay leaves results of that operation.
  void return_to(uint32_t round, size_t buffer) {
    round_ = round;
    current_ = buffer;
  }
  void dispatch() override;
  void expert() override;
  void combine() override;
  void sync() override { context_.synchronize(); }

  // For the check. Received rows are there until this rank's next dispatch or combine.
  void fetch_received();
  void poison_output() {
    context_.fill(out_ + round_ * token_values(), kPoisonOfOut, token_values() * sizeof(uint16_t));
  }
  void fetch_output() {
    context_.download(problem_.out(), out_ + round_ * token_values(),
                      token_values() * sizeof(uint16_t));
  }
  uint64_t received_count(uint32_t local_expert, int source) const override {
    return static_cast<uint32_t>(ranges_[range_index(local_expert, source)].count);
  }
  ReceivedRow received_row(uint32_t local_expert, int source, uint64_t index) const override;

 private:
  struct BufferState {
    mep_ep_handle_t handle = nullptr;
    mep_ep_view_t view = {};
  };
  size_t token_values() const {
    return static_cast<size_t>(problem_.shape().tokens) * problem_.shape().hidden;
  }
  size_t entries() const {
    return static_cast<size_t>(problem_.shape().tokens) * problem_.shape().top_k;
  }
  // Received rows lie by local expert, in high throughput in one group.
  uint32_t groups() const {
    return problem_.shape().is_high_throughput ? 1 : problem_.shape().experts_per_rank;
  }
  size_t range_index(uint32_t group, int source) const {
    return static_cast<size_t>(group) * static_cast<size_t>(problem_.shape().size) +
           static_cast<size_t>(source);
  }
  size_t wire_row_bytes() const {
    return problem_.shape().hidden * (problem_.shape().wire_is_fp8 ? 1 : sizeof(uint16_t));
  }
  size_t scale_row_bytes() const { return problem_.shape().scales_per_row() * sizeof(float); }
  void load_rounds();

  DeviceContext& context_;
  MoeProblem& problem_;
  uint32_t rounds_ = 1;
  uint32_t row_capacity_ = 0;  // of one expert
  mep_ep_t ep_ = nullptr;
  std::vector<BufferState> buffers_;
  size_t current_ = 0;
  uint32_t round_ = 0;
  // The data of all rounds.
  uint16_t* x_ = nullptr;
  uint16_t* out_ = nullptr;
  int64_t* topk_idx_ = nullptr;
  float* topk_weights_ = nullptr;
  // Brought by fetch_received(); rows by expert and source, without gaps.
  std::vector<mep_range_t> ranges_;
  std::vector<size_t> first_row_;
  std::vector<uint8_t> rows_;
  std::vector<uint8_t> scales_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> row_topk_idx_;  // [rows][K], high throughput
  std::vector<float> row_topk_weights_;
};

DeviceMoe::DeviceMoe(DeviceContext& context, MoeProblem& problem, const Options& options)
    : context_(context), problem_(problem) {
  context_.use();
  context_.recycle();
  const MoeShape& shape = problem.shape();
  const mep_ep_config_t config = ep_config_of(shape, options);
  row_capacity_ = static_cast<uint32_t>(shape.size) * config.max_tokens_per_rank;
  require(mep_ep_create(context.comm(), &config, &ep_), "mep_ep_create");
  buffers_.resize(options.buffers);
  for (uint32_t i = 0; i < options.buffers; ++i) {
    require(mep_ep_handle_create(ep_, i, &buffers_[i].handle), "mep_ep_handle_create");
    mep_ep_view_defaults(&buffers_[i].view);
    require(mep_ep_buffer_view(ep_, i, &buffers_[i].view), "mep_ep_buffer_view");
  }
  rounds_ = std::max(
      2u, context_.rotation(static_cast<double>(token_values()) * sizeof(uint16_t) * shape.size));
  x_ = context_.allocate<uint16_t>(rounds_ * token_values());
  out_ = context_.allocate<uint16_t>(rounds_ * token_values());
  topk_idx_ = context_.allocate<int64_t>(rounds_ * entries());
  topk_weights_ = context_.allocate<float>(rounds_ * entries());
  ranges_.resize(static_cast<size_t>(groups()) * static_cast<size_t>(shape.size));
  load_rounds();
}

// Ends with round 0, which is what the problem's own sizes are of.
void DeviceMoe::load_rounds() {
  for (uint32_t round = rounds_; round-- > 0;) {
    problem_.load(round);
    context_.upload(x_ + round * token_values(), problem_.x(), token_values() * sizeof(uint16_t));
    context_.upload(topk_idx_ + round * entries(), problem_.topk_idx().data(),
                    entries() * sizeof(int64_t));
    context_.upload(topk_weights_ + round * entries(), problem_.topk_weights().data(),
                    entries() * sizeof(float));
  }
}

void DeviceMoe::dispatch() {
  require(mep_dispatch(buffers_[current_].handle, x_ + round_ * token_values(),
                       topk_idx_ + round_ * entries(), topk_weights_ + round_ * entries(),
                       problem_.shape().tokens, nullptr, nullptr, context_.stream()),
          "mep_dispatch");
}

void DeviceMoe::expert() {
  const MoeShape& shape = problem_.shape();
  const mep_ep_view_t& view = buffers_[current_].view;
  ExpertCall call{};
  call.rows = view.recv_x;
  call.scales = static_cast<const float*>(view.recv_scales);
  call.layout_range = view.layout_range;
  call.y = view.combine_input;
  call.experts = shape.experts_per_rank;
  call.sources = static_cast<uint32_t>(shape.size);
  call.capacity = row_capacity_;
  call.hidden = shape.hidden;
  call.first_expert = static_cast<uint64_t>(shape.rank) * shape.experts_per_rank;
  call.topk_idx = view.recv_topk_idx;
  call.topk_weights = view.recv_topk_weights;
  call.top_k = shape.top_k;
  require_cuda(launch_expert(call, context_.stream()), "the stand-in expert");
}

void DeviceMoe::combine() {
  const auto& buffer = buffers_[current_];
  require(mep_combine(buffer.handle, buffer.view.combine_input, out_ + round_ * token_values(),
                      nullptr, context_.stream()),
          "mep_combine");
}

void DeviceMoe::fetch_received() {
  const MoeShape& shape = problem_.shape();
  const mep_ep_view_t& view = buffers_[current_].view;
  context_.download(ranges_.data(), view.layout_range, ranges_.size() * sizeof(mep_range_t));
  first_row_.clear();
  size_t total = 0;
  for (const mep_range_t& range : ranges_) {
    first_row_.push_back(total);
    // A count that is not possible is an error that the check finds; it is not followed.
    total += std::min(static_cast<uint32_t>(range.count), row_capacity_);
  }
  rows_.resize(total * wire_row_bytes());
  scales_.resize(shape.wire_is_fp8 ? total * scale_row_bytes() : 0);
  tokens_.resize(total);
  const size_t top_k = shape.is_high_throughput ? shape.top_k : 0;
  row_topk_idx_.resize(total * top_k);
  row_topk_weights_.resize(total * top_k);
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const size_t count = (i + 1 < ranges_.size() ? first_row_[i + 1] : total) - first_row_[i];
    const auto begin = static_cast<size_t>(ranges_[i].begin);
    if (count == 0 || begin + count > row_capacity_) continue;
    const size_t expert = i / static_cast<size_t>(shape.size);
    const size_t row = expert * row_capacity_ + begin;
    context_.download(rows_.data() + first_row_[i] * wire_row_bytes(),
                      static_cast<const uint8_t*>(view.recv_x) + row * wire_row_bytes(),
                      count * wire_row_bytes());
    context_.download(tokens_.data() + first_row_[i], view.src_info + row, count * sizeof(int32_t));
    if (top_k != 0) {
      context_.download(row_topk_idx_.data() + first_row_[i] * top_k,
                        view.recv_topk_idx + row * top_k, count * top_k * sizeof(int32_t));
      context_.download(row_topk_weights_.data() + first_row_[i] * top_k,
                        view.recv_topk_weights + row * top_k, count * top_k * sizeof(float));
    }
    if (!shape.wire_is_fp8) continue;
    context_.download(scales_.data() + first_row_[i] * scale_row_bytes(),
                      static_cast<const uint8_t*>(view.recv_scales) + row * scale_row_bytes(),
                      count * scale_row_bytes());
  }
}

ReceivedRow DeviceMoe::received_row(uint32_t local_expert, int source, uint64_t index) const {
  const size_t row = first_row_[range_index(local_expert, source)] + index;
  ReceivedRow received;
  received.data = rows_.data() + row * wire_row_bytes();
  received.token = tokens_[row];
  if (problem_.shape().wire_is_fp8) {
    received.scales = reinterpret_cast<const float*>(scales_.data() + row * scale_row_bytes());
  }
  if (problem_.shape().is_high_throughput) {
    received.topk_idx = row_topk_idx_.data() + row * problem_.shape().top_k;
    received.topk_weights = row_topk_weights_.data() + row * problem_.shape().top_k;
  }
  return received;
}

class DeviceMoeCase : public Case {
 public:
  DeviceMoeCase(DeviceContext& context, MoeOperation operation, MoeProblem& problem,
                const Options& options)
      : context_(context),
        operation_(operation),
        problem_(problem),
        side_(context, problem, options) {
    require_cuda(load_expert_kernels(), "loading kernels");
    dispatches_ = capture(false, false);
    if (operation != MoeOperation::kDispatch) pairs_ = capture(false, true);
    if (operation == MoeOperation::kMoe) {
      layers_ = capture(true, true);
      phases_ = {{"dispatch"}, {"expert"}, {"combine"}};
    }
  }
  void sync() override { context_.synchronize(); }
  uint64_t block_iterations() const override { return kDeviceOperations; }
  std::vector<Phase> phases() const override { return phases_; }
  // The graphs without an expert combine what one left. Not done by the constructor: graphs are made
  // while no rank waits for another on the GPU.
  void reset() override {
    problem_.load(0);
    for (uint32_t round = 0; round < side_.rounds(); ++round) {
      side_.begin(round);
      side_.dispatch();
      side_.expert();
      side_.combine();
    }
    context_.synchronize();
  }

  // A combine cannot run alone: it is what pairs take longer than dispatches.
  void run(uint64_t, double* seconds) override {
    const double dispatch = context_.time(dispatches_.get());
    if (operation_ == MoeOperation::kDispatch) {
      *seconds += dispatch;
      return;
    }
    const double pair = context_.time(pairs_.get());
    if (operation_ == MoeOperation::kCombine) {
      *seconds += pair - dispatch;
      return;
    }
    const double layer = context_.time(layers_.get());
    phases_[0].seconds += dispatch;
    phases_[1].seconds += layer - pair;
    phases_[2].seconds += pair - dispatch;
    *seconds += layer;
  }

  // Round 0 by the graph that is timed, whose last operation is what remains; others eager.
  uint64_t verify(uint32_t round) override {
    const bool by_graph = round == 0 && operation_ != MoeOperation::kCombine;
    const auto input = static_cast<uint32_t>((by_graph ? kDeviceOperations - 1 : uint64_t{round}) %
                                             side_.rounds());
    problem_.load(input);
    return by_graph ? verify_graph(input) : verify_once(input);
  }

 private:
  DeviceGraph capture(bool with_expert, bool with_combine) {
    return DeviceGraph(context_.stream(), [&] {
      for (uint32_t i = 0; i < kDeviceOperations; ++i) {
        side_.begin(i % side_.rounds());
        side_.dispatch();
        if (with_expert) side_.expert();
        if (with_combine) side_.combine();
      }
      last_buffer_ = side_.current();
    });
  }

  uint64_t verify_graph(uint32_t input) {
    side_.return_to(input, last_buffer_);
    side_.poison_output();
    const bool is_dispatch = operation_ == MoeOperation::kDispatch;
    context_.launch(is_dispatch ? dispatches_.get() : layers_.get());
    context_.synchronize();
    if (is_dispatch) {
      side_.fetch_received();
      return count_received_errors(problem_, side_, input, input);
    }
    side_.fetch_output();
    return count_output_errors(problem_);
  }

  uint64_t verify_once(uint32_t input) {
    side_.begin(input);
    side_.poison_output();
    side_.dispatch();
    context_.synchronize();
    side_.fetch_received();
    const uint64_t errors = count_received_errors(problem_, side_, input, input);
    if (operation_ == MoeOperation::kDispatch) return errors;
    side_.expert();
    side_.combine();
    context_.synchronize();
    side_.fetch_output();
    return errors + count_output_errors(problem_);
  }

  DeviceContext& context_;
  MoeOperation operation_;
  MoeProblem& problem_;
  DeviceMoe side_;
  DeviceGraph dispatches_;
  DeviceGraph pairs_;
  DeviceGraph layers_;
  size_t last_buffer_ = 0;  // of the graph that was captured last, the one that is checked
  std::vector<Phase> phases_;
};

}  // namespace

std::unique_ptr<Case> make_device_moe(DeviceContext& context, MoeOperation operation,
                                      MoeProblem& problem, const Options& options) {
  return std::make_unique<DeviceMoeCase>(context, operation, problem, options);
}

}  // namespace mep::perf
