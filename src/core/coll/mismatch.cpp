// Calls that do not fit together, and what the error says of them.
#include <algorithm>

#include "base/clock.hpp"
#include "core/coll/steps.hpp"

namespace mep {
namespace {

// A rank that computes or shares a core comes to it within this time.
constexpr uint64_t kMostNs = 100'000'000;

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
  const bool will_tell = !comm.eager().is_from_root(operation.seq, source);
  operation.differs_from = source;
  operation.differs_until_ns = now_ns() + (will_tell ? wait_ns : 0);
  return tell_mismatch(comm, operation);
}

Step tell_mismatch(const Collectives& comm, Operation& operation) {
  CollectiveArgs theirs;
  Collective kind{};
  const bool is_known = comm.board().read(operation, operation.differs_from, &theirs, &kind);
  if (!is_known && now_ns() < operation.differs_until_ns) return Step::kPending;
  const std::string own = text_of_call(operation.kind, operation.args);
  const std::string other = is_known ? text_of_call(kind, theirs) : std::string();
  const char* const name = comm.comm().name().c_str();
  const auto number = static_cast<unsigned long long>(operation.seq);
  if (is_known && other != own) {
    return fail_step(
        operation,
        fail(MEP_ERR_MISMATCH, "operation %llu of comm %s: rank %u called %s, this rank %s", number,
             name, operation.differs_from, other.c_str(), own.c_str()));
  }
  if (is_known) {
    return fail_step(operation, fail(MEP_ERR_MISMATCH,
                                     "operation %llu of comm %s: rank %u and this rank called %s, "
                                     "but broadcasts or scatters "
                                     "before it differed",
                                     number, name, operation.differs_from, own.c_str()));
  }
  return fail_step(operation, fail(MEP_ERR_MISMATCH,
                                   "operation %llu of comm %s: rank %u called another operation "
                                   "than this rank's %s, or with "
                                   "another count, type, operator or root",
                                   number, name, operation.differs_from, own.c_str()));
}

}  // namespace mep
