// Stream collectives of several ranks on one GPU against a plain reference, bit by bit: shapes from a
// printed seed (MEP_TEST_SEED replays it), poisoned outputs with guard bytes, graphs, delays.
#include "coll_oracle.hpp"
#include "coll_rig.hpp"

namespace gpu_test {
namespace {

struct Case {
  Collective kind = Collective::k_allreduce;
  mep_dtype_t dtype = MEP_FLOAT32;
  mep_op_t op = MEP_SUM;
  uint32_t root = 0;
  size_t count = 0;
  size_t send_offset = 0;  // bytes, a multiple of the element
  size_t receive_offset = 0;
  bool in_place = false;

  size_t bytes() const { return count * size_of_type(dtype); }
  std::string text() const {
    const char* names[] = {"barrier", "broadcast", "allgather", "allreduce"};
    return std::string(names[static_cast<int>(kind)]) + " dtype " + std::to_string(dtype) + " op " +
           std::to_string(op) + " root " + std::to_string(root) + " count " +
           std::to_string(count) + " at +" + std::to_string(send_offset) + " to +" +
           std::to_string(receive_offset) + (in_place ? " in place" : "");
  }
};

std::vector<uint8_t> random_bytes(std::mt19937_64* random, const Case& test) {
  std::vector<uint8_t> bytes(test.bytes());
  // Whole random patterns give NaN, infinities and denormals their share; small numbers give sums
  // that have to be rounded.
  const bool patterns = (*random)() % 3 == 0;
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = (*random)();
    std::memcpy(&bytes[i], &word, std::min<size_t>(8, bytes.size() - i));
  }
  if (patterns) return bytes;
  for (size_t i = 0; i < test.count; ++i) {
    const double value = std::ldexp(static_cast<double>((*random)() % 2001) - 1000.0, -7);
    if (test.dtype == MEP_FLOAT32) {
      const auto narrow = static_cast<float>(value);
      std::memcpy(&bytes[i * 4], &narrow, 4);
    } else if (test.dtype == MEP_FLOAT64) {
      std::memcpy(&bytes[i * 8], &value, 8);
    } else if (test.dtype == MEP_BOOL) {
      bytes[i] = static_cast<uint8_t>((*random)() % 2);
    } else if (test.dtype > MEP_UINT64) {
      const uint32_t code = encode_small(small_kind(test.dtype), static_cast<float>(value));
      std::memcpy(&bytes[i * size_of_type(test.dtype)], &code, size_of_type(test.dtype));
    }
  }
  return bytes;
}

struct Buffers {
  Buffer send, receive;
  Buffers(size_t send_bytes, size_t receive_bytes) : send(send_bytes), receive(receive_bytes) {}
};

// The members of `rig` and their buffers; runs cases and compares.
class Bench {
 public:
  Bench(Rig& rig, size_t most_bytes) : rig_(rig), most_bytes_(most_bytes) {
    for (uint32_t rank = 0; rank < rig.ranks(); ++rank) {
      buffers_.push_back(std::make_unique<Buffers>(most_bytes + 64, most_bytes * rig.ranks() + 64));
      live_.push_back(rank);
      OpStatus* status = nullptr;
      cuda(cudaMallocHost(&status, sizeof *status));
      status_.push_back(status);
    }
  }
  ~Bench() {
    for (OpStatus* status : status_) (void)cudaFreeHost(status);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  CollCall call(const Case& test, uint32_t rank) const {
    const Buffers& mine = *buffers_[rank];
    CollCall call{};
    call.kind = test.kind;
    call.dtype = test.dtype;
    call.op = test.op;
    call.root = test.root;
    call.bytes = test.bytes();
    call.send = mine.send.at(test.send_offset);
    call.receive = mine.receive.at(test.receive_offset);
    if (test.in_place) {
      const size_t own = test.kind == Collective::k_allgather ? rank * test.bytes() : 0;
      call.send = mine.receive.at(test.receive_offset + own);
    }
    call.status = {&status_[rank]->head, mep::device::kMaskWords};
    return call;
  }

  // Fills inputs and poisons outputs.
  void prepare(const Case& test, std::mt19937_64* random) {
    inputs_.assign(rig_.ranks(), {});
    for (const uint32_t rank : live_) {
      const Buffers& mine = *buffers_[rank];
      inputs_[rank] = random_bytes(random, test);
      mine.send.poison();
      mine.receive.poison();
      std::memset(status_[rank], 0, sizeof *status_[rank]);
      if (test.kind == Collective::k_barrier) continue;
      if (!test.in_place) {
        mine.send.write(test.send_offset, inputs_[rank]);
      } else {
        const size_t own = test.kind == Collective::k_allgather ? rank * test.bytes() : 0;
        mine.receive.write(test.receive_offset + own, inputs_[rank]);
      }
    }
    cuda(cudaDeviceSynchronize());
  }

  std::vector<uint8_t> expected(const Case& test, uint32_t block) const {
    if (test.kind == Collective::k_broadcast) return inputs_[test.root];
    if (test.kind == Collective::k_allgather) return inputs_[block];
    Inputs members;
    for (const uint32_t rank : live_) {
      members.push_back(inputs_[rank]);
    }
    return reduce_oracle(test.dtype, test.op, members);
  }

  void check(const Case& test, const char* where) const {
    std::vector<uint8_t> reduced;
    if (test.kind != Collective::k_allgather && test.kind != Collective::k_barrier) {
      reduced = expected(test, 0);
    }
    for (const uint32_t rank : live_) {
      const Buffers& mine = *buffers_[rank];
      GPU_CHECK(status_[rank]->head.version == MEP_OP_STATUS_VERSION &&
                    status_[rank]->head.result == MEP_SUCCESS,
                "%s, rank %u of %u: %s: status %d", where, rank, rig_.ranks(), test.text().c_str(),
                status_[rank]->head.result);
      if (test.kind == Collective::k_barrier) {
        GPU_CHECK(mine.receive.untouched_outside(0, 0), "%s, rank %u: barrier wrote", where, rank);
        continue;
      }
      const size_t span =
          test.kind == Collective::k_allgather ? test.bytes() * rig_.ranks() : test.bytes();
      GPU_CHECK(mine.receive.untouched_outside(test.receive_offset, span),
                "%s, rank %u of %u: %s: bytes outside were written", where, rank, rig_.ranks(),
                test.text().c_str());
      if (test.kind != Collective::k_allgather) {
        compare(test, where, rank, mine.receive.read(test.receive_offset, test.bytes()), reduced);
        continue;
      }
      for (const uint32_t block : live_) {
        compare(test, where, rank,
                mine.receive.read(test.receive_offset + block * test.bytes(), test.bytes()),
                inputs_[block]);
      }
    }
  }

  void run(const Case& test, std::mt19937_64* random, const char* where) {
    prepare(test, random);
    for (const uint32_t rank : live_) rig_.launch(rank, call(test, rank));
    rig_.synchronize();
    check(test, where);
  }

  Case random_case(std::mt19937_64* random) const {
    Case test;
    do {
      test.kind = static_cast<Collective>((*random)() % mep::kCollectiveCount);
    } while (mep::device::coll_path(test.kind) == mep::device::CollPath::kNone);
    do {
      test.dtype = static_cast<mep_dtype_t>(1 + (*random)() % 15);
      test.op = static_cast<mep_op_t>(1 + (*random)() % 8);
    } while (!pair_exists(test.dtype, test.op));
    test.root = live_[(*random)() % live_.size()];
    const size_t element = size_of_type(test.dtype);
    const size_t most = most_bytes_ / element;
    const size_t scale = (*random)() % 4;
    test.count = (*random)() % (scale == 0 ? 40 : scale == 1 ? std::min<size_t>(most, 5000) : most);
    if (test.kind == Collective::k_barrier) test.count = 0;
    test.send_offset = (*random)() % 3 == 0 ? (*random)() % 16 / element * element : 0;
    test.receive_offset = (*random)() % 3 == 0 ? (*random)() % 16 / element * element : 0;
    test.in_place = (*random)() % 4 == 0 && test.kind != Collective::k_broadcast;
    return test;
  }

 private:
  void compare(const Case& test, const char* where, uint32_t rank, const std::vector<uint8_t>& got,
               const std::vector<uint8_t>& wanted) const {
    if (got == wanted) return;
    size_t at = 0;
    while (got[at] == wanted[at]) ++at;
    GPU_CHECK(got == wanted, "%s, rank %u of %u: %s: byte %zu is %02x, not %02x", where, rank,
              rig_.ranks(), test.text().c_str(), at, got[at], wanted[at]);
  }

  Rig& rig_;
  size_t most_bytes_;
  std::vector<std::unique_ptr<Buffers>> buffers_;
  std::vector<uint32_t> live_;
  std::vector<OpStatus*> status_;
  std::vector<std::vector<uint8_t>> inputs_;
};

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

void matrix(uint32_t ranks, std::mt19937_64* random) {
  Rig rig(ranks, 10'000);
  const size_t whole = longest_one_shot(rig);
  Bench bench(rig, whole + 8'000);
  int cases = 0;
  for (mep_dtype_t dtype = MEP_INT8; dtype <= MEP_FLOAT8_E5M2; ++dtype) {
    for (mep_op_t op = MEP_SUM; op <= MEP_XOR; ++op) {
      if (!pair_exists(dtype, op)) continue;
      for (const size_t count : {size_t{1}, size_t{777}, (whole + 8'000) / size_of_type(dtype)}) {
        // Two ranks exchange much whole: there the long form is for one operator of each type.
        if (ranks <= 2 && count > 777 && op != MEP_MAX) continue;
        Case test;
        test.dtype = dtype;
        test.op = op;
        test.count = count;
        bench.run(test, random, "matrix");
        ++cases;
      }
    }
  }
  std::printf("  %u ranks: types and operators in both forms, %d cases\n", ranks, cases);
}

void random_shapes(uint32_t ranks, std::mt19937_64* random, double seconds, uint32_t delay_ns,
                   Places places = Places::kAsUsual) {
  Rig rig(ranks, 20'000, places);
  Bench bench(rig, 3u << 20);
  for (uint32_t rank = 0; rank < ranks; ++rank) rig.set_delay(rank, delay_ns);
  const double end = now_s() + seconds;
  int cases = 0;
  for (; now_s() < end; ++cases) bench.run(bench.random_case(random), random, "random");
  std::printf("  %u ranks: random shapes, %d cases%s%s\n", ranks, cases,
              delay_ns != 0 ? ", delays in every phase" : "",
              places == Places::kSmall ? ", small places" : "");
}

// More than the places hold at once, as the library has them, aligned and not.
void large(uint32_t ranks, std::mt19937_64* random) {
  constexpr size_t kMost = size_t{20} << 20;
  Rig rig(ranks, 20'000);
  Bench bench(rig, kMost);
  for (const size_t offset : {size_t{0}, size_t{4}}) {
    for (const Collective kind :
         {Collective::k_broadcast, Collective::k_allgather, Collective::k_allreduce}) {
      Case test;
      test.kind = kind;
      test.dtype = MEP_FLOAT32;
      test.root = ranks - 1;
      test.count = kMost / 4 - 5;
      test.send_offset = test.receive_offset = offset;
      test.in_place = offset == 0 && kind != Collective::k_broadcast;
      bench.run(test, random, "large");
    }
  }
  std::printf("  %u ranks: 20 MiB of each\n", ranks);
}

// What runs together fits on the GPU.
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

// An odd number of operations in one graph, replayed; ranks replay different graphs of the same
// operations: one captures them together, one apart, one launches them eagerly.
void graphs(uint32_t ranks, std::mt19937_64* random, int replays, double seconds) {
  Rig rig(ranks, 20'000);
  Bench bench(rig, 256u << 10);
  std::vector<Case> cases;
  for (const size_t count : {size_t{1000}, size_t{60'000}, size_t{17}, size_t{0}, size_t{33'333}}) {
    Case test;
    test.kind = count == 0       ? Collective::k_barrier
                : count == 17    ? Collective::k_broadcast
                : count > 50'000 ? Collective::k_allgather
                                 : Collective::k_allreduce;
    test.dtype = MEP_UINT32;
    test.count = count;
    test.root = ranks - 1;
    cases.push_back(test);
  }
  bench.prepare(cases[1], random);
  std::vector<std::vector<cudaGraphExec_t>> execs(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (rank % 3 == 2) continue;  // eager
    const size_t per_graph = rank % 3 == 0 ? cases.size() : 1;
    for (size_t first = 0; first < cases.size(); first += per_graph) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      cuda(cudaStreamBeginCapture(rig.stream(rank), cudaStreamCaptureModeThreadLocal));
      for (size_t i = first; i < first + per_graph; ++i)
        rig.launch(rank, bench.call(cases[i], rank));
      cuda(cudaStreamEndCapture(rig.stream(rank), &graph));
      cuda(cudaGraphInstantiate(&exec, graph, 0));
      cuda(cudaGraphUpload(exec, rig.stream(rank)));
      cuda(cudaGraphDestroy(graph));
      execs[rank].push_back(exec);
    }
  }
  rig.synchronize();
  const double end = now_s() + seconds;
  int done = 0;
  for (; done < replays && now_s() < end; ++done) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      for (const cudaGraphExec_t exec : execs[rank]) cuda(cudaGraphLaunch(exec, rig.stream(rank)));
      if (!execs[rank].empty()) continue;
      for (const Case& test : cases) rig.launch(rank, bench.call(test, rank));
    }
    if (done % 64 == 63) rig.synchronize();
  }
  rig.synchronize();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const uint64_t operations = Rig::word_of(&rig.post(rank)->done);
    GPU_CHECK(operations == static_cast<uint64_t>(done) * cases.size(),
              "rank %u has done %llu operations of %zu", rank,
              static_cast<unsigned long long>(operations), done * cases.size());
    GPU_CHECK(Rig::word_of(&rig.post(rank)->failures) == 0, "rank %u has failures", rank);
  }
  // The last of the sequence once more, with fresh data through the same graphs.
  Case last = cases.back();
  bench.prepare(last, random);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (const cudaGraphExec_t exec : execs[rank]) cuda(cudaGraphLaunch(exec, rig.stream(rank)));
    if (!execs[rank].empty()) continue;
    for (const Case& test : cases) rig.launch(rank, bench.call(test, rank));
  }
  rig.synchronize();
  for (auto& of_rank : execs) {
    for (const cudaGraphExec_t exec : of_rank) cuda(cudaGraphExecDestroy(exec));
  }
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
  const char* given = std::getenv("MEP_TEST_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  std::printf("coll_gpu_test: MEP_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  if (slice) {
    random_shapes(2, &random, 20, 0, Places::kSmall);
    graphs(2, &random, 5, 10);
    return failure_count() == 0 ? 0 : 1;
  }
  most_ctas();
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) matrix(ranks, &random);
  for (const uint32_t ranks : {2u, 3u}) large(ranks, &random);
  for (const uint32_t ranks : {1u, 2u, 3u, 4u, 8u, 16u}) {
    random_shapes(ranks, &random, soak ? 200 : 2, 0);
  }
  for (const uint32_t ranks : {2u, 8u}) random_shapes(ranks, &random, soak ? 200 : 2, 300'000);
  for (const uint32_t ranks : {2u, 3u, 8u}) {
    random_shapes(ranks, &random, soak ? 200 : 2, 0, Places::kSmall);
    random_shapes(ranks, &random, soak ? 200 : 2, 30'000, Places::kSmall);
  }
  graphs(4, &random, 100'000, soak ? 600 : 6);
  graphs(8, &random, 100'000, soak ? 600 : 6);
  std::printf(failure_count() == 0 ? "coll_gpu_test: passed\n" : "coll_gpu_test: FAILED\n");
  return failure_count() == 0 ? 0 : 1;
}
