// labels: quick
// The eager ring over two hosts, step by step, in an order that ranks which run by themselves seldom come to.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "core/coll/eager_ring.hpp"
#include "support/cmocka_cpp.hpp"
#include "transport/doorbell.hpp"

namespace {

using mep::EagerRing;
using mep::Operation;
using mep::Remote;

constexpr uint32_t kSize = 4;
constexpr uint64_t kEpoch = 1;
constexpr uint64_t kSeq = 1;
constexpr uint32_t kHosts[kSize] = {1, 1, 2, 2};

struct Freed {
  void operator()(std::byte* memory) const { free(memory); }
};
using Memory = std::unique_ptr<std::byte, Freed>;

Memory make_window() {
  const size_t bytes = (EagerRing::window_bytes(kSize) + 63) / 64 * 64;
  auto* memory = static_cast<std::byte*>(aligned_alloc(64, bytes));
  memset(memory, 0, bytes);
  return Memory(memory);
}

// Ranks 0 and 1 on one host, 2 and 3 on another. Puts of rank 3 to rank 0 stay on their way until deliver().
class TwoHosts {
 public:
  TwoHosts() {
    for (uint32_t rank = 0; rank < kSize; ++rank) {
      mep::doorbell_open(&doorbells_[rank]);
      windows_.push_back(make_window());
    }
    on_the_way_ = make_window();
    const std::vector<uint32_t> live = {0, 1, 2, 3};
    for (uint32_t rank = 0; rank < kSize; ++rank) {
      for (uint32_t peer = 0; peer < kSize; ++peer) {
        Remote& remote = remotes_[rank].emplace_back();
        remote.mapped = rank == 3 && peer == 0 ? on_the_way_.get() : windows_[peer].get();
        remote.doorbell = &doorbells_[peer];
        remote.host = kHosts[peer];
        remote.sharing = kHosts[peer];
        remote.slot = peer;
      }
      rings_[rank].open(rank, &remotes_[rank]);
      rings_[rank].restart(kEpoch, kSeq, live);
      rings_[rank].use_window(windows_[rank].get());
    }
  }
  EagerRing& operator[](uint32_t rank) { return rings_[rank]; }
  void deliver() {
    const size_t offset = static_cast<size_t>(rings_[0].payload(kSeq, 3) - windows_[0].get());
    memcpy(windows_[0].get() + offset - sizeof(uint64_t),
           on_the_way_.get() + offset - sizeof(uint64_t), EagerRing::slot_bytes_of(kSize));
  }

 private:
  mep::Doorbell doorbells_[kSize];
  std::vector<Memory> windows_;
  Memory on_the_way_;
  std::vector<Remote> remotes_[kSize];
  EagerRing rings_[kSize];
};

void fill(Operation* operation, uint32_t fingerprint, size_t bytes) {
  operation->epoch = kEpoch;
  operation->seq = kSeq;
  operation->fingerprint = fingerprint;
  operation->bytes = operation->given_bytes = bytes;
  operation->is_small = true;
}

// The leader of the root's host calls something shorter and ends it as a mismatch before the root has reached the
// other host. Its contribution must not stand for the root's: it is cut short.
void a_shorter_call_cuts_nothing_short(void**) {
  TwoHosts ranks;
  std::vector<uint8_t> given(100);
  std::iota(given.begin(), given.end(), uint8_t{1});
  Operation broadcast;
  fill(&broadcast, 0x111, given.size());
  assert_int_equal(ranks[3].post_to_all(broadcast, given.data(), given.size(), EagerRing::kRooted),
                   MEP_SUCCESS);
  Operation shorter;
  fill(&shorter, 0x222, 1);
  assert_int_equal(ranks[2].post_to_all(shorter, given.data(), 1), MEP_SUCCESS);
  assert_int_equal(ranks[2].relay_rest(shorter), MEP_SUCCESS);

  assert_int_equal(ranks[0].relay(broadcast), MEP_SUCCESS);
  bool mismatch = false;
  for (const uint32_t rank : {0u, 1u}) {
    assert_false(ranks[rank].arrived(broadcast, 3, &mismatch));
    assert_true(ranks[rank].arrived(broadcast, 2, &mismatch));
    assert_true(mismatch);
  }
  ranks.deliver();
  assert_int_equal(ranks[0].relay_rest(broadcast), MEP_SUCCESS);
  for (const uint32_t rank : {0u, 1u}) {
    assert_true(ranks[rank].arrived(broadcast, 3, &mismatch));
    assert_false(mismatch);
    assert_memory_equal(ranks[rank].payload(kSeq, 3), given.data(), given.size());
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(a_shorter_call_cuts_nothing_short)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
