// A deterministic world: production Membership objects, a virtual clock, a network with delays,
// breaks and cuts, processes that crash, freeze, slow down, leave and join. One seed is one
// schedule; the trace hash covers every event and every action.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "core/membership/membership.hpp"
#include "sim/channels.hpp"
#include "sim/script.hpp"
#include "support/random_numbers.hpp"

namespace mep::sim {

using mep_reference::RandomStream;

// Kinds of fault that a schedule draws from; bits.
enum Faults : uint32_t {
  kCrashes = 1,
  kFreezes = 2,
  kLinks = 4,
  kJoins = 8,
  kRequests = 16,  // leave, evict, revoke, deadlines
  kSlowness = 32,
};

struct Options {
  uint64_t seed = 1;
  uint32_t ranks = 0;   // 0: drawn from the seed
  uint32_t faults = 0;  // 0: drawn from the seed
  // Rows go to all members, or to the leads alone as in large views; else drawn from the seed.
  std::optional<bool> leads_only;
  bool trace = false;  // print every event
  membership::QuorumPolicy quorum = membership::QuorumPolicy::kMajority;
  membership::Mutations mutations;
  Wrong wrong;
};

struct Outcome {
  std::string violation;  // empty: all is well
  uint64_t hash = 0;
  uint64_t events = 0;
  uint64_t installs = 0;
  uint64_t operations = 0;
  uint64_t children = 0;
  uint64_t closed = 0;
  uint64_t joined = 0;
  uint64_t reports = 0;  // calls that told of a change
  uint64_t shared = 0;   // ... of more than one
  uint64_t virtual_us = 0;
  uint64_t longest_change_us = 0;
  uint32_t ranks = 0;
  uint32_t faults = 0;
};

Outcome run_schedule(const Options& options);

enum class EventKind : uint8_t {
  kTick,
  kStep,
  kRow,
  kHeartbeat,
  kData,
  kCatchUp,
  kView,
  kExit,
  kLost,
  kFrozen,
  kFenced,
  kPrepared,
  kWitness,
  kReady,
  kGone,
  kRecover,
  kDeadline,
  kCall,
  kFault,
  kCheck,
  kThaw,
  kFlushed,
  kBirth,
  kClosing,
  kHeld,
};

struct Event {
  uint64_t time = 0;
  uint64_t order = 0;
  EventKind kind = EventKind::kTick;
  uint32_t node = 0;  // who it happens to
  uint32_t from = 0;  // node that sent it
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
  membership::RowPtr row = {};
  std::shared_ptr<const membership::View> view = {};
  std::shared_ptr<const CatchUpData> catch_up = {};
  Contribution data = {};
};

struct Later {
  bool operator()(const Event& x, const Event& y) const {
    return x.time != y.time ? x.time > y.time : x.order > y.order;
  }
};

struct Node {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  uint64_t host = 0;
  bool alive = true;
  bool out = false;      // evicted, gave up, left or failed to join: acts no more
  bool evicted = false;  // out because others went on without it
  bool left = false;     // out by its own last row
  bool frozen = false;
  bool touched = false;  // some fault was aimed at it that may cost it its place
  bool joiner = false;
  uint64_t sends_left = UINT64_MAX;  // crashes in the middle of sending when it reaches 0
  std::vector<Event> backlog;
  std::unique_ptr<membership::Membership> machine;
  std::unique_ptr<ChannelTable> channels;
  std::set<std::pair<uint32_t, uint64_t>> fenced;
  std::map<uint64_t, std::vector<uint8_t>> installed;          // epoch -> decision and members
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> affected;  // (epoch, comm) -> comm epoch, why
  // comm -> (epoch of the view, when): changes that its calls must report
  std::map<uint64_t, std::map<uint64_t, uint64_t>> to_report;
  std::map<ChannelName, Pace> paces;
  std::vector<Birth> births;
  std::map<uint64_t, Closing> closings;  // by comm
  std::vector<Question> questions;
  uint64_t recover_asked = 0;
  uint64_t recover_done = 0;
  uint64_t frozen_since = 0;
};

struct Link {
  bool broken = false;
  bool cut = false;  // silently holds what is sent
  uint64_t last_control = 0;
  uint64_t last_data = 0;
  std::vector<Event> held;
};

class Simulator {
 public:
  explicit Simulator(const Options& options);
  Outcome run();

 private:
  // simulator.cpp: clock, network, processes
  void post(uint64_t delay, Event event);
  void note(uint64_t word) { hash_ = (hash_ ^ word) * 1099511628211u; }
  void trace_line(const Node& node, const char* what) const;
  void wrong(uint32_t node, const std::string& what);
  uint32_t add_node(uint32_t slot, const membership::View& view, bool joining);
  void create_comms(Node* node, const membership::InstallView* entered);
  void dispatch(Event event);
  void deliver(const Event& event);
  void deliver_more(const Event& event);
  void send(uint32_t from, uint32_t to, Event event, bool control);
  Link& link(uint32_t from, uint32_t to) { return links_[{from, to}]; }
  uint32_t present(uint32_t slot) const;  // the newest node of a slot

  // carry_out.cpp: actions and operations
  void drain(uint32_t node);
  bool carry_out(uint32_t node, const membership::Action& action);
  void push_row(uint32_t node, const membership::PushRow& push);
  void install(uint32_t node, const membership::InstallView& install);
  void note_reports(Node* node, const membership::InstallView& install) const;
  void check_install(uint32_t node, const membership::InstallView& install);
  void check_added(uint32_t node, const membership::Proposal& value);
  void leave(uint32_t node, bool own_statement);

  // script.cpp: what the programs do
  Kind kind_of(const ChannelName& name, uint64_t step) const;
  uint64_t last_step(uint64_t comm) const;
  void call_next(uint32_t node, const ChannelName& name);
  void make_call(uint32_t node, const ChannelName& name);
  void after_event(uint32_t node);
  void trace_told(const Node& node, const ChannelName& name, uint64_t seq, const Told& told) const;
  void plan_birth(uint32_t node, uint64_t comm, const Contributors& contributors);
  void give_birth(uint32_t node, uint64_t comm);
  void start_calls(uint32_t node, const ChannelName& name, uint64_t after);
  void start_closing(uint32_t node, uint64_t comm);
  bool try_close(uint32_t node);
  void close_now(uint32_t node, uint64_t comm);
  void answer_questions(uint32_t node);
  bool rests(const Node& node, const ChannelName& name);
  void try_recover(uint32_t node);

  // faults.cpp: what goes wrong, and when
  void plan_faults();
  void plan_one(uint64_t time, uint32_t choice);
  void inject(const Event& event);
  void ask_recover(const Event& event);
  uint64_t late_or(uint32_t bound);
  void split(uint64_t side);
  void crash(uint32_t node);
  void freeze(uint32_t node, uint64_t duration);
  void thaw(uint32_t node);
  void break_link(uint32_t a, uint32_t b);
  void set_cut(uint32_t from, uint32_t to, bool cut);
  void respawn(uint32_t slot);
  void announce(uint32_t joiner);
  uint32_t pick_node(bool running);

  // checks.cpp
  bool settled(std::string* why);
  bool operations_go_on(std::string* why);
  void check_decisions();
  void compare(uint32_t a, uint32_t b, const ChannelName& name);
  void check_reported(uint32_t node);
  void check_end();

  Options options_;
  RandomStream random_;
  membership::Config config_;
  std::priority_queue<Event, std::vector<Event>, Later> queue_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::map<std::pair<uint32_t, uint32_t>, Link> links_;
  std::map<uint64_t, uint64_t> witness_;
  uint64_t now_ = 0;
  uint64_t order_ = 0;
  uint64_t next_incarnation_ = 1000;
  uint64_t faults_end_ = 0;
  uint64_t recover_calls_ = 0;
  uint32_t ranks_ = 0;
  uint32_t max_slots_ = 0;
  uint32_t max_delay_us_ = 1000;
  uint64_t think_us_ = 20'000;
  membership::SlotSet sub_comm_;
  membership::SlotSet other_comm_;
  bool splits_ = false;
  uint64_t recover_seq_ = 0;  // of the recover call that is asked for
  uint64_t recover_slots_ = 0;
  std::map<ChannelName, uint64_t> stops_;  // where channels rest for it
  bool long_freeze_ = false;
  bool requests_ = false;  // somebody left, or asked for an eviction
  bool link_faults_ = false;
  bool one_host_ = true;  // so every death is confirmed
  uint32_t joins_ = 0;
  // By incarnation: the first was told that the second, a joiner, is ready.
  std::set<std::pair<uint64_t, uint64_t>> met_;
  uint64_t settled_since_ = 0;
  std::map<std::pair<uint32_t, ChannelName>, uint64_t> settled_done_;
  uint64_t hash_ = 1469598103934665603u;
  Outcome outcome_;
};

}  // namespace mep::sim
