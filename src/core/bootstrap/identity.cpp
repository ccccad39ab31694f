// Who this process is. The process token is made anew in a child of fork(), which is another
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
#include "base/status.hpp"
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
    return fail(MEP_ERR_SYSTEM, "getrandom failed: %s", strerrordesc_np(errno));
  }
  return MEP_SUCCESS;
}

void mix(const void* data, size_t bytes, uint64_t* hash) {
  const auto* byte = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) *hash = (*hash ^ byte[i]) * 0x100000001b3u;
}

// The kernel instance by its boot id, and the namespaces in which pids, user ids and sockets mean
// the same to two processes.
uint64_t host_id() {
  uint64_t hash = 0xcbf29ce484222325u;
  char boot_id[64] = "";
  if (std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    if (std::fgets(boot_id, sizeof boot_id, file) == nullptr) boot_id[0] = '\0';
    std::fclose(file);
  }
  if (boot_id[0] == '\0') gethostname(boot_id, sizeof boot_id - 1);
  mix(boot_id, std::strlen(boot_id), &hash);
  for (const char* name : {"/proc/self/ns/user", "/proc/self/ns/pid", "/proc/self/ns/net"}) {
    struct stat status {};
    if (stat(name, &status) != 0) continue;
    mix(&status.st_dev, sizeof status.st_dev, &hash);
    mix(&status.st_ino, sizeof status.st_ino, &hash);
  }
  return hash;
}

// Tests play several hosts on one.
void mix_test_host(uint64_t* hash) {
  std::string name;
  bool is_set = false;
  if (env_string("MEP_TEST_HOST", &name, &is_set) != MEP_SUCCESS || !is_set) return;
  mix(name.data(), name.size(), hash);
}

[[nodiscard]] mep_result_t process_token(uint64_t* out) {
  static std::mutex mutex;
  static pid_t owner = 0;
  static uint64_t token = 0;
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
  out->host = host_id();
  mix_test_host(&out->host);
  out->pid = getpid();
  return MEP_SUCCESS;
}

}  // namespace mep
