#include "low_latency.hpp"

#include <array>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

namespace mep_torch {
namespace {

constexpr int64_t kGroup = 128;       // values that share a scale
constexpr int64_t kColumnBytes = 16;  // on GPUs a column of scales is a multiple of it

void check_has_no_grad(const char* name, const at::Tensor& tensor) {
  if (tensor.requires_grad()) {
    throw py::value_error(std::string(name) +
                          " requires grad; give its detach(), which has the same memory");
  }
}

void check_type(const char* name, const at::Tensor& tensor, at::ScalarType type) {
  if (tensor.scalar_type() != type) {
    throw py::value_error(std::string(name) + " holds " + kind_of(tensor.scalar_type()) +
                          ", it must hold " + kind_of(type));
  }
}

uint64_t row_stride(const at::Tensor& rows) {
  return rows.is_contiguous() ? 0 : static_cast<uint64_t>(rows.stride(0) * rows.element_size());
}

// Scales as rows have them: float32 as they are; exponents of two as float32, or four of them in a word.
at::Tensor scale_values(const at::Tensor& scales, bool packed) {
  if (packed) return scales.contiguous().view(at::kInt);
  if (scales.scalar_type() == at::kFloat) return scales;
  return at::bitwise_left_shift(scales.to(at::kInt), at::Scalar(23)).view(at::kFloat);
}

// Receives when it is called first. Cheaper to make than a function of pybind11's.
class Hook {
 public:
  explicit Hook(std::function<void()> receive) : receive_(std::move(receive)) {}
  void call() {
    if (!receive_) return;
    receive_();
    receive_ = nullptr;
  }

 private:
  std::function<void()> receive_;
};

py::object hook_of(std::function<void()> receive) {
  return py::cast(Hook(std::move(receive)));
}

bool is_loss_error(const py::object& error) {
  const auto errors = py::module_::import("mep.errors");
  return py::isinstance(error, errors.attr("PeerFailedError")) ||
         py::isinstance(error, errors.attr("PeerLeftError"));
}

}  // namespace

// --- The lanes -------------------------------------------------------------------------------------------------

// A dispatch's memory.
struct LowLatencyLanes::Dispatch {
  at::Tensor x, topk_idx;
  std::optional<at::Tensor> statistics, waits;
  at::Tensor rows, count, ranges, info;
  at::Tensor library_scales, scales;  // one tensor where nothing is converted, or undefined
  bool packed = false;

  mep_result_t call(mep_ep_handle_t handle, mep_stream_t stream, bool sends, bool receives) const;
  void finish() const;
};

mep_result_t LowLatencyLanes::Dispatch::call(mep_ep_handle_t handle, mep_stream_t stream,
                                             bool sends, bool receives) const {
  mep_dispatch_options_t receive;
  mep_dispatch_options_defaults(&receive);
  receive.recv_count = count.data_ptr<int32_t>();
  receive.layout_range = reinterpret_cast<mep_range_t*>(ranges.data_ptr<int64_t>());
  if (!count.is_cuda()) {
    receive.src_info = info.data_ptr<int32_t>();
    if (statistics.has_value()) {
      receive.statistics = statistics->data_ptr();
      receive.statistics_type = statistics->scalar_type() == at::kInt ? MEP_INT32 : MEP_INT64;
    }
    if (waits.has_value()) receive.wait_ns = waits->data_ptr<int64_t>();
  }
  if (!sends) return mep_dispatch_receive(handle, nullptr, &receive, stream);
  const auto tokens = static_cast<uint32_t>(x.size(0));
  receive.topk_idx_type = topk_idx.scalar_type() == at::kInt ? MEP_INT32 : MEP_INT64;
  receive.x_stride_bytes = row_stride(x);
  if (receives) {
    return mep_dispatch(handle, x.data_ptr(), topk_idx.data_ptr(), nullptr, tokens, nullptr,
                        &receive, stream);
  }
  return mep_dispatch_send(handle, x.data_ptr(), topk_idx.data_ptr(), nullptr, tokens, &receive,
                           stream);
}

// Torch does the rest to what was received, on the current stream.
void LowLatencyLanes::Dispatch::finish() const {
  // Tensors made in inference mode are written in no other.
  const c10::InferenceMode writes_any;
  if (count.is_cuda() && statistics.has_value()) {
    at::Tensor sums = *statistics;
    sums.add_(count);
  }
  if (scales.is_same(library_scales)) return;
  const py::gil_scoped_release without_gil;
  if (count.is_cuda()) {
    scales.copy_(scale_values(library_scales, packed));
    return;
  }
  const auto* counts = count.data_ptr<int32_t>();
  for (int64_t expert = 0; expert < scales.size(0); ++expert) {
    const at::Tensor from = library_scales.select(0, expert).narrow(0, 0, counts[expert]);
    scales.select(0, expert).narrow(0, 0, counts[expert]).copy_(scale_values(from, packed));
  }
}

LowLatencyLanes::LowLatencyLanes(py::object ep, std::vector<py::object> handles,
                                 std::shared_ptr<BufferStreams> streams, bool has_power_scales,
                                 bool tells_failures)
    : BufferCalls(ep.attr("_comm"), std::move(streams), tells_failures),
      ep_(std::move(ep)),
      memory_(ep_.attr("_memory")),
      has_power_scales_(has_power_scales),
      experts_(number_of(ep_, "experts_per_rank")),
      max_tokens_(number_of(ep_, "max_tokens_per_rank")),
      hidden_(number_of(ep_, "hidden")),
      top_k_(number_of(ep_, "top_k")) {
  for (py::object& handle : handles) {
    const auto buffer = static_cast<uint32_t>(lanes_.size());
    lanes_.push_back({std::move(handle), view_of(ep_, buffer)});
  }
}

// --- Memory ----------------------------------------------------------------------------------------------------

at::Tensor LowLatencyLanes::combine_buffer(const py::object& owner, const Use& use) {
  check_use(use);
  Lane& lane = lanes_[use.lane];
  (void)address_of<mep_ep_handle_t>(lane.handle);
  if (lane.is_combined) {
    // Peers may still read the library's memory.
    if (!lane.again.defined()) {
      lane.again =
          at::empty({experts_, rows(), hidden_}, at::TensorOptions(at::kBFloat16).device(device()));
    }
    return lane.again;
  }
  return memory(py::make_tuple(owner, memory_), lanes_[use.lane].view.combine_input,
                {experts_, rows(), hidden_}, {rows() * hidden_, hidden_, 1}, at::kBFloat16);
}

// The scales as DeepEP has them: the rows of an expert lie next to each other, group by group.
void LowLatencyLanes::prepare_scales(const py::object& owner, bool packed,
                                     Dispatch* dispatch) const {
  const int64_t groups = (hidden_ + kGroup - 1) / kGroup;
  if (packed && groups % 4 != 0) {
    throw py::value_error(
        "use_ue8m0 packs 4 scales of 128 values in a word; hidden must be a "
        "multiple of 512");
  }
  const at::ScalarType type = has_power_scales_ ? at::kByte : at::kFloat;
  const int64_t unit = kColumnBytes / static_cast<int64_t>(c10::elementSize(type));
  const int64_t column = (rows() + unit - 1) / unit * unit;
  const std::array<int64_t, 3> strides = is_on_gpu()
                                             ? std::array<int64_t, 3>{groups * column, 1, column}
                                             : std::array<int64_t, 3>{rows() * groups, groups, 1};
  dispatch->packed = packed;
  dispatch->library_scales = memory(py::make_tuple(owner, memory_), lanes_[next_].view.recv_scales,
                                    {experts_, rows(), groups}, strides, type);
  dispatch->scales = is_on_gpu() && !has_power_scales_
                         ? dispatch->library_scales
                         : outputs({experts_, packed ? groups / 4 : groups, rows()},
                                   packed ? at::kInt : at::kFloat)
                               .transpose(1, 2);
}

// --- Checks ----------------------------------------------------------------------------------------------------

void LowLatencyLanes::check_dense(const char* name, const at::Tensor& tensor, at::ScalarType type,
                                  int64_t items) const {
  check_place(name, tensor);
  check_has_no_grad(name, tensor);
  check_type(name, tensor, type);
  if (!tensor.is_contiguous()) {
    throw py::value_error(std::string(name) +
                          " is not contiguous; its contiguous() is a copy that is");
  }
  if (tensor.numel() != items) {
    throw py::value_error(std::string(name) + " has " + std::to_string(tensor.numel()) +
                          " items, it must have " + std::to_string(items));
  }
}

// Rows of bfloat16, which may lie apart.
void LowLatencyLanes::check_rows(const char* name, const at::Tensor& tensor) const {
  check_place(name, tensor);
  check_has_no_grad(name, tensor);
  check_type(name, tensor, at::kBFloat16);
  if (tensor.dim() != 2 || tensor.size(1) != hidden_) {
    throw py::value_error(std::string(name) + " has shape " + shape_of(tensor.sizes()) +
                          ", it must be [rows, " + std::to_string(hidden_) + "]");
  }
  if (tensor.is_contiguous() || tensor.numel() == 0) return;
  if (tensor.stride(1) != 1 || tensor.stride(0) < hidden_) {
    throw py::value_error("the rows of " + std::string(name) +
                          " must be contiguous and lie apart; contiguous() copies it");
  }
}

void LowLatencyLanes::check_counters(const char* name, const std::optional<at::Tensor>& counters,
                                     std::initializer_list<at::ScalarType> types) const {
  if (!counters.has_value()) return;
  check_place(name, *counters);
  std::string wanted;
  for (const at::ScalarType type : types) {
    if (counters->scalar_type() == type && counters->is_contiguous()) return;
    wanted += (wanted.empty() ? "" : " or ") + name_of(type);
  }
  throw py::value_error(std::string(name) + " is " + name_of(counters->scalar_type()) +
                        " with strides " + shape_of(counters->strides()) +
                        "; it must be dense, of " + wanted);
}

void LowLatencyLanes::check_waits(const char* name, const std::optional<at::Tensor>& waits) const {
  check_counters(name, waits, {at::kLong});
  if (waits.has_value() && (waits->dim() != 1 || waits->numel() != ranks_)) {
    throw py::value_error(std::string(name) + " has shape " + shape_of(waits->sizes()) +
                          ", it must be [" + std::to_string(ranks_) + "]");
  }
}

void LowLatencyLanes::check_use(const Use& use) const {
  if (use.number != lanes_[use.lane].number) {
    raise(PyExc_RuntimeError, "the handle is that of an older dispatch; " +
                                  std::to_string(lanes_.size()) +
                                  " results live at one time, and later dispatches have used its "
                                  "buffer");
  }
}

// --- Calls -----------------------------------------------------------------------------------------------------

CallEnd LowLatencyLanes::call_once(size_t lane, const LibraryCall& call, bool on_own) const {
  const auto make = [call, handle = address_of<mep_ep_handle_t>(lanes_[lane].handle)](
                        mep_stream_t stream) { return call(handle, stream); };
  if (!is_on_gpu()) return call_blocking([make] { return make(nullptr); });
  const c10::DeviceGuard guard(device());
  return call_on(streams_->begin(on_own), make);
}

Failure LowLatencyLanes::run(const py::object& owner, size_t lane, const LibraryCall& call,
                             bool on_own) {
  Failure failure =
      BufferCalls::run(owner, ep_, lane, [&] { return call_once(lane, call, on_own); });
  // The call met the loss: what has not come counts as no rows, and as terms that are left out. It cannot be made again,
  // since on another rank it may have succeeded.
  if (!tells_failures() && failure.has_begun && is_loss_error(failure.exception)) {
    failure.exception = py::none();
  }
  return failure;
}

// Rows of zeros by the routing of a dispatch that was combined, so that it can be combined again.
void LowLatencyLanes::dispatch_again(const py::object& owner, const Use& use,
                                     const at::Tensor& topk_idx, bool is_async) {
  const at::Tensor index = topk_idx.contiguous();
  const auto bf16 = at::TensorOptions(at::kBFloat16).device(device());
  const at::Tensor zeros = at::zeros({use.tokens, hidden_}, bf16);
  const auto call = [=](mep_ep_handle_t handle, mep_stream_t stream) {
    mep_dispatch_options_t options;
    mep_dispatch_options_defaults(&options);
    options.topk_idx_type = index.scalar_type() == at::kInt ? MEP_INT32 : MEP_INT64;
    return mep_dispatch(handle, zeros.data_ptr(), index.data_ptr(), nullptr,
                        static_cast<uint32_t>(zeros.size(0)), nullptr, &options, stream);
  };
  run(owner, use.lane, call, is_async).raise_if_any();
  if (is_async && is_on_gpu()) streams_->use_on_own({zeros, index});
}

// --- Dispatch and combine --------------------------------------------------------------------------------------

std::shared_ptr<LowLatencyLanes::Dispatch> LowLatencyLanes::prepare(
    const py::object& owner, const at::Tensor& x, const at::Tensor& topk_idx,
    const std::optional<at::Tensor>& statistics, const std::optional<at::Tensor>& waits,
    bool packed_scales) {
  check_counters("cumulative_local_expert_recv_stats", statistics, {at::kInt, at::kLong});
  check_waits("dispatch_wait_recv_cost_stats", waits);
  check_failures();
  check_rows("x", x);
  if (topk_idx.scalar_type() != at::kInt && topk_idx.scalar_type() != at::kLong) {
    throw py::value_error("topk_idx holds " + kind_of(topk_idx.scalar_type()) +
                          ", it must hold int32 or int64");
  }
  check_dense("topk_idx", topk_idx, topk_idx.scalar_type(), x.size(0) * top_k_);
  if (statistics.has_value() && (statistics->dim() != 1 || statistics->numel() != experts_)) {
    throw py::value_error("cumulative_local_expert_recv_stats has shape " +
                          shape_of(statistics->sizes()) + ", it must be [" +
                          std::to_string(experts_) + "]");
  }
  const mep_ep_view_t& view = lanes_[next_].view;
  auto made = std::make_shared<Dispatch>();
  made->x = x;
  made->topk_idx = topk_idx;
  made->statistics = statistics;
  made->waits = waits;
  made->rows = memory(py::make_tuple(owner, memory_), view.recv_x, {experts_, rows(), hidden_},
                      {rows() * hidden_, hidden_, 1},
                      view.recv_scales == nullptr ? at::kBFloat16 : at::kFloat8_e4m3fn);
  made->count = outputs({experts_}, at::kInt);
  made->ranges = outputs({experts_, ranks_}, at::kLong);
  made->info = is_on_gpu() ? memory(py::make_tuple(owner, memory_), view.src_info,
                                    {experts_, rows()}, {rows(), 1}, at::kInt)
                           : outputs({experts_, rows()}, at::kInt);
  if (view.recv_scales != nullptr) prepare_scales(owner, packed_scales, made.get());
  return made;
}

py::tuple LowLatencyLanes::dispatch(const py::object& owner, const at::Tensor& x,
                                    const at::Tensor& topk_idx,
                                    const std::optional<at::Tensor>& statistics,
                                    const std::optional<at::Tensor>& waits, bool packed_scales,
                                    bool is_hooked, bool is_async) {
  const auto made = prepare(owner, x, topk_idx, statistics, waits, packed_scales);
  const size_t lane = next_;
  const Failure failure = run(
      owner, lane,
      [made, is_hooked](mep_ep_handle_t handle, mep_stream_t stream) {
        return made->call(handle, stream, true, !is_hooked);
      },
      is_async);
  // All ranks take their buffers in the same order, also where a call has failed.
  if (failure.exception.is_none() || failure.has_begun) {
    ++lanes_[lane].number;
    lanes_[lane].is_combined = false;
    lanes_[lane].again.reset();
    next_ = (next_ + 1) % lanes_.size();
  }
  failure.raise_if_any();
  py::object hook = py::none();
  if (is_hooked) {
    made->x = made->topk_idx = at::Tensor();
    hook = hook_of([self = shared_from_this(), owner, lane, made] {
      self->run(
              owner, lane,
              [made](mep_ep_handle_t handle, mep_stream_t stream) {
                return made->call(handle, stream, false, true);
              },
              false)
          .raise_if_any();
      made->finish();
    });
  } else if (is_async && is_on_gpu()) {
    const c10::StreamGuard on_own(streams_->own());
    made->finish();
    streams_->use_on_own(
        {x, topk_idx, made->count, made->ranges, made->scales, statistics.value_or(at::Tensor())});
  } else {
    made->finish();
  }
  Use use{shared_from_this(), lane, lanes_[lane].number, x.size(0),
          is_on_gpu() ? at::Tensor() : topk_idx.clone()};
  return py::make_tuple(made->rows, made->scales.defined() ? py::cast(made->scales) : py::none(),
                        made->count, made->info, made->ranges, std::move(use), hook);
}

py::tuple LowLatencyLanes::combine(const py::object& owner, const Use& use,
                                   const std::optional<at::Tensor>& given_x,
                                   const at::Tensor& topk_idx,
                                   const std::optional<at::Tensor>& weights,
                                   const std::optional<at::Tensor>& out,
                                   const std::optional<at::Tensor>& waits, bool is_hooked,
                                   bool is_async) {
  check_use(use);
  Lane& lane = lanes_[use.lane];
  const bool comes_again = lane.is_combined;
  std::optional<at::Tensor> x = given_x;
  if (!x.has_value() && lane.again.defined()) x = lane.again;
  check_waits("combine_wait_recv_cost_stats", waits);
  if (x.has_value()) {
    check_dense("x", *x, at::kBFloat16, experts_ * rows() * hidden_);
  }
  if (weights.has_value()) {
    check_dense("topk_weights", *weights, at::kFloat, use.tokens * top_k_);
  }
  if (use.topk_idx.defined()) {
    check_place("topk_idx", topk_idx);
    if (!topk_idx.equal(use.topk_idx)) {
      throw py::value_error(
          "topk_idx is not that of the dispatch; to leave an expert out of the "
          "sum give it the weight 0");
    }
  }
  if (out.has_value()) {
    check_rows("out", *out);
    if (out->size(0) != use.tokens) {
      throw py::value_error("out has " + std::to_string(out->size(0)) + " rows, the dispatch had " +
                            std::to_string(use.tokens) + " tokens");
    }
  }
  check_failures();
  const at::Tensor sums =
      out.has_value()
          ? *out
          : at::empty({use.tokens, hidden_}, at::TensorOptions(at::kBFloat16).device(device()));
  if (comes_again) {
    check_place("topk_idx", topk_idx);
    if (topk_idx.numel() != use.tokens * top_k_ ||
        (topk_idx.scalar_type() != at::kLong && topk_idx.scalar_type() != at::kInt)) {
      throw py::value_error("topk_idx is not that of the dispatch");
    }
    dispatch_again(owner, use, topk_idx, is_async);
  }
  const void* own_rows = lane.view.combine_input;
  const auto call_of = [=](bool sends, bool receives) -> LibraryCall {
    // A hook has no use for rows that were sent.
    const auto given = sends ? x : std::nullopt;
    return [=](mep_ep_handle_t handle, mep_stream_t stream) {
      const void* const y = given.has_value() ? given->data_ptr() : own_rows;
      if (!receives) return mep_combine_send(handle, y, nullptr, stream);
      mep_combine_options_t options;
      mep_combine_options_defaults(&options);
      options.num_tokens = static_cast<uint32_t>(sums.size(0));
      if (weights.has_value()) options.weights = weights->data_ptr<float>();
      void* const to = sums.size(0) != 0 ? sums.data_ptr() : nullptr;
      if (to != nullptr) options.out_stride_bytes = row_stride(sums);
      if (waits.has_value()) options.wait_ns = waits->data_ptr<int64_t>();
      if (!sends) return mep_combine_receive(handle, to, &options, stream);
      return mep_combine(handle, y, to, &options, stream);
    };
  };
  run(owner, use.lane, call_of(true, !is_hooked), is_async).raise_if_any();
  lane.is_combined = true;
  if (!is_hooked) {
    if (is_async && is_on_gpu()) {
      streams_->use_on_own({x.value_or(at::Tensor()), weights.value_or(at::Tensor()), sums});
    }
    return py::make_tuple(sums, py::none());
  }
  return py::make_tuple(sums, hook_of([self = shared_from_this(), owner, lane = use.lane,
                                       call = call_of(false, true)] {
                          self->run(owner, lane, call, false).raise_if_any();
                        }));
}

void add_low_latency(py::module_& module) {
  using Lanes = LowLatencyLanes;
  py::class_<Hook>(module, "Hook").def("__call__", &Hook::call);
  py::class_<Lanes, std::shared_ptr<Lanes>> lanes(module, "LowLatencyLanes");
  py::class_<Lanes::Use>(lanes, "Use")
      .def("combine_buffer",
           [](const Lanes::Use& use, const py::object& owner) {
             return use.lanes->combine_buffer(owner, use);
           })
      .def("combine",
           [](const Lanes::Use& use, const py::object& owner, const std::optional<at::Tensor>& x,
              const at::Tensor& topk_idx, const std::optional<at::Tensor>& weights,
              const std::optional<at::Tensor>& out, const std::optional<at::Tensor>& waits,
              bool is_hooked, bool is_async) {
             return use.lanes->combine(owner, use, x, topk_idx, weights, out, waits, is_hooked,
                                       is_async);
           });
  lanes
      .def(py::init<py::object, std::vector<py::object>, std::shared_ptr<BufferStreams>, bool,
                    bool>(),
           py::arg("ep"), py::arg("handles"), py::arg("streams"), py::arg("has_power_scales"),
           py::arg("tells_failures"))
      .def_property_readonly("ep", &Lanes::ep)
      .def("dispatch", &Lanes::dispatch);
}

}  // namespace mep_torch
