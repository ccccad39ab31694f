#include "core/comm/agreement.hpp"

#include <cstdio>
#include <memory>

#include "base/rank_list.hpp"

namespace mep {
namespace {

// The gravest error counts, of those the highest rank's: one number, so that its maximum says both.
uint64_t status_word(mep_result_t result, uint32_t rank) {
  return result == MEP_SUCCESS ? 0
                               : static_cast<uint64_t>(-static_cast<int64_t>(result)) << 32 | rank;
}

}  // namespace

mep_result_t find_largest(Comm& comm, uint64_t own, uint64_t* largest) {
  return comm.run(Collective::k_allreduce, {&own, largest, 1, MEP_UINT64, MEP_MAX, 0});
}

mep_result_t agree_on_step(Comm& comm, mep_result_t own, const char* what) {
  char own_text[kErrorTextBytes] = "";
  if (own != MEP_SUCCESS) (void)snprintf(own_text, sizeof own_text, "%s", last_error_text());
  uint64_t worst = 0;
  MEP_TRY(find_largest(comm, status_word(own, comm.rank()), &worst));
  if (worst == 0) return MEP_SUCCESS;
  const auto result = static_cast<mep_result_t>(-static_cast<int64_t>(worst >> 32));
  const auto rank = static_cast<uint32_t>(worst);
  if (rank == comm.rank()) return fail(result, "%s", own_text);
  return fail(result, "rank %u of comm %s could not %s: %s%s%s", rank, comm.name().c_str(), what,
              mep_result_string(result),
              own == MEP_SUCCESS ? "" : "; this rank neither: ", own_text);
}

PassedReports::~PassedReports() {
  if (met_.empty()) return;
  const KeepErrorText kept;
  (void)comm_.world().attempt([&] {
    for (const Reports::Report& report : met_) comm_.defer_report(report);
  });
}

mep_result_t PassedReports::run(FunctionRef<mep_result_t()> operation) {
  for (;;) {
    const mep_result_t result = operation();
    const bool is_loss = result == MEP_ERR_PEER_FAILED || result == MEP_ERR_PEER_LEFT;
    const bool is_revoke = result == MEP_ERR_REVOKED && over_ == kLossesAndRevokes;
    if (!is_loss && !is_revoke) return result;
    met_.push_back(comm_.collectives().last_report());
  }
}

mep_result_t share_reports(Comm& grown, const PassedReports* passed) {
  // A set of ranks for each of the two results.
  const size_t words = rank_words(grown.size());
  RankBits own(2 * words);
  RankBits all(own.size());
  for (size_t i = 0; passed != nullptr && i < passed->met().size(); ++i) {
    const CommChange& change = *passed->met()[i];
    const size_t at = change.result == MEP_ERR_PEER_LEFT ? words : 0;
    for (size_t word = 0; word < change.missing.size(); ++word)
      own[at + word] |= change.missing[word];
  }
  MEP_TRY(grown.run(Collective::k_allreduce,
                    {own.data(), all.data(), own.size(), MEP_UINT64, MEP_OR, 0}));
  const auto change = std::make_shared<CommChange>();
  change->result = MEP_ERR_PEER_LEFT;
  change->missing.assign(words, 0);
  std::vector<int32_t> gone;
  for (uint32_t rank = 0; rank < grown.size(); ++rank) {
    const bool failed = has_rank(all, rank);
    if (!failed && !has_rank(all, static_cast<uint32_t>(64 * words) + rank)) continue;
    if (failed) change->result = MEP_ERR_PEER_FAILED;
    add_rank(&change->missing, rank);
    gone.push_back(static_cast<int32_t>(rank));
  }
  if (gone.empty()) return MEP_SUCCESS;
  change->text = list_ranks(gone) + " of comm " + grown.name() + " went while it was made";
  grown.defer_report(change);
  return MEP_SUCCESS;
}

mep_result_t RankValues::gather(Comm& comm, std::span<const uint64_t> mine) {
  count_ = mine.size();
  all_.clear();
  for (uint32_t rank = 0; rank < comm.size(); ++rank) {
    all_.insert(all_.end(), mine.begin(), mine.end());
  }
  CollectiveArgs args;
  args.send = mine.data();
  args.receive = all_.data();
  args.count = count_;
  args.dtype = MEP_UINT64;
  return comm.run(Collective::k_allgather, args);
}

uint32_t RankValues::first_other(uint32_t ranks, size_t index) const {
  uint32_t rank = 0;
  while (rank < ranks && of(rank, index) == of(0, index)) ++rank;
  return rank;
}

}  // namespace mep
