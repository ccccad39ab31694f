// Ranks of one host and one user, under abstract socket names.
#include <unistd.h>

#include "base/status.hpp"
#include "core/bootstrap/rendezvous.hpp"

namespace mep {
namespace {

class LocalRendezvous final : public Rendezvous {
 public:
  explicit LocalRendezvous(std::string meeting_name) : meeting_name_(std::move(meeting_name)) {}

  mep_result_t listen(int32_t rank, UniqueFd* listener, bool* taken) override {
    return listen_local(local_socket_name(geteuid(), meeting_name_, rank), listener, taken);
  }
  mep_result_t connect(int32_t rank, UniqueFd* socket) override {
    return connect_local(local_socket_name(geteuid(), meeting_name_, rank), socket);
  }
  mep_result_t accept(int listener, UniqueFd* socket) override {
    return accept_local(listener, socket);
  }
  mep_result_t authenticate(int socket, PeerCredentials* out) override {
    return check_same_user(socket, out);
  }
  std::string explain_absence(int32_t rank, bool* denied) override {
    UniqueFd socket;
    PeerCredentials holder;
    if (connect(rank, &socket) == MEP_SUCCESS && socket.valid() &&
        authenticate(socket.get(), &holder) == MEP_ERR_DENIED) {
      *denied = true;
      return std::string("its place is held by a stranger: ") + last_error_text();
    }
    uid_t uid = 0;
    *denied = find_foreign_listener(meeting_name_, rank, &uid);
    if (!*denied) return {};
    return "a process of user id " + std::to_string(uid) +
           " waits as this rank; all ranks must be "
           "of the same user, here " +
           std::to_string(geteuid());
  }

 private:
  std::string meeting_name_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_local_rendezvous(const std::string& meeting_name) {
  return std::make_unique<LocalRendezvous>(meeting_name);
}

mep_result_t make_rendezvous(const ResolvedConfig& config, const SelfDescription& self,
                             RendezvousPurpose purpose, Deadline deadline,
                             std::unique_ptr<Rendezvous>* out) {
  std::string meeting_name = config.job;
  if (config.store != nullptr) {
    MEP_TRY(agree_through_store(config, self, purpose, deadline, &meeting_name));
  }
  *out = make_local_rendezvous(meeting_name);
  return MEP_SUCCESS;
}

}  // namespace mep
