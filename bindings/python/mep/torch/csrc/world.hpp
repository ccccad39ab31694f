// The ranks of a default process group as one world of MEP, with the communicators of all groups made from it.
//
// Groups of PyTorch are made by their members alone, in an order of their own on each thread, so a communicator
// apart from those of the collectives makes them.
#pragma once

#include <mep.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "communicator.hpp"

namespace mep_torch {

// A group's two communicators, and of what they are made if the group is not the world.
struct Comms {
  std::vector<int32_t> ranks;
  std::string name;
  std::shared_ptr<Communicator> collectives;
  std::shared_ptr<Communicator> messages;
};

class World {
 public:
  // The one of the default process group, or null. Any thread.
  static std::shared_ptr<World> current();
  static void set_current(const std::shared_ptr<World>& world);

  struct Place {
    int rank = 0;
    int size = 1;
    std::chrono::milliseconds timeout = std::chrono::milliseconds(0);
    std::string job;
    bool is_replacement =
        false;  // takes the place of a rank that is gone, once the others call recover()
    bool joins_later = false;  // a replacement that calls join()
    int max_size = 0;          // up to how many ranks it may grow; 0: size
  };

  // Blocks until all ranks are there, but not for one that joins later. Throws DistBackendError.
  World(c10::intrusive_ptr<c10d::Store> store, const Place& place);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Comms& comms() const { return comms_; }
  const std::string& job() const { return place_.job; }
  bool is_replacement() const { return place_.is_replacement; }
  // Takes its place, or does nothing if it has that. Blocks until the others call recover() or grow(). Throws
  // DistBackendError.
  void join();
  // Whether an operation has told that the others went on without this rank, which lives.
  bool is_left_out() const;
  // Leaves all groups. They concern this rank alone until join(), as those of a replacement.
  void leave(std::chrono::milliseconds patience);
  // Whether a replacement of the rank has called join() and waits. Asks the store.
  bool is_waiting(int rank) const;
  // Blocks until all the listed ranks have called, with the same list and name; does not before join().
  // Throws DistBackendError.
  Comms make_group(const std::vector<int32_t>& ranks, const std::string& name,
                   std::chrono::milliseconds timeout);
  // Grows with each recovery that admitted somebody. Any thread.
  uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }
  // The part of make_group() that had to wait for join().
  void join_group(const Comms& group, std::chrono::milliseconds timeout);
  // Collective: admits replacements of the ranks, or whoever is ready if there are none; how many came.
  // False: not all of them have in time. Throws DistBackendError.
  bool recover(const std::vector<int32_t>& ranks, std::chrono::milliseconds timeout,
               int32_t* admitted);
  // Collective, with nothing pending: admits so many ranks beyond the present ones. False: not all of them came in time,
  // and nothing has changed. Throws DistBackendError.
  bool grow(int32_t count, std::chrono::milliseconds timeout);
  // The ranks of a group as newcomers have made it; none, if there is no such. Asks the store.
  std::vector<int32_t> ranks_of(const std::string& group) const;
  // The members' side of join_group() of newcomers: the group's communicators are of its listed ranks from now on.
  void grow_group(const Comms& group, std::chrono::milliseconds timeout);
  // A group may know of a loss a moment before the world's communicator does: waits for that.
  void catch_up();
  void abort() const;
  // All groups, then the world itself.
  void close(std::chrono::milliseconds patience);

 private:
  std::vector<std::shared_ptr<Communicator>> all() const;
  std::string starts_key() const;
  std::string key_of_start(const std::string& name) const;
  std::string waiting_key(int rank) const;
  std::string ranks_key(const std::string& group) const;
  mep_comm_t group_comm(const std::vector<int32_t>& ranks, const std::string& name,
                        std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<c10d::Store> store_;
  Place place_;
  // Relaxed: the threads of a program that recovers are ordered by the program.
  std::atomic<uint64_t> generation_{0};
  Comms comms_;
  std::shared_ptr<Communicator> makers_;  // groups are made of it; its mutex guards groups_
  std::vector<std::weak_ptr<Communicator>> groups_;
  std::vector<mep_comm_t>
      smaller_;  // worlds that this one has grown from, the first one last to go
};

// A world of MEP whose ranks meet through the store; on a GPU, if there is one. Blocks. Throws.
mep_comm_t start_world(c10d::Store& store, const World::Place& place, std::optional<int> gpu);

}  // namespace mep_torch
