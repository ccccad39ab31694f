#include "core/cuda/staged_comm.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/status.hpp"
#include "core/cuda/gpu_doorbells.hpp"
#include "core/staged/reach.hpp"
#include "core/staged/staged_collectives.hpp"

namespace mep {
namespace {

using device::StageCopies;
using device::StageRequest;

constexpr size_t kStagingBytes = size_t{16} << 20;
constexpr uint64_t kAnswerMs = 10'000;  // for the answer of a host that has ended an operation

uint64_t address(const std::byte* memory) {
  return std::bit_cast<uint64_t>(memory);
}

}  // namespace

mep_result_t StagedChannel::open(int32_t device) {
  MEP_TRY(DeviceMemory::create(device, sizeof(device::StageState), &state_memory));
  return PinnedMemory::create(sizeof(device::StageMailbox), &mailbox_memory);
}

StagedComm::StagedComm(Comm& comm, const GpuPlace& place, std::vector<uint64_t> groups,
                       GpuQueues queues)
    : CudaBackend(backends::kStaged, comm, place),
      device_(place.device),
      name_(comm.name() + "#device"),
      groups_(std::move(groups)),
      mapped_(group_of(groups_, comm.rank())),
      queues_(queues) {}

StagedComm::~StagedComm() {
  stop_watcher();
  {
    const KeepErrorText text;
    (void)nic_.finish();
  }
  if (is_client_) comm_.remove_client(this);
  server_.close();
  if (stream_comm_ != nullptr) stream_comm_->close_after_changes();
}

mep_result_t StagedComm::open() {
  MEP_TRY(open_memory());
  const CommMembers members = comm_.members_of(comm_.slots());
  return stream_comm_->begin(1, 1, &members);
}

mep_result_t StagedComm::join(const GpuDescription& about, const Deadline& deadline) {
  MEP_TRY(open_memory());
  PosterPlace place;
  MEP_TRY(find_posters(&place));
  MEP_TRY(nic_.join(queues_, about.uses_adapter != 0, comm_.rank(), std::move(place)));
  MEP_TRY(stream_comm_->begin(about.stream_epoch, 1));
  MEP_TRY(open_server(deadline));
  start();
  return MEP_SUCCESS;
}

void StagedComm::start() {
  comm_.add_client(this);
  is_client_ = true;
}

mep_result_t StagedComm::open_memory() {
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
  MEP_TRY(PinnedMemory::create(kStagingBytes, &staging_));
  MEP_TRY(open_records());
  // Its id follows from the comm's, which does not change when that is renamed.
  stream_comm_ = std::make_unique<Comm>(comm_.world_ptr(), comm_.name() + "#stream", comm_.slots(),
                                        (comm_.id() ^ 0x73747265616d0000u) | 1);
  stream_comm_->belong_to_another();
  return MEP_SUCCESS;
}

mep_result_t StagedComm::connect(const Deadline& deadline) {
  MEP_TRY(open_server(deadline));
  PosterPlace place;
  MEP_TRY(find_posters(&place));
  return nic_.begin(*stream_comm_, queues_, mapped_, std::move(place));
}

mep_result_t StagedComm::find_posters(PosterPlace* place) const {
  if (queues_ == GpuQueues::kHost) return MEP_SUCCESS;
  DeviceFacts facts;
  MEP_TRY(describe_device(device_, &facts));
  place->pci = facts.pci;
  place->doorbells = std::make_unique<GpuDoorbells>(device_);
  return MEP_SUCCESS;
}

mep_result_t StagedComm::open_server(const Deadline& deadline) {
  MEP_TRY(stream_comm_->finish(deadline));
  const auto tell = [this](mep_result_t told) { server_.note_failure(told); };
  auto* const staging = static_cast<std::byte*>(staging_->data());
  messages_ = std::make_unique<StagedMessages>(*stream_comm_, staging, kStagingBytes, tell);
  counted_ = std::make_unique<StagedCounted>(*stream_comm_, staging, kStagingBytes, tell);
  MEP_TRY(server_.open(channel_.mailbox(), "comm " + comm_.name(),
                       [this](const StageRequest& request, device::StageAnswer* answer) {
                         return serve(request, answer);
                       }));
  set_timeout_ms(comm_.timeout_ms());
  return MEP_SUCCESS;
}

mep_result_t StagedComm::serve(const StageRequest& request, device::StageAnswer* answer) {
  switch (request.step) {
    case device::StageStep::kMessagesBegin:
    case device::StageStep::kMessagesGoOn:
      return messages_->serve(request.step, channel_.mailbox(), answer);
    case device::StageStep::kCountedBegins:
    case device::StageStep::kCountedGoesOn:
      return counted_->serve(request, channel_.mailbox(), answer);
    case device::StageStep::kCollective:
      break;
  }
  return serve_staged_collective(*stream_comm_, request, answer,
                                 [this](mep_result_t told) { server_.note_failure(told); });
}

// A barrier: every rank's kernels and thread work, and nobody drops a window before all have it.
mep_result_t StagedComm::begin_proof() {
  MEP_TRY(nic_.finish());
  return run(Collective::k_barrier, {}, stream_->get());
}

mep_result_t StagedComm::end_proof() {
  const DeviceScope scope(device_);
  MEP_TRY(scope.check());
  MEP_TRY(stream_->synchronize());
  MEP_TRY(take_failure());
  start();
  return MEP_SUCCESS;
}

void StagedComm::set_timeout_ms(uint32_t ms) {
  stream_comm_->set_timeout_ms(ms);
  // An operation of the host may meet view changes before it begins, while it runs, and at its end.
  server_.set_bound_ms(3 * (ms + kDecisionGraceMs) + kAnswerMs);
}

void StagedComm::describe_object(std::vector<std::byte>* out) const {
  GpuDescription about;
  about.reach = static_cast<uint64_t>(reach());
  about.most_blocks = place().most_blocks;
  about.uses_adapter = nic_.uses_adapter() ? 1 : 0;
  about.stream_epoch = stream_comm_->latest_view()->epoch;
  about.encode(groups_, out);
}

void StagedComm::revoke() {
  comm_.world().request_revoke(stream_comm_->id());
}

// --- Operations -----------------------------------------------------------------------------------

// The elements from `begin` on. Outputs are copied after success only.
mep_result_t StagedComm::enqueue_part(Collective kind, const CollectiveArgs& args,
                                      const StagePlan& plan, size_t begin, size_t count,
                                      void* stream) {
  const size_t width = mep_dtype_size(args.dtype);
  const size_t bytes = count * width;
  auto* staging = static_cast<std::byte*>(staging_->data());
  std::byte* const input = staging + plan.send_row * bytes;
  std::byte* const output = staging + plan.output_at(kStagingBytes, bytes);
  StageCopies inputs{};
  StageCopies outputs{};
  StageRequest request{};
  request.continues = begin != 0 ? 1 : 0;
  request.collective.kind = kind;
  if (facts_of(kind).has_data()) {
    request.collective = {address(input), address(output), count, args.dtype,
                          args.op,        args.root,       kind};
  }
  const std::byte* send = nullptr;  // where it is not read
  if (plan.gives) {
    send = static_cast<const std::byte*>(args.send) + begin * width;
    inputs.add(send, input, plan.send_rows, bytes, args.count * width, bytes);
  }
  std::byte* const receive = static_cast<std::byte*>(args.receive) + begin * width;
  if (plan.gets && plan.receive_rows > 1) {
    outputs.add(output, receive, plan.receive_rows, bytes, bytes, args.count * width, true);
  } else if (plan.gets && (output != input || send != receive)) {
    outputs.add(output, receive, 1, bytes, 0, 0);
  }
  // The last part tells how all of it ended.
  mep_op_status_t* const record = begin + count == args.count ? args.status : nullptr;
  return check_cuda(device::stage_collective(channel_.kernels(), request, inputs, outputs,
                                             place_of(record), stream),
                    name_of(kind));
}

mep_result_t StagedComm::enqueue_counted(Collective kind, const CollectiveArgs& args,
                                         void* stream) {
  const OperationFacts& facts = facts_of(kind);
  CountedBlocks laid;
  MEP_TRY(lay_out_counted(kind, args, &laid));
  std::vector<device::StageItem> list;
  const auto add = [&](const void* buffer, const std::vector<Block>& blocks, bool for_each,
                       uint8_t is_send) {
    for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
      const Block& block = blocks[rank];
      if (block.bytes == 0) continue;
      list.push_back({std::bit_cast<uint64_t>(buffer) + block.offset, block.bytes, 0,
                      static_cast<uint16_t>(rank), is_send, static_cast<uint8_t>(args.dtype)});
      if (!for_each) return;
    }
  };
  add(args.send, laid.given, facts.gives_each_a_block(), 1);
  add(args.receive, laid.gotten, facts.gets_a_block_of_each(), 0);
  StageRequest request{};
  request.step = device::StageStep::kCountedBegins;
  request.collective = {0, 0, 0, args.dtype, args.op, args.root, kind};
  return check_cuda(
      device::stage_list(channel_.kernels(), request, list, place_of(args.status), stream),
      name_of(kind));
}

template <typename Enqueue>
mep_result_t StagedComm::in_turn(void* stream, Enqueue&& enqueue) {
  bool capturing = false;
  MEP_TRY(is_capturing(stream, &capturing));
  if (capturing) return enqueue();
  MEP_TRY(last_.hold(stream));
  MEP_TRY(enqueue());
  return last_.record(stream);
}

mep_result_t StagedComm::carry_out(Collective kind, const CollectiveArgs& args, void* stream) {
  const DeviceScope scope(device_);
  MEP_TRY(scope.check());
  MEP_TRY(check_collective(kind, args, stream));
  return in_turn(stream, [&] { return enqueue_collective(kind, args, stream); });
}

mep_result_t StagedComm::enqueue_collective(Collective kind, const CollectiveArgs& args,
                                            void* stream) {
  if (facts_of(kind).has_counts) return enqueue_counted(kind, args, stream);
  StagePlan plan;
  MEP_TRY(plan_stage(kind, comm_.rank(), comm_.size(), static_cast<uint32_t>(args.root), &plan));
  if (args.count == 0) return enqueue_part(kind, args, plan, 0, 0, stream);
  const size_t most = plan.most_block_bytes(kStagingBytes) / mep_dtype_size(args.dtype);
  for (size_t begin = 0; begin < args.count; begin += most) {
    MEP_TRY(enqueue_part(kind, args, plan, begin, std::min(most, args.count - begin), stream));
  }
  return MEP_SUCCESS;
}

mep_result_t StagedComm::enqueue_messages(std::span<const StreamMessage> messages, void* stream) {
  const DeviceScope scope(device_);
  MEP_TRY(scope.check());
  MEP_TRY(check_call(stream));
  std::vector<StreamMessage> kept;
  mep_result_t lost = MEP_SUCCESS;
  MEP_TRY(check_group(messages, device::kStageMessages, stream, &kept, &lost));
  if (kept.empty()) return lost;
  std::vector<device::StageItem> list;
  for (const StreamMessage& each : kept) {
    const void* const memory = each.is_send ? each.from : each.to;
    list.push_back({std::bit_cast<uint64_t>(memory), each.bytes, each.tag,
                    static_cast<uint16_t>(each.peer), static_cast<uint8_t>(each.is_send ? 1 : 0),
                    static_cast<uint8_t>(each.dtype)});
  }
  StageRequest request{};
  request.step = device::StageStep::kMessagesBegin;
  MEP_TRY(in_turn(stream, [&] {
    return check_cuda(device::stage_list(channel_.kernels(), request, list, {}, stream),
                      "messages");
  }));
  return lost;
}

}  // namespace mep
