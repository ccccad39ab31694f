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
#include "core/bootstrap/rendezvous_entries.hpp"
#include "mep.h"

namespace mep {

// A connection to somebody who has not said who it is.
struct Connection {
  UniqueFd socket;
  PeerCredentials credentials;
  uint64_t incarnation = 0;  // who was looked for; 0: anybody
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // Takes the place of `rank`. *taken: another process has it (success, *listener empty).
  [[nodiscard]] virtual mep_result_t listen(int32_t rank, UniqueFd* listener, bool* taken) = 0;
  // The same for a rank whose place a stopped process holds, which the others may have left out long ago: a second
  // place, where connect() finds it while the first does not answer. *taken: the holder runs, or that one is taken too.
  [[nodiscard]] virtual mep_result_t listen_beside(int32_t rank, UniqueFd* listener,
                                                   bool* taken) = 0;
  // The place is this rank's: others may find it there. withdraw: it is given up.
  [[nodiscard]] virtual mep_result_t announce(int32_t rank) {
    (void)rank;
    return MEP_SUCCESS;
  }
  virtual void withdraw() {}
  // Others find it there from now on, and who was announced before is known here.
  virtual bool is_announced() const { return true; }
  // Nobody listens as `rank` now, as far as is known: success with an empty socket.
  [[nodiscard]] virtual mep_result_t connect(int32_t rank, Connection* out) = 0;
  // The next that waits at `listener` or at the door for other hosts. Nobody: an empty socket.
  [[nodiscard]] virtual mep_result_t accept(int listener, Connection* out) = 0;
  // Fills the credentials of the other end, as far as the kernel knows it; MEP_ERR_DENIED for one that may not
  // take part (they are filled then too).
  [[nodiscard]] virtual mep_result_t authenticate(Connection* connection) = 0;
  // The incarnation that was found at a place is another one: it is looked for there no more.
  virtual void ignore(uint64_t incarnation) { (void)incarnation; }
  // Whether it is known which ranks there are elsewhere, and whether `rank` is one of them.
  virtual bool is_open() const { return true; }
  virtual bool is_known_elsewhere(int32_t rank) const {
    (void)rank;
    return false;
  }
  // Descriptors to wait on beside the listener, and what to do then. An error ends the start.
  virtual std::vector<int> fds() const { return {}; }
  [[nodiscard]] virtual mep_result_t progress() { return MEP_SUCCESS; }
  // progress() may know of others late, because it looks now and then: the next one looks.
  virtual void look_again() {}
  // All that is known of a rank that did not come, for the error text. *denied: it would not be let in.
  virtual std::string explain_absence(int32_t rank, bool* denied) = 0;
  // All that is known of the meeting itself, whichever rank is missing.
  virtual std::string explain_meeting() const { return {}; }
};

// The provider that `config` asks for; `gate` has the secret and gets what joiners will need. May
// wait for other ranks, at most until `deadline`.
[[nodiscard]] mep_result_t make_rendezvous(const ResolvedConfig& config,
                                           const SelfDescription& self, RendezvousPurpose purpose,
                                           Deadline deadline, Gate* gate,
                                           std::unique_ptr<Rendezvous>* out);

// One host: abstract sockets named by `meeting_name`, most often the job's name.
std::unique_ptr<Rendezvous> make_local_rendezvous(const std::string& meeting_name);

// Several hosts: on each abstract sockets, between them TCP; who is where stands in the gate's book.
std::unique_ptr<Rendezvous> make_network_rendezvous(const std::string& meeting_name,
                                                    const SelfDescription& self, Gate* gate);
// Opens the gate's listener for other hosts and fills in its addresses.
[[nodiscard]] mep_result_t open_gate(const ResolvedConfig& config, Gate* gate);

// Meeting points: whoever can bind one of the addresses serves there. `listener`: an address that
// this process has bound already, may be invalid.
[[nodiscard]] mep_result_t make_address_book(const ResolvedConfig& config,
                                             const SelfDescription& self, RendezvousPurpose purpose,
                                             const Gate& gate, const std::string& addresses,
                                             UniqueFd listener,
                                             std::unique_ptr<RendezvousEntries>* out);
// Files in a directory that all hosts share.
[[nodiscard]] mep_result_t make_directory_book(const ResolvedConfig& config,
                                               const SelfDescription& self,
                                               std::unique_ptr<RendezvousEntries>* out);

// The caller's key-value store: the ranks agree on a name that nobody can guess and then meet under
// it, on one host; on several also at rank 0's address.
struct StoreMeeting {
  std::string name;
  std::vector<NetAddress> addresses;  // of rank 0's meeting point
  UniqueFd listener;                  // on rank 0
  bool other_host = false;            // rank 0 is on another one
};
[[nodiscard]] mep_result_t agree_through_store(const ResolvedConfig& config,
                                               const SelfDescription& self,
                                               RendezvousPurpose purpose, Deadline deadline,
                                               StoreMeeting* meeting);

// Takes the place of config's rank. A place that is taken: asks the holder and fails with what it
// says, which the holder tells all others. *told_by_holder: nobody else needs to be told.
[[nodiscard]] mep_result_t claim_entry(Rendezvous* rendezvous, const ResolvedConfig& config,
                                       const SelfDescription& self, Deadline deadline,
                                       UniqueFd* listener, bool* told_by_holder);

}  // namespace mep
