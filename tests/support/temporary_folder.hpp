// A folder that goes with all that is in it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "support/cmocka_cpp.hpp"

namespace mep_test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "mep-test-XXXXXX").string();
    assert_non_null(mkdtemp(path.data()));
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace mep_test
