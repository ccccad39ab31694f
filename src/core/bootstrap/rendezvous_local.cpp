// Ranks of one host and one user, under abstract socket names.
#include <unistd.h>

#include "base/env.hpp"
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
  mep_result_t connect(int32_t rank, Connection* out) override {
    *out = Connection();
    return connect_local(local_socket_name(geteuid(), meeting_name_, rank), &out->socket);
  }
  mep_result_t accept(int listener, Connection* out) override {
    *out = Connection();
    return accept_local(listener, &out->socket);
  }
  mep_result_t authenticate(Connection* connection) override {
    return check_same_user(connection->socket.get(), &connection->credentials);
  }
  std::string explain_absence(int32_t rank, bool* denied) override {
    Connection holder;
    if (connect(rank, &holder) == MEP_SUCCESS && holder.socket.valid() &&
        authenticate(&holder) == MEP_ERR_DENIED) {
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
  // Where tests play several hosts on one, each has names of its own.
  std::string host;
  bool is_set = false;
  if (env_string("MEP_TEST_HOST", &host, &is_set) != MEP_SUCCESS || !is_set) host.clear();
  return std::make_unique<LocalRendezvous>(host.empty() ? meeting_name : meeting_name + "@" + host);
}

}  // namespace mep
