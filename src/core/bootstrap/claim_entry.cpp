// Claims this rank's place. If another process holds it, asks that process whether it goes.
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "base/status.hpp"
#include "core/bootstrap/hello.hpp"
#include "core/bootstrap/rendezvous.hpp"

namespace mep {
namespace {

// A rank that runs answers in microseconds. The claim fails when a holder is silent for this long.
constexpr uint64_t kHolderAnswerMs = 2000;
constexpr int kMaxPauseMs = 20;  // between two claims

// Says hello to the holder and waits until it has refused (*refused, and *abort has the reason), or says that it is
// not ready, most often since it is in an earlier world of the job, or has gone. MEP_ERR_TIMEOUT: it is silent.
[[nodiscard]] mep_result_t ask_holder(ControlLink* link, const Hello& hello, Deadline deadline,
                                      bool* refused, Abort* abort) {
  const Deadline limit =
      Deadline::at(std::min(deadline.at_ns(), Deadline::after_ms(kHolderAnswerMs).at_ns()));
  // A failed send shows itself as the end of the stream.
  (void)send_hello(link, encode_hello(hello), false);
  while (!limit.expired()) {
    pollfd entry{link->fd(), POLLIN, 0};
    (void)poll(&entry, 1, limit.left_ms(1000));
    bool is_busy = false;
    const mep_result_t result = link->receive([&](Frame& frame) {
      *refused = frame.type == kAbortFrame && decode_abort(frame.payload, abort);
      is_busy = frame.type == kRetryFrame;
      return !*refused && !is_busy;
    });
    if (*refused || is_busy || result == MEP_ERR_PEER_FAILED) return MEP_SUCCESS;
    if (result != MEP_SUCCESS) return result;
  }
  return MEP_ERR_TIMEOUT;
}

}  // namespace

mep_result_t claim_entry(Rendezvous* rendezvous, const ResolvedConfig& config,
                         const SelfDescription& self, Deadline deadline, UniqueFd* listener,
                         bool* told_by_holder) {
  *told_by_holder = false;
  const auto rank = static_cast<int32_t>(self.identity.slot);
  const Hello hello = make_hello(HelloKind::kInit, config, self);
  pid_t holder = 0;
  for (int pause_ms = 1;; pause_ms = std::min(2 * pause_ms, kMaxPauseMs)) {
    bool taken = false;
    MEP_TRY(rendezvous->listen(rank, listener, &taken));
    if (!taken) return MEP_SUCCESS;
    if (deadline.expired()) {
      return fail(MEP_ERR_BOOTSTRAP, "the place of rank %d of job '%s' stayed taken by pid %d",
                  rank, config.job.c_str(), holder);
    }
    Connection connection;
    MEP_TRY(rendezvous->connect(rank, &connection));
    if (connection.socket.valid()) {
      const mep_result_t known = authenticate(&connection);
      if (known != MEP_SUCCESS) {
        return add_context(known, "the place of rank %d of job '%s' is held by a stranger", rank,
                           config.job.c_str());
      }
      holder = connection.credentials.pid;
      ControlLink link(std::move(connection.socket));
      Abort abort;
      const mep_result_t asked = ask_holder(&link, hello, deadline, told_by_holder, &abort);
      if (*told_by_holder) return fail(abort.code, "%s", abort.text.c_str());
      if (asked == MEP_ERR_TIMEOUT) {
        return fail(MEP_ERR_BOOTSTRAP,
                    "the place of rank %d of job '%s' is held by pid %d, which does not answer",
                    rank, config.job.c_str(), holder);
      }
      if (asked != MEP_SUCCESS) {
        return add_context(MEP_ERR_BOOTSTRAP,
                           "the place of rank %d of job '%s' is held by pid %d, which is no rank",
                           rank, config.job.c_str(), holder);
      }
    }
    (void)poll(nullptr, 0, std::min(pause_ms, deadline.left_ms(kMaxPauseMs)));
  }
}

}  // namespace mep
