// The choice between mapped and staged when a comm gets its device side, the same on all ranks; EP objects
// follow it.
#include <algorithm>
#include <vector>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/cuda/device_comm.hpp"
#include "core/cuda/device_ep.hpp"
#include "core/cuda/staged_comm.hpp"
#include "core/cuda/staged_ep.hpp"
#include "core/staged/reach.hpp"

namespace mep {
namespace {

constexpr int64_t kDone = 0;
constexpr int64_t kCannotMap = 1;  // errors are negative

// By rank.
template <class Value>
mep_result_t gather(Comm& comm, const Value& own, std::vector<Value>* all) {
  all->assign(comm.size(), Value{});
  return comm.run(Collective::k_allgather, {&own, all->data(), sizeof own, MEP_UINT8, MEP_SUM, 0});
}

mep_result_t own_facts(const Comm& comm, int32_t device, ReachFacts* facts) {
  bool forced = false;
  MEP_TRY(read_reach_setting(&forced));
  DeviceFacts about;
  MEP_TRY(describe_device(device, &about));
  const PeerIdentity& self = comm.world().identity();
  *facts = {self.host, self.process_token, forced ? 1u : 0u, {about.uuid[0], about.uuid[1]}};
  return MEP_SUCCESS;
}

// What an error says about mapping; others are errors of the call.
int64_t verdict_on(mep_result_t result) {
  switch (result) {
    case MEP_SUCCESS:
      return kDone;
    case MEP_ERR_DEVICE:       // a descriptor that cannot be taken
    case MEP_ERR_UNSUPPORTED:  // too many ranks, or blocks, for the kernels
    case MEP_ERR_MISMATCH:     // another kind of GPU
    case MEP_ERR_SYSTEM:
      return kCannotMap;
    default:
      return result;
  }
}

// All learn whether all are through a step; if not, but none has failed, *why says who could not map.
mep_result_t agree(Comm& comm, mep_result_t own, const char* step, std::string* why) {
  const std::string text = own == MEP_SUCCESS ? "" : last_error_text();
  std::vector<int64_t> all;
  MEP_TRY(gather(comm, verdict_on(own), &all));
  if (is_error(own) && verdict_on(own) != kCannotMap) return fail(own, "%s", text.c_str());
  for (const uint32_t rank : comm.latest_view()->live) {
    if (all[rank] >= 0) continue;
    const auto result = static_cast<mep_result_t>(all[rank]);
    return fail(result, "rank %u could not %s: %s", rank, step, mep_result_string(result));
  }
  if (!text.empty()) *why = text;
  for (const uint32_t rank : comm.latest_view()->live) {
    if (all[rank] == kDone || !why->empty()) continue;
    *why = "rank " + std::to_string(rank) + " could not " + step;
  }
  return MEP_SUCCESS;
}

mep_result_t open_mapped(DeviceComm& mapped, int32_t device, std::span<const ReachFacts> facts) {
  for (const ReachFacts& each : facts) {
    if (may_reach(device, {each.device[0], each.device[1]})) continue;
    return fail(MEP_ERR_UNSUPPORTED, "GPU %d cannot reach the memory of a peer's GPU", device);
  }
  return mapped.open();
}

mep_result_t make_staged(Comm& comm, int32_t device, uint32_t ranks_in_process,
                         std::unique_ptr<DeviceSide>* out) {
  auto staged = std::make_unique<StagedComm>(comm, device, ranks_in_process);
  MEP_TRY(staged->open());
  *out = std::move(staged);
  return MEP_SUCCESS;
}

}  // namespace

mep_result_t make_device_side(Comm& comm, int32_t device, uint32_t ranks_in_process,
                              DeviceMaker maker, std::unique_ptr<DeviceSide>* out) {
  ReachFacts own;
  MEP_TRY(own_facts(comm, device, &own));
  // One thread for all: they are in this process, on this GPU.
  std::vector<ReachFacts> facts{own};
  std::vector<uint32_t> ranks{comm.rank()};
  if (maker == DeviceMaker::kEachRank) {
    std::vector<ReachFacts> all;
    MEP_TRY(gather(comm, own, &all));
    ranks = comm.latest_view()->live;
    facts.clear();
    for (const uint32_t rank : ranks) facts.push_back(all[rank]);
  }
  const ReachChoice choice = choose_reach(facts, ranks);
  // Of one process, siblings that a split makes at the same time share the GPU, too.
  const auto threads =
      static_cast<uint32_t>(std::count_if(facts.begin(), facts.end(), [&](const ReachFacts& each) {
        return each.process == own.process;
      }));
  const uint32_t sharing = choice.one_process ? ranks_in_process : threads;
  if (choice.staged) {
    log(LogLevel::kInfo, "comm %s: GPUs go through host memory: %s", comm.name().c_str(),
        choice.why.c_str());
    return make_staged(comm, device, sharing, out);
  }
  auto mapped = std::make_unique<DeviceComm>(comm, device, sharing);
  const mep_result_t opened = open_mapped(*mapped, device, facts);
  std::string why;
  if (maker == DeviceMaker::kOneThread) {
    MEP_TRY(opened);
  } else {
    MEP_TRY(agree(comm, opened, "prepare its GPU to be mapped", &why));
    if (why.empty()) {
      const mep_result_t met = mapped->connect(Deadline::after_ms(comm.timeout_ms()));
      MEP_TRY(agree(comm, met, "map the GPU memory of its peers", &why));
    }
  }
  if (why.empty()) {
    log(LogLevel::kInfo, "comm %s: GPUs are mapped", comm.name().c_str());
    *out = std::move(mapped);
    return MEP_SUCCESS;
  }
  log(LogLevel::kWarn, "comm %s: GPUs go through host memory, which is slower: %s",
      comm.name().c_str(), why.c_str());
  mapped.reset();
  return make_staged(comm, device, sharing, out);
}

template <class Ep, class Side>
static mep_result_t make_ep(Comm& comm, Side& side, const EpShape& shape,
                            const EpDeviceOptions& options, const char* name,
                            std::unique_ptr<EpDevice>* out) {
  auto made = std::make_unique<Ep>(comm, side, shape, options);
  MEP_TRY(made->open(name));
  *out = std::move(made);
  return MEP_SUCCESS;
}

mep_result_t make_ep_device(Comm& comm, DeviceSide& side, const EpShape& shape,
                            const EpDeviceOptions& options, const char* name,
                            std::unique_ptr<EpDevice>* out) {
  MEP_TRY(check_ep_device(comm, shape));
  if (!side.staged()) return make_ep<DeviceEp>(comm, side, shape, options, name, out);
  return make_ep<StagedEp>(comm, static_cast<StagedComm&>(side), shape, options, name, out);
}

}  // namespace mep
