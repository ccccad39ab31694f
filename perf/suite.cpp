#include "suite.hpp"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "error.hpp"

namespace mep::perf {

void become_suite(char** argv) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw PerfError("suite: /proc/self/exe cannot be read: " + error.message());
  std::string script = self.parent_path() / "mep_perf_suite";
  argv[1] = script.data();
  (void)execv(script.c_str(), argv + 1);
  throw PerfError("suite: " + script + " cannot be run: " + std::strerror(errno) +
                  "; it is installed beside mep_perf with the component tools");
}

}  // namespace mep::perf
