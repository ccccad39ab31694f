// Those who connect to a starting rank: higher ranks, ranks of another start, and strangers.
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/bootstrap/mesh_builder.hpp"

namespace mep {
namespace {

// The process that a hello came from: of another host as it says itself, here as the kernel does.
std::string name_process(const Hello& hello, const PeerCredentials& credentials) {
  if (!credentials.is_remote()) return credentials.text();
  return "pid " + std::to_string(hello.identity.pid) + " at " + credentials.text();
}

}  // namespace

mep_result_t MeshBuilder::serve_visitors() {
  for (size_t i = 0; i < visitors_.size();) {
    bool keep = true;
    int32_t seated = -1;
    const mep_result_t result = serve_visitor(&visitors_[i], &keep, &seated);
    if (keep) {
      ++i;
    } else {  // its link may have gone to a seat
      visitors_.erase(visitors_.begin() + static_cast<ptrdiff_t>(i));
    }
    MEP_TRY(result);
    // What came right behind the last frame may be in the link already.
    if (seated >= 0) MEP_TRY(serve_seat(seated));
  }
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::serve_visitor(Visitor* visitor, bool* keep, int32_t* seated) {
  const std::string who = visitor->credentials.text();
  mep_result_t verdict = MEP_SUCCESS;
  const mep_result_t received = visitor->link->receive([&](Frame& frame) {
    verdict = on_visitor_frame(visitor, &frame, keep, seated);
    return verdict == MEP_SUCCESS && *keep;
  });
  MEP_TRY(verdict);
  if (!*keep) return MEP_SUCCESS;
  if (received != MEP_SUCCESS) {
    *keep = false;
    if (received != MEP_ERR_PEER_FAILED) {
      log(LogLevel::kWarn, "dropped a connection by %s: %s", who.c_str(), last_error_text());
    }
    return MEP_SUCCESS;
  }
  if (visitor->link->has_queued_output()) (void)visitor->link->flush_output();
  if (!visitor->limit.expired()) return MEP_SUCCESS;
  log(LogLevel::kWarn, "dropped a connection by %s: it never said who it is", who.c_str());
  *keep = false;
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::on_visitor_frame(Visitor* visitor, Frame* frame, bool* keep,
                                           int32_t* seated) {
  Greeting& greeting = *visitor->greeting;
  const bool is_remote = greeting.is_remote();
  *keep = false;
  if (frame->type == kAbortFrame && !is_remote) return on_abort(*frame, visitor->credentials);
  Abort announced;
  if (frame->type == kAnnounceFrame && is_remote &&
      decode_announcement(frame->payload, self_.identity.incarnation, gate_->secret, &announced)) {
    return on_abort({kAbortFrame, encode_abort(announced), {}}, visitor->credentials);
  }
  Greeting::Step step = Greeting::Step::kMore;
  const mep_result_t result = greeting.take(visitor->link.get(), frame, &step);
  if (result == MEP_ERR_VERSION && !is_remote) {
    return reject(visitor, add_context(result, "pid %d, a rank of job '%s'",
                                       visitor->credentials.pid, config_.job.c_str()));
  }
  if (result != MEP_SUCCESS) {
    on_visitor_refused(visitor, result);
    return MEP_SUCCESS;
  }
  if (step == Greeting::Step::kOther) {
    if (frame->type == kAbortFrame) {
      on_visitor_abort(*visitor, *frame);
    } else {
      log(LogLevel::kWarn, "dropped a connection by %s: a frame of type %u has no place here",
          visitor->credentials.text().c_str(), frame->type);
    }
    return MEP_SUCCESS;
  }
  if (step == Greeting::Step::kHello) {
    MEP_TRY(receive_visitor(visitor, keep));
    if (!*keep) return MEP_SUCCESS;
    Hello answer = hello_;
    answer.kind = HelloKind::kMember;
    const mep_result_t sent = greeting.answer(visitor->link.get(), answer);
    // One that is gone shows itself as the end of its stream.
    if (sent == MEP_ERR_DENIED) *keep = false;
    return sent == MEP_ERR_PEER_FAILED || sent == MEP_ERR_DENIED ? MEP_SUCCESS : sent;
  }
  *keep = true;
  if (step != Greeting::Step::kDone) return MEP_SUCCESS;
  MEP_TRY(receive_visitor(visitor, keep));
  if (!*keep) return MEP_SUCCESS;
  *keep = false;
  *seated = static_cast<int32_t>(greeting.hello().identity.slot);
  Seat& peer = seat(*seated);
  peer.credentials = visitor->credentials;
  peer.link = std::move(visitor->link);
  peer.greeting = std::move(visitor->greeting);
  sit_down(*seated);
  return MEP_SUCCESS;
}

// It has not proven itself, so what it says counts for texts alone. It comes again: one line of it.
void MeshBuilder::on_visitor_abort(const Visitor& visitor, const Frame& frame) {
  const Hello& hello = visitor.greeting->hello();
  const auto rank = static_cast<int32_t>(hello.identity.slot);
  Abort abort;
  if (!decode_abort(frame.payload, &abort) || hello.job != config_.job) return;
  if (rank <= rank_ || rank >= config_.size || seat(rank).linked) return;
  seat(rank).obstacle =
      visitor.credentials.text() + " says that it is this rank and refuses: " + abort.text;
  if (!seat(rank).refusal_logged) {
    log(LogLevel::kWarn, "rank %d: %s", rank, seat(rank).obstacle.c_str());
  }
  seat(rank).refusal_logged = true;
}

// It has another version, another secret, or talks nonsense: it may be anybody, so nothing fails.
void MeshBuilder::on_visitor_refused(Visitor* visitor, mep_result_t code) {
  const Hello& hello = visitor->greeting->hello();
  const std::string text = last_error_text();
  log(LogLevel::kWarn, "dropped a connection by %s: %s", visitor->credentials.text().c_str(),
      text.c_str());
  Abort abort;
  abort.code = code;
  abort.sender = abort.origin = rank_;
  abort.text = text;
  (void)visitor->link->send(kAbortFrame, encode_abort(abort));
  const auto rank = static_cast<int32_t>(hello.identity.slot);
  if (hello.job != config_.job || rank <= rank_ || rank >= config_.size || seat(rank).linked)
    return;
  seat(rank).obstacle = visitor->credentials.text() + " says that it is this rank, but " + text;
  seat(rank).obstacle_denied = code == MEP_ERR_DENIED;
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

// Called when a visitor has said who it is, and again when it has proven it: another one may have
// been quicker.
mep_result_t MeshBuilder::receive_visitor(Visitor* visitor, bool* welcome) {
  *welcome = false;
  Verdict verdict = Verdict::kDrop;
  const mep_result_t judged = judge(visitor, &verdict);
  switch (verdict) {
    case Verdict::kReject:
      // Over a network it must first prove that it is what it says.
      if (visitor->greeting->is_remote() && !visitor->greeting->done()) {
        *welcome = true;
        return MEP_SUCCESS;
      }
      return reject(visitor, judged);
    case Verdict::kRetry:
      (void)visitor->link->send(kRetryFrame, {});
      return MEP_SUCCESS;
    case Verdict::kDrop:
      log(LogLevel::kWarn, "dropped a connection by %s: %s", visitor->credentials.text().c_str(),
          last_error_text());
      return MEP_SUCCESS;
    case Verdict::kWelcome:
      *welcome = true;
      return MEP_SUCCESS;
  }
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::judge(Visitor* visitor, Verdict* verdict) {
  const Hello& hello = visitor->greeting->hello();
  const PeerCredentials& credentials = visitor->credentials;
  if (hello.kind == HelloKind::kJoin) {
    *verdict = Verdict::kRetry;
    return MEP_SUCCESS;
  }
  *verdict = Verdict::kDrop;
  if (hello.kind != HelloKind::kInit) return fail(MEP_ERR_DENIED, "a hello of the wrong kind");
  if (credentials.is_remote() && hello.identity.host == self_.identity.host) {
    return fail(MEP_ERR_DENIED, "it is on this host but comes over the network");
  }
  const auto rank = static_cast<int32_t>(hello.identity.slot);
  *verdict = Verdict::kReject;
  MEP_TRY(check_hello(hello, hello_, name_peer(rank, credentials)));
  const bool same_process = hello.identity.process_token == self_.identity.process_token;
  if (rank == rank_) {
    return fail(MEP_ERR_BOOTSTRAP, "two %s are rank %d of job '%s': pid %d and %s",
                same_process ? "threads" : "processes", rank, config_.job.c_str(),
                self_.identity.pid, name_process(hello, credentials).c_str());
  }
  if (rank < rank_ || rank >= config_.size) {
    *verdict = Verdict::kDrop;
    return fail(MEP_ERR_DENIED, "rank %d has no business to connect", rank);
  }
  const Seat& peer = seat(rank);
  if (!peer.linked) {
    *verdict = Verdict::kWelcome;
    return MEP_SUCCESS;
  }
  if (peer.greeting->hello().identity.process_token == hello.identity.process_token) {
    // The rank is done with this start already and begins its next world.
    *verdict = Verdict::kRetry;
    return MEP_SUCCESS;
  }
  return fail(MEP_ERR_BOOTSTRAP, "two processes are rank %d of job '%s': %s and %s", rank,
              config_.job.c_str(), name_process(peer.greeting->hello(), peer.credentials).c_str(),
              name_process(hello, credentials).c_str());
}

}  // namespace mep
