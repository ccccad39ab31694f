// Shared by the operations of mep.deep_ep, on tensors of the CPU, where a call returns when it has ended, or of one
// GPU, where calls are enqueued. All members are called with the GIL held, and release it while the library works.
#pragma once

#include <mep.h>

#include <functional>
#include <memory>
#include <string>

#include <torch/extension.h>

#include "streams.hpp"

namespace mep_torch {

[[noreturn]] void raise(PyObject* type, const std::string& text);
std::string text_of(const py::handle& object);
// "torch.int64"
std::string name_of(at::ScalarType type);
// Without the "torch." of its name.
std::string kind_of(at::ScalarType type);
// "(3, 8)"
std::string shape_of(at::IntArrayRef sizes);
// An attribute of an object of mep.
int64_t number_of(const py::object& object, const char* name);
// The address of an object of mep. One that is closed raises.
template <class Address>
Address address_of(const py::object& object) {
  return reinterpret_cast<Address>(object.attr("_address").cast<uintptr_t>());
}
mep_ep_view_t view_of(const py::object& ep, uint32_t buffer);

// The streams of a Buffer on a GPU, whose operations run in the order in which they were called.
class BufferStreams {
 public:
  // `own`: the stream of operations that the current one does not wait for.
  explicit BufferStreams(c10::Stream own) : own_(own) {}

  c10::Device device() const { return own_.device(); }
  c10::Stream own() const { return own_; }
  c10::Stream current() const { return guard_of(device()).getStream(device()); }
  // The stream of the next operation: the current one, or the own one behind it.
  c10::Stream begin(bool on_own);
  // The next operation is on the stream, which waits for what it must besides already.
  void follow(const c10::Stream& stream) { order_.follow(stream); }
  // The allocator gives none of this memory away before the own stream has done with it. Undefined tensors are skipped.
  void use_on_own(at::ArrayRef<at::Tensor> tensors) const;
  // Blocks the host until all operations have run.
  void synchronize() const;

 private:
  const c10::Stream own_;
  StreamOrder order_;
};

// An error of the library; without an exception none.
struct Failure {
  py::object exception = py::none();
  bool has_begun = false;  // the call has changed something

  void raise_if_any() const;
};

// A call of the library, which keeps the memory that it uses. stream: null on hosts.
using StreamCall = std::function<mep_result_t(mep_stream_t stream)>;

// How a call of the library ended. text: of an error.
struct CallEnd {
  mep_result_t result = MEP_SUCCESS;
  std::string text;
};

// Raises a mep.Error.
void raise_if_failed(const CallEnd& end);

// The calls on one communicator.
class BufferCalls {
 protected:
  // comm: a mep.Comm. streams: null on hosts. tells_failures: calls raise what an operation before has met on the GPU.
  BufferCalls(py::object comm, std::shared_ptr<BufferStreams> streams, bool tells_failures);

  bool tells_failures() const { return tells_failures_; }
  bool is_on_gpu() const { return streams_ != nullptr; }
  at::Device device() const { return is_on_gpu() ? streams_->device() : at::Device(at::kCPU); }
  // Memory of the library, which keeps the owner.
  at::Tensor memory(const py::object& owner, const void* address, at::IntArrayRef sizes,
                    at::IntArrayRef strides, at::ScalarType type) const;
  at::Tensor outputs(at::IntArrayRef sizes, at::ScalarType type) const;
  void check_place(const char* name, const at::Tensor& tensor) const;
  void check_failures() const;
  // Makes a call on the calling thread.
  static CallEnd call_here(const std::function<mep_result_t()>& call);
  // Makes it on a stream of the GPU, or on the own one, between what that has and gets.
  CallEnd call_on(const c10::Stream& stream, const StreamCall& call) const;
  // On the calling thread, and Ctrl-C is answered on the main thread: a helper makes the call there.
  CallEnd call_blocking(std::function<mep_result_t()> call) const;
  // Makes the call. owner.failed() says what follows from
  // an error.
  static Failure run(const py::object& owner, const py::object& ep, size_t buffer,
                     const std::function<CallEnd()>& call);

  const py::object comm_;
  const std::shared_ptr<BufferStreams> streams_;
  const int64_t ranks_;

 private:
  const bool tells_failures_;
  const py::object calls_;  // of the communicator, for mep._call.blocking()
  const py::object blocking_;
};

// Adds the streams to the binding.
void add_buffer_streams(py::module_& module);

}  // namespace mep_torch
