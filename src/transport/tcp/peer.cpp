#include "transport/tcp/peer.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/failpoint.hpp"
#include "base/status.hpp"
#include "transport/doorbell.hpp"

namespace mep::tcp {
namespace {

constexpr size_t kCopyBytes = 4096;                  // a put up to here is copied
constexpr size_t kSendNowBytes = size_t{128} << 10;  // more than this does not wait for a signal
constexpr size_t kSpreadBytes = size_t{64} << 10;    // a put from here on takes any connection
constexpr size_t kSealedBytes = size_t{256} << 10;
// The bytes of a record that is sent. It is sealed within the nearest cache, and a receiver moves little of one that has
// not come whole.
constexpr size_t kSealAtOnceBytes = size_t{16} << 10;
static_assert(kSealAtOnceBytes <= kMaxRecordBodyBytes);
constexpr int kMaxPieces = 64;
static_assert(kCopyBytes + kFrameHeaderBytes <= OutQueue::kMaxCopyBytes);

constexpr const char* kNoMemory = "there is no memory for what waits to be sent to it";

}  // namespace

size_t max_queued_bytes = size_t{256} << 20;
uint64_t first_record_number = 0;

// --- Windows --------------------------------------------------------------------------------------

uint64_t WindowExports::add(const std::shared_ptr<Window>& window) {
  for (const auto& [token, known] : windows_) {
    if (!known.owner_before(window) && !window.owner_before(known)) return token;
  }
  uint64_t token = 0;
  while (token == 0 || windows_.contains(token)) randombytes_buf(&token, sizeof token);
  windows_[token] = window;
  if (window->id() == kWorldWindowId && window->bytes() >= sizeof(Doorbell)) {
    world_window_ = window;
    doorbell_ = reinterpret_cast<Doorbell*>(window->data());
  }
  // The last few windows that are gone are remembered: data that is late for them is no offence.
  constexpr size_t kMostKnown = 65536;
  if (windows_.size() > kMostKnown) {
    std::erase_if(windows_, [](const auto& entry) { return entry.second.expired(); });
  }
  return token;
}

bool WindowExports::find(uint64_t token, std::shared_ptr<Window>* out) const {
  const auto found = windows_.find(token);
  if (found == windows_.end()) return false;
  *out = found->second.lock();
  return true;
}

// --- The connection's life ------------------------------------------------------------------------

bool TcpPeer::add_stream(UniqueFd* socket, const Hello& hello, const Challenge& challenge) {
  const std::scoped_lock lock(in_mutex_, out_mutex_);
  if (state() != State::kConnecting || hello.stream != made_) return false;
  const Agreement agreed{challenge.chosen, challenge.cipher, challenge.streams};
  if (made_ == 0) {
    agreed_ = agreed;
    for (size_t number = 1; number < agreed.streams; ++number) {
      streams_.push_back(std::make_unique<Stream>());
      streams_.back()->number = number;
    }
  } else if (agreed != agreed_) {
    end_connecting("its connections differ in protection, cipher or number");
    return false;
  }
  Stream& stream = *streams_[made_];
  if (challenge.chosen != Protection::kPlain) {
    stream.out.key = RecordKey(session_, hello, challenge, connects(), first_record_number);
    stream.in.key = RecordKey(session_, hello, challenge, !connects(), first_record_number);
    if (!stream.out.key.valid() || !stream.in.key.valid()) {
      end_connecting(std::string("libcrypto makes no ") + cipher_name(challenge.cipher));
      return false;
    }
    stream.out.sealed.resize(kSealedBytes);
  }
  stream.in.buffer.resize(kBufferBytes);
  stream.socket = std::move(*socket);
  ++made_;
  return true;
}

void TcpPeer::establish() {
  const std::scoped_lock lock(in_mutex_, out_mutex_);
  if (state() != State::kConnecting) return;
  state_.store(State::kUp, std::memory_order_release);
  // The first one has all that waits, maybe with a mark.
  for (size_t i = 1; i < streams_.size() && sent_mark_ != 0; ++i) {
    queue_mark(streams_[i].get());
  }
  send_queued();
}

void TcpPeer::fail_connecting(std::string reason) {
  const std::scoped_lock lock(in_mutex_, out_mutex_);
  if (state() == State::kConnecting) end_connecting(std::move(reason));
}

// Under both mutexes.
void TcpPeer::end_connecting(std::string reason) {
  failure_text_ = std::move(reason);
  fail_sending("");
  for (const auto& stream : streams_) stream->socket.reset();
}

const char* TcpPeer::text() const {
  if (state() != State::kUp) return "tcp";
  switch (agreed_.protection) {
    case Protection::kPlain:
      return "tcp";
    case Protection::kAuthenticated:
      return agreed_.cipher == Cipher::kAes256Gcm ? "tcp (authenticated by AES-256-GCM)"
                                                  : "tcp (authenticated by ChaCha20-Poly1305)";
    case Protection::kEncrypted:
      return agreed_.cipher == Cipher::kAes256Gcm ? "tcp (encrypted by AES-256-GCM)"
                                                  : "tcp (encrypted by ChaCha20-Poly1305)";
  }
  return "tcp";
}

bool TcpPeer::take_failure(PeerFailure* out) {
  const std::lock_guard lock(out_mutex_);
  if (!is_failure_untold_) return false;
  out->reason = failure_text_ + failure_reason_;
  if (failure_error_ != 0) out->reason += std::string(": ") + strerrordesc_np(failure_error_);
  out->slot = identity_.slot;
  out->incarnation = identity_.incarnation;
  is_failure_untold_ = false;
  return true;
}

mep_result_t TcpPeer::check_up() const {
  switch (state()) {
    case State::kFailed:
      return fail(MEP_ERR_PEER_FAILED, "the tcp connection to slot %u is lost", identity_.slot);
    case State::kGivenUp:
      return fail(MEP_ERR_PEER_FAILED, "slot %u was given up", identity_.slot);
    case State::kFenced:
      return fail(MEP_ERR_PEER_FAILED, "slot %u is fenced out of tcp", identity_.slot);
    default:
      return MEP_SUCCESS;
  }
}

// Under out_mutex_.
void TcpPeer::forget_queued() {
  for (const auto& stream : streams_) stream->out.forget();
  blocked_.store(false, std::memory_order_relaxed);
}

// Under out_mutex_. The sockets are closed by whoever receives: what came before may still land.
void TcpPeer::fail_sending(const char* reason, int error) {
  if (state() == State::kFailed || state() == State::kFenced) return;
  const bool is_new = state() != State::kGivenUp;
  state_.store(State::kFailed, std::memory_order_release);
  for (const auto& stream : streams_) {
    if (stream->socket.valid()) ::shutdown(stream->socket.get(), SHUT_WR);
  }
  forget_queued();
  if (!is_new) return;
  is_failure_untold_ = true;
  failure_reason_ = reason;
  failure_error_ = error;
  events_->peer_failed();
}

// Under in_mutex_ alone.
void TcpPeer::fail_receiving(const char* reason, int error) {
  const std::lock_guard lock(out_mutex_);
  fail_sending(reason, error);
  for (const auto& stream : streams_) {
    stream->socket.reset();
    stream->in.landing.forget();
  }
}

void TcpPeer::fence() {
  const std::scoped_lock lock(in_mutex_, out_mutex_);
  state_.store(State::kFenced, std::memory_order_release);
  forget_queued();
  for (const auto& stream : streams_) {
    stream->socket.reset();
    stream->in.forget();
  }
}

void TcpPeer::give_up() {
  const std::lock_guard lock(out_mutex_);
  if (state() == State::kFailed || state() == State::kFenced) return;
  state_.store(State::kGivenUp, std::memory_order_release);
  const bool were_blocked = blocked();
  forget_queued();
  if (!were_blocked) return;
  for (const auto& stream : streams_) watch(*stream);
}

// --- Sending --------------------------------------------------------------------------------------

// Under out_mutex_. Without memory for it the peer would miss something: it gets nothing more.
template <typename Queue>
void TcpPeer::queue_whole(Queue&& queue) {
  try {
    queue();
  } catch (const std::bad_alloc&) {
    fail_sending(kNoMemory);
    throw;
  }
}

// Under out_mutex_. The one with the least to send, the first of those in turn.
Stream* TcpPeer::stream_for(size_t bytes) {
  Stream* best = streams_.front().get();
  if (bytes < kSpreadBytes || state() != State::kUp) return best;
  const auto load = [](const Stream& each) {
    return std::pair(each.out.unsent(), each.out.put_bytes);
  };
  for (const auto& each : streams_) {
    if (!each->is_ended && load(*each) < load(*best)) best = each.get();
  }
  return best;
}

// Returns the bytes of puts there since the socket was last tried.
size_t TcpPeer::queue_put(FrameKind kind, uint64_t token, uint64_t offset, const std::byte* from,
                          size_t bytes) {
  Outgoing& out = stream_for(bytes)->out;
  out.put_bytes += bytes;
  out.untried_bytes += bytes;
  DataFrame frame;
  frame.kind = kind;
  frame.token = token;
  if (bytes <= kCopyBytes) {
    frame.offset = offset;
    frame.bytes = static_cast<uint32_t>(bytes);
    std::byte* place = out.queue.extend(kFrameHeaderBytes + bytes);
    encode_frame(frame, place);
    std::memcpy(place + kFrameHeaderBytes, from, bytes);
    return out.untried_bytes;
  }
  for (size_t done = 0; done < bytes; done += frame.bytes) {
    frame.offset = offset + done;
    frame.bytes = static_cast<uint32_t>(std::min<size_t>(bytes - done, kMaxPutBytes));
    encode_frame(frame, out.queue.extend(kFrameHeaderBytes));
    out.queue.append_external(from + done, frame.bytes, posted_ + 1);
  }
  return out.untried_bytes;
}

// Under out_mutex_. All that follows on the first connection takes effect after the puts that others have.
void TcpPeer::queue_after() {
  for (size_t i = 1; i < streams_.size(); ++i) {
    Outgoing& out = streams_[i]->out;
    if (out.put_bytes == out.told_bytes) continue;
    const DataFrame frame{FrameKind::kAfter, false, 0, i, out.put_bytes, 0};
    encode_frame(frame, streams_[0]->out.queue.extend(kFrameHeaderBytes));
    out.told_bytes = out.put_bytes;
  }
}

// Under out_mutex_.
void TcpPeer::queue_mark(Stream* stream) const {
  const DataFrame frame{FrameKind::kMark, false, 0, 0, sent_mark_, 0};
  encode_frame(frame, stream->out.queue.extend(kFrameHeaderBytes));
}

size_t TcpPeer::queued_bytes() const {
  size_t bytes = 0;
  for (const auto& stream : streams_) bytes += stream->out.queue.bytes();
  return bytes;
}

// Under out_mutex_.
mep_result_t TcpPeer::check_room() {
  if (queued_bytes() <= max_queued_bytes) return MEP_SUCCESS;
  send_queued();
  MEP_TRY(check_up());
  return queued_bytes() <= max_queued_bytes ? MEP_SUCCESS : kWouldBlock;
}

mep_result_t TcpPeer::put(FrameKind kind, uint64_t token, uint64_t offset, const void* local,
                          size_t bytes) {
  const std::lock_guard lock(out_mutex_);
  MEP_TRY(check_up());
  MEP_TRY(check_room());
  size_t untried = 0;
  queue_whole([&] {
    untried = queue_put(kind, token, offset, static_cast<const std::byte*>(local), bytes);
  });
  ++posted_;
  // A test may stop or kill this process with a part of the put sent.
  if (failpoints_armed.load(std::memory_order_relaxed)) [[unlikely]] {
    send_queued();
    MEP_FAILPOINT("put half");
  }
  if (untried >= kSendNowBytes) send_queued();
  return MEP_SUCCESS;
}

mep_result_t TcpPeer::signal(uint64_t token, uint64_t offset, uint64_t word, bool wake) {
  const std::lock_guard lock(out_mutex_);
  MEP_TRY(check_up());
  MEP_TRY(check_room());
  const DataFrame frame{FrameKind::kSignal, wake, sizeof word, token, offset, word};
  queue_whole([&] {
    queue_after();
    encode_frame(frame, streams_[0]->out.queue.extend(kSignalBytes));
  });
  ++posted_;
  send_queued();
  return MEP_SUCCESS;
}

bool TcpPeer::quiesced(uint64_t number) {
  const std::lock_guard lock(out_mutex_);
  // One that is lost is sent none, and its own does not come either.
  if (sent_mark_ < number && check_up() == MEP_SUCCESS) {
    sent_mark_ = number;
    queue_whole([&] {
      queue_after();
      for (const auto& stream : streams_) queue_mark(stream.get());
    });
    send_queued();
  }
  if (state() == State::kConnecting) {
    let_in_from_.store(number, std::memory_order_relaxed);
    return sent_mark_ >= number;
  }
  return (sent_mark_ >= number || state() != State::kUp) && marked() >= number;
}

Completion TcpPeer::completion(bool is_urgent) {
  const std::lock_guard lock(out_mutex_);
  if (is_urgent) {
    send_queued();
    try {
      for (const auto& stream : streams_) stream->out.queue.own_all();
    } catch (const std::bad_alloc&) {
      // The caller's memory must not be read any more. Destructors come here.
      fail_sending(kNoMemory);
    }
  }
  uint64_t completed = posted_;
  for (const auto& stream : streams_) {
    const uint64_t first = stream->out.queue.first_external();
    if (first != 0) completed = std::min(completed, first - 1);
  }
  return {posted_, completed};
}

void TcpPeer::send_left() {
  const std::unique_lock lock(out_mutex_, std::try_to_lock);
  if (lock.owns_lock()) send_queued();
}

bool TcpPeer::watch_left() {
  const std::lock_guard lock(out_mutex_);
  for (const auto& stream : streams_) {
    if (stream->out.is_blocked) events_->watch_left(identity_.slot, stream->socket.get());
  }
  return blocked();
}

bool TcpPeer::seal_queued(Outgoing* out) {
  out->sealed_bytes = out->sealed_sent = 0;
  while (!out->queue.empty() &&
         out->sealed_bytes + kSealAtOnceBytes + kRecordOverhead <= out->sealed.size()) {
    std::byte* record = out->sealed.data() + out->sealed_bytes;
    const size_t body = out->queue.copy_front(record + kRecordHeaderBytes, kSealAtOnceBytes);
    out->queue.consume(body);
    if (const char* trouble = out->key.seal(record, body)) {
      fail_sending(trouble);
      return false;
    }
    out->sealed_bytes += body + kRecordOverhead;
  }
  return true;
}

// Under out_mutex_.
void TcpPeer::watch(const Stream& stream) {
  if (stream.is_ended) return;
  const bool is_read = stream.number != 0 || !hold_.is_unwatched;
  events_->watch_data(identity_.slot, stream,
                      (is_read ? EPOLLIN : 0u) | (stream.out.is_blocked ? EPOLLOUT : 0u));
}

// Under out_mutex_: as much as the sockets take now.
void TcpPeer::send_queued() {
  if (state() != State::kUp) return;
  bool is_blocked = false;
  for (const auto& stream : streams_) {
    if (!send_stream(stream.get())) return;
    is_blocked = is_blocked || stream->out.is_blocked;
  }
  if (is_blocked != blocked()) blocked_.store(is_blocked, std::memory_order_relaxed);
}

bool TcpPeer::send_stream(Stream* stream) {
  const bool seals = agreed_.protection != Protection::kPlain;
  Outgoing* const out = &stream->out;
  out->untried_bytes = 0;
  while (out->unsent() != 0) {
    iovec pieces[kMaxPieces];
    int count = 0;
    if (seals) {
      if (out->sealed_sent == out->sealed_bytes && !seal_queued(out)) return false;
      pieces[0] = {out->sealed.data() + out->sealed_sent, out->sealed_bytes - out->sealed_sent};
      count = 1;
    } else {
      count = out->queue.pieces(pieces, kMaxPieces);
    }
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = static_cast<size_t>(count);
    const int socket = stream->socket.get();
    const ssize_t sent = count == 1 ? ::send(socket, pieces[0].iov_base, pieces[0].iov_len,
                                             MSG_NOSIGNAL | MSG_DONTWAIT)
                                    : ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (is_retry(errno)) {
        if (!std::exchange(out->is_blocked, true)) watch(*stream);
        blocked_.store(true, std::memory_order_relaxed);
        events_->peer_blocked(identity_.slot, socket);
        return true;
      }
      fail_sending("sending to it failed", errno);
      return false;
    }
    if (seals) {
      out->sealed_sent += static_cast<size_t>(sent);
    } else {
      out->queue.consume(static_cast<size_t>(sent));
    }
  }
  if (std::exchange(out->is_blocked, false)) watch(*stream);
  return true;
}

}  // namespace mep::tcp
