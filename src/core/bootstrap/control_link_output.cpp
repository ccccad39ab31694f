// The sending side of a control link: frames in order, whole or not at all.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/status.hpp"
#include "base/system_error.hpp"
#include "core/bootstrap/control_link_state.hpp"

namespace mep {

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

namespace {

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
