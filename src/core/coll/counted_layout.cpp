// Where the blocks of a call with counts lie in its buffers.
#include <algorithm>

#include "base/status.hpp"
#include "core/coll/check.hpp"
#include "core/coll/collectives.hpp"
#include "core/coll/counted_blocks.hpp"

namespace mep {
namespace {

// One of the two buffers, in elements.
struct Side {
  const char* name;
  bool is_used;
  bool for_each;           // a block for each rank; else one
  const uint64_t* counts;  // of those
  const uint64_t* displs;
  size_t own;  // of the one
};

// From the first element that is used to behind the last.
struct Extent {
  size_t first = 0;
  size_t end = 0;
};

size_t own_count(const Collectives& comm, const BlockCounts& given) {
  if (given.own != nullptr) return *given.own;
  return given.counts == nullptr ? 0 : given.counts[comm.rank()];
}

Side send_side(const OperationFacts& facts, const Collectives& comm, const CollectiveArgs& args) {
  const BlockCounts& given = *args.counts;
  const bool for_each = facts.gives_each_a_block();
  return {"send",       facts.gives(comm.rank(), static_cast<uint32_t>(args.root)),
          for_each,     given.counts,
          given.displs, for_each ? 0 : own_count(comm, given)};
}

Side receive_side(const OperationFacts& facts, const Collectives& comm,
                  const CollectiveArgs& args) {
  const BlockCounts& given = *args.counts;
  const bool for_each = facts.gets_a_block_of_each();
  const bool of_both = for_each && facts.gives_each_a_block();
  return {"recv",
          facts.gets(comm.rank(), static_cast<uint32_t>(args.root)),
          for_each,
          of_both ? given.recv_counts : given.counts,
          of_both ? given.recv_displs : given.displs,
          for_each ? 0 : own_count(comm, given)};
}

// Calls block(rank, where, count) for each block, in elements.
template <typename Function>
void for_each_block(const Side& side, uint32_t size, Function&& block) {
  size_t packed = 0;
  for (uint32_t rank = 0; rank < size; ++rank) {
    block(rank, side.displs != nullptr ? side.displs[rank] : packed, side.counts[rank]);
    packed += side.counts[rank];
  }
}

mep_result_t too_large(const Side& side) {
  return fail(MEP_ERR_INVALID_ARGUMENT, "the counts of %sbuf are together too large for memory",
              side.name);
}

// `limit`: elements that are too many.
mep_result_t measure(const Side& side, uint32_t size, size_t limit, Extent* extent) {
  if (!side.is_used) return MEP_SUCCESS;
  if (!side.for_each) {
    extent->end = side.own;
    return side.own > limit ? too_large(side) : MEP_SUCCESS;
  }
  if (side.counts == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "the counts of %sbuf are NULL", side.name);
  }
  uint64_t sum = 0;
  for (uint32_t rank = 0; rank < size; ++rank) {
    if (side.counts[rank] > limit - sum) return too_large(side);
    sum += side.counts[rank];
  }
  size_t first = SIZE_MAX;
  bool is_far = false;
  for_each_block(side, size, [&](uint32_t, uint64_t where, uint64_t count) {
    if (count == 0) return;
    is_far = is_far || where > limit - count;
    if (is_far) return;
    first = std::min<size_t>(first, where);
    extent->end = std::max<size_t>(extent->end, where + count);
  });
  extent->first = std::min(first, extent->end);
  if (!is_far) return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT, "a displacement of %sbuf is too large for memory",
              side.name);
}

// The offset of this rank's own block, in elements.
size_t own_offset(const Side& side, uint32_t rank, uint32_t size) {
  size_t offset = 0;
  if (!side.for_each) return offset;
  for_each_block(side, size, [&](uint32_t each, uint64_t where, uint64_t) {
    if (each == rank) offset = where;
  });
  return offset;
}

mep_result_t check_places(const Collectives& comm, const CollectiveArgs& args, const Side& send,
                          const Side& receive) {
  const size_t element = mep_dtype_size(args.dtype);
  const size_t limit = SIZE_MAX / 4 / element;
  Extent sent;
  Extent received;
  MEP_TRY(measure(send, comm.size(), limit, &sent));
  MEP_TRY(measure(receive, comm.size(), limit, &received));
  if (sent.end != 0 && args.send == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "sendbuf is NULL, but its counts are not all 0");
  }
  if (received.end != 0 && args.receive == nullptr) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "recvbuf is NULL, but its counts are not all 0");
  }
  if (sent.first == sent.end || received.first == received.end) return MEP_SUCCESS;
  CollectiveArgs used = args;
  used.send = static_cast<const std::byte*>(args.send) + sent.first * element;
  used.receive = static_cast<std::byte*>(args.receive) + received.first * element;
  const size_t send_bytes = (sent.end - sent.first) * element;
  const size_t receive_bytes = (received.end - received.first) * element;
  if (send.for_each && receive.for_each) return check_apart(used, send_bytes, receive_bytes);
  const size_t own_sent = own_offset(send, comm.rank(), comm.size()) - sent.first;
  const size_t own_received = own_offset(receive, comm.rank(), comm.size()) - received.first;
  return check_overlap(used, send_bytes, receive_bytes, own_received * element, own_sent * element);
}

void lay_out(const Side& side, uint32_t size, size_t element, std::vector<Block>* blocks) {
  blocks->resize(size);
  if (!side.is_used) return;
  if (!side.for_each) {
    std::fill(blocks->begin(), blocks->end(), Block{0, side.own * element});
    return;
  }
  for_each_block(side, size, [&](uint32_t rank, uint64_t where, uint64_t count) {
    if (count != 0) (*blocks)[rank] = {where * element, count * element};
  });
}

}  // namespace

mep_result_t check_counted_blocks(Collective kind, const Collectives& comm,
                                  const CollectiveArgs& args) {
  const OperationFacts& facts = facts_of(kind);
  if (facts.is_rooted) MEP_TRY(check_root(comm, args.root));
  MEP_TRY(check_buffers(args, false, false));
  if (facts.takes_op) MEP_TRY(check_operator(args));
  return check_places(comm, args, send_side(facts, comm, args), receive_side(facts, comm, args));
}

void lay_out_counted_blocks(Collective kind, const Collectives& comm, const CollectiveArgs& args,
                            CountedBlocks* blocks) {
  const OperationFacts& facts = facts_of(kind);
  const size_t element = mep_dtype_size(args.dtype);
  lay_out(send_side(facts, comm, args), comm.size(), element, &blocks->given);
  lay_out(receive_side(facts, comm, args), comm.size(), element, &blocks->gotten);
}

}  // namespace mep
