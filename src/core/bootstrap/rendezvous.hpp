// How the ranks of a job find each other. Each rank has a *place*: the name or address at which the others
// connect to it. A provider of places is one file rendezvous_NAME.cpp: it binds the ranks' listeners, opens
// connections and says who is at the other end. The frames on a connection are the same for all providers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/bootstrap/greeting.hpp"
#include "core/bootstrap/rendezvous_entries.hpp"
#include "mep.h"

namespace mep {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // Claims the place of `rank`. *taken: another process has it (success, *listener empty).
  [[nodiscard]] virtual mep_result_t listen(int32_t rank, UniqueFd* listener, bool* taken) = 0;
  // Claims a second place for `rank` while a stopped process holds its first one; that process may have been excluded
  // long ago. connect() looks at the second place when no running process holds the first. *taken: the holder runs, or
  // the second place is taken too.
  [[nodiscard]] virtual mep_result_t listen_beside(int32_t rank, UniqueFd* listener,
                                                   bool* taken) = 0;
  // Makes this rank's place known to the others. withdraw() takes that back.
  [[nodiscard]] virtual mep_result_t announce(int32_t rank) {
    (void)rank;
    return MEP_SUCCESS;
  }
  virtual void withdraw() {}
  // True once others can find this rank, and this rank knows the places that were announced before.
  virtual bool is_announced() const { return true; }
  // Connects to the place of `rank`. Success with an empty socket: nobody is known to listen there now.
  [[nodiscard]] virtual mep_result_t connect(int32_t rank, Connection* out) = 0;
  // Takes the next connection that waits at `listener`, or at the gate's listener for other hosts. None waits: an
  // empty socket.
  [[nodiscard]] virtual mep_result_t accept(int listener, Connection* out) = 0;
  // Fills in the credentials of the other end, as far as the kernel knows them. MEP_ERR_DENIED: the other end may
  // not take part; its credentials are filled in all the same.
  [[nodiscard]] virtual mep_result_t authenticate(Connection* connection) = 0;
  // connect() tries the place of `incarnation` no more: another process has answered there.
  virtual void ignore(uint64_t incarnation) { (void)incarnation; }
  // True once the places of ranks on other hosts are known, as far as they can be now.
  virtual bool is_open() const { return true; }
  // True if a process other than this one has announced a place for `rank`, and is not ignored.
  virtual bool is_known_elsewhere(int32_t rank) const {
    (void)rank;
    return false;
  }
  // Descriptors to wait on, besides the listener. When one is readable, call progress(). An error of progress() ends
  // the start.
  virtual std::vector<int> fds() const { return {}; }
  [[nodiscard]] virtual mep_result_t progress() { return MEP_SUCCESS; }
  // progress() looks for other ranks only now and then. After look_again() the next call looks.
  virtual void look_again() {}
  // The reason why a rank did not come, as far as known, for the error text. *denied: the rank is there but may
  // not take part.
  virtual std::string explain_absence(int32_t rank, bool* denied) = 0;
  // The reason why no rank at all can be found, or the process that was turned away; for the same text.
  virtual std::string explain_meeting() const { return {}; }
};

// Makes the provider that `config` asks for. `gate` has the job's secret already; this call gives it the listener and
// the book (list of places) by which joiners find this rank. May wait for other ranks, at most until `deadline`.
[[nodiscard]] mep_result_t make_rendezvous(const ResolvedConfig& config,
                                           const SelfDescription& self, RendezvousPurpose purpose,
                                           Deadline deadline, Gate* gate,
                                           std::unique_ptr<Rendezvous>* out);

// One host: abstract sockets named by `meeting_name`, most often the job's name.
std::unique_ptr<Rendezvous> make_local_rendezvous(const std::string& meeting_name);

// Several hosts: abstract sockets on each host, TCP between them. The gate's book has the places.
std::unique_ptr<Rendezvous> make_network_rendezvous(const std::string& meeting_name,
                                                    const SelfDescription& self, Gate* gate);
// Opens the gate's listener for other hosts and fills in its addresses.
[[nodiscard]] mep_result_t open_gate(const ResolvedConfig& config, Gate* gate);

// The book of a rendezvous by addresses. A process that can bind one of `addresses` serves there as meeting point: it
// tells each rank the places of the others. `listener`: a socket that this process has bound to one already, or
// invalid.
[[nodiscard]] mep_result_t make_address_book(const ResolvedConfig& config,
                                             const SelfDescription& self, RendezvousPurpose purpose,
                                             const Gate& gate, const std::string& addresses,
                                             UniqueFd listener,
                                             std::unique_ptr<RendezvousEntries>* out);
// The book as files in a directory that all hosts share.
[[nodiscard]] mep_result_t make_directory_book(const ResolvedConfig& config,
                                               const SelfDescription& self,
                                               std::unique_ptr<RendezvousEntries>* out);

// The agreement that ranks reach through the caller's key-value store. Nobody can guess the name. Ranks of one host
// meet under it; ranks of several hosts also meet at rank 0's addresses.
struct StoreMeeting {
  std::string name;
  std::vector<NetAddress> addresses;  // of rank 0's meeting point
  UniqueFd listener;                  // on rank 0
  bool other_host = false;            // rank 0 is on another host than this rank
};
[[nodiscard]] mep_result_t agree_through_store(const ResolvedConfig& config,
                                               const SelfDescription& self,
                                               RendezvousPurpose purpose, Deadline deadline,
                                               StoreMeeting* meeting);

// Claims the place of this rank (self.identity.slot). If another process holds it, asks that process and waits until
// it goes, or fails with its refusal. *told_by_holder: the holder has refused, and tells all other ranks itself.
[[nodiscard]] mep_result_t claim_entry(Rendezvous* rendezvous, const ResolvedConfig& config,
                                       const SelfDescription& self, Deadline deadline,
                                       UniqueFd* listener, bool* told_by_holder);

}  // namespace mep
