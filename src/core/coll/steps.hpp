// Phases that several collectives share.
#pragma once

#include "base/status.hpp"
#include "core/comm/comm.hpp"

namespace mep {

inline Step fail_step(Operation& operation, mep_result_t result) {
  operation.result = result;
  return Step::kFailed;
}

// Posts this rank's small contribution as soon as its cells are free. kDone: posted.
inline Step enter_small(Comm& comm, Operation& operation, const void* payload, size_t bytes) {
  if (!comm.cells().free(operation.seq)) return Step::kPending;
  const mep_result_t posted = comm.cells().post_to_all(operation, payload, bytes);
  return posted == MEP_SUCCESS ? Step::kDone : fail_step(operation, posted);
}

// kDone once the cells of all contributors have come; operation.cursor remembers how far it looked.
inline Step collect_small(Comm& comm, Operation& operation) {
  const std::vector<uint32_t>& sources = *operation.contributors;
  for (; operation.cursor < sources.size(); ++operation.cursor) {
    bool mismatch = false;
    const uint32_t source = sources[operation.cursor];
    if (!comm.cells().arrived(operation, source, &mismatch)) return Step::kPending;
    if (mismatch) {
      return fail_step(
          operation,
          fail(MEP_ERR_MISMATCH,
               "rank %u called another operation than this rank's %s, or with another count, type, "
               "operator or root", source, collective_type(operation.kind).name));
    }
  }
  operation.cursor = 0;
  return Step::kDone;
}

// The last act of a large operation: says that this rank has all its data, and waits for the same of
// the others. From then on the operation can be completed without anybody.
inline Step finish_large(Comm& comm, Operation& operation, bool* signalled) {
  if (!*signalled) {
    operation.holds_result = true;
    const mep_result_t sent = comm.bulk().signal_finished(operation.seq);
    if (sent != MEP_SUCCESS) return fail_step(operation, sent);
    *signalled = true;
  }
  return comm.bulk().all_finished(operation.seq, &operation.cursor) ? Step::kDone : Step::kPending;
}

// A large operation is decided only when all have its result, so there is nothing left to do.
inline Step settle_large(Operation& operation) {
  if (operation.holds_result) return Step::kDone;
  return fail_step(operation, fail(MEP_ERR_INTERNAL, "%s was decided without its data",
                                   collective_type(operation.kind).name));
}

}  // namespace mep
