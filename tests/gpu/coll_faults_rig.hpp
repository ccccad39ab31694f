// Shared by the parts of the test of faults in stream collectives: ranks with buffers whose values are known, what an
// operation has to leave in them, and decisions, since the test plays membership.
#pragma once

#include "coll_oracle.hpp"
#include "coll_rig.hpp"

namespace gpu_test {

constexpr size_t kCount = 30'000;

// The operation that the ranks call. Elements are MEP_UINT32, reductions MEP_SUM.
struct Scene {
  Collective kind = Collective::k_allreduce;
  uint32_t root = 0;
  size_t count = kCount;  // of one block
};

constexpr uint32_t kUntouched = 0xa5a5a5a5;

// Element i of a block in a send buffer.
inline uint32_t value(uint32_t rank, size_t block, size_t i) {
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
  // A block in the receive buffer of `rank`: element i is first + i * each.
  struct Wanted {
    uint32_t first;
    uint32_t each;
  };
  Wanted wanted(uint64_t members, uint32_t rank, size_t block) const {
    using mep_reference::Content;
    const Content content =
        mep_reference::content_of(scene.kind, scene.root, rank, rig.ranks(), block);
    const bool is_copy = content.how == Content::kCopy;
    Wanted sum{0, 0};
    for (uint32_t source = 0; source < rig.ranks(); ++source) {
      if ((members >> source & 1) == 0 || (is_copy && source != content.source)) continue;
      sum.first += value(source, content.block, 0);
      sum.each += 97;
    }
    const bool is_there = content.how != Content::kNothing && sum.each != 0;
    return is_there ? sum : Wanted{kUntouched, 0};
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

inline uint64_t all_but(uint32_t ranks, uint32_t gone) {
  return ((uint64_t{1} << ranks) - 1) & ~(uint64_t{1} << gone);
}

inline CollDecision decision_of(uint64_t last_completed, uint64_t next, uint64_t live) {
  CollDecision decision{};
  decision.old_epoch = 1;
  decision.last_completed = last_completed;
  decision.epoch = 2;
  decision.next = next;
  decision.live = live;
  decision.result = MEP_ERR_PEER_FAILED;
  return decision;
}

inline bool wait_for(const std::function<bool()>& condition) {
  const double end = now_s() + 20;
  while (!condition()) {
    if (now_s() > end) return false;
  }
  return true;
}

// --- Deaths at a chosen moment, in coll_faults_deaths.cu ---

// A rank dies between its data and the confirmation that it has others', in each kind with personal data.
void deaths_in_personal_operations();
// One of two ranks dies in a long reduce, before or after its last word.
void deaths_in_one_way_reduce();

// Every kind, every root, a death at any moment: each survivor has been passed words up to some step of its own.
void any_moment(std::mt19937_64* random, double seconds);

}  // namespace gpu_test
