#include "world.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>

#include <c10/util/Exception.h>

namespace mep_torch {
namespace {

constexpr const char* kMakersName = "makers";
constexpr const char* kMessagesName = "messages";
// MEP's limit is 63 bytes; a longer name of a group goes by its hash.
constexpr size_t kMostNameBytes = 60;

int put_in_store(void* user, const char* key, const void* value, size_t bytes) {
  try {
    const auto* first = static_cast<const uint8_t*>(value);
    static_cast<c10d::Store*>(user)->set(key, std::vector<uint8_t>(first, first + bytes));
    return 0;
  } catch (...) {
    return 1;
  }
}

int get_from_store(void* user, const char* key, void* value, size_t capacity, size_t* bytes,
                   uint32_t timeout_ms) {
  try {
    auto* store = static_cast<c10d::Store*>(user);
    store->wait({key}, std::chrono::milliseconds(timeout_ms));
    const std::vector<uint8_t> found = store->get(key);
    *bytes = found.size();
    std::memcpy(value, found.data(), std::min(capacity, found.size()));
    return 0;
  } catch (...) {
    return 1;
  }
}

mep_comm_t begin_world(c10d::Store& store, const World::Place& place) {
  mep_store_t access;
  mep_store_defaults(&access);
  access.user = &store;
  access.put = put_in_store;
  access.get = get_from_store;
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  config.flags = MEP_COMM_SET_RANK | MEP_COMM_PROGRESS_THREAD;
  config.rank = place.rank;
  config.size = place.size;
  config.timeout_ms = to_ms(place.timeout);
  config.init_timeout_ms = to_ms(place.timeout);
  config.job = place.job.c_str();
  config.store = &access;
  mep_comm_t world = nullptr;
  check(place.is_replacement ? mep_comm_join(&config, &world) : mep_comm_init(&config, &world),
        place.is_replacement ? "join a process group" : "make a process group");
  return world;
}

// A second communicator of all ranks, or a replacement's part of it.
mep_comm_t second(mep_comm_t world, const char* name, bool is_replacement) {
  mep_comm_t comm = nullptr;
  if (is_replacement) {
    check(mep_comm_attach(world, name, &comm), "join a process group");
    return comm;
  }
  check(mep_comm_dup(world, &comm), "make a process group");
  check(mep_comm_set_name(comm, name), "make a process group");
  return comm;
}

std::mutex current_mutex;
std::weak_ptr<World> current_world;  // guarded by current_mutex

std::string comm_name(const char* kind, const std::string& group) {
  const bool fits = group.size() + 2 <= kMostNameBytes;
  return kind + (fits ? group : std::to_string(std::hash<std::string>()(group)));
}

}  // namespace

std::shared_ptr<World> World::current() {
  const std::lock_guard lock(current_mutex);
  return current_world.lock();
}

void World::set_current(const std::shared_ptr<World>& world) {
  const std::lock_guard lock(current_mutex);
  current_world = world;
}

World::World(c10d::Store& store, const Place& place) : is_replacement_(place.is_replacement) {
  const mep_comm_t world = begin_world(store, place);
  comms_.collectives = std::make_shared<Communicator>(world);
  try {
    comms_.messages =
        std::make_shared<Communicator>(second(world, kMessagesName, place.is_replacement));
    makers_ = std::make_shared<Communicator>(second(world, kMakersName, place.is_replacement));
  } catch (...) {
    close(std::chrono::milliseconds(0));
    throw;
  }
}

// The mutex of makers_ is held.
std::shared_ptr<Communicator> World::group_comm(const std::vector<int32_t>& ranks,
                                                const std::string& name,
                                                std::chrono::milliseconds timeout) {
  mep_comm_t comm = nullptr;
  // A group that was there before this rank is attached; one that is new is made.
  mep_result_t found = MEP_ERR_NOT_FOUND;
  if (is_replacement_) {
    const std::lock_guard lock(comms_.collectives->mutex());
    found = mep_comm_attach(comms_.collectives->handle(), name.c_str(), &comm);
  }
  if (found == MEP_ERR_NOT_FOUND) {
    makers_->set_timeout(timeout);
    found = mep_comm_create_from_ranks(makers_->handle(), ranks.data(),
                                       static_cast<int32_t>(ranks.size()), name.c_str(), &comm);
  }
  check(found, "make a process group");
  auto made = std::make_shared<Communicator>(comm);
  groups_.push_back(made);
  return made;
}

Comms World::make_group(const std::vector<int32_t>& ranks, const std::string& name,
                        std::chrono::milliseconds timeout) {
  const std::lock_guard lock(makers_->mutex());
  if (makers_->handle() == nullptr) std::rethrow_exception(closed_error("make a process group"));
  std::erase_if(groups_, [](const auto& group) { return group.expired(); });
  return {group_comm(ranks, comm_name("c:", name), timeout),
          group_comm(ranks, comm_name("m:", name), timeout)};
}

int World::recover(const std::vector<int32_t>& ranks, std::chrono::milliseconds timeout) {
  const std::scoped_lock lock(makers_->mutex(), comms_.messages->mutex(),
                              comms_.collectives->mutex());
  int32_t admitted = 0;
  check(mep_recover_ranks(comms_.collectives->handle(), ranks.data(),
                          static_cast<int32_t>(ranks.size()), to_ms(timeout), &admitted),
        "recover ranks");
  return admitted;
}

void World::abort() const {
  if (comms_.collectives->handle() != nullptr) (void)mep_comm_abort(comms_.collectives->handle());
}

void World::close(std::chrono::milliseconds patience) {
  std::vector<std::weak_ptr<Communicator>> groups;
  if (makers_ != nullptr) {
    const std::lock_guard lock(makers_->mutex());
    groups = std::move(groups_);
  }
  for (const auto& each : groups) {
    if (const auto group = each.lock()) (void)group->close(patience);
  }
  if (makers_ != nullptr) (void)makers_->close(patience);
  if (comms_.messages != nullptr) (void)comms_.messages->close(patience);
  (void)comms_.collectives->close(patience);
}

}  // namespace mep_torch
