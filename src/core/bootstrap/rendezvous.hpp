// Where the ranks of a job find each other before they know each other. A provider is one file
// rendezvous_NAME.cpp: it names the ranks' listeners, opens connections and says who is at the
// other end; what is said on a connection is the same for all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/bootstrap/local_socket.hpp"
#include "mep.h"

namespace mep {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // Takes the place of `rank`. *taken: another process has it (success, *listener empty).
  [[nodiscard]] virtual mep_result_t listen(int32_t rank, UniqueFd* listener, bool* taken) = 0;
  // Nobody listens as `rank` now: success with an empty *socket.
  [[nodiscard]] virtual mep_result_t connect(int32_t rank, UniqueFd* socket) = 0;
  // Nobody waits: success with an empty *socket.
  [[nodiscard]] virtual mep_result_t accept(int listener, UniqueFd* socket) = 0;
  // Who is at the other end; MEP_ERR_DENIED for one that may not take part (*out is filled).
  [[nodiscard]] virtual mep_result_t authenticate(int socket, PeerCredentials* out) = 0;
  // What is known of a rank that did not come, for the error text. *denied: it would not be let in.
  virtual std::string explain_absence(int32_t rank, bool* denied) = 0;
};

enum class RendezvousPurpose { kStart, kJoin };

// The provider that `config` asks for. May wait for other ranks, at most until `deadline`.
[[nodiscard]] mep_result_t make_rendezvous(const ResolvedConfig& config,
                                           const SelfDescription& self, RendezvousPurpose purpose,
                                           Deadline deadline, std::unique_ptr<Rendezvous>* out);

// One host: abstract sockets named by `meeting_name`, most often the job's name.
std::unique_ptr<Rendezvous> make_local_rendezvous(const std::string& meeting_name);

// The caller's key-value store: the ranks agree on a name that nobody can guess and then meet on
// this host under it.
[[nodiscard]] mep_result_t agree_through_store(const ResolvedConfig& config,
                                               const SelfDescription& self,
                                               RendezvousPurpose purpose, Deadline deadline,
                                               std::string* meeting_name);

// Takes the place of config's rank. A place that is taken: asks the holder and fails with what it
// says, which the holder tells all others. *told_by_holder: nobody else needs to be told.
[[nodiscard]] mep_result_t claim_place(Rendezvous* rendezvous, const ResolvedConfig& config,
                                       const SelfDescription& self, Deadline deadline,
                                       UniqueFd* listener, bool* told_by_holder);

}  // namespace mep
