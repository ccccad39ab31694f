#include "core/bootstrap/greeting.hpp"

#include <cstring>

#include "base/status.hpp"
#include "base/stranger_log.hpp"

namespace mep {
namespace {

HandshakeSide other(HandshakeSide side) {
  return side == HandshakeSide::kCaller ? HandshakeSide::kAnswerer : HandshakeSide::kCaller;
}

// The proof, then the header of the stream of sealed frames (zero on one host).
constexpr size_t kProofFrameBytes = kProofBytes + sizeof(StreamHeader);

}  // namespace

Greeting::Greeting(HandshakeSide side, bool is_remote, const JobSecret& secret,
                   const Details& details)
    : side_(side), is_remote_(is_remote), secret_(secret), own_details_(details) {}

std::vector<std::byte> Greeting::finish_own(Hello* hello) const {
  hello->has_secret = secret_.given();
  hello->key = key_.public_key();
  return encode_hello(*hello);
}

mep_result_t Greeting::call(ControlLink* link, Hello hello) {
  own_bytes_ = finish_own(&hello);
  return send_hello(link, own_bytes_, is_remote_);
}

mep_result_t Greeting::answer(ControlLink* link, Hello hello) {
  if (state_ != State::kAnswer) return fail(MEP_ERR_INTERNAL, "an answer to nothing");
  own_bytes_ = finish_own(&hello);
  MEP_TRY(derive());
  state_ = State::kProof;
  MEP_TRY(send_hello(link, own_bytes_, is_remote_));
  return send_proof(link);
}

mep_result_t Greeting::derive() {
  const bool calls = side_ == HandshakeSide::kCaller;
  return keys_.derive(key_, peer_hello_.key, calls ? own_bytes_ : peer_bytes_,
                      calls ? peer_bytes_ : own_bytes_, secret_);
}

mep_result_t Greeting::send_proof(ControlLink* link) {
  StreamHeader header{};
  if (is_remote_) sealer_ = std::make_unique<FrameSealer>(keys_.key_from(side_), &header);
  const auto proof = keys_.proof_of(side_, header);
  std::vector<std::byte> payload(proof.begin(), proof.end());
  const auto header_bytes = std::as_bytes(std::span(header));
  payload.insert(payload.end(), header_bytes.begin(), header_bytes.end());
  return link->send(kProofFrame, payload);
}

mep_result_t Greeting::send_details(ControlLink* link) {
  if (is_remote_) link->seal_output(std::move(sealer_));
  return mep::send_details(link, own_details_, is_remote_);
}

mep_result_t Greeting::take_hello(Frame* frame, Step* step) {
  if (frame->lost_descriptors) {
    return fail(MEP_ERR_NO_MEMORY, "no descriptor is left for a peer's process; raise ulimit -n");
  }
  MEP_TRY(decode_hello(frame->payload, &peer_hello_));
  peer_bytes_ = frame->payload;
  fds_ = std::move(frame->fds);
  if (side_ == HandshakeSide::kAnswerer) {
    state_ = State::kAnswer;
    *step = Step::kHello;
    return MEP_SUCCESS;
  }
  state_ = State::kProof;
  return derive();
}

mep_result_t Greeting::take_proof(ControlLink* link, const Frame& frame) {
  if (frame.payload.size() != kProofFrameBytes) return fail(MEP_ERR_DENIED, "a malformed proof");
  StreamHeader header;
  std::memcpy(header.data(), frame.payload.data() + kProofBytes, header.size());
  const auto right = keys_.proof_of(other(side_), header);
  if (!equal_secrets(std::span(frame.payload).first(kProofBytes), right)) {
    return fail(MEP_ERR_DENIED, "%s: all ranks of a job need the same MEP_SECRET_FILE",
                peer_hello_.has_secret == secret_.given()
                    ? "it has another secret"
                    : (secret_.given() ? "it has no secret, this rank has one"
                                       : "it has a secret, this rank has none"));
  }
  if (is_remote_) {
    link->open_input(std::make_unique<FrameOpener>(keys_.key_from(other(side_)), header));
  }
  // The answerer proves itself first; its proof went out with its hello, in answer().
  if (side_ == HandshakeSide::kCaller) MEP_TRY(send_proof(link));
  state_ = State::kDetails;
  return send_details(link);
}

mep_result_t Greeting::take(ControlLink* link, Frame* frame, Step* step) {
  *step = Step::kMore;
  if (state_ == State::kHello && frame->type == kHelloFrame) return take_hello(frame, step);
  if (state_ == State::kProof && frame->type == kProofFrame) return take_proof(link, *frame);
  if (state_ == State::kDetails && frame->type == kDetailsFrame) {
    if (!decode_details(frame->payload, &peer_details_)) {
      return fail(MEP_ERR_DENIED, "malformed details");
    }
    if (!frame->fds.empty()) death_page_ = std::move(frame->fds.front());
    state_ = State::kDone;
    *step = Step::kDone;
    return MEP_SUCCESS;
  }
  *step = Step::kOther;
  return MEP_SUCCESS;
}

Incoming::Incoming(Connection&& connection, const JobSecret& secret, const Details& details)
    : link(std::make_unique<ControlLink>(std::move(connection.socket))),
      greeting(std::make_unique<Greeting>(HandshakeSide::kAnswerer,
                                          connection.credentials.is_remote(), secret, details)),
      credentials(std::move(connection.credentials)) {
  link->limit_payload(kStrangerPayloadBytes);
}

bool Incoming::serve(FunctionRef<bool(Frame&)> handler, bool is_readable) {
  bool goes_on = true;
  mep_result_t received = MEP_SUCCESS;
  if (is_readable) {
    received = link->receive([&](Frame& frame) { return goes_on = handler(frame); });
  }
  if (!goes_on || received == MEP_ERR_PEER_FAILED) return false;
  if (received == MEP_SUCCESS && link->has_queued_output()) (void)link->flush_output();
  if (received == MEP_SUCCESS && !limit.expired()) return true;
  log_stranger("dropped a connection by %s: %s", credentials.text().c_str(),
               received == MEP_SUCCESS ? "it never said who it is" : last_error_text());
  return false;
}

PeerLink make_peer_link(std::unique_ptr<ControlLink> link, Greeting* greeting,
                        const SelfDescription& self, const PeerCredentials& credentials) {
  PeerLink peer;
  peer.identity = greeting->hello().identity;
  peer.offer = std::move(greeting->details().offer);
  peer.pidfd = adopt_pidfd(greeting->hello(), self, &greeting->fds(), credentials);
  if (peer.pidfd.valid()) peer.death_page = greeting->take_death_page();
  peer.session = greeting->session();
  peer.link = std::move(link);
  peer.link->limit_payload(kMaxMessageBytes);
  return peer;
}

}  // namespace mep
