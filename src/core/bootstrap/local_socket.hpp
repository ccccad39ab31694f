// Abstract Unix sockets: names without files, which vanish with their process, and the kernel's
// word on who is at the other end.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "base/unique_fd.hpp"
#include "mep.h"

namespace mep {

// A stream socket that is nonblocking and close-on-exec.
[[nodiscard]] mep_result_t open_socket(int family, UniqueFd* out);
// Nothing waits: success with an empty *out. The accepted socket is nonblocking and close-on-exec.
// `from` may be null.
[[nodiscard]] mep_result_t accept_socket(int listener, sockaddr_storage* from, UniqueFd* out);

// The process at the other end of a connected socket, as seen from here.
struct PeerCredentials {
  pid_t pid = 0;  // 0: in a pid namespace that is not visible from here, or on another host
  uid_t uid = 0;
  std::string address;  // of a TCP connection; empty: on this host, and the kernel vouches for it

  bool is_remote() const { return !address.empty(); }
  // "pid 4711" or "10.0.0.1:7000".
  std::string text() const { return is_remote() ? address : "pid " + std::to_string(pid); }
};

// "mep/UID/JOB/RANK" without the leading zero byte. A job name that is long or has other letters
// than names need is replaced by a hash of it; the hello carries it whole.
std::string local_socket_name(uid_t uid, const std::string& job, int32_t rank);

// *taken: another socket has the name (then *out stays empty and the result is success).
[[nodiscard]] mep_result_t listen_local(const std::string& name, UniqueFd* out, bool* taken);

// Nobody there, or nobody who takes connections now: success with an empty *out.
[[nodiscard]] mep_result_t connect_local(const std::string& name, UniqueFd* out);

[[nodiscard]] mep_result_t peer_credentials(int socket, PeerCredentials* out);

// The same, and MEP_ERR_DENIED when it is another user's (*out is filled then too).
[[nodiscard]] mep_result_t check_same_user(int socket, PeerCredentials* out);

// Whether that process was stopped by a signal: it answers nobody until it is continued.
bool is_stopped(pid_t pid);

// Other users' processes that listen as ranks of `job`, by rank: for the texts of missing ranks, since anybody can take
// such a name. Reads the list of the host's sockets for a bounded time; what comes later in it is not found.
std::map<int32_t, uid_t> find_foreign_listeners(const std::string& job);

}  // namespace mep
