// Phases that several collectives share.
#pragma once

#include "base/status.hpp"
#include "base/test_delay.hpp"
#include "core/comm/comm.hpp"

namespace mep {

inline Step fail_step(Operation& operation, mep_result_t result) {
  operation.result = result;
  return Step::kFailed;
}

// Posts this rank's small contribution as soon as its cells are free. kDone: posted.
inline Step enter_small(Comm& comm, Operation& operation, const void* payload, size_t bytes,
                        uint32_t flags = 0) {
  if (!comm.cells().free(operation.seq)) return Step::kPending;
  const mep_result_t posted = comm.cells().post_to_all(operation, payload, bytes, flags);
  return posted == MEP_SUCCESS ? Step::kDone : fail_step(operation, posted);
}

// The empty cell that begins a large operation: it tells the others what is called here.
inline Step enter_large(Comm& comm, Operation& operation) {
  return enter_small(comm, operation, nullptr, 0, Cells::kEntryOnly);
}

inline Step mismatch_step(Comm& comm, Operation& operation, uint32_t source) {
  // This rank waits for nobody here any more, so nobody learns from it that the others have entered.
  (void)comm.cells().note_done(operation);
  return fail_step(
      operation,
      fail(MEP_ERR_MISMATCH,
           "rank %u called another operation than this rank's %s, or with another count, type, "
           "operator or root",
           source, collective_type(operation.kind).name));
}

// While the awaited cell has not come: another rank's may say that it never will. Looked for only now
// and then, to leave the cells of others alone while they are written.
inline Step look_for_mismatch(Comm& comm, Operation& operation) {
  constexpr uint32_t kLooks = 8;
  uint32_t source = 0;
  if (++operation.looks % kLooks != 0 || !comm.cells().differs(operation, &source)) {
    return Step::kPending;
  }
  return mismatch_step(comm, operation, source);
}

// kDone once the cells of all contributors have come; operation.cursor remembers how far it looked.
inline Step collect_small(Comm& comm, Operation& operation) {
  const std::vector<uint32_t>& sources = *operation.contributors;
  for (; operation.cursor < sources.size(); ++operation.cursor) {
    bool mismatch = false;
    const uint32_t source = sources[operation.cursor];
    if (!comm.cells().arrived(operation, source, &mismatch)) {
      return look_for_mismatch(comm, operation);
    }
    if (mismatch) return mismatch_step(comm, operation, source);
  }
  operation.cursor = 0;
  MEP_TEST_DELAY_POINT("cells collect");
  return Step::kDone;
}

// The last act of a large operation: says that this rank has all its data, and waits for the same of
// the others. From then on the operation can be completed without anybody.
inline Step finish_large(Comm& comm, Operation& operation, bool* signalled) {
  if (!*signalled) {
    MEP_TEST_DELAY_POINT("bulk finish");
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
