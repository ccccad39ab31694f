// A control link: one connected, authenticated, ordered stream of frames to one incarnation of a peer (one process
// in its place).
//
// Frame on the wire, little endian; a machine of the other byte order is refused by its magic:
//   u32 magic  u16 type  u16 descriptors  u32 payload bytes  u32 reserved (0)   then the payload
// Descriptors travel by SCM_RIGHTS with the first byte of their frame. A received frame is hostile until its magic,
// the bound on its payload and its number of descriptors are checked.
// A payload beyond kMaxFramePayloadBytes travels in pieces: frames of its type with kMoreFollows set, one
// after the other and without descriptors, and a last one without the bit. The receiver allocates memory only
// for bytes that have come.
//
// Between hosts the link is a TCP connection: it carries no descriptors, and after the handshake every
// frame travels sealed: encrypted and authenticated (frame_cipher.hpp).
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
// Limit of one payload between members, all its pieces together.
constexpr size_t kMaxMessageBytes = size_t{1} << 30;
constexpr size_t kMaxFrameDescriptors = 4;

// Frame types 1..63 are the bootstrap's own; from 64 on they belong to the world's control thread.
constexpr uint16_t kFirstWorldFrame = 64;
constexpr uint16_t kMoreFollows = 0x8000;  // a bit of the type

struct Frame {
  uint16_t type = 0;
  std::vector<std::byte> payload;
  std::vector<UniqueFd> fds;
  // The frame came with more descriptors than this process had room for; fds holds those that it got.
  bool lost_descriptors = false;
};

class ControlLink {
 public:
  explicit ControlLink(UniqueFd socket);
  ~ControlLink();
  ControlLink(const ControlLink&) = delete;
  ControlLink& operator=(const ControlLink&) = delete;

  int fd() const;

  // After seal_output() all that is sent is sealed. After open_input() only sealed frames are received. Bytes that the
  // link has read but not handed out count as sealed then, so call open_input() from the handler of the last frame that
  // is not sealed.
  void seal_output(std::unique_ptr<FrameSealer> sealer);
  void open_input(std::unique_ptr<FrameOpener> opener);
  // Limits one payload of the peer, all its pieces together. Without a call: kMaxFramePayloadBytes. The owner allows
  // less to a stranger, and kMaxMessageBytes to a member.
  void limit_payload(size_t bytes);

  // Raises the bound of queued output by `bytes`, before much is sent to this peer at once.
  void allow_output(size_t bytes);

  // Never blocks: bytes that the kernel does not take are queued and go out with flush_output(). MEP_ERR_NO_MEMORY: the
  // queue is at its bound, or descriptors are short. They are duplicated, and the caller keeps its own; a
  // sealed link takes none.
  // MEP_ERR_PEER_FAILED: the link is closed.
  [[nodiscard]] mep_result_t send(uint16_t type, std::span<const std::byte> payload,
                                  std::span<const int> fds = {});
  // Whether output is queued, so that the owner must wait for EPOLLOUT and call flush_output().
  bool has_queued_output() const;
  [[nodiscard]] mep_result_t flush_output();

  // Reads without blocking and hands each whole frame to `handler`, until the handler answers false.
  // MEP_ERR_PEER_FAILED: end of stream or reset; all complete frames were handed out before.
  // MEP_ERR_DENIED: not a frame of this protocol; the error text says why.
  // When the handler answers false, frames behind that one may stay in the link. poll() does not tell of them:
  // call receive() again before waiting on fd(), as for every link after bootstrap.
  [[nodiscard]] mep_result_t receive(const std::function<bool(Frame&)>& handler);
  // Puts back a frame that is for another handler: the next receive() begins with it.
  void unread(Frame frame);

  // Closes both directions; the peer sees the end of the stream.
  void shutdown();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mep
