// Those who connect to a starting rank: higher ranks, ranks of another start, and strangers.
#include <utility>

#include "base/log.hpp"
#include "base/status.hpp"
#include "base/stranger_log.hpp"
#include "core/bootstrap/mesh_builder.hpp"

namespace mep {
namespace {

// The process that a hello came from: of another host as it says itself, here as the kernel does.
std::string name_process(const Hello& hello, const PeerCredentials& credentials) {
  if (!credentials.is_remote()) return credentials.text();
  return "pid " + std::to_string(hello.identity.pid) + " at " + credentials.text();
}

}  // namespace

mep_result_t MeshBuilder::serve_incoming() {
  for (size_t i = 0; i < incoming_.size();) {
    bool keep = true;
    int32_t seated = -1;
    const mep_result_t result = serve_incoming(&incoming_[i], &keep, &seated);
    if (keep) {
      ++i;
    } else {  // its link may have gone to a seat
      incoming_.erase(incoming_.begin() + static_cast<ptrdiff_t>(i));
    }
    MEP_TRY(result);
    if (seated >= 0) MEP_TRY(serve_seat(seated));
  }
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::serve_incoming(Incoming* incoming, bool* keep, int32_t* seated) {
  mep_result_t answer = MEP_SUCCESS;
  *keep = incoming->serve(
      [&](Frame& frame) {
        answer = on_incoming_frame(incoming, &frame, keep, seated);
        return answer == MEP_SUCCESS && *keep;
      },
      std::exchange(incoming->readable, false));
  return answer;
}

mep_result_t MeshBuilder::on_incoming_frame(Incoming* incoming, Frame* frame, bool* keep,
                                            int32_t* seated) {
  Greeting& greeting = *incoming->greeting;
  const bool is_remote = greeting.is_remote();
  *keep = false;
  if (frame->type == kAbortFrame && !is_remote) return on_abort(*frame, incoming->credentials);
  Abort announced;
  if (frame->type == kAnnounceFrame && is_remote &&
      decode_announcement(frame->payload, self_.identity.incarnation, gate_->secret, &announced)) {
    return on_abort({kAbortFrame, encode_abort(announced), {}}, incoming->credentials);
  }
  Greeting::Step step = Greeting::Step::kMore;
  const mep_result_t result = greeting.take(incoming->link.get(), frame, &step);
  if (result == MEP_ERR_VERSION && !is_remote) {
    return reject(incoming, add_context(result, "pid %d, a rank of job '%s'",
                                        incoming->credentials.pid, config_.job.c_str()));
  }
  if (result != MEP_SUCCESS) {
    on_incoming_refused(incoming, result);
    return MEP_SUCCESS;
  }
  if (step == Greeting::Step::kOther) {
    if (frame->type == kAbortFrame) {
      on_incoming_abort(*incoming, *frame);
    } else {
      log_stranger("dropped a connection by %s: a frame of type %u has no place here",
                   incoming->credentials.text().c_str(), frame->type);
    }
    return MEP_SUCCESS;
  }
  if (step == Greeting::Step::kHello) {
    MEP_TRY(receive_incoming(incoming, keep));
    if (!*keep) return MEP_SUCCESS;
    Hello answer = hello_;
    answer.kind = HelloKind::kMember;
    const mep_result_t sent = greeting.answer(incoming->link.get(), answer);
    // One that is gone shows itself as the end of its stream.
    if (sent == MEP_ERR_DENIED) *keep = false;
    return sent == MEP_ERR_PEER_FAILED || sent == MEP_ERR_DENIED ? MEP_SUCCESS : sent;
  }
  *keep = true;
  if (step != Greeting::Step::kDone) return MEP_SUCCESS;
  MEP_TRY(receive_incoming(incoming, keep));
  if (!*keep) return MEP_SUCCESS;
  *keep = false;
  *seated = static_cast<int32_t>(greeting.hello().identity.slot);
  Seat& peer = seat(*seated);
  peer.credentials = incoming->credentials;
  peer.link = std::move(incoming->link);
  peer.greeting = std::move(incoming->greeting);
  peer.readable = true;  // frames that came right behind the last one are in the link already
  peer.linked = true;
  return MEP_SUCCESS;
}

// It has not proven itself, so what it says counts for texts alone. It comes again: one line of it.
void MeshBuilder::on_incoming_abort(const Incoming& incoming, const Frame& frame) {
  const Hello& hello = incoming.greeting->hello();
  const auto rank = static_cast<int32_t>(hello.identity.slot);
  Abort abort;
  if (!decode_abort(frame.payload, &abort) || hello.job != config_.job) return;
  if (rank <= rank_ || rank >= config_.size || seat(rank).linked) return;
  seat(rank).obstacle =
      incoming.credentials.text() + " says that it is this rank and refuses: " + abort.text;
  if (!seat(rank).refusal_logged) {
    log(LogLevel::kWarn, "rank %d: %s", rank, seat(rank).obstacle.c_str());
  }
  seat(rank).refusal_logged = true;
}

// It has another version, another secret, or talks nonsense: it may be anybody, so nothing fails.
void MeshBuilder::on_incoming_refused(Incoming* incoming, mep_result_t code) {
  const Hello& hello = incoming->greeting->hello();
  const std::string text = last_error_text();
  log_stranger("dropped a connection by %s: %s", incoming->credentials.text().c_str(),
               text.c_str());
  (void)send_abort(incoming->link.get(), code, rank_);
  const auto rank = static_cast<int32_t>(hello.identity.slot);
  if (hello.job != config_.job || rank <= rank_ || rank >= config_.size || seat(rank).linked)
    return;
  seat(rank).obstacle = incoming->credentials.text() + " says that it is this rank, but " + text;
  seat(rank).obstacle_denied = code == MEP_ERR_DENIED;
}

// Answers an incoming connection that cannot be taken in. Before READY this ends the start for everybody.
mep_result_t MeshBuilder::reject(Incoming* incoming, mep_result_t code) {
  (void)send_abort(incoming->link.get(), code, rank_);
  if (!ready_sent_) return code;
  log_stranger("refused a connection: %s", last_error_text());
  return MEP_SUCCESS;
}

// Called when an incoming connection has said who it is, and again when it has proven it: another one may have
// been quicker.
mep_result_t MeshBuilder::receive_incoming(Incoming* incoming, bool* welcome) {
  *welcome = false;
  Answer answer = Answer::kDrop;
  const mep_result_t judged = judge(incoming, &answer);
  switch (answer) {
    case Answer::kReject:
      // Over a network it must first prove that it is what it says.
      if (incoming->greeting->is_remote() && !incoming->greeting->done()) {
        *welcome = true;
        return MEP_SUCCESS;
      }
      return reject(incoming, judged);
    case Answer::kRetry:
      (void)incoming->link->send(kRetryFrame, {});
      return MEP_SUCCESS;
    case Answer::kDrop:
      log_stranger("dropped a connection by %s: %s", incoming->credentials.text().c_str(),
                   last_error_text());
      return MEP_SUCCESS;
    case Answer::kWelcome:
      *welcome = true;
      return MEP_SUCCESS;
  }
  return MEP_SUCCESS;
}

mep_result_t MeshBuilder::judge(Incoming* incoming, Answer* answer) {
  const Hello& hello = incoming->greeting->hello();
  const PeerCredentials& credentials = incoming->credentials;
  if (hello.kind == HelloKind::kJoin) {
    *answer = Answer::kRetry;
    return MEP_SUCCESS;
  }
  *answer = Answer::kDrop;
  if (hello.kind != HelloKind::kInit) return fail(MEP_ERR_DENIED, "a hello of the wrong kind");
  if (credentials.is_remote() && hello.identity.host == self_.identity.host) {
    return fail(MEP_ERR_DENIED, "it is on this host but comes over the network");
  }
  const auto rank = static_cast<int32_t>(hello.identity.slot);
  *answer = Answer::kReject;
  MEP_TRY(check_hello(hello, hello_, name_peer(rank, credentials)));
  const bool same_process = hello.identity.process_token == self_.identity.process_token;
  if (rank == rank_) {
    return fail(MEP_ERR_BOOTSTRAP, "two %s are rank %d of job '%s': pid %d and %s",
                same_process ? "threads" : "processes", rank, config_.job.c_str(),
                self_.identity.pid, name_process(hello, credentials).c_str());
  }
  if (rank < rank_ || rank >= config_.size) {
    *answer = Answer::kDrop;
    return fail(MEP_ERR_DENIED, "rank %d has no business to connect", rank);
  }
  const Seat& peer = seat(rank);
  if (!peer.linked) {
    *answer = Answer::kWelcome;
    return MEP_SUCCESS;
  }
  if (peer.greeting->hello().identity.process_token == hello.identity.process_token) {
    // The rank is done with this start already and begins its next world.
    *answer = Answer::kRetry;
    return MEP_SUCCESS;
  }
  return fail(MEP_ERR_BOOTSTRAP, "two processes are rank %d of job '%s': %s and %s", rank,
              config_.job.c_str(), name_process(peer.greeting->hello(), peer.credentials).c_str(),
              name_process(hello, credentials).c_str());
}

}  // namespace mep
