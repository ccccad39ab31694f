// The choice of how GPUs reach each other when a comm gets its device side, the same on all ranks; EP objects
// follow it.
#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/cuda/gpu_comm.hpp"
#include "core/cuda/gpu_windows.hpp"
#include "core/cuda/staged_comm.hpp"
#include "core/staged/reach.hpp"

namespace mep {
namespace {

constexpr int64_t kDone = 0;
constexpr int64_t kCannotMap = 1;  // errors are negative
constexpr const char* kNotAllReach = "not all GPUs of this process reach each other";
constexpr uint64_t kProbeId = 0x6d61707065640000u;

// Facts of the ranks that are there.
struct Facts {
  std::vector<ReachFacts> of;
  std::vector<uint32_t> ranks;  // whose they are
};

// By rank.
template <class Value>
mep_result_t gather(Comm& comm, const Value& own, std::vector<Value>* all) {
  all->assign(comm.size(), Value{});
  return comm.run(Collective::k_allgather, {&own, all->data(), sizeof own, MEP_UINT8, MEP_SUM, 0});
}

mep_result_t facts_of(const Comm& comm, uint32_t rank, int32_t device, ReachFacts* facts) {
  DeviceFacts about;
  MEP_TRY(describe_device(device, &about));
  const PeerIdentity& self = comm.world().identity();
  *facts = {self.host, self.process_token,           0, {about.uuid[0], about.uuid[1]},
            0,         comm.world().config().num_sms};
  return read_reach_setting(rank, facts);
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

mep_result_t check_reach(int32_t device, const ReachFacts& peer) {
  if (may_reach(device, {peer.device[0], peer.device[1]})) return MEP_SUCCESS;
  return fail(MEP_ERR_UNSUPPORTED, "GPU %d cannot reach the memory of a peer's GPU", device);
}

bool all_reach(std::span<const GpuPlace> places) {
  for (const GpuPlace& from : places) {
    for (const GpuPlace& to : places) {
      if (!device_reaches(from.device, to.device)) return false;
    }
  }
  return true;
}

mep_result_t open_mapped(GpuComm& mapped, const Facts& facts) {
  for (const ReachFacts& each : facts.of) {
    if (mapped.reach() == GpuReach::kDeviceWindows) MEP_TRY(check_reach(mapped.device(), each));
  }
  return mapped.open();
}

// By all ranks: each maps a window of the others of its group, or says why not.
mep_result_t map_group(Comm& comm, int32_t device, const Facts& facts,
                       const std::vector<bool>& group, std::string* why) {
  GpuWindows windows(comm, WindowPlace::kDevice, device, comm.id() ^ kProbeId, group);
  const auto map = [&]() -> mep_result_t {
    if (group.empty()) return MEP_SUCCESS;
    for (size_t i = 0; i < facts.ranks.size(); ++i) {
      if (group[facts.ranks[i]]) MEP_TRY(check_reach(device, facts.of[i]));
    }
    MEP_TRY(windows.offer(1));
    return windows.connect(*comm.latest_view(), Deadline::after_ms(comm.timeout_ms()));
  };
  return agree(comm, map(), "map the GPUs beside its own", why);
}

// With queues: which ranks map each other besides. None where a rank of any group cannot; *why says so.
mep_result_t find_groups(Comm& comm, int32_t device, const Facts& facts,
                         std::span<const GpuPlace> made_together, std::vector<uint64_t>* groups,
                         std::string* why) {
  std::vector<uint64_t> found = groups_of(facts.of, facts.ranks, comm.size());
  if (made_together.empty()) {
    MEP_TRY(map_group(comm, device, facts, group_of(found, comm.rank()), why));
  } else if (!all_reach(made_together)) {
    *why = kNotAllReach;
  }
  if (why->empty()) groups->swap(found);
  return MEP_SUCCESS;
}

mep_result_t make_staged(Comm& comm, const GpuPlace& place, std::vector<uint64_t> groups,
                         GpuQueues queues, std::unique_ptr<GpuBackend>* out) {
  groups.resize(comm.size());
  auto staged = std::make_unique<StagedComm>(comm, place, std::move(groups), queues);
  MEP_TRY(staged->open());
  *out = std::move(staged);
  return MEP_SUCCESS;
}

// Members map the place of the rank, or do not, and that is what it has come to.
mep_result_t check_group(const Comm& comm, const ReachFacts& own,
                         const std::vector<uint64_t>& groups) {
  const uint64_t wanted = groups[comm.rank()];
  if (wanted == 0 || group_number(own) == wanted) return MEP_SUCCESS;
  return fail(MEP_ERR_MISMATCH,
              "other ranks of its host map the GPU of rank %u of comm %s: a replacement has to run "
              "on the host of the one that it replaces, with the same MEP_CUDA_REACH",
              comm.rank(), comm.name().c_str());
}

mep_result_t join_mapped(Comm& comm, const GpuPlace& place, const GpuDescription& about,
                         const Deadline& deadline, std::unique_ptr<GpuBackend>* out) {
  GpuPlace own = place;
  own.most_on_a_device = static_cast<uint32_t>(about.most_on_a_device);
  own.most_blocks = static_cast<uint32_t>(about.most_blocks);
  const bool on_host = about.reach == static_cast<uint64_t>(GpuReach::kHostWindows);
  auto joined =
      std::make_unique<GpuComm>(comm, own, on_host ? WindowPlace::kHost : WindowPlace::kDevice);
  MEP_TRY(joined->join(about.window_bytes, deadline));
  *out = std::move(joined);
  return MEP_SUCCESS;
}

mep_result_t join_staged(Comm& comm, const GpuPlace& place, const GpuDescription& about,
                         std::vector<uint64_t> groups, const Deadline& deadline,
                         std::unique_ptr<GpuBackend>* out) {
  ReachFacts facts;
  MEP_TRY(facts_of(comm, comm.rank(), place.device, &facts));
  MEP_TRY(check_group(comm, facts, groups));
  GpuPlace own = place;
  own.most_blocks = static_cast<uint32_t>(about.most_blocks);
  auto joined = std::make_unique<StagedComm>(comm, own, std::move(groups),
                                             static_cast<GpuQueues>(facts.queues));
  MEP_TRY(joined->join(about, deadline));
  *out = std::move(joined);
  return MEP_SUCCESS;
}

// The facts of this process; two GPUs that do not reach each other cannot be mapped.
mep_result_t facts_of_places(const Comm& comm, std::span<const GpuPlace> places, Facts* facts,
                             ReachChoice* choice) {
  for (const GpuPlace& place : places) {
    facts->ranks.push_back(static_cast<uint32_t>(facts->ranks.size()));
    MEP_TRY(facts_of(comm, facts->ranks.back(), place.device, &facts->of.emplace_back()));
  }
  *choice = choose_reach(facts->of, facts->ranks);
  if (choice->reach == GpuReach::kDeviceWindows && !all_reach(places)) {
    *choice = {GpuReach::kHostWindows, kNotAllReach};
  }
  return MEP_SUCCESS;
}

mep_result_t gather_facts(Comm& comm, int32_t device, Facts* facts, ReachChoice* choice) {
  ReachFacts own;
  MEP_TRY(facts_of(comm, comm.rank(), device, &own));
  std::vector<ReachFacts> all;
  MEP_TRY(gather(comm, own, &all));
  facts->ranks = comm.latest_view()->live;
  for (const uint32_t rank : facts->ranks) facts->of.push_back(all[rank]);
  *choice = choose_reach(facts->of, facts->ranks);
  return MEP_SUCCESS;
}

// Mapped by each rank itself; *why: somebody could not.
mep_result_t map_together(Comm& comm, GpuComm& mapped, const Facts& facts, std::string* why) {
  MEP_TRY(agree(comm, open_mapped(mapped, facts), "prepare its GPU to be mapped", why));
  if (!why->empty()) return MEP_SUCCESS;
  const mep_result_t met = mapped.connect(Deadline::after_ms(comm.timeout_ms()));
  return agree(comm, met, "map the GPU memory of its peers", why);
}

}  // namespace

mep_result_t make_gpu_backend(Comm& comm, const GpuPlace& place,
                              std::span<const GpuPlace> made_together,
                              std::unique_ptr<GpuBackend>* out) {
  Facts facts;
  ReachChoice choice;
  GpuPlace own = place;
  if (made_together.empty()) {
    MEP_TRY(gather_facts(comm, place.device, &facts, &choice));
    const uint64_t process = comm.world().identity().process_token;
    std::vector<ReachFacts> neighbours;
    std::copy_if(facts.of.begin(), facts.of.end(), std::back_inserter(neighbours),
                 [process](const ReachFacts& each) { return each.process == process; });
    own.ranks_on_device = std::max(own.ranks_on_device, most_on_one_gpu(neighbours));
    // Processes share a GPU too: in turns, or at once where MPS lets them.
    own.most_on_a_device = std::max(own.most_on_a_device, most_on_one_gpu(facts.of));
  } else {
    MEP_TRY(facts_of_places(comm, made_together, &facts, &choice));
  }
  own.most_blocks = most_blocks_of(facts.of);
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
  MEP_TRY(check_queues(facts.of, facts.ranks));
  std::vector<uint64_t> groups;
  std::string why;
  MEP_TRY(find_groups(comm, own.device, facts, made_together, &groups, &why));
  if (!why.empty()) {
    level = LogLevel::kWarn;
    choice.why = why;
  }
  tell(level, group_of(groups, comm.rank()).empty() ? "GPUs post to queues"
                                                    : "GPUs map some peers and post to queues");
  return make_staged(comm, own, std::move(groups), static_cast<GpuQueues>(facts.of[0].queues), out);
}

mep_result_t join_gpu_backend(Comm& comm, const GpuPlace& place,
                              std::span<const std::byte> description, const Deadline& deadline,
                              std::unique_ptr<GpuBackend>* out) {
  GpuDescription about;
  std::vector<uint64_t> groups;
  if (!about.decode(description, &groups)) {
    return fail(MEP_ERR_DENIED, "a member sent a malformed description of its GPU");
  }
  if (about.reach != static_cast<uint64_t>(GpuReach::kQueues)) {
    return join_mapped(comm, place, about, deadline, out);
  }
  if (groups.size() != comm.size()) {
    return fail(MEP_ERR_DENIED, "a member described the GPUs of %zu ranks, not %u", groups.size(),
                comm.size());
  }
  return join_staged(comm, place, about, std::move(groups), deadline, out);
}

}  // namespace mep
