// One port of one HCA, opened: its protection domain, the shared receive queue that signals which wake
// arrive in, and its events.
//
// Invariants
//   - One receive request is consumed by every signal that wakes and by every mark, and posted again
//     when its completion is drained; the receive queue's completions always fit.
//   - Arrivals are given to the queue pair's ArrivedSignals in order, under receive_mutex_; after
//     detach() none is.
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
#include <unordered_map>
#include <vector>

#include "mep.h"
#include "transport/verbs/addresses.hpp"
#include "transport/verbs/signal_words.hpp"

namespace mep::verbs {

// The environment's options for all connections.
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

  // Where what arrives over this rank's end of a queue pair goes.
  void attach(uint32_t queue_pair, std::shared_ptr<ArrivedSignals> signals);
  void detach(uint32_t queue_pair);
  struct Drained {
    bool any = false;
    bool marks = false;
  };
  // Takes what has arrived and posts receives again.
  Drained drain();
  // The same, before a queue pair is destroyed and what has come over it with it; the next drain() tells
  // of it. May be called with a peer's lock.
  void drain_before_destroying();
  // In between nothing that arrives is written.
  void hold_windows() { receive_mutex_.lock(); }
  void release_windows() { receive_mutex_.unlock(); }
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
  // Those of spent_.
  bool post_receives();
  Drained drain_locked();

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
  // Under receive_mutex_:
  SignalDefinition* received_ = nullptr;  // one for each receive request, whose number is its index
  ibv_mr* received_region_ = nullptr;
  std::vector<uint32_t> spent_;  // receive requests consumed and not posted again
  std::unordered_map<uint32_t, std::shared_ptr<ArrivedSignals>> attached_;
  Drained drained_early_;
  std::atomic<bool> lost_{false};
  // Relaxed: set and looked at by the thread that takes events.
  std::atomic<bool> runs_low_{false};
};

// The first port that is active; wanted: this one alone, 0: any. `name` is the HCA's.
[[nodiscard]] mep_result_t find_active_port(ibv_context* context, const std::string& name,
                                            int wanted, uint8_t* port, ibv_port_attr* attributes);
// All that are set.
std::vector<GidEntry> read_gids(ibv_context* context, uint8_t port);

// "name:port" of every port of this machine with its state, for people; empty: there are no HCAs.
std::string describe_ports();
// All active ports.
std::vector<PortName> active_ports();

}  // namespace mep::verbs
