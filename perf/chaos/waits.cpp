// Calls of mep_recover_ranks that ended by their limit although a joiner could have been admitted: most of that time all
// members were in the call, the joiner was in mep_comm_join, and no process stopped, went on or ended.
#include <algorithm>
#include <cinttypes>
#include <set>

#include "formatted.hpp"
#include "oracle.hpp"

namespace mep::programs {
namespace {

// The part of a call's limit in which nothing happens any more and a joiner must come in: 6 s of 8 s. With 40 processes ready to
// run on two processors a join takes up to 3 s, else 0.1 s.
constexpr uint64_t kQuietPercent = 75;

struct Wait {
  const Life* life = nullptr;
  const Record* begin = nullptr;
  const Record* end = nullptr;     // null: it did not return
  const Record* before = nullptr;  // the view; null: it was not written down
  const Record* after = nullptr;
};

bool has(uint64_t slots, uint32_t slot) {
  return (slots >> slot & 1) != 0;
}

bool was_there(const Life& life, uint64_t at_ns) {
  return life.ended_ns == 0 || life.ended_ns >= at_ns;
}

std::vector<Wait> waits_of(const Life& life) {
  std::vector<Wait> waits;
  const Record* view = nullptr;
  const uint32_t count = life.journal->count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const Record& record = life.journal->records[i];
    if (record.what != What::kRecover) continue;
    const bool is_open = !waits.empty() && waits.back().after == nullptr;
    if (record.entry == Entry::kBegin) waits.push_back({&life, &record, nullptr, view, nullptr});
    if (record.entry == Entry::kEnd && is_open) waits.back().end = &record;
    if (record.entry == Entry::kView && is_open && waits.back().end != nullptr)
      waits.back().after = &record;
    if (record.entry == Entry::kView) view = &record;
  }
  return waits;
}

class Waits {
 public:
  Waits(const Program& program, const std::vector<Life>& lives) : program_(program), lives_(lives) {
    for (const Life& life : lives) {
      for (const Wait& wait : waits_of(life)) all_.push_back(wait);
    }
  }

  std::vector<Finding> findings() const {
    std::vector<Finding> found;
    std::set<uint32_t> steps;
    for (const Wait& wait : all_) {
      const std::string text = why_needless(wait);
      if (!text.empty() && steps.insert(wait.begin->step).second)
        found.push_back({Class::kHang, wait.begin->step, text});
    }
    return found;
  }

 private:
  std::string why_needless(const Wait& wait) const;
  // The member's last call in that step that had begun by then, or null.
  const Wait* call_of(uint32_t slot, uint32_t step, uint64_t at_ns) const {
    const Wait* last = nullptr;
    for (const Wait& wait : all_) {
      if (wait.life->slot != slot || wait.begin->step != step || wait.begin->at_ns > at_ns)
        continue;
      if (!was_there(*wait.life, at_ns)) continue;
      if (last == nullptr || last->begin->at_ns < wait.begin->at_ns) last = &wait;
    }
    return last;
  }
  bool narrow_to_members(const Wait& wait, uint64_t* since_ns, uint64_t* until_ns) const;
  void narrow_to_quiet(uint64_t* since_ns, uint64_t until_ns) const;
  bool has_witness(const Wait& wait, uint32_t slot) const;
  const Life* joiner_of(const Wait& wait, uint32_t slot, uint64_t until_ns,
                        uint64_t* since_ns) const;

  const Program& program_;
  const std::vector<Life>& lives_;
  std::vector<Wait> all_;
};

// Whether the end of the slot's process is seen at once: a member of its host stayed in the view.
bool Waits::has_witness(const Wait& wait, uint32_t slot) const {
  const uint64_t stayed = wait.before->contributors & wait.after->contributors;
  for (uint32_t other = 0; other < kMaxSlots; ++other) {
    if (has(stayed, other) && program_.hosts[other] == program_.hosts[slot]) return true;
  }
  return false;
}

// The time in which all members were in the call. False: a member was not, or had ended unseen.
bool Waits::narrow_to_members(const Wait& wait, uint64_t* since_ns, uint64_t* until_ns) const {
  for (uint32_t slot = 0; slot < kMaxSlots; ++slot) {
    if (!has(wait.before->contributors, slot)) continue;
    if (!has(wait.after->contributors, slot)) {
      if (!has_witness(wait, slot)) return false;
      continue;
    }
    const Wait* const call = call_of(slot, wait.begin->step, wait.end->at_ns);
    if (call == nullptr) return false;
    *since_ns = std::max(*since_ns, call->begin->at_ns);
    if (call->end != nullptr) *until_ns = std::min(*until_ns, call->end->at_ns);
  }
  return true;
}

void Waits::narrow_to_quiet(uint64_t* since_ns, uint64_t until_ns) const {
  for (const Life& life : lives_) {
    if (life.ended_ns < until_ns) *since_ns = std::max(*since_ns, life.ended_ns);
    for (const Stop& stop : life.stops) {
      if (stop.from_ns >= until_ns) continue;
      const uint64_t to_ns = life.ended_ns == 0 ? stop.to_ns : std::min(stop.to_ns, life.ended_ns);
      *since_ns = std::max(*since_ns, std::min(to_ns, until_ns));
    }
  }
}

// A process that was in its join until then, or had come in meanwhile. Null: there is none.
const Life* Waits::joiner_of(const Wait& wait, uint32_t slot, uint64_t until_ns,
                             uint64_t* since_ns) const {
  for (const Life& life : lives_) {
    if (life.slot != slot || !was_there(life, until_ns)) continue;
    const uint32_t count = life.journal->count.load(std::memory_order_acquire);
    const Record* begin = nullptr;
    bool is_there = true;
    for (uint32_t i = 0; i < count; ++i) {
      const Record& record = life.journal->records[i];
      if (record.at_ns >= until_ns) break;
      if (record.what == What::kJoin && record.entry == Entry::kBegin) begin = &record;
      if (record.entry != Entry::kEnd) continue;
      if (record.what == What::kJoin)
        is_there = record.result == MEP_SUCCESS && record.at_ns > wait.begin->at_ns;
      if (is_own_end(record.result)) is_there = false;
    }
    if (begin == nullptr || !is_there) continue;
    *since_ns = std::max(*since_ns, begin->at_ns);
    return &life;
  }
  return nullptr;
}

// Empty: the call did not end by its limit, or something explains that.
std::string Waits::why_needless(const Wait& wait) const {
  const uint32_t step = wait.begin->step;
  if (wait.end == nullptr || wait.end->result != MEP_ERR_TIMEOUT) return {};
  if (wait.before == nullptr || wait.after == nullptr || step >= program_.steps.size()) return {};
  uint64_t since_ns = wait.begin->at_ns;
  uint64_t until_ns = wait.end->at_ns;
  if (!narrow_to_members(wait, &since_ns, &until_ns)) return {};
  narrow_to_quiet(&since_ns, until_ns);
  const uint64_t quiet_ns = uint64_t{wait.begin->limit_ms} * 10'000 * kQuietPercent;
  for (const uint32_t slot : program_.steps[step].slots) {
    if (has(wait.after->contributors, slot)) continue;
    uint64_t joins_since_ns = since_ns;
    const Life* const joiner = joiner_of(wait, slot, until_ns, &joins_since_ns);
    if (joiner == nullptr || until_ns < joins_since_ns + quiet_ns) continue;
    return formatted("%s recovered in vain, part %u, c%u: for the last %" PRIu64
                     " ms all members waited, and so did the joiner %s: ",
                     wait.life->name().c_str(), wait.begin->part, wait.begin->comm,
                     (until_ns - joins_since_ns) / 1'000'000, joiner->name().c_str()) +
           mep_result_string(wait.end->result) + " \"" + wait.end->text + "\"";
  }
  return {};
}

}  // namespace

std::vector<Finding> judge_waits(const Program& program, const std::vector<Life>& lives) {
  // There each such call is a finding already: it waits longer than anybody is stopped.
  if (program.stops_in_join()) return {};
  return Waits(program, lives).findings();
}

}  // namespace mep::programs
