// The secret that all ranks of a job over several hosts know and nobody else does.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "mep.h"

namespace mep {

constexpr size_t kMinSecretBytes = 16;
constexpr size_t kMaxSecretBytes = 4096;

// A hash of the secret file, in the form of a key; all zero when there is none. Wiped at its end.
class JobSecret {
 public:
  JobSecret() = default;
  ~JobSecret();
  JobSecret(const JobSecret&) = delete;
  JobSecret& operator=(const JobSecret&) = delete;

  // An empty path: no secret. The file is a regular one of this user that nobody else may read or
  // write.
  [[nodiscard]] mep_result_t load(const std::string& path);

  bool given() const { return given_; }
  std::span<const unsigned char, 32> key() const { return key_; }

 private:
  std::array<unsigned char, 32> key_{};
  bool given_ = false;
};

}  // namespace mep
