// The blocks that each rank gives and gets in a collective, as include/mep.h says it and not taken from the library's table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "mep.h"
#include "protocol/operations.hpp"
#include "support/coll_reference.hpp"

namespace gpu_test {

using mep_reference::element_bytes;
using mep_reference::pair_exists;
using Inputs = std::vector<std::vector<uint8_t>>;

// Blocks in the buffers of a rank; 0: it has none.
struct Shares {
  size_t send;
  size_t receive;
};

inline Shares shares_of(mep::Collective kind, bool is_root, size_t ranks) {
  using mep::Collective;
  switch (kind) {
    case Collective::k_barrier:
      return {0, 0};
    case Collective::k_broadcast:
      return {is_root ? size_t{1} : size_t{0}, 1};
    case Collective::k_allgather:
      return {1, ranks};
    case Collective::k_allreduce:
      return {1, 1};
    case Collective::k_reduce:
      return {1, is_root ? size_t{1} : size_t{0}};
    case Collective::k_gather:
      return {1, is_root ? ranks : 0};
    case Collective::k_scatter:
      return {is_root ? ranks : 0, 1};
    case Collective::k_reduce_scatter:
      return {ranks, 1};
    default:
      return {ranks, ranks};
  }
}

inline bool has_root(mep::Collective kind) {
  return kind == mep::Collective::k_broadcast || kind == mep::Collective::k_reduce ||
         kind == mep::Collective::k_gather || kind == mep::Collective::k_scatter;
}

// The form with a length for each block; the kind itself where there is none.
inline mep::Collective counted_form(mep::Collective kind) {
  using mep::Collective;
  if (kind == Collective::k_allgather) return Collective::k_allgatherv;
  if (kind == Collective::k_gather) return Collective::k_gatherv;
  if (kind == Collective::k_scatter) return Collective::k_scatterv;
  if (kind == Collective::k_reduce_scatter) return Collective::k_reduce_scatterv;
  return kind == Collective::k_alltoall ? Collective::k_alltoallv : kind;
}

// On which ranks an operation may have its input in place; nowhere: there is no such form.
inline bool can_be_in_place(mep::Collective kind, bool is_root) {
  if (kind == mep::Collective::k_barrier || kind == mep::Collective::k_alltoall) return false;
  return is_root || !has_root(kind);
}

// One operation's blocks and the places where they have to arrive. `sends` are the send buffers, by rank; `members`
// are the ranks that take part, rising.
class Arrivals {
 public:
  Arrivals(mep::Collective kind, mep_dtype_t dtype, mep_op_t op, uint32_t root, size_t block_bytes,
           const Inputs& sends, const std::vector<uint32_t>& members)
      : kind_(kind),
        dtype_(dtype),
        op_(op),
        root_(root),
        bytes_(block_bytes),
        sends_(sends),
        members_(members) {}

  // Puts block `block` of the receive buffer of `rank` to `to`. False: nothing arrives there.
  bool put(uint32_t rank, size_t block, uint8_t* to) {
    using mep_reference::Content;
    if (bytes_ == 0) return false;
    const Content content = mep_reference::content_of(kind_, root_, rank, sends_.size(), block);
    if (content.how == Content::kCopy) return copy(content.source, content.block, to);
    if (content.how == Content::kNothing) return false;
    std::memcpy(to, reduced(content.block).data(), bytes_);
    return true;
  }

 private:
  bool copy(size_t source, size_t block, uint8_t* to) const {
    if (std::find(members_.begin(), members_.end(), source) == members_.end()) return false;
    std::memcpy(to, sends_[source].data() + block * bytes_, bytes_);
    return true;
  }
  const std::vector<uint8_t>& reduced(size_t block) {
    const auto known = sums_.find(block);
    if (known != sums_.end()) return known->second;
    std::vector<const uint8_t*> blocks;
    for (const uint32_t member : members_) blocks.push_back(sends_[member].data() + block * bytes_);
    return sums_
        .emplace(block, mep_reference::reduced(dtype_, op_, blocks, bytes_ / element_bytes(dtype_)))
        .first->second;
  }

  mep::Collective kind_;
  mep_dtype_t dtype_;
  mep_op_t op_;
  uint32_t root_;
  size_t bytes_;
  const Inputs& sends_;
  const std::vector<uint32_t>& members_;
  std::map<size_t, std::vector<uint8_t>> sums_;
};

}  // namespace gpu_test
