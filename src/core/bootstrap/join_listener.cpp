// The open door of a running world. Whatever comes in here is answered or dropped; nothing that a
// incoming connection does can fail the world.
#include <sys/epoll.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "base/stranger_log.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/bootstrap/rendezvous.hpp"

namespace mep {
namespace {

constexpr int kShortMs = 100;
constexpr int kMaxSeen = 64;
constexpr size_t kMaxArriving = 256;

}  // namespace

struct JoinListener::State {
  int listener = -1;
  ResolvedConfig config;
  bool met_through_store = false;
  SelfDescription self;
  std::shared_ptr<Gate> gate;
  UniqueFd epoll;
  std::vector<Incoming> incoming;
  bool is_short = false;  // of descriptors, so connections may wait unseen

  void watch(int fd) const;
  void accept_all();
  void refuse(Incoming* incoming, mep_result_t code);
  bool serve(Incoming* incoming, std::vector<PeerLink>* arrived);
  // False: done with this incoming connection.
  bool on_frame(Incoming* incoming, Frame* frame);
  bool on_hello(Incoming* incoming);
  void let_in(Incoming* incoming, std::vector<PeerLink>* arrived);
  mep_result_t judge(const Incoming& incoming) const;
};

JoinListener::JoinListener(int listener, const ResolvedConfig& config, const SelfDescription& self,
                           std::shared_ptr<Gate> gate)
    : state_(std::make_unique<State>()) {
  state_->listener = listener;
  state_->config = config;
  state_->met_through_store = config.store != nullptr && config.rendezvous.empty();
  state_->config.store = nullptr;  // it served the start only
  state_->self = self;
  state_->gate = gate != nullptr ? std::move(gate) : std::make_shared<Gate>();
  state_->gate->details.offer = self.offer;
  state_->gate->details.death_page = self.death_page;
  state_->epoll.reset(epoll_create1(EPOLL_CLOEXEC));
  for (const int fd :
       {listener, state_->gate->network_listener.get(), state_->gate->places->fd()}) {
    state_->watch(fd);
  }
}

JoinListener::~JoinListener() {
  state_->gate->places->close();
}

// Edge by edge: a listener that cannot accept for want of descriptors keeps nobody busy.
void JoinListener::State::watch(int fd) const {
  if (fd < 0 || !epoll.valid()) return;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.fd = fd;
  // Without it the door is looked at when its thread wakes for something else.
  (void)epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event);
}

int JoinListener::fd() const {
  return state_->epoll.get();
}

int JoinListener::wait_ms(int cap) const {
  int limit_ms = state_->gate->places->wait_ms(state_->is_short ? std::min(cap, kShortMs) : cap);
  for (const Incoming& incoming : state_->incoming) limit_ms = incoming.limit.left_ms(limit_ms);
  return limit_ms;
}

void JoinListener::progress(std::vector<PeerLink>* arrived) {
  State& state = *state_;
  epoll_event seen[kMaxSeen];  // everything is looked at; that it was seen is what counts
  (void)epoll_wait(state.epoll.get(), seen, kMaxSeen, 0);
  state.gate->places->serve();
  state.accept_all();
  for (size_t i = 0; i < state.incoming.size();) {
    if (state.serve(&state.incoming[i], arrived)) {
      ++i;
    } else {  // its socket leaves the epoll set with its last descriptor
      if (state.incoming[i].link != nullptr) {
        (void)epoll_ctl(state.epoll.get(), EPOLL_CTL_DEL, state.incoming[i].link->fd(), nullptr);
      }
      state.incoming.erase(state.incoming.begin() + static_cast<ptrdiff_t>(i));
    }
  }
}

void JoinListener::State::accept_all() {
  const auto take = [this](Connection&& connection) {
    watch(connection.socket.get());
    if (incoming.size() >= kMaxArriving) incoming.erase(incoming.begin());
    incoming.emplace_back(std::move(connection), gate->secret, gate->details);
  };
  is_short = accept_connections(listener, gate->network_listener.get(), gate->dead_after_ms,
                                take) != MEP_SUCCESS;
  if (is_short) log_stranger("joiners have to wait: %s", last_error_text());
}

bool JoinListener::State::serve(Incoming* incoming, std::vector<PeerLink>* arrived) {
  bool is_done = false;
  const bool keep = incoming->serve([&](Frame& frame) {
    if (!on_frame(incoming, &frame)) return false;
    is_done = incoming->greeting->done();
    return !is_done;
  });
  if (is_done) let_in(incoming, arrived);
  return keep;
}

bool JoinListener::State::on_frame(Incoming* incoming, Frame* frame) {
  const std::string who = incoming->credentials.text();
  Greeting::Step step = Greeting::Step::kMore;
  const mep_result_t result = incoming->greeting->take(incoming->link.get(), frame, &step);
  if (result != MEP_SUCCESS) {
    // A caller that talks nonsense gets no answer.
    if (result == MEP_ERR_VERSION || frame->type == kProofFrame) {
      refuse(incoming, result);
    } else {
      log_stranger("dropped a connection by %s: %s", who.c_str(), last_error_text());
    }
    return false;
  }
  if (step == Greeting::Step::kHello) return on_hello(incoming);
  if (step != Greeting::Step::kOther) return true;
  // A failed start's last words do not concern this world.
  if (frame->type != kAbortFrame && frame->type != kAnnounceFrame) {
    log_stranger("dropped a connection by %s: a frame of type %u has no place here", who.c_str(),
                 frame->type);
  }
  return false;
}

void JoinListener::State::refuse(Incoming* incoming, mep_result_t code) {
  const std::string text =
      send_abort(incoming->link.get(), code, static_cast<int32_t>(self.identity.slot));
  log_stranger("refused a joiner, %s: %s", incoming->credentials.text().c_str(), text.c_str());
}

mep_result_t JoinListener::State::judge(const Incoming& incoming) const {
  const Hello& hello = incoming.greeting->hello();
  const Hello own = make_hello(HelloKind::kMember, config, self);
  const auto rank = static_cast<int32_t>(hello.identity.slot);
  MEP_TRY(check_hello(hello, own, name_peer(rank, incoming.credentials)));
  if (hello.identity.slot == self.identity.slot) {
    return fail(MEP_ERR_BOOTSTRAP,
                "rank %d of job '%s' is running already as pid %d, not only as %s", rank,
                config.job.c_str(), self.identity.pid, incoming.credentials.text().c_str());
  }
  if (rank >= config.max_size) {
    return fail(MEP_ERR_BOOTSTRAP, "job '%s' has room for %d ranks: rank %d cannot join",
                config.job.c_str(), config.max_size, rank);
  }
  if (incoming.credentials.is_remote() && hello.identity.host == self.identity.host) {
    return fail(MEP_ERR_DENIED, "rank %d is on this host but comes over the network", rank);
  }
  return MEP_SUCCESS;
}

bool JoinListener::State::on_hello(Incoming* incoming) {
  const Hello& hello = incoming->greeting->hello();
  if (hello.kind != HelloKind::kInit && hello.kind != HelloKind::kJoin) {
    log_stranger("dropped a connection by %s: a hello of the wrong kind",
                 incoming->credentials.text().c_str());
    return false;
  }
  // A rank that begins a start has found the record of this world in the caller's store, and waits for a later one.
  const bool has_old_record = hello.kind == HelloKind::kInit && met_through_store;
  // Over a network it must first prove that it is what it says.
  const mep_result_t answer = has_old_record ? MEP_SUCCESS : judge(*incoming);
  if (answer != MEP_SUCCESS && !incoming->greeting->is_remote()) {
    refuse(incoming, answer);
    return false;
  }
  if (hello.kind == HelloKind::kInit) {
    // A rank that has left this world and begins its next one waits until this one has ended here.
    (void)incoming->link->send(kRetryFrame, {});
    return false;
  }
  if (incoming->greeting->answer(incoming->link.get(),
                                 make_hello(HelloKind::kMember, config, self)) != MEP_SUCCESS) {
    log_stranger("a joiner, %s, went away: %s", incoming->credentials.text().c_str(),
                 last_error_text());
    return false;
  }
  return true;
}

void JoinListener::State::let_in(Incoming* incoming, std::vector<PeerLink>* arrived) {
  Greeting& greeting = *incoming->greeting;
  const mep_result_t answer = judge(*incoming);
  if (answer != MEP_SUCCESS) return refuse(incoming, answer);
  (void)epoll_ctl(epoll.get(), EPOLL_CTL_DEL, incoming->link->fd(), nullptr);
  arrived->push_back(
      make_peer_link(std::move(incoming->link), &greeting, self, incoming->credentials));
  (void)gate->places->put(place_of(greeting.hello().identity, greeting.details().addresses));
}

}  // namespace mep
