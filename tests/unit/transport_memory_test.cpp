// labels: quick threads tsan asan
// Shared memory from a peer is checked before it is mapped, sealed memory is read-only for other processes,
// and nothing is left over: no file, no descriptor, no mapping.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <csignal>
#include <set>

#include "support/transport_rig.hpp"
#include "transport/host_memory.hpp"
#include "transport/memfd.hpp"

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 0x0004U
#endif

namespace {

using mep::HostMemory;
using mep::Mapping;
using mep::UniqueFd;
using mep::Window;
using mep::WindowExport;
using mep::test::kLimitMs;
using mep::test::pattern;

constexpr uint64_t kWindowId = 9;

struct Pair {
  std::unique_ptr<mep::Transport> owner;
  std::unique_ptr<mep::Transport> user;
};

// Two transports of one kind in this process, told that they are in one or in two processes.
Pair make_pair_of(const char* name) {
  for (const mep::TransportEntry& entry : mep::transport_table()) {
    if (std::strcmp(entry.name, name) != 0) continue;
    Pair pair{entry.make({}), entry.make({})};
    const uint64_t token = std::strcmp(name, "inproc") == 0 ? 1 : 2;
    const mep::PeerIdentity owner{1, 10, 7, 1, 0};
    const mep::PeerIdentity user{2, 20, 7, token, 0};
    assert_int_equal(pair.owner->add_peer(owner, user, {}, {}), MEP_SUCCESS);
    assert_int_equal(pair.user->add_peer(user, owner, {}, {}), MEP_SUCCESS);
    return pair;
  }
  fail_msg("no transport %s", name);
  return {};
}

UniqueFd memfd_of(size_t bytes, int seals) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  assert_true(fd.valid());
  assert_int_equal(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (seals != 0) assert_int_equal(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

void hostile_descriptors_are_refused(void**) {
  const Pair pair = make_pair_of("shm");
  std::shared_ptr<Window> window;
  assert_int_equal(Window::create(kWindowId, 10000, &window), MEP_SUCCESS);
  WindowExport exported;
  assert_int_equal(pair.owner->export_window(2, window, &exported), MEP_SUCCESS);
  const auto import = [&](UniqueFd fd) {
    return pair.user->import_window(1, kWindowId, 10000, exported.blob, std::move(fd));
  };
  assert_int_equal(import(UniqueFd()), MEP_ERR_DENIED);
  assert_int_equal(import(memfd_of(12288, 0)), MEP_ERR_DENIED);
  assert_int_equal(import(memfd_of(12288, F_SEAL_GROW)), MEP_ERR_DENIED);
  assert_int_equal(import(memfd_of(9999, F_SEAL_SHRINK)), MEP_ERR_MISMATCH);
  assert_int_equal(import(memfd_of(0, F_SEAL_SHRINK)), MEP_ERR_MISMATCH);
  // Cannot be mapped for writing: an error and not a crash at the first put.
  assert_true(mep::is_error(import(memfd_of(12288, F_SEAL_SHRINK | F_SEAL_WRITE))));
  assert_int_equal(import(UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC))), MEP_ERR_DENIED);
  assert_int_equal(import(UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC))), MEP_ERR_DENIED);
  UniqueFd huge(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (huge.valid() && ftruncate(huge.get(), 2 << 20) == 0 &&
      fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
    assert_int_equal(import(std::move(huge)), MEP_ERR_DENIED);
  }
  assert_null(pair.user->map(1, kWindowId));
  assert_int_equal(import(memfd_of(10000, F_SEAL_SHRINK)), MEP_SUCCESS);
  // The last byte of a window that ends within its last page.
  const std::byte one{1};
  assert_int_equal(mep::test::post_put(*pair.user, 1, kWindowId, 9999, &one, 1), MEP_SUCCESS);
  // A replacement that cannot be had leaves the old one usable.
  std::byte* mapped = pair.user->map(1, kWindowId);
  assert_true(mep::is_error(import(memfd_of(12288, F_SEAL_SHRINK | F_SEAL_WRITE))));
  assert_ptr_equal(pair.user->map(1, kWindowId), mapped);
  assert_true(mapped[9999] == one);
  assert_int_equal(import(std::move(exported.fd)), MEP_SUCCESS);
  assert_ptr_equal(pair.user->map(1, kWindowId), mapped);
  assert_true(mapped[9999] == std::byte{0});
}

void old_generations_are_refused(void**) {
  for (const char* name : {"shm", "inproc"}) {
    const Pair pair = make_pair_of(name);
    std::shared_ptr<Window> window;
    assert_int_equal(Window::create(kWindowId, 4096, &window), MEP_SUCCESS);
    WindowExport old_export;
    WindowExport new_export;
    assert_int_equal(pair.owner->export_window(2, window, &old_export), MEP_SUCCESS);
    assert_int_equal(window->renew(), MEP_SUCCESS);
    assert_int_equal(pair.owner->export_window(2, window, &new_export), MEP_SUCCESS);
    assert_int_equal(
        pair.user->import_window(1, kWindowId, 4096, new_export.blob, std::move(new_export.fd)),
        MEP_SUCCESS);
    assert_int_equal(
        pair.user->import_window(1, kWindowId, 4096, old_export.blob, std::move(old_export.fd)),
        MEP_ERR_MISMATCH);
    const uint64_t word = 77;
    assert_int_equal(mep::test::post_put(*pair.user, 1, kWindowId, 8, &word, 8), MEP_SUCCESS);
    assert_memory_equal(window->data() + 8, &word, 8);
  }
}

// A window's size is a fact: not even its owner can take memory away from under its peers.
void windows_cannot_shrink(void**) {
  std::shared_ptr<Window> window;
  assert_int_equal(Window::create(kWindowId, 8192, &window), MEP_SUCCESS);
  assert_int_equal(ftruncate(window->fd(), 4096), -1);
  assert_int_equal(errno, EPERM);
  assert_int_equal(ftruncate(window->fd(), 16384), -1);
  assert_int_equal(fcntl(window->fd(), F_ADD_SEALS, F_SEAL_WRITE),
                   -1);  // no peer can lock others out
  assert_true((fcntl(window->fd(), F_GETFD) & FD_CLOEXEC) != 0);
  assert_int_equal(Window::create(kWindowId, 0, &window), MEP_ERR_INVALID_ARGUMENT);
  assert_int_equal(Window::create(kWindowId, SIZE_MAX, &window), MEP_ERR_INVALID_ARGUMENT);
}

// Limits of the process end in error codes, not in signals.
void limits_are_errors(void**) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    std::shared_ptr<Window> window;
    rlimit limit{1 << 20, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    if (Window::create(1, 2 << 20, &window) != MEP_ERR_NO_MEMORY) _exit(3);
    if (Window::create(1, 4096, &window) != MEP_SUCCESS) _exit(4);
    limit = {0, 0};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(5);
    std::shared_ptr<Window> other;
    if (Window::create(2, 4096, &other) != MEP_ERR_NO_MEMORY) _exit(6);
    if (window->renew() != MEP_ERR_NO_MEMORY) _exit(7);
    window->data()[4095] = std::byte{1};
    _exit(0);
  }
  assert_true(mep::test::wait_for_child(child));
}

// An inproc window lives as long as anybody uses it, and not longer.
void inproc_memory_outlives_its_owner(void**) {
  Pair pair = make_pair_of("inproc");
  std::shared_ptr<Window> window;
  assert_int_equal(Window::create(kWindowId, 4096, &window), MEP_SUCCESS);
  WindowExport exported;
  assert_int_equal(pair.owner->export_window(2, window, &exported), MEP_SUCCESS);
  assert_false(exported.fd.valid());
  assert_int_equal(pair.user->import_window(1, kWindowId, 4096, exported.blob, UniqueFd()),
                   MEP_SUCCESS);
  assert_ptr_equal(pair.user->map(1, kWindowId), window->data());
  const std::weak_ptr<Window> watch = window;
  window.reset();
  pair.owner.reset();
  assert_false(watch.expired());
  const uint64_t word = 1;
  assert_int_equal(mep::test::post_put(*pair.user, 1, kWindowId, 0, &word, 8), MEP_SUCCESS);
  pair.user->drop_window(1, kWindowId);
  assert_true(watch.expired());
  assert_int_equal(pair.user->import_window(1, kWindowId, 4096, exported.blob, UniqueFd()),
                   MEP_ERR_NOT_FOUND);
}

size_t open_descriptors() {
  size_t count = 0;
  DIR* directory = opendir("/proc/self/fd");
  assert_non_null(directory);
  while (readdir(directory) != nullptr) ++count;  // NOLINT(concurrency-mt-unsafe): own stream
  closedir(directory);
  return count;
}

// Mappings of shared memory; the allocator may take what it likes.
size_t shared_mappings() {
  FILE* maps = std::fopen("/proc/self/maps", "re");
  assert_non_null(maps);
  char line[1024];
  size_t count = 0;
  while (std::fgets(line, sizeof(line), maps) != nullptr) {
    if (std::strstr(line, "memfd:") != nullptr) ++count;
  }
  std::fclose(maps);
  return count;
}

void one_window_cycle(const char* name, int cycle) {
  const Pair pair = make_pair_of(name);
  std::shared_ptr<Window> window;
  assert_int_equal(Window::create(kWindowId, 20000, &window), MEP_SUCCESS);
  WindowExport exported;
  assert_int_equal(pair.owner->export_window(2, window, &exported), MEP_SUCCESS);
  assert_int_equal(
      pair.user->import_window(1, kWindowId, 20000, exported.blob, std::move(exported.fd)),
      MEP_SUCCESS);
  if (cycle % 4 == 1) assert_int_equal(window->renew(), MEP_SUCCESS);
  if (cycle % 4 <= 1) {
    assert_int_equal(pair.owner->export_window(2, window, &exported), MEP_SUCCESS);
    assert_int_equal(
        pair.user->import_window(1, kWindowId, 20000, exported.blob, std::move(exported.fd)),
        MEP_SUCCESS);
  }
  if (cycle % 3 == 0) pair.user->drop_window(1, kWindowId);
  if (cycle % 3 == 1) pair.user->remove_peer(1);
}

void one_allocation_cycle() {
  HostMemory allocator;
  void* freed = nullptr;
  void* left = nullptr;
  assert_int_equal(allocator.allocate(30000, &freed), MEP_SUCCESS);
  assert_int_equal(allocator.allocate(30000, &left), MEP_SUCCESS);
  assert_int_equal(allocator.free(freed, nullptr), MEP_SUCCESS);
}

void nothing_accumulates(void**) {
  one_window_cycle("shm", 0);  // what is made once per process
  one_window_cycle("inproc", 0);
  one_allocation_cycle();
  const size_t descriptors = open_descriptors();
  const size_t mappings = shared_mappings();
  for (int cycle = 0; cycle < 1000; ++cycle) {
    one_window_cycle("shm", cycle);
    one_window_cycle("inproc", cycle);
    one_allocation_cycle();
  }
  assert_int_equal(open_descriptors(), descriptors);
  assert_int_equal(shared_mappings(), mappings);
}

std::set<std::string> names_in(const char* path) {
  std::set<std::string> names;
  DIR* directory = opendir(path);
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory)) {  // NOLINT(concurrency-mt-unsafe): own stream
    names.insert(entry->d_name);
  }
  closedir(directory);
  return names;
}

// A process that is killed leaves no file; others on the machine may add theirs meanwhile, so only names that could
// be ours count.
void a_killed_process_leaves_no_file(void**) {
  const std::set<std::string> before = names_in("/dev/shm");
  int ready[2];
  assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    std::shared_ptr<Window> window;
    HostMemory allocator;
    void* memory = nullptr;
    if (Window::create(mep::kWorldWindowId, 1 << 20, &window) != MEP_SUCCESS) _exit(2);
    if (allocator.allocate(1 << 20, &memory) != MEP_SUCCESS) _exit(3);
    std::memset(window->data(), 1, 1 << 20);
    std::memset(memory, 1, 1 << 20);
    const char byte = 1;
    if (write(ready[1], &byte, 1) != 1) _exit(4);
    for (;;) pause();
  }
  close(ready[1]);  // so that the end of the child is the end of the wait
  char byte = 0;
  assert_int_equal(read(ready[0], &byte, 1), 1);
  const std::set<std::string> during = names_in("/dev/shm");
  kill(child, SIGKILL);
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  close(ready[0]);
  for (const std::set<std::string>& names : {during, names_in("/dev/shm")}) {
    for (const std::string& name : names) {
      if (before.count(name) == 0 && name.find("mep") != std::string::npos) {
        fail_msg("/dev/shm/%s", name.c_str());
      }
    }
  }
}

// Tries all that another process could do with the descriptor; 0: it could change nothing.
int attack(int fd, std::byte* readable) {
  const char byte = 'x';
  if (pwrite(fd, &byte, 1, 0) >= 0 || errno != EPERM) return 10;
  if (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED) return 11;
  if (mprotect(readable, 4096, PROT_READ | PROT_WRITE) == 0) return 12;
  if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) return 13;
  if (ftruncate(fd, 0) == 0) return 14;
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0) return 15;
  return 0;
}

void read_only_memory_is_written_by_its_owner_alone(void**) {
  constexpr size_t kBytes = 100000;
  UniqueFd fd;
  Mapping own;
  assert_int_equal(mep::create_memfd("test", kBytes, &fd), MEP_SUCCESS);
  assert_int_equal(Mapping::of(fd.get(), kBytes, true, &own), MEP_SUCCESS);
  assert_int_equal(mep::seal_memfd(fd.get(), true), MEP_SUCCESS);
  for (size_t i = 0; i < kBytes; ++i) own.data()[i] = pattern(1, i);  // the owner still writes
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    Mapping view;
    if (Mapping::of(fd.get(), kBytes, true, &view) == MEP_SUCCESS) _exit(2);
    if (Mapping::of(fd.get(), kBytes, false, &view) != MEP_SUCCESS) _exit(3);
    for (size_t i = 0; i < kBytes; ++i) {
      if (view.data()[i] != pattern(1, i)) _exit(4);
    }
    _exit(attack(fd.get(), view.data()));
  }
  assert_true(mep::test::wait_for_child(child));
  for (size_t i = 0; i < kBytes; ++i) assert_true(own.data()[i] == pattern(1, i));
}

void host_memory_is_zeroed_and_freed_by_its_start(void**) {
  HostMemory allocator;
  void* memory = nullptr;
  assert_int_equal(allocator.allocate(5000, &memory), MEP_SUCCESS);
  assert_int_equal(reinterpret_cast<uintptr_t>(memory) % mep::page_bytes(), 0);
  auto* bytes = static_cast<std::byte*>(memory);
  for (size_t i = 0; i < 5000; ++i) assert_true(bytes[i] == std::byte{0});
  bytes[4999] = std::byte{0x42};
  assert_int_equal(allocator.free(bytes + 1, nullptr), MEP_ERR_INVALID_ARGUMENT);
  std::shared_ptr<const void> kept;
  assert_int_equal(allocator.free(memory, &kept), MEP_SUCCESS);
  assert_true(bytes[4999] == std::byte{0x42});
  assert_int_equal(allocator.free(memory, nullptr), MEP_ERR_INVALID_ARGUMENT);
  assert_int_equal(allocator.allocate(0, &memory), MEP_ERR_INVALID_ARGUMENT);
  assert_int_equal(allocator.allocate(SIZE_MAX, &memory), MEP_ERR_INVALID_ARGUMENT);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(hostile_descriptors_are_refused),
      cmocka_unit_test(old_generations_are_refused),
      cmocka_unit_test(windows_cannot_shrink),
      cmocka_unit_test(limits_are_errors),
      cmocka_unit_test(inproc_memory_outlives_its_owner),
      cmocka_unit_test(nothing_accumulates),
      cmocka_unit_test(a_killed_process_leaves_no_file),
      cmocka_unit_test(read_only_memory_is_written_by_its_owner_alone),
      cmocka_unit_test(host_memory_is_zeroed_and_freed_by_its_start),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
