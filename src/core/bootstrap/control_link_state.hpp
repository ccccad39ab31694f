// The parts of a control link, for the two files that implement it.
//
// Input and output are independent: a failed send leaves the input readable, because a peer that
// goes away says why in its last frame.
//
// Invariants
//   - Output: either the queue is empty or all bytes before it were taken by the kernel; frames go
//     out in the order of send() and a frame is queued whole or not at all.
//   - Input: `buffer` from `begin` on is the start of a frame; `bundles` are the descriptors that came
//     with those bytes, in order, one bundle for each frame that has any: the kernel gives one read those
//     of one sendmsg() at most. No partial frame in the buffer means no bundle is left.
#pragma once

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/unique_fd.hpp"
#include "core/bootstrap/control_link.hpp"

namespace mep {

inline constexpr uint32_t kFrameMagic = 0x3150454d;  // "MEP1"
inline constexpr size_t kHeaderBytes = 16;
// Many rows of a large world fit; whoever reads none of them for so long does not live.
inline constexpr size_t kMaxQueuedBytes = size_t{256} << 20;

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint16_t type = 0;
  uint16_t descriptors = 0;
  uint32_t payload_bytes = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(FrameHeader) == kHeaderBytes);

struct QueuedFrame {
  std::vector<std::byte> bytes;
  size_t sent = 0;
  std::vector<UniqueFd> fds;  // empty once the first byte went out
};

// The descriptors that came with the first byte of one frame.
struct Bundle {
  std::array<UniqueFd, kMaxFrameDescriptors> fds;
  size_t count = 0;
  bool is_cut = false;  // this process had no room for all of them
};

union DescriptorMessage {
  cmsghdr header;
  char bytes[CMSG_SPACE(kMaxFrameDescriptors * sizeof(int))];
};

// The peer is gone, or cannot be reached.
bool is_connection_end(int error);

struct ControlLink::State {
  UniqueFd socket;

  std::mutex output_mutex;  // guards the six below
  std::unique_ptr<FrameSealer> sealer;
  std::deque<QueuedFrame> queue;
  size_t queued_bytes = 0;
  size_t queue_limit = kMaxQueuedBytes;
  bool output_closed = false;
  // Copy of !queue.empty() for has_queued_output(); it carries no other data, so relaxed suffices.
  std::atomic<bool> has_output{false};

  std::unique_ptr<FrameOpener> opener;
  size_t payload_limit = kMaxFramePayloadBytes;
  std::deque<Frame> pushed_back;
  uint16_t pieces_type = 0;  // of the pieces that have come, 0: none
  std::vector<std::byte> pieces;
  std::vector<std::byte> buffer;
  size_t begin = 0;
  std::vector<Bundle> bundles;
  bool refused = false;  // the stream is out of step; nothing more is read

  mep_result_t send_parts(std::span<const std::byte> head, std::span<const std::byte> body,
                          std::span<const int> given);
  void close_output();
  mep_result_t enqueue(std::span<const std::byte> head, std::span<const std::byte> body,
                       std::span<const int> fds_left, size_t already_sent);
  mep_result_t flush_locked();
  mep_result_t send_frame(uint16_t type, std::span<const std::byte> payload,
                          std::span<const int> fds);
  mep_result_t next_message(Frame* frame, bool* found);
  mep_result_t next_frame(Frame* frame, bool* found);
  mep_result_t next_sealed_frame(Frame* frame, bool* found);
  void consume(size_t bytes);
  mep_result_t read_chunk(size_t* count, bool* would_block);
  mep_result_t take_descriptors(uint16_t announced, Frame* frame);
  mep_result_t adopt_descriptors(msghdr* message);
  mep_result_t refuse(mep_result_t result);
};

}  // namespace mep
