#include "core/cuda/staged_comm.hpp"

#include <algorithm>
#include <bit>

#include "base/status.hpp"
#include "core/coll/check.hpp"
#include "core/staged/staged_collectives.hpp"

namespace mep {
namespace {

using device::StageCopies;
using device::StageKind;
using device::StageRequest;

constexpr size_t kFirstStagingBytes = size_t{1} << 20;
constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t address(const std::byte* memory) {
  return std::bit_cast<uint64_t>(memory);
}

}  // namespace

mep_result_t StagedChannel::open(int32_t device) {
  MEP_TRY(DeviceMemory::create(device, sizeof(device::StageState), &state_memory));
  return PinnedMemory::create(sizeof(device::StageMailbox), &mailbox_memory);
}

struct StagedComm::Staged {
  StageRequest request{};
  StageCopies inputs{};
  StageCopies outputs{};
};

StagedComm::StagedComm(Comm& comm, const GpuPlace& place)
    : DeviceSide(place), comm_(comm), device_(place.device) {}

StagedComm::~StagedComm() {
  server_.close();
  if (stream_comm_ != nullptr) stream_comm_->close_after_changes();
}

mep_result_t StagedComm::open() {
  if (comm_.size() > device::kMaxStageRanks) {
    return fail(MEP_ERR_UNSUPPORTED,
                "a communicator on GPUs that cannot map each other has at most %u ranks, this one "
                "has %u",
                device::kMaxStageRanks, comm_.size());
  }
  const DeviceScope scope(device_);
  MEP_TRY(scope.check());
  MEP_TRY(check_cuda(device::load_stage_kernels(), "loading the kernels of staged operations"));
  MEP_TRY(channel_.open(device_));
  stream_ = std::make_unique<DeviceStream>();
  MEP_TRY(stream_->open());
  std::byte* unused = nullptr;
  MEP_TRY(reserve(kFirstStagingBytes, &unused));
  // Its id follows from the comm's, which does not change when that is renamed.
  stream_comm_ = std::make_unique<Comm>(comm_.world_ptr(), comm_.name() + "#stream", comm_.slots(),
                                        (comm_.id() ^ 0x73747265616d0000u) | 1);
  return stream_comm_->begin(1, 1);
}

mep_result_t StagedComm::connect(const Deadline& deadline) {
  MEP_TRY(stream_comm_->finish(deadline));
  MEP_TRY(server_.open(channel_.mailbox(), "comm " + comm_.name(),
                       [this](const StageRequest& request, device::StageAnswer* answer) {
                         return serve_staged_collective(*stream_comm_, request, answer);
                       }));
  set_timeout_ms(comm_.timeout_ms());
  return MEP_SUCCESS;
}

// A barrier: every rank's kernels and thread work, and nobody drops a window before all have it.
mep_result_t StagedComm::begin_proof() {
  return enqueue(Collective::k_barrier, {}, stream_->get());
}

mep_result_t StagedComm::end_proof() {
  const DeviceScope scope(device_);
  MEP_TRY(scope.check());
  MEP_TRY(stream_->synchronize());
  return take_failure();
}

void StagedComm::set_timeout_ms(uint32_t ms) {
  stream_comm_->set_timeout_ms(ms);
  server_.set_timeout_ms(ms);
  set_parts_timeout_ms(ms);
}

void StagedComm::revoke() {
  comm_.world().request_revoke(stream_comm_->id());
}

mep_result_t StagedComm::offer_memory(uint64_t, size_t) {
  return fail(MEP_ERR_INTERNAL, "comm %s shares no device memory", comm_.name().c_str());
}

mep_result_t StagedComm::take_memory(uint64_t, const Deadline&, std::vector<std::byte*>*) {
  return fail(MEP_ERR_INTERNAL, "comm %s shares no device memory", comm_.name().c_str());
}

// --- Operations -----------------------------------------------------------------------------------

mep_result_t StagedComm::check_stream(const void* stream) const {
  if (stream != nullptr || place().ranks_on_device == 1) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "%u ranks share GPU %d: each needs a stream of its own, made with "
              "cudaStreamNonBlocking; the NULL stream would make them wait for each other",
              place().ranks_on_device, device_);
}

mep_result_t StagedComm::reserve(size_t bytes, std::byte** staging) {
  if (bytes > staging_bytes_) {
    const CaptureScope capture;
    const size_t wanted = std::max(std::bit_ceil(bytes), kFirstStagingBytes);
    std::shared_ptr<PinnedMemory> block;
    MEP_TRY(PinnedMemory::create(wanted, &block));
    staging_.push_back(std::move(block));
    staging_bytes_ = wanted;
  }
  *staging = static_cast<std::byte*>(staging_.back()->data());
  return MEP_SUCCESS;
}

// Where the operation lies in the staging, and what is copied. Outputs are copied after success only, so
// the input stays intact in place, too.
mep_result_t StagedComm::stage(Collective kind, const CollectiveArgs& args, Staged* out) {
  device::StageCollective& call = out->request.collective;
  call.count = args.count;
  call.dtype = args.dtype;
  call.op = args.op;
  call.root = args.root;
  const size_t bytes = args.count * mep_dtype_size(args.dtype);
  std::byte* staging = nullptr;
  switch (kind) {
    case Collective::k_barrier:
      out->request.kind = StageKind::kBarrier;
      out->request.collective = {};
      return MEP_SUCCESS;
    case Collective::k_broadcast: {
      out->request.kind = StageKind::kBroadcast;
      MEP_TRY(reserve(bytes, &staging));
      call.send = call.receive = address(staging);
      const bool is_root = args.root == static_cast<int32_t>(comm_.rank());
      if (is_root) out->inputs.add(args.send, staging, 1, bytes, 0, 0);
      if (is_root && args.send == args.receive) return MEP_SUCCESS;
      out->outputs.add(staging, args.receive, 1, bytes, 0, 0);
      return MEP_SUCCESS;
    }
    case Collective::k_allgather: {
      out->request.kind = StageKind::kAllgather;
      const uint32_t ranks = comm_.size();
      MEP_TRY(reserve(bytes * ranks, &staging));
      std::byte* own = staging + bytes * comm_.rank();
      call.send = address(own);
      call.receive = address(staging);
      out->inputs.add(args.send, own, 1, bytes, 0, 0);
      out->outputs.add(staging, args.receive, ranks, bytes, bytes, bytes, true);
      return MEP_SUCCESS;
    }
    case Collective::k_allreduce: {
      out->request.kind = StageKind::kAllreduce;
      MEP_TRY(reserve(2 * aligned(bytes), &staging));
      std::byte* result = staging + aligned(bytes);
      call.send = address(staging);
      call.receive = address(result);
      out->inputs.add(args.send, staging, 1, bytes, 0, 0);
      out->outputs.add(result, args.receive, 1, bytes, 0, 0);
      return MEP_SUCCESS;
    }
  }
  return fail(MEP_ERR_UNSUPPORTED, "%s on device memory is not built yet",
              collective_type(kind).name);
}

mep_result_t StagedComm::enqueue(Collective kind, const CollectiveArgs& args, void* stream) {
  const mep_result_t terminal = comm_.world().terminal_result();
  if (terminal != MEP_SUCCESS) {
    return fail(terminal, "the world of comm %s has ended for this rank", comm_.name().c_str());
  }
  MEP_TRY(check_stream(stream));
  MEP_TRY(collective_type(kind).check(comm_, args));
  const DeviceScope scope(device_);
  MEP_TRY(scope.check());
  // A wrong pointer in a kernel would end all work of the process on the GPU.
  const bool gives = kind != Collective::k_broadcast || args.root == static_cast<int>(comm_.rank());
  if (args.count != 0 && kind != Collective::k_barrier) {
    if (gives) MEP_TRY(check_pointer(device_, args.send, "sendbuf"));
    MEP_TRY(check_pointer(device_, args.receive, "recvbuf"));
  }
  Staged staged;
  MEP_TRY(stage(kind, args, &staged));
  return check_cuda(device::stage_collective(channel_.kernels(), staged.request, staged.inputs,
                                             staged.outputs, stream),
                    collective_type(kind).name);
}

}  // namespace mep
