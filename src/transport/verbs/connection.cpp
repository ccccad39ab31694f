#include "transport/verbs/connection.hpp"

#include <arpa/inet.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/status.hpp"

namespace mep::verbs {
namespace {

// Six repetitions: seven means "for ever" to some drivers. A receiver that has no receive request ready
// is waited for as long as it lives; 1 stands for 10 us between attempts.
constexpr uint8_t kRetries = 6;
constexpr uint8_t kReceiverRetries = 7;
constexpr uint8_t kReceiverPause = 1;
constexpr uint32_t kPsnMask = 0xffffff;
constexpr std::array<uint32_t, 4> kInlineWishes = {220, 128, 64, sizeof(SignalDefinition)};

mep_result_t cannot_connect(const Hca& hca, int error, const char* state) {
  return fail(MEP_ERR_SYSTEM, "HCA %s: a queue pair cannot be made %s: %s", hca.name().c_str(),
              state, std::strerror(error));  // NOLINT(concurrency-mt-unsafe): glibc's is per thread
}

}  // namespace

mep_result_t Connection::create(Hca* hca, const Settings& settings,
                                std::unique_ptr<Connection>* out) {
  std::unique_ptr<Connection> connection(new Connection(hca, settings));
  MEP_TRY(connection->create_queue_pair());
  *out = std::move(connection);
  return MEP_SUCCESS;
}

mep_result_t Connection::create_queue_pair() {
  // In case of an error every request completes, so there is room for all.
  completions_ = ibv_create_cq(hca_->context(), kDepth + 2, nullptr, nullptr, 0);
  if (completions_ == nullptr) {
    return fail(MEP_ERR_NO_MEMORY, "HCA %s gives no more completion queues (ulimit -l?): %m",
                hca_->name().c_str());
  }
  for (const uint32_t wish : kInlineWishes) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = completions_;
    attributes.recv_cq = hca_->receive_completions();
    attributes.srq = hca_->receive_queue();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = kDepth + 1;
    attributes.cap.max_send_sge = 1;
    attributes.cap.max_inline_data = wish;
    queue_pair_ = ibv_create_qp(hca_->protection_domain(), &attributes);
    if (queue_pair_ != nullptr) {
      max_inline_bytes_ =
          std::max(wish, std::min(attributes.cap.max_inline_data, kMostInlineBytes));
      break;
    }
  }
  if (queue_pair_ == nullptr) {
    return fail(MEP_ERR_NO_MEMORY, "HCA %s gives no more queue pairs (ulimit -l?): %m",
                hca_->name().c_str());
  }
  uint32_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random) random = number() * 2654435761u;
  first_psn_ = random & kPsnMask;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = 0;
  attributes.port_num = hca_->port();
  attributes.qp_access_flags =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  const int error =
      ibv_modify_qp(queue_pair_, &attributes,
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return error == 0 ? MEP_SUCCESS : cannot_connect(*hca_, error, "ready");
}

Connection::~Connection() {
  destroy();
}

void Connection::move_to_error() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  if (queue_pair_ != nullptr) (void)ibv_modify_qp(queue_pair_, &attributes, IBV_QP_STATE);
}

void Connection::destroy() {
  // Destroying waits until the HCA has let go of it; errors can only mean that the device is gone.
  if (queue_pair_ != nullptr) (void)ibv_destroy_qp(queue_pair_);
  if (completions_ != nullptr) (void)ibv_destroy_cq(completions_);
  queue_pair_ = nullptr;
  completions_ = nullptr;
  connected_ = false;
  waiting_count_ = 0;
  queue_.abandon();
}

mep_result_t Connection::connect(const PortAddress& remote, const WindowRail& remote_end) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(hca_->address().mtu, remote.mtu));
  attributes.dest_qp_num = remote_end.queue_pair;
  attributes.rq_psn = remote_end.first_psn;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = kReceiverPause;
  attributes.ah_attr.port_num = hca_->port();
  attributes.ah_attr.sl = settings_.service_level;
  attributes.ah_attr.dlid = remote.lid;
  if (needs_global_route(hca_->address(), remote)) {
    attributes.ah_attr.is_global = 1;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, remote.gid.data(), remote.gid.size());
    attributes.ah_attr.grh.sgid_index = hca_->gid_index();
    attributes.ah_attr.grh.hop_limit = 64;
    attributes.ah_attr.grh.traffic_class = settings_.traffic_class;
  }
  int error = ibv_modify_qp(queue_pair_, &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) return cannot_connect(*hca_, error, "to receive (is there a route to the peer?)");
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = first_psn_;
  attributes.timeout = settings_.timeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kReceiverRetries;
  attributes.max_rd_atomic = 1;
  error = ibv_modify_qp(queue_pair_, &attributes,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                            IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) return cannot_connect(*hca_, error, "to send");
  connected_ = true;
  return MEP_SUCCESS;
}

mep_result_t Connection::post(const Write& write, uint64_t* number) {
  if (queue_pair_ == nullptr || !connected_) {
    return fail(MEP_ERR_PEER_FAILED, "HCA %s: not connected", hca_->name().c_str());
  }
  Waiting& place = waiting_[waiting_count_];
  const bool is_inline = write.is_inline && write.bytes != 0;
  const bool signalled = write.signalled || queue_.must_signal();
  place.piece = {reinterpret_cast<uintptr_t>(write.local), write.bytes, write.lkey};
  if (is_inline) {
    std::memcpy(place.bytes.data(), write.local, write.bytes);
    place.piece.addr = reinterpret_cast<uintptr_t>(place.bytes.data());
  }
  ibv_send_wr& request = place.request;
  request = {};
  request.wr_id = queue_.posted() + 1;
  request.sg_list = &place.piece;
  request.num_sge = write.bytes == 0 ? 0 : 1;
  request.opcode = write.is_read   ? IBV_WR_RDMA_READ
                   : write.is_send ? IBV_WR_SEND
                   : write.wake    ? IBV_WR_RDMA_WRITE_WITH_IMM
                                   : IBV_WR_RDMA_WRITE;
  request.send_flags =
      (signalled ? unsigned{IBV_SEND_SIGNALED} : 0u) | (is_inline ? unsigned{IBV_SEND_INLINE} : 0u);
  request.imm_data = htonl(write.arrival);
  request.wr.rdma.remote_addr = write.remote;
  request.wr.rdma.rkey = write.rkey;
  ++waiting_count_;
  const uint64_t posted = queue_.post(signalled);
  if (number != nullptr) *number = posted;
  return write.may_wait && waiting_count_ < kMostWaiting ? MEP_SUCCESS : ring();
}

mep_result_t Connection::join_last(uint32_t arrival, bool* joined) {
  *joined = waiting_count_ > 0 && waiting_[waiting_count_ - 1].request.opcode == IBV_WR_RDMA_WRITE;
  if (!*joined) return MEP_SUCCESS;
  ibv_send_wr& last = waiting_[waiting_count_ - 1].request;
  last.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  last.imm_data = htonl(arrival);
  return ring();
}

mep_result_t Connection::ring() {
  if (waiting_count_ == 0) return MEP_SUCCESS;
  for (uint32_t i = 0; i + 1 < waiting_count_; ++i) {
    waiting_[i].request.next = &waiting_[i + 1].request;
  }
  waiting_[waiting_count_ - 1].request.next = nullptr;
  waiting_count_ = 0;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(queue_pair_, &waiting_[0].request, &refused);
  if (error == 0) return MEP_SUCCESS;
  return fail(MEP_ERR_PEER_FAILED, "HCA %s refuses a work request: %s", hca_->name().c_str(),
              std::strerror(error));  // NOLINT(concurrency-mt-unsafe): glibc's is per thread
}

mep_result_t Connection::post_marker() {
  Write marker;
  marker.signalled = true;
  return post(marker, nullptr);
}

mep_result_t Connection::poll() {
  if (completions_ == nullptr || queue_.idle()) return MEP_SUCCESS;
  std::array<ibv_wc, 16> taken;
  for (;;) {
    const int count = ibv_poll_cq(completions_, static_cast<int>(taken.size()), taken.data());
    if (count < 0) {
      return fail(MEP_ERR_PEER_FAILED, "HCA %s: its completion queue has failed",
                  hca_->name().c_str());
    }
    for (int i = 0; i < count; ++i) {
      const ibv_wc& wc = taken[static_cast<size_t>(i)];
      if (wc.status != IBV_WC_SUCCESS) {
        return fail(MEP_ERR_PEER_FAILED, "HCA %s: %s (status %d, vendor code %#x)",
                    hca_->name().c_str(), ibv_wc_status_str(wc.status), static_cast<int>(wc.status),
                    wc.vendor_err);
      }
      queue_.complete(wc.wr_id);
    }
    if (count < static_cast<int>(taken.size())) return MEP_SUCCESS;
  }
}

}  // namespace mep::verbs
