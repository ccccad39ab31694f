#include "transport/gpu_queue/mlx5_queue.hpp"

#include <algorithm>
#include <bit>
#include <new>

#include "base/status.hpp"
#include "transport/gpu_queue/work_request.hpp"

namespace mep::gpu_queue::mlx5 {
namespace {

constexpr uint32_t kMigrated = 3;
constexpr uint32_t kDefaultTimestamps = 1;
constexpr uint32_t kNoReceiveQueue = 3;
constexpr uint32_t kAtomicsUpTo8Bytes = 3;
constexpr uint32_t kLogMaxMessage = 30;
constexpr uint32_t kNotReadyTimer = 12;  // 0.64 ms
constexpr uint32_t kHops = 255;
constexpr uint32_t kFirstUdpPort = 0xc000;  // of RoCE v2; above it ports differ by queue pair
constexpr uint32_t kUdpPorts = 0x4000;

mep_result_t query(Device& device, CapabilityKind kind, Mailbox* out) {
  Mailbox in(kShortBytes);
  in.set(kOpcode, static_cast<uint64_t>(Command::kQueryHcaCap));
  in.set(kOpMod, op_mod_of(kind));
  return device.query(in, out);
}
uint32_t capability(const Mailbox& answer, Field field) {
  return static_cast<uint32_t>(answer.get(within(kCapabilityAt, field)));
}

const char* name_of(Command command) {
  switch (command) {
    case Command::kQueryHcaCap:
      return "QUERY_HCA_CAP";
    case Command::kCreateCq:
      return "CREATE_CQ";
    case Command::kCreateQp:
      return "CREATE_QP";
    case Command::kReset2Init:
      return "RST2INIT_QP";
    case Command::kInit2Rtr:
      return "INIT2RTR_QP";
    case Command::kRtr2Rts:
      return "RTR2RTS_QP";
    case Command::kToError:
      return "2ERR_QP";
  }
  return "a command";
}

}  // namespace

mep_result_t check_answer(const Mailbox& in, const Mailbox& out) {
  const uint64_t status = out.get(kStatus);
  if (status == 0) return MEP_SUCCESS;
  return fail(MEP_ERR_SYSTEM, "the adapter refused %s: status 0x%02x, syndrome 0x%x",
              name_of(static_cast<Command>(in.get(kOpcode))), static_cast<unsigned>(status),
              static_cast<unsigned>(out.get(kSyndrome)));
}

mep_result_t read_capabilities(Device& device, Capabilities* out) {
  Mailbox answer(kCapabilityAnswerBytes);
  MEP_TRY(query(device, CapabilityKind::kGeneral, &answer));
  Capabilities found;
  found.log_max_entries = capability(answer, general::kLogMaxQueueEntries);
  found.log_max_completions = capability(answer, general::kLogMaxCompletionEntries);
  found.log_max_message = capability(answer, general::kLogMaxMessage);
  found.completion_version = capability(answer, general::kCompletionVersion);
  found.ignores_overrun = capability(answer, general::kIgnoresOverrun) != 0;
  found.is_ethernet = capability(answer, general::kPortType) == 1;
  found.has_roce = capability(answer, general::kRoce) != 0;
  if (capability(answer, general::kAtomic) != 0) {
    MEP_TRY(query(device, CapabilityKind::kAtomic, &answer));
    found.adds_words = (capability(answer, atomic::kOperations) & 2) != 0 &&
                       (capability(answer, atomic::kSizes) & 8) != 0;
  }
  *out = found;
  return MEP_SUCCESS;
}

std::string what_lacks(const Capabilities& capabilities, uint32_t entries) {
  if (!capabilities.ignores_overrun) {
    return "its completion queues cannot be overwritten (cq_oi is 0)";
  }
  if (capabilities.completion_version != 1) {
    return "its completions have version " + std::to_string(capabilities.completion_version) +
           ", which is not 1";
  }
  if (capabilities.log_max_completions == 0) return "it has no completion queues";
  if (capabilities.log_max_entries < 31 && entries >> capabilities.log_max_entries > 1) {
    return "its send queues have " + std::to_string(1u << capabilities.log_max_entries) +
           " blocks at most, " + std::to_string(entries) + " are wanted";
  }
  if (capabilities.log_max_message < kLogMaxMessage) {
    return "its longest message is 2^" + std::to_string(capabilities.log_max_message) +
           " bytes, 2^30 are wanted";
  }
  if (capabilities.is_ethernet && !capabilities.has_roce) return "its port has no RoCE";
  return "";
}

mep_result_t SendQueuePair::create(Device& device, const Capabilities& capabilities,
                                   const Options& options, std::unique_ptr<SendQueuePair>* out) {
  if (options.entries < 2 || options.entries > 16384 || !std::has_single_bit(options.entries)) {
    return mep::fail(MEP_ERR_INVALID_ARGUMENT, "%u entries are no power of two from 2 to 16384",
                     options.entries);
  }
  if (options.mtu < 1 || options.mtu > 5 || options.first_psn >> 24 != 0) {
    return mep::fail(MEP_ERR_INVALID_ARGUMENT, "MTU %u is not 1 to 5, or PSN %u not below 2^24",
                     options.mtu, options.first_psn);
  }
  if (options.memory.bytes < QueueLayout(options.entries).bytes) {
    return mep::fail(MEP_ERR_INVALID_ARGUMENT, "a queue of %u entries needs %llu bytes, it has %zu",
                     options.entries,
                     static_cast<unsigned long long>(QueueLayout(options.entries).bytes),
                     options.memory.bytes);
  }
  const std::string lack = what_lacks(capabilities, options.entries);
  if (!lack.empty()) {
    return mep::fail(MEP_ERR_UNSUPPORTED, "the adapter cannot carry queues: %s", lack.c_str());
  }
  std::unique_ptr<SendQueuePair> made(new (std::nothrow) SendQueuePair(capabilities, options));
  if (made == nullptr) return mep::fail(MEP_ERR_NO_MEMORY, "no memory for a queue pair");
  MEP_TRY(device.doorbells(&made->page_));
  MEP_TRY(device.share(options.memory, &made->memory_));
  MEP_TRY(made->create_completions(device));
  MEP_TRY(made->create_pair(device));
  *out = std::move(made);
  return MEP_SUCCESS;
}

// One entry that the NIC overwrites, without a word about overruns: nobody gives entries back.
mep_result_t SendQueuePair::create_completions(Device& device) {
  const QueueLayout layout(options_.entries);
  uint32_t events = 0;
  MEP_TRY(device.event_queue(&events));
  Mailbox in(kLongBytes), out(kShortBytes);
  const auto set = [&](Field field, uint64_t value) { in.set(within(kCqContextAt, field), value); };
  in.set(kOpcode, static_cast<uint64_t>(Command::kCreateCq));
  set(cq::kCollapsed, 1);
  set(cq::kIgnoresOverrun, 1);
  set(cq::kLogSize, 0);
  set(cq::kUar, page_->id());
  set(cq::kEventQueue, events);
  // Beside that of the queue pair: nobody writes it.
  set(cq::kRecordUmemValid, 1);
  set(cq::kRecordUmem, memory_->id());
  set(cq::kRecordAddress, layout.record + sizeof(DoorbellRecord));
  in.set(kCqUmemValid, 1);
  in.set(kCqUmem, memory_->id());
  in.set(kCqUmemOffset, layout.completion);
  MEP_TRY(device.create(in, &out, &completions_));
  completions_number_ = static_cast<uint32_t>(out.get(kNumber));
  return MEP_SUCCESS;
}

mep_result_t SendQueuePair::create_pair(Device& device) {
  const QueueLayout layout(options_.entries);
  Mailbox in(kLongBytes), out(kShortBytes);
  const auto set = [&](Field field, uint64_t value) { in.set(in_qp(field), value); };
  in.set(kOpcode, static_cast<uint64_t>(Command::kCreateQp));
  set(qp::kService, 0);
  set(qp::kPathMigration, kMigrated);
  set(qp::kProtectionDomain, device.protection_domain());
  set(qp::kLogSendQueue, std::bit_width(options_.entries) - 1);
  set(qp::kReceiveQueueType, kNoReceiveQueue);
  set(qp::kTimestamps, kDefaultTimestamps);
  set(qp::kUar, page_->id());
  set(qp::kSendCq, completions_number_);
  // Results of atomics go to memory, not into the completion.
  set(qp::kRequestsInCompletions, 0);
  set(qp::kResponsesInCompletions, 0);
  set(qp::kRecordUmemValid, 1);
  set(qp::kRecordUmem, memory_->id());
  set(qp::kRecordAddress, layout.record);
  in.set(kQpUmemValid, 1);
  in.set(kQpUmem, memory_->id());
  in.set(kQpUmemOffset, 0);
  MEP_TRY(device.create(in, &out, &pair_));
  number_ = static_cast<uint32_t>(out.get(kNumber));
  return MEP_SUCCESS;
}

mep_result_t SendQueuePair::change(Mailbox* in, Command command) {
  Mailbox out(kShortBytes);
  in->set(kOpcode, static_cast<uint64_t>(command));
  in->set(kNumber, number_);
  return pair_->modify(*in, &out);
}

void SendQueuePair::set_path(Mailbox* in, const QueueAddress& peer, const PathOptions& path) const {
  const auto set = [&](Field field, uint64_t value) { in->set(in_path(field), value); };
  const auto set_gid = [&] {
    set(path::kSourceAddress, path.gid_index);
    set(path::kHopLimit, kHops);
    set(path::kTrafficClass, path.traffic_class);
    in->set_bytes(kQpContextAt + qp::kPathAt + path::kGidAt, peer.gid);
  };
  set(path::kPort, path.port);
  set(path::kKeyIndex, path.key_index);
  if (capabilities_.is_ethernet) {
    set_gid();
    in->set_bytes(kQpContextAt + qp::kPathAt + path::kMacAt, peer.mac);
    set(path::kPriority, path.service_level);
    // A queue pair of DevX has nothing of the kernel's settings for traffic: without this it is lossy.
    set(path::kDscp, path.traffic_class >> 2);
    if (path.is_roce_v2) {
      const uint32_t spread = (number_ ^ peer.queue_pair) % kUdpPorts;
      set(path::kUdpPort, kFirstUdpPort + spread);
    }
    return;
  }
  set(path::kLid, peer.lid);
  set(path::kServiceLevel, path.service_level);
  if (!path.needs_global_header) return;
  set(path::kGlobalHeader, 1);
  set_gid();
}

mep_result_t SendQueuePair::connect(const QueueAddress& peer, const PathOptions& path) {
  if (peer.mtu < 1 || peer.mtu > 5 || peer.queue_pair == 0 || peer.queue_pair >> 24 != 0 ||
      peer.first_psn >> 24 != 0) {
    return mep::fail(MEP_ERR_INVALID_ARGUMENT,
                     "queue pair %u with PSN %u and MTU %u is no peer of a queue pair",
                     peer.queue_pair, peer.first_psn, peer.mtu);
  }
  if (!capabilities_.is_ethernet && path.needs_global_header && !peer.has_gid) {
    return mep::fail(MEP_ERR_INVALID_ARGUMENT,
                     "the port needs global headers, and the peer has no GID");
  }
  Mailbox to_init(kLongBytes);
  to_init.set(in_qp(qp::kPathMigration), kMigrated);
  to_init.set(in_qp(qp::kAllowsRead), 1);
  to_init.set(in_qp(qp::kAllowsWrite), 1);
  to_init.set(in_qp(qp::kAllowsAtomic), 1);
  to_init.set(in_qp(qp::kAtomicMode), kAtomicsUpTo8Bytes);
  to_init.set(in_path(path::kPort), path.port);
  to_init.set(in_path(path::kKeyIndex), path.key_index);
  MEP_TRY(change(&to_init, Command::kReset2Init));

  Mailbox to_receive(kLongBytes);
  to_receive.set(in_qp(qp::kPathMigration), kMigrated);
  to_receive.set(in_qp(qp::kMtu), std::min(options_.mtu, peer.mtu));
  to_receive.set(in_qp(qp::kLogMaxMessage), kLogMaxMessage);
  to_receive.set(in_qp(qp::kRemoteNumber), peer.queue_pair);
  to_receive.set(in_qp(qp::kNextReceivePsn), peer.first_psn);
  to_receive.set(in_qp(qp::kNotReadyTimer), kNotReadyTimer);
  set_path(&to_receive, peer, path);
  MEP_TRY(change(&to_receive, Command::kInit2Rtr));

  Mailbox to_send(kLongBytes);
  to_send.set(in_qp(qp::kPathMigration), kMigrated);
  to_send.set(in_qp(qp::kNextSendPsn), options_.first_psn);
  to_send.set(in_qp(qp::kRetries), kTries - 1);
  to_send.set(in_qp(qp::kNotReadyRetries), kTries - 1);
  to_send.set(in_path(path::kAckTimeout), options_.ack_timeout);
  return change(&to_send, Command::kRtr2Rts);
}

mep_result_t SendQueuePair::fail() {
  Mailbox in(kShortBytes);
  return change(&in, Command::kToError);
}

}  // namespace mep::gpu_queue::mlx5
