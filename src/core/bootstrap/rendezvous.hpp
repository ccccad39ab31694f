// How the ranks of a job find each other. Each rank has a *place*: the name or address at which the others
// connect to it. On one host and for one user that is an abstract Unix socket name, so that the kernel vouches for
// the rank and descriptors can be passed; a rank on another host is reached by TCP at its place in the gate's store.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/clock.hpp"
#include "base/function_ref.hpp"
#include "base/unique_fd.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/bootstrap/greeting.hpp"
#include "core/bootstrap/place_store.hpp"
#include "mep.h"

namespace mep {

// Hands each connection that waits at the listener for this host or at the one for other hosts (-1: none) to `take`.
// A process that may not take part ends in the log.
[[nodiscard]] mep_result_t accept_connections(int local, int network, uint32_t dead_after_ms,
                                              FunctionRef<void(Connection&&)> take);
// Fills in the credentials of the other end, as far as the kernel knows them. MEP_ERR_DENIED: the other end may
// not take part; its credentials are filled in all the same. A peer on another host proves itself later.
[[nodiscard]] mep_result_t authenticate(Connection* connection);

class Rendezvous {
 public:
  // Ranks of one host meet under `meeting_name`, most often the job's name. `start`: see there.
  Rendezvous(const std::string& meeting_name, uint64_t start, const SelfDescription& self,
             std::shared_ptr<Gate> gate);
  const std::shared_ptr<Gate>& gate() const { return gate_; }
  // The start that the caller's store tells of, by the incarnation of its rank 0; 0: there is no such store.
  uint64_t start() const { return start_; }

  // Claims the place of `rank`. *taken: another process has it (success, *listener empty).
  [[nodiscard]] mep_result_t listen(int32_t rank, UniqueFd* listener, bool* taken);
  // Claims a second place for `rank` while a stopped process holds its first one; that process may have been excluded
  // long ago. connect() looks at the second place when no running process holds the first. *taken: the holder runs, or
  // the second place is taken too.
  [[nodiscard]] mep_result_t listen_beside(int32_t rank, UniqueFd* listener, bool* taken);
  // Makes this rank's place known to ranks of other hosts.
  [[nodiscard]] mep_result_t announce(int32_t rank);
  // Connects to the place of `rank`. Success with an empty socket: nobody is known to listen there now.
  [[nodiscard]] mep_result_t connect(int32_t rank, Connection* out);
  // connect() tries the place of `incarnation` no more: another process has answered there.
  void ignore(uint64_t incarnation) { ignored_.insert(incarnation); }
  // True if a process other than this one has announced a place for `rank`, and is not ignored.
  bool is_known_elsewhere(int32_t rank) const;
  // Descriptors to wait on, besides the listener.
  std::vector<int> fds() const;
  // The reason why a rank did not come, as far as known, for the error text. *denied: the rank is there but may
  // not take part.
  std::string explain_absence(int32_t rank, bool* denied);
  // The reason why no rank at all can be found, or the process that was turned away; for the same text.
  std::string explain_meeting() const;

 private:
  std::string name_of(int32_t rank) const;
  std::string name_beside(int32_t rank) const { return name_of(rank) + "+"; }
  mep_result_t connect_here(int32_t rank, UniqueFd* out) const;
  std::string explain_absence_here(int32_t rank, bool* denied);

  std::string meeting_name_;
  const uint64_t start_;
  const SelfDescription self_;
  const std::shared_ptr<Gate> gate_;
  int32_t own_rank_ = -1;
  std::set<uint64_t> ignored_;          // incarnations; others answered at their places
  std::map<int32_t, size_t> attempts_;  // by rank: connections tried, each at its next address
  std::map<int32_t, uid_t> foreign_;    // as found last; one look serves the ranks of one text
  Deadline foreign_age_ = Deadline::at(0);
};

// Makes the rendezvous that `config` asks for, and its gate, by which joiners find this rank. May wait for other
// ranks, at most until `deadline`.
[[nodiscard]] mep_result_t make_rendezvous(const ResolvedConfig& config,
                                           const SelfDescription& self, RendezvousPurpose purpose,
                                           Deadline deadline, std::unique_ptr<Rendezvous>* out);

// Listens at a free port for other hosts; *addresses are those of the interfaces that MEP_NET_IF allows.
[[nodiscard]] mep_result_t listen_for_hosts(UniqueFd* listener, std::vector<NetAddress>* addresses);

// The store of a rendezvous by addresses. A process that can bind one of `addresses` serves there as meeting point: it
// tells each rank the places of the others. `listener`: a socket that this process has bound to one already, or
// invalid.
[[nodiscard]] mep_result_t make_address_store(const ResolvedConfig& config,
                                              const SelfDescription& self,
                                              RendezvousPurpose purpose, const Gate& gate,
                                              const std::string& addresses, UniqueFd listener,
                                              std::unique_ptr<PlaceStore>* out);
// The store as files in a directory that all hosts share.
[[nodiscard]] mep_result_t make_directory_store(const ResolvedConfig& config,
                                                const SelfDescription& self,
                                                std::unique_ptr<PlaceStore>* out);

// The agreement that ranks reach through the caller's key-value store. Nobody can guess the name. Ranks of one host
// meet under it; ranks of several hosts also meet at rank 0's addresses.
struct StoreMeeting {
  std::string name;
  uint64_t start = 0;                 // rank 0's incarnation
  std::vector<NetAddress> addresses;  // of rank 0's meeting point
  UniqueFd listener;                  // on rank 0
};
[[nodiscard]] mep_result_t agree_through_store(const ResolvedConfig& config,
                                               const SelfDescription& self,
                                               RendezvousPurpose purpose, Deadline deadline,
                                               StoreMeeting* meeting);
// Whether the caller's store tells of another start than this one by now.
bool store_has_later_start(const ResolvedConfig& config, uint64_t start);
// On rank 0, after its start has succeeded.
void tell_store_of_success(const ResolvedConfig& config, const SelfDescription& self);

// Claims the place of this rank (self.identity.slot). If another process holds it, asks that process and waits until
// it goes, or fails with its refusal. *told_by_holder: the holder has refused, and tells all other ranks itself.
[[nodiscard]] mep_result_t claim_entry(Rendezvous* rendezvous, const ResolvedConfig& config,
                                       const SelfDescription& self, Deadline deadline,
                                       UniqueFd* listener, bool* told_by_holder);

}  // namespace mep
