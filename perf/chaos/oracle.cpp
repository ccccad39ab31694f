#include "oracle.hpp"

#include <algorithm>
#include <cinttypes>
#include <map>
#include <tuple>

#include "formatted.hpp"

namespace mep::programs {
namespace {

// Growth of a rank's anonymous memory that is still no leak.
constexpr uint64_t kAllowedPages = 48;

bool is_replicated(What what) {
  return what == What::kCall || what == What::kAgree || what == What::kSplit ||
         what == What::kEpCreate;
}

bool is_personal(What what) {
  return what == What::kDispatch || what == What::kCombine;
}

struct Said {
  const Life* life;
  const Record* begin;
  const Record* end;  // null: it did not return
};

// By comm, step and part: who said what. Sync calls are compared by epoch and seq alone, because a
// joiner's first is a member's later one. Operations on streams have numbers of their own.
using Place = std::tuple<uint32_t, uint32_t, uint32_t, What>;
using Number = std::tuple<uint32_t, uint64_t, uint64_t, bool>;

// How the call that began at records[begin] ended, or null.
const Record* end_of(const Journal& journal, uint32_t begin) {
  const Record& call = journal.records[begin];
  const uint32_t count = journal.count.load(std::memory_order_acquire);
  for (uint32_t i = begin + 1; i < count; ++i) {
    const Record& end = journal.records[i];
    if (end.entry == Entry::kEnd && end.what == call.what && end.step == call.step &&
        end.part == call.part && end.comm == call.comm) {
      return &end;
    }
  }
  return nullptr;
}

// When this process began to leave the world; 0: it did not.
uint64_t left_at_ns(const Life& life) {
  const uint32_t count = life.journal->count.load(std::memory_order_acquire);
  for (uint32_t i = count; i-- > 0;) {
    const Record& record = life.journal->records[i];
    if (record.entry == Entry::kBegin && record.what == What::kDestroy) return record.at_ns;
  }
  return 0;
}

// Without a word.
bool is_dead(const Life& life) {
  const uint32_t count = life.journal->count.load(std::memory_order_acquire);
  return !life.is_done() && std::none_of(life.journal->records, life.journal->records + count,
                                         [](const Record& record) {
                                           return record.entry == Entry::kEnd &&
                                                  is_own_end(record.result);
                                         });
}

class Judge {
 public:
  Judge(const Program& program, const std::vector<Life>& lives)
      : program_(program), lives_(lives) {}

  std::vector<Finding> findings() {
    for (const Life& life : lives_) read(life);
    for (const Life& life : lives_) judge_end(life);
    for (const auto& [place, said] : calls_) judge_call(place, said);
    for (const auto& [number, said] : numbers_) judge_number(said);
    for (const Life& life : lives_) judge_reports(life);
    for (const Life& life : lives_) judge_repeats(life);
    for (const Life& life : lives_) judge_resources(life);
    for (Finding& wait : judge_waits(program_, lives_)) found_.push_back(std::move(wait));
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Finding& a, const Finding& b) { return a.step < b.step; });
    return found_;
  }

 private:
  void add(Class kind, uint32_t step, std::string text) {
    found_.push_back({kind, step, std::move(text)});
  }
  const char* step_name(uint32_t step) const {
    return step < program_.steps.size() ? name_of(program_.steps[step].kind) : "end";
  }

  void read(const Life& life);
  void judge_end(const Life& life);
  void judge_call(const Place& place, const std::vector<Said>& said);
  bool was_left_out(const Said& said, const Record& other) const;
  bool binds(const Said& said, const Record& other) const;
  void judge_pair(const Said& a, const Said& b);
  void judge_success(const Said& said, const std::vector<Said>& all);
  void judge_number(const std::vector<Said>& said);
  void judge_reports(const Life& life);
  void judge_repeats(const Life& life);
  void judge_resources(const Life& life);
  bool has_cause(const Life& life, const Record& record) const;
  bool may_fail(uint64_t slots) const;
  bool was_admitted(const Life& joiner) const;
  bool may_lack_quorum() const;
  // Points are passed in the start too.
  bool may_die_in_init() const {
    return std::any_of(program_.faults.begin(), program_.faults.end(), [](const Fault& fault) {
      return fault.generation == 0 &&
             (fault.kind == FaultKind::kKillInit || fault.kind == FaultKind::kKillPoint);
    });
  }
  bool may_kill(const Fault& fault) const {
    if (only_stops(fault.kind)) return false;
    return fault.kind != FaultKind::kStopInJoin || fault.ends_killed;
  }
  // With MEP_EP_LOSS_UNIFORM all ranks have one result of a dispatch or combine, where it ends.
  bool is_compared(const Record& record) const {
    if (is_replicated(record.what)) return true;
    if (program_.on_loss != MEP_EP_LOSS_UNIFORM) return false;
    return is_personal(record.what) && (record.part & 1) != 0;
  }
  // Null: it is no collective of the program.
  const OperationFacts* facts(const Record& record) const {
    if (record.what != What::kCall || record.step >= program_.steps.size()) return nullptr;
    const std::vector<Call>& calls = program_.steps[record.step].calls;
    return record.part < calls.size() ? &facts_of(calls[record.part].kind) : nullptr;
  }
  bool is_on_stream(const Record& record) const {
    return program_.device && (record.what == What::kCall || record.what == What::kSync);
  }
  // The root of a small one waits for nobody.
  bool only_root_gives(const Record& record) const {
    return facts(record) != nullptr && facts(record)->only_root_gives();
  }
  bool has_root(const Record& record) const {
    return facts(record) != nullptr && facts(record)->is_rooted;
  }
  bool is_lax(uint32_t step) const {
    return step < program_.steps.size() && program_.steps[step].kind == StepKind::kMismatch;
  }
  std::string told(const Said& said) const;

  const Program& program_;
  const std::vector<Life>& lives_;
  std::map<Place, std::vector<Said>> calls_;
  std::map<Number, std::vector<Said>> numbers_;
  std::map<uint32_t, uint64_t> members_;  // of each comm: slots
  std::vector<Finding> found_;
};

void Judge::read(const Life& life) {
  const uint32_t count = life.journal->count.load(std::memory_order_acquire);
  std::map<Place, size_t> open;
  for (uint32_t i = 0; i < count; ++i) {
    const Record& record = life.journal->records[i];
    const Place place{record.comm, record.step, record.part, record.what};
    if (record.entry == Entry::kMembers) members_[record.comm] |= record.contributors;
    if (record.entry == Entry::kBegin && is_compared(record)) {
      open[place] = calls_[place].size();
      calls_[place].push_back({&life, &record, nullptr});
    }
    if (record.entry != Entry::kEnd) continue;
    const auto at = open.find(place);
    if (at != open.end()) calls_[place][at->second].end = &record;
    const bool is_of_the_call = record.has_info && record.info_result == record.result;
    if (is_of_the_call && record.seq != 0 && record.result != MEP_ERR_MISMATCH &&
        !is_own_end(record.result) && (is_replicated(record.what) || record.what == What::kSync)) {
      numbers_[{record.comm, record.epoch, record.seq, is_on_stream(record)}].push_back(
          {&life, nullptr, &record});
    }
  }
}

std::string Judge::told(const Said& said) const {
  if (said.end == nullptr) return said.life->name() + " did not return";
  const Record& end = *said.end;
  std::string text = said.life->name() + ": " + mep_result_string(end.result);
  if (end.has_info) {
    text += formatted(" (epoch %" PRIu64 ", seq %" PRIu64 ", contributors %" PRIx64
                      ", failed %" PRIx64 ")",
                      end.epoch, end.seq, end.contributors, end.failed);
  }
  if (end.text[0] != '\0') text += std::string(" \"") + end.text + "\"";
  return text;
}

// Whether one of the slots' processes was to end, or has ended, before its time.
bool Judge::may_fail(uint64_t slots) const {
  for (const Life& life : lives_) {
    if ((slots >> life.slot & 1) != 0 && !life.is_done()) return true;
  }
  for (const Step& step : program_.steps) {
    if (step.kind == StepKind::kEvict && (slots >> step.target & 1) != 0) return true;
  }
  return false;
}

// Whether members were told that they had admitted it.
bool Judge::was_admitted(const Life& joiner) const {
  for (const Life& life : lives_) {
    const uint32_t count = life.journal->count.load(std::memory_order_acquire);
    for (uint32_t i = 0; i < count; ++i) {
      const Record& record = life.journal->records[i];
      if (record.entry != Entry::kEnd || record.result != MEP_SUCCESS ||
          (record.what != What::kRecover && record.what != What::kGrow)) {
        continue;
      }
      const std::vector<uint32_t>& slots = program_.steps[record.step].slots;
      if (std::count(slots.begin(), slots.end(), joiner.slot) != 0 &&
          program_.generation(joiner.slot, record.step + 1) == joiner.generation) {
        return true;
      }
    }
  }
  return false;
}

// Those that leave make the rest smaller. Where one of the rest dies and as many as live are dead, who lives
// cannot know whether it is alone, unless all are on one host, where the kernel says who has ended. A rank that begins
// to leave after the death sees it out first.
bool Judge::may_lack_quorum() const {
  if (program_.host_count() == 1) return false;
  const auto dead = std::count_if(lives_.begin(), lives_.end(), is_dead);
  return std::any_of(lives_.begin(), lives_.end(), [&](const Life& lost) {
    const uint32_t count = lost.journal->count.load(std::memory_order_acquire);
    if (!is_dead(lost) || count == 0) return false;
    const uint64_t lived_ns = lost.journal->records[count - 1].at_ns;
    const auto stayed = std::count_if(lives_.begin(), lives_.end(), [&](const Life& life) {
      const uint64_t left_ns = left_at_ns(life);
      return !is_dead(life) && (!life.is_done() || left_ns == 0 || left_ns > lived_ns);
    });
    return stayed <= dead;
  });
}

bool Judge::has_cause(const Life& life, const Record& record) const {
  const bool stops_in_join = program_.stops_in_join();
  const auto aborted = [&] {
    return std::any_of(program_.steps.begin(), program_.steps.end(), [&](const Step& step) {
      return step.kind == StepKind::kAbort && step.actor == life.slot;
    });
  };
  const auto evicted = [&] {
    return std::any_of(program_.steps.begin(), program_.steps.end(), [&](const Step& step) {
      return step.kind == StepKind::kEvict && step.target == life.slot;
    });
  };
  switch (record.result) {
    case MEP_SUCCESS:
      return true;
    case MEP_PARTIAL:
      // In place of PEER_LEFT too.
      if (program_.has(StepKind::kLeave)) return true;
      [[fallthrough]];
    case MEP_ERR_PEER_FAILED:
      // On GPUs also where the root has left.
      if (program_.device && has_root(record) && program_.has(StepKind::kLeave)) return true;
      // A dispatch or combine that a change has cut lacks everybody who had not come so far.
      if (!is_personal(record.what) && record.has_info && record.failed != 0 &&
          record.info_result == record.result) {
        return may_fail(record.failed);
      }
      return may_fail(~uint64_t{0});
    case MEP_ERR_PEER_LEFT:
      return program_.has(StepKind::kLeave);
    case MEP_ERR_REVOKED:
      return program_.has(StepKind::kRevoke);
    case MEP_ERR_TIMEOUT:
      return program_.has(StepKind::kTimeout) ||
             (record.what == What::kRecover && !stops_in_join) || record.what == What::kGrow ||
             program_.has(StepKind::kMismatch) || may_die_in_init() ||
             (record.what == What::kJoin && !was_admitted(life));
    case MEP_ERR_MISMATCH:
      // A start that fails has no GPUs yet.
      if (program_.device && record.what == What::kJoin)
        return may_die_in_init() && !was_admitted(life);
      return program_.has(StepKind::kMismatch);
    case MEP_ERR_EVICTED:
      return evicted() || program_.may_be_left_out(life.slot, life.generation);
    case MEP_ERR_NO_QUORUM:
      return may_lack_quorum();
    case MEP_ERR_ABORTED:
      return aborted();
    case MEP_ERR_NOT_FOUND:
      return record.what == What::kAttach;
    case MEP_ERR_SYSTEM:
      return record.what == What::kJoin && !was_admitted(life);
    case MEP_ERR_UNSUPPORTED:
      // Kernels of one more communicator or EP object may not fit on a GPU that ranks share.
      if (!program_.device || program_.mode != Mode::kThreads) return false;
      return record.what == What::kSplit || record.what == What::kEpCreate;
    case MEP_ERR_BOOTSTRAP:
      return may_die_in_init() || (record.what == What::kJoin && !was_admitted(life));
    default:
      return false;
  }
}

void Judge::judge_end(const Life& life) {
  const uint32_t count = life.journal->count.load(std::memory_order_acquire);
  const uint32_t step = life.journal->step.load(std::memory_order_acquire);
  if (!life.ended) {
    const Record* last = count == 0 ? nullptr : &life.journal->records[count - 1];
    add(Class::kHang, step,
        life.name() + formatted(" hangs in step %u (%s), last: %s of %s on c%u", step,
                                step_name(step),
                                last == nullptr                ? "nothing"
                                : last->entry == Entry::kBegin ? "begin"
                                                               : "end",
                                last == nullptr ? "" : name_of(last->what),
                                last == nullptr ? 0 : last->comm));
  } else if (life.signalled && !life.was_killed()) {
    add(Class::kCrash, step, life.name() + formatted(" died of signal %d", life.status));
  } else if (!life.signalled && life.status != 0 && life.status != 3 && life.status != 4) {
    add(Class::kCrash, step, life.name() + formatted(" ended with status %d", life.status));
  } else if (life.signalled) {
    const bool planned =
        std::any_of(program_.faults.begin(), program_.faults.end(), [&](const Fault& fault) {
          return fault.slot == life.slot && fault.generation == life.generation && may_kill(fault);
        });
    if (!planned) add(Class::kCrash, step, life.name() + " was killed by nobody");
  }
  for (uint32_t i = 0; i < count; ++i) {
    const Record& record = life.journal->records[i];
    if (record.entry == Entry::kWrong) {
      add(Class::kData, record.step,
          life.name() +
              formatted(", part %u, c%u, %s: ", record.part, record.comm, name_of(record.what)) +
              record.text);
    }
    if (record.entry != Entry::kEnd || has_cause(life, record)) continue;
    add(record.result == MEP_ERR_TIMEOUT    ? Class::kHang
        : record.result == MEP_ERR_INTERNAL ? Class::kInternal
                                            : Class::kVerdict,
        record.step,
        "without a cause, " + std::string(name_of(record.what)) +
            formatted(", part %u, c%u: ", record.part, record.comm) +
            told({&life, nullptr, &record}));
  }
}

// Whether the others ended the call without this rank, to which it was a success: they name it, and it had no later step
// with them.
bool Judge::was_left_out(const Said& said, const Record& other) const {
  const uint64_t own = uint64_t{1} << said.life->slot;
  if (!other.has_info || other.info_result != other.result || (other.failed & own) == 0) {
    return false;
  }
  const Journal& journal = *said.life->journal;
  const Record* const last = journal.records + journal.count.load(std::memory_order_acquire);
  return std::none_of(said.end, last, [&](const Record& later) {
    return later.entry == Entry::kEnd && later.result == MEP_SUCCESS &&
           later.step != said.end->step && (later.contributors & ~own) != 0;
  });
}

// A success, or a mismatch that it saw, of one that died afterwards binds nobody, nor does a success of one that was evicted
// before the others had heard of it.
bool Judge::binds(const Said& said, const Record& other) const {
  const mep_result_t result = said.end->result;
  if (result != MEP_SUCCESS && result != MEP_ERR_MISMATCH) return true;
  return said.life->is_done() && (result != MEP_SUCCESS || !was_left_out(said, other));
}

void Judge::judge_pair(const Said& a, const Said& b) {
  const Record& x = *a.end;
  const Record& y = *b.end;
  const auto differ = [&](Class kind, const char* what) {
    add(kind, x.step,
        formatted("%s, part %u, c%u, %s: ", name_of(x.what), x.part, x.comm, what) + told(a) +
            " | " + told(b));
  };
  if (x.result != y.result) {
    if (binds(a, y) && binds(b, x)) differ(Class::kVerdict, "results differ");
    return;
  }
  // A nonblocking call that is refused has no request to ask about.
  if (is_personal(x.what)) return;
  const bool both_live = a.life->is_done() && b.life->is_done();
  // Whose root is dead, a rank ends by itself: if it dies before others hear of it, they are in a later epoch.
  // On a stream an operation that only reports a change has no number.
  const bool has_numbers = x.seq != 0 && y.seq != 0;
  const bool binds_all =
      (both_live || x.result == MEP_SUCCESS || !has_root(x)) && (has_numbers || !is_on_stream(x));
  if (binds_all && x.has_info && y.has_info && (x.epoch != y.epoch || x.seq != y.seq)) {
    return differ(Class::kVerdict, "epochs or seqs differ");
  }
  if (x.result != MEP_SUCCESS) {
    // The knowledge of a rank that died afterwards binds nobody.
    if (both_live && x.has_info && y.has_info && x.failed != y.failed)
      differ(Class::kVerdict, "failed ranks differ");
    return;
  }
  if (x.has_info && y.has_info && x.contributors != y.contributors) {
    return differ(Class::kVerdict, "contributors differ");
  }
  if (x.digest != y.digest) differ(Class::kData, "bytes differ");
}

void Judge::judge_success(const Said& said, const std::vector<Said>& all) {
  const Record& end = *said.end;
  if (!is_replicated(end.what) || end.what == What::kEpCreate) return;
  if (!end.has_info || end.info_result != MEP_SUCCESS) {
    add(Class::kVerdict, end.step, "a success that mep_comm_last_op does not know: " + told(said));
    return;
  }
  if (only_root_gives(end)) return;
  for (const Said& other : all) {
    const bool is_in = (end.contributors >> other.life->slot & 1) != 0;
    if (!is_in && other.life->is_done()) {
      add(Class::kVerdict, end.step,
          "a success without " + other.life->name() + ", which lives: " + told(said));
    }
    if (is_in && end.at_ns < other.begin->at_ns) {
      const bool has_double = std::count_if(all.begin(), all.end(), [&](const Said& s) {
                                return s.life->slot == other.life->slot;
                              }) > 1;
      if (has_double) continue;
      add(Class::kData, end.step,
          "ended before " + other.life->name() + " had begun: " + told(said));
    }
  }
}

void Judge::judge_call(const Place& place, const std::vector<Said>& all) {
  const uint32_t step = std::get<1>(place);
  if (is_lax(step)) return;
  const Said* first = nullptr;
  const Said* success = nullptr;
  for (const Said& said : all) {
    if (said.end == nullptr) continue;
    if (said.end->result == MEP_SUCCESS) {
      judge_success(said, all);
      if (success != nullptr && found_.size() < 64) judge_pair(*success, said);
      success = success == nullptr ? &said : success;
      continue;
    }
    if (is_own_end(said.end->result)) continue;
    if (first != nullptr) judge_pair(*first, said);
    first = first == nullptr ? &said : first;
  }
  if (first == nullptr || success == nullptr) return;
  for (const Said& said : all) {
    if (said.end == nullptr || said.end->result != MEP_SUCCESS || !binds(said, *first->end)) {
      continue;
    }
    judge_pair(said, *first);
    break;
  }
}

// One number is one operation. A record of a sync may bind nobody: each is compared with each.
void Judge::judge_number(const std::vector<Said>& all) {
  const Said& a = all.front();
  for (const Said& b : all) {
    if (a.end->what == b.end->what &&
        (a.end->what == What::kSync ||
         (a.end->step == b.end->step && a.end->part == b.end->part))) {
      for (const Said* c = &a; b.end->what == What::kSync && c != &b; ++c) {
        if (c->end->what == What::kSync) judge_pair(*c, b);
      }
      continue;
    }
    if (is_lax(a.end->step) || is_lax(b.end->step)) continue;
    add(Class::kVerdict, std::min(a.end->step, b.end->step),
        formatted("one number, step %u and step %u: ", a.end->step, b.end->step) + told(a) + " | " +
            told(b));
    return;
  }
}

// A rank that is missing from a success, or was replaced, was reported before, on that comm, in the order of the calls.
void Judge::judge_reports(const Life& life) {
  struct Known {
    uint64_t present = 0;   // slots of the last success; what is not known is left out
    uint64_t replaced = 0;  // of those, since then
    uint64_t reported = 0;  // since then
  };
  std::map<uint32_t, Known> known;
  uint32_t world = kWorld;
  bool is_joiner = false;
  const uint32_t count = life.journal->count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const Record& begin = life.journal->records[i];
    const bool in_step = begin.step < program_.steps.size();
    is_joiner = is_joiner || begin.what == What::kJoin;
    if (begin.entry == Entry::kMembers) {
      Known& now = known[begin.comm];
      now = {};
      if (in_step && program_.steps[begin.step].kind == StepKind::kGrow && begin.comm != kWorld) {
        // The places of ranks that went before are in it too. A growth tells on the new comm what it skipped, and not what a
        // call has told on the comm before. On GPUs the library's own operation takes that in.
        const Known& before = known[world];
        now.present = program_.device ? 0 : before.present & ~before.reported & begin.contributors;
        world = begin.comm;
      } else if (!is_joiner) {
        now.present = begin.contributors;
      }
    }
    if (begin.entry != Entry::kBegin) continue;
    // On GPUs the library's own operation takes in what an admission goes over, on each comm.
    if (begin.what == What::kRecover && program_.device) known.clear();
    if (begin.what == What::kRecover && in_step && !program_.device) {
      const Record* const end = end_of(*life.journal, i);
      const std::vector<uint32_t>& slots = program_.steps[begin.step].slots;
      // The digest counts those that were admitted; a place that was not free is asked for in vain.
      const bool all_came =
          end != nullptr && end->result == MEP_SUCCESS && end->digest == slots.size();
      for (const uint32_t slot : slots) {
        if (all_came) known[begin.comm].replaced |= uint64_t{1} << slot;
      }
    }
    if (!is_compared(begin) && begin.what != What::kSync) continue;
    const Record* const end = end_of(*life.journal, i);
    Known& now = known[begin.comm];
    // A rank that was killed may have been told what it could not write down; an error without a record names nobody.
    if (end == nullptr || (!end->has_info && end->result != MEP_SUCCESS)) now.present = 0;
    if (end == nullptr || !end->has_info) continue;
    if (end->result != MEP_SUCCESS) {
      now.reported |= end->failed;
      continue;
    }
    // agree goes over what is known and leaves the report to the next call; a dispatch or combine says less of who is
    // there.
    if (only_root_gives(*end) || end->what == What::kAgree || is_personal(end->what)) continue;
    const uint64_t gone = ~end->contributors | now.replaced;
    const uint64_t missing = now.present & gone & ~now.reported;
    if (missing != 0) {
      add(Class::kVerdict, end->step,
          formatted("%s, part %u, c%u: the end of slots %" PRIx64 " was never told: ",
                    name_of(end->what), end->part, end->comm, missing) +
              told({&life, nullptr, end}));
    }
    now = {end->contributors, 0, 0};
  }
}

// The end of an epoch is told by one call of a comm. Those that their dead root ends, and those that were pending
// together, may tell it too.
void Judge::judge_repeats(const Life& life) {
  std::map<uint32_t, uint64_t> ended;
  const uint32_t count = life.journal->count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const Record& end = life.journal->records[i];
    const bool is_alone = end.what == What::kSync || end.what == What::kAgree ||
                          (end.step < program_.steps.size() && end.what == What::kCall &&
                           program_.steps[end.step].kind == StepKind::kCall && !has_root(end));
    if (end.entry != Entry::kEnd || end.result != MEP_ERR_PEER_FAILED || !is_alone) continue;
    if (!end.has_info || end.info_result != end.result || end.seq == 0) continue;
    const auto [at, is_first] = ended.emplace(end.comm, end.epoch);
    if (!is_first && at->second == end.epoch) {
      add(Class::kVerdict, end.step,
          "the end of an epoch is told twice: " + told({&life, nullptr, &end}));
    }
    at->second = end.epoch;
  }
}

// Nothing may grow beyond the most that the first half of the run has seen.
void Judge::judge_resources(const Life& life) {
  // The first counts still contain what a first view change brings once for all.
  constexpr size_t kWarmUp = 4;
  std::vector<Resources> held;
  const uint32_t count = life.journal->count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const Record& record = life.journal->records[i];
    if (record.entry == Entry::kCount) held.push_back(record.resources);
  }
  if (held.size() < 2 * kWarmUp) return;
  const auto judge = [&](uint64_t Resources::*what, uint64_t allowed, const char* name) {
    uint64_t most = 0;
    for (size_t i = kWarmUp; i <= held.size() / 2; ++i) most = std::max(most, held[i].*what);
    if (held.back().*what <= most + allowed) return;
    add(Class::kOther, life.journal->step.load(std::memory_order_acquire),
        life.name() + formatted(" leaks %s: %" PRIu64 ", %" PRIu64 " in the first half", name,
                                held.back().*what, most));
  };
  judge(&Resources::fds, 0, "descriptors");
  // A process that takes the meeting over has one listener more.
  judge(&Resources::listeners, 1, "listening sockets");
  judge(&Resources::threads, 0, "threads");
  judge(&Resources::mappings, 0, "mappings");
  judge(&Resources::pages, kAllowedPages, "pages");
}

}  // namespace

std::vector<Finding> judge(const Program& program, const std::vector<Life>& lives) {
  return Judge(program, lives).findings();
}

}  // namespace mep::programs
