// The open door of a running world. Whatever comes in here is answered or dropped; nothing that a
// visitor does can fail the world.
#include <algorithm>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/bootstrap/hello.hpp"

namespace mep {
namespace {

constexpr uint64_t kHelloLimitMs = 5000;
constexpr uint64_t kPauseMs = 100;
constexpr size_t kMaxVisitors = 256;

struct Visitor {
  std::unique_ptr<ControlLink> link;
  PeerCredentials credentials;
  Deadline limit = Deadline::never();
};

}  // namespace

struct NewcomerDoor::State {
  int listener;
  ResolvedConfig config;
  SelfDescription self;
  std::vector<Visitor> visitors;
  // Without descriptors the listener would stay readable and keep its thread busy.
  Deadline closed_until = Deadline::at_ns(0);

  void accept_all();
  void refuse(Visitor* visitor, mep_result_t code);
  bool serve(Visitor* visitor, std::vector<PeerLink>* arrived);
  void on_hello(Visitor* visitor, Frame* frame, std::vector<PeerLink>* arrived);
  mep_result_t judge(const Hello& hello, const PeerCredentials& credentials) const;
};

NewcomerDoor::NewcomerDoor(int listener, const ResolvedConfig& config, const SelfDescription& self)
    : state_(std::make_unique<State>()) {
  state_->listener = listener;
  state_->config = config;
  state_->config.store = nullptr;  // it served the start only
  state_->self = self;
}

NewcomerDoor::~NewcomerDoor() = default;

std::vector<int> NewcomerDoor::fds() const {
  std::vector<int> fds;
  if (state_->listener >= 0 && state_->closed_until.expired()) fds.push_back(state_->listener);
  for (const Visitor& visitor : state_->visitors) fds.push_back(visitor.link->fd());
  return fds;
}

mep_result_t NewcomerDoor::progress(std::vector<PeerLink>* arrived) {
  State& state = *state_;
  if (state.listener >= 0 && state.closed_until.expired()) state.accept_all();
  for (size_t i = 0; i < state.visitors.size();) {
    if (state.serve(&state.visitors[i], arrived)) {
      ++i;
    } else {
      state.visitors.erase(state.visitors.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return MEP_SUCCESS;
}

void NewcomerDoor::State::accept_all() {
  for (;;) {
    UniqueFd socket;
    if (accept_local(listener, &socket) != MEP_SUCCESS) {
      log(LogLevel::kWarn, "newcomers have to wait: %s", last_error_text());
      closed_until = Deadline::after_ms(kPauseMs);
      return;
    }
    if (!socket.valid()) return;
    Visitor visitor;
    if (check_same_user(socket.get(), &visitor.credentials) != MEP_SUCCESS) {
      log(LogLevel::kWarn, "dropped a connection to job '%s' by a stranger: %s", config.job.c_str(),
          last_error_text());
      continue;
    }
    visitor.link = std::make_unique<ControlLink>(std::move(socket));
    visitor.limit = Deadline::after_ms(kHelloLimitMs);
    if (visitors.size() >= kMaxVisitors) visitors.erase(visitors.begin());
    visitors.push_back(std::move(visitor));
  }
}

// False: done with this visitor.
bool NewcomerDoor::State::serve(Visitor* visitor, std::vector<PeerLink>* arrived) {
  const pid_t pid = visitor->credentials.pid;
  Frame first;
  bool got_frame = false;
  const mep_result_t received = visitor->link->receive([&](Frame& frame) {
    first = std::move(frame);
    got_frame = true;
    return false;
  });
  if (got_frame) {
    if (first.type == kHelloFrame) {
      on_hello(visitor, &first, arrived);
    } else if (first.type !=
               kAbortFrame) {  // a failed start's last words do not concern this world
      log(LogLevel::kWarn, "dropped a connection by pid %d: it began with a frame of type %u", pid,
          first.type);
    }
    return false;
  }
  if (received != MEP_SUCCESS) {
    if (received != MEP_ERR_PEER_FAILED) {
      log(LogLevel::kWarn, "dropped a connection by pid %d: %s", pid, last_error_text());
    }
    return false;
  }
  if (!visitor->limit.expired()) return true;
  log(LogLevel::kWarn, "dropped a connection by pid %d: it never said who it is", pid);
  return false;
}

void NewcomerDoor::State::refuse(Visitor* visitor, mep_result_t code) {
  Abort abort;
  abort.code = code;
  abort.sender = static_cast<int32_t>(self.identity.slot);
  abort.origin = abort.sender;
  abort.text = last_error_text();
  (void)visitor->link->send(kAbortFrame, encode_abort(abort));
  log(LogLevel::kWarn, "refused a newcomer: %s", abort.text.c_str());
}

mep_result_t NewcomerDoor::State::judge(const Hello& hello,
                                        const PeerCredentials& credentials) const {
  const Hello own = make_hello(HelloKind::kMember, config, self);
  const auto rank = static_cast<int32_t>(hello.identity.slot);
  MEP_TRY(check_hello(hello, own, name_peer(rank, credentials)));
  if (hello.identity.slot == self.identity.slot) {
    return fail(MEP_ERR_BOOTSTRAP,
                "rank %d of job '%s' is running already as pid %d, not only as "
                "pid %d",
                rank, config.job.c_str(), self.identity.pid, credentials.pid);
  }
  if (rank >= config.max_size) {
    return fail(MEP_ERR_BOOTSTRAP, "job '%s' has room for %d ranks: rank %d cannot join",
                config.job.c_str(), config.max_size, rank);
  }
  return MEP_SUCCESS;
}

void NewcomerDoor::State::on_hello(Visitor* visitor, Frame* frame, std::vector<PeerLink>* arrived) {
  const PeerCredentials credentials = visitor->credentials;
  Hello hello;
  const mep_result_t decoded = decode_hello(frame->payload, &hello);
  if (decoded == MEP_ERR_VERSION) return refuse(visitor, decoded);
  if (decoded != MEP_SUCCESS || hello.kind == HelloKind::kMember) {
    log(LogLevel::kWarn, "dropped a connection by pid %d: %s", credentials.pid,
        decoded != MEP_SUCCESS ? last_error_text() : "a hello of the wrong kind");
    return;
  }
  const mep_result_t verdict = judge(hello, credentials);
  if (verdict != MEP_SUCCESS) return refuse(visitor, verdict);
  if (hello.kind == HelloKind::kInit) {
    // A rank that has left this world and begins its next one waits until this one has ended here.
    (void)visitor->link->send(kRetryFrame, {});
    return;
  }
  if (send_hello(visitor->link.get(), make_hello(HelloKind::kMember, config, self)) !=
      MEP_SUCCESS) {
    log(LogLevel::kWarn, "a newcomer, pid %d, went away: %s", credentials.pid, last_error_text());
    return;
  }
  PeerLink link;
  link.pidfd = adopt_pidfd(hello, self, frame, credentials);
  link.identity = hello.identity;
  link.offer = std::move(hello.offer);
  link.link = std::move(visitor->link);
  arrived->push_back(std::move(link));
}

}  // namespace mep
