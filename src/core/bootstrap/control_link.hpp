// A control link: one connected, authenticated, ordered stream of frames to one incarnation of a
// peer.
//
// Frame on the wire, little endian (both ends share a byte order or refuse each other in the
// hello):
//   u32 magic  u16 type  u16 descriptors  u32 payload bytes  u32 reserved (0)   then the payload
// Descriptors travel by SCM_RIGHTS with the first byte of their frame. Everything read is hostile
// until checked: magic, a known bound on the payload, the announced number of descriptors.
// A payload beyond kMaxFramePayloadBytes travels in pieces: frames of its type with kMoreFollows set, one
// after the other and without descriptors, and a last one without the bit. The receiver takes memory only
// for what has come.
//
// Between hosts the link is a TCP connection: it carries no descriptors, and after the handshake every
// frame travels sealed (frame_cipher.hpp).
//
// Threads: send() by any thread; the rest by one thread at a time (the control thread).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/unique_fd.hpp"
#include "core/bootstrap/frame_cipher.hpp"
#include "mep.h"

namespace mep {

constexpr size_t kMaxFramePayloadBytes = size_t{1} << 20;
// The most that a member may say at once, in as many frames as it takes.
constexpr size_t kMaxMessageBytes = size_t{1} << 30;
constexpr size_t kMaxFrameDescriptors = 4;

// Frame types 1..63 are the bootstrap's own; from 64 on they belong to the world's control thread.
constexpr uint16_t kFirstWorldFrame = 64;
constexpr uint16_t kMoreFollows = 0x8000;  // a bit of the type

struct Frame {
  uint16_t type = 0;
  std::vector<std::byte> payload;
  std::vector<UniqueFd> fds;
  // It came with descriptors for which this process had no room; fds holds those that it has.
  bool lost_descriptors = false;
};

class ControlLink {
 public:
  explicit ControlLink(UniqueFd socket);
  ~ControlLink();
  ControlLink(const ControlLink&) = delete;
  ControlLink& operator=(const ControlLink&) = delete;

  int fd() const;

  // From here on what is sent is sealed, or what comes must be. Bytes that lie in the link already
  // count as coming after; so call this from the handler of the last open frame.
  void seal_output(std::unique_ptr<FrameSealer> sealer);
  void open_input(std::unique_ptr<FrameOpener> opener);
  // The most that the peer may say at once, all pieces together: kMaxFramePayloadBytes unless said otherwise,
  // less for a stranger, kMaxMessageBytes for a member.
  void limit_payload(size_t bytes);

  // So many bytes more may wait for this peer than for others: it is about to be told much at once.
  void allow_output(size_t bytes);

  // Never blocks: what the kernel does not take is queued (bounded, then MEP_ERR_NO_MEMORY) and
  // goes out with flush_output(). Descriptors are duplicated, the caller keeps its own; a sealed
  // link takes none.
  // MEP_ERR_PEER_FAILED: the link is closed.
  [[nodiscard]] mep_result_t send(uint16_t type, std::span<const std::byte> payload,
                                  std::span<const int> fds = {});
  // Whether output is queued, so that the owner must wait for EPOLLOUT and call flush_output().
  bool has_queued_output() const;
  [[nodiscard]] mep_result_t flush_output();

  // Reads what is there without blocking and hands each whole frame to `handler`, until it answers
  // false. MEP_ERR_PEER_FAILED: end of stream or reset (all complete frames were handed out
  // before); MEP_ERR_DENIED: not a frame of this protocol, with what was wrong in the error text;
  // MEP_ERR_NO_MEMORY: nothing is lost, call again later.
  // Frames that came with an earlier one stay in the link when the handler answers false; no poll()
  // tells of them, so call receive() again: after bootstrap once for every link.
  [[nodiscard]] mep_result_t receive(const std::function<bool(Frame&)>& handler);
  // Gives a frame back that the handler was not the right one for: the next receive() begins with it.
  void unread(Frame frame);
  // Whether bytes are left in the link that receive() would look at without reading the socket.
  bool has_buffered_input() const;

  // No more in either direction; the peer sees the end of the stream.
  void shutdown();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mep
