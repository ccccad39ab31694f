// Rendezvous of the ranks of several hosts. A rank on this host is looked for under its abstract Unix socket name, so
// that the kernel vouches for it and descriptors can be passed. A rank on another host is reached by TCP at its place
// in the book: the list of places that this process's Gate has (rendezvous_entries.hpp). The book may be wrong or
// old, so the process that answers must prove that it is the incarnation that was looked for.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/bootstrap/rendezvous.hpp"

namespace mep {
namespace {

class NetworkRendezvous final : public Rendezvous {
 public:
  NetworkRendezvous(const std::string& meeting_name, const SelfDescription& self, Gate* gate)
      : local_(make_local_rendezvous(meeting_name)), self_(self), gate_(gate) {}

  mep_result_t listen(int32_t rank, UniqueFd* listener, bool* taken) override;
  mep_result_t listen_beside(int32_t rank, UniqueFd* listener, bool* taken) override {
    return local_->listen_beside(rank, listener, taken);
  }
  mep_result_t announce(int32_t rank) override;
  void withdraw() override { gate_->book->withdraw(); }
  mep_result_t connect(int32_t rank, Connection* out) override;
  mep_result_t accept(int listener, Connection* out) override;
  mep_result_t authenticate(Connection* connection) override;
  void ignore(uint64_t incarnation) override { ignored_.insert(incarnation); }
  std::vector<int> fds() const override;
  mep_result_t progress() override { return gate_->book->progress(); }
  void look_again() override { gate_->book->look_again(); }
  bool is_open() const override { return gate_->book->is_open(); }
  bool is_announced() const override { return gate_->book->is_announced(); }
  bool is_known_elsewhere(int32_t rank) const override;
  std::string explain_absence(int32_t rank, bool* denied) override;
  std::string explain_meeting() const override {
    return is_open() ? gate_->book->turned_away() : gate_->book->explain();
  }

 private:
  std::unique_ptr<Rendezvous> local_;
  const SelfDescription self_;
  Gate* const gate_;
  int32_t own_rank_ = -1;
  std::set<uint64_t> ignored_;          // incarnations; others answered at their places
  std::map<int32_t, size_t> attempts_;  // by rank: connections tried, each at its next address
};

mep_result_t NetworkRendezvous::listen(int32_t rank, UniqueFd* listener, bool* taken) {
  own_rank_ = rank;
  return local_->listen(rank, listener, taken);
}

mep_result_t NetworkRendezvous::announce(int32_t rank) {
  Place place;
  place.slot = static_cast<uint32_t>(rank);
  place.incarnation = self_.identity.incarnation;
  place.host = self_.identity.host;
  place.pid = self_.identity.pid;
  place.addresses = gate_->details.addresses;
  return gate_->book->announce(place);
}

bool NetworkRendezvous::is_known_elsewhere(int32_t rank) const {
  const std::vector<Place> places = gate_->book->find(static_cast<uint32_t>(rank));
  return std::any_of(places.begin(), places.end(), [&](const Place& place) {
    return place.incarnation != self_.identity.incarnation && !ignored_.contains(place.incarnation);
  });
}

mep_result_t NetworkRendezvous::connect(int32_t rank, Connection* out) {
  MEP_TRY(local_->connect(rank, out));
  if (out->socket.valid() || rank == own_rank_) return MEP_SUCCESS;
  std::vector<std::pair<const Place*, NetAddress>> choices;
  const std::vector<Place> places = gate_->book->find(static_cast<uint32_t>(rank));
  for (const Place& place : places) {
    // A rank on this host is reached by its abstract name or not at all.
    if (place.host == self_.identity.host || ignored_.contains(place.incarnation)) continue;
    for (const NetAddress& address : place.addresses) choices.emplace_back(&place, address);
  }
  if (choices.empty()) return MEP_SUCCESS;
  const auto& [place, address] = choices[attempts_[rank]++ % choices.size()];
  out->credentials.address = address.text();
  out->incarnation = place->incarnation;
  return connect_tcp(address, gate_->dead_after_ms, &out->socket);
}

mep_result_t NetworkRendezvous::accept(int listener, Connection* out) {
  MEP_TRY(local_->accept(listener, out));
  if (out->socket.valid()) return MEP_SUCCESS;
  NetAddress from;
  MEP_TRY(accept_tcp(gate_->network_listener.get(), gate_->dead_after_ms, &out->socket, &from));
  if (out->socket.valid()) out->credentials.address = from.text();
  return MEP_SUCCESS;
}

mep_result_t NetworkRendezvous::authenticate(Connection* connection) {
  // A peer on another host proves itself later, by the handshake.
  return connection->credentials.is_remote() ? MEP_SUCCESS : local_->authenticate(connection);
}

std::vector<int> NetworkRendezvous::fds() const {
  std::vector<int> fds{gate_->network_listener.get()};
  if (gate_->book->fd() >= 0) fds.push_back(gate_->book->fd());
  return fds;
}

std::string NetworkRendezvous::explain_absence(int32_t rank, bool* denied) {
  std::string reason = local_->explain_absence(rank, denied);
  if (*denied) return reason;
  const std::vector<Place> places = gate_->book->find(static_cast<uint32_t>(rank));
  for (const Place& place : places) {
    if (ignored_.contains(place.incarnation)) continue;
    if (place.host == self_.identity.host) {
      return "it is on this host as pid " + std::to_string(place.pid) +
             " but its local socket cannot be reached: ranks of a host must be of one user";
    }
    reason = "no connection to " + place.addresses[0].text();
  }
  return reason.empty() && is_open() ? gate_->book->explain() : reason;
}

}  // namespace

std::unique_ptr<Rendezvous> make_network_rendezvous(const std::string& meeting_name,
                                                    const SelfDescription& self, Gate* gate) {
  return std::make_unique<NetworkRendezvous>(meeting_name, self, gate);
}

mep_result_t open_gate(const ResolvedConfig& config, Gate* gate) {
  std::string interface_glob;
  MEP_TRY(interface_from_environment(&interface_glob));
  // A cut of the network that membership tolerates must not end the connection.
  gate->dead_after_ms = std::clamp(2 * config.suspect_ms, 2000u, 120000u);
  uint16_t port = 0;
  bool taken = false;
  MEP_TRY(listen_tcp(nullptr, &gate->network_listener, &taken, &port));
  if (!gate->network_listener.valid()) {
    return fail(MEP_ERR_NO_MEMORY, "no TCP port is free for this rank's listener");
  }
  gate->details.addresses = local_addresses(interface_glob);
  if (gate->details.addresses.empty()) {
    return fail(MEP_ERR_NOT_FOUND, "no network interface that is up%s%s has an address",
                interface_glob.empty() ? "" : " and fits MEP_NET_IF=", interface_glob.c_str());
  }
  if (gate->details.addresses.size() > kMaxAddresses) {
    gate->details.addresses.resize(kMaxAddresses);
  }
  for (NetAddress& address : gate->details.addresses) address.port = port;
  return MEP_SUCCESS;
}

}  // namespace mep
