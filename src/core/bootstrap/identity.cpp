// The identity of this process. The process token is made anew in a child of fork(), which is another
// process.
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

#include "base/env.hpp"
#include "base/fork_hold.hpp"
#include "base/hash.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"
#include "core/bootstrap/bootstrap.hpp"

namespace mep {
namespace {

[[nodiscard]] mep_result_t random_word(uint64_t* out) {
  *out = 0;
  while (*out == 0) {
    const ssize_t count = getrandom(out, sizeof *out, 0);
    if (count == static_cast<ssize_t>(sizeof *out)) continue;
    if (count < 0 && errno == EINTR) {
      *out = 0;
      continue;
    }
    return fail_call("an identity for this rank", "getrandom", errno);
  }
  return MEP_SUCCESS;
}

// The kernel instance by its boot id, and the namespaces in which pids, user ids and sockets mean
// the same to two processes.
[[nodiscard]] mep_result_t host_id(uint64_t* out) {
  Hash hash;
  char boot_id[64] = "";
  if (std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    if (std::fgets(boot_id, sizeof boot_id, file) == nullptr) boot_id[0] = '\0';
    std::fclose(file);
  } else if (is_shortage(errno)) {
    // Another name than its peers have for this host would part it from them.
    return fail(MEP_ERR_NO_MEMORY, "this host's boot id cannot be read: %s",
                strerrordesc_np(errno));
  }
  if (boot_id[0] == '\0') gethostname(boot_id, sizeof boot_id - 1);
  hash.bytes(boot_id, std::strlen(boot_id));
  for (const char* name : {"/proc/self/ns/user", "/proc/self/ns/pid", "/proc/self/ns/net"}) {
    struct stat status {};
    if (stat(name, &status) != 0) continue;
    hash.word(status.st_dev);
    hash.word(status.st_ino);
  }
  *out = hash.value();
  return MEP_SUCCESS;
}

// Tests play several hosts on one.
uint64_t mix_test_host(uint64_t host) {
  std::string name;
  bool is_set = false;
  if (env_string("MEP_TEST_HOST", &name, &is_set) != MEP_SUCCESS || !is_set) return host;
  Hash hash(host);
  hash.bytes(name.data(), name.size());
  return hash.value();
}

[[nodiscard]] mep_result_t process_token(uint64_t* out) {
  static std::mutex mutex;
  static pid_t owner = 0;
  static uint64_t token = 0;
  const ForkHold hold;
  const std::lock_guard<std::mutex> lock(mutex);
  if (owner != getpid()) {
    MEP_TRY(random_word(&token));
    owner = getpid();
  }
  *out = token;
  return MEP_SUCCESS;
}

}  // namespace

mep_result_t make_identity(uint32_t slot, PeerIdentity* out) {
  out->slot = slot;
  MEP_TRY(random_word(&out->incarnation));
  MEP_TRY(process_token(&out->process_token));
  uint64_t host = 0;
  MEP_TRY(host_id(&host));
  out->host = mix_test_host(host);
  out->pid = getpid();
  return MEP_SUCCESS;
}

}  // namespace mep
