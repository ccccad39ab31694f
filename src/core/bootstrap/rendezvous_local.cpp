// Rendezvous of the ranks of one host and one user, under abstract Unix socket names. While a process that was stopped
// by a signal holds a rank's name, another process may hold a second name for the rank, with "+" behind it.
#include <unistd.h>

#include <map>

#include "base/env.hpp"
#include "base/status.hpp"
#include "core/bootstrap/rendezvous.hpp"

namespace mep {
namespace {

constexpr uint64_t kForeignAgeMs = 1000;

class LocalRendezvous final : public Rendezvous {
 public:
  explicit LocalRendezvous(std::string meeting_name) : meeting_name_(std::move(meeting_name)) {}

  mep_result_t listen(int32_t rank, UniqueFd* listener, bool* taken) override {
    MEP_TRY(listen_local(name_of(rank), listener, taken));
    if (*taken) return MEP_SUCCESS;
    UniqueFd second;
    MEP_TRY(connect_local(name_beside(rank), &second));
    *taken = second.valid() && !is_held_by_stopped(second.get());
    if (*taken) listener->reset();
    return MEP_SUCCESS;
  }
  mep_result_t listen_beside(int32_t rank, UniqueFd* listener, bool* taken) override {
    UniqueFd holder;
    MEP_TRY(connect_local(name_of(rank), &holder));
    *taken = !holder.valid() || !is_held_by_stopped(holder.get());
    return *taken ? MEP_SUCCESS : listen_local(name_beside(rank), listener, taken);
  }
  mep_result_t connect(int32_t rank, Connection* out) override {
    *out = Connection();
    MEP_TRY(connect_local(name_of(rank), &out->socket));
    if (out->socket.valid() && !is_held_by_stopped(out->socket.get())) return MEP_SUCCESS;
    UniqueFd second;
    MEP_TRY(connect_local(name_beside(rank), &second));
    if (second.valid()) out->socket = std::move(second);
    return MEP_SUCCESS;
  }
  mep_result_t accept(int listener, Connection* out) override {
    *out = Connection();
    return accept_socket(listener, nullptr, &out->socket);
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
    if (foreign_age_.expired()) {
      foreign_ = find_foreign_listeners(meeting_name_);
      foreign_age_ = Deadline::after_ms(kForeignAgeMs);
    }
    const auto foreign = foreign_.find(rank);
    *denied = foreign != foreign_.end();
    if (!*denied) return {};
    return "a process of user id " + std::to_string(foreign->second) +
           " waits as this rank; all ranks must be "
           "of the same user, here " +
           std::to_string(geteuid());
  }

 private:
  std::string name_of(int32_t rank) const {
    return local_socket_name(geteuid(), meeting_name_, rank);
  }
  std::string name_beside(int32_t rank) const { return name_of(rank) + "+"; }
  static bool is_held_by_stopped(int socket) {
    const KeepErrorText kept;
    PeerCredentials holder;
    return peer_credentials(socket, &holder) == MEP_SUCCESS && is_stopped(holder.pid);
  }

  std::string meeting_name_;
  std::map<int32_t, uid_t> foreign_;  // as found last; one look serves the ranks of one text
  Deadline foreign_age_ = Deadline::at(0);
};

}  // namespace

std::unique_ptr<Rendezvous> make_local_rendezvous(const std::string& meeting_name) {
  // Tests play several hosts on one; MEP_TEST_HOST gives each of them names of its own.
  std::string host;
  bool is_set = false;
  if (env_string("MEP_TEST_HOST", &host, &is_set) != MEP_SUCCESS || !is_set) host.clear();
  return std::make_unique<LocalRendezvous>(host.empty() ? meeting_name : meeting_name + "@" + host);
}

}  // namespace mep
