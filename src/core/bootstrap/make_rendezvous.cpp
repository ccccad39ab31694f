// Which provider a config asks for.
#include "base/status.hpp"
#include "core/bootstrap/rendezvous.hpp"

namespace mep {
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

[[nodiscard]] mep_result_t make_book(const ResolvedConfig& config, const SelfDescription& self,
                                     RendezvousPurpose purpose, StoreMeeting* meeting, Gate* gate) {
  MEP_TRY(check_secret(config, *gate));
  MEP_TRY(open_gate(config, gate));
  // A directory is named by its path.
  if (config.rendezvous.find('/') != std::string::npos) {
    return make_directory_book(config, self, &gate->book);
  }
  const std::string addresses =
      config.rendezvous.empty() ? list_addresses(meeting->addresses) : config.rendezvous;
  return make_address_book(config, self, purpose, *gate, addresses, std::move(meeting->listener),
                           &gate->book);
}

}  // namespace

mep_result_t make_rendezvous(const ResolvedConfig& config, const SelfDescription& self,
                             RendezvousPurpose purpose, Deadline deadline, Gate* gate,
                             std::unique_ptr<Rendezvous>* out) {
  StoreMeeting meeting;
  meeting.name = config.job;
  if (config.store != nullptr && config.rendezvous.empty()) {
    MEP_TRY(agree_through_store(config, self, purpose, deadline, &meeting));
    if (meeting.other_host) MEP_TRY(check_secret(config, *gate));
  }
  if (config.rendezvous.empty() && meeting.addresses.empty()) {
    *out = make_local_rendezvous(meeting.name);
    return MEP_SUCCESS;
  }
  MEP_TRY(make_book(config, self, purpose, &meeting, gate));
  *out = make_network_rendezvous(meeting.name, self, gate);
  return MEP_SUCCESS;
}

}  // namespace mep
