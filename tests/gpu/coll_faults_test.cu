// Faults in stream collectives: a rank that does not call, one that dies between its signals, one that
// is a hundred times slower, a wedge at any moment. No kernel hangs, no sticky error, the report is
// right, and graphs captured before go on in the next epoch. The test plays membership. It also plays the
// deaths in mid-operation: a Relay stands between a rank and the others and passes on what it likes.
//
// Kernels that lack something have to fail here: without the meeting of an epoch (MEP_MUTANT_NO_MEETING) slow_reader
// finds wrong values, without the confirmation of personal data (MEP_MUTANT_NO_CONFIRM) lacks_a_block and any_moment
// find ranks that count as done what others can never have.
#include "coll_oracle.hpp"
#include "coll_rig.hpp"
#include "kernels/cuda/coll_packets.cuh"

namespace gpu_test {
namespace {

constexpr size_t kCount = 30'000;

// What the ranks call. Elements are MEP_UINT32, reductions MEP_SUM.
struct Scene {
  Collective kind = Collective::k_allreduce;
  uint32_t root = 0;
  size_t count = kCount;  // of one block
};

constexpr uint32_t kUntouched = 0xa5a5a5a5;

// Element i of a block in a send buffer.
uint32_t value(uint32_t rank, size_t block, size_t i) {
  return (rank + 1) * 0x9e3779b1u + static_cast<uint32_t>(block + 1) * 0x01000193u +
         static_cast<uint32_t>(i) * 97;
}

struct Ranks {
  explicit Ranks(Rig& rig_, const Scene& scene_ = {}) : rig(rig_), scene(scene_) {
    for (uint32_t rank = 0; rank < rig.ranks(); ++rank) {
      uint32_t* send = nullptr;
      uint32_t* receive = nullptr;
      OpStatus* status = nullptr;
      cuda(cudaMallocHost(&send, elements() * 4));
      cuda(cudaMallocHost(&receive, elements() * 4));
      cuda(cudaMallocHost(&status, sizeof *status));
      for (size_t k = 0; k < elements(); ++k) {
        send[k] = value(rank, k / scene.count, k % scene.count);
      }
      sends.push_back(send);
      receives.push_back(receive);
      statuses.push_back(status);
    }
  }
  ~Ranks() {
    for (uint32_t* memory : sends) (void)cudaFreeHost(memory);
    for (uint32_t* memory : receives) (void)cudaFreeHost(memory);
    for (OpStatus* status : statuses) (void)cudaFreeHost(status);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  // Room for a block of each rank.
  size_t elements() const { return scene.count * rig.ranks(); }
  CollCall call(uint32_t rank) const {
    CollCall call{};
    call.kind = scene.kind;
    call.dtype = MEP_UINT32;
    call.op = MEP_SUM;
    call.root = scene.root;
    call.bytes = scene.count * 4;
    call.send = sends[rank];
    call.receive = receives[rank];
    call.status = {&statuses[rank]->head, mep::device::kMaskWords};
    return call;
  }
  void clear() const {
    for (uint32_t rank = 0; rank < rig.ranks(); ++rank) {
      std::memset(receives[rank], 0xa5, elements() * 4);
      std::memset(statuses[rank], 0, sizeof *statuses[rank]);
    }
  }
  // Of a block in the receive buffer of `rank`: element i is first + i * each.
  struct Wanted {
    uint32_t first;
    uint32_t each;
  };
  Wanted wanted(uint64_t members, uint32_t rank, size_t block) const {
    const auto copy_of = [&](size_t source, size_t sent) {
      if ((members >> source & 1) == 0) return Wanted{kUntouched, 0};
      return Wanted{value(static_cast<uint32_t>(source), sent, 0), 97};
    };
    const Collective kind = scene.kind;
    if (shares_of(kind, rank == scene.root, rig.ranks()).receive <= block) return {kUntouched, 0};
    if (kind == Collective::k_broadcast) return copy_of(scene.root, 0);
    if (kind == Collective::k_scatter) return copy_of(scene.root, rank);
    if (kind == Collective::k_alltoall) return copy_of(block, rank);
    if (!reduces(kind)) return copy_of(block, 0);
    Wanted sum{0, 0};
    for (uint32_t source = 0; source < rig.ranks(); ++source) {
      if ((members >> source & 1) == 0) continue;
      sum.first += value(source, kind == Collective::k_reduce_scatter ? rank : 0, 0);
      sum.each += 97;
    }
    return sum;
  }
  // It has succeeded with what these members gave, and nothing else was written.
  void expect(uint64_t members, uint32_t rank, const char* where) const {
    GPU_CHECK(statuses[rank]->head.result == MEP_SUCCESS, "%s: %s, rank %u: %d", where,
              mep::name_of(scene.kind), rank, statuses[rank]->head.result);
    for (size_t block = 0; block < rig.ranks(); ++block) {
      const Wanted right = wanted(members, rank, block);
      const uint32_t* got = receives[rank] + block * scene.count;
      size_t wrong = 0;
      for (size_t i = 0; i < scene.count; ++i) {
        wrong += got[i] != right.first + static_cast<uint32_t>(i) * right.each ? 1 : 0;
      }
      GPU_CHECK(wrong == 0, "%s: %s of root %u, rank %u, block %zu: %zu of %zu values are wrong",
                where, mep::name_of(scene.kind), scene.root, rank, block, wrong, scene.count);
    }
  }
  Rig& rig;
  Scene scene;
  std::vector<uint32_t*> sends, receives;
  std::vector<OpStatus*> statuses;
};

// All kinds with data.
constexpr Collective kKinds[] = {Collective::k_broadcast,      Collective::k_allgather,
                                 Collective::k_allreduce,      Collective::k_reduce,
                                 Collective::k_gather,         Collective::k_scatter,
                                 Collective::k_reduce_scatter, Collective::k_alltoall};

uint64_t all_but(uint32_t ranks, uint32_t gone) {
  return ((uint64_t{1} << ranks) - 1) & ~(uint64_t{1} << gone);
}

CollVerdict verdict_of(uint64_t n_star, uint64_t next, uint64_t live) {
  CollVerdict verdict{};
  verdict.old_epoch = 1;
  verdict.n_star = n_star;
  verdict.epoch = 2;
  verdict.next = next;
  verdict.live = live;
  verdict.result = MEP_ERR_PEER_FAILED;
  return verdict;
}

std::vector<cudaGraphExec_t> capture(const Ranks& ranks, int operations) {
  std::vector<cudaGraphExec_t> execs;
  for (uint32_t rank = 0; rank < ranks.rig.ranks(); ++rank) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cuda(cudaStreamBeginCapture(ranks.rig.stream(rank), cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < operations; ++i) ranks.rig.launch(rank, ranks.call(rank));
    cuda(cudaStreamEndCapture(ranks.rig.stream(rank), &graph));
    cuda(cudaGraphInstantiate(&exec, graph, 0));
    cuda(cudaGraphUpload(exec, ranks.rig.stream(rank)));
    cuda(cudaGraphDestroy(graph));
    execs.push_back(exec);
  }
  ranks.rig.synchronize();
  return execs;
}

bool wait_for(const std::function<bool()>& condition) {
  const double end = now_s() + 20;
  while (!condition()) {
    if (now_s() > end) return false;
  }
  return true;
}

// The last rank stops calling. The others report it, park, get the verdict, and replay their old graph
// among themselves. Operations of one rank are enqueued two deep, so one fails and the next goes on.
void stopped(uint32_t ranks, uint64_t timeout_ms, Places places, const Scene& scene = {},
             int replays = 100) {
  Rig rig(ranks, timeout_ms, places);
  Ranks members(rig, scene);
  const uint32_t gone = ranks - 1;
  const auto execs = capture(members, 1);
  members.clear();
  for (uint32_t rank = 0; rank < ranks; ++rank)
    cuda(cudaGraphLaunch(execs[rank], rig.stream(rank)));
  rig.synchronize();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    members.expect((uint64_t{1} << ranks) - 1, rank, "before");
  }
  members.clear();
  for (uint32_t rank = 0; rank < gone; ++rank) cuda(cudaGraphLaunch(execs[rank], rig.stream(rank)));
  for (uint32_t rank = 0; rank < gone; ++rank) {
    CollPost* post = rig.post(rank);
    GPU_CHECK(wait_for([&] { return Rig::word_of(&post->late_epoch) == 1; }), "no report of %u",
              rank);
    GPU_CHECK(post->late_seq == 2 && post->late_missing == uint64_t{1} << gone,
              "rank %u reports operation %llu, missing %llx", rank,
              static_cast<unsigned long long>(post->late_seq),
              static_cast<unsigned long long>(post->late_missing));
  }
  for (uint32_t rank = 0; rank < gone; ++rank) rig.wedge(rank);
  for (uint32_t rank = 0; rank < gone; ++rank) {
    GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
    GPU_CHECK(rig.post(rank)->done == 1 && rig.post(rank)->entered == 2, "rank %u: done", rank);
  }
  for (uint32_t rank = 0; rank < gone; ++rank) {
    rig.install(rank, verdict_of(1, 3, all_but(ranks, gone)));
  }
  rig.synchronize();
  for (uint32_t rank = 0; rank < gone; ++rank) {
    GPU_CHECK(members.statuses[rank]->head.result == MEP_ERR_PEER_FAILED &&
                  members.statuses[rank]->failed[0] == uint64_t{1} << gone &&
                  members.statuses[rank]->head.seq == 2 && members.statuses[rank]->head.epoch == 1,
              "rank %u: status %d, failed %llx", rank, members.statuses[rank]->head.result,
              static_cast<unsigned long long>(members.statuses[rank]->failed[0]));
  }
  for (int replay = 0; replay < replays; ++replay) {
    members.clear();
    for (uint32_t rank = 0; rank < gone; ++rank) {
      cuda(cudaGraphLaunch(execs[rank], rig.stream(rank)));
    }
    rig.synchronize();
    for (uint32_t rank = 0; rank < gone; ++rank) {
      members.expect(all_but(ranks, gone), rank, "replayed after the view change");
    }
  }
  for (const cudaGraphExec_t exec : execs) cuda(cudaGraphExecDestroy(exec));
  std::printf("  %u ranks: one stops calling %s; %d replays of the old graph without it\n", ranks,
              mep::name_of(scene.kind), replays);
}

// The view changes while nothing runs: the next operation tells it, once, and takes no number.
void between_operations(uint32_t ranks) {
  Rig rig(ranks, 5000);
  Ranks members(rig);
  const uint32_t gone = 0;
  for (uint32_t rank = 1; rank < ranks; ++rank) {
    rig.wedge(rank);
    GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
    rig.install(rank, verdict_of(0, 1, all_but(ranks, gone)));
  }
  for (const int32_t wanted : {MEP_ERR_PEER_FAILED, MEP_SUCCESS}) {
    members.clear();
    for (uint32_t rank = 1; rank < ranks; ++rank) rig.launch(rank, members.call(rank));
    rig.synchronize();
    for (uint32_t rank = 1; rank < ranks; ++rank) {
      if (wanted == MEP_SUCCESS) {
        members.expect(all_but(ranks, gone), rank, "after the news");
        GPU_CHECK(members.statuses[rank]->head.seq == 1 && members.statuses[rank]->head.epoch == 2,
                  "rank %u: seq %llu", rank,
                  static_cast<unsigned long long>(members.statuses[rank]->head.seq));
      } else {
        GPU_CHECK(members.statuses[rank]->head.result == wanted, "rank %u: %d, not the news", rank,
                  members.statuses[rank]->head.result);
      }
    }
  }
  std::printf("  %u ranks: a view change between operations is told once\n", ranks);
}

// A dying rank has served some members and not others: its words and bytes for them go astray. Who has
// them completes; the verdict says that the operation succeeds; the others take them from a member. It is the
// second operation: in the first the ranks meet, and who is not met serves nobody.
void half_served(uint32_t ranks, const Scene& scene = {}) {
  Rig rig(ranks, 2000);
  Ranks members(rig, scene);
  const uint32_t gone = ranks - 1;
  for (uint32_t rank = 0; rank < ranks; ++rank) rig.launch(rank, members.call(rank));
  rig.synchronize();
  uint8_t* nowhere = nullptr;
  cuda(cudaMalloc(&nowhere, rig.layout().window_bytes()));
  CollState state = rig.read_state(gone);
  for (uint32_t rank = 0; rank < gone; rank += 2) state.windows[rank] = nowhere;
  const uint32_t served = 1;  // as all odd ones
  GPU_CHECK(mep::device::coll_is_one_shot(rig.layout(), kCount * 4), "it goes in two steps");
  rig.write_state(gone, state);
  members.clear();
  for (uint32_t rank = 0; rank < ranks; ++rank) rig.launch(rank, members.call(rank));
  GPU_CHECK(wait_for([&] { return Rig::word_of(&rig.post(served)->done) == 2; }),
            "a served rank does not complete");
  for (uint32_t rank = 0; rank < gone; ++rank) rig.wedge(rank);
  for (uint32_t rank = 0; rank < gone; ++rank) {
    GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
    GPU_CHECK(rig.post(rank)->done == 1 + rank % 2, "rank %u has done %llu", rank,
              static_cast<unsigned long long>(rig.post(rank)->done));
  }
  for (uint32_t rank = 0; rank < gone; ++rank) {
    rig.install(rank, verdict_of(2, 3, all_but(ranks, gone)));
  }
  rig.synchronize();
  for (uint32_t rank = 0; rank < gone; ++rank) {
    members.expect((uint64_t{1} << ranks) - 1, rank, "settled");
  }
  members.clear();
  for (uint32_t rank = 0; rank < gone; ++rank) rig.launch(rank, members.call(rank));  // the news
  for (uint32_t rank = 0; rank < gone; ++rank) rig.launch(rank, members.call(rank));
  rig.synchronize();
  for (uint32_t rank = 0; rank < gone; ++rank) {
    members.expect(all_but(ranks, gone), rank, "after it");
  }
  cuda(cudaFree(nowhere));
  std::printf("  %u ranks: one dies between its signals of %s; all survivors have the same bytes\n",
              ranks, mep::name_of(scene.kind));
}

// The last rank dies after an operation that it has served. One survivor has ended that operation and goes on into
// the next epoch at once; the other still reads, in places that the next epoch uses too.
void slow_reader(uint32_t ranks) {
  Rig rig(ranks, 10'000);
  Ranks members(rig);
  const uint32_t gone = ranks - 1;
  const uint32_t reader = 1;
  GPU_CHECK(mep::device::coll_is_one_shot(rig.layout(), kCount * 4), "it goes in two steps");
  rig.set_delay(reader, 60'000'000);
  members.clear();
  for (uint32_t rank = 0; rank < ranks; ++rank) rig.launch(rank, members.call(rank));
  GPU_CHECK(wait_for([&] { return Rig::word_of(&rig.post(0)->done) == 1; }), "it does not end");
  for (uint32_t rank = 0; rank < gone; ++rank) rig.wedge(rank);
  for (uint32_t rank = 0; rank < gone; ++rank) {
    GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
  }
  for (uint32_t rank = 0; rank < gone; ++rank) {
    rig.install(rank, verdict_of(1, 2, all_but(ranks, gone)));
  }
  for (size_t i = 0; i < kCount; ++i) members.sends[0][i] = 0x55555555u;
  rig.launch(0, members.call(0));  // the news
  rig.launch(0, members.call(0));
  GPU_CHECK(wait_for([&] { return Rig::word_of(&rig.post(reader)->done) == 1; }),
            "it does not end");
  cuda(cudaStreamSynchronize(rig.stream(reader)));
  members.expect((uint64_t{1} << ranks) - 1, reader, "read while others went on");
  for (uint32_t rank = 1; rank < gone; ++rank) {
    rig.launch(rank, members.call(rank));
    rig.launch(rank, members.call(rank));
  }
  rig.synchronize();
  for (uint32_t rank = 0; rank < gone; ++rank) {
    GPU_CHECK(members.statuses[rank]->head.result == MEP_SUCCESS, "rank %u: %d", rank,
              members.statuses[rank]->head.result);
  }
}

// A wedge that comes to nothing, at random moments of a stream of operations with delays.
void lifted(uint32_t ranks, std::mt19937_64* random, double seconds, Places places) {
  Rig rig(ranks, 20'000, places);
  Ranks members(rig);
  const size_t kinds = std::size(kKinds);
  const bool small = places == Places::kSmall;
  for (uint32_t rank = 0; rank < ranks; ++rank) rig.set_delay(rank, small ? 4'000 : 40'000);
  const double end = now_s() + seconds;
  uint64_t operations = 0, wedges = 0;
  while (now_s() < end) {
    members.clear();
    members.scene.kind = kKinds[(*random)() % kinds];
    members.scene.root = static_cast<uint32_t>((*random)() % ranks);
    const int depth = 1 + static_cast<int>((*random)() % 20);
    for (int i = 0; i < depth; ++i) {
      for (uint32_t rank = 0; rank < ranks; ++rank) rig.launch(rank, members.call(rank));
    }
    operations += static_cast<uint64_t>(depth);
    for (int i = 0; i < 3; ++i) {
      const double pause = now_s() + static_cast<double>((*random)() % 300) * 1e-6;
      while (now_s() < pause) {
      }
      for (uint32_t rank = 0; rank < ranks; ++rank) rig.wedge(rank);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
        const uint64_t done = Rig::word_of(&rig.post(rank)->done);
        const double still = now_s() + 100e-6;
        while (now_s() < still) {
        }
        GPU_CHECK(Rig::word_of(&rig.post(rank)->done) == done, "rank %u went on", rank);
      }
      for (uint32_t rank = 0; rank < ranks; ++rank) rig.lift(rank);
      ++wedges;
    }
    rig.synchronize();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      members.expect((uint64_t{1} << ranks) - 1, rank, "after lifted wedges");
      GPU_CHECK(Rig::word_of(&rig.post(rank)->done) == operations, "rank %u: count", rank);
    }
  }
  std::printf("  %u ranks: %llu wedges without consequence in %llu operations%s\n", ranks,
              static_cast<unsigned long long>(wedges), static_cast<unsigned long long>(operations),
              small ? ", small places" : "");
}

// Nobody answers: the operation ends all the same, and so do later ones.
void no_verdict(uint32_t ranks) {
  Rig rig(ranks, 200);
  Ranks members(rig);
  members.clear();
  const double begin = now_s();
  rig.launch(0, members.call(0));
  rig.launch(0, members.call(0));
  rig.synchronize();
  GPU_CHECK(now_s() - begin < 15, "it took %.1f s", now_s() - begin);
  GPU_CHECK(members.statuses[0]->head.result == MEP_ERR_TIMEOUT, "status %d",
            members.statuses[0]->head.result);
  GPU_CHECK(Rig::word_of(&rig.post(0)->failures) == 2, "failures");
  std::printf("  %u ranks: without any verdict operations end, after %.1f s\n", ranks,
              now_s() - begin);
}

// One rank takes a hundred times as long as an operation: it is late, not wrong.
void slow(uint32_t ranks) {
  Rig rig(ranks, 10'000);
  Ranks members(rig);
  rig.set_delay(ranks / 2, 2'000'000);
  for (int i = 0; i < 50; ++i) {
    members.clear();
    for (uint32_t rank = 0; rank < ranks; ++rank) rig.launch(rank, members.call(rank));
    rig.synchronize();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      members.expect((uint64_t{1} << ranks) - 1, rank, "a slow rank");
    }
  }
  std::printf("  %u ranks: one a hundred times slower\n", ranks);
}

// --- Deaths at a chosen moment ------------------------------------------------------------------------

constexpr uint32_t kRows = 5 * mep::device::kMaxCollCtas;  // of signal words, in a window

struct RelayPlan {
  const uint8_t* from;
  uint8_t* to;
  CollLayout layout;
  uint32_t source;
  uint64_t end_step;
  uint64_t packet_bytes;
};

__device__ void copy_place(const RelayPlan& plan, uint64_t at, uint64_t bytes) {
  for (uint64_t i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16) {
    const uint4 pack = __ldcg(reinterpret_cast<const uint4*>(plan.from + at + i));
    __stcg(reinterpret_cast<uint4*>(plan.to + at + i), pack);
  }
}

// Packets carry their tags: those of steps before `end`, and of each place the first packet_bytes.
__device__ void copy_packets(const RelayPlan& plan, uint64_t at, uint64_t end) {
  for (uint64_t i = threadIdx.x * 16; i < CollLayout::kPacketPlaceBytes; i += blockDim.x * 16) {
    const mep::device::Packet packet = mep::device::load_packet(plan.from + at + i);
    if (packet.tag == 0 || packet.tag >= end || i >= plan.packet_bytes) continue;
    mep::device::store_packet(plan.to + at + i, packet);
  }
}

// Passes on all bytes of the source, and its words and packets of the first epoch's steps before end_step. The words
// are read first: what they speak of is among the bytes then.
__global__ void relay(RelayPlan plan) {
  __shared__ uint64_t words[kRows];
  const CollLayout& layout = plan.layout;
  const uint64_t rows = layout.exchange_row(0, 0) + plan.source * 8;
  for (uint32_t row = threadIdx.x; row < kRows; row += blockDim.x) {
    const uint8_t* word = plan.from + rows + row * CollLayout::kRowBytes;
    words[row] = mep::device::load_word(reinterpret_cast<const uint64_t*>(word));
  }
  mep::device::observe();
  __syncthreads();
  const uint64_t end = mep::device::step_tag(1, plan.end_step);
  for (uint32_t slot = 0; slot < mep::device::kCollSlots; ++slot) {
    copy_packets(plan, layout.packets(slot, plan.source), end);
    copy_place(plan, layout.slot(slot, plan.source), layout.slot_bytes);
  }
  copy_place(plan, layout.scatter_piece(plan.source, 0), layout.ctas * layout.piece_bytes);
  copy_place(plan, layout.result_piece(plan.source, 0), layout.ctas * layout.piece_bytes);
  __syncthreads();
  mep::device::publish();
  for (uint32_t row = threadIdx.x; row < kRows; row += blockDim.x) {
    if (words[row] == 0 || words[row] >= end) continue;
    uint8_t* word = plan.to + rows + row * CollLayout::kRowBytes;
    mep::device::store_word(reinterpret_cast<uint64_t*>(word), words[row]);
  }
}

// Between one rank and the windows of the others, from now on: what the rank writes lands in a shadow of each window.
class Relay {
 public:
  Relay(const Rig& rig, uint32_t source) : rig_(rig), source_(source) {
    cudaFuncAttributes
        attributes{};  // loads it: that must not happen while ranks wait for each other
    cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(relay)));
    cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    cuda(cudaMallocHost(&words_, kRows * CollLayout::kRowBytes));
    CollState state = rig.read_state(source);
    for (uint32_t rank = 0; rank < rig.ranks(); ++rank) {
      uint8_t* shadow = nullptr;
      cuda(cudaMalloc(&shadow, rig.layout().window_bytes()));
      cuda(cudaMemset(shadow, 0, rig.layout().window_bytes()));
      shadows_.push_back(shadow);
      if (rank != source) state.windows[rank] = shadow;
    }
    rig.write_state(source, state);
    cuda(cudaDeviceSynchronize());
  }
  ~Relay() {
    (void)cudaDeviceSynchronize();
    for (uint8_t* shadow : shadows_) (void)cudaFree(shadow);
    (void)cudaFreeHost(words_);
    (void)cudaStreamDestroy(stream_);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // What the rank has written so far for `to`, words and packets of steps before end_step only.
  void pass(uint32_t to, uint64_t end_step, uint64_t packet_bytes = UINT64_MAX) const {
    const RelayPlan plan{shadows_[to], rig_.window(to), rig_.layout(),
                         source_,      end_step,        packet_bytes};
    relay<<<1, 1024, 0, stream_>>>(plan);
    cuda(cudaGetLastError());
    cuda(cudaStreamSynchronize(stream_));
  }

  // Steps of the first epoch up to the last one that `source` has signalled to `to`.
  uint64_t steps_signalled(uint32_t source, uint32_t to) const {
    const CollLayout& layout = rig_.layout();
    cuda(cudaMemcpyAsync(words_, rig_.window(to) + layout.exchange_row(0, 0),
                         kRows * CollLayout::kRowBytes, cudaMemcpyDeviceToHost, stream_));
    cuda(cudaStreamSynchronize(stream_));
    constexpr uint32_t kStepBits = 48 - mep::device::kFingerprintBits;
    uint64_t most = 0;
    for (uint32_t row = 0; row < kRows; ++row) {
      const uint64_t word = words_[row * (CollLayout::kRowBytes / 8) + source];
      if (word == 0) continue;
      const uint64_t number =
          word >> mep::device::kFingerprintBits & ((uint64_t{1} << kStepBits) - 1);
      most = std::max(most, number);
    }
    return most;
  }

 private:
  const Rig& rig_;
  uint32_t source_;
  cudaStream_t stream_ = nullptr;
  uint64_t* words_ = nullptr;
  std::vector<uint8_t*> shadows_;
};

// One operation in which all are there, and then another, in which what one rank says goes through a relay. That
// rank is as dead as the relay makes it.
class Death {
 public:
  Death(uint32_t ranks, Places places, const Scene& scene, uint32_t gone)
      : rig_(ranks, 2000, places), members_(rig_, scene), gone_(gone) {
    launch_all();
    rig_.synchronize();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      members_.expect((uint64_t{1} << ranks) - 1, rank, "before");
    }
    first_step_ = rig_.read_state(0).step;
    relay_ = std::make_unique<Relay>(rig_, gone);
    launch_all();
  }

  const Relay& relay() const { return *relay_; }
  uint64_t first_step() const { return first_step_; }
  // Behind the last step that moves data, if the kind is one that is exchanged.
  uint64_t data_end() const {
    const uint64_t bytes = members_.scene.count * 4, slot = rig_.layout().slot_bytes;
    return first_step_ + std::max<uint64_t>((bytes + slot - 1) / slot, 1);
  }
  bool is_done(uint32_t rank) const { return Rig::word_of(&rig_.post(rank)->done) == 2; }

  // Membership finds out and settles it: what one survivor has done has succeeded. All survivors agree, whoever
  // has succeeded has the right bytes, and they go on without the dead one. True: it has succeeded.
  bool settle(const char* where) {
    const bool succeeds = give_verdict();
    rig_.synchronize();
    const uint64_t all = (uint64_t{1} << rig_.ranks()) - 1;
    for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) {
      if (rank == gone_) continue;
      const OpStatus& status = *members_.statuses[rank];
      if (succeeds) members_.expect(all, rank, where);
      GPU_CHECK(succeeds || status.head.result == MEP_ERR_PEER_FAILED,
                "%s: %s, rank %u: %d, but others have not succeeded", where,
                mep::name_of(members_.scene.kind), rank, status.head.result);
      GPU_CHECK(status.head.seq == 2 && status.head.epoch == 1, "%s: rank %u: operation %llu",
                where, rank, static_cast<unsigned long long>(status.head.seq));
    }
    go_on(succeeds, where);
    return succeeds;
  }

 private:
  void launch_all() const {
    members_.clear();
    for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) rig_.launch(rank, members_.call(rank));
  }
  void launch_survivors() const {
    members_.clear();
    for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) {
      if (rank != gone_) rig_.launch(rank, members_.call(rank));
    }
    rig_.synchronize();
  }
  bool give_verdict() {
    uint64_t n_star = 0;
    for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) rig_.wedge(rank);
    for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) {
      if (rank == gone_) continue;
      GPU_CHECK(rig_.acknowledged(rank), "rank %u does not park", rank);
      n_star = std::max(n_star, Rig::word_of(&rig_.post(rank)->done));
    }
    for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) {
      CollVerdict verdict = verdict_of(n_star, 3, all_but(rig_.ranks(), gone_));
      // The dead one's kernel has to end too. It learns that its world has.
      if (rank == gone_) verdict.n_star = verdict.epoch = 0;
      rig_.install(rank, verdict);
    }
    return n_star == 2;
  }
  // Among the survivors: after a success the next call tells the news, after a failure that has told them.
  void go_on(bool has_news, const char* where) {
    if (members_.scene.root == gone_) members_.scene.root = gone_ == 0 ? 1 : 0;
    if (has_news) {
      launch_survivors();
      for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) {
        GPU_CHECK(rank == gone_ || members_.statuses[rank]->head.result == MEP_ERR_PEER_FAILED,
                  "%s: rank %u: %d, not the news", where, rank,
                  members_.statuses[rank]->head.result);
      }
    }
    for (int i = 0; i < 2; ++i) {
      launch_survivors();
      for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) {
        if (rank != gone_) members_.expect(all_but(rig_.ranks(), gone_), rank, "without the dead");
      }
    }
  }

  Rig rig_;
  Ranks members_;
  uint32_t gone_;
  uint64_t first_step_ = 0;
  std::unique_ptr<Relay> relay_;
};

constexpr Collective kPersonal[] = {Collective::k_gather, Collective::k_scatter,
                                    Collective::k_reduce_scatter, Collective::k_alltoall};

// A dying rank has given its data to some, whose data is complete, and not to others, who can get theirs nowhere.
// Nobody may count it as done.
void lacks_a_block(Places places, const Scene& scene) {
  constexpr uint32_t kRanks = 4, kGone = 3, kServed = 1, kLacking = 0;
  Death death(kRanks, places, scene, kGone);
  const auto serve = [&] {
    for (uint32_t rank = 0; rank < kGone; ++rank) {
      death.relay().pass(rank, rank == kServed ? death.data_end() : death.data_end() - 1);
    }
    // It says that it has everything, or, in kernels that forget to, has ended.
    return death.relay().steps_signalled(kServed, kLacking) > death.data_end() ||
           death.is_done(kServed);
  };
  GPU_CHECK(wait_for(serve), "the served rank does not get its data");
  for (uint32_t rank = 0; rank < kGone; ++rank) {
    GPU_CHECK(!death.is_done(rank), "%s of root %u: rank %u counts as done what others lack",
              mep::name_of(scene.kind), scene.root, rank);
  }
  const bool succeeded = death.settle("one lacks a block");
  GPU_CHECK(!succeeded, "%s of root %u succeeds without a block", mep::name_of(scene.kind),
            scene.root);
}

// All survivors have everything of the dying rank, and `told` of them, a bitmap, know so of it too. If one does, it
// succeeds on all.
void dies_confirming(Places places, const Scene& scene, uint32_t told) {
  constexpr uint32_t kRanks = 4, kGone = 3;
  Death death(kRanks, places, scene, kGone);
  const auto serve = [&] {
    bool all_are_so_far = true;
    for (uint32_t rank = 0; rank < kGone; ++rank) {
      const bool is_told = (told >> rank & 1) != 0;
      death.relay().pass(rank, death.data_end() + (is_told ? 1 : 0));
      const uint32_t other = (rank + 1) % kGone;
      const bool confirms =
          death.relay().steps_signalled(rank, other) > death.data_end() || death.is_done(rank);
      all_are_so_far = all_are_so_far && (is_told ? death.is_done(rank) : confirms);
    }
    return all_are_so_far;
  };
  GPU_CHECK(wait_for(serve), "%s: survivors do not get their data", mep::name_of(scene.kind));
  const bool succeeded = death.settle("dies while it confirms");
  GPU_CHECK(succeeded == (told != 0), "%s of root %u: %u were told", mep::name_of(scene.kind),
            scene.root, told);
}

void deaths_in_personal_operations() {
  for (const Collective kind : kPersonal) {
    for (const Places places : {Places::kAsUsual, Places::kSmall}) {
      // The root: one who lacks, one who is served, the one who dies.
      for (const uint32_t root : {0u, 1u, 3u}) {
        if (root != 0 && !has_root(kind)) continue;
        const Scene scene{kind, root, places == Places::kSmall ? size_t{10'000} : size_t{20'000}};
        lacks_a_block(places, scene);
        for (const uint32_t told : {0u, 2u, 5u}) dies_confirming(places, scene, told);
      }
    }
  }
  std::printf("  4 ranks: deaths between data and confirmation, of each kind and root\n");
}

// Every kind, every root, a death at any moment: each survivor has been passed words up to some step of its own.
void any_moment(std::mt19937_64* random, double seconds) {
  const double end = now_s() + seconds;
  int deaths = 0, successes = 0;
  for (; now_s() < end; ++deaths) {
    const auto ranks = static_cast<uint32_t>(2 + (*random)() % 4);
    const auto gone = static_cast<uint32_t>((*random)() % ranks);
    Scene scene;
    scene.kind = kKinds[(*random)() % std::size(kKinds)];
    scene.root = static_cast<uint32_t>((*random)() % ranks);
    scene.count = 1 + (*random)() % ((*random)() % 2 == 0 ? 100 : 16'000);
    Death death(ranks, Places::kSmall, scene, gone);
    // Mostly so that the survivors come near the end.
    const uint64_t least = (*random)() % 4 == 0 ? death.first_step() : death.data_end() - 1;
    std::vector<uint64_t> ends, packets;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      // Words and packets have no order: any part of the packets may be there.
      packets.push_back((*random)() % 2 == 0 ? UINT64_MAX : (*random)() % (8 * scene.count + 32));
      ends.push_back(least + (*random)() % (death.data_end() + 3 - least));
    }
    const double moment = now_s() + static_cast<double>((*random)() % 2000) * 1e-6;
    do {
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        if (rank != gone) death.relay().pass(rank, ends[rank], packets[rank]);
      }
    } while (now_s() < moment);
    successes += death.settle("a death at any moment") ? 1 : 0;
  }
  std::printf("  2 to 5 ranks: %d deaths at any moment, %d operations succeeded all the same\n",
              deaths, successes);
}

// Who calls on a dead root is told so, as often as it does; that takes no number, and nothing is written.
void dead_root(uint32_t ranks) {
  Rig rig(ranks, 5000);
  Ranks members(rig, {Collective::k_allreduce, ranks - 1, 1000});
  const uint32_t gone = ranks - 1;
  for (uint32_t rank = 0; rank < gone; ++rank) {
    rig.wedge(rank);
    GPU_CHECK(rig.acknowledged(rank), "rank %u does not park", rank);
    rig.install(rank, verdict_of(0, 1, all_but(ranks, gone)));
  }
  const auto launch = [&](Collective kind) {
    members.scene.kind = kind;
    members.clear();
    for (uint32_t rank = 0; rank < gone; ++rank) rig.launch(rank, members.call(rank));
    rig.synchronize();
  };
  launch(Collective::k_allreduce);  // the news
  for (const Collective kind : kKinds) {
    if (!has_root(kind)) continue;
    launch(kind);
    for (uint32_t rank = 0; rank < gone; ++rank) {
      GPU_CHECK(members.statuses[rank]->head.result == MEP_ERR_PEER_FAILED,
                "%s of a dead root: rank %u: %d", mep::name_of(kind), rank,
                members.statuses[rank]->head.result);
      size_t written = 0;
      for (size_t i = 0; i < members.elements(); ++i) {
        written += members.receives[rank][i] != kUntouched ? 1 : 0;
      }
      GPU_CHECK(written == 0, "%s of a dead root: rank %u: %zu values were written",
                mep::name_of(kind), rank, written);
    }
  }
  launch(Collective::k_alltoall);
  for (uint32_t rank = 0; rank < gone; ++rank) {
    members.expect(all_but(ranks, gone), rank, "after calls on a dead root");
    GPU_CHECK(members.statuses[rank]->head.seq == 1 && members.statuses[rank]->head.epoch == 2,
              "rank %u: operation %llu", rank,
              static_cast<unsigned long long>(members.statuses[rank]->head.seq));
  }
  std::printf("  %u ranks: calls on a dead root\n", ranks);
}

}  // namespace
}  // namespace gpu_test

int main() {
  using namespace gpu_test;
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gpu_is_there()) return kSkipped;
  const char* given = std::getenv("MEP_TEST_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  std::printf("coll_faults_test: MEP_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (const uint32_t ranks : {2u, 4u, 8u}) stopped(ranks, 300, Places::kAsUsual);
  for (const uint32_t ranks : {2u, 4u}) stopped(ranks, 300, Places::kSmall);
  for (const uint32_t ranks : {2u, 4u, 8u}) between_operations(ranks);
  for (const Collective kind : kKinds) {
    if (kind == Collective::k_allreduce) continue;
    stopped(3, 200, Places::kAsUsual, {kind, 0, 2000}, 20);
  }
  for (const uint32_t ranks : {2u, 4u}) dead_root(ranks);
  half_served(3);
  for (const size_t count : {size_t{2000}, kCount}) {
    half_served(3, {Collective::k_allgather, 0, count});
    for (const uint32_t root : {0u, 1u}) half_served(3, {Collective::k_reduce, root, count});
  }
  half_served(3, {Collective::k_allreduce, 0, 2000});
  deaths_in_personal_operations();
  any_moment(&random, std::getenv("MEP_TEST_SOAK") != nullptr ? 300 : 5);
  for (int i = 0; i < 5; ++i) slow_reader(3);
  std::printf("  3 ranks: one reads while another begins the next epoch\n");
  for (const uint32_t ranks : {2u, 8u}) lifted(ranks, &random, 3, Places::kAsUsual);
  for (const uint32_t ranks : {2u, 8u}) lifted(ranks, &random, 2, Places::kSmall);
  no_verdict(2);
  slow(4);
  // Whatever happened, the context is sound.
  cuda(cudaDeviceSynchronize());
  std::printf(failure_count() == 0 ? "coll_faults_test: passed\n" : "coll_faults_test: FAILED\n");
  return failure_count() == 0 ? 0 : 1;
}
