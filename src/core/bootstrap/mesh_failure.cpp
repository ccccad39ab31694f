// How the failure of a start reaches all ranks: over every link, over every incoming connection whose
// other end has not said yet who it is, and over new connections to the places of all others. The failing
// rank lingers for a moment, so that ranks which start a little later are told too and need not wait for
// their own timeout.
#include <poll.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/rank_list.hpp"
#include "base/status.hpp"
#include "core/bootstrap/mesh_builder.hpp"

namespace mep {
namespace {

constexpr uint64_t kLingerMs = 1000;
constexpr int kTellEveryMs = 20;  // while it lingers
// Ranks whose absence a text explains: each costs system calls.
constexpr size_t kExplainedInNotice = 4;
constexpr size_t kExplainedInFailure = 64;

}  // namespace

mep_result_t MeshBuilder::on_abort(const Frame& frame, const PeerCredentials& credentials) {
  Abort abort;
  if (!decode_abort(frame.payload, &abort)) {
    return fail(MEP_ERR_BOOTSTRAP, "%s sent a malformed failure message",
                credentials.text().c_str());
  }
  if (abort.sender >= 0 && abort.sender < config_.size) seat(abort.sender).told = true;
  failure_origin_ = abort.origin;
  failure_text_ = abort.text;
  return fail(abort.code, "rank %d reports: %s", abort.origin, abort.text.c_str());
}

MeshBuilder::Missing MeshBuilder::find_missing(size_t most_explained) {
  Missing found;
  for (int32_t rank = 0; rank < config_.size; ++rank) {
    const Seat& peer = seat(rank);
    if (rank == rank_ || peer.ready) continue;
    if (sought_ < rank_ && rank >= sought_) continue;  // nothing is known of it yet
    if (peer.linked) {
      found.not_ready.push_back(rank);
      continue;
    }
    found.ranks.push_back(rank);
    found.any_denied = found.any_denied || peer.obstacle_denied;
    if (found.ranks.size() > most_explained) continue;
    bool denied = false;
    std::string reason = rendezvous_->explain_absence(rank, &denied);
    found.any_denied = found.any_denied || denied;
    if (!peer.obstacle.empty() && !denied) reason = peer.obstacle;
    if (!reason.empty()) reason.insert(0, "rank " + std::to_string(rank) + ": ");
    if (reason.empty() && peer.link != nullptr) {
      reason = name_peer(rank, peer.credentials) + " took the connection but did not answer";
    }
    if (reason.empty()) reason = peer.obstacle;
    if (!reason.empty()) found.details += "; " + reason;
  }
  const std::string meeting = rendezvous_->explain_meeting();
  const bool is_alone = found.ranks.size() + 1 == seats_.size() && found.details.empty();
  if (is_alone && !gate_->places->is_open()) {
    found.meeting = meeting;
  } else if (!meeting.empty()) {
    found.details += "; " + meeting;
  }
  if (!incoming_.empty()) {
    found.details += "; " + std::to_string(incoming_.size()) +
                     " connections never said who they are (one is of " +
                     incoming_.front().credentials.text() + ")";
  }
  if (config_.job.rfind("shell-", 0) == 0) {
    found.details += "; ranks that are not started by one shell need a common MEP_JOB";
  }
  if (!config_.no_rendezvous.empty()) found.details += "; " + config_.no_rendezvous;
  return found;
}

mep_result_t MeshBuilder::fail_missing() {
  const Missing found = find_missing(kExplainedInFailure);
  if (found.ranks.empty()) {
    return fail(MEP_ERR_BOOTSTRAP,
                "start of job '%s' was not finished within %u ms: %s of %d did not find all others",
                config_.job.c_str(), config_.init_timeout_ms, list_ranks(found.not_ready).c_str(),
                config_.size);
  }
  if (!found.meeting.empty()) {
    return fail(MEP_ERR_BOOTSTRAP, "no other rank of job '%s' could be found within %u ms: %s%s",
                config_.job.c_str(), config_.init_timeout_ms, found.meeting.c_str(),
                found.details.c_str());
  }
  return fail(found.any_denied ? MEP_ERR_DENIED : MEP_ERR_BOOTSTRAP,
              "%s of %d did not come to job '%s' within %u ms%s", list_ranks(found.ranks).c_str(),
              config_.size, config_.job.c_str(), config_.init_timeout_ms, found.details.c_str());
}

void MeshBuilder::say_who_is_awaited() {
  if (!log_enabled(LogLevel::kWarn)) return;
  const KeepErrorText kept;
  const Missing found = find_missing(kExplainedInNotice);
  const std::string where = !config_.rendezvous.empty() ? "at " + config_.rendezvous
                            : config_.store != nullptr  ? "through the caller's store"
                                                        : "on this host";
  if (!found.meeting.empty()) {
    log(LogLevel::kWarn, "still looking for the other ranks of job '%s' after %u s: %s%s",
        config_.job.c_str(), notice_.seconds(), found.meeting.c_str(), found.details.c_str());
    return;
  }
  const char* what = found.ranks.empty() ? " to find all others" : "";
  log(LogLevel::kWarn, "still waiting for %s of %d%s after %u s: job '%s', %s%s",
      list_ranks(found.ranks.empty() ? found.not_ready : found.ranks).c_str(), config_.size, what,
      notice_.seconds(), config_.job.c_str(), where.c_str(), found.details.c_str());
}

// A rank whose end the launcher has seen needs no telling.
bool MeshBuilder::all_told() const {
  for (int32_t rank = 0; rank < config_.size; ++rank) {
    if (rank == rank_ || seats_[static_cast<size_t>(rank)].told) continue;
    if (launch_page_.end_of(rank).empty()) return false;
  }
  return true;
}

void MeshBuilder::tell_linked(const std::vector<std::byte>& payload) {
  for (Seat& peer : seats_) {
    if (peer.link == nullptr) continue;
    (void)peer.link->send(kAbortFrame, payload);
    peer.told = peer.told || peer.linked;
    // Drops output that is still queued: such a peer has not read for long. tell_unlinked() connects to it anew.
    if (!peer.linked) peer.link.reset();
  }
}

void MeshBuilder::tell_unlinked(const Abort& abort) {
  for (int32_t rank = 0; rank < config_.size; ++rank) {
    Seat& peer = seat(rank);
    if (rank == rank_ || peer.told) continue;
    if (peer.announcement != nullptr) {
      (void)peer.announcement->flush_output();
      if (!peer.announcement->has_queued_output()) peer.told = true;
      continue;
    }
    Connection connection;
    if (rendezvous_->connect(rank, &connection) != MEP_SUCCESS || !connection.socket.valid()) {
      continue;
    }
    if (authenticate(&connection) != MEP_SUCCESS) continue;
    auto link = std::make_unique<ControlLink>(std::move(connection.socket));
    if (connection.credentials.is_remote()) {
      (void)link->send(kAnnounceFrame,
                       encode_announcement(abort, connection.incarnation, gate_->secret));
      peer.announcement = std::move(link);  // kept until its output has left
    } else {
      peer.told = link->send(kAbortFrame, encode_abort(abort)) == MEP_SUCCESS;
    }
  }
}

// Sends the failure to each connection once, when it accepts it. A hello or an abort that comes in says which rank
// is at the other end, and so has been told.
void MeshBuilder::tell_incoming(const std::vector<std::byte>& payload) {
  if (!listener_.valid()) return;
  const size_t known = incoming_.size();
  if (accept_incoming() != MEP_SUCCESS) return;
  for (size_t i = std::min(known, incoming_.size()); i < incoming_.size(); ++i) {
    (void)incoming_[i].link->send(kAbortFrame, payload);
  }
  for (Incoming& incoming : incoming_) {
    (void)incoming.link->receive([this](Frame& frame) {
      Hello hello;
      Abort abort;
      int32_t rank = -1;
      if (frame.type == kHelloFrame && decode_hello(frame.payload, &hello) == MEP_SUCCESS) {
        rank = static_cast<int32_t>(hello.identity.slot);
      } else if (frame.type == kAbortFrame && decode_abort(frame.payload, &abort)) {
        rank = abort.sender;
      }
      if (rank >= 0 && rank < config_.size) seat(rank).told = true;
      return true;
    });
  }
}

void MeshBuilder::spread_failure(mep_result_t code) {
  const std::string own_text = last_error_text();
  Abort abort;
  abort.code = code;
  abort.sender = rank_;
  abort.origin = failure_origin_ >= 0 ? failure_origin_ : rank_;
  abort.text = failure_origin_ >= 0 ? failure_text_ : own_text;
  const std::vector<std::byte> payload = encode_abort(abort);
  for (Incoming& incoming : incoming_) (void)incoming.link->send(kAbortFrame, payload);
  tell_linked(payload);
  // Only the rank that found the failure lingers. A rank that was told passes it on once, also to the finder,
  // which so learns that this rank knows.
  const Deadline linger =
      failure_origin_ >= 0
          ? Deadline::at(0)
          : Deadline::at(std::min(deadline_.at_ns(), Deadline::after_ms(kLingerMs).at_ns()));
  for (;;) {
    (void)gate_->places->watch();  // this rank may be the meeting point of those that come late
    tell_unlinked(abort);
    tell_incoming(payload);
    if (all_told() || linger.expired()) break;
    pollfd entry{listener_.get(), POLLIN, 0};
    (void)poll(&entry, 1, linger.left_ms(kTellEveryMs));
  }
  set_last_error_text(own_text.c_str());
}

}  // namespace mep
