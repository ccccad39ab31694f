// A call tells of a queue that the adapter ends with an error, and ends if nothing completes: on played GPUs, through the C ABI.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_on_host/adapters.hpp"
#include "cuda_on_host/runtime.hpp"
#include "ep_device_rig.hpp"

namespace {

using namespace ep_device;
using mep::test::played_fabric;

constexpr uint32_t kLimitMs = 1000;  // of an operation

// Communicators of two ranks, whose adapters have passed the test at the start. Queues that are made then have the faults.
std::vector<mep_comm_t> open_before(const mep::gpu_queue::QueueFaults& faults, uint32_t limit_ms) {
  played_fabric().faults = {};
  std::vector<mep_comm_t> comms = open_comms(2, true, limit_ms);
  played_fabric().faults = faults;
  mep_reach_t reach[2];
  mep_comm_info_t info;
  mep_comm_info_defaults(&info);
  info.reach = reach;
  info.capacity = 2;
  need(mep_comm_query(comms[0], &info), "mep_comm_query");
  GPU_CHECK(reach[1] == MEP_REACH_ADAPTER, "rank 1 is reached by way %u", reach[1]);
  return comms;
}

// By rank: of the operations that begin together.
struct Told {
  mep_result_t status, result;
  std::string text;
};
std::vector<Told> dispatch_all(Group& group) {
  for (uint32_t i = 0; i < group.s.ranks; ++i) {
    mep_result_t called = MEP_SUCCESS;
    // A call that meets a new view tells of the last one alone.
    for (int tries = 0; tries < 2; ++tries) {
      called = group.dispatch(i, 0, 0, Halves::kBoth);
      if (called == MEP_SUCCESS) break;
    }
    need(called, "mep_dispatch");
  }
  group.synchronize();
  std::vector<Told> told;
  for (Rank& r : group.ranks) {
    const mep_result_t result = mep_comm_async_result(r.comm);
    told.push_back({static_cast<mep_result_t>(r.statuses[0].head.result), result,
                    result == MEP_SUCCESS ? "" : mep_last_error()});
    std::printf("    %s: %s\n", mep_result_string(told.back().status), told.back().text.c_str());
  }
  return told;
}

void expect_text(const Told& told, uint32_t other, const char* what) {
  const std::string queue = "the queue to rank " + std::to_string(other) + " has an error at";
  GPU_CHECK(told.text.find(queue) != std::string::npos && told.text.find(what) != std::string::npos,
            "\"%s\" lacks \"%s\"", told.text.c_str(), what);
}

// The last request of the first dispatch of both ranks fails, a word that both wait for until their time is over. The
// next dispatch meets the error itself.
void says_what_failed(uint8_t syndrome, mep_result_t result, const char* what) {
  std::printf("  syndrome 0x%02x\n", syndrome);
  mep::gpu_queue::QueueFaults faults;
  faults.fails_at = 2;
  faults.syndrome = syndrome;
  Group group({2, false}, open_before(faults, kLimitMs), 0);
  for (const mep_result_t wanted : {mep_result_t{MEP_ERR_TIMEOUT}, result}) {
    const std::vector<Told> told = dispatch_all(group);
    int found = 0;
    for (uint32_t i = 0; i < 2; ++i) {
      if (told[i].status != wanted) continue;
      ++found;
      expect_text(told[i], 1 - i, what);
      GPU_CHECK(told[i].result == wanted, "rank %u: %s", i, mep_result_string(told[i].result));
    }
    GPU_CHECK(found != 0, "no rank has %s", mep_result_string(wanted));
  }
}

// Words arrive. The first dispatch of a view waits for completions of what was posted before.
void ends_at_its_deadline() {
  std::printf("  no completions\n");
  mep::gpu_queue::QueueFaults faults;
  faults.never_completes = true;
  Group group({2, false}, open_before(faults, 2 * kLimitMs), 0);  // the first has to be in time
  for (const Told& told : dispatch_all(group)) {
    GPU_CHECK(told.status == MEP_SUCCESS, "%s", mep_result_string(told.status));
  }
  need(group.dispatch(0, 0, 0, Halves::kBoth), "mep_dispatch of one rank");
  group.synchronize();
  GPU_CHECK(group.ranks[0].statuses[0].head.result == MEP_ERR_TIMEOUT, "no new view");
  int found = 0;
  for (const Told& told : dispatch_all(group)) found += told.status == MEP_ERR_TIMEOUT ? 1 : 0;
  GPU_CHECK(found != 0, "no rank has MEP_ERR_TIMEOUT");
  // Else their objects would wait for completions, too.
  for (const Rank& r : group.ranks) need(mep_comm_abort(r.comm), "mep_comm_abort");
}

void moves_rows(Group& group, const Reference& ref, const char* where) {
  group.upload(ref);
  for (uint32_t round = 0; round < 4; ++round) {
    group.poison();
    for (uint32_t i = 0; i < group.s.ranks; ++i) group.enqueue(i, ref, round % 2, false, true);
    group.synchronize();
    group.compare(ref, where);
  }
  group.expect_no_failure(where);
}

// Memory that the adapter refuses is on the host instead, each object by itself; rows arrive either way.
void places_memory(uint32_t refuse_every, bool takes_addresses) {
  const Shape s{2, false};
  const std::vector<mep_comm_t> comms = open_before({}, 20 * kLimitMs);
  mep::test::GpuMemory& memory = played_fabric().gpu_memory;
  memory = {refuse_every, takes_addresses};
  const Reference ref = on_hosts(s, s.ranks, refuse_every);
  Group group(s, comms, 0);
  memory.refuse_every = 0;
  const uint32_t objects = 2 * 2 * s.ranks;  // inbox and outbox of each buffer
  const uint32_t refused = refuse_every == 0 ? 0 : objects / refuse_every;
  std::printf("  memory of GPUs: %u by dmabuf, %u by address of %u\n", memory.by_dmabuf,
              memory.by_address, objects);
  GPU_CHECK(memory.by_dmabuf == objects - refused, "%u of %u refused", refused, objects);
  GPU_CHECK(memory.by_address == (takes_addresses ? refused : 0), "%u of %u refused", refused,
            objects);
  moves_rows(group, ref, "memory of GPUs");
}

// GPUs ring the adapters themselves where their stores arrive, else a thread does.
void rings(cuda_on_host::IoMemory how, bool by_gpus) {
  const Shape s{2, false};
  cuda_on_host::IoPages& pages = cuda_on_host::io_pages();
  pages.how = how;
  const Reference ref = on_hosts(s, s.ranks, 1);
  {
    Group group(s, open_before({}, 20 * kLimitMs), 0);
    std::printf("  pages of doorbells that GPUs have: %d\n", pages.mapped.load());
    GPU_CHECK((pages.mapped != 0) == by_gpus, "%d pages of doorbells", pages.mapped.load());
    moves_rows(group, ref, "doorbells");
  }
  GPU_CHECK(pages.mapped == 0, "%d pages are left", pages.mapped.load());
  pages.how = cuda_on_host::IoMemory::kWorks;
}

// Ranks 0 and 1 lose rank 2 and make no EP call since, so that its place has no new queues, for which its replacement waits.
class Joined {
 public:
  static constexpr uint32_t kRanks = 3;

  Joined() : comms(kRanks) {
    in_threads(kRanks, [&](uint32_t rank) {
      const mep_comm_config_t config = config_of(rank, false);
      need(mep_comm_init(&config, &comms[rank]), "mep_comm_init");
    });
    in_threads(2, [&](uint32_t i) {
      const std::vector<mep_comm_t> own(comms.begin() + (i == 0 ? 0 : 2),
                                        comms.begin() + (i == 0 ? 2 : 3));
      (i == 0 ? members : lost_) = std::make_unique<Group>(Shape{kRanks, false}, own, i * 2);
    });
  }
  void lose() {
    need(mep_comm_abort(comms[2]), "mep_comm_abort");
    lost_.reset();
    await_live(2);
  }
  // `condition` comes about while it waits.
  template <typename Condition>
  void start(const Condition& condition) {
    joiner_ = std::thread([&] {
      const mep_comm_config_t config = config_of(2, true);
      need(mep_comm_join(&config, &joined_), "mep_comm_join");
    });
    await(condition);
  }
  // By the first ranks, each of which counts itself in *inside before.
  void recover(uint32_t ranks, std::atomic<uint32_t>* inside) {
    in_threads(ranks, [&](uint32_t rank) {
      const int32_t lost = 2;
      int32_t admitted = 0;
      ++*inside;
      need(mep_recover_ranks(comms[rank], &lost, 1, 20 * kLimitMs, &admitted), "mep_recover_ranks");
      GPU_CHECK(admitted == 1, "%d joiners", admitted);
    });
  }
  void end() {
    joiner_.join();
    need(mep_comm_destroy(joined_), "mep_comm_destroy");
  }
  void admit(uint32_t ranks) {
    std::atomic<uint32_t> inside{0};
    recover(ranks, &inside);
    end();
  }
  void await_live(int32_t live) const {
    await([&] {
      int32_t now = 0;
      need(mep_comm_live_count(comms[0], &now), "mep_comm_live_count");
      return now == live;
    });
  }

  std::vector<mep_comm_t> comms;
  std::unique_ptr<Group> members;

 private:
  template <typename Condition>
  static void await(const Condition& condition) {
    while (!condition()) std::this_thread::yield();
  }
  mep_comm_config_t config_of(uint32_t rank, bool joins) const {
    mep_comm_config_t config = comm_config(true, 20 * kLimitMs);
    config.flags |= MEP_COMM_SET_RANK;
    config.rank = static_cast<int32_t>(rank);
    config.size = joins ? 0 : static_cast<int32_t>(kRanks);
    config.job = job_.c_str();
    config.heartbeat_ms = 20;
    return config;
  }

  std::unique_ptr<Group> lost_;
  const std::string job_ = "joins" + std::to_string(getpid());
  std::thread joiner_;
  mep_comm_t joined_ = nullptr;
};

// A member is lost while a joiner waits for the address of its queue. The joiner comes in.
void joins_without_a_member() {
  Joined joined;
  joined.lose();
  GPU_CHECK(joined.members->dispatch(0, 0, 0, Halves::kBoth) == MEP_ERR_PEER_FAILED, "no loss");
  const auto connected = [] {
    mep::test::ModelFabric& fabric = played_fabric();
    const std::lock_guard lock(fabric.mutex);
    return std::count_if(fabric.pairs.begin(), fabric.pairs.end(), [](const auto& pair) {
      return pair.state == mep::test::PairState::kSends && pair.remote_number != pair.number;
    });
  };
  const auto before = connected();
  joined.start([&] { return connected() > before; });  // to rank 0: the next queue goes to rank 1
  need(mep_comm_abort(joined.comms[1]), "mep_comm_abort");
  joined.await_live(1);
  joined.admit(1);
  std::printf("  a joiner comes in without a member that is lost meanwhile\n");
}

// Members destroy an EP object that a joiner has heard of, and waits for the addresses of its queues. The joiner comes in.
void joins_without_an_object() {
  Joined joined;
  joined.lose();
  const auto made = [] {
    const std::lock_guard lock(played_fabric().mutex);
    return played_fabric().gpu_memory.by_dmabuf;
  };
  const uint32_t before = made();
  joined.start([&] { return made() == before + 4; });  // of two buffers
  in_threads(2, [&](uint32_t rank) {
    Rank& r = joined.members->ranks[rank];
    for (mep_ep_handle_t& handle : r.handles) {
      need(mep_ep_handle_destroy(std::exchange(handle, nullptr)), "mep_ep_handle_destroy");
    }
    need(mep_ep_destroy(std::exchange(r.ep, nullptr)), "mep_ep_destroy");
  });
  joined.admit(2);
  std::printf("  a joiner comes in without an object that is destroyed meanwhile\n");
}

// Members are inside mep_recover_ranks when they lose the rank.
void joins_as_a_rank_is_lost() {
  Joined joined;
  std::atomic<uint32_t> inside{0};
  std::thread loses([&] {
    while (inside != 2) std::this_thread::yield();
    joined.lose();
    joined.start([] { return true; });
  });
  joined.recover(2, &inside);
  loses.join();
  joined.end();
  std::printf("  a joiner comes in for a rank that is lost meanwhile\n");
}

}  // namespace

int main() {
  joins_as_a_rank_is_lost();
  joins_without_a_member();
  joins_without_an_object();
  rings(cuda_on_host::IoMemory::kWorks, true);
  rings(cuda_on_host::IoMemory::kRefused, false);
  rings(cuda_on_host::IoMemory::kLost, false);
  places_memory(0, false);
  places_memory(1, false);
  places_memory(3, false);
  places_memory(3, true);
  says_what_failed(0x15, MEP_ERR_PEER_FAILED, "syndrome 0x15 (the other end does not answer");
  says_what_failed(0x13, MEP_ERR_DEVICE, "syndrome 0x13 (no access to the memory of the other end");
  says_what_failed(0x04, MEP_ERR_DEVICE, "syndrome 0x04 (no access to the local memory");
  says_what_failed(0x05, MEP_ERR_PEER_FAILED, "syndrome 0x05 (flushed");
  ends_at_its_deadline();
  std::printf(failure_count() == 0 ? "queue_errors_test: passed\n" : "queue_errors_test: FAILED\n");
  return failure_count() == 0 ? 0 : 1;
}
