#include "transport/tcp/peer.hpp"

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
// For what is received; below the size from which malloc maps memory by itself, peer by peer.
constexpr size_t kBufferBytes = size_t{96} << 10;
constexpr size_t kTargetBufferBytes = 4096;  // of it, while a target is open
constexpr size_t kDirectBytes = 4096;        // more than this lands without the buffer
constexpr size_t kSealedBytes = size_t{256} << 10;
// The bytes of a record that is sent. It is sealed within the nearest cache, and a receiver moves little of one that has
// not come whole.
constexpr size_t kSealAtOnceBytes = size_t{16} << 10;
static_assert(kSealAtOnceBytes <= kMaxRecordBodyBytes);
constexpr int kMaxPieces = 64;
constexpr int kMaxLooks = 64;  // at a socket, which others may wait for to close a target
static_assert(kCopyBytes + kFrameHeaderBytes <= OutQueue::kMaxCopyBytes);

constexpr const char* kNoMemory = "there is no memory for what waits to be sent to it";
constexpr size_t kRecordOverhead = kRecordHeaderBytes + kRecordTagBytes;

bool is_retry(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS;
}

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

bool TcpPeer::establish(UniqueFd* socket, const Hello& hello, const Challenge& challenge) {
  const std::scoped_lock lock(in_mutex_, out_mutex_);
  if (state() != State::kConnecting) return false;
  const bool seals = challenge.chosen != Protection::kPlain;
  if (seals) {
    out_key_ = RecordKey(session_, hello, challenge, connects(), first_record_number);
    in_key_ = RecordKey(session_, hello, challenge, !connects(), first_record_number);
    if (!out_key_.valid() || !in_key_.valid()) {
      failure_text_ = std::string("libcrypto makes no ") + cipher_name(challenge.cipher);
      fail_sending("");
      return false;
    }
    sealed_.resize(kSealedBytes);
  }
  buffer_.resize(kBufferBytes);
  agreed_ = {challenge.chosen, challenge.cipher};
  socket_ = std::move(*socket);
  state_.store(State::kUp, std::memory_order_release);
  send_queued();
  return true;
}

void TcpPeer::fail_connecting(std::string reason) {
  const std::scoped_lock lock(in_mutex_, out_mutex_);
  if (state() != State::kConnecting) return;
  failure_text_ = std::move(reason);
  fail_sending("");
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
  queue_.clear();
  sealed_bytes_ = sealed_sent_ = 0;
  blocked_.store(false, std::memory_order_relaxed);
}

// Under out_mutex_. The socket is closed by whoever receives: what came before may still land.
void TcpPeer::fail_sending(const char* reason, int error) {
  if (state() == State::kFailed || state() == State::kFenced) return;
  const bool is_new = state() != State::kGivenUp;
  state_.store(State::kFailed, std::memory_order_release);
  if (socket_.valid()) ::shutdown(socket_.get(), SHUT_WR);
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
  socket_.reset();
  landing_.window.reset();
  landing_.at = nullptr;
  landing_.left = 0;
}

void TcpPeer::fence() {
  const std::scoped_lock lock(in_mutex_, out_mutex_);
  state_.store(State::kFenced, std::memory_order_release);
  socket_.reset();
  forget_queued();
  landing_.window.reset();
  landing_.at = nullptr;
  landing_.left = 0;
  partial_bytes_ = 0;
  buffered_ = 0;
}

void TcpPeer::give_up() {
  const std::lock_guard lock(out_mutex_);
  if (state() == State::kFailed || state() == State::kFenced) return;
  state_.store(State::kGivenUp, std::memory_order_release);
  if (blocked()) events_->peer_unblocked(identity_.slot, socket_.get());
  forget_queued();
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

void TcpPeer::queue_put(FrameKind kind, uint64_t token, uint64_t offset, const std::byte* from,
                        size_t bytes) {
  DataFrame frame;
  frame.kind = kind;
  frame.token = token;
  if (bytes <= kCopyBytes) {
    frame.offset = offset;
    frame.bytes = static_cast<uint32_t>(bytes);
    std::byte* place = queue_.extend(kFrameHeaderBytes + bytes);
    encode_frame(frame, place);
    std::memcpy(place + kFrameHeaderBytes, from, bytes);
    return;
  }
  for (size_t done = 0; done < bytes; done += frame.bytes) {
    frame.offset = offset + done;
    frame.bytes = static_cast<uint32_t>(std::min<size_t>(bytes - done, kMaxPutBytes));
    encode_frame(frame, queue_.extend(kFrameHeaderBytes));
    queue_.append_external(from + done, frame.bytes, posted_ + 1);
  }
}

// Under out_mutex_.
mep_result_t TcpPeer::check_room() {
  if (queue_.bytes() <= max_queued_bytes) return MEP_SUCCESS;
  send_queued();
  MEP_TRY(check_up());
  return queue_.bytes() <= max_queued_bytes ? MEP_SUCCESS : kWouldBlock;
}

mep_result_t TcpPeer::put(FrameKind kind, uint64_t token, uint64_t offset, const void* local,
                          size_t bytes) {
  const std::lock_guard lock(out_mutex_);
  MEP_TRY(check_up());
  MEP_TRY(check_room());
  queue_whole([&] { queue_put(kind, token, offset, static_cast<const std::byte*>(local), bytes); });
  ++posted_;
  // A test may stop or kill this process with a part of the put sent.
  if (failpoints_armed.load(std::memory_order_relaxed)) [[unlikely]] {
    send_queued();
    MEP_FAILPOINT("put half");
  }
  if (queue_.bytes() >= kSendNowBytes) send_queued();
  return MEP_SUCCESS;
}

mep_result_t TcpPeer::signal(uint64_t token, uint64_t offset, uint64_t word, bool wake) {
  const std::lock_guard lock(out_mutex_);
  MEP_TRY(check_up());
  MEP_TRY(check_room());
  const DataFrame frame{FrameKind::kSignal, wake, sizeof word, token, offset, word};
  queue_whole([&] { encode_frame(frame, queue_.extend(kSignalBytes)); });
  ++posted_;
  send_queued();
  return MEP_SUCCESS;
}

bool TcpPeer::quiesced(uint64_t number) {
  const std::lock_guard lock(out_mutex_);
  // One that is lost is sent none, and its own does not come either.
  if (sent_mark_ < number && check_up() == MEP_SUCCESS) {
    const DataFrame frame{FrameKind::kMark, false, 0, 0, number, 0};
    queue_whole([&] { encode_frame(frame, queue_.extend(kFrameHeaderBytes)); });
    sent_mark_ = number;
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
      queue_.own_all();
    } catch (const std::bad_alloc&) {
      // The caller's memory must not be read any more. Destructors come here.
      fail_sending(kNoMemory);
    }
  }
  const uint64_t first = queue_.first_external();
  return {posted_, first == 0 ? posted_ : first - 1};
}

void TcpPeer::send_left() {
  const std::unique_lock lock(out_mutex_, std::try_to_lock);
  if (lock.owns_lock()) send_queued();
}

bool TcpPeer::watch_left() {
  const std::lock_guard lock(out_mutex_);
  if (blocked()) events_->watch_left(identity_.slot, socket_.get());
  return blocked();
}

bool TcpPeer::seal_queued() {
  sealed_bytes_ = sealed_sent_ = 0;
  while (!queue_.empty() && sealed_bytes_ + kSealAtOnceBytes + kRecordOverhead <= sealed_.size()) {
    std::byte* record = sealed_.data() + sealed_bytes_;
    const size_t body = queue_.copy_front(record + kRecordHeaderBytes, kSealAtOnceBytes);
    queue_.consume(body);
    if (const char* trouble = out_key_.seal(record, body)) {
      fail_sending(trouble);
      return false;
    }
    sealed_bytes_ += body + kRecordOverhead;
  }
  return true;
}

// Under out_mutex_: as much as the socket takes now.
void TcpPeer::send_queued() {
  if (state() != State::kUp) return;
  const bool seals = agreed_.protection != Protection::kPlain;
  for (;;) {
    iovec pieces[kMaxPieces];
    int count = 0;
    if (seals) {
      if (sealed_sent_ == sealed_bytes_) {
        if (queue_.empty()) break;
        if (!seal_queued()) return;
      }
      pieces[0] = {sealed_.data() + sealed_sent_, sealed_bytes_ - sealed_sent_};
      count = 1;
    } else {
      if (queue_.empty()) break;
      count = queue_.pieces(pieces, kMaxPieces);
    }
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t sent = count == 1
                             ? ::send(socket_.get(), pieces[0].iov_base, pieces[0].iov_len,
                                      MSG_NOSIGNAL | MSG_DONTWAIT)
                             : ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (is_retry(errno)) {
        const bool again = blocked_.exchange(true, std::memory_order_relaxed);
        events_->peer_blocked(identity_.slot, socket_.get(), again);
        return;
      }
      fail_sending("sending to it failed", errno);
      return;
    }
    if (seals) {
      sealed_sent_ += static_cast<size_t>(sent);
    } else {
      queue_.consume(static_cast<size_t>(sent));
    }
  }
  if (!blocked()) return;
  blocked_.store(false, std::memory_order_relaxed);
  events_->peer_unblocked(identity_.slot, socket_.get());
}

// --- Receiving ------------------------------------------------------------------------------------

bool TcpPeer::receive(const WindowExports& exports) {
  const std::unique_lock lock(in_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !socket_.valid()) return false;
  bool active = false;
  bool more = true;
  for (int looks = 0; more && looks < kMaxLooks; ++looks) {
    const bool got = agreed_.protection == Protection::kPlain ? read_plain(exports, &more)
                                                              : read_sealed(exports, &more);
    if (!got) break;
    active = true;
  }
  return active;
}

// One look at the socket. False: nothing was there, or the connection has ended. *more: perhaps there
// is more.
bool TcpPeer::read_plain(const WindowExports& exports, bool* more) {
  // The rest of a large put goes straight to its window, and what follows it to the buffer.
  iovec pieces[2];
  int count = 0;
  size_t direct = 0;
  // Little of what comes for a target should go through the buffer.
  const size_t room = targets_.open.empty() ? buffer_.size() : kTargetBufferBytes;
  if (landing_.left >= kDirectBytes && landing_.at != nullptr) {
    direct = landing_.left;
    pieces[count++] = {landing_.at, direct};
  }
  pieces[count++] = {buffer_.data(), room};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = static_cast<size_t>(count);
  const ssize_t got = count == 1 ? ::recv(socket_.get(), buffer_.data(), room, MSG_DONTWAIT)
                                 : ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (got < 0) {
    *more = errno == EINTR;
    if (!is_retry(errno) && errno != EINTR) {
      fail_receiving("receiving from it failed", errno);
    }
    return *more;
  }
  if (got == 0) {
    *more = false;
    fail_receiving("it closed its connection");
    return false;
  }
  auto bytes = static_cast<size_t>(got);
  *more = bytes == direct + room;
  const size_t landed = std::min(bytes, direct);
  if (direct != 0) {
    landing_.at += landed;
    landing_.left -= landed;
    bytes -= landed;
    if (landing_.left == 0) landing_.window.reset();
  }
  if (bytes != 0 && !take(exports, buffer_.data(), bytes)) *more = false;
  return true;
}

bool TcpPeer::read_sealed(const WindowExports& exports, bool* more) {
  static_assert(kBufferBytes > kMaxRecordBodyBytes + kRecordOverhead);
  const size_t room = buffer_.size() - buffered_;
  const ssize_t got = ::recv(socket_.get(), buffer_.data() + buffered_, room, MSG_DONTWAIT);
  if (got <= 0) {
    *more = got < 0 && errno == EINTR;
    if (got == 0) {
      fail_receiving("it closed its connection");
    } else if (!is_retry(errno) && errno != EINTR) {
      fail_receiving("receiving from it failed", errno);
    }
    return *more;
  }
  *more = static_cast<size_t>(got) == room;
  buffered_ += static_cast<size_t>(got);
  size_t begin = 0;
  for (;;) {
    size_t body = 0;
    std::byte* record = buffer_.data() + begin;
    const Parse parsed = parse_record_header({record, buffered_ - begin}, &body);
    if (parsed == Parse::kMalformed) return *more = deny("it sent a record of impossible length");
    if (parsed == Parse::kIncomplete || buffered_ - begin < body + kRecordOverhead) break;
    if (const char* trouble = in_key_.open(record, body)) return *more = deny(trouble);
    if (!take(exports, record + kRecordHeaderBytes, body)) return *more = false;
    begin += body + kRecordOverhead;
  }
  buffered_ -= begin;
  if (begin != 0 && buffered_ != 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin, buffered_);
  }
  return true;
}

// The next bytes of the stream of frames. False: the connection has ended by them.
bool TcpPeer::take(const WindowExports& exports, std::byte* bytes, size_t count) {
  while (count > 0) {
    if (landing_.left > 0) {
      const size_t part = std::min(count, landing_.left);
      if (landing_.at != nullptr) {
        std::memcpy(landing_.at, bytes, part);
        landing_.at += part;
      }
      landing_.left -= part;
      bytes += part;
      count -= part;
      if (landing_.left == 0) landing_.window.reset();
      continue;
    }
    DataFrame frame;
    size_t used = 0;
    if (partial_bytes_ == 0) {
      const Parse parsed = parse_frame({bytes, count}, &frame, &used);
      if (parsed == Parse::kMalformed) return deny("it sent bytes that are no frame");
      if (parsed == Parse::kIncomplete) {
        std::memcpy(partial_, bytes, count);
        partial_bytes_ = count;
        return true;
      }
      bytes += used;
      count -= used;
    } else {
      // Byte for byte would do; a header is the least that a frame has.
      const size_t want = partial_bytes_ < kFrameHeaderBytes ? kFrameHeaderBytes : kSignalBytes;
      const size_t part = std::min(count, want - partial_bytes_);
      std::memcpy(partial_ + partial_bytes_, bytes, part);
      partial_bytes_ += part;
      bytes += part;
      count -= part;
      const Parse parsed = parse_frame({partial_, partial_bytes_}, &frame, &used);
      if (parsed == Parse::kMalformed) return deny("it sent bytes that are no frame");
      if (parsed == Parse::kIncomplete) continue;
      partial_bytes_ = 0;
    }
    if (!take_frame(exports, frame)) return false;
  }
  return true;
}

bool TcpPeer::take_frame(const WindowExports& exports, const DataFrame& frame) {
  if (frame.kind == FrameKind::kMark) {
    if (frame.offset < marked_.load(std::memory_order_relaxed))
      return deny("it sent a mark out of order");
    marked_.store(frame.offset, std::memory_order_release);
    return true;
  }
  const bool is_late =
      marked_.load(std::memory_order_relaxed) < let_in_from_.load(std::memory_order_relaxed);
  landing_.number = 0;
  if (frame.kind == FrameKind::kTarget) return take_target(frame, is_late);
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
  landing_.left = frame.bytes;
  landing_.at = window == nullptr ? nullptr : window->data() + frame.offset;
  landing_.window = std::move(window);
  return true;
}

bool TcpPeer::take_target(const DataFrame& frame, bool is_late) {
  if (frame.token == 0 || frame.token > targets_.last) {
    return deny("it sent a frame for no target of this rank");
  }
  const auto found = std::find_if(targets_.open.begin(), targets_.open.end(),
                                  [&](const Target& each) { return each.number == frame.token; });
  const bool is_open = found != targets_.open.end() && !is_late;
  if (is_open && frame.offset + frame.bytes > found->bytes) {
    return deny("it sent a frame beyond the end of its target");
  }
  landing_.left = frame.bytes;
  landing_.number = frame.token;
  landing_.at = is_open ? found->memory + frame.offset : nullptr;
  return true;
}

void TcpPeer::open_target(uint64_t number, std::byte* memory, size_t bytes) {
  const std::lock_guard lock(in_mutex_);
  targets_.open.push_back({number, memory, bytes});
  targets_.last = std::max(targets_.last, number);
}

void TcpPeer::close_target(uint64_t number) {
  const std::lock_guard lock(in_mutex_);
  std::erase_if(targets_.open, [&](const Target& each) { return each.number == number; });
  if (landing_.number == number) landing_.at = nullptr;
}

bool TcpPeer::take_signal(const DataFrame& frame, Window* window, const WindowExports& exports) {
  if (window == nullptr) return true;
  auto* word = reinterpret_cast<std::atomic<uint64_t>*>(window->data() + frame.offset);
  if (frame.wake && exports.doorbell() != nullptr) {
    doorbell_signal(exports.doorbell(), word, frame.word);
  } else {
    word->store(frame.word, std::memory_order_release);  // publishes the puts before it
  }
  return true;
}

bool TcpPeer::deny(const char* what) {
  fail_receiving(what);
  return false;
}

}  // namespace mep::tcp
