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

// Blocks of `count` elements, or of as many as the counts say, in a rank's buffer.
enum class Blocks : uint8_t {
  kNone,
  kOne,
  kRoot,       // one on the root, none elsewhere
  kAll,        // one for each rank of the communicator
  kAllOnRoot,  // that on the root, none elsewhere
};

// The backends that carry operations out, as bits.
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
  // It has a root: without one in the view every rank ends it by itself.
  bool is_rooted;
  // Its blocks have a length each.
  bool has_counts;
  bool is_nonblocking_too;
  uint8_t backends;

  constexpr bool has_data() const { return send != Blocks::kNone || receive != Blocks::kNone; }
  constexpr bool runs_on(uint8_t backend) const { return (backends & backend) != 0; }
  // Nobody else gives anything: in small ones nobody waits for the others. With counts all give what they
  // expect.
  constexpr bool only_root_gives() const { return is_on_root(send) && !has_counts; }
  constexpr bool gives(uint32_t rank, uint32_t root) const { return has(send, rank, root); }
  constexpr bool gets(uint32_t rank, uint32_t root) const { return has(receive, rank, root); }
  // A rank that gives or gets has a block for each rank; else one.
  constexpr bool gives_each_a_block() const { return is_for_each(send); }
  constexpr bool gets_a_block_of_each() const { return is_for_each(receive); }
  // Blocks in the send and receive buffer of a rank that has any.
  constexpr size_t send_blocks(size_t size) const { return blocks(send, size); }
  constexpr size_t receive_blocks(size_t size) const { return blocks(receive, size); }

 private:
  static constexpr bool is_on_root(Blocks of) {
    return of == Blocks::kRoot || of == Blocks::kAllOnRoot;
  }
  static constexpr bool is_for_each(Blocks of) {
    return of == Blocks::kAll || of == Blocks::kAllOnRoot;
  }
  static constexpr bool has(Blocks of, uint32_t rank, uint32_t root) {
    return of != Blocks::kNone && (!is_on_root(of) || rank == root);
  }
  static constexpr size_t blocks(Blocks of, size_t size) {
    return of == Blocks::kNone ? 0 : is_for_each(of) ? size : 1;
  }
};

namespace operations_def {
using namespace backends;  // NOLINT(google-build-using-namespace): as the table writes them
enum Takes : uint8_t {
  kNothing = 0,
  kData = 1,
  kDataRoot = kData | 2,
  kDataOp = kData | 4,
  kDataOpRoot = kDataRoot | kDataOp,
  kCounts = kData | 8,
  kCountsRoot = kCounts | kDataRoot,
  kCountsOp = kCounts | kDataOp,
  kCountsBoth = kCounts | 16
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
   (k##takes & 8) != 0,                                                    \
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

// The facts of `kind`, which must be a valid kind.
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
