// The contract between the library and what carries bytes to a peer.
//
// A transport object belongs to one rank (one world in one process) and reaches some of its peers,
// which are named by their slot. It offers two one-sided actions, put and signal; every algorithm
// of the library is right with these alone, and map() is only an optimisation.
//
//   Lane    one ordered channel to a peer. A signal becomes visible at the target only after all
//           puts that were posted before it on its lane. Lanes are not ordered among each other.
//   local   source bytes of a put: a window or memory that register_memory() was told of. A put may
//           read them until flush(peer) returns.
//   flush   every `local` is reusable, also after an error. Says nothing about the target.
//   wake    a signal that must wake the target's threads if they sleep.
//   fence   after fence_out(slot) returned, no byte from that incarnation lands in windows that a
//           later epoch uses.
//
// Threads: put, signal, map and flush to one (peer, lane) by one thread at a time; different peers
// or lanes by different threads at once. The others are called by the control thread or during
// start-up, never at the same time as a put to the peer in question.
//
// A new transport is one folder, one factory and one line in transports.def. What it does not
// override answers MEP_ERR_UNSUPPORTED, which no caller meets unless the transport said that it
// can.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "mep.h"
#include "transport/window.hpp"

namespace mep {

// Who a peer is, as its authenticated hello said.
struct PeerIdentity {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  uint64_t host = 0;           // same value: same kernel and same user namespace
  uint64_t process_token = 0;  // same value: same process (ranks as threads)
  int32_t pid = 0;             // in the peer's own pid namespace
};

// What only this rank and one incarnation of one peer know; both hold the same bytes. Made while their
// control link was authenticated; a transport over a network proves its own connections with it.
struct PeerSession {
  std::array<std::byte, 32> key{};
};

// What a peer must know to reach one of this rank's windows: a few bytes and at most one
// descriptor, carried by an authenticated control frame.
struct WindowExport {
  std::vector<std::byte> blob;  // at most kMaxWindowBlobBytes
  UniqueFd fd;                  // a duplicate, owned by this struct
};
constexpr size_t kMaxWindowBlobBytes = 256;

// A peer that cannot be reached any more, as evidence for the membership.
struct PeerFailure {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  std::string reason;
};

struct TransportOptions {
  bool put_only = false;           // map() answers null although the transport could map
  bool encrypt_data = false;       // tcp: frames of data are encrypted too
  bool authenticate_data = false;  // tcp: frames between ranks of one host are authenticated too
  std::string network_interface;   // tcp: globs of interface names to use; empty: all that are up
  bool one_host = false;           // tcp: without network_interface only loopback is used
  uint32_t suspect_ms = 5000;      // tcp: silence of a connection after which it is given up
  uint32_t connect_timeout_ms = 60000;  // tcp: for a connection to come about
  std::string hca;          // verbs: "mlx5_0:1,mlx5_1:1", the best first; empty: any that is active
  uint32_t hca_equals = 0;  // how many at the list's begin are equally good
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;

  // Whether this transport can work on this machine at all; the error text says why not.
  [[nodiscard]] virtual mep_result_t probe() { return MEP_SUCCESS; }

  // --- Peers -----------------------------------------------------------------------------------
  // Address for peers, sent in the hello; may be empty. At most 1024 bytes.
  [[nodiscard]] virtual mep_result_t make_offer(std::vector<std::byte>* offer);
  // Both sides ask with the arguments swapped and must come to the same answer.
  virtual bool reaches(const PeerIdentity& self, const PeerIdentity& peer) const = 0;
  [[nodiscard]] virtual mep_result_t add_peer(const PeerIdentity& self, const PeerIdentity& peer,
                                              std::span<const std::byte> offer,
                                              const PeerSession& session);
  // Forgets the peer and its windows; no call for it is under way.
  virtual void remove_peer(uint32_t slot) = 0;

  // --- Windows ---------------------------------------------------------------------------------
  [[nodiscard]] virtual mep_result_t export_window(const std::shared_ptr<Window>& window,
                                                   WindowExport* out);
  // The same for one peer, for transports whose descriptions differ by peer.
  [[nodiscard]] virtual mep_result_t export_window_to(uint32_t slot,
                                                      const std::shared_ptr<Window>& window,
                                                      WindowExport* out);
  // `bytes` is what this rank's own window has; a peer that offers less is refused. Importing the
  // same id again replaces the old import, at the same mapped address where there is one.
  [[nodiscard]] virtual mep_result_t import_window(uint32_t slot, uint64_t window, size_t bytes,
                                                   std::span<const std::byte> blob, UniqueFd fd);
  virtual void drop_window(uint32_t slot, uint64_t window) = 0;
  // Where the peer's window can be read and written in place; null: it cannot (or put_only).
  virtual std::byte* map(uint32_t slot, uint64_t window) const;

  // --- Data ------------------------------------------------------------------------------------
  virtual uint32_t lanes(uint32_t slot) const;
  [[nodiscard]] virtual mep_result_t put(uint32_t slot, uint32_t lane, uint64_t window,
                                         uint64_t offset, const void* local, size_t bytes) = 0;
  // offset is a multiple of 8.
  [[nodiscard]] virtual mep_result_t signal(uint32_t slot, uint32_t lane, uint64_t window,
                                            uint64_t offset, uint64_t word, bool wake) = 0;
  [[nodiscard]] virtual mep_result_t flush(uint32_t slot) = 0;
  // Moves what can be moved without waiting. *active: something happened.
  [[nodiscard]] virtual mep_result_t progress(bool* active);
  [[nodiscard]] virtual mep_result_t fence_out(uint32_t slot);
  // The peer has gone, as evidence from elsewhere says: calls for it, those under way too, need not wait
  // for what it does not answer any more.
  virtual void give_up(uint32_t /*slot*/) {}
  // Whether the fence also needs new pages (Window::renew) for the windows that the peer could
  // write.
  virtual bool fence_renews_windows() const { return false; }

  // --- Transports whose bytes are under way for a while ------------------------------------------
  // Whether bytes of a put may land after it has returned. Then a view change waits for marks, and a
  // fence is needed even against a process that has ended.
  virtual bool delivers_later() const { return false; }
  // Sends a mark behind all that was posted to the peer until now. Numbers grow.
  [[nodiscard]] virtual mep_result_t mark(uint32_t slot, uint64_t number);
  // The last mark that has come from the peer: all that it had posted before has landed.
  virtual uint64_t marked(uint32_t slot) const;
  // False until the peer is reached; what is posted before is kept.
  virtual bool connected(uint32_t slot) const;
  // In between nothing lands in this rank's windows: around Window::renew().
  virtual void hold_windows() {}
  virtual void release_windows() {}
  // An epoll that can be slept on in place of event_fd(), with `wake_fd` in it under `tag`; -1: there is
  // none. It spares an epoll within an epoll.
  virtual int sleep_epoll(int /*wake_fd*/, uint64_t /*tag*/) { return -1; }
  // How the peer is reached, in words; null: by name.
  virtual const char* describe(uint32_t slot) const;
  // What belongs to no call: making connections, sending what a socket had no room for. For the
  // control thread, whenever control_fd() is readable; -1: there is nothing of the kind.
  virtual int control_fd() const { return -1; }
  virtual void control_progress() {}
  // Each failure is told once. False: there is none.
  virtual bool take_failure(PeerFailure* out);

  // Memory of the caller that puts may read; host transports need nothing.
  [[nodiscard]] virtual mep_result_t register_memory(const void* memory, size_t bytes);
  virtual void unregister_memory(const void* memory);

  // Readable when progress() has something to do; -1: never needs it. It may stay so for some calls.
  virtual int event_fd() const { return -1; }
  // A thread is about to sleep until event_fd() is readable, and looks at its words once more after this.
  virtual void before_sleep() {}
};

using TransportFactory = std::unique_ptr<Transport> (*)(const TransportOptions& options);

struct TransportEntry {
  const char* name;
  TransportFactory make;
};

// All built-in transports in order of preference, from transports.def.
std::span<const TransportEntry> transport_table();

}  // namespace mep
