#include "core/topo/cgroups.hpp"

#include <fstream>
#include <sstream>

namespace mep {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

bool list_has(const std::string& list, const std::string& item) {
  std::istringstream parts(list);
  std::string part;
  while (std::getline(parts, part, ',')) {
    if (part == item) return true;
  }
  return false;
}

// Where the hierarchy is mounted, and which of its groups is the root of that mount.
struct CgroupMount {
  std::string group;
  std::string folder;
};

bool find_mount(const std::string& mountinfo_text, bool is_v2, const char* controller,
                CgroupMount* mount) {
  std::istringstream lines(mountinfo_text);
  std::string line;
  while (std::getline(lines, line)) {
    const size_t separator = line.find(" - ");
    if (separator == std::string::npos) continue;
    std::string id, parent, device, type, source, options;
    CgroupMount found;
    std::istringstream(line) >> id >> parent >> device >> found.group >> found.folder;
    std::istringstream(line.substr(separator + 3)) >> type >> source >> options;
    if (is_v2 ? type != "cgroup2" : (type != "cgroup" || !list_has(options, controller))) continue;
    *mount = found;
    return true;
  }
  return false;
}

// The group's path below the mount point; a group outside of what is mounted counts as its root.
std::string path_below(const CgroupMount& mount, const std::string& group) {
  if (mount.group == "/") return group == "/" ? "" : group;
  if (group.compare(0, mount.group.size(), mount.group) != 0) return "";
  const std::string rest = group.substr(mount.group.size());
  return rest.empty() || rest[0] == '/' ? rest : "";
}

}  // namespace

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  char block[4096];
  while (file && text.size() < kMaxFileBytes) {
    file.read(block, sizeof block);
    text.append(block, static_cast<size_t>(file.gcount()));
  }
  return text;
}

void visit_cgroups(const char* controller, const std::string& cgroup_text,
                   const std::string& mountinfo_text, const std::string& root,
                   FunctionRef<void(const std::string& folder, bool is_v2)> visit) {
  std::istringstream lines(cgroup_text);
  std::string line;  // "id:controllers:/group"; v2 has id 0 and no controllers
  while (std::getline(lines, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    CgroupMount mount;
    if (!is_v2 && !list_has(controllers, controller)) continue;
    if (!find_mount(mountinfo_text, is_v2, controller, &mount)) continue;
    const std::string top = root + mount.folder;
    std::string path = path_below(mount, line.substr(second + 1));
    while (true) {
      visit(top + path, is_v2);
      if (path.empty()) break;
      const size_t slash = path.rfind('/');
      path.resize(slash == std::string::npos ? 0 : slash);
    }
  }
}

}  // namespace mep
