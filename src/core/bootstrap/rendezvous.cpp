// While a process that was stopped by a signal holds a rank's name, another process may hold a second name for the
// rank, with "+" behind it. Places of the store may be wrong or old, so the process that answers must prove that it is
// the incarnation that was looked for.
#include "core/bootstrap/rendezvous.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/env.hpp"
#include "base/status.hpp"
#include "base/stranger_log.hpp"

namespace mep {
namespace {

constexpr uint64_t kForeignAgeMs = 1000;

bool is_held_by_stopped(int socket) {
  const KeepErrorText kept;
  PeerCredentials holder;
  return peer_credentials(socket, &holder) == MEP_SUCCESS && is_stopped(holder.pid);
}

}  // namespace

mep_result_t accept_connections(int local, int network, uint32_t dead_after_ms,
                                FunctionRef<void(Connection&&)> take) {
  for (;;) {
    Connection connection;
    if (local >= 0) MEP_TRY(accept_socket(local, nullptr, &connection.socket));
    if (!connection.socket.valid() && network >= 0) {
      NetAddress from;
      MEP_TRY(accept_tcp(network, dead_after_ms, &connection.socket, &from));
      connection.credentials.address = from.text();
    }
    if (!connection.socket.valid()) return MEP_SUCCESS;
    if (authenticate(&connection) == MEP_SUCCESS) {
      take(std::move(connection));
    } else {
      log_stranger("dropped a connection by a stranger: %s", last_error_text());
    }
  }
}

mep_result_t authenticate(Connection* connection) {
  if (connection->credentials.is_remote()) return MEP_SUCCESS;
  return check_same_user(connection->socket.get(), &connection->credentials);
}

Rendezvous::Rendezvous(const std::string& meeting_name, uint64_t start, const SelfDescription& self,
                       std::shared_ptr<Gate> gate)
    : meeting_name_(meeting_name), start_(start), self_(self), gate_(std::move(gate)) {
  // Tests play several hosts on one; MEP_TEST_HOST gives each of them names of its own.
  std::string host;
  bool is_set = false;
  if (env_string("MEP_TEST_HOST", &host, &is_set) != MEP_SUCCESS || !is_set) host.clear();
  if (!host.empty()) meeting_name_ += "@" + host;
}

std::string Rendezvous::name_of(int32_t rank) const {
  return local_socket_name(geteuid(), meeting_name_, rank);
}

mep_result_t Rendezvous::listen(int32_t rank, UniqueFd* listener, bool* taken) {
  own_rank_ = rank;
  MEP_TRY(listen_local(name_of(rank), listener, taken));
  if (*taken) return MEP_SUCCESS;
  UniqueFd second;
  MEP_TRY(connect_local(name_beside(rank), &second));
  *taken = second.valid() && !is_held_by_stopped(second.get());
  if (*taken) listener->reset();
  return MEP_SUCCESS;
}

mep_result_t Rendezvous::listen_beside(int32_t rank, UniqueFd* listener, bool* taken) {
  UniqueFd holder;
  MEP_TRY(connect_local(name_of(rank), &holder));
  *taken = !holder.valid() || !is_held_by_stopped(holder.get());
  return *taken ? MEP_SUCCESS : listen_local(name_beside(rank), listener, taken);
}

mep_result_t Rendezvous::announce(int32_t rank) {
  Place place = place_of(self_.identity, gate_->details.addresses);
  place.slot = static_cast<uint32_t>(rank);
  return gate_->places->put(place);
}

bool Rendezvous::is_known_elsewhere(int32_t rank) const {
  const std::vector<Place> places = gate_->places->get(static_cast<uint32_t>(rank));
  return std::any_of(places.begin(), places.end(), [&](const Place& place) {
    return place.incarnation != self_.identity.incarnation && !ignored_.contains(place.incarnation);
  });
}

mep_result_t Rendezvous::connect_here(int32_t rank, UniqueFd* out) const {
  MEP_TRY(connect_local(name_of(rank), out));
  if (out->valid() && !is_held_by_stopped(out->get())) return MEP_SUCCESS;
  UniqueFd second;
  MEP_TRY(connect_local(name_beside(rank), &second));
  if (second.valid()) *out = std::move(second);
  return MEP_SUCCESS;
}

mep_result_t Rendezvous::connect(int32_t rank, Connection* out) {
  *out = Connection();
  MEP_TRY(connect_here(rank, &out->socket));
  if (out->socket.valid() || rank == own_rank_) return MEP_SUCCESS;
  std::vector<std::pair<const Place*, NetAddress>> choices;
  const std::vector<Place> places = gate_->places->get(static_cast<uint32_t>(rank));
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

std::vector<int> Rendezvous::fds() const {
  std::vector<int> fds;
  if (gate_->network_listener.valid()) fds.push_back(gate_->network_listener.get());
  if (gate_->places->fd() >= 0) fds.push_back(gate_->places->fd());
  return fds;
}

std::string Rendezvous::explain_absence_here(int32_t rank, bool* denied) {
  Connection holder;
  if (connect_here(rank, &holder.socket) == MEP_SUCCESS && holder.socket.valid() &&
      authenticate(&holder) == MEP_ERR_DENIED) {
    *denied = true;
    return std::string("its place is held by a stranger: ") + last_error_text();
  }
  if (foreign_age_.expired()) {
    foreign_ = find_foreign_listeners(meeting_name_);
    foreign_age_ = Deadline::after_ms(kForeignAgeMs);
  }
  const auto foreign = foreign_.find(rank);
  *denied = foreign != foreign_.end();
  if (!*denied) return {};
  return "a process of user id " + std::to_string(foreign->second) +
         " waits as this rank; all ranks must be of the same user, here " +
         std::to_string(geteuid());
}

std::string Rendezvous::explain_absence(int32_t rank, bool* denied) {
  std::string reason = explain_absence_here(rank, denied);
  if (*denied) return reason;
  for (const Place& place : gate_->places->get(static_cast<uint32_t>(rank))) {
    if (ignored_.contains(place.incarnation)) continue;
    if (place.host == self_.identity.host) {
      return "it is on this host as pid " + std::to_string(place.pid) +
             " but its local socket cannot be reached: ranks of a host must be of one user";
    }
    reason = "no connection to " + place.addresses[0].text();
  }
  return reason.empty() && gate_->places->is_open() ? gate_->places->explain() : reason;
}

std::string Rendezvous::explain_meeting() const {
  return gate_->places->is_open() ? gate_->places->turned_away() : gate_->places->explain();
}

// --- Making one -----------------------------------------------------------------------------------

namespace {

[[nodiscard]] mep_result_t check_secret(const ResolvedConfig& config, const Gate& gate) {
  if (gate.secret.given() || config.allow_insecure) return MEP_SUCCESS;
  return fail(MEP_ERR_DENIED,
              "a job over several hosts needs a secret: make one with `(umask 077; head -c 32 "
              "/dev/urandom > FILE)`, copy it to all hosts and set MEP_SECRET_FILE=FILE; in a "
              "network where everybody may join, set MEP_ALLOW_INSECURE=1");
}

// "10.0.0.1:7000,[fe80::1]:7000".
std::string list_addresses(const std::vector<NetAddress>& addresses) {
  std::string text;
  for (const NetAddress& address : addresses) text += (text.empty() ? "" : ",") + address.text();
  return text;
}

[[nodiscard]] mep_result_t open_gate(const ResolvedConfig& config, Gate* gate) {
  // A cut of the network that membership tolerates must not end the connection.
  gate->dead_after_ms = std::clamp(2 * config.suspect_ms, 2000u, 120000u);
  MEP_TRY(listen_for_hosts(&gate->network_listener, &gate->details.addresses));
  if (!gate->details.addresses.empty()) return MEP_SUCCESS;
  std::string glob;
  MEP_TRY(interface_from_environment(&glob));
  return fail(MEP_ERR_NOT_FOUND, "no network interface that is up%s%s has an address",
              glob.empty() ? "" : " and fits MEP_NET_IF=", glob.c_str());
}

}  // namespace

mep_result_t listen_for_hosts(UniqueFd* listener, std::vector<NetAddress>* addresses) {
  std::string interface_glob;
  MEP_TRY(interface_from_environment(&interface_glob));
  uint16_t port = 0;
  bool taken = false;
  MEP_TRY(listen_tcp(nullptr, listener, &taken, &port));
  if (!listener->valid()) {
    return fail(MEP_ERR_NO_MEMORY, "no TCP port is free for this rank's listener");
  }
  *addresses = local_addresses(interface_glob);
  if (addresses->size() > kMaxAddresses) addresses->resize(kMaxAddresses);
  for (NetAddress& address : *addresses) address.port = port;
  return MEP_SUCCESS;
}

mep_result_t make_rendezvous(const ResolvedConfig& config, const SelfDescription& self,
                             RendezvousPurpose purpose, Deadline deadline,
                             std::unique_ptr<Rendezvous>* out) {
  if (self.offer.size() > kMaxOfferBytes) {
    return fail(MEP_ERR_INTERNAL, "an offer of %zu bytes", self.offer.size());
  }
  const auto gate = std::make_shared<Gate>();
  MEP_TRY(prepare_crypto());
  MEP_TRY(gate->secret.load(config.secret_file));
  gate->details.offer = self.offer;
  gate->details.death_page = self.death_page;
  StoreMeeting meeting;
  meeting.name = config.job;
  std::string where = config.rendezvous;
  if (config.store != nullptr && where.empty()) {
    MEP_TRY(agree_through_store(config, self, purpose, deadline, &meeting));
    where = list_addresses(meeting.addresses);
  }
  if (!where.empty()) {
    MEP_TRY(check_secret(config, *gate));
    MEP_TRY(open_gate(config, gate.get()));
  }
  // A directory is named by its path.
  if (where.find('/') != std::string::npos) {
    MEP_TRY(make_directory_store(config, self, &gate->places));
  } else if (!where.empty()) {
    MEP_TRY(make_address_store(config, self, purpose, *gate, where, std::move(meeting.listener),
                               &gate->places));
  }
  *out = std::make_unique<Rendezvous>(meeting.name, meeting.start, self, gate);
  return MEP_SUCCESS;
}

}  // namespace mep
