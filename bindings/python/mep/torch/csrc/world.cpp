#include "world.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>

#include <c10/util/Exception.h>

namespace mep_torch {
namespace {

constexpr std::chrono::milliseconds kLongestLook{32};
constexpr const char* kMakersName = "makers";
constexpr const char* kMessagesName = "messages";
// Before the name of a group.
constexpr const char* kCollectives = "c:";
constexpr const char* kMessages = "m:";
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
    // A wait of TCPStore whose time is over prints a warning.
    using Clock = std::chrono::steady_clock;
    const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(timeout_ms);
    for (auto pause = std::chrono::milliseconds(1); !store->check({key});
         pause = std::min(2 * pause, kLongestLook)) {
      if (Clock::now() >= limit) return 1;
      std::this_thread::sleep_for(pause);
    }
    const std::vector<uint8_t> found = store->get(key);
    *bytes = found.size();
    std::memcpy(value, found.data(), std::min(capacity, found.size()));
    return 0;
  } catch (...) {
    return 1;
  }
}

// A second communicator of all ranks, or a replacement's part of it. Newcomers make it with the others.
mep_comm_t second(mep_comm_t world, const char* name, bool is_replacement) {
  mep_comm_t comm = nullptr;
  if (is_replacement) {
    const mep_result_t found = mep_comm_attach(world, name, &comm);
    if (found != MEP_ERR_NOT_FOUND) {
      check(found, "join a process group");
      return comm;
    }
  }
  check(mep_comm_dup(world, &comm), "make a process group");
  check(mep_comm_set_name(comm, name), "make a process group");
  return comm;
}

std::mutex current_mutex;
std::weak_ptr<World> current_world;  // guarded by current_mutex

std::vector<int32_t> first_ranks(int32_t size) {
  std::vector<int32_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string comm_name(const char* kind, const std::string& group) {
  const bool fits = group.size() + 2 <= kMostNameBytes;
  return kind + (fits ? group : std::to_string(std::hash<std::string>()(group)));
}

}  // namespace

mep_comm_t start_world(c10d::Store& store, const World::Place& place, std::optional<int> gpu) {
  mep_store_t access;
  mep_store_defaults(&access);
  access.user = &store;
  access.put = put_in_store;
  access.get = get_from_store;
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  // Nonblocking operations are of the host.
  config.flags = MEP_COMM_SET_RANK | (gpu ? 0u : MEP_COMM_PROGRESS_THREAD);
  config.device_type = gpu ? MEP_DEVICE_CUDA : MEP_DEVICE_HOST;
  config.device = gpu.value_or(0);
  config.rank = place.rank;
  config.size = place.size;
  config.max_size = place.max_size;
  config.timeout_ms = to_ms(place.timeout);
  config.init_timeout_ms = to_ms(place.timeout);
  config.job = place.job.c_str();
  config.store = &access;
  mep_comm_t world = nullptr;
  check(place.is_replacement ? mep_comm_join(&config, &world) : mep_comm_init(&config, &world),
        place.is_replacement ? "join a process group" : "make a process group");
  return world;
}

std::shared_ptr<World> World::current() {
  const std::lock_guard lock(current_mutex);
  return current_world.lock();
}

void World::set_current(const std::shared_ptr<World>& world) {
  const std::lock_guard lock(current_mutex);
  current_world = world;
}

World::World(c10::intrusive_ptr<c10d::Store> store, const Place& place)
    : store_(std::move(store)),
      place_(place),
      comms_{first_ranks(place.size),
             {},
             std::make_shared<Communicator>(),
             std::make_shared<Communicator>()},
      makers_(std::make_shared<Communicator>()) {
  if (!place.joins_later) join();
}

// Keys that a start has written say nothing to a later one in the same store.
std::string World::key_of_start(const std::string& name) const {
  return starts_key() + "/" + std::to_string(store_->add(starts_key(), 0)) + "/" + name;
}

// In the store: the number of starts of the job.
std::string World::starts_key() const {
  return "mep/" + place_.job + "/torch";
}

// In the store: "1" while a replacement of the rank waits to be admitted.
std::string World::waiting_key(int rank) const {
  return key_of_start("waiting/" + std::to_string(rank));
}

// In the store: the ranks of a group, as int32.
std::string World::ranks_key(const std::string& group) const {
  return key_of_start("ranks/" + group);
}

void World::join() {
  if (is_left_out()) leave(place_.timeout);
  if (comms_.collectives->handle() != nullptr) return;
  // Before the others meet rank 0, so they find this number.
  if (place_.rank == 0 && !place_.is_replacement) store_->add(starts_key(), 1);
  const std::string key = place_.is_replacement ? waiting_key(place_.rank) : std::string();
  if (place_.is_replacement) store_->set(key, std::string("1"));
  comms_.collectives->open(start_world(*store_, place_, std::nullopt));
  try {
    // Its own replacement comes only after its end, so this is never written over what that has written.
    if (place_.is_replacement) store_->set(key, std::string("0"));
    const mep_comm_t world = comms_.collectives->handle();
    int32_t size = 0;
    check(mep_comm_size(world, &size), "join a process group");
    comms_.ranks = first_ranks(size);
    comms_.messages->open(second(world, kMessagesName, place_.is_replacement));
    makers_->open(second(world, kMakersName, place_.is_replacement));
  } catch (...) {
    close(std::chrono::milliseconds(0));
    throw;
  }
}

std::vector<std::shared_ptr<Communicator>> World::all() const {
  std::vector<std::shared_ptr<Communicator>> comms{comms_.collectives, comms_.messages};
  const std::lock_guard lock(makers_->mutex());
  for (const auto& each : groups_) {
    if (auto group = each.lock()) comms.push_back(std::move(group));
  }
  return comms;
}

bool World::is_left_out() const {
  const auto comms = all();
  return std::any_of(comms.begin(), comms.end(),
                     [](const auto& comm) { return comm->is_excluded(); });
}

void World::leave(std::chrono::milliseconds patience) {
  const auto left = all();
  close(patience);
  TORCH_CHECK(comms_.collectives->handle() == nullptr,
              "mep: leave the process group: something that was made of it is in use; destroy that "
              "first");
  for (const auto& each : left) each->expect();
  place_.is_replacement = place_.joins_later = true;
}

bool World::is_waiting(int rank) const {
  const std::string key = waiting_key(rank);
  return store_->check({key}) && store_->get_to_str(key) == "1";
}

// The mutex of makers_ is held.
mep_comm_t World::group_comm(const std::vector<int32_t>& ranks, const std::string& name,
                             std::chrono::milliseconds timeout) {
  mep_comm_t comm = nullptr;
  // A group that was there before this rank is attached; one that is new is made.
  mep_result_t found = MEP_ERR_NOT_FOUND;
  if (place_.is_replacement) {
    const std::lock_guard lock(comms_.collectives->mutex());
    found = mep_comm_attach(comms_.collectives->handle(), name.c_str(), &comm);
  }
  if (found == MEP_ERR_NOT_FOUND) {
    makers_->set_timeout(timeout);
    found = mep_comm_create_from_ranks(makers_->handle(), ranks.data(),
                                       static_cast<int32_t>(ranks.size()), name.c_str(), &comm);
  }
  check(found, "make a process group");
  return comm;
}

Comms World::make_group(const std::vector<int32_t>& ranks, const std::string& name,
                        std::chrono::milliseconds timeout) {
  Comms group{ranks, name, std::make_shared<Communicator>(), std::make_shared<Communicator>()};
  if (place_.joins_later && comms_.collectives->handle() == nullptr) {
    const auto* first = reinterpret_cast<const uint8_t*>(ranks.data());
    store_->set(ranks_key(name),
                std::vector<uint8_t>(first, first + ranks.size() * sizeof(int32_t)));
    return group;
  }
  join_group(group, timeout);
  return group;
}

void World::join_group(const Comms& group, std::chrono::milliseconds timeout) {
  const std::lock_guard lock(makers_->mutex());
  if (makers_->handle() == nullptr) std::rethrow_exception(closed_error("make a process group"));
  std::erase_if(groups_, [](const auto& each) { return each.expired(); });
  const auto fill = [&](const std::shared_ptr<Communicator>& comm, const char* kind) {
    if (comm->handle() != nullptr) return;
    comm->open(group_comm(group.ranks, comm_name(kind, group.name), timeout));
    groups_.push_back(comm);
  };
  fill(group.collectives, kCollectives);
  fill(group.messages, kMessages);
}

bool World::recover(const std::vector<int32_t>& ranks, std::chrono::milliseconds timeout,
                    int32_t* admitted) {
  const std::scoped_lock lock(makers_->mutex(), comms_.messages->mutex(),
                              comms_.collectives->mutex());
  const mep_result_t result =
      mep_recover_ranks(comms_.collectives->handle(), ranks.data(),
                        static_cast<int32_t>(ranks.size()), to_ms(timeout), admitted);
  if (result != MEP_ERR_TIMEOUT) check(result, "recover ranks");
  if (*admitted > 0) generation_.fetch_add(1, std::memory_order_relaxed);
  return result != MEP_ERR_TIMEOUT;
}

bool World::grow(int32_t count, std::chrono::milliseconds timeout) {
  const std::scoped_lock lock(makers_->mutex(), comms_.messages->mutex(),
                              comms_.collectives->mutex());
  TORCH_CHECK(comms_.messages->pending().empty() && comms_.collectives->pending().empty(),
              "mep: grow a process group: operations are pending; wait for them first");
  mep_comm_t grown = nullptr;
  const mep_result_t result =
      mep_comm_grow(comms_.collectives->handle(), count, to_ms(timeout), &grown);
  if (result == MEP_ERR_TIMEOUT) return false;
  check(result, "grow a process group");
  smaller_.push_back(comms_.collectives->replace(grown));
  comms_.ranks = first_ranks(static_cast<int32_t>(comms_.ranks.size()) + count);
  generation_.fetch_add(1, std::memory_order_relaxed);
  // The names are free first, for replacements attach by them.
  (void)mep_comm_destroy(comms_.messages->replace(nullptr));
  (void)mep_comm_destroy(makers_->replace(nullptr));
  (void)comms_.messages->replace(second(grown, kMessagesName, false));
  (void)makers_->replace(second(grown, kMakersName, false));
  return true;
}

std::vector<int32_t> World::ranks_of(const std::string& group) const {
  const std::string key = ranks_key(group);
  if (!store_->check({key})) return {};
  const std::vector<uint8_t> bytes = store_->get(key);
  std::vector<int32_t> ranks(bytes.size() / sizeof(int32_t));
  std::memcpy(ranks.data(), bytes.data(), ranks.size() * sizeof(int32_t));
  return ranks;
}

void World::grow_group(const Comms& group, std::chrono::milliseconds timeout) {
  const std::scoped_lock lock(makers_->mutex(), group.messages->mutex(),
                              group.collectives->mutex());
  TORCH_CHECK(group.messages->pending().empty() && group.collectives->pending().empty(),
              "mep: grow a process group: operations are pending; wait for them first");
  const auto grow = [&](Communicator& comm, const char* kind) {
    mep_comm_t made = group_comm(group.ranks, comm_name(kind, group.name), timeout);
    (void)mep_comm_destroy(comm.replace(made));
  };
  grow(*group.collectives, kCollectives);
  grow(*group.messages, kMessages);
}

void World::catch_up() {
  constexpr std::chrono::seconds kLongest(10);
  uint64_t newest = 0;
  {
    const std::lock_guard lock(makers_->mutex());
    for (const auto& each : groups_) {
      if (const auto group = each.lock()) newest = std::max(newest, group->world_epoch());
    }
  }
  const auto limit = std::chrono::steady_clock::now() + kLongest;
  while (comms_.collectives->world_epoch() < newest && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
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
  if (!comms_.collectives->close(patience)) return;
  for (; !smaller_.empty(); smaller_.pop_back()) (void)mep_comm_destroy(smaller_.back());
}

}  // namespace mep_torch
