// The control thread's side of a comm's collectives: freeze, catch-up, prepare, install.
#include <algorithm>

#include "base/test_delay.hpp"
#include "core/coll/collectives.hpp"

namespace mep {

void Collectives::stop() {
  (void)engine_.freeze();
  MEP_TEST_DELAY_POINT("frozen");
}

membership::ChannelState Collectives::freeze() {
  const Channel::Frozen frozen = engine_.freeze();
  const std::lock_guard lock(engine_.mutex());
  gather_completable(frozen.done);
  return {comm().id(), engine_.id(), completable_, std::max(frozen.entered, completable_)};
}

void Collectives::terminate() {
  engine_.close();
}

// Every contribution is here, or all ranks have all data: this rank can complete the operation whatever happens.
bool Collectives::is_completable(uint64_t epoch, uint64_t seq, RetainedOperation* retained) const {
  if (eager_.retain(epoch, seq, retained)) return true;
  *retained = {};
  return pipeline_.finished_by_all(epoch, seq);
}

// An operation that this rank can complete counts as completed from now on: this rank reports it so. Its
// contributions are copied out of the slots, which a later epoch uses again.
// Not before this rank has adopted the view: until then its slots are laid out as in the epoch before, and it has
// contributed nothing in this one. So only an operation in which just the root gives could be completable, and other
// ranks have that one's contribution too.
void Collectives::gather_completable(uint64_t done) {
  completable_ = done;
  while (engine_.is_adopted()) {
    const uint64_t seq = completable_ + 1;
    eager_.absorb_batches(adopted().epoch, seq);
    RetainedOperation retained;
    if (!is_completable(adopted().epoch, seq, &retained)) return;
    if (!retained.sources.empty()) retained_pending_[seq] = std::move(retained);
    completable_ = seq;
  }
}

bool Collectives::holds(uint64_t seq) {
  const uint64_t done = engine_.done();
  if (seq <= done) return true;
  const std::lock_guard lock(engine_.mutex());
  // Contributions that have come since the freeze do not count in this change: the others go by what was reported,
  // and a rank that leaves because of this answer takes what it has with it.
  if (engine_.frozen()) return seq <= completable_;
  if (!engine_.is_adopted()) return false;
  for (uint64_t next = done + 1; next <= seq; ++next) {
    RetainedOperation retained;
    if (!is_completable(adopted().epoch, next, &retained)) return false;
  }
  return true;
}

void Collectives::give_catch_up(uint64_t from_seq, uint64_t to_seq, const CatchUpSink& sink) {
  const std::lock_guard lock(engine_.mutex());
  for (uint64_t seq = from_seq; seq <= to_seq; ++seq) {
    RetainedOperation retained;
    const auto pending = retained_pending_.find(seq);
    const auto completed = retained_completed_.find(seq);
    if (pending != retained_pending_.end()) {
      retained = pending->second;
    } else if (completed != retained_completed_.end()) {
      retained = completed->second;
    } else if (!engine_.is_adopted() || !eager_.retain(adopted().epoch, seq, &retained)) {
      continue;  // a large operation: whoever is behind has its data already
    }
    for (size_t i = 0; i < retained.sources.size(); ++i)
      sink(seq, retained.sources[i], retained.contributions[i]);
  }
}

void Collectives::take_catch_up(uint64_t seq, uint32_t source, std::span<const std::byte> bytes) {
  if (source >= size() || !eager_.is_retained_size(bytes.size())) return;
  const std::lock_guard lock(engine_.mutex());
  RetainedOperation& retained = retained_pending_[seq];
  const auto place = std::lower_bound(retained.sources.begin(), retained.sources.end(), source);
  if (place != retained.sources.end() && *place == source) return;
  const auto index = place - retained.sources.begin();
  retained.sources.insert(place, source);
  retained.contributions.emplace(retained.contributions.begin() + index, bytes.begin(),
                                 bytes.end());
}

// Other ranks may ask for these after this rank has prepared. An operation whose contributions are all here was
// entered by all, so all have completed the ones before it, and the search ends there; the same holds for a large
// one that all have finished.
// An operation that ended because its root is gone has no contributions, so there is nothing to retain, and it shows
// nothing about the ones before it. There may be more of these in a row than the ring has uses. The contributions
// before them are in their slots all the same, because nobody posts more than `depth` operations beyond what all have
// passed.
void Collectives::retain_for_others() {
  if (!engine_.is_adopted()) return;
  const uint64_t done = engine_.done();
  const bool ends_rootless = rootless_first_ <= done && done <= rootless_last_;
  const uint64_t last = ends_rootless ? rootless_first_ - 1 : done;
  for (uint64_t seq = last; seq + eager_.depth() > last && seq > 0; --seq) {
    RetainedOperation retained;
    if (pipeline_.finished_by_all(adopted().epoch, seq)) return;
    if (!eager_.retain(adopted().epoch, seq, &retained)) continue;
    const bool entered_by_all = retained.sources.size() == adopted().live.size();
    retained_completed_[seq] = std::move(retained);
    if (entered_by_all) return;
  }
}

void Collectives::prepare() {
  const std::lock_guard lock(engine_.mutex());
  retain_for_others();
  eager_.zero_words();
  pipeline_.zero_words();
}

void Collectives::install(const std::shared_ptr<const CommChange>& change,
                          const membership::Proposal& committed) {
  const std::lock_guard lock(engine_.mutex());
  retained_completed_.clear();
  engine_.install(engine_.decision_by(change, committed));
}

void Collectives::resume() {
  const std::lock_guard lock(engine_.mutex());
  retained_completed_.clear();
  // Contributions that were copied out are still in the slots too: operations go on from there.
  std::erase_if(retained_pending_,
                [this](const auto& entry) { return entry.first > engine_.done(); });
  engine_.resume();
}

}  // namespace mep
