// Groups whose members change by PyTorch's own calls: get_reconfigure_handle() and reconfigure().
//
// Each configuration is a world of MEP of its own, named by its uuid. Keys of the uuid in the group's store:
//   members      the handles in the order of their ranks, as the first that came has them
//   came/RANK    how many have come as this rank: a second one uses the uuid again
#include "process_group.hpp"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <variant>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace mep_torch {
namespace {

constexpr const char* kReconfigure = "mep: reconfigure: ";

std::vector<std::string> in_order(const c10d::ReconfigureOptions& opts) {
  if (const auto* list = std::get_if<std::vector<std::string>>(&opts.handles)) return *list;
  const auto& set = std::get<std::unordered_set<std::string>>(opts.handles);
  std::vector<std::string> sorted(set.begin(), set.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

int rank_among(const std::vector<std::string>& handles, const std::string& own) {
  const auto found = std::find(handles.begin(), handles.end(), own);
  TORCH_CHECK_VALUE(found != handles.end(), kReconfigure, "the ", handles.size(),
                    " handles are without this rank's own, ", own);
  const std::unordered_set<std::string> different(handles.begin(), handles.end());
  TORCH_CHECK_VALUE(different.size() == handles.size(), kReconfigure, "a handle is there twice");
  return static_cast<int>(found - handles.begin());
}

void claim(c10d::Store& store, int64_t uuid, const std::vector<std::string>& handles, int rank) {
  std::string members;
  for (const std::string& handle : handles) members += handle + "\n";
  const std::vector<uint8_t> mine(members.begin(), members.end());
  const bool is_first = store.add("came/" + std::to_string(rank), 1) == 1;
  if (is_first && store.compareSet("members", {}, mine) == mine) return;
  C10_THROW_ERROR(DistBackendError, kReconfigure + ("uuid " + std::to_string(uuid)) +
                                        " was already used" +
                                        (is_first ? " with other handles" : "") +
                                        "; give each configuration a number of its own");
}

bool has_pending(Communicator& comm) {
  const std::lock_guard lock(comm.mutex());
  return !comm.pending().empty();
}

// The work of reconfigure(), which has blocked until all was done.
class Done final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

}  // namespace

c10::intrusive_ptr<ProcessGroupMep> ProcessGroupMep::make_reconfigurable(
    const c10::intrusive_ptr<c10d::Store>& store, const World::Place& place,
    std::string backend_name) {
  World::Place later = place;
  later.joins_later = true;
  auto world = std::make_shared<World>(store, later);
  world->close(std::chrono::milliseconds(0));
  const Comms comms = world->comms();
  return noted(c10::make_intrusive<ProcessGroupMep>(store, std::move(world), comms,
                                                    Kind::kReconfigurable, place.rank,
                                                    place.timeout, std::move(backend_name)));
}

c10::intrusive_ptr<c10d::Work> ProcessGroupMep::reconfigure(const c10d::ReconfigureOptions& opts) {
  TORCH_CHECK(kind_ == Kind::kReconfigurable, kReconfigure,
              "make the group by init_process_group(..., enable_reconfigure=True)");
  const std::vector<std::string> handles = in_order(opts);
  World::Place place;
  place.rank = rank_among(handles, handle_);
  place.size = static_cast<int>(handles.size());
  place.timeout = timeout_or_default(opts.timeout.value_or(std::chrono::milliseconds(0)));
  place.job = "torch-reconfigured-" + std::to_string(opts.uuid);
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>("reconfigure/" + std::to_string(opts.uuid), store_);
  claim(*store, opts.uuid, handles, place.rank);
  // An operation of before that has not ended holds up neither this rank nor those that wait in it.
  const bool is_stuck = getError() != c10d::ErrorType::SUCCESS || has_pending(*collectives_) ||
                        has_pending(*messages_);
  if (is_stuck) abort();
  leave();
  auto world = std::make_shared<World>(store, place);
  rank_ = place.rank;
  size_ = place.size;
  const Comms comms = world->comms();
  World::set_current(world);
  enter(store, std::move(world), comms);
  return c10::make_intrusive<Done>();
}

}  // namespace mep_torch

#endif
