// labels: gate threads
// Large collectives over several hosts: their results, bit for bit those of one host; how many bytes
// and transfers go between hosts; that the end of a rank in the middle is settled like any other. Ranks
// are threads; "hosts" reach each other by put and signal, which are counted.
#include <barrier>

#include "core/coll/eager_ring.hpp"
#include "support/coll_hosts.hpp"
#include "support/coll_matrix.hpp"
#include "support/coll_numbered.hpp"
#include "support/coll_sequence.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)
using mep::TestNetwork;

constexpr size_t kChunk = size_t{256} << 10;  // bytes, of all forms over hosts

// First the ones where each host has as many ranks as any other, in rank order. Then: dealt round,
// uneven, twice round, hosts of one rank.
constexpr size_t kBlockPlacements = 4;
constexpr const char* kPlacements[] = {"0011", "00112233", "00001111", "000111", "0101",
                                       "001",  "0001111",  "00110011", "0122",   "012"};

std::vector<Case> large_kinds() {
  std::vector<Case> kinds = all_kinds();
  size_t number = 0;
  std::erase_if(kinds, [&](const Case& c) {
    if (!c.facts().has_data()) return true;
    // They reduce as an allreduce does: a share of types and operators.
    const bool is_alike = c.facts().takes_op && c.kind != Kind::k_allreduce;
    return is_alike && !soak_flag() && number++ % 7 != 0;
  });
  return kinds;
}

// Bytes next to the limits: just large, and where chunks, sections and the ring of four of them end.
std::vector<size_t> large_bytes(int size) {
  const size_t section = kChunk / static_cast<size_t>(size) / 64 * 64;
  std::vector<size_t> bytes = {16385, 20000};
  for (const size_t limit : {section, 2 * section, 4 * section, kChunk / 2, kChunk, 4 * kChunk}) {
    for (const size_t near : {limit - 8, limit, limit + 8})
      bytes.push_back(std::max(near, bytes[0]));
  }
  bytes.push_back(9 * kChunk + 24);
  return bytes;
}

size_t count_for(mep_dtype_t dtype, size_t bytes) {
  return (bytes + element_bytes(dtype) - 1) / element_bytes(dtype);
}

// Every type and operator on one placement of each sort.
bool takes(size_t place, size_t kind) {
  constexpr size_t kOthers = std::size(kPlacements) - kBlockPlacements;
  return place == kind % kBlockPlacements || place == kBlockPlacements + kind % kOthers;
}

// On each placement its share of types and operators, and some at any size. The soak run takes all at
// every size everywhere.
void run_placement(size_t place, int rank, int size, mep_comm_t comm, Report& found) {
  RandomStream random(mix(test_seed(), place));
  const std::vector<Case> kinds = large_kinds();
  const std::vector<size_t> sizes = large_bytes(size);
  const auto run = [&](Case c, size_t bytes) {
    // Many long blocks take long.
    const bool many = c.facts().gives_each_a_block() && bytes > kChunk;
    c.count = count_for(c.dtype, many ? bytes / static_cast<size_t>(size) : bytes);
    c.seed = random.bits();
    c.in_place = random.one_in(2);
    c.root = static_cast<int>(random.below(static_cast<uint64_t>(size)));
    const bool nonblocking = random.one_in(3);
    if (!found.bad()) run_case(c, rank, size, comm, nonblocking, found);
  };
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (soak_flag()) {
      for (const size_t bytes : sizes) run(kinds[i], bytes);
    } else if (takes(place, i)) {
      run(kinds[i], sizes[2 + random.below(12)]);
    }
  }
  constexpr int kAnySize = 6;
  for (int i = 0; i < kAnySize; ++i) {
    Case c = kinds[random.below(kinds.size())];
    // Reductions of small types are slow in the reference.
    const bool quick = !c.facts().takes_op || element_bytes(c.dtype) >= 4;
    run(c, sizes[quick ? random.below(sizes.size()) : random.below(14)]);
  }
  run({Kind::k_allreduce, MEP_BFLOAT16, MEP_AVG}, sizes.back());
  run({Kind::k_broadcast, MEP_UINT8}, sizes.back());
  run({Kind::k_allgather, MEP_UINT8}, sizes.back() / static_cast<size_t>(size));
}

void run_placements() {
  for (const uint32_t flags : {0u, kPutOnly}) {
    for (size_t place = 0; place < std::size(kPlacements); ++place) {
      const std::string placement = kPlacements[place];
      const int size = static_cast<int>(placement.size());
      Report report;
      with_placement(
          placement, report,
          [&](int rank, mep_comm_t comm, Report& found) {
            run_placement(place, rank, size, comm, found);
          },
          flags);
      report.require_clean();
    }
  }
}

// With delays where the library has them.
void test_results(void**) {
  enable_delays(test_seed(), 16);
  run_placements();
  enable_delays(0, 0);
}

// --- What goes between hosts ---------------------------------------------------------------------

// Expected of one operation, worked out from what the algorithms promise.
struct Traffic {
  uint64_t signals = 0;
  uint64_t puts = 0;
  std::map<std::pair<char, char>, uint64_t> bytes;  // from host, to host
};

size_t ranks_on(const std::string& placement, char host) {
  return static_cast<size_t>(std::count(placement.begin(), placement.end(), host));
}

std::string host_letters(const std::string& placement) {
  std::string letters;
  for (const char host : placement) {
    if (letters.find(host) == std::string::npos) letters += host;
  }
  return letters;
}

uint64_t pieces(uint64_t whole, uint64_t piece) {
  return (whole + piece - 1) / piece;
}

// One batch of empty contributions and one "finished" word for each ordered pair of hosts.
Traffic traffic_of_ends(const std::string& placement) {
  Traffic traffic;
  for (const char from : host_letters(placement)) {
    for (const char to : host_letters(placement)) {
      if (from == to) continue;
      traffic.signals += 2;
      traffic.puts += 1;
      traffic.bytes[{from, to}] += 8 * ranks_on(placement, from);
    }
  }
  return traffic;
}

void add_broadcast(const std::string& placement, const Case& c, Traffic* traffic) {
  const uint64_t bytes = c.count * element_bytes(c.dtype);
  const uint64_t chunks = pieces(bytes, kChunk);
  const char from = placement[static_cast<size_t>(c.root)];
  for (const char to : host_letters(placement)) {
    if (from == to) continue;
    traffic->puts += chunks;
    traffic->signals += chunks;
    traffic->bytes[{from, to}] += bytes;
    // "Taken" of two chunks at once, but for the last ones.
    if (chunks > 4) traffic->signals += (chunks - 3) / 2;
  }
}

void add_allgather(const std::string& placement, const Case& c, Traffic* traffic) {
  const uint64_t bytes = c.count * element_bytes(c.dtype);
  const uint64_t sections = pieces(bytes, kChunk / placement.size() / 64 * 64);
  for (const char from : placement) {
    for (const char to : host_letters(placement)) {
      if (from == to) continue;
      traffic->puts += sections;
      traffic->signals += sections;
      traffic->bytes[{from, to}] += bytes;
    }
  }
}

// Between neighbours: each element up as a partial sum, down as a result.
void add_allreduce(const std::string& placement, const Case& c, Traffic* traffic) {
  const std::string hosts = host_letters(placement);
  const uint64_t each = ranks_on(placement, hosts[0]);
  const uint64_t element = element_bytes(c.dtype);
  const uint64_t sum = is_float(c.dtype) && element < 4 ? 4 : element;
  const uint64_t slice = std::min(kChunk / each / element, kChunk / sum) * element / 64 * 64;
  const uint64_t chunks = pieces(c.count * element, slice * each);
  for (size_t i = 0; i + 1 < hosts.size(); ++i) {
    traffic->puts += 2 * chunks * each;
    traffic->signals += 2 * chunks * each;
    traffic->bytes[{hosts[i], hosts[i + 1]}] += c.count * sum;
    traffic->bytes[{hosts[i + 1], hosts[i]}] += c.count * element;
  }
}

// A root's long contribution, behind a line that names the call: to each other host, and nothing else.
Traffic traffic_of_long(const std::string& placement, const Case& c) {
  Traffic traffic;
  const char from = placement[static_cast<size_t>(c.root)];
  for (const char to : host_letters(placement)) {
    if (from == to) continue;
    traffic.signals += 1;
    traffic.puts += 1;
    traffic.bytes[{from, to}] += 64 + c.count * element_bytes(c.dtype);
  }
  return traffic;
}

// Where no ranks map each other.
bool is_long(const std::string& placement, const Case& c) {
  return c.kind == Kind::k_broadcast && host_letters(placement) == placement &&
         c.count * element_bytes(c.dtype) <= mep::EagerRing::kLongBytes;
}

Traffic traffic_of(const std::string& placement, const Case& c) {
  if (is_long(placement, c)) return traffic_of_long(placement, c);
  Traffic traffic = traffic_of_ends(placement);
  if (c.kind == Kind::k_broadcast) add_broadcast(placement, c, &traffic);
  if (c.kind == Kind::k_allgather) add_allgather(placement, c, &traffic);
  if (c.kind == Kind::k_allreduce) add_allreduce(placement, c, &traffic);
  return traffic;
}

void check_traffic(const std::string& placement, const Case& c, Report& found) {
  const Traffic best = traffic_of(placement, c);
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  if (TestNetwork::signals() != best.signals || TestNetwork::puts() != best.puts) {
    found.add("%s on hosts %s: %llu puts and %llu signals, not %llu and %llu", describe(c).c_str(),
              placement.c_str(), number(TestNetwork::puts()), number(TestNetwork::signals()),
              number(best.puts), number(best.signals));
  }
  for (const char from : host_letters(placement)) {
    for (const char to : host_letters(placement)) {
      const auto it = best.bytes.find({from, to});
      const uint64_t expected = it == best.bytes.end() ? 0 : it->second;
      const uint64_t counted =
          TestNetwork::bytes(static_cast<uint32_t>(from), static_cast<uint32_t>(to));
      if (counted == expected) continue;
      found.add("%s on hosts %s: %llu bytes from %c to %c, not %llu", describe(c).c_str(),
                placement.c_str(), number(counted), from, to, number(expected));
    }
  }
}

void test_traffic_is_counted(void**) {
  for (size_t place = 0; place < std::size(kPlacements); ++place) {
    const std::string placement = kPlacements[place];
    const int size = static_cast<int>(placement.size());
    const size_t each = ranks_on(placement, placement[0]);
    std::vector<Case> cases = {
        {Kind::k_broadcast, MEP_UINT8, MEP_SUM, 16385, 0, false, 1},
        {Kind::k_broadcast, MEP_INT32, MEP_SUM, 3 * kChunk / 4, size - 1, false, 2},
        {Kind::k_broadcast, MEP_UINT8, MEP_SUM, 9 * kChunk + 1, 1, false, 3},
        {Kind::k_allgather, MEP_UINT8, MEP_SUM, 16385, 0, false, 4},
        {Kind::k_allgather, MEP_UINT8, MEP_SUM, kChunk + 3, 0, true, 5},
    };
    // Whole chunks: of a part of one, slices at the end may be empty.
    if (place < kBlockPlacements) {
      cases.push_back(
          {Kind::k_allreduce, MEP_FLOAT32, MEP_SUM, 5 * kChunk / each * each / 4, 0, false, 6});
      cases.push_back({Kind::k_allreduce, MEP_BFLOAT16, MEP_AVG, 3 * kChunk / 2, 0, true, 7});
      cases.push_back({Kind::k_allreduce, MEP_FLOAT8_E4M3, MEP_MAX, kChunk, 0, false, 8});
    }
    Report report;
    std::barrier together(size);
    with_placement(placement, report, [&](int rank, mep_comm_t comm, Report& found) {
      for (const Case& c : cases) {
        COLL_OK(found, mep_barrier(comm, nullptr));
        together.arrive_and_wait();
        if (rank == 0) TestNetwork::clear_counts();
        together.arrive_and_wait();
        run_counted(c, !is_long(placement, c), rank, size, comm, together, found);
        together.arrive_and_wait();
        if (rank == 0) check_traffic(placement, c, found);
        together.arrive_and_wait();
      }
    });
    report.require_clean();
  }
}

// --- A rank ends -----------------------------------------------------------------------------------

// Rank `ending` ends inside its call `after`, or between two.
void end_one(const std::string& placement, int ending, int after, uint64_t seed) {
  const int size = static_cast<int>(placement.size());
  std::vector<Ending> endings(placement.size());
  enable_delays(seed, 8);
  Report report;
  const uint32_t flags = seed % 4 == 0 ? kPutOnly : 0;
  with_placement(
      placement, report,
      [&](int rank, mep_comm_t comm, Report& found) {
        const CallRow row{rank, size, ending, &endings[static_cast<size_t>(rank)]};
        if (rank != ending) {
          row.run(comm, found);
          return;
        }
        for (int i = 0; i < after && !found.bad(); ++i) row.call_before(i, comm, found);
        NumberedCall last(after, rank, size, ending, false);
        mep_request_t request = nullptr;
        COLL_OK(found, last.start(comm, &request));
        int32_t is_done = 0;
        for (uint64_t looks = mix(seed, 5) % 40; looks > 0 && is_done == 0; --looks) {
          COLL_OK(found, mep_request_test(&request, &is_done, nullptr));
          sched_yield();
        }
        COLL_OK(found, mep_comm_abort(comm));
        if (request != nullptr)
          (void)mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr);
        COLL_CHECK(found, request == nullptr);
      },
      flags);
  enable_delays(0, 0);
  report.require_clean();
  require_same_endings(endings.data(), size, ending);
}

void test_a_rank_ends(void**) {
  RandomStream random(test_seed());
  const size_t rounds = slice(1, 200);
  for (size_t round = 0; round < rounds; ++round) {
    for (const std::string placement : {"0011", "00112233", "0122", "0101"}) {
      for (int ending = 0; ending < static_cast<int>(placement.size()); ++ending) {
        end_one(placement, ending, static_cast<int>(random.below(6)), random.bits());
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_results),
      cmocka_unit_test(test_traffic_is_counted),
      cmocka_unit_test(test_a_rank_ends),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
