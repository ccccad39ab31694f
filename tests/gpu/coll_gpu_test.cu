// Stream collectives of several ranks against a plain reference, bit by bit: shapes from a
// printed seed (MEP_TEST_SEED replays it), poisoned outputs with guard bytes, graphs, delays.
#include "coll_oracle.hpp"
#include "coll_rig.hpp"
#include "support/random_numbers.hpp"
#include "support/type_reference.hpp"

namespace gpu_test {
namespace {

struct Case {
  Collective kind = Collective::k_allreduce;
  mep_dtype_t dtype = MEP_FLOAT32;
  mep_op_t op = MEP_SUM;
  uint32_t root = 0;
  size_t count = 0;        // of one block
  size_t send_offset = 0;  // bytes, a multiple of the element
  size_t receive_offset = 0;
  bool in_place = false;
  bool null_elsewhere = false;  // buffers that a rank does not need are not given
  bool counted = false;         // by the form with counts, which are equal

  size_t bytes() const { return count * element_bytes(dtype); }
  Shares shares(uint32_t rank, size_t ranks) const { return shares_of(kind, rank == root, ranks); }
  bool is_in_place(uint32_t rank) const { return in_place && can_be_in_place(kind, rank == root); }
  std::string text() const {
    return std::string(mep::name_of(kind)) + " dtype " + std::to_string(dtype) + " op " +
           std::to_string(op) + " root " + std::to_string(root) + " count " +
           std::to_string(count) + " at +" + std::to_string(send_offset) + " to +" +
           std::to_string(receive_offset) + (in_place ? " in place" : "") +
           (counted ? " with counts" : "");
  }
};

// So many blocks.
std::vector<uint8_t> random_bytes(std::mt19937_64* random, const Case& test, size_t blocks) {
  std::vector<uint8_t> bytes(blocks * test.bytes());
  if ((*random)() % 3 != 0) {
    mep_reference::make_elements(test.dtype, (*random)(), blocks * test.count, bytes.data());
    return bytes;
  }
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = (*random)();
    std::memcpy(&bytes[i], &word, std::min<size_t>(8, bytes.size() - i));
  }
  return bytes;
}

struct Buffers {
  Buffer send, receive;
  Buffers(uint32_t rank, size_t send_bytes, size_t receive_bytes)
      : send(rank, send_bytes), receive(rank, receive_bytes) {}
};

// The members of `rig` and their buffers; runs cases and compares. most_bytes: of one block, and of all blocks of
// a send buffer.
class Bench {
 public:
  Bench(Rig& rig, size_t most_bytes, uint64_t live = ~uint64_t{0})
      : rig_(rig), most_bytes_(most_bytes) {
    uint64_t members = 0;
    for (uint32_t rank = 0; rank < rig.ranks(); ++rank) {
      buffers_.push_back(
          std::make_unique<Buffers>(rank, most_bytes + 64, most_bytes * rig.ranks() + 64));
      OpStatus* status = nullptr;
      cuda(cudaMallocHost(&status, sizeof *status));
      status_.push_back(status);
      if ((live >> rank & 1) == 0) continue;
      live_.push_back(rank);
      members |= uint64_t{1} << rank;
    }
    rig.set_live(members);
  }
  ~Bench() {
    for (OpStatus* status : status_) (void)cudaFreeHost(status);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const std::vector<uint32_t>& live() const { return live_; }

  // The send buffers as one piece and the receive buffers as another; all of each, or from `from` on.
  void register_buffers(size_t from) {
    std::vector<uint8_t*> sends, receives;
    for (const auto& each : buffers_) {
      sends.push_back(each->send.at(from));
      receives.push_back(each->receive.at(from));
    }
    rig_.register_memory(1, sends, most_bytes_ + 64 - from);
    rig_.register_memory(2, receives, most_bytes_ * rig_.ranks() + 64 - from);
  }

  CollCall call(const Case& test, uint32_t rank) const {
    const Buffers& mine = *buffers_[rank];
    const Shares shares = test.shares(rank, rig_.ranks());
    CollCall call{};
    call.kind = test.kind;
    call.dtype = test.dtype;
    call.op = test.op;
    call.root = test.root;
    call.bytes = test.bytes();
    const bool needs_send = shares.send != 0 || !test.null_elsewhere;
    const bool needs_receive = shares.receive != 0 || !test.null_elsewhere;
    const Buffer& source = test.is_in_place(rank) ? mine.receive : mine.send;
    call.send = needs_send ? source.at(send_offset(test, rank)) : nullptr;
    call.receive = needs_receive ? mine.receive.at(receive_offset(test, rank)) : nullptr;
    call.status = {&status_[rank]->head, mep::device::kMaskWords};
    return call;
  }

  // Fills inputs and poisons everything else. The places of several cases, which run one after the other, do not
  // overlap.
  void prepare(const std::vector<Case>& tests, std::mt19937_64* random) {
    inputs_.assign(tests.size(), Inputs(rig_.ranks()));
    for (const uint32_t rank : live_) {
      const Buffers& mine = *buffers_[rank];
      mine.send.poison();
      mine.receive.poison();
      std::memset(status_[rank], 0, sizeof *status_[rank]);
      for (size_t i = 0; i < tests.size(); ++i) {
        inputs_[i][rank] = random_bytes(random, tests[i], tests[i].shares(rank, rig_.ranks()).send);
        if (inputs_[i][rank].empty()) continue;
        const Buffer& source = tests[i].is_in_place(rank) ? mine.receive : mine.send;
        source.write(send_offset(tests[i], rank), inputs_[i][rank]);
      }
    }
    rig_.synchronize();
  }

  // Every byte of every buffer, guards too, is what it was or what has to be there now.
  void check(const std::vector<Case>& tests, const char* where) const {
    std::vector<Arrivals> arrivals;
    for (size_t i = 0; i < tests.size(); ++i) {
      const Case& test = tests[i];
      arrivals.emplace_back(test.kind, test.dtype, test.op, test.root, test.bytes(), inputs_[i],
                            live_);
    }
    for (const uint32_t rank : live_) {
      const Buffers& mine = *buffers_[rank];
      const std::string what = tests.size() == 1 ? tests[0].text() : "one after the other";
      GPU_CHECK(status_[rank]->head.version == MEP_OP_STATUS_VERSION &&
                    status_[rank]->head.result == MEP_SUCCESS,
                "%s, rank %u of %u: %s: status %d", where, rank, rig_.ranks(), what.c_str(),
                status_[rank]->head.result);
      std::vector<uint8_t> send(mine.send.whole_bytes(), Buffer::kPoison);
      std::vector<uint8_t> receive(mine.receive.whole_bytes(), Buffer::kPoison);
      for (size_t i = 0; i < tests.size(); ++i) {
        if (inputs_[i][rank].empty()) continue;
        uint8_t* image = tests[i].is_in_place(rank) ? receive.data() : send.data();
        std::memcpy(image + Buffer::kGuard + send_offset(tests[i], rank), inputs_[i][rank].data(),
                    inputs_[i][rank].size());
      }
      for (size_t i = 0; i < tests.size(); ++i) {
        uint8_t* image = receive.data() + Buffer::kGuard + receive_offset(tests[i], rank);
        const size_t blocks = tests[i].shares(rank, rig_.ranks()).receive;
        for (size_t block = 0; block < blocks; ++block) {
          (void)arrivals[i].put(rank, block, image + block * tests[i].bytes());
        }
      }
      compare(what + ", send buffer", where, rank, mine.send.read_all(), send);
      compare(what + ", receive buffer", where, rank, mine.receive.read_all(), receive);
    }
  }

  void run(const Case& test, std::mt19937_64* random, const char* where) {
    prepare({test}, random);
    for (const uint32_t rank : live_) {
      rig_.launch(rank, call(test, rank), 0, test.counted);
    }
    rig_.synchronize();
    check({test}, where);
  }

  // The most elements in a block of this kind.
  size_t most_count(Collective kind, mep_dtype_t dtype) const {
    const size_t blocks = std::max<size_t>(shares_of(kind, true, rig_.ranks()).send, 1);
    return most_bytes_ / blocks / element_bytes(dtype);
  }

  Case random_case(std::mt19937_64* random) const {
    Case test;
    do {
      test.kind = static_cast<Collective>((*random)() % mep::kCollectiveCount);
    } while (mep::device::coll_path(test.kind) == mep::device::CollPath::kNone ||
             mep::facts_of(test.kind).has_counts);
    test.counted = counted_form(test.kind) != test.kind && (*random)() % 3 == 0;
    do {
      test.dtype = static_cast<mep_dtype_t>(1 + (*random)() % 15);
      test.op = static_cast<mep_op_t>(1 + (*random)() % 8);
    } while (!pair_exists(test.dtype, test.op));
    test.root = live_[(*random)() % live_.size()];
    const size_t element = element_bytes(test.dtype);
    const size_t most = most_count(test.kind, test.dtype);
    const size_t scale = (*random)() % 4;
    test.count = (*random)() % (scale == 0 ? 40 : scale == 1 ? std::min<size_t>(most, 5000) : most);
    if (test.kind == Collective::k_barrier) test.count = 0;
    test.send_offset = (*random)() % 3 == 0 ? (*random)() % 16 / element * element : 0;
    test.receive_offset = (*random)() % 3 == 0 ? (*random)() % 16 / element * element : 0;
    test.in_place = (*random)() % 4 == 0;
    test.null_elsewhere = (*random)() % 2 == 0;
    return test;
  }

 private:
  // In place the one buffer holds all blocks, and what is one block only is this rank's among them.
  size_t send_offset(const Case& test, uint32_t rank) const {
    if (!test.is_in_place(rank)) return test.send_offset;
    const Shares shares = test.shares(rank, rig_.ranks());
    return test.receive_offset + (shares.send < shares.receive ? rank * test.bytes() : 0);
  }
  size_t receive_offset(const Case& test, uint32_t rank) const {
    if (!test.is_in_place(rank)) return test.receive_offset;
    const Shares shares = test.shares(rank, rig_.ranks());
    return test.receive_offset + (shares.receive < shares.send ? rank * test.bytes() : 0);
  }
  void compare(const std::string& what, const char* where, uint32_t rank,
               const std::vector<uint8_t>& got, const std::vector<uint8_t>& wanted) const {
    if (got == wanted) return;
    size_t at = 0;
    while (got[at] == wanted[at]) ++at;
    GPU_CHECK(got == wanted, "%s, rank %u of %u: %s: byte %zd is %02x, not %02x", where, rank,
              rig_.ranks(), what.c_str(), static_cast<ssize_t>(at) - ssize_t{Buffer::kGuard},
              got[at], wanted[at]);
  }

  Rig& rig_;
  size_t most_bytes_;
  std::vector<std::unique_ptr<Buffers>> buffers_;
  std::vector<uint32_t> live_;
  std::vector<OpStatus*> status_;
  std::vector<Inputs> inputs_;  // of each case, by rank
};

// All with data.
constexpr Collective kKinds[] = {Collective::k_broadcast,      Collective::k_allgather,
                                 Collective::k_allreduce,      Collective::k_reduce,
                                 Collective::k_gather,         Collective::k_scatter,
                                 Collective::k_reduce_scatter, Collective::k_alltoall};
// Those that `large` has in one of two forms only.
constexpr Collective kNewest[] = {Collective::k_reduce, Collective::k_gather, Collective::k_scatter,
                                  Collective::k_reduce_scatter, Collective::k_alltoall};

// The longest allreduce that is exchanged whole.
size_t longest_one_shot(const Rig& rig) {
  size_t bytes = 1;
  while (mep::device::coll_is_one_shot(rig.layout(), bytes * 2)) bytes *= 2;
  size_t more = bytes;
  for (; more != 0; more /= 2) {
    if (mep::device::coll_is_one_shot(rig.layout(), bytes + more)) bytes += more;
  }
  return bytes;
}

// A reduce is an allreduce whose result one rank writes: a type of each width, in both forms.
int matrix_of_reduce(const Rig& rig, Bench* bench, size_t most, std::mt19937_64* random) {
  int cases = 0;
  const std::pair<mep_dtype_t, mep_op_t> pairs[] = {
      {MEP_BFLOAT16, MEP_AVG}, {MEP_UINT8, MEP_XOR}, {MEP_FLOAT32, MEP_SUM}, {MEP_INT64, MEP_MIN}};
  for (const auto& [dtype, op] : pairs) {
    for (const size_t count : {size_t{777}, most / element_bytes(dtype)}) {
      Case test;
      test.kind = Collective::k_reduce;
      test.dtype = dtype;
      test.op = op;
      test.root = static_cast<uint32_t>(cases++) % rig.ranks();
      test.count = count;
      bench->run(test, random, "matrix");
    }
  }
  return cases;
}

void matrix(uint32_t ranks, std::mt19937_64* random) {
  Rig rig(ranks, 10'000);
  const size_t whole = longest_one_shot(rig);
  Bench bench(rig, whole + 8'000);
  int cases = 0;
  for (const mep_dtype_t dtype : mep_reference::kAllTypes) {
    for (mep_op_t op = MEP_SUM; op <= MEP_XOR; ++op) {
      if (!pair_exists(dtype, op)) continue;
      for (const size_t count : {size_t{1}, size_t{777}, (whole + 8'000) / element_bytes(dtype)}) {
        // Two ranks exchange much whole: there the long form is for one operator of each type.
        if (ranks <= 2 && count > 777 && op != MEP_MAX) continue;
        Case test;
        test.dtype = dtype;
        test.op = op;
        test.count = count;
        bench.run(test, random, "matrix");
        ++cases;
      }
      // The same arithmetic on each rank's block: one size, the most that fits for one operator of each type.
      Case scattered;
      scattered.kind = Collective::k_reduce_scatter;
      scattered.dtype = dtype;
      scattered.op = op;
      scattered.count = op == MEP_MAX ? bench.most_count(scattered.kind, dtype) : 777;
      bench.run(scattered, random, "matrix");
      ++cases;
    }
  }
  cases += matrix_of_reduce(rig, &bench, whole + 8'000, random);
  std::printf("  %u ranks: types and operators in both forms, %d cases\n", ranks, cases);
}

// Each kind around the borders of packets and of chunks, from odd places, in place, with the first and the last member
// as the root.
void borders(uint32_t ranks, uint64_t live, std::mt19937_64* random) {
  Rig rig(ranks, 20'000, Places::kSmall);
  const size_t slot = rig.layout().slot_bytes;
  Bench bench(rig, (3 * slot + 64) * ranks, live);
  const size_t slot_count = slot / 2, packet_count = rig.layout().packet_place_bytes / 4;
  int cases = 0;
  for (const Collective kind : kKinds) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{9}, packet_count, packet_count + 1,
                               slot_count - 1, slot_count, slot_count + 1, 3 * slot_count + 5}) {
      for (const size_t form : {0, 1, 2}) {
        if (form == 1 && !can_be_in_place(kind, true)) continue;
        if (form == 2 && has_root(kind) && bench.live().size() == 1) continue;
        Case test;
        test.kind = kind;
        test.dtype = MEP_INT16;
        test.root = form == 2 ? bench.live().front() : bench.live().back();
        test.count = count;
        test.in_place = form == 1;
        test.send_offset = form == 2 ? 6 : 0;
        test.receive_offset = form == 0 ? 0 : 2;
        test.null_elsewhere = form == 0;
        bench.run(test, random, "borders");
        ++cases;
      }
    }
  }
  std::printf("  %zu of %u ranks: around the borders of packets and chunks, %d cases\n",
              bench.live().size(), ranks, cases);
}

// `absent`: ranks that are members no more. registered: buffers are, but for their first bytes, so that a rank whose block
// begins there makes all go through windows.
void random_shapes(uint32_t ranks, std::mt19937_64* random, double seconds, uint32_t delay_ns,
                   Places places = Places::kAsUsual, uint64_t absent = 0, bool registered = false) {
  Rig rig(ranks, 20'000, places);
  Bench bench(rig, 3u << 20, ~absent);
  if (registered) bench.register_buffers(2);
  for (uint32_t rank = 0; rank < ranks; ++rank) rig.set_delay(rank, delay_ns);
  const double end = now_s() + seconds;
  int cases = 0;
  for (; now_s() < end; ++cases) {
    Case test = bench.random_case(random);
    if (registered && test.send_offset == 0 && cases % 8 != 0) test.send_offset = 16;
    if (registered && test.receive_offset == 0 && cases % 8 != 0) test.receive_offset = 16;
    bench.run(test, random, "random");
  }
  std::printf("  %zu of %u ranks: random shapes, %d cases%s%s%s\n", bench.live().size(), ranks,
              cases, delay_ns != 0 ? ", delays in every phase" : "",
              places == Places::kSmall ? ", small places" : "",
              registered ? ", registered memory" : "");
}

Case large_case(Collective kind, uint32_t ranks, size_t count, size_t offset) {
  Case test;
  test.kind = kind;
  test.dtype = MEP_FLOAT32;
  test.root = ranks - 1;
  test.count = count;
  test.send_offset = test.receive_offset = offset;
  test.in_place = offset == 0;
  return test;
}

// More than the places hold at once, as the library has them, aligned and not.
void large(uint32_t ranks, std::mt19937_64* random) {
  constexpr size_t kMost = size_t{28} << 20;
  Rig rig(ranks, 20'000);
  Bench bench(rig, kMost);
  const auto run = [&](Collective kind, size_t offset) {
    const size_t count = bench.most_count(kind, MEP_FLOAT32) - 5;
    bench.run(large_case(kind, ranks, count, offset), random, "large");
  };
  for (const size_t offset : {size_t{0}, size_t{4}}) {
    for (const Collective kind :
         {Collective::k_broadcast, Collective::k_allgather, Collective::k_allreduce}) {
      run(kind, offset);
    }
  }
  // Each of these once here, and the other way with another number of ranks.
  for (const Collective kind : kNewest) run(kind, (static_cast<uint32_t>(kind) + ranks) % 2 * 4);
  std::printf("  %u ranks: 28 MiB of each\n", ranks);
}

// All CTAs that run together fit on the GPU.
void most_ctas() {
  for (const uint32_t capacity : {1u, 16u, 108u, 132u, 264u, 10'000u}) {
    for (uint32_t ranks = 1; ranks <= std::min(capacity, 64u); ++ranks) {
      const uint32_t ctas = mep::device::most_coll_ctas(capacity, ranks);
      GPU_CHECK(ctas >= 1 && ctas * ranks <= capacity && ctas <= mep::device::kMaxCollCtas,
                "%u ranks on a GPU with room for %u blocks: %u each", ranks, capacity, ctas);
      GPU_CHECK(2 * ctas * ranks <= capacity || ctas <= 16, "%u ranks, room for %u: %u is too much",
                ranks, capacity, ctas);
    }
  }
}

// An odd number of operations whose places do not overlap.
std::vector<Case> sequence(uint32_t ranks) {
  struct Part {
    Collective kind;
    size_t count;
  };
  const Part parts[] = {{Collective::k_allreduce, 1000},      {Collective::k_allgather, 60'000},
                        {Collective::k_reduce_scatter, 2000}, {Collective::k_broadcast, 17},
                        {Collective::k_alltoall, 4001},       {Collective::k_barrier, 0},
                        {Collective::k_gather, 5003},         {Collective::k_reduce, 12'000},
                        {Collective::k_scatter, 3001},        {Collective::k_alltoall, 7},
                        {Collective::k_allreduce, 33'333}};
  std::vector<Case> cases;
  size_t send_offset = 0, receive_offset = 0;
  for (const Part& part : parts) {
    Case test;
    test.kind = part.kind;
    test.dtype = MEP_UINT32;
    test.count = part.count;
    test.root = ranks - 1;
    test.send_offset = send_offset;
    test.receive_offset = receive_offset;
    const Shares most = shares_of(part.kind, true, ranks);
    send_offset += (most.send * test.bytes() + 63) / 16 * 16;
    receive_offset += (most.receive * test.bytes() + 63) / 16 * 16;
    cases.push_back(test);
  }
  return cases;
}

// The ranks' graphs of one sequence. Rank 0 of each three captures all of it together, rank 1 each operation apart,
// rank 2 has none and launches eagerly.
class Replays {
 public:
  Replays(const Rig& rig, const Bench& bench, const std::vector<Case>& cases)
      : rig_(rig), bench_(bench), cases_(cases), execs_(rig.ranks()) {
    for (uint32_t rank = 0; rank < rig.ranks(); ++rank) {
      if (rank % 3 == 2) continue;
      const size_t per_graph = rank % 3 == 0 ? cases.size() : 1;
      for (size_t first = 0; first < cases.size(); first += per_graph) {
        capture(rank, first, per_graph);
      }
    }
    rig.synchronize();
  }
  ~Replays() {
    for (auto& of_rank : execs_) {
      for (const cudaGraphExec_t exec : of_rank) (void)cudaGraphExecDestroy(exec);
    }
  }
  Replays(const Replays&) = delete;
  Replays& operator=(const Replays&) = delete;

  void launch() const {
    for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) {
      for (const cudaGraphExec_t exec : execs_[rank]) {
        rig_.replay(rank, exec);
      }
      if (!execs_[rank].empty()) continue;
      for (const Case& test : cases_) rig_.launch(rank, bench_.call(test, rank));
    }
  }

 private:
  void capture(uint32_t rank, size_t first, size_t count) {
    execs_[rank].push_back(rig_.capture(rank, [&] {
      for (size_t i = first; i < first + count; ++i) {
        rig_.launch(rank, bench_.call(cases_[i], rank));
      }
    }));
  }

  const Rig& rig_;
  const Bench& bench_;
  const std::vector<Case>& cases_;
  std::vector<std::vector<cudaGraphExec_t>> execs_;
};

// A sequence in graphs, replayed; ranks replay different graphs of the same operations.
void graphs(uint32_t ranks, std::mt19937_64* random, int replays, double seconds) {
  Rig rig(ranks, 20'000);
  Bench bench(rig, 2u << 20);
  const std::vector<Case> cases = sequence(ranks);
  bench.prepare(cases, random);
  const Replays all(rig, bench, cases);
  const double end = now_s() + seconds;
  int done = 0;
  for (; done < replays && now_s() < end; ++done) {
    all.launch();
    if (done % 64 == 63) rig.synchronize();
  }
  rig.synchronize();
  bench.check(cases, "replayed");
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const uint64_t operations = Rig::word_of(&rig.post(rank)->done);
    GPU_CHECK(operations == static_cast<uint64_t>(done) * cases.size(),
              "rank %u has done %llu operations of %zu", rank,
              static_cast<unsigned long long>(operations), done * cases.size());
    GPU_CHECK(Rig::word_of(&rig.post(rank)->failures) == 0, "rank %u has failures", rank);
  }
  // Once more, with fresh data through the same graphs.
  bench.prepare(cases, random);
  all.launch();
  rig.synchronize();
  bench.check(cases, "replayed with fresh data");
  std::printf("  %u ranks: %d replays of %zu operations, graphs and eager launches mixed\n", ranks,
              done, cases.size());
}

}  // namespace
}  // namespace gpu_test

int main(int argc, char** argv) {
  using namespace gpu_test;
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gpu_is_there()) return kSkipped;
  const bool slice = argc > 1 && std::strcmp(argv[1], "--slice") == 0;  // under compute-sanitizer
  const bool soak = std::getenv("MEP_TEST_SOAK") != nullptr;
  std::mt19937_64 random(mep_reference::seed_of_run());
  if (slice) {
    random_shapes(2, &random, 20, 0, Places::kSmall);
    graphs(2, &random, 5, 10);
    return failure_count() == 0 ? 0 : 1;
  }
  most_ctas();
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) matrix(ranks, &random);
  borders(1, ~uint64_t{0}, &random);
  borders(2, ~uint64_t{0}, &random);
  borders(3, ~uint64_t{0}, &random);
  borders(8, ~uint64_t{0x21}, &random);
  for (const uint32_t ranks : {2u, 3u}) large(ranks, &random);
  for (const uint32_t ranks : {1u, 2u, 3u, 4u, 8u, 16u}) {
    random_shapes(ranks, &random, soak ? 200 : 2, 0);
  }
  for (const uint32_t ranks : {2u, 8u}) random_shapes(ranks, &random, soak ? 200 : 2, 300'000);
  for (const uint32_t ranks : {2u, 3u, 8u}) {
    random_shapes(ranks, &random, soak ? 200 : 2, 0, Places::kSmall);
    random_shapes(ranks, &random, soak ? 200 : 2, 30'000, Places::kSmall);
  }
  for (const uint32_t ranks : {2u, 3u, 8u}) {
    for (const uint32_t delay_ns : {0u, 30'000u}) {
      random_shapes(ranks, &random, soak ? 200 : 2, delay_ns, Places::kSmall, 0, true);
    }
  }
  random_shapes(8, &random, soak ? 200 : 1, 0, Places::kSmall, 0x92, true);
  // Some were members once.
  random_shapes(8, &random, soak ? 200 : 2, 0, Places::kAsUsual, 0x92);
  random_shapes(4, &random, soak ? 200 : 2, 30'000, Places::kSmall, 0x1);
  graphs(4, &random, 100'000, soak ? 600 : 6);
  graphs(8, &random, 100'000, soak ? 600 : 6);
  std::printf(failure_count() == 0 ? "coll_gpu_test: passed\n" : "coll_gpu_test: FAILED\n");
  return failure_count() == 0 ? 0 : 1;
}
