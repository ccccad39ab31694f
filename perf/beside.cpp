#include "beside.hpp"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>

#include "error.hpp"

namespace mep::perf {

void become_beside(const std::string& program, const std::string& operation, char** words) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw PerfError(operation + ": /proc/self/exe cannot be read: " + error.message());
  std::string path = self.parent_path() / program;
  words[0] = path.data();
  (void)execv(path.c_str(), words);
  throw PerfError(operation + ": " + path + " cannot be run: " + std::strerror(errno) +
                  "; it is installed beside mep_perf with the component tools");
}

}  // namespace mep::perf
