// One collective operation from call to end, and the table that says what there is.
//
// An operation is a state machine without a thread: step() does what can be done without waiting. A
// blocking call steps until done, a nonblocking one is stepped by later calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/status.hpp"
#include "core/coll/block_counts.hpp"
#include "core/operation/operation_engine.hpp"
#include "core/operation/operation_record.hpp"
#include "mep.h"
#include "protocol/operations.hpp"

namespace mep {

class Collectives;
struct Operation;

// Up to that many bytes an in-place input is saved, and restored after a failure.
inline constexpr size_t kMostRestoredBytes = 65536;

// Which function of the ABI an operation belongs to: its own, or one that is made of operations.
enum class CallPurpose : uint8_t { kCall, kSplit, kShrink, kAgree, kEp };

// The state of an operation that belongs to a request, and so goes on after its call.
struct RequestState {
  Deadline deadline = Deadline::never();
  int event = -1;  // an eventfd to write to when the operation has ended; -1: none
  // Once it has ended:
  OperationRecord record;
  char text[kErrorTextBytes] = "";  // of an error; on whichever thread it happened
};

struct CollectiveArgs {
  const void* send = nullptr;
  void* receive = nullptr;
  size_t count = 0;  // elements
  mep_dtype_t dtype = MEP_UINT8;
  mep_op_t op = MEP_SUM;
  int32_t root = 0;
  const BlockCounts* counts = nullptr;  // of those that have them, during the call
  CallPurpose purpose = CallPurpose::kCall;
  // On a stream: where the operation writes how it ended, with room for all ranks; null: nowhere.
  mep_op_status_t* status = nullptr;
};

// The table's facts about a collective, and how it is carried out on host memory.
struct CollectiveType : OperationFacts {
  // Arguments that make sense for this rank; the text says what is wrong.
  mep_result_t (*check)(const Collectives& comm, const CollectiveArgs& args);
  Step (*step)(Collectives& comm, Operation& operation);
  // A view change decided that this operation succeeds, and a catch-up has brought all that this rank lacked:
  // makes the result from operation.contributors and comm.contribution().
  Step (*settle)(Collectives& comm, Operation& operation);
  // Before the operation has its number: acquires what its steps need and may refuse the call.
  mep_result_t (*prepare)(const Collectives& comm, Operation& operation) = nullptr;
};

// Each is defined in NAME.cpp or collective_types.cpp.
struct CollectiveTypes {
#define MEP_OPERATION(name, ...) static const CollectiveType name;
#include "protocol/operations.def"
#undef MEP_OPERATION
};

const CollectiveType& collective_type(Collective collective);

// Contributions of one operation that outlive their eager slots: copied out when a view change begins.
struct RetainedOperation {
  std::vector<uint32_t> sources;                      // comm ranks, rising
  std::vector<std::vector<std::byte>> contributions;  // beside sources: signal word and payload
};

// How far the step functions have come with an operation.
struct StepState {
  uint32_t phase = 0;
  uint32_t cursor = 0;
  uint64_t chunk = 0;         // chunks finished
  uint64_t chunk_posted = 0;  // chunks posted
  uint64_t chunk_taken = 0;   // chunks whose data is in the receive buffer
  // Chunks that were posted before the entry: its word stands for their "posted" words.
  uint64_t chunk_entered = 0;
  // Blocks that land in receive buffers (landings.hpp): bytes of the numbers in an entry, and parts that were put.
  uint64_t landing_bytes = 0;
  uint64_t parts_put = 0;
  // Over several hosts: chunks reduced, and chunks whose data or acknowledgement this rank has forwarded.
  uint64_t chunk_reduced = 0;
  uint64_t chunk_relayed = 0;
  // The calls do not fit together, but what that rank called is not known yet; waited for until then. 0: they do.
  uint32_t differs_from = 0;
  uint64_t differs_until_ns = 0;

  bool operator==(const StepState&) const = default;
};

struct Operation : OperationState<Operation>, StepState {
  Collective kind{};
  CollectiveArgs args;
  size_t bytes = 0;              // args.count elements: one block
  size_t given_bytes = 0;        // all blocks that a rank gives: its contribution
  bool is_small = false;         // its data goes in eager slots
  bool is_long = false;          // small, but the root's contribution is in a long area
  bool enters_directly = false;  // its entry goes to each rank, behind the first data for it
  bool ends_at_root = false;     // large, and the word of its root ends it (pair_blocks.hpp)
  uint32_t fingerprint = 0;      // of what must be the same on all ranks
  bool is_internal = false;      // no call of the user's: mep_comm_last_op does not report it
  // Whose contributions are in the result: the live ranks of its epoch.
  const std::vector<uint32_t>* contributors = nullptr;
  const RetainedOperation* retained = nullptr;  // set when settled from retained contributions
  std::shared_ptr<const CommChange> change;     // that ended it

  uint32_t looks = 0;           // of a step function, for contributions that had not come
  uint64_t waits_since_ns = 0;  // for a root's contribution, at the first look at the clock
  bool input_intact = true;
  bool is_report = false;   // see OperationRecord
  bool unwritable = false;  // the receive buffer: this rank alone fails, and lets the others go on
  bool holds_result = false;        // all data is here; only the others' last signals are missing
  RequestState* request = nullptr;  // of the nonblocking forms
  std::vector<std::byte> saved_input;      // of an in-place operation of at most kMostRestoredBytes
  std::unique_ptr<CountedBlocks> counted;  // of one whose blocks have a length each
};

// The table's facts about the operation, and about a rank's part in it.
inline const CollectiveType& type_of(const Operation& operation) {
  return collective_type(operation.kind);
}
inline bool gives(const Operation& operation, uint32_t rank) {
  return type_of(operation).gives(rank, static_cast<uint32_t>(operation.args.root));
}
inline bool gets(const Operation& operation, uint32_t rank) {
  return type_of(operation).gets(rank, static_cast<uint32_t>(operation.args.root));
}

}  // namespace mep
