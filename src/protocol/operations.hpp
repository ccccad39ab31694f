// The kinds of collective operations, and what the table says of each (operations.def). For host and device
// code alike; needs no other header of src/.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mep {

enum class Collective : uint32_t {
#define MEP_OPERATION(name, ...) k_##name,
#include "protocol/operations.def"
#undef MEP_OPERATION
};

inline constexpr uint32_t kCollectiveCount = 0
#define MEP_OPERATION(...) +1  // NOLINT(bugprone-macro-parentheses)
#include "protocol/operations.def"
#undef MEP_OPERATION
    ;

// Whether a repeat by a donor is possible (see the membership document).
enum class OperationClass : uint8_t { kReplicated, kPersonal };

// Blocks of `count` elements in a rank's buffer.
enum class Blocks : uint8_t {
  kNone,
  kOne,
  kRoot,  // one on the root, none elsewhere
  kAll,   // one for each rank of the communicator
};

// Who carries operations out, as bits.
namespace backends {
inline constexpr uint8_t kHost = 1;
inline constexpr uint8_t kGpu = 2;
inline constexpr uint8_t kStaged = 4;
}  // namespace backends

struct OperationFacts {
  const char* name;
  OperationClass operation_class;
  Blocks send;
  Blocks receive;
  bool takes_op;
  // It has a root: without one in the view every rank ends it by itself. In small ones only the root
  // gives and nobody waits for the others.
  bool is_rooted;
  bool is_nonblocking_too;
  uint8_t backends;

  constexpr bool has_data() const { return send != Blocks::kNone || receive != Blocks::kNone; }
  constexpr bool runs_on(uint8_t backend) const { return (backends & backend) != 0; }
  constexpr bool gives(uint32_t rank, uint32_t root) const {
    return send != Blocks::kNone && (send != Blocks::kRoot || rank == root);
  }
  constexpr bool gets(uint32_t rank, uint32_t root) const {
    return receive != Blocks::kNone && (receive != Blocks::kRoot || rank == root);
  }
};

namespace operations_def {
using namespace backends;  // NOLINT(google-build-using-namespace): as the table writes them
enum Takes : uint8_t {
  kNothing = 0,
  kData = 1,
  kDataRoot = kData | 2,
  kDataOp = kData | 4,
  kDataOpRoot = kDataRoot | kDataOp
};
enum Forms : uint8_t { kBlocking, kBoth };
inline constexpr OperationFacts kTable[] = {
#define MEP_OPERATION(name, class_, takes, send, receive, forms, backends) \
  {#name,                                                                  \
   OperationClass::k##class_,                                              \
   Blocks::k##send,                                                        \
   Blocks::k##receive,                                                     \
   (k##takes & 4) != 0,                                                    \
   (k##takes & 2) != 0,                                                    \
   (k##forms) == kBoth,                                                    \
   (backends)},
#include "protocol/operations.def"
#undef MEP_OPERATION
};
}  // namespace operations_def

// False: a number that is no operation, as bytes from elsewhere may hold.
constexpr bool is_collective(Collective kind) {
  return static_cast<uint32_t>(kind) < kCollectiveCount;
}

// Of a kind that is one.
constexpr const OperationFacts& facts_of(Collective kind) {
  return operations_def::kTable[static_cast<uint32_t>(kind)];
}

constexpr bool runs_on(Collective kind, uint8_t backend) {
  return is_collective(kind) && facts_of(kind).runs_on(backend);
}

// For texts.
constexpr const char* name_of(Collective kind) {
  return is_collective(kind) ? facts_of(kind).name : "an unknown operation";
}

}  // namespace mep
