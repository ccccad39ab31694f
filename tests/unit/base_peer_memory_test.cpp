// labels: quick
// Memory of another process, read without its help: which bytes come, and when a reader takes them for the owner's.
#include "base/peer_memory.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "support/coll_ranks.hpp"
#include "support/shared_memory.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

constexpr size_t kBytes = (size_t{5} << 20) + 4096;
constexpr uint64_t kValue = 0x1234'5678'9abc'def1;

// The two processes tell each other by this how far they are.
struct Talk {
  std::atomic<int> stage;
  std::atomic<uint64_t> data;
  std::atomic<uint64_t> word_at;
  std::atomic<int> heir;

  void await(int wanted) const {
    while (stage.load() < wanted) pause_us(200);
  }
};

uint8_t byte_at(size_t i) {
  return static_cast<uint8_t>(i * 131 + i / 251);
}

// Its data lies at the end of a mapping, and behind that nothing is mapped.
void own_memory(Talk* talk) {
  auto* memory = static_cast<uint8_t*>(
      mmap(nullptr, kBytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  (void)munmap(memory + kBytes, 4096);
  for (size_t i = 0; i < kBytes; ++i) memory[i] = byte_at(i);
  mep::WatchedWord word;
  if (!word.make()) return;
  word.show(kValue);
  talk->data = reinterpret_cast<uintptr_t>(memory);
  talk->word_at = word.address();
  const pid_t heir = fork();
  if (heir == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) pause_us(100'000);
  }
  talk->heir = heir;
  talk->stage = 1;
  talk->await(2);
  word.hide();
  talk->stage = 3;
  talk->await(4);
  kill(heir, SIGKILL);
  waitpid(heir, nullptr, 0);
}

void bytes_and_owners(void**) {
  const auto talk = make_shared_memory<Talk>();
  const pid_t owner = fork();
  if (owner == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    own_memory(talk.get());
    _exit(0);
  }
  talk->await(1);
  std::vector<uint8_t> got(kBytes + 8192);
  for (const auto& [from, bytes] : {std::pair<size_t, size_t>{0, kBytes}, {1, 3}, {4093, 77'777}}) {
    assert_int_equal(mep::read_peer_memory(owner, talk->data + from, got.data() + from % 7, bytes),
                     bytes);
    for (size_t i = 0; i < bytes; ++i) assert_int_equal(got[from % 7 + i], byte_at(from + i));
  }
  // Up to the end of what is mapped.
  errno = 0;
  assert_int_equal(mep::read_peer_memory(owner, talk->data + kBytes - 10, got.data(), 5000), 10);
  assert_int_equal(errno, EFAULT);

  const uint64_t at = talk->word_at;
  assert_true(mep::shows(owner, at, kValue));
  assert_false(mep::shows(owner, at, kValue + 1));
  assert_false(mep::shows(owner, at + kBytes, kValue));
  assert_false(mep::shows(owner, 0, 0));
  // A child of the owner has its memory, but is not the owner.
  uint8_t first = 0;
  assert_int_equal(mep::read_peer_memory(talk->heir, talk->data + 9, &first, 1), 1);
  assert_int_equal(first, byte_at(9));
  assert_false(mep::shows(talk->heir, at, kValue));
  // This process may have something else there, or nothing.
  assert_false(mep::shows(getpid(), at, kValue));

  talk->stage = 2;
  talk->await(3);
  assert_false(mep::shows(owner, at, kValue));
  assert_false(mep::shows(owner, at, 0));
  talk->stage = 4;
  waitpid(owner, nullptr, 0);
  assert_int_equal(mep::read_peer_memory(owner, talk->data, got.data(), 8), 0);
  assert_int_equal(errno, ESRCH);
}

void numbers_differ(void**) {
  const uint64_t first = mep::unguessable_number();
  const uint64_t second = mep::unguessable_number();
  assert_true(first != 0 && second != 0 && first != second);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(bytes_and_owners), cmocka_unit_test(numbers_differ)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
