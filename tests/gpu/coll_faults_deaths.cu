// Deaths in the middle of a stream collective, at a chosen moment: a Relay stands between a rank and the others and
// passes on what it likes of what that rank writes.
//
// Kernels that lack something have to fail here: without the confirmation of personal data (MEP_MUTANT_NO_CONFIRM)
// lacks_a_block and any_moment find ranks that count as done what others can never have.
#include "coll_faults_rig.hpp"
#include "kernels/cuda/coll/packets.cuh"

namespace gpu_test {
namespace {

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
  for (uint64_t i = threadIdx.x * 16; i < plan.layout.packet_place_bytes; i += blockDim.x * 16) {
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
    words[row] = mep::device::load_word_acquire(reinterpret_cast<const uint64_t*>(word));
  }
  __syncthreads();
  const uint64_t end = mep::device::step_tag(1, plan.end_step);
  for (uint32_t slot = 0; slot < mep::device::kCollSlots; ++slot) {
    copy_packets(plan, layout.packets(slot, plan.source), end);
    copy_place(plan, layout.slot(slot, plan.source), layout.slot_bytes);
  }
  copy_place(plan, layout.scatter_piece(plan.source, 0), layout.ctas * layout.piece_bytes);
  copy_place(plan, layout.result_piece(plan.source, 0), layout.ctas * layout.piece_bytes);
  __syncthreads();
  for (uint32_t row = threadIdx.x; row < kRows; row += blockDim.x) {
    if (words[row] == 0 || words[row] >= end) continue;
    uint8_t* word = plan.to + rows + row * CollLayout::kRowBytes;
    mep::device::store_word_release(reinterpret_cast<uint64_t*>(word), words[row]);
  }
}

// Between one rank and the windows of the others, from now on: what the rank writes lands in a shadow of each window.
class Relay {
 public:
  Relay(const Rig& rig, uint32_t source) : rig_(rig), source_(source) {
    use_gpu_of(source);
    cudaFuncAttributes
        attributes{};  // loads it: that must not happen while ranks wait for each other
    cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(relay)));
    cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    cuda(cudaMallocHost(&words_, kRows * CollLayout::kRowBytes));
    CollState state = rig.read_state(source);
    for (uint32_t rank = 0; rank < rig.ranks(); ++rank) {
      shadows_.push_back(rig.make_window(source));
      if (rank != source) state.windows[rank] = shadows_[rank];
    }
    rig.write_state(source, state);
    rig.synchronize();
  }
  ~Relay() {
    rig_.synchronize();
    for (uint8_t* shadow : shadows_) (void)cudaFree(shadow);
    (void)cudaFreeHost(words_);
    (void)cudaStreamDestroy(stream_);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Passes on what the rank has written so far for `to`, words and packets of steps before end_step only.
  void pass(uint32_t to, uint64_t end_step, uint64_t packet_bytes = UINT64_MAX) const {
    const RelayPlan plan{shadows_[to], rig_.window(to), rig_.layout(),
                         source_,      end_step,        packet_bytes};
    use_gpu_of(source_);
    mep::device::launch_kernel(relay, 1, 1024, 0, stream_, plan);
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
    const bool succeeds = give_decision();
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
  bool give_decision() {
    uint64_t last_completed = 0;
    for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) rig_.freeze(rank);
    for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) {
      if (rank == gone_) continue;
      GPU_CHECK(rig_.acknowledged(rank), "rank %u does not park", rank);
      last_completed = std::max(last_completed, Rig::word_of(&rig_.post(rank)->done));
    }
    for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) {
      CollDecision decision =
          decision_of(last_completed, last_completed + 2, all_but(rig_.ranks(), gone_));
      // The dead one's kernel has to end too. It learns that its world has.
      if (rank == gone_) decision.last_completed = decision.epoch = 0;
      rig_.install(rank, decision);
    }
    return last_completed == 2;
  }
  // Among the survivors: after a success the next call tells the report, after a failure that has told them.
  void go_on(bool has_news, const char* where) {
    if (members_.scene.root == gone_) members_.scene.root = gone_ == 0 ? 1 : 0;
    if (has_news) {
      launch_survivors();
      for (uint32_t rank = 0; rank < rig_.ranks(); ++rank) {
        GPU_CHECK(rank == gone_ || members_.statuses[rank]->head.result == MEP_ERR_PEER_FAILED,
                  "%s: rank %u: %d, not the report", where, rank,
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

}  // namespace

void deaths_in_personal_operations() {
  for (const Collective kind : kPersonal) {
    for (const Places places : {Places::kAsUsual, Places::kSmall}) {
      // The root: one who lacks, one who is served, the one who dies.
      for (const uint32_t root : {0u, 1u, 3u}) {
        if (root != 0 && !has_root(kind)) continue;
        // One goes in packets, one does not.
        for (const size_t count : {size_t{1000}, size_t{20'000}}) {
          if (places == Places::kSmall && count < 10'000) continue;
          const Scene scene{kind, root, places == Places::kSmall ? count / 2 : count};
          lacks_a_block(places, scene);
          for (const uint32_t told : {0u, 2u, 5u}) dies_confirming(places, scene, told);
        }
      }
    }
  }
  std::printf("  4 ranks: deaths between data and confirmation, of each kind and root\n");
}

// A long reduce of two ranks goes to the root alone. The survivor has succeeded if the other's last word came: the
// root has all bytes then, and the other one needs none.
void deaths_in_one_way_reduce() {
  for (const uint32_t gone : {0u, 1u}) {
    for (const bool has_last : {true, false}) {
      Death death(2, Places::kSmall, {Collective::k_reduce, 0, 10'000}, gone);
      const uint32_t left = 1 - gone;
      const auto serve = [&] {
        death.relay().pass(left, death.data_end() - (has_last ? 0 : 1));
        return has_last ? death.is_done(left)
                        : death.relay().steps_signalled(left, gone) >= death.data_end();
      };
      GPU_CHECK(wait_for(serve), "reduce: rank %u does not get to its last step", left);
      GPU_CHECK(death.is_done(left) == has_last, "reduce: rank %u is done without a word", left);
      GPU_CHECK(death.settle("one of two dies in a reduce") == has_last,
                "reduce without rank %u, its last word %s", gone, has_last ? "there" : "missing");
    }
  }
  std::printf("  2 ranks: deaths in a reduce that goes one way\n");
}

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

}  // namespace gpu_test
