#include "core/cuda/cuda_backend.hpp"

#include "core/coll/check.hpp"
#include "core/cuda/ep_call.hpp"
#include "core/cuda/ep_geometry.hpp"
#include "core/cuda/gpu_buffers.hpp"

namespace mep {

mep_result_t CudaBackend::make_ep_buffers(const EpShape& shape, const EpDeviceOptions& options,
                                          std::unique_ptr<EpBuffers>* out) {
  MEP_TRY(check_ep_shape(comm_, shape));
  *out = std::make_unique<GpuBuffers>(comm_, *this, shape, options);
  return MEP_SUCCESS;
}

mep_result_t CudaBackend::estimate_ep_buffers(const EpShape& shape, const EpDeviceOptions& options,
                                              mep_ep_size_t* out) const {
  return estimate_gpu_buffers(comm_, *this, shape, options, out);
}

mep_result_t CudaBackend::count_layout(const device::DispatchLayout& layout, void* stream) {
  MEP_TRY(check_stream(stream));
  return enqueue_layout(device(), layout, stream);
}

mep_result_t CudaBackend::open_records() {
  MEP_TRY(PinnedMemory::create(StreamRecords::bytes(comm_.size()), &record_memory_));
  records().open(static_cast<std::byte*>(record_memory_->data()), comm_.size());
  return MEP_SUCCESS;
}

mep_result_t CudaBackend::lend_record(void* stream, StreamRecord** out) {
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  MEP_TRY(check_call(stream));
  bool capturing = false;
  MEP_TRY(is_capturing(stream, &capturing));
  if (capturing) {
    return fail(MEP_ERR_UNSUPPORTED,
                "the stream is captured in a graph, and a request ends once: capture the blocking "
                "form, which enqueues only");
  }
  MEP_TRY(start_watcher());
  *out = records().lend();
  if (*out != nullptr) return MEP_SUCCESS;
  return fail(MEP_ERR_NO_MEMORY,
              "%zu requests of comm %s are not finished; finish some of them with "
              "mep_request_wait first",
              StreamRecords::kMost, comm_.name().c_str());
}

mep_result_t CudaBackend::check_call(const void* stream) const {
  MEP_TRY(comm_.identity().check_world());
  MEP_TRY(check_stream(stream));
  return check_stream_device(device(), stream);
}

// A wrong pointer in a kernel would end all work of the process on the GPU.
mep_result_t CudaBackend::check_collective(Collective kind, const CollectiveArgs& args,
                                           const void* stream) const {
  const CollectiveType& type = collective_type(kind);
  MEP_TRY(check_call(stream));
  MEP_TRY(type.check(comm_.collectives(), args));
  if (args.count == 0 || type.has_counts) return MEP_SUCCESS;
  const auto root = static_cast<uint32_t>(args.root);
  if (type.gives(comm_.rank(), root)) MEP_TRY(check_pointer(device(), args.send, "sendbuf"));
  if (!type.gets(comm_.rank(), root)) return MEP_SUCCESS;
  return check_pointer(device(), args.receive, "recvbuf");
}

}  // namespace mep
