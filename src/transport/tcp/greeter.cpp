#include "transport/tcp/greeter.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/fork_guard.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "base/stranger_log.hpp"
#include "base/system_error.hpp"
#include "transport/tcp/sealing.hpp"

namespace mep::tcp {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kGreetingNs = 5000 * kMs;  // a stranger may take that long
constexpr uint64_t kConnectNs = 2000 * kMs;   // for one address to answer
constexpr uint64_t kRetryNs = 20 * kMs;
constexpr uint64_t kPauseNs = 100 * kMs;  // when no descriptor is left for a caller
constexpr size_t kMaxStrangers = 256;

void set_option(int socket, int level, int option, int value) {
  // Not having one of these options makes a connection slower or its end later to notice, not wrong.
  (void)setsockopt(socket, level, option, &value, sizeof value);
}

// Invalid: errno says why. A child of fork() must not keep a connection up that ends with this process.
UniqueFd make_socket(bool is_v6) {
  const ForkGuard guard;
  UniqueFd socket(::socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
                           IPPROTO_TCP));
  guard.keep_back(socket.get());
  return socket;
}

UniqueFd accept_from(int listener) {
  const ForkGuard guard;
  UniqueFd socket(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  guard.keep_back(socket.get());
  return socket;
}

}  // namespace

// --- Listening ------------------------------------------------------------------------------------

mep_result_t Greeter::own_addresses(bool beyond_host, std::vector<Address>* out) const {
  return local_addresses({options_.interfaces, options_.one_host || !beyond_host}, out);
}

mep_result_t Greeter::listen(bool beyond_host) {
  if (listens_beyond_ || (listens_here_ && !beyond_host)) return MEP_SUCCESS;
  std::vector<Address> addresses;
  const mep_result_t found = own_addresses(beyond_host, &addresses);
  // A host without loopback meets itself as others meet it.
  if (found != MEP_SUCCESS) return beyond_host ? found : listen(true);
  mep_result_t last = MEP_SUCCESS;
  for (Address& address : addresses) {
    const bool is_known =
        std::any_of(listening_.begin(), listening_.end(), [&](const Address& known) {
          return known.is_v6 == address.is_v6 &&
                 std::memcmp(known.bytes, address.bytes, sizeof known.bytes) == 0;
        });
    // An address may go away while it is being bound; another one is enough.
    if (is_known) continue;
    last = listen_on(&address);
    if (last == MEP_SUCCESS) listening_.push_back(address);
  }
  if (listening_.empty()) return last;
  listens_here_ = true;
  listens_beyond_ = beyond_host;
  return MEP_SUCCESS;
}

mep_result_t Greeter::listen_on(Address* address) {
  UniqueFd listener = make_socket(address->is_v6);
  if (!listener.valid()) {
    return fail(result_of_errno(errno), "no socket (ulimit -n): %m");
  }
  if (address->is_v6) set_option(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  address->port = 0;
  sockaddr_storage socket_address;
  socklen_t length = address->to_socket_address(&socket_address);
  auto* generic = reinterpret_cast<sockaddr*>(&socket_address);
  constexpr int kBacklog = 1024;
  if (::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), kBacklog) != 0 ||
      getsockname(listener.get(), generic, &length) != 0) {
    if (errno == EADDRINUSE) return fail(MEP_ERR_NO_MEMORY, "no TCP port is free to listen");
    return fail(result_of_errno(errno), "%s cannot be listened on: %m", address->text().c_str());
  }
  address->port = ntohs(address->is_v6 ? reinterpret_cast<sockaddr_in6*>(&socket_address)->sin6_port
                                       : reinterpret_cast<sockaddr_in*>(&socket_address)->sin_port);
  if (!watch(listener.get(), EPOLLIN, false)) {
    return fail(MEP_ERR_NO_MEMORY, "%s cannot be watched: %m", address->text().c_str());
  }
  listeners_.push_back(std::move(listener));
  return MEP_SUCCESS;
}

bool Greeter::watch(int socket, uint32_t events, bool is_known) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag_;
  return epoll_ctl(epoll_, is_known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, socket, &event) == 0;
}

void Greeter::accept_all(uint64_t now) {
  if (is_closed_ && now < closed_until_ns_) return;
  if (std::exchange(is_closed_, false)) {
    for (const UniqueFd& listener : listeners_) {
      if (!watch(listener.get(), EPOLLIN, false)) close_for_a_while(errno, now);
    }
  }
  for (const UniqueFd& listener : listeners_) {
    while (!is_closed_ && accept_one(listener, now)) {
    }
  }
}

// A listener stays readable as long as somebody waits in it, whom this process cannot let in.
void Greeter::close_for_a_while(int error, uint64_t now) {
  log(LogLevel::kWarn, "tcp: callers have to wait: %s (ulimit -n)", strerrordesc_np(error));
  is_closed_ = true;
  closed_until_ns_ = now + kPauseNs;
  for (const UniqueFd& listener : listeners_) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, listener.get(), nullptr);
  }
}

// False: nobody waits there, or none can be let in.
bool Greeter::accept_one(const UniqueFd& listener, uint64_t now) {
  UniqueFd socket = accept_from(listener.get());
  if (!socket.valid()) {
    if (is_shortage(errno)) {
      close_for_a_while(errno, now);
    }
    return errno == EINTR || errno == ECONNABORTED;
  }
  const auto is_stranger = [](const HalfOpen& each) { return each.peer == nullptr; };
  const auto strangers = std::count_if(half_open_.begin(), half_open_.end(), is_stranger);
  if (static_cast<size_t>(strangers) >= kMaxStrangers) {
    // The one that has been silent for longest makes room; if it is a peer it tries again.
    half_open_.erase(std::find_if(half_open_.begin(), half_open_.end(), is_stranger));
  }
  HalfOpen& connection = half_open_.emplace_back();
  // Without it the connection is looked at by the clock.
  (void)watch(socket.get(), EPOLLIN, false);
  connection.socket = std::move(socket);
  connection.until_ns = now + kGreetingNs;
  return true;
}

// --- Connecting -----------------------------------------------------------------------------------

void Greeter::add(TcpPeer* peer) {
  missing_.emplace(peer, Attempt{});
}

void Greeter::want(TcpPeer* peer, std::span<const Address> addresses) {
  const auto found = missing_.find(peer);
  if (found == missing_.end() || found->second.is_wanted) return;
  Attempt& attempt = found->second;
  if (peer->connects()) {
    std::vector<Address> own;
    // Without addresses of its own it tries all the same.
    const KeepErrorText kept;
    (void)own_addresses(true, &own);
    // A rank that has loopback alone has all its peers on this machine.
    const bool same_host =
        peer->self().host == peer->identity().host ||
        std::all_of(own.begin(), own.end(), [](const Address& each) { return each.is_loopback; });
    attempt.addresses = reachable(own, addresses, same_host);
    if (attempt.addresses.empty()) attempt.trouble = "it offers no address that could be reached";
  }
  attempt.is_wanted = true;
  attempt.give_up_ns = now_ns() + options_.connect_timeout_ms * kMs;
}

bool Greeter::needs_time() const {
  return !half_open_.empty() || is_closed_ ||
         std::any_of(missing_.begin(), missing_.end(),
                     [](const auto& entry) { return entry.second.is_wanted; });
}

void Greeter::remove(const TcpPeer* peer) {
  missing_.erase(const_cast<TcpPeer*>(peer));
  half_open_.remove_if([=](const HalfOpen& each) { return each.peer == peer; });
}

// With interfaces selected, connections leave by them too.
bool Greeter::bind_source(int socket, const Address& target) const {
  if (options_.interfaces.empty()) return true;
  std::vector<Address> own;
  const KeepErrorText kept;
  if (own_addresses(true, &own) != MEP_SUCCESS) return false;
  const Address* best = nullptr;
  for (const Address& mine : own) {
    if (mine.is_v6 != target.is_v6) continue;
    if (best == nullptr || (same_network(mine, target) && !same_network(*best, target))) {
      best = &mine;
    }
  }
  if (best == nullptr) return false;
  Address source = *best;
  source.port = 0;
  sockaddr_storage address;
  const socklen_t length = source.to_socket_address(&address);
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0;
}

void Greeter::start_attempts(uint64_t now) {
  for (auto& [peer, attempt] : missing_) {
    if (peer->state() != TcpPeer::State::kConnecting || attempt.under_way) continue;
    if (!peer->connects() || !attempt.is_wanted || now < attempt.next_try_ns) continue;
    start_attempt(peer, &attempt, now);
  }
}

void Greeter::start_attempt(TcpPeer* peer, Attempt* attempt, uint64_t now) {
  attempt->next_try_ns = now + kRetryNs;
  if (attempt->addresses.empty()) return;
  const Address& target = attempt->addresses[attempt->next++ % attempt->addresses.size()];
  UniqueFd socket = make_socket(target.is_v6);
  if (!socket.valid() || !bind_source(socket.get(), target)) {
    attempt->trouble = target.text() + ": " + strerrordesc_np(errno);
    return;
  }
  sockaddr_storage address;
  const socklen_t length = target.to_socket_address(&address);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 &&
      errno != EINPROGRESS) {
    attempt->trouble = target.text() + ": " + strerrordesc_np(errno);
    return;
  }
  std::string text = target.text();
  HalfOpen& connection = half_open_.emplace_back();
  // Nothing fails from here on. Without the watch the connection is looked at by the clock.
  attempt->under_way = true;
  (void)watch(socket.get(), EPOLLOUT, false);
  connection.socket = std::move(socket);
  connection.stage = Stage::kConnecting;
  connection.until_ns = now + kConnectNs;
  connection.peer = peer;
  connection.address = std::move(text);
}

void Greeter::note_failed(const HalfOpen& connection, uint64_t now) {
  const auto found = missing_.find(connection.peer);
  if (found == missing_.end() || !connection.peer->connects()) return;
  Attempt& attempt = found->second;
  attempt.under_way = false;
  // Each address once, then a pause.
  attempt.next_try_ns = attempt.next % attempt.addresses.size() == 0 ? now + kRetryNs : now;
  attempt.trouble = connection.address + ": " + connection.trouble;
}

void Greeter::prepare_socket(int socket) const {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  const int seconds = static_cast<int>(std::max<uint32_t>(options_.suspect_ms / 2000, 1));
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, std::max(seconds / 3, 1));
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  // Twice the time: a host that only forgets its heartbeats is the membership's to judge.
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<int>(std::min<uint64_t>(uint64_t{2} * options_.suspect_ms, 86'400'000)));
}

// --- The greeting ---------------------------------------------------------------------------------

void Greeter::take_over(HalfOpen* connection, const Connected& connected) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, connection->socket.get(), nullptr);
  prepare_socket(connection->socket.get());
  connected(connection->peer, &connection->socket, connection->hello, connection->challenge);
  const auto found = missing_.find(connection->peer);
  if (found == missing_.end()) return;
  if (connection->peer->state() != TcpPeer::State::kConnecting) {
    missing_.erase(found);
    return;
  }
  // The next of its connections goes where this one went.
  Attempt& attempt = found->second;
  attempt.under_way = false;
  attempt.next_try_ns = 0;
  if (attempt.next > 0) --attempt.next;
}

void Greeter::advance(const Connected& connected) {
  const uint64_t now = now_ns();
  accept_all(now);
  start_attempts(now);
  for (auto each = half_open_.begin(); each != half_open_.end();) {
    Outcome outcome = advance_one(&*each);
    if (outcome == Outcome::kWait && now >= each->until_ns) outcome = Outcome::kDrop;
    if (outcome == Outcome::kWait) {
      ++each;
      continue;
    }
    if (outcome == Outcome::kConnected) take_over(&*each, connected);
    const HalfOpen done = std::move(*each);
    each = half_open_.erase(each);
    if (outcome == Outcome::kDrop) note_failed(done, now);
  }
  start_attempts(now);
  std::vector<std::pair<TcpPeer*, std::string>> given_up;
  for (const auto& [peer, attempt] : missing_) {
    if (now < attempt.give_up_ns) continue;
    given_up.emplace_back(peer, peer->connects()
                                    ? "no connection to it came about; last: " + attempt.trouble
                                    : std::string("it has not connected in time"));
  }
  for (auto& [peer, reason] : given_up) {
    remove(peer);
    peer->fail_connecting(std::move(reason));
  }
}

Greeter::Outcome Greeter::advance_one(HalfOpen* connection) {
  for (;;) {
    const Stage before = connection->stage;
    Outcome outcome = Outcome::kDrop;
    switch (before) {
      case Stage::kConnecting:
        outcome = finish_connect(connection);
        break;
      case Stage::kAwaitHello:
        outcome = read_exactly(connection, kHelloBytes);
        if (outcome == Outcome::kConnected) {
          const bool good =
              parse_hello({connection->bytes, kHelloBytes}, &connection->hello) == Parse::kComplete;
          connection->stage = Stage::kAwaitPeer;
          outcome = good ? Outcome::kWait : Outcome::kDrop;
        }
        break;
      case Stage::kAwaitPeer:
        outcome = answer_hello(connection);
        break;
      case Stage::kAwaitChallenge:
        outcome = check_challenge(connection);
        break;
      case Stage::kAwaitProof:
        outcome = check_proof(connection);
        break;
    }
    if (outcome != Outcome::kWait || connection->stage == before) return outcome;
  }
}

Greeter::Outcome Greeter::read_exactly(HalfOpen* connection, size_t count) {
  while (connection->have < count) {
    const ssize_t got = ::recv(connection->socket.get(), connection->bytes + connection->have,
                               count - connection->have, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Outcome::kWait;
    if (got <= 0) {
      connection->trouble = "it closed the connection during the greeting";
      return Outcome::kDrop;
    }
    connection->have += static_cast<size_t>(got);
  }
  connection->have = 0;
  return Outcome::kConnected;
}

// A greeting fits into any socket's buffer.
bool Greeter::send_whole(const HalfOpen& connection, const std::byte* bytes, size_t count) {
  return ::send(connection.socket.get(), bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(count);
}

Greeter::Outcome Greeter::finish_connect(HalfOpen* connection) {
  pollfd ready{connection->socket.get(), POLLOUT, 0};
  if (poll(&ready, 1, 0) == 0) return Outcome::kWait;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(connection->socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    connection->trouble = strerrordesc_np(error);
    return Outcome::kDrop;
  }
  const TcpPeer& peer = *connection->peer;
  Hello& hello = connection->hello;
  hello.from_slot = peer.self().slot;
  hello.to_slot = peer.identity().slot;
  hello.from_incarnation = peer.self().incarnation;
  hello.to_incarnation = peer.identity().incarnation;
  hello.wanted = peer.wishes().protection;
  hello.ciphers = peer.wishes().ciphers;
  hello.streams = peer.wishes().streams;
  hello.stream = peer.next_stream();
  hello.nonce = random_nonce();
  std::byte bytes[kHelloBytes];
  encode_hello(hello, bytes);
  if (!send_whole(*connection, bytes, sizeof bytes)) return Outcome::kDrop;
  watch(connection->socket.get(), EPOLLIN, true);
  connection->stage = Stage::kAwaitChallenge;
  connection->until_ns = now_ns() + kGreetingNs;
  return Outcome::kWait;
}

TcpPeer* Greeter::find_caller(const Hello& hello) const {
  for (const auto& [peer, attempt] : missing_) {
    const PeerIdentity& self = peer->self();
    const PeerIdentity& caller = peer->identity();
    if (!peer->connects() && caller.slot == hello.from_slot &&
        caller.incarnation == hello.from_incarnation && self.slot == hello.to_slot &&
        self.incarnation == hello.to_incarnation && peer->next_stream() == hello.stream) {
      return peer;
    }
  }
  return nullptr;
}

// A caller that is not known yet may be known soon: it keeps its place until its time is over.
Greeter::Outcome Greeter::answer_hello(HalfOpen* connection) {
  TcpPeer* peer = find_caller(connection->hello);
  if (peer == nullptr) {
    // Its end shows in a read.
    std::byte none;
    const ssize_t got =
        ::recv(connection->socket.get(), &none, sizeof none, MSG_DONTWAIT | MSG_PEEK);
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? Outcome::kWait : Outcome::kDrop;
  }
  Challenge& challenge = connection->challenge;
  challenge.chosen = std::max(peer->wishes().protection, connection->hello.wanted);
  challenge.cipher = best_cipher(peer->wishes().ciphers & connection->hello.ciphers);
  challenge.streams = std::min(peer->wishes().streams, connection->hello.streams);
  challenge.nonce = random_nonce();
  challenge.proof = acceptor_proof(peer->session(), connection->hello, challenge);
  std::byte bytes[kChallengeBytes];
  encode_challenge(challenge, bytes);
  if (!send_whole(*connection, bytes, sizeof bytes)) return Outcome::kDrop;
  connection->peer = peer;
  connection->stage = Stage::kAwaitProof;
  return Outcome::kWait;
}

Greeter::Outcome Greeter::check_challenge(HalfOpen* connection) {
  const Outcome read = read_exactly(connection, kChallengeBytes);
  if (read != Outcome::kConnected) return read;
  const TcpPeer& peer = *connection->peer;
  Challenge& challenge = connection->challenge;
  if (parse_challenge({connection->bytes, kChallengeBytes}, &challenge) != Parse::kComplete ||
      challenge.chosen < connection->hello.wanted ||
      challenge.streams > connection->hello.streams ||
      (cipher_bit(challenge.cipher) & peer.wishes().ciphers) == 0) {
    connection->trouble = "what answered is not the rank that was looked for";
    return Outcome::kDrop;
  }
  const Proof expected = acceptor_proof(peer.session(), connection->hello, challenge);
  if (!same_proof(expected, challenge.proof)) {
    connection->trouble =
        "what answered does not know the session's key, or the greeting was altered on its way";
    return Outcome::kDrop;
  }
  const Proof proof = connector_proof(peer.session(), connection->hello, challenge);
  return send_whole(*connection, proof.data(), proof.size()) ? Outcome::kConnected : Outcome::kDrop;
}

Greeter::Outcome Greeter::check_proof(HalfOpen* connection) {
  const Outcome read = read_exactly(connection, kProofBytes);
  if (read != Outcome::kConnected) return read;
  Proof proof;
  std::memcpy(proof.data(), connection->bytes, proof.size());
  const Proof expected =
      connector_proof(connection->peer->session(), connection->hello, connection->challenge);
  if (same_proof(expected, proof)) return Outcome::kConnected;
  log_stranger("somebody called as rank %u and did not know the session's key",
               connection->hello.from_slot);
  return Outcome::kDrop;
}

}  // namespace mep::tcp
