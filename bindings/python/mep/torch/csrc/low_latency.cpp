#include "low_latency.hpp"

#include <array>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/DynamicTypes.h>

namespace mep_torch {
namespace {

constexpr int64_t kGroup = 128;       // values that share a scale
constexpr int64_t kColumnBytes = 16;  // on GPUs a column of scales is a multiple of it

[[noreturn]] void raise(PyObject* type, const std::string& text) {
  py::set_error(type, text.c_str());
  throw py::error_already_set();
}

std::string text_of(const py::handle& object) {
  return py::str(object);
}

std::string name_of(at::ScalarType type) {
  return text_of(reinterpret_cast<PyObject*>(torch::getTHPDtype(type)));
}

std::string shape_of(const at::Tensor& tensor) {
  return text_of(py::tuple(py::cast(tensor.sizes().vec())));
}

// Without the "torch." of its name.
std::string kind_of(at::ScalarType type) {
  return name_of(type).substr(6);
}

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

// A function that receives when it is called first.
py::object hook_of(std::function<void()> receive) {
  return py::cpp_function([receive = std::move(receive)]() mutable {
    if (!receive) return;
    receive();
    receive = nullptr;
  });
}

int64_t number_of(const py::object& object, const char* name) {
  return object.attr(name).cast<int64_t>();
}

// The address of an object of mep. One that is closed raises.
template <class Address>
Address address_of(const py::object& object) {
  return reinterpret_cast<Address>(object.attr("_address").cast<uintptr_t>());
}

}  // namespace

// --- Streams ---------------------------------------------------------------------------------------------------

c10::Stream BufferStreams::begin(bool on_own) {
  const c10::Stream current = this->current();
  const c10::Stream stream = on_own ? own_ : current;
  if (stream != current) wait_for(current, stream);
  order_.follow(stream);
  return stream;
}

void BufferStreams::use_on_own(std::initializer_list<at::Tensor> tensors) const {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor.record_stream(own_);
  }
}

void BufferStreams::synchronize() const {
  guard_of(device()).synchronizeStream(own_);
  order_.synchronize();
}

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
  mep_dispatch_send_t send;
  mep_dispatch_send_defaults(&send);
  if (sends) {
    send.num_tokens = static_cast<uint32_t>(x.size(0));
    send.topk_idx_type = topk_idx.scalar_type() == at::kInt ? MEP_INT32 : MEP_INT64;
    send.x = x.data_ptr();
    send.x_stride_bytes = row_stride(x);
    send.topk_idx = topk_idx.data_ptr();
  }
  mep_dispatch_receive_t receive;
  mep_dispatch_receive_defaults(&receive);
  receive.recv_count = count.data_ptr<int32_t>();
  receive.layout_range = ranges.data_ptr<int64_t>();
  if (!count.is_cuda()) {
    receive.src_info = info.data_ptr<int32_t>();
    if (statistics.has_value()) {
      receive.statistics = statistics->data_ptr();
      receive.statistics_type = statistics->scalar_type() == at::kInt ? MEP_INT32 : MEP_INT64;
    }
    if (waits.has_value()) receive.wait_ns = waits->data_ptr<int64_t>();
  }
  return mep_dispatch(handle, sends ? &send : nullptr, receives ? &receive : nullptr, stream);
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
    : ep_(std::move(ep)),
      streams_(std::move(streams)),
      has_power_scales_(has_power_scales),
      tells_failures_(tells_failures),
      calls_(ep_.attr("_comm").attr("_calls")),
      blocking_(py::module_::import("mep._call").attr("blocking")),
      ranks_(number_of(ep_.attr("_comm"), "size")),
      experts_(number_of(ep_, "experts_per_rank")),
      max_tokens_(number_of(ep_, "max_tokens_per_rank")),
      hidden_(number_of(ep_, "hidden")),
      top_k_(number_of(ep_, "top_k")) {
  const auto address = address_of<mep_ep_t>(ep_);
  for (py::object& handle : handles) {
    mep_ep_view_t view;
    mep_ep_view_defaults(&view);
    py::module_::import("mep._call")
        .attr("check")(mep_ep_buffer_view(address, static_cast<uint32_t>(lanes_.size()), &view));
    lanes_.push_back({std::move(handle), view});
  }
}

// --- Memory ----------------------------------------------------------------------------------------------------

// Memory of the library, which keeps the owner.
at::Tensor LowLatencyLanes::memory(const py::object& owner, const void* address,
                                   at::IntArrayRef sizes, at::IntArrayRef strides,
                                   at::ScalarType type) const {
  const auto let_go = [](void* kept) {
    const py::gil_scoped_acquire with_gil;
    Py_DECREF(static_cast<PyObject*>(kept));
  };
  return at::for_blob(const_cast<void*>(address), sizes)
      .strides(strides)
      .context(py::object(owner).release().ptr(), let_go)
      .options(at::TensorOptions(type).device(device()))
      .target_device(device())
      .make_tensor();
}

at::Tensor LowLatencyLanes::outputs(at::IntArrayRef sizes, at::ScalarType type) const {
  const auto options = at::TensorOptions(type).device(device());
  return is_on_gpu() ? at::empty(sizes, options) : at::zeros(sizes, options);
}

at::Tensor LowLatencyLanes::combine_buffer(const py::object& owner, const Use& use) const {
  check_use(use);
  (void)address_of<mep_ep_handle_t>(lanes_[use.lane].handle);
  return memory(owner, lanes_[use.lane].view.combine_input, {experts_, rows(), hidden_},
                {rows() * hidden_, hidden_, 1}, at::kBFloat16);
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
  dispatch->library_scales =
      memory(owner, lanes_[next_].view.recv_scales, {experts_, rows(), groups}, strides, type);
  dispatch->scales = is_on_gpu() && !has_power_scales_
                         ? dispatch->library_scales
                         : outputs({experts_, packed ? groups / 4 : groups, rows()},
                                   packed ? at::kInt : at::kFloat)
                               .transpose(1, 2);
}

// --- Checks ----------------------------------------------------------------------------------------------------

void LowLatencyLanes::check_place(const char* name, const at::Tensor& tensor) const {
  if (tensor.device() == device()) return;
  const std::string where = std::string(name) + " is on " + tensor.device().str();
  if (is_on_gpu()) {
    throw py::value_error(where + "; this Buffer's operations run on " + device().str());
  }
  raise(PyExc_NotImplementedError, where + "; tensors of GPUs are not served yet");
}

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
    throw py::value_error(std::string(name) + " has shape " + shape_of(tensor) +
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
                        " with strides " + text_of(py::tuple(py::cast(counters->strides().vec()))) +
                        "; it must be dense, of " + wanted);
}

void LowLatencyLanes::check_waits(const char* name, const std::optional<at::Tensor>& waits) const {
  check_counters(name, waits, {at::kLong});
  if (waits.has_value() && (waits->dim() != 1 || waits->numel() != ranks_)) {
    throw py::value_error(std::string(name) + " has shape " + shape_of(*waits) + ", it must be [" +
                          std::to_string(ranks_) + "]");
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

void LowLatencyLanes::check_failures() const {
  if (!tells_failures_ || !is_on_gpu()) return;
  const auto comm = address_of<mep_comm_t>(ep_.attr("_comm"));
  const mep_result_t result = mep_comm_async_result(comm);
  if (result < 0) py::module_::import("mep._call").attr("check")(result);
}

// --- Calls -----------------------------------------------------------------------------------------------------

mep_result_t LowLatencyLanes::call_once(size_t lane, const LibraryCall& call, bool on_own,
                                        std::string* text) {
  const auto handle = address_of<mep_ep_handle_t>(lanes_[lane].handle);
  struct End {
    mep_result_t result = MEP_SUCCESS;
    std::string text;
  };
  const auto end = std::make_shared<End>();
  const auto make = [end, call, handle](mep_stream_t stream) {
    const py::gil_scoped_release without_gil;
    end->result = call(handle, stream);
    if (end->result < 0) end->text = mep_last_error();
  };
  if (is_on_gpu()) {
    const c10::DeviceGuard guard(device());
    const c10::Stream stream = streams_->begin(on_own);
    make(stream.native_handle());
    // The library refuses the default stream where ranks of a process share the GPU.
    if (end->result == MEP_ERR_INVALID_ARGUMENT && stream.native_handle() == nullptr) {
      const c10::Stream own = streams_->begin(true);
      make(own.native_handle());
      wait_for(own, stream);
    }
  } else {
    // On the main thread a helper makes the call, so that Ctrl-C is answered.
    blocking_(py::cpp_function([make] {
                make(nullptr);
                return 0;
              }),
              py::arg("calls") = calls_);
  }
  *text = std::move(end->text);
  return end->result;
}

LowLatencyLanes::Failure LowLatencyLanes::run(const py::object& owner, size_t lane,
                                              const LibraryCall& call, bool on_own) {
  for (int attempt = 0;; ++attempt) {
    std::string text;
    const mep_result_t result = call_once(lane, call, on_own, &text);
    if (result >= 0) return {};
    const py::object told = owner.attr("failed")(ep_, lane, result, text, attempt);
    if (told.is_none()) continue;
    const auto [exception, has_begun] = told.cast<std::pair<py::object, bool>>();
    return {exception, has_begun};
  }
}

void LowLatencyLanes::Failure::raise_if_any() const {
  if (exception.is_none()) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw py::error_already_set();
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
    throw py::value_error("cumulative_local_expert_recv_stats has shape " + shape_of(*statistics) +
                          ", it must be [" + std::to_string(experts_) + "]");
  }
  const mep_ep_view_t& view = lanes_[next_].view;
  auto made = std::make_shared<Dispatch>();
  made->x = x;
  made->topk_idx = topk_idx;
  made->statistics = statistics;
  made->waits = waits;
  made->rows =
      memory(owner, view.recv_x, {experts_, rows(), hidden_}, {rows() * hidden_, hidden_, 1},
             view.recv_scales == nullptr ? at::kBFloat16 : at::kFloat8_e4m3fn);
  made->count = outputs({experts_}, at::kInt);
  made->ranges = outputs({experts_, ranks_}, at::kLong);
  made->info = is_on_gpu() ? memory(owner, view.src_info, {experts_, rows()}, {rows(), 1}, at::kInt)
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
                                   const std::optional<at::Tensor>& x, const at::Tensor& topk_idx,
                                   const std::optional<at::Tensor>& weights,
                                   const std::optional<at::Tensor>& out,
                                   const std::optional<at::Tensor>& waits, bool is_hooked,
                                   bool is_async) {
  check_use(use);
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
  const void* own_rows = lanes_[use.lane].view.combine_input;
  const auto call_of = [=](bool sends, bool receives) -> LibraryCall {
    // A hook has no use for rows that were sent.
    const auto given = sends ? x : std::nullopt;
    return [=](mep_ep_handle_t handle, mep_stream_t stream) {
      mep_combine_send_t send;
      mep_combine_send_defaults(&send);
      send.y = given.has_value() ? given->data_ptr() : own_rows;
      mep_combine_receive_t receive;
      mep_combine_receive_defaults(&receive);
      receive.num_tokens = static_cast<uint32_t>(sums.size(0));
      if (weights.has_value()) receive.weights = weights->data_ptr<float>();
      if (sums.size(0) != 0) {
        receive.out = sums.data_ptr();
        receive.out_stride_bytes = row_stride(sums);
      }
      if (waits.has_value()) receive.wait_ns = waits->data_ptr<int64_t>();
      return mep_combine(handle, sends ? &send : nullptr, receives ? &receive : nullptr, stream);
    };
  };
  run(owner, use.lane, call_of(true, !is_hooked), is_async).raise_if_any();
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
  py::class_<BufferStreams, std::shared_ptr<BufferStreams>>(module, "BufferStreams")
      .def(py::init([](int64_t id, int64_t index, int64_t type) {
             return std::make_shared<BufferStreams>(c10::Stream::unpack3(
                 id, static_cast<c10::DeviceIndex>(index), static_cast<c10::DeviceType>(type)));
           }),
           py::arg("stream_id"), py::arg("device_index"), py::arg("device_type"))
      .def("follow_on_own", &BufferStreams::follow_on_own)
      .def("synchronize", &BufferStreams::synchronize, py::call_guard<py::gil_scoped_release>());
  using Lanes = LowLatencyLanes;
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
      .def("start_again", &Lanes::start_again)
      .def("dispatch", &Lanes::dispatch);
}

}  // namespace mep_torch
