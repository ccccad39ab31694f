// A joiner's way into a running job, in rounds until one finds members or time is over: take a
// free place, say hello to everybody who listens, keep those that answer.
//
// Two joiners at a time: as at a start, the higher slot connects to the lower. A lower one that
// asks a higher one is told to wait, and thereby tells the higher one that it is there.
//
// A joiner may be there before the job is: a rank that starts finds its place given up at once, and
// the places are searched again when the first member answers, for by then all of the start listen.
#include <poll.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/bootstrap/greeting.hpp"
#include "core/bootstrap/rendezvous.hpp"

namespace mep {
namespace {

// Places that are searched until a member has told how many there are: the first ones at once, so many more each time
// that nobody listens there, or that kWaitMs have passed without a member. A knock costs some 10 us.
constexpr int32_t kSearchedPlaces = 1024;
constexpr int32_t kPlacesOfLook = 64;
// How long one round waits for members that took the connection but do not answer.
constexpr uint64_t kRoundMs = 2000;
constexpr int kWaitMs = 20;
constexpr int kPauseBetweenRoundsMs = 50;
constexpr size_t kMaxIncoming = 64;

class Joiner {
 public:
  Joiner(const ResolvedConfig& config, const SelfDescription& self, Rendezvous* rendezvous,
         Deadline deadline)
      : config_(config),
        self_(self),
        rendezvous_(rendezvous),
        deadline_(deadline),
        gate_(rendezvous->gate()),
        places_(std::max(config.max_size, kSearchedPlaces)) {}

  mep_result_t run(Mesh* out);

 private:
  struct Seat {
    explicit Seat(int32_t of_rank) : rank(of_rank) {}
    int32_t rank;
    std::unique_ptr<ControlLink> link;
    std::unique_ptr<Greeting> greeting;
    PeerCredentials credentials;
    uint64_t incarnation = 0;  // that was looked for; 0: any
    bool linked = false;
    bool waiting = true;  // its answer may still come
  };
  struct Incoming : mep::Incoming {
    using mep::Incoming::Incoming;
    bool answered = false;
  };

  mep_result_t take_place(bool* taken);
  mep_result_t play_round();
  mep_result_t search_places(int32_t* searched);
  mep_result_t connect(Seat* seat);
  mep_result_t serve(Seat* seat);
  // False: this connection is done with.
  bool on_answer(Seat* seat, Frame* frame);
  mep_result_t check_member(Seat* seat);
  mep_result_t serve_listener();
  mep_result_t on_incoming(Incoming* incoming, bool* keep);
  mep_result_t on_incoming_frame(Incoming* incoming, Frame* frame, bool* keep);
  void wait();
  void forget_joiners_that_gave_up();
  void pause();
  bool waiting() const;
  size_t linked() const;
  mep_result_t hand_over(Mesh* out);

  const ResolvedConfig& config_;
  SelfDescription self_;  // its slot is the place that was taken
  Rendezvous* rendezvous_;
  Deadline deadline_;
  std::shared_ptr<Gate> gate_;
  int32_t places_;
  UniqueFd listener_;
  std::map<int32_t, Seat> seats_;  // of this round, by rank: all places that somebody listens at
  std::vector<Incoming> incoming_;
  int32_t size_ = 0;
  int32_t max_size_ = 0;
  mep_result_t refusal_ = MEP_SUCCESS;  // the latest, with its text
  std::string refusal_text_;
  bool refused_ = false;  // by a member, not for want of a free place
  bool claimed_ = false;  // a rank that starts asks for the place of this round
};

// *taken: this process has the place now.
mep_result_t Joiner::take_place(bool* taken) {
  const int32_t first = config_.rank_given ? config_.rank : 0;
  const int32_t end = config_.rank_given ? config_.rank + 1 : places_;
  *taken = false;
  for (int32_t rank = first; rank < end && !*taken; ++rank) {
    bool occupied = !config_.rank_given && rendezvous_->is_known_elsewhere(rank);
    if (!occupied) MEP_TRY(rendezvous_->listen(rank, &listener_, &occupied));
    if (occupied && config_.rank_given)
      MEP_TRY(rendezvous_->listen_beside(rank, &listener_, &occupied));
    *taken = !occupied;
    self_.identity.slot = static_cast<uint32_t>(rank);
  }
  if (*taken) MEP_TRY(rendezvous_->announce(static_cast<int32_t>(self_.identity.slot)));
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
  Connection connection;
  MEP_TRY(rendezvous_->connect(seat->rank, &connection));
  seat->waiting = connection.socket.valid();
  if (!seat->waiting) return MEP_SUCCESS;
  const mep_result_t known = authenticate(&connection);
  seat->credentials = connection.credentials;
  seat->incarnation = connection.incarnation;
  if (known != MEP_SUCCESS) {
    log(LogLevel::kWarn, "place %d of job '%s' is held by a stranger: %s", seat->rank,
        config_.job.c_str(), last_error_text());
    seat->waiting = false;
    return MEP_SUCCESS;
  }
  seat->link = std::make_unique<ControlLink>(std::move(connection.socket));
  seat->greeting = std::make_unique<Greeting>(HandshakeSide::kCaller, seat->credentials.is_remote(),
                                              gate_->secret, gate_->details);
  const mep_result_t sent =
      seat->greeting->call(seat->link.get(), make_hello(HelloKind::kJoin, config_, self_));
  return sent == MEP_ERR_PEER_FAILED ? MEP_SUCCESS : sent;
}

mep_result_t Joiner::check_member(Seat* seat) {
  const Hello& hello = seat->greeting->hello();
  const std::string who = name_peer(seat->rank, seat->credentials);
  MEP_TRY(check_hello(hello, make_hello(HelloKind::kJoin, config_, self_), who));
  if (hello.kind != HelloKind::kMember ||
      hello.identity.slot != static_cast<uint32_t>(seat->rank)) {
    return fail(MEP_ERR_DENIED, "it says that it is rank %u", hello.identity.slot);
  }
  if (seat->incarnation != 0 && hello.identity.incarnation != seat->incarnation) {
    rendezvous_->ignore(seat->incarnation);
    return fail(MEP_ERR_DENIED, "it is not the process that was looked for");
  }
  return MEP_SUCCESS;
}

bool Joiner::on_answer(Seat* seat, Frame* frame) {
  Abort abort;
  if (frame->type == kAbortFrame && decode_abort(frame->payload, &abort)) {
    seat->waiting = false;
    refusal_ = abort.code;
    refusal_text_ = "rank " + std::to_string(abort.origin) + " reports: " + abort.text;
    // Over a network anybody could say so.
    refused_ = refused_ || !seat->credentials.is_remote() || seat->greeting->done();
    return false;
  }
  if (frame->type == kRetryFrame) return false;  // wait() comes back to it
  Greeting::Step step = Greeting::Step::kMore;
  mep_result_t answer = seat->greeting->take(seat->link.get(), frame, &step);
  if (answer == MEP_SUCCESS && step == Greeting::Step::kOther) {
    answer = fail(MEP_ERR_DENIED, "a frame of type %u", frame->type);
  }
  if (answer == MEP_SUCCESS && frame->type == kHelloFrame) answer = check_member(seat);
  if (answer != MEP_SUCCESS) {
    seat->waiting = false;
    refusal_ = answer;
    refusal_text_ = name_peer(seat->rank, seat->credentials) + ": " + last_error_text();
    return false;
  }
  if (step != Greeting::Step::kDone) return true;
  const Hello& hello = seat->greeting->hello();
  if (hello.max_size > 0) {  // not another joiner
    size_ = hello.size;
    max_size_ = hello.max_size;
    places_ = hello.max_size;
  }
  seat->waiting = false;
  seat->linked = true;
  return false;  // what follows belongs to the world
}

mep_result_t Joiner::serve(Seat* seat) {
  if (seat->link == nullptr) return connect(seat);
  if (seat->link->has_queued_output()) (void)seat->link->flush_output();
  bool again = true;
  const mep_result_t received = seat->link->receive([&](Frame& frame) {
    again = on_answer(seat, &frame);
    return again;
  });
  if (!again && seat->waiting) {
    seat->link.reset();
  } else if (again && received != MEP_SUCCESS) {
    seat->link.reset();
    // Perhaps it starts; one more look. An address that does not work may be one of several.
    seat->waiting = received == MEP_ERR_PEER_FAILED;
  }
  return MEP_SUCCESS;
}

mep_result_t Joiner::serve_listener() {
  MEP_TRY(accept_connections(listener_.get(), gate_->network_listener.get(), gate_->dead_after_ms,
                             [this](Connection&& connection) {
                               if (incoming_.size() >= kMaxIncoming)
                                 incoming_.erase(incoming_.begin());
                               incoming_.emplace_back(std::move(connection), gate_->secret,
                                                      gate_->details);
                             }));
  for (size_t i = 0; i < incoming_.size();) {
    bool keep = true;
    MEP_TRY(on_incoming(&incoming_[i], &keep));
    if (keep) {
      ++i;
    } else {
      incoming_.erase(incoming_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return MEP_SUCCESS;
}

mep_result_t Joiner::on_incoming(Incoming* incoming, bool* keep) {
  mep_result_t answer = MEP_SUCCESS;
  *keep = incoming->serve([&](Frame& frame) {
    answer = on_incoming_frame(incoming, &frame, keep);
    return answer == MEP_SUCCESS && *keep;
  });
  if (*keep || answer != MEP_SUCCESS || incoming->greeting == nullptr) return answer;
  if (!incoming->greeting->done()) return MEP_SUCCESS;
  const auto rank = static_cast<int32_t>(incoming->greeting->hello().identity.slot);
  Seat& seat = seats_.try_emplace(rank, rank).first->second;
  seat.credentials = incoming->credentials;
  seat.greeting = std::move(incoming->greeting);
  seat.link = std::move(incoming->link);
  seat.linked = true;
  seat.waiting = false;
  return MEP_SUCCESS;
}

mep_result_t Joiner::on_incoming_frame(Incoming* incoming, Frame* frame, bool* keep) {
  *keep = false;
  Greeting::Step step = Greeting::Step::kMore;
  const mep_result_t taken = incoming->greeting->take(incoming->link.get(), frame, &step);
  if (taken != MEP_SUCCESS || step == Greeting::Step::kOther) return MEP_SUCCESS;
  *keep = step == Greeting::Step::kMore;
  if (step != Greeting::Step::kHello) return MEP_SUCCESS;
  const Hello& hello = incoming->greeting->hello();
  if (hello.job != config_.job) return MEP_SUCCESS;
  const auto rank = static_cast<int32_t>(hello.identity.slot);
  const auto own = static_cast<int32_t>(self_.identity.slot);
  if (hello.kind != HelloKind::kJoin || rank <= own) {
    (void)incoming->link->send(kRetryFrame, {});
    // Over a network anybody could say so.
    claimed_ = claimed_ || (hello.kind == HelloKind::kInit && rank == own &&
                            !incoming->credentials.is_remote());
    if (hello.kind == HelloKind::kJoin && rank < own) {
      Seat& seat = seats_.try_emplace(rank, rank).first->second;
      seat.waiting = !seat.linked;
    }
    return MEP_SUCCESS;
  }
  Hello answer = make_hello(HelloKind::kJoin, config_, self_);
  answer.kind = HelloKind::kMember;
  incoming->answered = incoming->greeting->answer(incoming->link.get(), answer) == MEP_SUCCESS;
  *keep = incoming->answered;
  return MEP_SUCCESS;
}

// For answers, and for other joiners that have been answered and are about to prove themselves.
bool Joiner::waiting() const {
  return std::any_of(seats_.begin(), seats_.end(),
                     [](const auto& each) { return each.second.waiting; }) ||
         std::any_of(incoming_.begin(), incoming_.end(),
                     [](const Incoming& incoming) { return incoming.answered; });
}

size_t Joiner::linked() const {
  return static_cast<size_t>(std::count_if(seats_.begin(), seats_.end(),
                                           [](const auto& each) { return each.second.linked; }));
}

void Joiner::wait() {
  std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
  for (const int fd : rendezvous_->fds()) entries.push_back({fd, POLLIN, 0});
  for (const Incoming& incoming : incoming_) entries.push_back({incoming.link->fd(), POLLIN, 0});
  for (const auto& [rank, seat] : seats_) {
    if (!seat.waiting || seat.link == nullptr) continue;
    const int events = POLLIN | (seat.link->has_queued_output() ? POLLOUT : 0);
    entries.push_back({seat.link->fd(), static_cast<short>(events), 0});
  }
  (void)poll(entries.data(), entries.size(), deadline_.left_ms(kWaitMs));
}

// Its place is another's then. Their links are not read here: what they hold belongs to the world.
void Joiner::forget_joiners_that_gave_up() {
  for (auto& [rank, seat] : seats_) {
    if (!seat.linked || seat.greeting->hello().max_size > 0) continue;
    pollfd entry{seat.link->fd(), POLLRDHUP, 0};
    if (poll(&entry, 1, 0) != 1) continue;
    seat.link.reset();
    seat.linked = false;
  }
}

// Ends early when a rendezvous opens; after a round nothing is worth waking for.
void Joiner::pause() {
  std::vector<pollfd> entries;
  if (!gate_->places->is_open()) {
    for (const int fd : rendezvous_->fds()) entries.push_back({fd, POLLIN, 0});
  }
  (void)poll(entries.data(), entries.size(), deadline_.left_ms(kPauseBetweenRoundsMs));
}

mep_result_t Joiner::play_round() {
  seats_.clear();
  incoming_.clear();
  claimed_ = false;
  const Deadline limit = Deadline::after_ms(kRoundMs);
  // Then, of two joiners that come at the same time, one at least knows of the other.
  while (!gate_->places->has_own() && !limit.expired() && !deadline_.expired()) {
    wait();
    MEP_TRY(gate_->places->watch());
  }
  int32_t searched = 0;
  MEP_TRY(search_places(&searched));
  Deadline look = Deadline::after_ms(kWaitMs);
  bool searched_again = false;
  while ((waiting() || searched < places_) && !limit.expired() && !deadline_.expired()) {
    if (searched < places_ && (!waiting() || look.expired())) {
      MEP_TRY(search_places(&searched));
      look = Deadline::after_ms(kWaitMs);
      continue;
    }
    wait();
    MEP_TRY(gate_->places->watch());
    for (auto& [rank, seat] : seats_) {
      if (seat.waiting) MEP_TRY(serve(&seat));
    }
    forget_joiners_that_gave_up();
    MEP_TRY(serve_listener());
    if (claimed_ && max_size_ == 0) break;  // other joiners alone are no job
    if (max_size_ == 0 || std::exchange(searched_again, true)) continue;
    gate_->places->look_again();
    MEP_TRY(gate_->places->watch());
    searched = 0;
    MEP_TRY(search_places(&searched));
  }
  return MEP_SUCCESS;
}

// Knocks at the next places, or at all where their number is known, wherever nobody has answered or is about to.
mep_result_t Joiner::search_places(int32_t* searched) {
  const int32_t end = max_size_ > 0 ? places_ : std::min(places_, *searched + kPlacesOfLook);
  for (int32_t rank = std::exchange(*searched, end); rank < end; ++rank) {
    if (rank == static_cast<int32_t>(self_.identity.slot)) continue;
    const auto known = seats_.find(rank);
    if (known != seats_.end() && (known->second.linked || known->second.waiting)) continue;
    Seat seat(rank);
    MEP_TRY(connect(&seat));
    if (seat.waiting) seats_.insert_or_assign(rank, std::move(seat));
  }
  return MEP_SUCCESS;
}

mep_result_t Joiner::hand_over(Mesh* out) {
  Mesh mesh;
  mesh.self = self_;
  mesh.gate = gate_;
  mesh.listener = std::move(listener_);
  mesh.size = size_;
  mesh.max_size = max_size_;
  std::vector<Place> members;
  members.push_back(place_of(self_.identity, gate_->details.addresses));
  for (auto& [rank, seat] : seats_) {
    if (!seat.linked) continue;
    mesh.peers.push_back(
        make_peer_link(std::move(seat.link), seat.greeting.get(), self_, seat.credentials));
    members.push_back(place_of(mesh.peers.back().identity, seat.greeting->details().addresses));
  }
  gate_->places->settle(members);
  *out = std::move(mesh);
  return MEP_SUCCESS;
}

mep_result_t Joiner::run(Mesh* out) {
  for (;;) {
    MEP_TRY(gate_->places->watch());
    bool taken = false;
    if (gate_->places->is_open()) MEP_TRY(take_place(&taken));
    if (taken) {
      MEP_TRY(play_round());
      // Other joiners alone are no job.
      if (linked() > 0 && max_size_ > 0) return hand_over(out);
      // Without a rank that was asked for, another place may do next time.
      if (refusal_ == MEP_ERR_VERSION || (refused_ && config_.rank_given)) {
        return fail(refusal_, "%s", refusal_text_.c_str());
      }
    }
    // Not kept over the pause: a rank that starts properly must find its place free. The links go
    // first: who finds that rank there must not take a link to this process for one to it.
    seats_.clear();
    incoming_.clear();
    listener_.reset();
    gate_->places->erase(self_.identity.slot, self_.identity.incarnation);
    if (deadline_.expired()) break;
    pause();
  }
  if (refusal_text_.empty()) refusal_text_ = gate_->places->explain();
  return fail(refusal_ != MEP_SUCCESS ? refusal_ : MEP_ERR_BOOTSTRAP,
              "job '%s' could not be joined within %u ms: %s", config_.job.c_str(),
              config_.init_timeout_ms,
              refusal_text_.empty() ? "no member of it answers" : refusal_text_.c_str());
}

}  // namespace

mep_result_t bootstrap_join(const ResolvedConfig& config, const SelfDescription& self,
                            const Deadline& deadline, Mesh* out) {
  std::unique_ptr<Rendezvous> rendezvous;
  MEP_TRY(make_rendezvous(config, self, RendezvousPurpose::kJoin, deadline, &rendezvous));
  return Joiner(config, self, rendezvous.get(), deadline).run(out);
}

}  // namespace mep
