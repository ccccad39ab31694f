// The choice of how GPUs reach each other when a comm gets its device side, the same on all ranks; EP objects
// follow it.
#include <algorithm>
#include <iterator>
#include <vector>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/cuda/gpu_comm.hpp"
#include "core/cuda/staged_comm.hpp"
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
  GpuReach least{};
  MEP_TRY(read_reach_setting(&least));
  DeviceFacts about;
  MEP_TRY(describe_device(device, &about));
  const PeerIdentity& self = comm.world().identity();
  *facts = {
      self.host, self.process_token, static_cast<uint64_t>(least), {about.uuid[0], about.uuid[1]}};
  return MEP_SUCCESS;
}

// The decision that an error about mapping means; others are errors of the call.
int64_t decision_on(mep_result_t result) {
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
  MEP_TRY(gather(comm, decision_on(own), &all));
  if (is_error(own) && decision_on(own) != kCannotMap) return fail(own, "%s", text.c_str());
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

mep_result_t open_mapped(GpuComm& mapped, int32_t device, std::span<const ReachFacts> facts) {
  for (const ReachFacts& each : facts) {
    if (mapped.reach() != GpuReach::kDeviceWindows) break;
    if (may_reach(device, {each.device[0], each.device[1]})) continue;
    return fail(MEP_ERR_UNSUPPORTED, "GPU %d cannot reach the memory of a peer's GPU", device);
  }
  return mapped.open();
}

mep_result_t make_staged(Comm& comm, const GpuPlace& place, std::unique_ptr<GpuBackend>* out) {
  auto staged = std::make_unique<StagedComm>(comm, place);
  MEP_TRY(staged->open());
  *out = std::move(staged);
  return MEP_SUCCESS;
}

// The facts of this process; two GPUs that do not reach each other cannot be mapped.
mep_result_t facts_of_places(const Comm& comm, std::span<const GpuPlace> places,
                             std::vector<ReachFacts>* facts, ReachChoice* choice) {
  std::vector<uint32_t> ranks;
  for (const GpuPlace& place : places) {
    ranks.push_back(static_cast<uint32_t>(facts->size()));
    MEP_TRY(own_facts(comm, place.device, &facts->emplace_back()));
  }
  *choice = choose_reach(*facts, ranks);
  for (const GpuPlace& from : places) {
    for (const GpuPlace& to : places) {
      if (choice->reach != GpuReach::kDeviceWindows || device_reaches(from.device, to.device)) {
        continue;
      }
      choice->reach = GpuReach::kHostWindows;
      choice->why = "GPU " + std::to_string(from.device) + " does not reach the memory of GPU " +
                    std::to_string(to.device);
    }
  }
  return MEP_SUCCESS;
}

mep_result_t gather_facts(Comm& comm, int32_t device, std::vector<ReachFacts>* facts,
                          ReachChoice* choice) {
  ReachFacts own;
  MEP_TRY(own_facts(comm, device, &own));
  std::vector<ReachFacts> all;
  MEP_TRY(gather(comm, own, &all));
  const std::vector<uint32_t> ranks = comm.latest_view()->live;
  for (const uint32_t rank : ranks) facts->push_back(all[rank]);
  *choice = choose_reach(*facts, ranks);
  return MEP_SUCCESS;
}

// Mapped by each rank itself; *why: somebody could not.
mep_result_t map_together(Comm& comm, GpuComm& mapped, std::span<const ReachFacts> facts,
                          std::string* why) {
  MEP_TRY(agree(comm, open_mapped(mapped, mapped.device(), facts), "prepare its GPU to be mapped",
                why));
  if (!why->empty()) return MEP_SUCCESS;
  const mep_result_t met = mapped.connect(Deadline::after_ms(comm.timeout_ms()));
  return agree(comm, met, "map the GPU memory of its peers", why);
}

}  // namespace

mep_result_t make_gpu_backend(Comm& comm, const GpuPlace& place,
                              std::span<const GpuPlace> made_together,
                              std::unique_ptr<GpuBackend>* out) {
  std::vector<ReachFacts> facts;
  ReachChoice choice;
  GpuPlace own = place;
  if (made_together.empty()) {
    MEP_TRY(gather_facts(comm, place.device, &facts, &choice));
    const uint64_t process = comm.world().identity().process_token;
    std::vector<ReachFacts> neighbours;
    std::copy_if(facts.begin(), facts.end(), std::back_inserter(neighbours),
                 [process](const ReachFacts& each) { return each.process == process; });
    own.ranks_on_device = std::max(own.ranks_on_device, most_on_one_gpu(neighbours));
    // Processes share a GPU too: in turns, or at once where MPS lets them.
    own.most_on_a_device = std::max(own.most_on_a_device, most_on_one_gpu(facts));
  } else {
    MEP_TRY(facts_of_places(comm, made_together, &facts, &choice));
  }
  if (choice.reach != GpuReach::kQueues && comm.size() > device::kMaxCollRanks) {
    choice.reach = GpuReach::kQueues;
    choice.why = "there are more than " + std::to_string(device::kMaxCollRanks) + " ranks";
  }
  const auto tell = [&](LogLevel level, const char* how) {
    log(level, "comm %s: %s%s%s", comm.name().c_str(), how, choice.why.empty() ? "" : ": ",
        choice.why.c_str());
  };
  LogLevel level = LogLevel::kInfo;
  for (const WindowPlace windows_at : {WindowPlace::kDevice, WindowPlace::kHost}) {
    auto mapped = std::make_unique<GpuComm>(comm, own, windows_at);
    if (choice.reach > mapped->reach()) continue;
    std::string why;
    if (made_together.empty()) {
      MEP_TRY(map_together(comm, *mapped, facts, &why));
    } else {
      MEP_TRY(mapped->open());
    }
    if (why.empty()) {
      tell(level, windows_at == WindowPlace::kDevice ? "GPUs are mapped"
                                                     : "windows of GPUs lie in host memory");
      *out = std::move(mapped);
      return MEP_SUCCESS;
    }
    level = LogLevel::kWarn;  // nobody asked for something slower
    choice.why = why;
  }
  tell(level, "GPUs post to queues");
  return make_staged(comm, own, out);
}

}  // namespace mep
