// The ranks of a default process group as one world of MEP, with the communicators of all groups made from it.
//
// Groups of PyTorch are made by their members alone, in an order of their own on each thread, so a communicator
// apart from those of the collectives makes them.
#pragma once

#include <mep.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "communicator.hpp"

namespace mep_torch {

// A group's two communicators.
struct Comms {
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
  };

  // Blocks until all ranks are there. Throws DistBackendError.
  World(c10d::Store& store, const Place& place);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Comms& comms() const { return comms_; }
  // Blocks until all the listed ranks have called, with the same list and name. Throws DistBackendError.
  Comms make_group(const std::vector<int32_t>& ranks, const std::string& name,
                   std::chrono::milliseconds timeout);
  // Collective: admits replacements of the ranks, or whoever is ready if there are none; how many came.
  int recover(const std::vector<int32_t>& ranks, std::chrono::milliseconds timeout);
  void abort() const;
  // All groups, then the world itself.
  void close(std::chrono::milliseconds patience);

 private:
  std::shared_ptr<Communicator> group_comm(const std::vector<int32_t>& ranks,
                                           const std::string& name,
                                           std::chrono::milliseconds timeout);

  const bool is_replacement_;
  Comms comms_;
  std::shared_ptr<Communicator> makers_;  // groups are made of it; its mutex guards groups_
  std::vector<std::weak_ptr<Communicator>> groups_;
};

}  // namespace mep_torch
