// The control thread's side of a comm's collectives: freeze, flush, prepare, install.
#include <algorithm>

#include "base/test_delay.hpp"
#include "core/coll/collectives.hpp"

namespace mep {

membership::ChannelState Collectives::freeze() {
  const Channel::Frozen frozen = engine_.freeze();
  MEP_TEST_DELAY_POINT("wedged");
  engine_.await_posters();
  const std::lock_guard lock(engine_.mutex());
  gather_held(frozen.done);
  return {comm().id(), engine_.id(), held_, std::max(frozen.entered, held_)};
}

void Collectives::terminate() {
  (void)engine_.freeze();
  engine_.await_posters();
}

// Every contribution is here, or all ranks have all data: this rank can complete it whatever happens.
bool Collectives::is_whole(uint64_t epoch, uint64_t seq, RetainedOperation* kept) const {
  if (cells_.retain(epoch, seq, kept)) return true;
  *kept = {};
  return bulk_.finished_by_all(epoch, seq);
}

// An operation that is whole counts as done, and this rank promises so. Its contributions leave the cells,
// which a later epoch uses again.
// Not before this rank has adopted the view: until then its cells are laid out as in the epoch before, and it
// has given nothing in this one, so nothing but what a root gave could be complete. Others hold that.
void Collectives::gather_held(uint64_t done) {
  held_ = done;
  while (engine_.is_adopted()) {
    const uint64_t seq = held_ + 1;
    cells_.absorb_blocks(adopted().epoch, seq);
    RetainedOperation kept;
    if (!is_whole(adopted().epoch, seq, &kept)) return;
    if (!kept.sources.empty()) retained_[seq] = std::move(kept);
    held_ = seq;
  }
}

bool Collectives::holds(uint64_t seq) {
  const uint64_t done = engine_.done();
  if (seq <= done) return true;
  const std::lock_guard lock(engine_.mutex());
  // What has come since does not count in this change: the others go by what was reported, and a rank that
  // leaves because of this answer takes what it knows with it.
  if (engine_.frozen()) return seq <= held_;
  if (!engine_.is_adopted()) return false;
  for (uint64_t next = done + 1; next <= seq; ++next) {
    RetainedOperation kept;
    if (!is_whole(adopted().epoch, next, &kept)) return false;
  }
  return true;
}

void Collectives::give_flush(uint64_t from_seq, uint64_t to_seq, const FlushSink& sink) {
  const std::lock_guard lock(engine_.mutex());
  for (uint64_t seq = from_seq; seq <= to_seq; ++seq) {
    RetainedOperation kept;
    const auto it = retained_.find(seq);
    const auto given = given_.find(seq);
    if (it != retained_.end()) {
      kept = it->second;
    } else if (given != given_.end()) {
      kept = given->second;
    } else if (!engine_.is_adopted() || !cells_.retain(adopted().epoch, seq, &kept)) {
      continue;  // a large operation: whoever is behind has its data already
    }
    for (size_t i = 0; i < kept.sources.size(); ++i) sink(seq, kept.sources[i], kept.cells[i]);
  }
}

void Collectives::take_flush(uint64_t seq, uint32_t source, std::span<const std::byte> bytes) {
  if (source >= size() || bytes.size() != cells_.cell_bytes()) return;
  const std::lock_guard lock(engine_.mutex());
  RetainedOperation& kept = retained_[seq];
  const auto place = std::lower_bound(kept.sources.begin(), kept.sources.end(), source);
  if (place != kept.sources.end() && *place == source) return;
  const auto index = place - kept.sources.begin();
  kept.sources.insert(place, source);
  kept.cells.emplace(kept.cells.begin() + index, bytes.begin(), bytes.end());
}

// This rank may be asked for these after it has prepared. An operation whose contributions are all here
// was entered by all, so all have completed what was before it; the same goes for a large one.
// What ended without cells, by a root that is gone, has nothing to keep and says nothing of what was before. Of
// these there may be more in a row than there are cells, and what was before is in its cells all the same: nobody
// posts further than that beyond what all have passed.
void Collectives::keep_for_others() {
  if (!engine_.is_adopted()) return;
  const uint64_t done = engine_.done();
  const bool ends_rootless = rootless_first_ <= done && done <= rootless_last_;
  const uint64_t last = ends_rootless ? rootless_first_ - 1 : done;
  for (uint64_t seq = last; seq + cells_.depth() > last && seq > 0; --seq) {
    RetainedOperation kept;
    if (bulk_.finished_by_all(adopted().epoch, seq)) return;
    if (!cells_.retain(adopted().epoch, seq, &kept)) continue;
    const bool entered_by_all = kept.sources.size() == adopted().live.size();
    given_[seq] = std::move(kept);
    if (entered_by_all) return;
  }
}

void Collectives::prepare() {
  const std::lock_guard lock(engine_.mutex());
  keep_for_others();
  cells_.zero_words();
  bulk_.zero_words();
}

void Collectives::install(const std::shared_ptr<const CommChange>& change,
                          const membership::Proposal& decision) {
  const std::lock_guard lock(engine_.mutex());
  given_.clear();
  engine_.install(engine_.verdict_by(change, decision));
}

void Collectives::resume() {
  const std::lock_guard lock(engine_.mutex());
  given_.clear();
  // What was copied out stays in the cells too: operations go on from there.
  std::erase_if(retained_, [this](const auto& entry) { return entry.first > engine_.done(); });
  engine_.resume();
}

}  // namespace mep
