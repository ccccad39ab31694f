// The receiving side of a control link, and its life; control_link_state.hpp has the invariants.
#include "core/bootstrap/control_link.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"
#include "core/bootstrap/control_link_state.hpp"

namespace mep {
namespace {

constexpr size_t kReadChunkBytes = size_t{64} << 10;
// One receive() hands out at most about this much, so that one peer cannot keep the thread for
// itself.
constexpr size_t kMaxBytesPerReceive = size_t{8} << 20;
// More than a frame and the next one never wait: whole frames are taken before more is read.
constexpr size_t kMostBundles = 4;

[[nodiscard]] mep_result_t check_header(const FrameHeader& header, size_t payload_limit) {
  if (header.magic != kFrameMagic) {
    return fail(MEP_ERR_DENIED, "not a MEP frame: it begins with 0x%08x", header.magic);
  }
  const bool is_piece = (header.type & kMoreFollows) != 0;
  if ((header.type & ~kMoreFollows) == 0 || header.reserved != 0 ||
      (is_piece && header.descriptors != 0)) {
    return fail(MEP_ERR_DENIED, "malformed frame header (type %u, reserved word 0x%x)", header.type,
                header.reserved);
  }
  const size_t allowed = std::min(payload_limit, kMaxFramePayloadBytes);
  if (header.payload_bytes > allowed) {
    return fail(MEP_ERR_DENIED, "oversized frame: it announces %u bytes, %zu are allowed",
                header.payload_bytes, allowed);
  }
  if (header.descriptors > kMaxFrameDescriptors) {
    return fail(MEP_ERR_DENIED, "a frame announces %u descriptors, %zu are allowed",
                header.descriptors, kMaxFrameDescriptors);
  }
  return MEP_SUCCESS;
}

}  // namespace

ControlLink::ControlLink(UniqueFd socket) : state_(std::make_unique<State>()) {
  state_->socket = std::move(socket);
  state_->bundles.reserve(kMostBundles);
}

ControlLink::~ControlLink() = default;

int ControlLink::fd() const {
  return state_->socket.get();
}

void ControlLink::seal_output(std::unique_ptr<FrameSealer> sealer) {
  const std::lock_guard<std::mutex> lock(state_->output_mutex);
  state_->sealer = std::move(sealer);
}

void ControlLink::open_input(std::unique_ptr<FrameOpener> opener) {
  state_->opener = std::move(opener);
}

void ControlLink::limit_payload(size_t bytes) {
  state_->payload_limit = bytes;
}

void ControlLink::allow_output(size_t bytes) {
  const std::lock_guard<std::mutex> lock(state_->output_mutex);
  state_->queue_limit += bytes;
}

// After a refusal nothing that the peer sent is kept.
mep_result_t ControlLink::State::refuse(mep_result_t result) {
  refused = true;
  buffer.clear();
  pieces.clear();
  begin = 0;
  bundles.clear();
  return result;
}

// The next whole message of the peer, if there is one.
mep_result_t ControlLink::State::next_message(Frame* frame, bool* found) {
  *found = !pushed_back.empty();
  if (*found) {
    *frame = std::move(pushed_back.front());
    pushed_back.pop_front();
    return MEP_SUCCESS;
  }
  for (;;) {
    MEP_TRY(next_frame(frame, found));
    if (!*found) return MEP_SUCCESS;
    const bool is_last = (frame->type & kMoreFollows) == 0;
    const auto type = static_cast<uint16_t>(frame->type & ~kMoreFollows);
    if (is_last && pieces_type == 0) return MEP_SUCCESS;
    if ((pieces_type != 0 && type != pieces_type) || !frame->fds.empty()) {
      return fail(MEP_ERR_DENIED, "a frame of type %u among the pieces of another", frame->type);
    }
    if (frame->payload.size() > payload_limit - pieces.size()) {
      return fail(MEP_ERR_DENIED, "oversized message: more than %zu bytes in pieces",
                  payload_limit);
    }
    pieces_type = type;
    pieces.insert(pieces.end(), frame->payload.begin(), frame->payload.end());
    if (!is_last) continue;
    pieces_type = 0;
    frame->payload = std::exchange(pieces, {});
    return MEP_SUCCESS;
  }
}

// Takes one whole frame off the buffer, if there is one.
mep_result_t ControlLink::State::next_frame(Frame* frame, bool* found) {
  *found = false;
  if (opener != nullptr) return next_sealed_frame(frame, found);
  const size_t available = buffer.size() - begin;
  if (available == 0 && !bundles.empty()) {
    return fail(MEP_ERR_DENIED, "%zu descriptors came that no frame announced", bundles[0].count);
  }
  if (available < kHeaderBytes) return MEP_SUCCESS;
  FrameHeader header;
  std::memcpy(&header, buffer.data() + begin, kHeaderBytes);
  MEP_TRY(check_header(header, payload_limit));
  if (available < kHeaderBytes + header.payload_bytes) return MEP_SUCCESS;
  frame->type = header.type;
  const auto payload = buffer.begin() + static_cast<ptrdiff_t>(begin + kHeaderBytes);
  frame->payload.assign(payload, payload + static_cast<ptrdiff_t>(header.payload_bytes));
  MEP_TRY(take_descriptors(header.descriptors, frame));
  consume(kHeaderBytes + header.payload_bytes);
  *found = true;
  return MEP_SUCCESS;
}

mep_result_t ControlLink::State::take_descriptors(uint16_t announced, Frame* frame) {
  frame->fds.clear();
  frame->lost_descriptors = false;
  if (announced == 0) return MEP_SUCCESS;
  const size_t came = bundles.empty() ? 0 : bundles[0].count;
  frame->lost_descriptors = !bundles.empty() && bundles[0].is_cut;
  if (came != announced && !frame->lost_descriptors) {
    return fail(MEP_ERR_DENIED, "a frame announces %u descriptors but brings %zu", announced, came);
  }
  frame->fds.reserve(came);
  for (size_t i = 0; i < came; ++i) frame->fds.push_back(std::move(bundles[0].fds[i]));
  bundles.erase(bundles.begin());
  return MEP_SUCCESS;
}

void ControlLink::State::consume(size_t bytes) {
  begin += bytes;
  if (begin < buffer.size()) return;
  buffer.clear();
  begin = 0;
}

mep_result_t ControlLink::State::next_sealed_frame(Frame* frame, bool* found) {
  const size_t most = kHeaderBytes + std::min(payload_limit, kMaxFramePayloadBytes) + kSealBytes;
  const size_t available = buffer.size() - begin;
  if (available < kSealedLengthBytes) return MEP_SUCCESS;
  uint32_t length = 0;
  std::memcpy(&length, buffer.data() + begin, sizeof length);
  if (length < kHeaderBytes + kSealBytes || length > most) {
    return fail(MEP_ERR_DENIED, "a sealed frame announces %u bytes, at most %zu are allowed",
                length, most);
  }
  if (available < kSealedLengthBytes + length) return MEP_SUCCESS;
  std::vector<std::byte> plain;
  MEP_TRY(opener->open(std::span(buffer).subspan(begin + kSealedLengthBytes, length), &plain));
  FrameHeader header;
  std::memcpy(&header, plain.data(), kHeaderBytes);
  MEP_TRY(check_header(header, payload_limit));
  if (header.payload_bytes != plain.size() - kHeaderBytes || header.descriptors != 0) {
    return fail(MEP_ERR_DENIED, "malformed sealed frame (type %u, %u of %zu bytes)", header.type,
                header.payload_bytes, plain.size() - kHeaderBytes);
  }
  frame->type = header.type;
  frame->payload.assign(plain.begin() + kHeaderBytes, plain.end());
  frame->fds.clear();
  frame->lost_descriptors = false;
  consume(kSealedLengthBytes + length);
  *found = true;
  return MEP_SUCCESS;
}

mep_result_t ControlLink::State::adopt_descriptors(msghdr* message) {
  // Every descriptor is owned before anything is judged, so none can leak.
  Bundle bundle;
  for (cmsghdr* item = CMSG_FIRSTHDR(message); item != nullptr; item = CMSG_NXTHDR(message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof fd, sizeof fd);
      bundle.fds[bundle.count++].reset(fd);  // the kernel fills no more than there is room for
    }
  }
  if ((message->msg_flags & MSG_CTRUNC) != 0) {
    // A process that cannot make one descriptor had no room for these either.
    const UniqueFd probe(fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
    if (probe.valid() && bundle.count == kMaxFrameDescriptors) {
      return fail(MEP_ERR_DENIED, "more descriptors came at once than any frame may carry");
    }
    bundle.is_cut = true;
  }
  if (bundle.count == 0 && !bundle.is_cut) return MEP_SUCCESS;
  if (bundles.size() == kMostBundles) {
    return fail(MEP_ERR_DENIED, "descriptors came for more frames than there are");
  }
  bundles.push_back(std::move(bundle));  // there is room
  return MEP_SUCCESS;
}

// *count 0 without would_block: the end of the stream.
mep_result_t ControlLink::State::read_chunk(size_t* count, bool* would_block) {
  *count = 0;
  *would_block = false;
  if (begin > 0) {
    buffer.erase(buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(begin));
    begin = 0;
  }
  std::array<std::byte, kReadChunkBytes>
      chunk;  // not in `buffer`, which would zero it for each small message
  iovec part{chunk.data(), chunk.size()};
  DescriptorMessage control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t received = 0;
  do {
    received = recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  const int error = errno;
  if (received < 0) {
    if (error == EAGAIN || error == EWOULDBLOCK) {
      *would_block = true;
      return MEP_SUCCESS;
    }
    if (is_connection_end(error)) return MEP_SUCCESS;
    return fail(result_of_errno(error), "recvmsg from a peer failed: %s", strerrordesc_np(error));
  }
  *count = static_cast<size_t>(received);
  buffer.insert(buffer.end(), chunk.begin(), chunk.begin() + received);
  return adopt_descriptors(&message);
}

mep_result_t ControlLink::receive(const std::function<bool(Frame&)>& handler) {
  State& state = *state_;
  if (state.refused) return fail(MEP_ERR_DENIED, "the peer's stream was refused before");
  size_t read_bytes = 0;
  for (;;) {
    Frame frame;
    bool found = false;
    const mep_result_t parsed = state.next_message(&frame, &found);
    if (parsed != MEP_SUCCESS) return state.refuse(parsed);
    if (found) {
      if (!handler(frame)) return MEP_SUCCESS;
      continue;
    }
    if (read_bytes >= kMaxBytesPerReceive) return MEP_SUCCESS;
    size_t count = 0;
    bool would_block = false;
    const mep_result_t read = state.read_chunk(&count, &would_block);
    if (read != MEP_SUCCESS) return state.refuse(read);
    if (would_block) return MEP_SUCCESS;
    if (count == 0) {
      return state.buffer.empty()
                 ? fail(MEP_ERR_PEER_FAILED, "the peer closed its connection")
                 : fail(MEP_ERR_PEER_FAILED, "the peer closed its connection within a frame");
    }
    read_bytes += count;
  }
}

void ControlLink::unread(Frame frame) {
  state_->pushed_back.push_front(std::move(frame));
}

bool ControlLink::has_buffered_input() const {
  return !state_->buffer.empty() || !state_->pushed_back.empty();
}

void ControlLink::shutdown() {
  State& state = *state_;
  {
    const std::lock_guard<std::mutex> lock(state.output_mutex);
    state.output_closed = true;
    state.queue.clear();
    state.queued_bytes = 0;
    state.has_output.store(false, std::memory_order_relaxed);
  }
  ::shutdown(state.socket.get(), SHUT_RDWR);
}

}  // namespace mep
