// Reading the secret file. The bytes of the file are wiped as soon as their hash is made.
#include "core/bootstrap/job_secret.hpp"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/status.hpp"
#include "base/system_error.hpp"
#include "base/unique_fd.hpp"
#include "core/bootstrap/handshake.hpp"

namespace mep {
namespace {

constexpr char kLabel[] = "MEP job secret";

[[nodiscard]] mep_result_t check_owner(const std::string& path, int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    return fail(result_of_errno(errno), "secret file '%.200s': %s", path.c_str(),
                strerrordesc_np(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    return fail(MEP_ERR_DENIED, "secret file '%.200s' is no regular file", path.c_str());
  }
  if (status.st_uid != geteuid()) {
    return fail(MEP_ERR_DENIED,
                "secret file '%.200s' belongs to user id %u, this process runs as %u: use a file "
                "of its own user",
                path.c_str(), status.st_uid, geteuid());
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return fail(MEP_ERR_DENIED,
                "secret file '%.200s' has mode %03o, so others may use it: run chmod 600 on it",
                path.c_str(), status.st_mode & 0777);
  }
  return MEP_SUCCESS;
}

// Up to `capacity` bytes; *count is `capacity` when there may be more.
[[nodiscard]] mep_result_t read_all(const std::string& path, int fd, unsigned char* bytes,
                                    size_t capacity, size_t* count) {
  *count = 0;
  while (*count < capacity) {
    const ssize_t got = read(fd, bytes + *count, capacity - *count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return fail(result_of_errno(errno), "secret file '%.200s' cannot be read: %s", path.c_str(),
                  strerrordesc_np(errno));
    }
    if (got == 0) break;
    *count += static_cast<size_t>(got);
  }
  return MEP_SUCCESS;
}

}  // namespace

JobSecret::~JobSecret() {
  sodium_memzero(key_.data(), key_.size());
}

mep_result_t JobSecret::load(const std::string& path) {
  given_ = false;
  sodium_memzero(key_.data(), key_.size());
  if (path.empty()) return MEP_SUCCESS;
  MEP_TRY(prepare_crypto());
  // Without O_NONBLOCK a named pipe would hold the start up.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd.valid()) {
    return fail(errno == ENOENT ? MEP_ERR_NOT_FOUND : MEP_ERR_DENIED,
                "secret file '%.200s' cannot be opened: %s", path.c_str(), strerrordesc_np(errno));
  }
  MEP_TRY(check_owner(path, fd.get()));
  unsigned char bytes[kMaxSecretBytes + 1];
  size_t count = 0;
  mep_result_t result = read_all(path, fd.get(), bytes, sizeof bytes, &count);
  if (result == MEP_SUCCESS && (count < kMinSecretBytes || count > kMaxSecretBytes)) {
    result =
        fail(MEP_ERR_DENIED,
             "secret file '%.200s' has %s%zu bytes, it needs %zu to %zu random ones: head -c "
             "32 /dev/urandom > FILE makes some",
             path.c_str(), count > kMaxSecretBytes ? "over " : "",
             count > kMaxSecretBytes ? kMaxSecretBytes : count, kMinSecretBytes, kMaxSecretBytes);
  }
  if (result == MEP_SUCCESS) {
    crypto_generichash_state state;
    crypto_generichash_init(&state, nullptr, 0, key_.size());
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(kLabel),
                              sizeof kLabel - 1);
    crypto_generichash_update(&state, bytes, count);
    crypto_generichash_final(&state, key_.data(), key_.size());
    sodium_memzero(&state, sizeof state);
    given_ = true;
  }
  sodium_memzero(bytes, sizeof bytes);
  return result;
}

}  // namespace mep
