// Names carry the user id, so that jobs of different users never meet by accident; who really is at
// the other end is always asked from the kernel, because any user can bind any name.
#include "core/bootstrap/local_socket.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/clock.hpp"
#include "base/fork_guard.hpp"
#include "base/hash.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"

namespace mep {
namespace {

constexpr size_t kMaxPlainJobBytes = 64;
// The list of a host's sockets grows with the square of its ranks.
constexpr uint64_t kLongestLookMs = 20;
constexpr int kLocalBacklog = 4096;  // the kernel lowers it to net.core.somaxconn

// No security hangs on its hash: job names are no secrets.
std::string job_in_name(const std::string& job) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@+-";
  if (!job.empty() && job.size() <= kMaxPlainJobBytes &&
      job.find_first_not_of(kPlain) == std::string::npos) {
    return job;
  }
  char text[40];
  std::snprintf(text, sizeof text, "#%016llx%016llx",
                static_cast<unsigned long long>(hash_text(job)),
                static_cast<unsigned long long>(hash_text(job, 0x9e3779b97f4a7c15u)));
  return text;
}

socklen_t fill_address(const std::string& name, sockaddr_un* address) {
  std::memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  // sun_path[0] stays 0: the abstract namespace.
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

[[nodiscard]] mep_result_t make_local_socket(const std::string& name, UniqueFd* out) {
  if (name.size() + 1 > sizeof(sockaddr_un::sun_path)) {
    return fail(MEP_ERR_INTERNAL, "socket name '%s' is too long", name.c_str());
  }
  return open_socket(AF_UNIX, out);
}

}  // namespace

mep_result_t open_socket(int family, UniqueFd* out) {
  {
    const ForkGuard guard;
    out->reset(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    guard.keep_back(out->get());
  }
  if (out->valid()) return MEP_SUCCESS;
  if (errno == EMFILE || errno == ENFILE) {
    return fail(MEP_ERR_NO_MEMORY,
                "no descriptor left for a socket: raise the limit of open files (ulimit -n)");
  }
  return fail(result_of_errno(errno), "a socket of family %d cannot be made: %s", family,
              strerrordesc_np(errno));
}

mep_result_t accept_socket(int listener, sockaddr_storage* from, UniqueFd* out) {
  out->reset();
  do {
    socklen_t length = sizeof *from;
    const ForkGuard guard;
    out->reset(accept4(listener, reinterpret_cast<sockaddr*>(from),
                       from != nullptr ? &length : nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    guard.keep_back(out->get());
    // A connection that broke before it was accepted reports its own network's error.
  } while (!out->valid() && errno != EAGAIN && errno != EWOULDBLOCK && !is_shortage(errno) &&
           !is_forbidden(errno) && errno != EINVAL && errno != EBADF && errno != ENOTSOCK &&
           errno != EOPNOTSUPP);
  if (out->valid() || errno == EAGAIN || errno == EWOULDBLOCK) return MEP_SUCCESS;
  return fail(result_of_errno(errno), "a connection cannot be accepted: %s",
              strerrordesc_np(errno));
}

std::string local_socket_name(uid_t uid, const std::string& job, int32_t rank) {
  return "mep/" + std::to_string(uid) + "/" + job_in_name(job) + "/" + std::to_string(rank);
}

mep_result_t listen_local(const std::string& name, UniqueFd* out, bool* taken) {
  *taken = false;
  out->reset();
  UniqueFd socket;
  MEP_TRY(make_local_socket(name, &socket));
  sockaddr_un address{};
  const socklen_t length = fill_address(name, &address);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    *taken = errno == EADDRINUSE;
    if (*taken) return MEP_SUCCESS;
    return fail(result_of_errno(errno), "bind to '@%s' failed: %s", name.c_str(),
                strerrordesc_np(errno));
  }
  if (listen(socket.get(), kLocalBacklog) != 0) {
    return fail(result_of_errno(errno), "listen on '@%s' failed: %s", name.c_str(),
                strerrordesc_np(errno));
  }
  *out = std::move(socket);
  return MEP_SUCCESS;
}

mep_result_t connect_local(const std::string& name, UniqueFd* out) {
  out->reset();
  UniqueFd socket;
  MEP_TRY(make_local_socket(name, &socket));
  sockaddr_un address{};
  const socklen_t length = fill_address(name, &address);
  int status = 0;
  do {
    status = connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length);
  } while (status != 0 && errno == EINTR);
  if (status == 0) {
    *out = std::move(socket);
    return MEP_SUCCESS;
  }
  // EAGAIN: its queue of connections is full; ECONNREFUSED: bound but not listening, or nobody.
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == ENOENT || errno == ECONNRESET) {
    return MEP_SUCCESS;
  }
  return fail(result_of_errno(errno), "connect to '@%s' failed: %s", name.c_str(),
              strerrordesc_np(errno));
}

mep_result_t peer_credentials(int socket, PeerCredentials* out) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 ||
      length != sizeof credentials) {
    return fail(result_of_errno(errno), "SO_PEERCRED failed: %s", strerrordesc_np(errno));
  }
  out->pid = credentials.pid;
  out->uid = credentials.uid;
  return MEP_SUCCESS;
}

mep_result_t check_same_user(int socket, PeerCredentials* out) {
  MEP_TRY(peer_credentials(socket, out));
  if (out->uid == geteuid()) return MEP_SUCCESS;
  return fail(MEP_ERR_DENIED, "process %d of user id %u, where only user id %u may take part",
              out->pid, out->uid, geteuid());
}

bool is_stopped(pid_t pid) {
  if (pid <= 0) return false;
  std::FILE* file = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "re");
  if (file == nullptr) return false;
  char line[512] = "";
  (void)!std::fgets(line, sizeof line, file);
  std::fclose(file);
  const char* name_end = std::strrchr(line, ')');
  return name_end != nullptr && (name_end[1] == ' ') && (name_end[2] == 'T' || name_end[2] == 't');
}

std::map<int32_t, uid_t> find_foreign_listeners(const std::string& job) {
  std::map<int32_t, uid_t> found;
  std::FILE* file = std::fopen("/proc/net/unix", "re");
  if (file == nullptr) return found;
  const std::string middle = "/" + job_in_name(job) + "/";
  const Deadline limit = Deadline::after_ms(kLongestLookMs);
  char line[512];
  while (!limit.expired() && std::fgets(line, sizeof line, file) != nullptr) {
    const char* name = std::strstr(line, "@mep/");
    if (name == nullptr) continue;
    char* end = nullptr;
    const unsigned long owner = std::strtoul(name + 5, &end, 10);
    if (end == name + 5 || owner == geteuid()) continue;
    if (std::strncmp(end, middle.c_str(), middle.size()) != 0) continue;
    const char* const number = end + middle.size();
    const long rank = std::strtol(number, &end, 10);
    if (end == number || *end != '\n') continue;
    found[static_cast<int32_t>(rank)] = static_cast<uid_t>(owner);
  }
  std::fclose(file);
  return found;
}

}  // namespace mep
