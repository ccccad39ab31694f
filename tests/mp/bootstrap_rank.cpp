// One rank of a bootstrap test, started by bootstrap_mesh_test as a process of its own. Prints one
// line
//   result=CODE ms=ELAPSED fds=LEAKED peers=COUNT slot=SLOT text=...
// and leaves with 0 whatever the result is; another status means that the test itself went wrong.
//
// usage: bootstrap_rank RANK SIZE JOB TIMEOUT_MS [--max-size N] [--uid UID] [--store DIR] [--join]
//                       [--serve] [--twice]
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "base/clock.hpp"
#include "base/status.hpp"
#include "core/bootstrap/bootstrap.hpp"

namespace {

struct Options {
  int rank = 0;
  int size = 1;
  std::string job;
  unsigned timeout_ms = 0;
  int max_size = 0;
  std::string store_folder;
  bool join = false;
  bool serve = false;
  bool twice = false;
};

int open_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// A key-value store of files. Beside the file of a key that was found lies an empty file NAME.found.
std::string file_of(void* user, const char* key) {
  std::string name = key;
  for (char& letter : name) {
    if (letter == '/') letter = '_';
  }
  return *static_cast<std::string*>(user) + "/" + name;
}

int put_file(void* user, const char* key, const void* value, size_t bytes) {
  const std::string path = file_of(user, key);
  const std::string draft = path + ".draft";
  FILE* file = fopen(draft.c_str(), "we");
  if (file == nullptr) return 1;
  const bool written = fwrite(value, 1, bytes, file) == bytes;
  if (fclose(file) != 0 || !written) return 2;
  return rename(draft.c_str(), path.c_str()) == 0 ? 0 : 3;
}

int get_file(void* user, const char* key, void* value, size_t capacity, size_t* bytes,
             uint32_t timeout_ms) {
  const mep::Deadline deadline = mep::Deadline::after_ms(timeout_ms);
  do {
    FILE* file = fopen(file_of(user, key).c_str(), "re");
    if (file != nullptr) {
      *bytes = fread(value, 1, capacity, file);
      fclose(file);
      FILE* mark = fopen((file_of(user, key) + ".found").c_str(), "we");
      if (mark != nullptr) fclose(mark);
      return 0;
    }
    usleep(2000);
  } while (!deadline.expired());
  return 1;
}

// Every link carries a frame with a descriptor in each direction, and the pidfds live.
bool exchange(mep::Mesh* mesh) {
  int sides[2];
  if (pipe2(sides, O_CLOEXEC) != 0) return false;
  const mep::UniqueFd reader(sides[0]);
  const mep::UniqueFd writer(sides[1]);
  const uint64_t own_host = mesh->self.identity.host;
  for (mep::PeerLink& peer : mesh->peers) {
    const int fd = writer.get();
    const bool is_remote = peer.identity.host != own_host;
    const std::byte byte{static_cast<unsigned char>(mesh->self.identity.slot)};
    if (peer.link->send(mep::kFirstWorldFrame, std::span(&byte, 1),
                        std::span(&fd, is_remote ? 0 : 1)) != 0) {
      fprintf(stderr, "send: %s\n", mep::last_error_text());
      return false;
    }
    if (is_remote) {
      // Its end cannot be seen from here.
      if (peer.pidfd.valid()) return false;
      continue;
    }
    pollfd entry{peer.pidfd.get(), POLLIN, 0};
    // An exited peer is possible (it may be done already), an invalid descriptor is not.
    if (!peer.pidfd.valid() || poll(&entry, 1, 0) < 0) return false;
  }
  for (mep::PeerLink& peer : mesh->peers) {
    bool arrived = false;
    const mep::Deadline deadline = mep::Deadline::after_ms(20000);
    while (!arrived && !deadline.expired()) {
      const mep_result_t result = peer.link->receive([&](mep::Frame& frame) {
        arrived = frame.type == mep::kFirstWorldFrame && frame.payload.size() == 1 &&
                  frame.fds.size() == (peer.identity.host == own_host ? 1u : 0u) &&
                  static_cast<uint32_t>(frame.payload[0]) == peer.identity.slot;
        return false;
      });
      if (!arrived && result != 0) {
        fprintf(stderr, "receive: %s\n", mep::last_error_text());
        return false;
      }
      pollfd entry{peer.link->fd(), POLLIN, 0};
      if (!arrived) poll(&entry, 1, 100);
    }
    if (!arrived) return false;
  }
  return true;
}

// A member's door, open until standard input ends: each joiner gets this rank's half of the
// exchange at once.
void serve_join_listener(mep::Mesh* mesh, const mep::ResolvedConfig& config) {
  mep::JoinListener door(mesh->listener.get(), config, mesh->self, mesh->gate);
  const mep::Deadline deadline = mep::Deadline::after_ms(60000);
  printf("serving\n");
  fflush(stdout);
  std::vector<mep::PeerLink> guests;
  while (!deadline.expired()) {
    const size_t known = guests.size();
    door.progress(&guests);
    for (size_t i = known; i < guests.size(); ++i) {
      const int fd = mesh->listener.get();
      const std::byte byte{static_cast<unsigned char>(mesh->self.identity.slot)};
      const bool is_remote = guests[i].identity.host != mesh->self.identity.host;
      (void)guests[i].link->send(mep::kFirstWorldFrame, std::span(&byte, 1),
                                 std::span(&fd, is_remote ? 0 : 1));
    }
    pollfd entries[] = {{STDIN_FILENO, POLLIN, 0}, {door.fd(), POLLIN, 0}};
    poll(entries, 2, door.wait_ms(1000));
    if (entries[0].revents != 0) break;
  }
}

int start_once(const Options& options) {
  const int before = open_descriptors();
  const uint64_t begin_ns = mep::now_ns();
  mep_comm_config_t given{};
  given.struct_size = sizeof given;
  given.flags = options.rank >= 0 ? MEP_COMM_SET_RANK : 0;
  given.rank = options.rank >= 0 ? options.rank : 0;
  given.size = options.size;
  given.max_size = options.max_size;
  given.job = options.job.c_str();
  given.init_timeout_ms = options.timeout_ms;
  std::string folder = options.store_folder;
  mep_store_t store{sizeof store, 0, &folder, put_file, get_file};
  if (!folder.empty()) given.store = &store;

  bool sound = true;
  size_t peers = 0;
  unsigned slot = 0;
  mep::ResolvedConfig config;
  mep_result_t result = mep::resolve_config(
      &given, &config, options.join ? mep::ConfigUse::kJoin : mep::ConfigUse::kStart);
  mep::SelfDescription self;
  if (result == 0) result = mep::make_identity(static_cast<uint32_t>(config.rank), &self.identity);
  self.offer.assign(3, std::byte{7});
  unsigned elapsed_ms = 0;
  {
    mep::Mesh mesh;
    if (result == 0) {
      const mep::Deadline deadline = mep::Deadline::after_ms(config.init_timeout_ms);
      result = options.join ? mep::bootstrap_join(config, self, deadline, &mesh)
                            : mep::bootstrap_mesh(config, self, &mesh);
    }
    elapsed_ms = static_cast<unsigned>((mep::now_ns() - begin_ns) / 1000000);
    if (result == 0) {
      peers = mesh.peers.size();
      slot = mesh.self.identity.slot;
      sound = exchange(&mesh);
      for (const mep::PeerLink& peer : mesh.peers) sound = sound && peer.offer.size() == 3;
      if (sound && options.serve) serve_join_listener(&mesh, config);
    }
  }
  const int leaked = open_descriptors() - before;
  printf("result=%d ms=%u fds=%d peers=%zu slot=%u sound=%d text=%s\n", result, elapsed_ms, leaked,
         peers, slot, sound ? 1 : 0, result != 0 ? mep::last_error_text() : "");
  fflush(stdout);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  Options options;
  options.rank = atoi(argv[1]);
  options.size = atoi(argv[2]);
  options.job = argv[3];
  options.timeout_ms = static_cast<unsigned>(atoi(argv[4]));
  for (int i = 5; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--join") {
      options.join = true;
    } else if (name == "--serve") {
      options.serve = true;
    } else if (name == "--twice") {
      options.twice = true;
    } else if (i + 1 == argc) {
      return 2;
    } else if (name == "--max-size") {
      options.max_size = atoi(argv[++i]);
    } else if (name == "--uid") {
      const auto id = static_cast<uid_t>(atoi(argv[++i]));
      if (setgroups(0, nullptr) != 0 || setgid(id) != 0 || setuid(id) != 0) return 3;
    } else if (name == "--store") {
      options.store_folder = argv[++i];
    } else {
      return 2;
    }
  }
  const mep_result_t first = start_once(options);
  if (options.twice && first == 0) start_once(options);
  return 0;
}
