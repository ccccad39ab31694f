// A newcomer's way into a running job, in rounds until one finds members or time is over: take a
// free place, say hello to everybody who listens, keep those that answer.
//
// Two newcomers at a time: as at a start, the higher slot connects to the lower. A lower one that
// asks a higher one is told to wait, and thereby tells the higher one that it is there.
#include <poll.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/bootstrap/hello.hpp"
#include "core/bootstrap/rendezvous.hpp"

namespace mep {
namespace {

// Places that are searched until a member has told how many there are.
constexpr int32_t kSearchedPlaces = 1024;
// How long one round waits for members that took the connection but do not answer.
constexpr uint64_t kRoundMs = 2000;
constexpr int kWaitMs = 20;
constexpr int kPauseBetweenRoundsMs = 50;

class Joiner {
 public:
  Joiner(const ResolvedConfig& config, const SelfDescription& self, Rendezvous* rendezvous,
         Deadline deadline)
      : config_(config),
        self_(self),
        rendezvous_(rendezvous),
        deadline_(deadline),
        places_(std::max(config.max_size, kSearchedPlaces)) {}

  mep_result_t run(Mesh* out);

 private:
  struct Seat {
    int32_t rank = 0;
    std::unique_ptr<ControlLink> link;
    PeerCredentials credentials;
    Hello hello;
    UniqueFd pidfd;
    bool linked = false;
    bool waiting = true;  // its answer may still come
  };
  struct Visitor {
    std::unique_ptr<ControlLink> link;
    PeerCredentials credentials;
  };

  mep_result_t take_place(bool* taken);
  mep_result_t play_round();
  mep_result_t connect(Seat* seat);
  mep_result_t serve(Seat* seat);
  void on_answer(Seat* seat, Frame* frame);
  mep_result_t serve_listener();
  mep_result_t on_visitor(Visitor* visitor, bool* keep);
  void wait();
  bool waiting() const;
  size_t linked() const;
  Seat* find_seat(int32_t rank);
  mep_result_t hand_over(Mesh* out);

  const ResolvedConfig& config_;
  SelfDescription self_;  // its slot is the place that was taken
  Rendezvous* rendezvous_;
  Deadline deadline_;
  int32_t places_;
  UniqueFd listener_;
  std::vector<Seat> seats_;  // of this round: all places that somebody listens at
  std::vector<Visitor> visitors_;
  int32_t size_ = 0;
  int32_t max_size_ = 0;
  mep_result_t refusal_ = MEP_SUCCESS;  // the latest, with its text
  std::string refusal_text_;
  bool refused_ = false;  // by a member, not for want of a free place
};

// *taken: this process has the place now.
mep_result_t Joiner::take_place(bool* taken) {
  const int32_t first = config_.rank_given ? config_.rank : 0;
  const int32_t end = config_.rank_given ? config_.rank + 1 : places_;
  *taken = false;
  for (int32_t rank = first; rank < end && !*taken; ++rank) {
    bool occupied = false;
    MEP_TRY(rendezvous_->listen(rank, &listener_, &occupied));
    *taken = !occupied;
    self_.identity.slot = static_cast<uint32_t>(rank);
  }
  if (!*taken) {
    refusal_ = MEP_ERR_BOOTSTRAP;
    refusal_text_ = config_.rank_given
                        ? "rank " + std::to_string(config_.rank) + " is still running"
                        : "no rank of it is absent";
  }
  return MEP_SUCCESS;
}

mep_result_t Joiner::connect(Seat* seat) {
  seat->link.reset();
  UniqueFd socket;
  MEP_TRY(rendezvous_->connect(seat->rank, &socket));
  seat->waiting = socket.valid();
  if (!socket.valid()) return MEP_SUCCESS;
  if (rendezvous_->authenticate(socket.get(), &seat->credentials) != MEP_SUCCESS) {
    log(LogLevel::kWarn, "place %d of job '%s' is held by a stranger: %s", seat->rank,
        config_.job.c_str(), last_error_text());
    seat->waiting = false;
    return MEP_SUCCESS;
  }
  seat->link = std::make_unique<ControlLink>(std::move(socket));
  const mep_result_t sent =
      send_hello(seat->link.get(), make_hello(HelloKind::kJoin, config_, self_));
  return sent == MEP_ERR_PEER_FAILED ? MEP_SUCCESS : sent;
}

void Joiner::on_answer(Seat* seat, Frame* frame) {
  Abort abort;
  if (frame->type == kAbortFrame && decode_abort(frame->payload, &abort)) {
    seat->waiting = false;
    refusal_ = abort.code;
    refusal_text_ = "rank " + std::to_string(abort.origin) + " reports: " + abort.text;
    refused_ = true;
    return;
  }
  if (frame->type == kRetryFrame) {
    seat->link.reset();  // wait() comes back to it
    return;
  }
  seat->waiting = false;
  Hello hello;
  const std::string who = name_peer(seat->rank, seat->credentials);
  mep_result_t verdict = frame->type == kHelloFrame
                             ? decode_hello(frame->payload, &hello)
                             : fail(MEP_ERR_DENIED, "a frame of type %u", frame->type);
  if (verdict == MEP_SUCCESS) {
    verdict = check_hello(hello, make_hello(HelloKind::kJoin, config_, self_), who);
  }
  if (verdict == MEP_SUCCESS && (hello.kind != HelloKind::kMember ||
                                 hello.identity.slot != static_cast<uint32_t>(seat->rank))) {
    verdict = fail(MEP_ERR_DENIED, "it says that it is rank %u", hello.identity.slot);
  }
  if (verdict != MEP_SUCCESS) {
    refusal_ = verdict;
    refusal_text_ = who + ": " + last_error_text();
    return;
  }
  if (hello.max_size > 0) {  // not another newcomer
    size_ = hello.size;
    max_size_ = hello.max_size;
    places_ = hello.max_size;
  }
  seat->pidfd = adopt_pidfd(hello, self_, frame, seat->credentials);
  seat->hello = std::move(hello);
  seat->linked = true;
}

mep_result_t Joiner::serve(Seat* seat) {
  if (seat->link == nullptr) return connect(seat);
  Frame answer;
  bool got_frame = false;
  const mep_result_t received = seat->link->receive([&](Frame& frame) {
    answer = std::move(frame);
    got_frame = true;
    return false;
  });
  if (got_frame) {
    on_answer(seat, &answer);
  } else if (received != MEP_SUCCESS) {
    seat->link.reset();
    seat->waiting = received == MEP_ERR_PEER_FAILED;  // perhaps it starts; one more look
  }
  return MEP_SUCCESS;
}

mep_result_t Joiner::serve_listener() {
  for (;;) {
    Visitor visitor;
    UniqueFd socket;
    MEP_TRY(rendezvous_->accept(listener_.get(), &socket));
    if (!socket.valid()) break;
    if (rendezvous_->authenticate(socket.get(), &visitor.credentials) != MEP_SUCCESS) continue;
    visitor.link = std::make_unique<ControlLink>(std::move(socket));
    visitors_.push_back(std::move(visitor));
  }
  for (size_t i = 0; i < visitors_.size();) {
    bool keep = true;
    MEP_TRY(on_visitor(&visitors_[i], &keep));
    if (keep) {
      ++i;
    } else {
      visitors_.erase(visitors_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return MEP_SUCCESS;
}

mep_result_t Joiner::on_visitor(Visitor* visitor, bool* keep) {
  Frame first;
  bool got_frame = false;
  const mep_result_t received = visitor->link->receive([&](Frame& frame) {
    first = std::move(frame);
    got_frame = true;
    return false;
  });
  *keep = !got_frame && received == MEP_SUCCESS;
  if (!got_frame || first.type != kHelloFrame) return MEP_SUCCESS;
  Hello hello;
  if (decode_hello(first.payload, &hello) != MEP_SUCCESS || hello.job != config_.job) {
    return MEP_SUCCESS;
  }
  const auto rank = static_cast<int32_t>(hello.identity.slot);
  const auto own = static_cast<int32_t>(self_.identity.slot);
  if (hello.kind != HelloKind::kJoin || rank <= own) {
    (void)visitor->link->send(kRetryFrame, {});
    if (hello.kind == HelloKind::kJoin && rank < own && find_seat(rank) == nullptr) {
      seats_.emplace_back();
      seats_.back().rank = rank;
    }
    return MEP_SUCCESS;
  }
  Hello answer = make_hello(HelloKind::kJoin, config_, self_);
  answer.kind = HelloKind::kMember;
  MEP_TRY(send_hello(visitor->link.get(), answer));
  Seat* seat = find_seat(rank);
  if (seat == nullptr) {
    seats_.emplace_back();
    seat = &seats_.back();
    seat->rank = rank;
  }
  seat->credentials = visitor->credentials;
  seat->pidfd = adopt_pidfd(hello, self_, &first, visitor->credentials);
  seat->hello = std::move(hello);
  seat->link = std::move(visitor->link);
  seat->linked = true;
  seat->waiting = false;
  return MEP_SUCCESS;
}

Joiner::Seat* Joiner::find_seat(int32_t rank) {
  const auto found = std::find_if(seats_.begin(), seats_.end(),
                                  [rank](const Seat& seat) { return seat.rank == rank; });
  return found == seats_.end() ? nullptr : &*found;
}

bool Joiner::waiting() const {
  return std::any_of(seats_.begin(), seats_.end(), [](const Seat& seat) { return seat.waiting; });
}

size_t Joiner::linked() const {
  return static_cast<size_t>(
      std::count_if(seats_.begin(), seats_.end(), [](const Seat& seat) { return seat.linked; }));
}

void Joiner::wait() {
  std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
  for (const Visitor& visitor : visitors_) entries.push_back({visitor.link->fd(), POLLIN, 0});
  for (const Seat& seat : seats_) {
    if (seat.waiting && seat.link != nullptr) entries.push_back({seat.link->fd(), POLLIN, 0});
  }
  (void)poll(entries.data(), entries.size(), deadline_.left_ms(kWaitMs));
}

mep_result_t Joiner::play_round() {
  seats_.clear();
  visitors_.clear();
  const Deadline limit = Deadline::after_ms(kRoundMs);
  for (int32_t rank = 0; rank < places_; ++rank) {
    if (rank == static_cast<int32_t>(self_.identity.slot)) continue;
    Seat seat;
    seat.rank = rank;
    MEP_TRY(connect(&seat));
    if (seat.waiting) seats_.push_back(std::move(seat));
  }
  while (waiting() && !limit.expired() && !deadline_.expired()) {
    wait();
    for (size_t i = 0; i < seats_.size(); ++i) {
      if (seats_[i].waiting) MEP_TRY(serve(&seats_[i]));
    }
    MEP_TRY(serve_listener());
  }
  return MEP_SUCCESS;
}

mep_result_t Joiner::hand_over(Mesh* out) {
  Mesh mesh;
  mesh.self = self_;
  mesh.listener = std::move(listener_);
  mesh.size = size_;
  mesh.max_size = max_size_;
  std::sort(seats_.begin(), seats_.end(),
            [](const Seat& left, const Seat& right) { return left.rank < right.rank; });
  for (Seat& seat : seats_) {
    if (!seat.linked) continue;
    PeerLink link;
    link.identity = seat.hello.identity;
    link.offer = std::move(seat.hello.offer);
    link.pidfd = std::move(seat.pidfd);
    link.link = std::move(seat.link);
    mesh.peers.push_back(std::move(link));
  }
  *out = std::move(mesh);
  return MEP_SUCCESS;
}

mep_result_t Joiner::run(Mesh* out) {
  for (;;) {
    bool taken = false;
    MEP_TRY(take_place(&taken));
    if (taken) {
      MEP_TRY(play_round());
      // Other newcomers alone are no job.
      if (linked() > 0 && max_size_ > 0) return hand_over(out);
      // Without a rank that was asked for, another place may do next time.
      if (refusal_ == MEP_ERR_VERSION || (refused_ && config_.rank_given)) {
        return fail(refusal_, "%s", refusal_text_.c_str());
      }
    }
    // Not kept over the pause: a rank that starts properly must find its place free.
    listener_.reset();
    seats_.clear();
    visitors_.clear();
    if (deadline_.expired()) break;
    (void)poll(nullptr, 0, deadline_.left_ms(kPauseBetweenRoundsMs));
  }
  return fail(refusal_ != MEP_SUCCESS ? refusal_ : MEP_ERR_BOOTSTRAP,
              "job '%s' could not be joined within %u ms: %s", config_.job.c_str(),
              config_.init_timeout_ms,
              refusal_text_.empty() ? "no member of it answers" : refusal_text_.c_str());
}

}  // namespace

mep_result_t bootstrap_join(const ResolvedConfig& config, const SelfDescription& self, Mesh* out) {
  if (self.offer.size() > kMaxOfferBytes) {
    return fail(MEP_ERR_INTERNAL, "an offer of %zu bytes", self.offer.size());
  }
  const Deadline deadline = Deadline::after_ms(config.init_timeout_ms);
  std::unique_ptr<Rendezvous> rendezvous;
  MEP_TRY(make_rendezvous(config, self, RendezvousPurpose::kJoin, deadline, &rendezvous));
  Joiner joiner(config, self, rendezvous.get(), deadline);
  return joiner.run(out);
}

}  // namespace mep
