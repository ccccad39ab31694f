// Input and output are independent: a failed send leaves the input readable, because a peer that
// goes away says why in its last frame.
//
// Invariants
//   - Output: either the queue is empty or all bytes before it were taken by the kernel; frames go
//     out in the order of send() and a frame is queued whole or not at all.
//   - Input: `buffer` from `begin` on is the start of a frame; `bundles` are the descriptors that came
//     with those bytes, in order, one bundle for each frame that has any: the kernel gives one read those
//     of one sendmsg() at most. No partial frame in the buffer means no bundle is left.
#include "core/bootstrap/control_link.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

#include "base/status.hpp"
#include "base/system_error.hpp"

namespace mep {
namespace {

constexpr uint32_t kFrameMagic = 0x3150454d;  // "MEP1"
constexpr size_t kHeaderBytes = 16;
// Many rows of a large world fit; whoever reads none of them for so long does not live.
constexpr size_t kMaxQueuedBytes = size_t{256} << 20;

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

// The peer is gone, or cannot be reached.
bool is_connection_end(int error) {
  switch (error) {
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
    case EBADF:
    // TCP: nobody there, no way there, or no answer for too long.
    case ECONNREFUSED:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case ETIMEDOUT:
      return true;
    default:
      return false;
  }
}

// The answer of sendmsg, without EINTR; descriptors go with the first byte.
ssize_t send_some(int socket, iovec* parts, size_t count, std::span<const int> fds) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  DescriptorMessage control{};
  if (!fds.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(item), fds.data(), fds.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

[[nodiscard]] mep_result_t send_error(int error) {
  if (is_connection_end(error)) {
    return fail(MEP_ERR_PEER_FAILED, "the peer closed its connection");
  }
  if (error == ETOOMANYREFS) {
    return fail(MEP_ERR_NO_MEMORY,
                "too many descriptors are on their way between this user's processes; raise the "
                "limit of open files (ulimit -n)");
  }
  return fail(result_of_errno(error), "sendmsg to a peer failed: %s", strerrordesc_np(error));
}

[[nodiscard]] mep_result_t duplicate(std::span<const int> fds, std::vector<UniqueFd>* out) {
  for (const int fd : fds) {
    UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
      return fail(result_of_errno(errno), "a descriptor cannot be duplicated: %s",
                  strerrordesc_np(errno));
    }
    out->push_back(std::move(copy));
  }
  return MEP_SUCCESS;
}

}  // namespace

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

// --- Receiving --------------------------------------------------------------------------------------

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

// --- Sending ----------------------------------------------------------------------------------------

void ControlLink::State::close_output() {
  output_closed = true;
  ::shutdown(socket.get(), SHUT_WR);
}

mep_result_t ControlLink::State::enqueue(std::span<const std::byte> head,
                                         std::span<const std::byte> body,
                                         std::span<const int> fds_left, size_t already_sent) {
  QueuedFrame frame;
  MEP_TRY(duplicate(fds_left, &frame.fds));
  frame.bytes.assign(head.begin(), head.end());
  frame.bytes.insert(frame.bytes.end(), body.begin(), body.end());
  frame.sent = already_sent;
  const size_t total = frame.bytes.size();
  queue.push_back(std::move(frame));
  queued_bytes += total - already_sent;
  has_output.store(true, std::memory_order_relaxed);
  return MEP_SUCCESS;
}

// A failure after the first byte, or of a sealed frame, which the peer would miss, ends the output.
mep_result_t ControlLink::State::send_parts(std::span<const std::byte> head,
                                            std::span<const std::byte> body,
                                            std::span<const int> given) {
  size_t sent = 0;
  mep_result_t result = MEP_SUCCESS;
  if (queue.empty()) {
    // sendmsg only reads what iov_base points to; its type just lacks the const.
    std::array<iovec, 2> parts{iovec{const_cast<std::byte*>(head.data()), head.size()},
                               iovec{const_cast<std::byte*>(body.data()), body.size()}};
    const ssize_t count = send_some(socket.get(), parts.data(), parts.size(), given);
    if (count >= 0) {
      sent = static_cast<size_t>(count);
      if (sent == head.size() + body.size()) return MEP_SUCCESS;
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
      result = send_error(errno);
      if (result == MEP_ERR_PEER_FAILED) output_closed = true;
    }
  }
  if (result == MEP_SUCCESS) {
    try {
      result = enqueue(head, body, sent == 0 ? given : std::span<const int>{}, sent);
    } catch (const std::bad_alloc&) {
      close_output();
      throw;
    }
  }
  if (result != MEP_SUCCESS && (sent != 0 || sealer != nullptr)) close_output();
  return result;
}

mep_result_t ControlLink::send(uint16_t type, std::span<const std::byte> payload,
                               std::span<const int> fds) {
  const bool in_pieces = payload.size() > kMaxFramePayloadBytes;
  if (type == 0 || (type & kMoreFollows) != 0 || payload.size() > kMaxMessageBytes ||
      fds.size() > kMaxFrameDescriptors || (in_pieces && !fds.empty())) {
    return fail(MEP_ERR_INTERNAL, "frame of type %u with %zu bytes and %zu descriptors", type,
                payload.size(), fds.size());
  }
  State& state = *state_;
  const std::lock_guard<std::mutex> lock(state.output_mutex);
  if (state.output_closed) return fail(MEP_ERR_PEER_FAILED, "the link to the peer is closed");
  if (!state.queue.empty() &&
      state.queued_bytes + kHeaderBytes + payload.size() > state.queue_limit) {
    return fail(MEP_ERR_NO_MEMORY, "the peer reads too slowly: %zu bytes are queued for it",
                state.queued_bytes);
  }
  if (!in_pieces) return state.send_frame(type, payload, fds);
  mep_result_t result = MEP_SUCCESS;
  while (result == MEP_SUCCESS && payload.size() > kMaxFramePayloadBytes) {
    result = state.send_frame(type | kMoreFollows, payload.first(kMaxFramePayloadBytes), {});
    payload = payload.subspan(kMaxFramePayloadBytes);
  }
  if (result == MEP_SUCCESS) result = state.send_frame(type, payload, {});
  // The peer would take what comes next for another piece.
  if (result != MEP_SUCCESS) state.close_output();
  return result;
}

mep_result_t ControlLink::State::send_frame(uint16_t type, std::span<const std::byte> payload,
                                            std::span<const int> given) {
  FrameHeader header;
  header.type = type;
  header.descriptors = static_cast<uint16_t>(given.size());
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  const std::span<const std::byte> head = std::as_bytes(std::span(&header, 1));
  if (sealer == nullptr) return send_parts(head, payload, given);
  if (!given.empty()) {
    return fail(MEP_ERR_INTERNAL, "a frame of type %u with descriptors for another host", type);
  }
  return send_parts(sealer->seal(head, payload), {}, {});
}

bool ControlLink::has_queued_output() const {
  return state_->has_output.load(std::memory_order_relaxed);
}

mep_result_t ControlLink::State::flush_locked() {
  while (!queue.empty()) {
    QueuedFrame& frame = queue.front();
    std::array<int, kMaxFrameDescriptors> numbers{};
    for (size_t i = 0; i < frame.fds.size(); ++i) numbers[i] = frame.fds[i].get();
    iovec part{frame.bytes.data() + frame.sent, frame.bytes.size() - frame.sent};
    const ssize_t count =
        send_some(socket.get(), &part, 1, std::span<const int>(numbers.data(), frame.fds.size()));
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return MEP_SUCCESS;
      return send_error(errno);
    }
    frame.fds.clear();
    frame.sent += static_cast<size_t>(count);
    queued_bytes -= static_cast<size_t>(count);
    if (frame.sent == frame.bytes.size()) queue.pop_front();
  }
  has_output.store(false, std::memory_order_relaxed);
  return MEP_SUCCESS;
}

mep_result_t ControlLink::flush_output() {
  State& state = *state_;
  const std::lock_guard<std::mutex> lock(state.output_mutex);
  if (state.output_closed) return fail(MEP_ERR_PEER_FAILED, "the link to the peer is closed");
  const mep_result_t result = state.flush_locked();
  if (result == MEP_ERR_PEER_FAILED) {
    state.output_closed = true;
    state.queue.clear();
    state.queued_bytes = 0;
    state.has_output.store(false, std::memory_order_relaxed);
  }
  return result;
}

}  // namespace mep
