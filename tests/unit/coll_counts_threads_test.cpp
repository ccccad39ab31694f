// labels: quick threads tsan asan
// Collectives with a length for each block: where lengths do not fit together all ranks find it, wherever the
// difference is; and what the matrix has no cases of: blocks of very different lengths.
#include <cstring>

#include "support/coll_ranks.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

constexpr int kSize = 4;
using Counts = std::vector<uint64_t>;

struct Exchange {
  Counts given;
  Counts gotten;
};

// The blocks that `rank` gives to and gets of each; `of` says how long they are.
template <typename Length>
Exchange exchange_of(int rank, Length&& of) {
  Exchange result;
  for (int other = 0; other < kSize; ++other) {
    result.given.push_back(of(rank, other));
    result.gotten.push_back(of(other, rank));
  }
  return result;
}

uint64_t sum(const Counts& counts) {
  uint64_t result = 0;
  for (const uint64_t count : counts) result += count;
  return result;
}

uint16_t element(int source, int target, uint64_t i) {
  return static_cast<uint16_t>(source * 7919 + target * 104729 + static_cast<int>(i % 65'521));
}

// One alltoallv with elements that are checked.
mep_result_t run(int rank, mep_comm_t comm, const Exchange& exchange, Report& found) {
  std::vector<uint16_t> send;
  for (int target = 0; target < kSize; ++target) {
    for (uint64_t i = 0; i < exchange.given[static_cast<size_t>(target)]; ++i) {
      send.push_back(element(rank, target, i));
    }
  }
  std::vector<uint16_t> receive(sum(exchange.gotten), 0);
  const mep_result_t result =
      mep_alltoallv(send.data(), receive.data(), exchange.given.data(), nullptr,
                    exchange.gotten.data(), nullptr, MEP_UINT16, comm, nullptr);
  if (result != MEP_SUCCESS) return result;
  size_t at = 0;
  for (int source = 0; source < kSize; ++source) {
    for (uint64_t i = 0; i < exchange.gotten[static_cast<size_t>(source)]; ++i, ++at) {
      if (receive[at] == element(source, rank, i)) continue;
      found.add("rank %d: element %llu of rank %d is wrong", rank,
                static_cast<unsigned long long>(i), source);
      return result;
    }
  }
  return result;
}

// One block, of blocks of `usual` elements, is longer than its receiver expects, or two are wrong such that sums of
// lengths do not show it. Every rank finds it, and the next call is right.
void mismatch(uint64_t usual, uint32_t flags) {
  Report report;
  with_rank_threads(
      kSize, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& found) {
        const auto length = [&](int, int) { return usual; };
        for (int source = 0; source < kSize; ++source) {
          const int target = (source + source) % kSize;
          Exchange longer = exchange_of(rank, length);
          if (rank == source) ++longer.given[static_cast<size_t>(target)];
          COLL_EXPECT(found, MEP_ERR_MISMATCH, run(rank, comm, longer, found));
          Exchange swapped = exchange_of(rank, length);
          if (rank == source) {
            ++swapped.given[0];
            --swapped.given[kSize - 1];
          }
          COLL_EXPECT(found, MEP_ERR_MISMATCH, run(rank, comm, swapped, found));
          // The lengths given and expected have the same sum, but lie elsewhere.
          Exchange elsewhere = exchange_of(rank, length);
          if (rank == source) ++elsewhere.gotten[1];
          if (rank == (source + 1) % kSize) ++elsewhere.given[2];
          COLL_EXPECT(found, MEP_ERR_MISMATCH, run(rank, comm, elsewhere, found));
          COLL_EXPECT(found, MEP_SUCCESS, run(rank, comm, exchange_of(rank, length), found));
        }
        COLL_OK(found, mep_barrier(comm, nullptr));
      });
  report.require_clean();
}

void test_mismatch(void**) {
  for (const uint32_t flags : {0u, kPutOnly}) {
    mismatch(5, flags);
    mismatch(100'000, flags);
  }
}

// One long block and others without any; a long one of a rank for itself; one rank alone large.
void test_skew(void**) {
  for (const uint32_t flags : {0u, kPutOnly}) {
    Report report;
    with_rank_threads(
        kSize, patient_config(flags), report, [&](int rank, mep_comm_t comm, Report& found) {
          const auto one = [](int s, int t) { return s == 2 && t == 1 ? 1'500'001u : 0u; };
          const auto own = [](int s, int t) { return s == 3 && t == 3 ? 300'001u : uint32_t(s); };
          const auto row = [](int s, int t) { return s == 0 ? 90'000u + uint32_t(t) : 3u; };
          const auto column = [](int s, int t) { return t == 0 ? 700'000u + uint32_t(s) : 0u; };
          const auto none = [](int, int) { return 0u; };
          const auto steep = [](int s, int t) { return 1u << (s * 4 + t); };
          for (int i = 0; i < 3; ++i) {
            COLL_OK(found, run(rank, comm, exchange_of(rank, one), found));
            COLL_OK(found, run(rank, comm, exchange_of(rank, own), found));
            COLL_OK(found, run(rank, comm, exchange_of(rank, row), found));
            COLL_OK(found, run(rank, comm, exchange_of(rank, column), found));
            COLL_OK(found, run(rank, comm, exchange_of(rank, none), found));
            COLL_OK(found, run(rank, comm, exchange_of(rank, steep), found));
          }
          COLL_OK(found, mep_barrier(comm, nullptr));
        });
    report.require_clean();
  }
}

// Counts whose sum is no size, and displacements behind the end of memory: nothing happens, and no number is
// used, so that the others need not know.
void test_too_large(void**) {
  Report report;
  with_rank_threads(
      kSize, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
        uint64_t data[kSize] = {};
        const uint64_t other[kSize] = {};
        const Counts half(kSize, uint64_t{1} << 58);
        const Counts whole(kSize, ~uint64_t{0});
        const Counts ones(kSize, 1);
        if (rank == 1) {
          for (const Counts& counts : {half, whole}) {
            COLL_EXPECT(
                found, MEP_ERR_INVALID_ARGUMENT,
                mep_allgatherv(other, data, counts.data(), nullptr, MEP_UINT64, comm, nullptr));
            COLL_CHECK(found, strstr(mep_last_error(), "together too large") != nullptr);
            COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT,
                        mep_alltoallv(other, data, counts.data(), nullptr, ones.data(), nullptr,
                                      MEP_UINT64, comm, nullptr));
          }
          COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT,
                      mep_alltoallv(other, data, ones.data(), whole.data(), ones.data(), nullptr,
                                    MEP_UINT8, comm, nullptr));
        }
        const uint64_t own = static_cast<uint64_t>(rank) + 1;
        COLL_OK(found, mep_allgatherv(&own, data, ones.data(), nullptr, MEP_UINT64, comm, nullptr));
        for (uint64_t i = 0; i < kSize; ++i) COLL_CHECK(found, data[i] == i + 1);
        COLL_OK(found, mep_barrier(comm, nullptr));
      });
  report.require_clean();
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(test_mismatch), cmocka_unit_test(test_skew),
                              cmocka_unit_test(test_too_large)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
