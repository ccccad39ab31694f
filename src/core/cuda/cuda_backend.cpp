#include "core/cuda/cuda_backend.hpp"

#include <cstring>

#include "base/status.hpp"
#include "core/coll/check.hpp"
#include "core/coll/counted_blocks.hpp"
#include "core/comm/comm.hpp"
#include "kernels/cuda/device/losses.hpp"
#include "transport/cuda/gpu_allocations.hpp"

namespace mep {
namespace {

device::LossWords words_of(const Losses& losses) {
  return {losses.ranks(), losses.gone(), losses.shown(), losses.forgotten()};
}

}  // namespace

void GpuDescription::encode(std::span<const uint64_t> groups, std::vector<std::byte>* out) const {
  const std::span<const std::byte> first = std::as_bytes(std::span(this, 1));
  const std::span<const std::byte> rest = std::as_bytes(groups);
  out->assign(first.begin(), first.end());
  out->insert(out->end(), rest.begin(), rest.end());
}

bool GpuDescription::decode(std::span<const std::byte> bytes, std::vector<uint64_t>* groups) {
  if (bytes.size() < sizeof *this || bytes.size() % sizeof(uint64_t) != 0) return false;
  std::memcpy(this, bytes.data(), sizeof *this);
  groups->resize((bytes.size() - sizeof *this) / sizeof(uint64_t));
  if (!groups->empty()) {
    std::memcpy(groups->data(), bytes.data() + sizeof *this, groups->size() * sizeof(uint64_t));
  }
  const bool queues = reach == static_cast<uint64_t>(GpuReach::kQueues);
  return queues || (window_bytes != 0 && reach < static_cast<uint64_t>(GpuReach::kQueues));
}

CudaBackend::~CudaBackend() {
  comm_.keep_losses_in(nullptr);
}

mep_result_t CudaBackend::open_records() {
  const size_t records_bytes = StreamRecords::bytes(comm_.size());  // a multiple of 8
  MEP_TRY(PinnedMemory::create(records_bytes + Losses::bytes(comm_.size()), &record_memory_));
  auto* const memory = static_cast<std::byte*>(record_memory_->data());
  records().open(memory, comm_.size());
  comm_.keep_losses_in(reinterpret_cast<uint64_t*>(memory + records_bytes));
  return MEP_SUCCESS;
}

mep_result_t CudaBackend::allocate(size_t bytes, void** memory) {
  const uint64_t rank = comm_.world().identity().incarnation;
  return GpuAllocations::instance().allocate(rank, device(), bytes, memory);
}

mep_result_t CudaBackend::free(void* memory, std::shared_ptr<const void>* kept) {
  const uint64_t rank = comm_.world().identity().incarnation;
  std::shared_ptr<const void> freed = GpuAllocations::instance().take(rank, memory);
  if (freed == nullptr) return GpuBackend::free(memory, kept);
  if (kept != nullptr) *kept = std::move(freed);
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

mep_result_t CudaBackend::show_losses(int32_t* lost, void* stream) {
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  MEP_TRY(check_call(stream));
  MEP_TRY(check_pointer(device(), lost, "lost"));
  return check_cuda(device::launch_show_losses(words_of(comm_.losses()), lost, stream),
                    "mep_comm_lost_ranks");
}

mep_result_t CudaBackend::forget_losses(void* stream) {
  const DeviceScope scope(device());
  MEP_TRY(scope.check());
  MEP_TRY(check_call(stream));
  return check_cuda(device::launch_forget_losses(words_of(comm_.losses()), stream),
                    "mep_comm_forget_lost");
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

device::OpStatusPlace CudaBackend::place_of(mep_op_status_t* status) const {
  const uint32_t ranks = comm_.size();
  return device::op_status_place(status, mep_op_status_size(static_cast<int32_t>(ranks)), ranks);
}

mep_result_t CudaBackend::lay_out_counted(Collective kind, const CollectiveArgs& args,
                                          CountedBlocks* laid) const {
  const OperationFacts& facts = facts_of(kind);
  lay_out_counted_blocks(kind, comm_.collectives(), args, laid);
  const auto root = static_cast<uint32_t>(args.root);
  const auto keep = [&](std::vector<Block>* blocks, const void* buffer, const char* name,
                        auto&& concerns) -> mep_result_t {
    const std::byte* last = nullptr;  // several blocks may have one place, which is looked at once
    for (uint32_t rank = 0; rank < comm_.size(); ++rank) {
      Block& block = (*blocks)[rank];
      if (!concerns(rank)) block = {};
      const std::byte* const at = static_cast<const std::byte*>(buffer) + block.offset;
      if (block.bytes == 0 || at == last) continue;
      MEP_TRY(check_pointer(device(), at, name));
      last = at;
    }
    return MEP_SUCCESS;
  };
  const bool gives = facts.gives(comm_.rank(), root);
  const bool gets = facts.gets(comm_.rank(), root);
  MEP_TRY(keep(&laid->given, args.send, "sendbuf",
               [&](uint32_t rank) { return gives && facts.gets(rank, root); }));
  return keep(&laid->gotten, args.receive, "recvbuf",
              [&](uint32_t rank) { return gets && facts.gives(rank, root); });
}

mep_result_t CudaBackend::check_group(std::span<const StreamMessage> messages, uint32_t most,
                                      void* stream, std::vector<StreamMessage>* kept,
                                      mep_result_t* lost) const {
  if (messages.size() > most) {
    return fail(MEP_ERR_UNSUPPORTED,
                "%zu messages in a group of comm %s; on a GPU it has at most %u", messages.size(),
                comm_.name().c_str(), most);
  }
  *lost = MEP_SUCCESS;
  const std::shared_ptr<const CommView> view = comm_.latest_view();
  for (const StreamMessage& each : messages) {
    const void* const memory = each.is_send ? each.from : each.to;
    if (each.bytes != 0) MEP_TRY(check_pointer(device(), memory, "the buffer"));
    // A message that has come whole from a rank that is gone can still be received.
    if (!each.is_send || view->is_live(each.peer)) {
      kept->push_back(each);
      continue;
    }
    *lost = fail(has_rank(view->left_bits, each.peer) ? MEP_ERR_PEER_LEFT : MEP_ERR_PEER_FAILED,
                 "rank %u is not in comm %s any more", each.peer, comm_.name().c_str());
  }
  if (*lost == MEP_SUCCESS) return MEP_SUCCESS;
  bool capturing = false;
  MEP_TRY(is_capturing(stream, &capturing));
  if (capturing) kept->clear();
  return MEP_SUCCESS;
}

}  // namespace mep
