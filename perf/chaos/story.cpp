// All that the ranks of a program wrote down, in words, and the names in it.
#include <signal.h>

#include <algorithm>
#include <cinttypes>

#include "formatted.hpp"
#include "oracle.hpp"

namespace mep::programs {

const char* name_of(What what) {
  constexpr const char* kNames[] = {"init",     "join",    "call",    "agree",     "split",
                                    "free",     "revoke",  "evict",   "abort",     "recover",
                                    "grow",     "sync",    "attach",  "ep create", "ep attach",
                                    "dispatch", "combine", "ep free", "destroy",   "message"};
  return kNames[static_cast<uint32_t>(what)];
}

const char* name_of(Class kind) {
  constexpr const char* kNames[] = {"crash", "wrong data", "verdict", "hang", "internal", "other"};
  return kNames[static_cast<uint32_t>(kind)];
}

bool Life::was_killed() const {
  return ended && signalled && status == SIGKILL;
}

bool Life::is_done() const {
  const uint32_t count = journal->count.load(std::memory_order_acquire);
  return count != 0 && journal->records[count - 1].entry == Entry::kDone;
}

std::string Life::name() const {
  return formatted("%u.%u", slot, generation);
}

std::string story(const Program& program, const std::vector<Life>& lives) {
  std::vector<std::pair<const Life*, const Record*>> all;
  for (const Life& life : lives) {
    const uint32_t count = life.journal->count.load(std::memory_order_acquire);
    for (uint32_t i = 0; i < count; ++i) all.emplace_back(&life, &life.journal->records[i]);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second->at_ns < b.second->at_ns; });
  constexpr const char* kEntries[] = {"",        "begins", "ended",  "WRONG",
                                      "members", "view",   "counts", "done"};
  std::string text = program.text() + "\n";
  const uint64_t start_ns = all.empty() ? 0 : all.front().second->at_ns;
  for (const auto& [life, record] : all) {
    text += formatted("%10.3f ms  %s  step %u.%u c%u %s %s",
                      static_cast<double>(record->at_ns - start_ns) / 1e6, life->name().c_str(),
                      record->step, record->part, record->comm, name_of(record->what),
                      kEntries[static_cast<uint32_t>(record->entry)]);
    if (record->entry == Entry::kEnd) text += std::string(" ") + mep_result_string(record->result);
    if (record->has_info) {
      text += formatted(" epoch %" PRIu64 " seq %" PRIu64 " contributors %" PRIx64
                        " failed %" PRIx64 " (%s)",
                        record->epoch, record->seq, record->contributors, record->failed,
                        mep_result_string(record->info_result));
    }
    if (record->entry == Entry::kMembers || record->entry == Entry::kView)
      text += formatted(" %" PRIx64, record->contributors);
    if (record->digest != 0) text += formatted(" digest %" PRIx64, record->digest);
    if (record->text[0] != '\0') text += std::string(" \"") + record->text + "\"";
    text += "\n";
  }
  const auto ms = [&](uint64_t at_ns) {
    return (static_cast<double>(at_ns) - static_cast<double>(start_ns)) / 1e6;
  };
  for (const Life& life : lives) {
    for (const Stop& stop : life.stops) {
      text += life.name() + formatted(" stopped at %.3f ms", ms(stop.from_ns));
      if (stop.to_ns != UINT64_MAX) text += formatted(" until %.3f ms", ms(stop.to_ns));
      text += "\n";
    }
    text += life.name() + (!life.ended      ? " had not ended"
                           : life.signalled ? formatted(" died of signal %d", life.status)
                                            : formatted(" ended with status %d", life.status));
    if (life.ended_ns != 0) text += formatted(", seen at %.3f ms", ms(life.ended_ns));
    text += "\n";
  }
  return text;
}

}  // namespace mep::programs
