// The event loop of a start. One thread, no blocking call but ppoll(). A connection's bytes are
// judged in serve_*; errors travel up as results and are spread in one place, at the end of run().
#include "core/bootstrap/mesh_builder.hpp"

#include <poll.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/status.hpp"

namespace mep {
namespace {

constexpr uint64_t kFirstPauseNs = 500'000;
constexpr uint64_t kLongestPauseNs = 20'000'000;
// Connections of nobody in particular that are kept beside one for each rank.
constexpr size_t kSpareVisitors = 64;

}  // namespace

MeshBuilder::MeshBuilder(const ResolvedConfig& config, const SelfDescription& self,
                         Rendezvous* rendezvous, Deadline deadline)
    : config_(config),
      self_(self),
      rendezvous_(rendezvous),
      deadline_(deadline),
      rank_(config.rank),
      hello_(make_hello(HelloKind::kInit, config, self)),
      seats_(static_cast<size_t>(config.size)) {}

mep_result_t MeshBuilder::run(Mesh* out) {
  const mep_result_t result = build();
  if (result != MEP_SUCCESS) {
    if (!tell_nobody_) spread_failure(result);
    return result;
  }
  Mesh mesh;
  mesh.self = self_;
  mesh.size = config_.size;
  mesh.max_size = config_.max_size;
  mesh.listener = std::move(listener_);
  for (int32_t rank = 0; rank < config_.size; ++rank) {
    if (rank == rank_) continue;
    Seat& peer = seat(rank);
    PeerLink link;
    link.identity = peer.hello.identity;
    link.offer = std::move(peer.hello.offer);
    link.pidfd = std::move(peer.pidfd);
    link.link = std::move(peer.link);
    mesh.peers.push_back(std::move(link));
  }
  *out = std::move(mesh);
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::build() {
  MEP_TRY(claim_place(rendezvous_, config_, self_, deadline_, &listener_, &tell_nobody_));
  for (;;) {
    MEP_TRY(connect_to_lower_ranks());
    if (all_linked()) {
      MEP_TRY(announce_ready());
      if (all_ready()) return MEP_SUCCESS;
    }
    if (deadline_.expired()) return fail_missing();
    MEP_TRY(wait_for_events());
    MEP_TRY(accept_visitors());
    MEP_TRY(serve_visitors());
    for (int32_t rank = 0; rank < config_.size; ++rank) {
      if (seat(rank).link != nullptr && !seat(rank).ready) MEP_TRY(serve_seat(rank));
    }
  }
}

bool MeshBuilder::all_linked() const {
  for (int32_t rank = 0; rank < config_.size; ++rank) {
    if (rank != rank_ && !seats_[static_cast<size_t>(rank)].linked) return false;
  }
  return true;
}

bool MeshBuilder::all_ready() const {
  for (int32_t rank = 0; rank < config_.size; ++rank) {
    if (rank != rank_ && !seats_[static_cast<size_t>(rank)].ready) return false;
  }
  return true;
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
  for (int32_t rank = 0; rank < rank_; ++rank) {
    if (seat(rank).link == nullptr && seat(rank).next_try_ns <= now) MEP_TRY(connect_to(rank));
  }
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::connect_to(int32_t rank) {
  UniqueFd socket;
  MEP_TRY(rendezvous_->connect(rank, &socket));
  if (!socket.valid()) {
    try_again_later(rank, nullptr);
    return MEP_SUCCESS;
  }
  Seat& peer = seat(rank);
  const mep_result_t known = rendezvous_->authenticate(socket.get(), &peer.credentials);
  if (known != MEP_SUCCESS) {
    return add_context(known, "the place of rank %d of job '%s' is held by a stranger", rank,
                       config_.job.c_str());
  }
  peer.link = std::make_unique<ControlLink>(std::move(socket));
  const mep_result_t sent = send_hello(peer.link.get(), hello_);
  return sent == MEP_ERR_PEER_FAILED ? MEP_SUCCESS : sent;
}

void MeshBuilder::try_again_later(int32_t rank, const char* obstacle) {
  Seat& peer = seat(rank);
  if (obstacle != nullptr) peer.obstacle = name_peer(rank, peer.credentials) + " " + obstacle;
  peer.link.reset();
  peer.pause_ns = std::clamp(2 * peer.pause_ns, kFirstPauseNs, kLongestPauseNs);
  peer.next_try_ns = now_ns() + peer.pause_ns;
}

mep_result_t MeshBuilder::wait_for_events() {
  std::vector<pollfd> entries;
  entries.push_back({listener_.get(), POLLIN, 0});
  const auto add = [&entries](const ControlLink& link) {
    const int events = POLLIN | (link.has_queued_output() ? POLLOUT : 0);
    entries.push_back({link.fd(), static_cast<short>(events), 0});
  };
  for (const Visitor& visitor : visitors_) add(*visitor.link);
  const uint64_t now = now_ns();
  uint64_t wake_ns = deadline_.at_ns();
  for (int32_t rank = 0; rank < config_.size; ++rank) {
    const Seat& peer = seat(rank);
    if (peer.link != nullptr) {
      // A ready peer is read no more: what follows belongs to the world.
      if (!peer.ready) {
        add(*peer.link);
      } else if (peer.link->has_queued_output()) {
        entries.push_back({peer.link->fd(), POLLOUT, 0});
      }
    } else if (rank < rank_) {
      wake_ns = std::min(wake_ns, peer.next_try_ns);
    }
  }
  const uint64_t left_ns = wake_ns > now ? wake_ns - now : 0;
  const timespec timeout{static_cast<time_t>(left_ns / 1'000'000'000),
                         static_cast<long>(left_ns % 1'000'000'000)};
  // Whatever it answers, everything is looked at without blocking.
  (void)ppoll(entries.data(), entries.size(), &timeout, nullptr);
  for (Seat& peer : seats_) {
    if (peer.link == nullptr || !peer.link->has_queued_output()) continue;
    const mep_result_t result = peer.link->flush_output();
    if (result != MEP_SUCCESS && result != MEP_ERR_PEER_FAILED) return result;
  }
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::accept_visitors() {
  for (;;) {
    UniqueFd socket;
    const mep_result_t accepted = rendezvous_->accept(listener_.get(), &socket);
    if (accepted == MEP_ERR_NO_MEMORY && !visitors_.empty()) {
      visitors_.erase(visitors_.begin());  // the oldest has had its time
      continue;
    }
    MEP_TRY(accepted);
    if (!socket.valid()) return MEP_SUCCESS;
    Visitor visitor;
    if (rendezvous_->authenticate(socket.get(), &visitor.credentials) != MEP_SUCCESS) {
      log(LogLevel::kWarn, "dropped a connection to rank %d of job '%s' by a stranger: %s", rank_,
          config_.job.c_str(), last_error_text());
      continue;
    }
    visitor.link = std::make_unique<ControlLink>(std::move(socket));
    if (visitors_.size() >= seats_.size() + kSpareVisitors) visitors_.erase(visitors_.begin());
    visitors_.push_back(std::move(visitor));
  }
}

mep_result_t MeshBuilder::serve_visitors() {
  for (size_t i = 0; i < visitors_.size();) {
    bool keep = true;
    const mep_result_t result = serve_visitor(&visitors_[i], &keep);
    if (keep) {
      ++i;
    } else {  // its link may have gone to a seat
      visitors_.erase(visitors_.begin() + static_cast<ptrdiff_t>(i));
    }
    MEP_TRY(result);
  }
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::serve_visitor(Visitor* visitor, bool* keep) {
  const pid_t pid = visitor->credentials.pid;
  Frame first;
  bool got_frame = false;
  const mep_result_t received = visitor->link->receive([&](Frame& frame) {
    first = std::move(frame);
    got_frame = true;
    return false;
  });
  if (!got_frame) {
    *keep = received == MEP_SUCCESS;
    if (received != MEP_SUCCESS && received != MEP_ERR_PEER_FAILED) {
      log(LogLevel::kWarn, "dropped a connection by pid %d: %s", pid, last_error_text());
    }
    return MEP_SUCCESS;
  }
  *keep = false;
  if (first.type == kAbortFrame) return on_abort(first, visitor->credentials);
  if (first.type != kHelloFrame) {
    log(LogLevel::kWarn, "dropped a connection by pid %d: it began with a frame of type %u", pid,
        first.type);
    return MEP_SUCCESS;
  }
  int32_t seated = -1;
  MEP_TRY(on_visitor_hello(visitor, &first, &seated));
  // What came right behind the hello may be in the link already.
  return seated < 0 ? MEP_SUCCESS : serve_seat(seated);
}

// Answers a visitor that cannot be taken in. Before READY this ends the start for everybody.
mep_result_t MeshBuilder::reject(Visitor* visitor, mep_result_t code) {
  Abort abort;
  abort.code = code;
  abort.sender = rank_;
  abort.origin = rank_;
  abort.text = last_error_text();
  // A visitor that is gone does not need it; the text of this failure stays the first one.
  (void)visitor->link->send(kAbortFrame, encode_abort(abort));
  set_last_error_text(abort.text.c_str());
  if (!ready_sent_) return code;
  log(LogLevel::kWarn, "refused a connection: %s", last_error_text());
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::on_visitor_hello(Visitor* visitor, Frame* frame, int32_t* seated) {
  *seated = -1;
  const PeerCredentials credentials = visitor->credentials;
  Hello hello;
  const mep_result_t decoded = decode_hello(frame->payload, &hello);
  if (decoded == MEP_ERR_VERSION) {
    return reject(visitor, add_context(decoded, "pid %d, a rank of job '%s'", credentials.pid,
                                       config_.job.c_str()));
  }
  if (decoded != MEP_SUCCESS || hello.kind == HelloKind::kMember) {
    log(LogLevel::kWarn, "dropped a connection by pid %d: %s", credentials.pid,
        decoded != MEP_SUCCESS ? last_error_text() : "a hello of the wrong kind");
    return MEP_SUCCESS;
  }
  if (hello.kind == HelloKind::kJoin) {
    (void)visitor->link->send(kRetryFrame, {});
    return MEP_SUCCESS;
  }
  const auto rank = static_cast<int32_t>(hello.identity.slot);
  const mep_result_t fits = check_hello(hello, hello_, name_peer(rank, credentials));
  if (fits != MEP_SUCCESS) return reject(visitor, fits);
  const bool same_process = hello.identity.process_token == self_.identity.process_token;
  if (rank == rank_) {
    return reject(visitor,
                  fail(MEP_ERR_BOOTSTRAP, "two %s are rank %d of job '%s': pid %d and pid %d",
                       same_process ? "threads" : "processes", rank, config_.job.c_str(),
                       self_.identity.pid, credentials.pid));
  }
  if (rank < rank_ || rank >= config_.size) {
    log(LogLevel::kWarn, "dropped a connection by pid %d: rank %d has no business to connect",
        credentials.pid, rank);
    return MEP_SUCCESS;
  }
  const Seat& peer = seat(rank);
  if (peer.linked && peer.hello.identity.process_token == hello.identity.process_token) {
    // The rank is done with this start already and begins its next world.
    (void)visitor->link->send(kRetryFrame, {});
    return MEP_SUCCESS;
  }
  if (peer.linked) {
    return reject(
        visitor, fail(MEP_ERR_BOOTSTRAP, "two processes are rank %d of job '%s': pid %d and pid %d",
                      rank, config_.job.c_str(), peer.credentials.pid, credentials.pid));
  }
  Hello answer = hello_;
  answer.kind = HelloKind::kMember;
  const mep_result_t sent = send_hello(visitor->link.get(), answer);
  if (sent != MEP_SUCCESS && sent != MEP_ERR_PEER_FAILED) return sent;
  seat(rank).link = std::move(visitor->link);
  seat_peer(rank, std::move(hello), frame, credentials);
  *seated = rank;
  return MEP_SUCCESS;
}

void MeshBuilder::seat_peer(int32_t rank, Hello hello, Frame* frame,
                            const PeerCredentials& credentials) {
  Seat& peer = seat(rank);
  peer.credentials = credentials;
  peer.pidfd = adopt_pidfd(hello, self_, frame, credentials);
  peer.hello = std::move(hello);
  peer.linked = true;
}

mep_result_t MeshBuilder::serve_seat(int32_t rank) {
  Seat& peer = seat(rank);
  mep_result_t verdict = MEP_SUCCESS;
  bool again_later = false;
  const mep_result_t received = peer.link->receive([&](Frame& frame) {
    verdict = on_seat_frame(rank, &frame, &again_later);
    return verdict == MEP_SUCCESS && !again_later && !peer.ready;
  });
  MEP_TRY(verdict);
  if (again_later) {
    try_again_later(rank, "is still in an earlier world of this job");
    return MEP_SUCCESS;
  }
  if (received == MEP_SUCCESS) return MEP_SUCCESS;
  if (received != MEP_ERR_PEER_FAILED) {
    return add_context(received == MEP_ERR_DENIED ? MEP_ERR_BOOTSTRAP : received, "%s",
                       name_peer(rank, peer.credentials).c_str());
  }
  if (!peer.linked) {
    try_again_later(rank, "closed the connection before it said who it is");
    return MEP_SUCCESS;
  }
  return fail(MEP_ERR_BOOTSTRAP, "%s ended while the job '%s' started",
              name_peer(rank, peer.credentials).c_str(), config_.job.c_str());
}

mep_result_t MeshBuilder::on_seat_frame(int32_t rank, Frame* frame, bool* again_later) {
  Seat& peer = seat(rank);
  if (frame->type == kAbortFrame) return on_abort(*frame, peer.credentials);
  if (!peer.linked && frame->type == kHelloFrame) return on_seat_hello(rank, frame);
  if (!peer.linked && frame->type == kRetryFrame) {
    *again_later = true;
    return MEP_SUCCESS;
  }
  if (peer.linked && frame->type == kReadyFrame) {
    peer.ready = true;
    return MEP_SUCCESS;
  }
  return fail(MEP_ERR_BOOTSTRAP, "%s sent a frame of type %u, which has no place here",
              name_peer(rank, peer.credentials).c_str(), frame->type);
}

mep_result_t MeshBuilder::on_seat_hello(int32_t rank, Frame* frame) {
  const PeerCredentials credentials = seat(rank).credentials;
  const std::string who = name_peer(rank, credentials);
  Hello hello;
  const mep_result_t decoded = decode_hello(frame->payload, &hello);
  if (decoded != MEP_SUCCESS) {
    return add_context(decoded == MEP_ERR_DENIED ? MEP_ERR_BOOTSTRAP : decoded, "%s", who.c_str());
  }
  MEP_TRY(check_hello(hello, hello_, who));
  if (hello.kind != HelloKind::kMember || hello.identity.slot != static_cast<uint32_t>(rank)) {
    return fail(MEP_ERR_BOOTSTRAP, "%s says that it is rank %u", who.c_str(), hello.identity.slot);
  }
  seat_peer(rank, std::move(hello), frame, credentials);
  return MEP_SUCCESS;
}

mep_result_t bootstrap_mesh(const ResolvedConfig& config, const SelfDescription& self, Mesh* out) {
  if (self.offer.size() > kMaxOfferBytes ||
      self.identity.slot != static_cast<uint32_t>(config.rank) || config.rank >= config.size) {
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
  std::unique_ptr<Rendezvous> rendezvous;
  MEP_TRY(make_rendezvous(config, self, RendezvousPurpose::kStart, deadline, &rendezvous));
  MeshBuilder builder(config, self, rendezvous.get(), deadline);
  return builder.run(out);
}

}  // namespace mep
