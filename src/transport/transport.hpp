// The contract between the library and what carries bytes to a peer.
//
// A transport object belongs to one rank (one world in one process) and reaches some of its peers, which are
// named by their slot. Its work is in three parts: the Endpoint posts, the WindowExchange makes windows
// reachable, the Drain ends what an epoch left behind. It describes itself in its traits; nobody above knows
// it by its name. It reads its own options and starts what it needs when a peer needs it.
//
// A new transport is one folder, one factory and one line in transports.def.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mep.h"
#include "transport/drain.hpp"
#include "transport/endpoint.hpp"
#include "transport/window_exchange.hpp"

namespace mep {

// A peer's identity, as its authenticated hello said.
struct PeerIdentity {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  uint64_t host = 0;           // same value: same kernel and same user namespace
  uint64_t process_token = 0;  // same value: same process (ranks as threads)
  int32_t pid = 0;             // in the peer's own pid namespace
};

// A secret of this rank and one incarnation of one peer; both hold the same bytes. Made while their
// control link was authenticated; a transport over a network proves its own connections with it.
struct PeerSession {
  std::array<std::byte, 32> key{};
};

// Whom a transport reaches.
enum class Reach : uint8_t {
  kProcess,  // ranks of this process
  kHost,     // ranks of other processes of this host
  kAnywhere  // any rank; whether there is a fabric in common shows in add_peer()
};

struct TransportTraits {
  const char* name = "";  // as in MEP_TRANSPORTS and in logs
  Reach reach = Reach::kAnywhere;
  // Peers' windows have an address here, unless TransportOptions::put_only.
  bool is_mapped = false;
  // A posting has landed when post() returns: nothing is ever under way. Else a view change asks
  // quiesced(), and a fence is needed even against a process that has ended.
  bool lands_at_once = false;
  // It has descriptors (events()) that sleepers sleep on, and progress() brings in what peers post.
  bool has_events = false;
  bool needs_registration = false;  // puts from memory that it does not know are copied
  // fence_out() needs new pages for the windows that the peer could write.
  bool renews_windows = false;
};

// The descriptors to be watched, from the first add_peer() on.
struct TransportEvents {
  int data = -1;  // readable when progress() has something to do; it may stay so for some calls
  // `data` is an epoll that others may add descriptors of their own to, with UINT64_MAX as their data.
  bool data_is_epoll = false;
  int control = -1;  // readable when serve() has something to do
};

// Which network adapters are near this process.
struct NearAdapters {
  std::string names;    // "mlx5_0:1,mlx5_1:1", the best first; empty: none may or can be used
  uint32_t equals = 0;  // how many at the list's begin are equally good
};

// The job's options for all transports.
struct TransportOptions {
  bool put_only = false;                // map() answers null although the transport could map
  bool one_host = false;                // no rank will ever come from another host
  uint32_t suspect_ms = 5000;           // silence after which a peer counts as lost
  uint32_t connect_timeout_ms = 60000;  // for a connection to come about
  // Asked when a transport over adapters opens; null: whichever are active.
  std::function<mep_result_t(NearAdapters*)> near_adapters;
};

struct PeerStatus {
  bool is_connected = false;   // what is posted before is kept
  const char* text = nullptr;  // how the peer is reached, in words; lives as long as the peer
  bool is_mapped = false;      // its windows have an address here
};

class Transport : public Endpoint, public WindowExchange, public Drain {
 public:
  const TransportTraits& traits() const { return traits_; }
  const char* name() const { return traits_.name; }
  const TransportEvents& events() const { return events_; }
  // Both sides ask with the arguments swapped and come to the same answer.
  bool reaches(const PeerIdentity& self, const PeerIdentity& peer) const;

  // Reads its options and finds out whether it works on this machine at all. *offer: what peers must be told of
  // it before they add this rank, at most 1024 bytes. Starts nothing that others could see. Once, before all
  // else. MEP_ERR_INVALID_ARGUMENT: what the user asked for makes no sense. MEP_ERR_NO_MEMORY: it would work.
  // Any other error: it does not work here, and the text says why.
  [[nodiscard]] virtual mep_result_t open(std::vector<std::byte>* offer) = 0;

  // From here on the peer can be exported to and imported from. Starts what it takes. MEP_ERR_UNSUPPORTED: no
  // way to this peer, which finds the same; MEP_ERR_DENIED: its offer is none. Control thread or start-up.
  [[nodiscard]] virtual mep_result_t add_peer(const PeerIdentity& self, const PeerIdentity& peer,
                                              std::span<const std::byte> offer,
                                              const PeerSession& session) = 0;
  // Forgets the peer and its windows; no call for it is under way. Control thread.
  virtual void remove_peer(uint32_t slot) = 0;

  // Any thread; never waits. A slot without peer: not connected, no text.
  virtual PeerStatus status(uint32_t slot) const = 0;

  // Work that belongs to no call: making connections, sending what a queue had no room for. Control thread,
  // whenever events().control is readable. Never waits.
  virtual void serve() {}

  // `waits`: how many threads wait, and so make progress; meanwhile serve() leaves to them what a queue had no room
  // for. It outlives the use of this transport. Before the first connection; never called: serve() sends at once.
  void count_waits(const std::atomic<uint32_t>* waits) { waits_ = waits; }
  // No thread waits any more, or none makes progress: serve() sends again. Any thread; after the count fell, in a
  // sequentially consistent order.
  virtual void hand_over() {}

 protected:
  explicit Transport(const TransportTraits& traits) : traits_(traits) {}
  // Sequentially consistent: see hand_over().
  bool is_waited_for() const { return waits_ != nullptr && waits_->load() != 0; }

  TransportEvents events_;  // set before the first add_peer() returns

 private:
  const TransportTraits traits_;
  const std::atomic<uint32_t>* waits_ = nullptr;
};

using TransportFactory = std::unique_ptr<Transport> (*)(const TransportOptions& options);

struct TransportEntry {
  const char* name;
  TransportFactory make;
};

// All built-in transports in order of preference, from transports.def.
std::span<const TransportEntry> transport_table();

}  // namespace mep
