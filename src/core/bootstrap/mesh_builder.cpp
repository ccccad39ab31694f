// The event loop of a start. One thread, no blocking call but ppoll(). A connection's bytes are
// judged in serve_*; errors travel up as results and are spread in one place, at the end of run().
#include "core/bootstrap/mesh_builder.hpp"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/status.hpp"

namespace mep {
namespace {

constexpr uint64_t kFirstPauseNs = 500'000;
constexpr uint64_t kLongestPauseNs = 20'000'000;
// With more ranks than these the pauses grow, so that all tries of a host stay below some 20 000 a second; up to the
// largest, within which each rank that comes is found.
constexpr uint64_t kRanksWithoutDelay = 32;
constexpr uint64_t kLargestPauseNs = 1'000'000'000;
constexpr int kLongestWaitMs = 30'000;
// Connections of nobody in particular that are kept beside one for each rank.
constexpr size_t kSpareIncoming = 64;
// Over a network: how long a connection is given before the next address is tried, or before one
// that never says who it is is closed.
constexpr uint64_t kConnectLimitNs = 3'000'000'000;

}  // namespace

MeshBuilder::MeshBuilder(const ResolvedConfig& config, const SelfDescription& self,
                         Rendezvous* rendezvous, Deadline deadline)
    : config_(config),
      self_(self),
      rendezvous_(rendezvous),
      deadline_(deadline),
      gate_(rendezvous->gate()),
      rank_(config.rank),
      sought_(config.rank),
      hello_(make_hello(HelloKind::kInit, config, self)),
      seats_(static_cast<size_t>(config.size)) {
  launch_page_.find(config.job);
}

mep_result_t MeshBuilder::run(Mesh* out, bool* superseded) {
  *superseded = false;
  const mep_result_t result = build(superseded);
  if (result != MEP_SUCCESS) {
    if (!tell_nobody_) spread_failure(result);
    return result;
  }
  if (*superseded) return MEP_SUCCESS;
  Mesh mesh;
  mesh.self = self_;
  mesh.gate = gate_;
  mesh.size = config_.size;
  mesh.max_size = config_.max_size;
  mesh.listener = std::move(listener_);
  std::vector<Place> members;
  members.push_back(place_of(self_.identity, gate_->details.addresses));
  for (int32_t rank = 0; rank < config_.size; ++rank) {
    if (rank == rank_) continue;
    Seat& peer = seat(rank);
    mesh.peers.push_back(
        make_peer_link(std::move(peer.link), peer.greeting.get(), self_, peer.credentials));
    members.push_back(place_of(mesh.peers.back().identity, peer.greeting->details().addresses));
  }
  gate_->places->settle(members);
  *out = std::move(mesh);
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::build(bool* superseded) {
  if (rendezvous_->start() != 0 && rank_ != 0) {
    MEP_TRY(meet_rank_zero(superseded));
    if (*superseded) return MEP_SUCCESS;
  }
  MEP_TRY(claim_entry(rendezvous_, config_, self_, deadline_, &listener_, &tell_nobody_));
  MEP_TRY(rendezvous_->announce(rank_));
  for (;;) {
    MEP_TRY(gate_->places->watch());
    MEP_TRY(connect_to_lower_ranks());
    if (all_are(&Seat::linked)) {
      MEP_TRY(announce_ready());
      if (all_are(&Seat::ready)) return MEP_SUCCESS;
    }
    MEP_TRY(wait_for_others());
    MEP_TRY(accept_incoming());
    MEP_TRY(serve_incoming());
    for (int32_t rank = 0; rank < config_.size; ++rank) {
      if (seat(rank).link != nullptr && !seat(rank).ready) MEP_TRY(serve_seat(rank));
    }
  }
}

// Rank 0 of an earlier start has ended, or asks this rank to come again since it is in the world that it began then.
mep_result_t MeshBuilder::meet_rank_zero(bool* superseded) {
  const Seat& zero = seat(0);
  sought_ = 1;
  look_again_ = Deadline::at(now_ns() + longest_pause_ns());
  while (!zero.linked) {
    if (look_again_.expired()) {
      *superseded = store_has_later_start(config_, rendezvous_->start());
      if (*superseded) return MEP_SUCCESS;
      look_again_ = Deadline::at(now_ns() + longest_pause_ns());
    }
    MEP_TRY(gate_->places->watch());
    MEP_TRY(connect_to_lower_ranks());
    MEP_TRY(wait_for_others());
    if (zero.link != nullptr) MEP_TRY(serve_seat(0));
  }
  sought_ = rank_;
  look_again_ = Deadline::never();
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::wait_for_others() {
  MEP_TRY(look_for_ends());
  if (deadline_.expired()) return fail_missing();
  if (notice_.due()) say_who_is_awaited();
  return wait_for_events();
}

// The end of a rank that is linked shows itself in its stream, with its last words before.
mep_result_t MeshBuilder::look_for_ends() const {
  std::string ends;
  for (int32_t rank = 0; launch_page_.found() && rank < config_.size; ++rank) {
    if (rank == rank_ || seats_[static_cast<size_t>(rank)].linked) continue;
    const std::string end = launch_page_.end_of(rank);
    if (!end.empty()) ends += (ends.empty() ? "" : ", ") + end;
  }
  if (ends.empty()) return MEP_SUCCESS;
  return fail(MEP_ERR_BOOTSTRAP, "%s before this rank had met it: the job '%s' cannot start",
              ends.c_str(), config_.job.c_str());
}

bool MeshBuilder::all_are(bool Seat::*state) const {
  return std::all_of(seats_.begin(), seats_.end(), [&](const Seat& peer) {
    return peer.*state || &peer == &seats_[static_cast<size_t>(rank_)];
  });
}

mep_result_t MeshBuilder::announce_ready() {
  if (ready_sent_) return MEP_SUCCESS;
  ready_sent_ = true;
  for (Seat& peer : seats_) {
    if (peer.link == nullptr) continue;
    // A peer that is gone shows itself as the end of its stream, with its last words before.
    const mep_result_t result = peer.link->send(kReadyFrame, {});
    if (result != MEP_SUCCESS && result != MEP_ERR_PEER_FAILED) return result;
  }
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::connect_to_lower_ranks() {
  const uint64_t now = now_ns();
  for (int32_t rank = 0; rank < sought_ && !deadline_.expired(); ++rank) {
    if (seat(rank).link == nullptr && seat(rank).next_try_ns <= now) MEP_TRY(connect_to(rank));
  }
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::connect_to(int32_t rank) {
  Connection connection;
  MEP_TRY(rendezvous_->connect(rank, &connection));
  if (!connection.socket.valid()) {
    try_again_later(rank, {});
    return MEP_SUCCESS;
  }
  Seat& peer = seat(rank);
  const mep_result_t known = authenticate(&connection);
  peer.credentials = connection.credentials;
  if (known != MEP_SUCCESS) {
    return add_context(known, "the place of rank %d of job '%s' is held by a stranger", rank,
                       config_.job.c_str());
  }
  const bool is_remote = peer.credentials.is_remote();
  // Another start's rank 0 may serve at the address by now.
  const bool is_of_start = rank == 0 && rendezvous_->start() != 0;
  peer.incarnation = is_of_start ? rendezvous_->start() : connection.incarnation;
  peer.link = std::make_unique<ControlLink>(std::move(connection.socket));
  if (is_remote) peer.link->limit_payload(kStrangerPayloadBytes);
  peer.next_try_ns = now_ns() + kConnectLimitNs;
  peer.greeting =
      std::make_unique<Greeting>(HandshakeSide::kCaller, is_remote, gate_->secret, gate_->details);
  const mep_result_t sent = peer.greeting->call(peer.link.get(), hello_);
  return sent == MEP_ERR_PEER_FAILED ? MEP_SUCCESS : sent;
}

void MeshBuilder::try_again_later(int32_t rank, const std::string& obstacle) {
  Seat& peer = seat(rank);
  if (!obstacle.empty()) peer.obstacle = name_peer(rank, peer.credentials) + " " + obstacle;
  peer.link.reset();
  peer.greeting.reset();
  peer.pause_ns = std::clamp(2 * peer.pause_ns, kFirstPauseNs, longest_pause_ns());
  peer.next_try_ns = now_ns() + peer.pause_ns;
}

// Ranks and the ranks that each looks for both grow with the size.
uint64_t MeshBuilder::longest_pause_ns() const {
  const uint64_t times = std::max<uint64_t>(1, seats_.size() / kRanksWithoutDelay);
  return std::min(kLongestPauseNs * times * times, kLargestPauseNs);
}

mep_result_t MeshBuilder::wait_for_events() {
  std::vector<pollfd> entries;
  entries.push_back({listener_.get(), POLLIN, 0});
  for (const int fd : rendezvous_->fds()) entries.push_back({fd, POLLIN, 0});
  const size_t first_link = entries.size();
  std::vector<bool*> readable;  // of each entry from there on
  const auto add = [&](const ControlLink& link, bool* is_readable) {
    const int events = POLLIN | (link.has_queued_output() ? POLLOUT : 0);
    entries.push_back({link.fd(), static_cast<short>(events), 0});
    readable.push_back(is_readable);
  };
  for (Incoming& incoming : incoming_) add(*incoming.link, &incoming.readable);
  std::vector<pollfd> ready_ones;
  const uint64_t now = now_ns();
  uint64_t wake_ns = std::min({deadline_.at_ns(), notice_.at_ns(), look_again_.at_ns()});
  if (launch_page_.found() && !all_are(&Seat::linked))
    wake_ns = std::min(wake_ns, now + kLongestPauseNs);
  const auto store_ms = static_cast<uint64_t>(gate_->places->wait_ms(kLongestWaitMs));
  wake_ns = std::min(wake_ns, now + store_ms * 1'000'000);
  for (int32_t rank = 0; rank < config_.size; ++rank) {
    Seat& peer = seat(rank);
    if (peer.link != nullptr) {
      // A ready peer is read no more: what follows belongs to the world.
      if (!peer.ready) {
        add(*peer.link, &peer.readable);
      } else if (peer.link->has_queued_output()) {
        ready_ones.push_back({peer.link->fd(), POLLOUT, 0});
      }
    } else if (rank < sought_) {
      wake_ns = std::min(wake_ns, peer.next_try_ns);
    }
  }
  const uint64_t left_ns = wake_ns > now ? wake_ns - now : 0;
  const timespec timeout{static_cast<time_t>(left_ns / 1'000'000'000),
                         static_cast<long>(left_ns % 1'000'000'000)};
  entries.insert(entries.end(), ready_ones.begin(), ready_ones.end());
  // After an error no entry has an answer; each is looked at in the next round.
  (void)ppoll(entries.data(), entries.size(), &timeout, nullptr);
  for (size_t i = 0; i < readable.size(); ++i) {
    *readable[i] = *readable[i] || (entries[first_link + i].revents & ~POLLOUT) != 0;
  }
  for (Seat& peer : seats_) {
    if (peer.link == nullptr || !peer.link->has_queued_output()) continue;
    const mep_result_t result = peer.link->flush_output();
    if (result != MEP_SUCCESS && result != MEP_ERR_PEER_FAILED) return result;
  }
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::accept_incoming() {
  const auto take = [this](Connection&& connection) {
    if (incoming_.size() >= seats_.size() + kSpareIncoming) {
      const auto silent = std::find_if(incoming_.begin(), incoming_.end(),
                                       [](const auto& each) { return !each.greeting->answered(); });
      incoming_.erase(silent != incoming_.end() ? silent : incoming_.begin());
    }
    incoming_.emplace_back(std::move(connection), gate_->secret, gate_->details);
    if (!incoming_.back().credentials.is_remote()) incoming_.back().limit = Deadline::never();
  };
  for (;;) {
    const mep_result_t accepted = accept_connections(listener_.get(), gate_->network_listener.get(),
                                                     gate_->dead_after_ms, take);
    if (accepted != MEP_ERR_NO_MEMORY || incoming_.empty()) return accepted;
    incoming_.erase(incoming_.begin());  // the oldest has had its time
  }
}

mep_result_t MeshBuilder::serve_seat(int32_t rank) {
  Seat& peer = seat(rank);
  const bool is_remote = peer.credentials.is_remote();
  mep_result_t answer = MEP_SUCCESS;
  std::string again;
  mep_result_t received = MEP_SUCCESS;
  if (std::exchange(peer.readable, false)) {
    received = peer.link->receive([&](Frame& frame) {
      answer = on_seat_frame(rank, &frame, &again);
      return answer == MEP_SUCCESS && again.empty() && !peer.ready;
    });
  }
  MEP_TRY(answer);
  if (!again.empty()) {
    try_again_later(rank, again);
    return MEP_SUCCESS;
  }
  if (received == MEP_SUCCESS) {
    if (is_remote && !peer.linked && peer.next_try_ns <= now_ns()) {
      try_again_later(rank, "does not answer");
    }
    return MEP_SUCCESS;
  }
  if (!peer.linked && (is_remote || received == MEP_ERR_PEER_FAILED)) {
    try_again_later(rank, is_remote
                              ? std::string("broke off: ") + last_error_text()
                              : std::string("closed the connection before it said who it is"));
    return MEP_SUCCESS;
  }
  if (received != MEP_ERR_PEER_FAILED) {
    return add_context(received == MEP_ERR_DENIED ? MEP_ERR_BOOTSTRAP : received, "%s",
                       name_peer(rank, peer.credentials).c_str());
  }
  return fail(MEP_ERR_BOOTSTRAP, "%s ended while the job '%s' started",
              name_peer(rank, peer.credentials).c_str(), config_.job.c_str());
}

mep_result_t MeshBuilder::on_seat_frame(int32_t rank, Frame* frame, std::string* again) {
  Seat& peer = seat(rank);
  if (frame->type == kAbortFrame && (peer.linked || !peer.credentials.is_remote())) {
    return on_abort(*frame, peer.credentials);
  }
  if (!peer.linked && frame->type == kRetryFrame) {
    *again = "is still in an earlier world of this job";
    return MEP_SUCCESS;
  }
  if (!peer.linked) return on_seat_greeting(rank, frame, again);
  if (frame->type == kReadyFrame) {
    peer.ready = true;
    return MEP_SUCCESS;
  }
  return fail(MEP_ERR_BOOTSTRAP, "%s sent a frame of type %u, which has no place here",
              name_peer(rank, peer.credentials).c_str(), frame->type);
}

mep_result_t MeshBuilder::check_lower(int32_t rank) {
  Seat& peer = seat(rank);
  const Hello& hello = peer.greeting->hello();
  MEP_TRY(check_hello(hello, hello_, name_peer(rank, peer.credentials)));
  if (hello.kind != HelloKind::kMember || hello.identity.slot != static_cast<uint32_t>(rank)) {
    return fail(MEP_ERR_BOOTSTRAP, "%s says that it is rank %u",
                name_peer(rank, peer.credentials).c_str(), hello.identity.slot);
  }
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::on_seat_greeting(int32_t rank, Frame* frame, std::string* again) {
  Seat& peer = seat(rank);
  const bool is_remote = peer.credentials.is_remote();
  Greeting::Step step = Greeting::Step::kMore;
  Abort refusal;
  mep_result_t result = MEP_SUCCESS;
  if (frame->type == kAbortFrame && decode_abort(frame->payload, &refusal)) {
    result = fail(refusal.code, "refuses this rank: %s", refusal.text.c_str());
  } else {
    result = peer.greeting->take(peer.link.get(), frame, &step);
    // It has ended this connection, perhaps for want of room. Its last words and the end of its stream
    // are still to be read; after that it is called again.
    if (result == MEP_ERR_PEER_FAILED) return MEP_SUCCESS;
    if (result == MEP_SUCCESS && step == Greeting::Step::kOther) {
      result =
          fail(MEP_ERR_DENIED, "sent a frame of type %u, which has no place here", frame->type);
    }
  }
  const Hello& hello = peer.greeting->hello();
  if (result == MEP_SUCCESS && is_remote && frame->type == kHelloFrame && peer.incarnation != 0 &&
      hello.identity.incarnation != peer.incarnation) {
    // Another process has the port now.
    rendezvous_->ignore(peer.incarnation);
    result = fail(MEP_ERR_BOOTSTRAP, "is not the process that was looked for");
  }
  if (result != MEP_SUCCESS) {
    if (!is_remote) {
      // Another secret, or no rank at all.
      const bool is_stranger = result == MEP_ERR_DENIED && frame->type != kProofFrame;
      return add_context(is_stranger ? MEP_ERR_BOOTSTRAP : result, "%s",
                         name_peer(rank, peer.credentials).c_str());
    }
    peer.obstacle_denied = result == MEP_ERR_DENIED;
    *again = last_error_text();
    if (frame->type == kAbortFrame) return MEP_SUCCESS;
    (void)send_abort(peer.link.get(), result, rank_);
    return MEP_SUCCESS;
  }
  // A remote peer's hello counts once it has proven itself.
  if (frame->type == kHelloFrame && !is_remote) MEP_TRY(check_lower(rank));
  if (step != Greeting::Step::kDone) return MEP_SUCCESS;
  if (is_remote) MEP_TRY(check_lower(rank));
  peer.linked = true;
  return MEP_SUCCESS;
}

mep_result_t bootstrap_mesh(const ResolvedConfig& config, const SelfDescription& self, Mesh* out) {
  if (self.identity.slot != static_cast<uint32_t>(config.rank) || config.rank >= config.size) {
    return fail(MEP_ERR_INTERNAL, "bootstrap of rank %d of %d with the identity of slot %u",
                config.rank, config.size, self.identity.slot);
  }
  if (config.size == 1 && config.max_size <= 1) {
    // A world of one that stays alone takes no name, so any number of them can run side by side.
    *out = Mesh{};
    out->self = self;
    out->size = config.size;
    out->max_size = config.max_size;
    return MEP_SUCCESS;
  }
  const Deadline deadline = Deadline::after_ms(config.init_timeout_ms);
  bool superseded = false;
  do {
    std::unique_ptr<Rendezvous> rendezvous;
    MEP_TRY(make_rendezvous(config, self, RendezvousPurpose::kStart, deadline, &rendezvous));
    MEP_TRY(MeshBuilder(config, self, rendezvous.get(), deadline).run(out, &superseded));
    if (rendezvous->start() == self.identity.incarnation) tell_store_of_success(config, self);
  } while (superseded);
  return MEP_SUCCESS;
}

}  // namespace mep
