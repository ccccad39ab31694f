// Takes the bytes that come from a peer: see peer.hpp.
#include "transport/tcp/peer.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/doorbell.hpp"

namespace mep::tcp {
namespace {

constexpr size_t kTargetBufferBytes = 4096;  // of the buffer, while a target is open
constexpr size_t kDirectBytes = 4096;        // more than this lands without the buffer
constexpr int kMaxLooks = 64;  // at sockets, which others may wait for to close a target

}  // namespace

bool TcpPeer::receive(const WindowExports& exports, size_t stream) {
  const std::unique_lock lock(in_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || stream >= streams_.size() || state() == State::kConnecting) return false;
  int looks = kMaxLooks;
  Stream* const first = streams_[0].get();
  bool active = read(exports, streams_[stream].get(), &looks);
  while (hold_.stream != 0 && first->socket.valid()) {
    Stream* const other = streams_[hold_.stream].get();
    const auto has_come = [&] { return other->in.landed_bytes >= hold_.bytes; };
    if (!has_come()) active = read(exports, other, &looks) || active;
    if (!has_come() && other->is_ended) fail_receiving("it closed one of its connections");
    if (!has_come()) break;
    hold_.stream = 0;
    looks = std::max(looks, 1);  // no event tells of what is in the buffer
    active = read(exports, first, &looks) || active;
  }
  if (hold_.is_unwatched != (hold_.stream != 0)) watch_hold();
  return active;
}

// Under in_mutex_.
void TcpPeer::watch_hold() {
  const std::lock_guard lock(out_mutex_);
  hold_.is_unwatched = hold_.stream != 0;
  if (streams_[0]->socket.valid()) watch(*streams_[0]);
}

// Takes all that is there on one connection and need not wait. Whether something was.
bool TcpPeer::read(const WindowExports& exports, Stream* stream, int* looks) {
  bool active = false;
  bool more = true;
  while (more && *looks > 0 && stream->socket.valid() && !stream->is_ended &&
         (stream->number != 0 || hold_.stream == 0)) {
    --*looks;
    const bool got = agreed_.protection == Protection::kPlain ? read_plain(exports, stream, &more)
                                                              : read_sealed(exports, stream, &more);
    if (!got) break;
    active = true;
  }
  return active;
}

// Under in_mutex_ alone. The first connection is still read: a peer that leaves closes that one too.
void TcpPeer::end_receiving(Stream* stream, const char* reason, int error) {
  if (stream->number == 0) return fail_receiving(reason, error);
  const std::lock_guard lock(out_mutex_);
  stream->is_ended = true;
  events_->ignore_data(*stream);
  if (error != 0 || stream->out.unsent() != 0) fail_sending(reason, error);
}

// One look at the socket. False: nothing was there, or the connection has ended. *more: perhaps there
// is more.
bool TcpPeer::read_plain(const WindowExports& exports, Stream* stream, bool* more) {
  Incoming& in = stream->in;
  if (in.rest_bytes != 0) {
    return take(exports, stream, in.rest_at, std::exchange(in.rest_bytes, 0)) != Taken::kEnded;
  }
  // The rest of a large put goes straight to its window, and what follows it to the buffer.
  iovec pieces[2];
  int count = 0;
  size_t direct = 0;
  // Little of what comes for a target should go through the buffer.
  const size_t room = targets_.open.empty() ? in.buffer.size() : kTargetBufferBytes;
  if (in.landing.left >= kDirectBytes && in.landing.at != nullptr) {
    direct = in.landing.left;
    pieces[count++] = {in.landing.at, direct};
  }
  pieces[count++] = {in.buffer.data(), room};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = static_cast<size_t>(count);
  const int socket = stream->socket.get();
  const ssize_t got = count == 1 ? ::recv(socket, in.buffer.data(), room, MSG_DONTWAIT)
                                 : ::recvmsg(socket, &message, MSG_DONTWAIT);
  if (got < 0) {
    *more = errno == EINTR;
    if (!is_retry(errno) && errno != EINTR) {
      end_receiving(stream, "receiving from it failed", errno);
    }
    return *more;
  }
  if (got == 0) {
    *more = false;
    end_receiving(stream, "it closed its connection");
    return false;
  }
  const auto bytes = static_cast<size_t>(got);
  *more = bytes == direct + room;
  const size_t landed = std::min(bytes, direct);
  if (landed != 0) in.land(landed);
  if (bytes != landed && take(exports, stream, 0, bytes - landed) == Taken::kEnded) *more = false;
  return true;
}

bool TcpPeer::read_sealed(const WindowExports& exports, Stream* stream, bool* more) {
  static_assert(kBufferBytes > kMaxRecordBodyBytes + kRecordOverhead);
  Incoming& in = stream->in;
  if (in.opened == 0) {
    const size_t room = in.buffer.size() - in.buffered;
    const ssize_t got =
        ::recv(stream->socket.get(), in.buffer.data() + in.buffered, room, MSG_DONTWAIT);
    if (got <= 0) {
      *more = got < 0 && errno == EINTR;
      if (got == 0) {
        end_receiving(stream, "it closed its connection");
      } else if (!is_retry(errno) && errno != EINTR) {
        end_receiving(stream, "receiving from it failed", errno);
      }
      return *more;
    }
    *more = static_cast<size_t>(got) == room;
    in.buffered += static_cast<size_t>(got);
  }
  Taken taken = take(exports, stream, in.rest_at, std::exchange(in.rest_bytes, 0));
  while (taken == Taken::kAll) {
    size_t body = 0;
    std::byte* record = in.buffer.data() + in.opened;
    const size_t there = in.buffered - in.opened;
    const Parse parsed = parse_record_header({record, there}, &body);
    if (parsed == Parse::kMalformed) {
      deny("it sent a record of impossible length");
      return *more = false;
    }
    if (parsed == Parse::kIncomplete || there < body + kRecordOverhead) break;
    if (const char* trouble = in.key.open(record, body)) {
      deny(trouble);
      return *more = false;
    }
    const size_t at = in.opened + kRecordHeaderBytes;
    in.opened += body + kRecordOverhead;
    taken = take(exports, stream, at, body);
  }
  if (taken == Taken::kEnded) return *more = false;
  if (taken == Taken::kHeld) return true;
  in.buffered -= in.opened;
  if (in.opened != 0 && in.buffered != 0) {
    std::memmove(in.buffer.data(), in.buffer.data() + in.opened, in.buffered);
  }
  in.opened = 0;
  return true;
}

// The next bytes of the stream of frames.
TcpPeer::Taken TcpPeer::take(const WindowExports& exports, Stream* stream, size_t at,
                             size_t count) {
  Incoming& in = stream->in;
  while (count > 0) {
    const std::byte* bytes = in.buffer.data() + at;
    size_t used = 0;
    if (in.landing.left > 0) {
      used = std::min(count, in.landing.left);
      if (in.landing.at != nullptr) std::memcpy(in.landing.at, bytes, used);
      in.land(used);
      at += used;
      count -= used;
      continue;
    }
    DataFrame frame;
    if (in.partial_bytes == 0) {
      const Parse parsed = parse_frame({bytes, count}, &frame, &used);
      if (parsed == Parse::kMalformed) return deny("it sent bytes that are no frame");
      if (parsed == Parse::kIncomplete) {
        std::memcpy(in.partial, bytes, count);
        in.partial_bytes = count;
        return Taken::kAll;
      }
      at += used;
      count -= used;
    } else {
      // Byte for byte would do; a header is the least that a frame has.
      const size_t want = in.partial_bytes < kFrameHeaderBytes ? kFrameHeaderBytes : kSignalBytes;
      const size_t part = std::min(count, want - in.partial_bytes);
      std::memcpy(in.partial + in.partial_bytes, bytes, part);
      in.partial_bytes += part;
      at += part;
      count -= part;
      const Parse parsed = parse_frame({in.partial, in.partial_bytes}, &frame, &used);
      if (parsed == Parse::kMalformed) return deny("it sent bytes that are no frame");
      if (parsed == Parse::kIncomplete) continue;
      in.partial_bytes = 0;
    }
    const Taken taken = take_frame(exports, stream, frame);
    if (taken == Taken::kHeld) {
      in.rest_at = at;
      in.rest_bytes = count;
    }
    if (taken != Taken::kAll) return taken;
  }
  return Taken::kAll;
}

TcpPeer::Taken TcpPeer::take_frame(const WindowExports& exports, Stream* stream,
                                   const DataFrame& frame) {
  Landing& landing = stream->in.landing;
  landing.number = 0;
  const bool is_first = stream->number == 0;
  if (frame.kind == FrameKind::kMark) return take_mark(&stream->in, is_first, frame);
  if (!is_first && (frame.kind == FrameKind::kAfter || frame.kind == FrameKind::kSignal)) {
    return deny("it sent a frame on the wrong one of its connections");
  }
  if (frame.kind == FrameKind::kAfter) return take_after(frame);
  const bool is_late = stream->in.marked < let_in_from_.load(std::memory_order_relaxed);
  if (frame.kind == FrameKind::kTarget) return take_target(&landing, frame, is_late);
  std::shared_ptr<Window> window;
  if (!exports.find(frame.token, &window))
    return deny("it sent a frame for no window of this rank");
  if (window != nullptr) {
    if (frame.offset + frame.bytes > window->bytes()) {
      return deny("it sent a frame beyond the end of its window");
    }
    if (window->id() == kWorldWindowId && frame.offset < sizeof(Doorbell)) {
      return deny("it sent a frame for the doorbell");
    }
  }
  if (is_late) window.reset();
  if (frame.kind == FrameKind::kSignal) return take_signal(frame, window.get(), exports);
  landing.left = frame.bytes;
  landing.at = window == nullptr ? nullptr : window->data() + frame.offset;
  landing.window = std::move(window);
  return Taken::kAll;
}

// That of the first one counts: all that was put before it is there.
TcpPeer::Taken TcpPeer::take_mark(Incoming* in, bool is_first, const DataFrame& frame) {
  if (frame.offset < in->marked) return deny("it sent a mark out of order");
  in->marked = frame.offset;
  if (is_first) marked_.store(frame.offset, std::memory_order_release);
  return Taken::kAll;
}

TcpPeer::Taken TcpPeer::take_after(const DataFrame& frame) {
  if (frame.token == 0 || frame.token >= streams_.size()) {
    return deny("it named a connection that it does not have");
  }
  if (streams_[frame.token]->in.landed_bytes >= frame.offset) return Taken::kAll;
  hold_.stream = frame.token;
  hold_.bytes = frame.offset;
  return Taken::kHeld;
}

TcpPeer::Taken TcpPeer::take_target(Landing* landing, const DataFrame& frame, bool is_late) {
  if (frame.token == 0 || frame.token > targets_.last) {
    return deny("it sent a frame for no target of this rank");
  }
  const auto found = std::find_if(targets_.open.begin(), targets_.open.end(),
                                  [&](const Target& each) { return each.number == frame.token; });
  const bool is_open = found != targets_.open.end() && !is_late;
  if (is_open && frame.offset + frame.bytes > found->bytes) {
    return deny("it sent a frame beyond the end of its target");
  }
  landing->left = frame.bytes;
  landing->number = frame.token;
  landing->at = is_open ? found->memory + frame.offset : nullptr;
  return Taken::kAll;
}

void TcpPeer::open_target(uint64_t number, std::byte* memory, size_t bytes) {
  const std::lock_guard lock(in_mutex_);
  targets_.open.push_back({number, memory, bytes});
  targets_.last = std::max(targets_.last, number);
}

void TcpPeer::close_target(uint64_t number) {
  const std::lock_guard lock(in_mutex_);
  std::erase_if(targets_.open, [&](const Target& each) { return each.number == number; });
  for (const auto& stream : streams_) {
    if (stream->in.landing.number == number) stream->in.landing.at = nullptr;
  }
}

TcpPeer::Taken TcpPeer::take_signal(const DataFrame& frame, Window* window,
                                    const WindowExports& exports) {
  if (window == nullptr) return Taken::kAll;
  auto* word = reinterpret_cast<std::atomic<uint64_t>*>(window->data() + frame.offset);
  if (frame.wake && exports.doorbell() != nullptr) {
    doorbell_signal(exports.doorbell(), word, frame.word);
  } else {
    word->store(frame.word, std::memory_order_release);  // publishes the puts before it
  }
  return Taken::kAll;
}

TcpPeer::Taken TcpPeer::deny(const char* what) {
  fail_receiving(what);
  return Taken::kEnded;
}

}  // namespace mep::tcp
