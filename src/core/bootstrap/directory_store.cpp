// The store of places in a directory that all hosts share: the file DIRECTORY/mep-JOB/RANK.INCARNATION has one rank's
// place. A rank renames a finished draft to this name, so nobody reads half a file, and removes the file at its
// orderly end. A file that was left behind leads to no process, or to one of another incarnation, which the handshake
// finds out. So a file only tells where to connect; it proves nothing.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <map>

#include "base/log.hpp"
#include "base/private_folder.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"
#include "core/bootstrap/local_socket.hpp"
#include "core/bootstrap/rendezvous.hpp"

namespace mep {
namespace {

constexpr size_t kMaxFileBytes = 1024;
constexpr size_t kMaxFiles = size_t{4} << 16;
constexpr uint64_t kLookEveryMs = 50;
constexpr int kMostDrafts = 1000;  // tries to make one

class DirectoryStore final : public PlaceStore {
 public:
  DirectoryStore(const ResolvedConfig& config, const SelfDescription& self)
      : self_(self),
        job_(config.job),
        folder_(config.rendezvous + (config.rendezvous.back() == '/' ? "" : "/") + "mep-" +
                name_of_job(config.job)) {}
  ~DirectoryStore() override { take_back(); }

  mep_result_t open(const std::string& directory) const {
    return make_private_folder(directory, folder_, "rendezvous");
  }
  mep_result_t watch() override;
  void look_again() override { next_look_ = Deadline::at(0); }
  bool is_open() const override { return looked_; }
  mep_result_t put(const Place& place) override;
  void erase(uint32_t slot, uint64_t incarnation) override;
  std::vector<Place> get(uint32_t slot) const override;
  std::string explain() const override { return "no file of it in " + folder_; }

 private:
  // The job's name as a folder's name: short and without a slash, as in local socket names.
  static std::string name_of_job(const std::string& job) {
    const std::string name = local_socket_name(0, job, 0);
    const size_t begin = std::string("mep/0/").size();
    return name.substr(begin, name.size() - begin - std::string("/0").size());
  }
  void take_back();
  std::string path_of(const PlaceKey& key) const;
  bool read_file(const PlaceKey& key, Place* place) const;

  const SelfDescription self_;
  const std::string job_;
  const std::string folder_;
  std::string own_path_;
  std::map<PlaceKey, Place> places_;
  Deadline next_look_ = Deadline::at(0);
  bool looked_ = false;
};

std::string DirectoryStore::path_of(const PlaceKey& key) const {
  char name[48];
  std::snprintf(name, sizeof name, "/%u.%016llx", key.first,
                static_cast<unsigned long long>(key.second));
  return folder_ + name;
}

bool DirectoryStore::read_file(const PlaceKey& key, Place* place) const {
  const UniqueFd fd(::open(path_of(key).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return false;
  std::vector<std::byte> bytes(kMaxFileBytes);
  const ssize_t count = read(fd.get(), bytes.data(), bytes.size());
  if (count <= 0) return false;
  bytes.resize(static_cast<size_t>(count));
  uint32_t version = 0;
  return decode_place_record(bytes, job_, &version, place) && place->key() == key &&
         !place->addresses.empty();
}

mep_result_t DirectoryStore::watch() {
  if (!next_look_.expired()) return MEP_SUCCESS;
  next_look_ = Deadline::after_ms(kLookEveryMs);
  DIR* folder = opendir(folder_.c_str());
  // The last rank of an earlier job removes it; the next one that writes makes it anew.
  if (folder == nullptr && errno != ENOENT) {
    return fail(result_of_errno(errno), "'%.200s' cannot be read: %s", folder_.c_str(),
                strerrordesc_np(errno));
  }
  std::map<PlaceKey, Place> found;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): only this thread reads the stream
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder)) {
    const char* end = entry->d_name + std::char_traits<char>::length(entry->d_name);
    PlaceKey key;
    const auto [dot, error] = std::from_chars(entry->d_name, end, key.first);
    if (error != std::errc() || dot == end || *dot != '.') continue;
    const auto [stop, hex_error] = std::from_chars(dot + 1, end, key.second, 16);
    if (hex_error != std::errc() || stop != end || found.size() >= kMaxFiles) continue;
    // A file never changes, so each is read once.
    const auto known = places_.find(key);
    if (known != places_.end()) {
      found.insert(*known);
      continue;
    }
    Place place;
    if (read_file(key, &place)) found[key] = std::move(place);
  }
  if (folder != nullptr) closedir(folder);
  places_ = std::move(found);
  looked_ = true;
  return MEP_SUCCESS;
}

mep_result_t DirectoryStore::put(const Place& place) {
  // Each rank writes its own file.
  if (place.incarnation != self_.identity.incarnation) return MEP_SUCCESS;
  take_back();
  MEP_TRY(watch());
  // This process holds the rank's place on this host, so older files of the rank from this host are stale.
  for (const auto& [key, other] : places_) {
    if (key.first == place.slot && other.host == place.host) unlink(path_of(key).c_str());
  }
  const std::vector<std::byte> record = encode_place_record(job_, place);
  const std::string path = path_of(place.key());
  const std::string draft = path + ".draft";
  // The last ranks of an earlier job may remove the empty folder, also between these two calls.
  UniqueFd fd;
  for (int tries = 0; !fd.valid() && tries < kMostDrafts; ++tries) {
    mkdir(folder_.c_str(), 0700);
    fd.reset(::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid() && errno != ENOENT) break;
  }
  const auto size = static_cast<ssize_t>(record.size());
  if (!fd.valid() || write(fd.get(), record.data(), record.size()) != size ||
      fsync(fd.get()) != 0 || rename(draft.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(draft.c_str());
    return fail(result_of_errno(error), "'%.200s' cannot be written: %s", path.c_str(),
                strerrordesc_np(error));
  }
  own_path_ = path;
  // Each rank writes before it looks, so of two ranks that come at the same time one sees the other.
  look_again();
  return watch();
}

void DirectoryStore::take_back() {
  if (own_path_.empty()) return;
  unlink(own_path_.c_str());
  own_path_.clear();
  rmdir(folder_.c_str());  // succeeds for the last rank; the folder is not empty for the others
}

std::vector<Place> DirectoryStore::get(uint32_t slot) const {
  std::vector<Place> found;
  for (auto each = places_.lower_bound({slot, 0});
       each != places_.end() && each->first.first == slot; ++each) {
    if (each->first.second != self_.identity.incarnation) found.push_back(each->second);
  }
  return found;
}

// A dead rank cannot remove its file itself.
void DirectoryStore::erase(uint32_t slot, uint64_t incarnation) {
  if (incarnation == self_.identity.incarnation) return take_back();
  unlink(path_of({slot, incarnation}).c_str());
}

}  // namespace

mep_result_t make_directory_store(const ResolvedConfig& config, const SelfDescription& self,
                                  std::unique_ptr<PlaceStore>* out) {
  auto store = std::make_unique<DirectoryStore>(config, self);
  MEP_TRY(store->open(config.rendezvous));
  *out = std::move(store);
  return MEP_SUCCESS;
}

}  // namespace mep
