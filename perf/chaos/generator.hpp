// Makes programs: steps and faults, drawn one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "numbers.hpp"
#include "program.hpp"

namespace mep::programs {

class Generator {
 public:
  Generator(uint64_t seed, const Limits& limits) : random_(mix(seed, 0x6d6570)), limits_(limits) {
    program_.seed = seed;
  }
  Program make();

 private:
  struct Comm {
    uint32_t number;
    std::vector<uint32_t> slots;  // may be members
  };

  void choose_job();
  void choose_hosts(uint32_t hosts);
  void add_step();
  void add_call_step(uint32_t comm);
  void add_batch();
  void add_split();
  void add_free();
  bool has_ep_on(uint32_t comm) const;
  void add_special(bool kills);
  void add_kills();
  void add_stop();
  void add_growth();
  std::vector<uint32_t> mortals();
  uint32_t first_comm() const;
  void add_ep();
  void add_faults();
  void add_kill(uint32_t slot, uint32_t generation, uint32_t step);
  uint32_t add_recover(uint32_t after, const std::vector<uint32_t>& slots);
  void insert_step(uint32_t at, Step step);
  Call random_call(uint32_t comm);
  size_t random_bytes();
  CallKind random_kind();
  size_t most_members(uint32_t comm) const {
    for (const Comm& each : comms_) {
      if (each.number == comm && !each.slots.empty()) return each.slots.size();
    }
    return program_.ranks;
  }
  uint32_t random_comm() { return comms_[random_.below(comms_.size())].number; }
  Step& push(StepKind kind) {
    Step step;
    step.kind = kind;
    step.pause_percent = random_.percent(30) ? 30 : 0;
    program_.steps.push_back(step);
    return program_.steps.back();
  }

  // shapes.cpp
  friend bool is_shape(const std::string& name);
  struct Shape;
  static const Shape kShapes[];
  bool wants_shape() const;
  bool has_shape(const char* name) const { return limits_.shape == name; }
  void draw_shape();
  void make_shaped();
  void choose_victims();
  void die_while_one_computes();
  void call_with_dead_root();
  void die_in_batch();
  void free_after_success();
  void die_in_split();
  void die_in_recover();
  void die_in_grow();
  uint32_t add_child(const std::vector<uint32_t>& slots);
  uint32_t comm_of_victims(uint32_t world_percent);
  uint32_t rank_in(uint32_t comm, uint32_t slot) const;
  Call small_call(uint32_t comm);
  uint32_t add_small_step(uint32_t comm);
  uint32_t add_rooted_step(uint32_t comm, uint32_t root_slot);
  void add_some_steps(uint32_t comm, uint32_t least, uint32_t most);
  uint32_t last_step() const { return static_cast<uint32_t>(program_.steps.size()) - 1; }
  void compute(uint32_t step, uint32_t ms);
  void die_before(uint32_t slot, uint32_t step, uint32_t delay_us);
  void die_inside(uint32_t slot, uint32_t step, uint32_t most_us);

  // points.cpp
  void strike_at_points();
  uint32_t add_struck_step();
  const char* point_of(uint32_t step);
  void strike(uint32_t slot, uint32_t step, bool view_changes, uint32_t stop_ms);

  // losses.cpp
  void die_in_cycles();
  void die_until_one_is_left();
  void die_after_growth();

  // joins.cpp
  void stop_in_join();
  std::pair<uint32_t, uint32_t> replaced_and_stopped();

  RandomStream random_;
  const Limits& limits_;
  Program program_;
  std::vector<Comm> comms_;
  uint32_t next_comm_ = 1;
  bool has_ep_ = false;
  uint32_t heavy_ = 0;
  std::vector<uint32_t> eps_;  // that are there
  // For a program with a shape: who dies, in this order; who does not, and of those who computes.
  std::vector<uint32_t> victims_;
  std::vector<uint32_t> survivors_;
  uint32_t computing_ = 0;  // slots, as bits
};

}  // namespace mep::programs
