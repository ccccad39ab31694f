// One port of one HCA, opened: its protection domain, the shared receive queue that signals which wake
// arrive in, and its events.
//
// Invariants
//   - One receive request is consumed by every signal that wakes, and posted again when its
//     completion is drained; the receive queue's completions always fit.
//   - After arm(), whatever arrives makes the event descriptor readable, until it is drained.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mep.h"
#include "transport/verbs/addresses.hpp"

namespace mep::verbs {

// What the environment says about all connections.
struct Settings {
  int gid_index = -1;         // MEP_IB_GID_INDEX; -1: chosen
  uint8_t service_level = 0;  // MEP_IB_SL
  uint8_t traffic_class = 0;  // MEP_IB_TC
  uint8_t timeout = 16;       // MEP_IB_TIMEOUT: 4.096 us * 2^timeout before a packet is repeated
  size_t cache_bytes = 0;     // MEP_IB_CACHE_MIB
};
[[nodiscard]] mep_result_t read_settings(Settings* out);

class Hca {
 public:
  // name.port 0: the first port that is active.
  [[nodiscard]] static mep_result_t open(const PortName& name, const Settings& settings,
                                         std::unique_ptr<Hca>* out);
  ~Hca();
  Hca(const Hca&) = delete;
  Hca& operator=(const Hca&) = delete;

  const std::string& name() const { return name_; }  // "mlx5_0:1"
  const PortAddress& address() const { return address_; }
  uint8_t port() const { return port_; }
  uint8_t gid_index() const { return gid_index_; }
  uint32_t max_message_bytes() const { return max_message_bytes_; }
  ibv_context* context() const { return context_; }
  ibv_pd* protection_domain() const { return protection_domain_; }
  ibv_srq* receive_queue() const { return receive_queue_; }
  ibv_cq* receive_completions() const { return receive_completions_; }

  int completion_fd() const { return channel_->fd; }
  int async_fd() const { return context_->async_fd; }

  struct Arrival {
    uint32_t queue_pair = 0;  // this rank's end
    uint32_t value = 0;       // never 0: that is a wake
  };
  // Takes what has arrived and posts receives again; true: something asked to wake. Skips if another
  // thread is at it.
  bool drain(std::vector<Arrival>* arrivals);
  // Forgets pending notifications and asks for the next one.
  void arm();
  // Asynchronous events: `queue_pair_failed` gets the number of the queue pair. True: the device
  // itself has failed or is gone, *text says how.
  bool take_events(const std::function<void(uint32_t, const char*)>& queue_pair_failed,
                   std::string* text);
  // An event said that receive requests run low although nobody drained them.
  bool runs_low() { return runs_low_.exchange(false, std::memory_order_relaxed); }
  void watch_low();
  // Set once take_events() said so, or a call found it out. Relaxed: a hint, its consequence for
  // each peer is published with that peer.
  bool is_lost() const { return lost_.load(std::memory_order_relaxed); }

  static constexpr uint32_t kReceives = 1024;

 private:
  Hca() = default;
  [[nodiscard]] mep_result_t find_port(int wanted, ibv_port_attr* attributes);
  [[nodiscard]] mep_result_t describe_port(const ibv_port_attr& attributes,
                                           const Settings& settings);
  [[nodiscard]] mep_result_t make_receive_side();
  bool post_receives(uint32_t count);

  std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* protection_domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* receive_completions_ = nullptr;
  ibv_srq* receive_queue_ = nullptr;
  uint8_t port_ = 0;
  uint8_t gid_index_ = 0;
  uint32_t max_message_bytes_ = 0;
  PortAddress address_;
  std::mutex receive_mutex_;  // one thread at a time polls and posts receives
  std::mutex event_mutex_;    // one at a time reads events
  uint32_t to_post_ = 0;      // receives consumed and not posted again
  std::atomic<bool> lost_{false};
  // Relaxed: set and looked at by the thread that takes events.
  std::atomic<bool> runs_low_{false};
};

// "name:port" of every port of this machine with its state, for people; empty: there are no HCAs.
std::string describe_ports();
// All active ports.
std::vector<PortName> active_ports();

}  // namespace mep::verbs
