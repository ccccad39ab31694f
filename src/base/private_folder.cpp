#include "base/private_folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/status.hpp"
#include "base/system_error.hpp"

namespace mep {

mep_result_t make_private_folder(const std::string& directory, const std::string& folder,
                                 const char* purpose) {
  struct stat status {};
  if (stat(directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return fail(MEP_ERR_NOT_FOUND, "the %s '%.200s' is no directory on this host", purpose,
                directory.c_str());
  }
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return fail(result_of_errno(errno), "'%.200s' cannot be made: %s", folder.c_str(),
                strerrordesc_np(errno));
  }
  if (lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
      status.st_uid != geteuid()) {
    return fail(MEP_ERR_DENIED, "'%.200s' is not a directory of this user", folder.c_str());
  }
  return MEP_SUCCESS;
}

}  // namespace mep
