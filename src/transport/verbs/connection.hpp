// One queue pair to one peer over one rail.
//
// Invariants
//   - The owner (Peer) calls everything under its lock.
//   - After destroy(), or once the object is gone, the HCA reads no source of it and takes nothing
//     from the peer.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "mep.h"
#include "transport/verbs/addresses.hpp"
#include "transport/verbs/hca.hpp"
#include "transport/verbs/send_queue.hpp"

namespace mep::verbs {

class Connection {
 public:
  static constexpr uint32_t kDepth = 128;

  [[nodiscard]] static mep_result_t create(Hca* hca, const Settings& settings,
                                           std::unique_ptr<Connection>* out);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  uint32_t number() const { return queue_pair_ != nullptr ? queue_pair_->qp_num : 0; }
  uint32_t first_psn() const { return first_psn_; }
  uint32_t max_inline_bytes() const { return max_inline_bytes_; }
  Hca& hca() const { return *hca_; }
  const SendQueue& queue() const { return queue_; }

  // To the peer's end; from then on both directions work.
  [[nodiscard]] mep_result_t connect(const PortAddress& remote, const WindowRail& remote_end);
  bool is_connected() const { return connected_; }

  struct Write {
    const void* local = nullptr;
    uint32_t lkey = 0;  // unused when is_inline
    uint32_t bytes = 0;
    uint64_t remote = 0;
    uint32_t rkey = 0;
    bool is_inline = false;
    uint32_t arrival = 0;    // with wake: what the peer's receive side hears
    bool wake = false;       // the peer's receive queue hears of it
    bool signalled = false;  // at least; others are too, now and then
    bool may_wait = false;
    bool is_read = false;  // from there to here
    bool is_send = false;  // into a receive request of the peer; remote and rkey are unused
  };
  // The queue must not be full. Returns its number in *number (may be null). With `may_wait` the HCA
  // need not hear of it before the next one, or ring(): one call for several costs less. Data of a write
  // that is_inline is copied.
  [[nodiscard]] mep_result_t post(const Write& write, uint64_t* number);
  // The peer's receive side hears `arrival` when the last write has come. False: it is on its way already.
  [[nodiscard]] mep_result_t join_last(uint32_t arrival, bool* joined);
  // Tells the HCA of all that waits.
  [[nodiscard]] mep_result_t ring();
  // An empty write after all others, whose completion stands for them.
  [[nodiscard]] mep_result_t post_marker();
  // Takes completions. An error's text names its status.
  [[nodiscard]] mep_result_t poll();
  void move_to_error();  // for tests
  // The HCA stops using it at once.
  void destroy();

 private:
  Connection(Hca* hca, const Settings& settings) : hca_(hca), settings_(settings) {}
  [[nodiscard]] mep_result_t create_queue_pair();

  Hca* hca_;
  Settings settings_;
  ibv_cq* completions_ = nullptr;
  ibv_qp* queue_pair_ = nullptr;
  uint32_t first_psn_ = 0;
  uint32_t max_inline_bytes_ = 0;
  bool connected_ = false;
  SendQueue queue_{kDepth};

  static constexpr uint32_t kMostWaiting = 8;
  static constexpr uint32_t kMostInlineBytes = 256;
  struct Waiting {
    ibv_send_wr request;
    ibv_sge piece;
    std::array<std::byte, kMostInlineBytes> bytes;
  };
  std::array<Waiting, kMostWaiting> waiting_;  // the first waiting_count_ are in use
  uint32_t waiting_count_ = 0;
};

}  // namespace mep::verbs
