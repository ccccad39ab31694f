// Calls that do not fit together, and what the error says of them.
#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "core/coll/steps.hpp"

namespace mep {
namespace {

// A rank that sleeps sees within this time that another's call differs: it wakes up now and then, and not each look is
// for that.
constexpr uint64_t kMostNs = 1'000'000'000;

// The call of a rank as operation `seq`; empty: not known here.
std::string text_of(Collectives& comm, uint64_t epoch, uint64_t seq, uint32_t rank) {
  Collective kind{};
  CollectiveArgs args;
  const bool is_known = comm.eager().call_of_root(epoch, seq, rank, &kind, &args) ||
                        comm.board().read(epoch, seq, rank, &kind, &args);
  return is_known ? text_of_call(kind, args) : std::string();
}

mep_result_t fail_differing(const Collectives& comm, const Operation& operation, uint32_t rank,
                            const std::string& theirs) {
  return fail(MEP_ERR_MISMATCH, "operation %llu of comm %s: rank %u called %s, this rank %s",
              static_cast<unsigned long long>(operation.seq), comm.comm().name().c_str(), rank,
              theirs.c_str(), text_of_call(operation.kind, operation.args).c_str());
}

// Both calls of the newest operation before this one in which another rank called something else, as far as it is
// known here.
std::string text_of_earlier(Collectives& comm, const Operation& operation) {
  for (uint64_t back = 1; back < CallBoard::kCards && back < operation.seq; ++back) {
    const uint64_t seq = operation.seq - back;
    const std::string own = text_of(comm, operation.epoch, seq, comm.rank());
    if (own.empty()) continue;
    for (const uint32_t peer : comm.adopted().live) {
      const std::string theirs = text_of(comm, operation.epoch, seq, peer);
      if (peer == comm.rank() || theirs.empty() || theirs == own) continue;
      std::string text = ": as operation " + std::to_string(seq) + " rank ";
      text += std::to_string(peer) + " called ";
      return text.append(theirs).append(", this rank ").append(own);
    }
  }
  return {};
}

}  // namespace

Step begin_mismatch(Collectives& comm, Operation& operation, uint32_t source) {
  {
    // Ranks of other hosts write the card, so a view change must not have begun.
    const PostingScope posting = comm.posting();
    if (!posting.allowed()) return Step::kPending;  // the view change decides
    comm.board().publish(operation, comm.adopted().live, posting);
  }
  const uint64_t timeout_ms = comm.comm().timeout_ms();
  const uint64_t wait_ns =
      timeout_ms == 0 ? kMostNs : std::min(kMostNs, timeout_ms * 1'000'000 / 4);
  operation.differs_from = source;
  operation.differs_until_ns = now_ns() + wait_ns;
  return tell_mismatch(comm, operation);
}

Step tell_mismatch(Collectives& comm, Operation& operation) {
  const uint32_t rank = operation.differs_from;
  const std::string theirs = text_of(comm, operation.epoch, operation.seq, rank);
  if (theirs.empty() && now_ns() < operation.differs_until_ns) return Step::kPending;
  const std::string own = text_of_call(operation.kind, operation.args);
  const char* const name = comm.comm().name().c_str();
  const auto number = static_cast<unsigned long long>(operation.seq);
  if (theirs.empty()) {
    return fail_step(operation, fail(MEP_ERR_MISMATCH,
                                     "operation %llu of comm %s: rank %u called another operation "
                                     "than this rank's %s, or with "
                                     "another count, type, operator or root",
                                     number, name, rank, own.c_str()));
  }
  if (theirs != own) return fail_step(operation, fail_differing(comm, operation, rank, theirs));
  return fail_step(
      operation,
      fail(MEP_ERR_MISMATCH,
           "operation %llu of comm %s: rank %u and this rank called %s, but broadcasts or scatters "
           "before it differed%s",
           number, name, rank, own.c_str(), text_of_earlier(comm, operation).c_str()));
}

mep_result_t settled_mismatch(Collectives& comm, const Operation& operation) {
  if (operation.retained != nullptr) {
    for (size_t i = 0; i < operation.retained->sources.size(); ++i) {
      Collective kind{};
      CollectiveArgs args;
      uint64_t word = 0;
      std::memcpy(&word, operation.retained->contributions[i].data(), sizeof word);
      const uint32_t source = operation.retained->sources[i];
      if (EagerRing::call_of_root(word, source, &kind, &args)) {
        return fail_differing(comm, operation, source, text_of_call(kind, args));
      }
    }
  }
  return fail(MEP_ERR_MISMATCH,
              "other ranks of comm %s called another operation than this rank's %s, or with "
              "another count, type, operator or root",
              comm.comm().name().c_str(), text_of_call(operation.kind, operation.args).c_str());
}

}  // namespace mep
