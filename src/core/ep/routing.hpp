// Which token goes to which expert: reading and checking the caller's routing, choosing replicas,
// and the places of rows that follow from everybody's counts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/ep/ep_config.hpp"
#include "mep.h"
#include "protocol/ep_call.hpp"

namespace mep {

// Logical experts to places (rank * E_local + local expert). Never changes once it is made.
struct ExpertMap {
  std::vector<uint32_t> begin;   // [E + 1] into places
  std::vector<uint32_t> places;  // replicas of each expert
};

// Checks the caller's [E, max_replicas] array.
[[nodiscard]] mep_result_t make_expert_map(const EpShape& shape, const int32_t* map,
                                           std::shared_ptr<const ExpertMap>* out);

constexpr int32_t kNoExpert = -1;
constexpr uint32_t kNotSent = UINT32_MAX;

// An entry of topk_idx that names no expert, or one that its token named before.
[[nodiscard]] mep_result_t check_expert(uint32_t token, int64_t expert, uint32_t experts);
[[nodiscard]] mep_result_t fail_repeated(uint32_t token, uint32_t expert);

struct RouteEntry {
  int32_t place;  // physical expert, or kNoExpert
  uint32_t row;   // of that expert, or rank; kNotSent: its rank is absent
};

// The routing of one dispatch, kept for its combine.
struct Routing {
  uint32_t tokens = 0;
  bool has_weights = false;
  std::vector<RouteEntry> entries;  // [M * K], the first tokens * K are set
  std::vector<float> weights;       // the same
  // High throughput: physical experts [M * K], kNoExpert for none. `entries` has a rank in place of an expert, up to
  // row_k of them for a token, rising.
  std::vector<int32_t> experts;
  uint64_t epoch = 0;  // of the dispatch; 0: none succeeded
};

class Router {
 public:
  explicit Router(const EpShape& shape);

  // Reads T x K experts into `out`; rows are not placed yet. Refuses bad entries with token and
  // value. `present` says by rank who can be sent to.
  [[nodiscard]] mep_result_t read(const DispatchInput& input, const ExpertMap* map,
                                  const std::vector<uint8_t>& present, Routing* out);

  // Counts the rows of `routing` per column and lists its entries grouped by place, in token order.
  void count(const Routing& routing);
  const std::vector<uint32_t>& counts() const { return counts_; }
  // The entries (token * row_k + k) for one column: counts()[column] of them.
  const uint32_t* entries_of(uint32_t column) const { return grouped_.data() + begin_[column]; }

  // How many rows of this rank lower columns have.
  uint32_t rows_before(uint32_t column) const { return begin_[column]; }

  // first_row[column]: where this rank's rows for that column begin.
  void set_rows(const std::vector<uint32_t>& first_row, Routing* routing);

 private:
  template <typename Index>
  mep_result_t read_as(const Index* indices, uint32_t tokens, const ExpertMap* map,
                       const std::vector<uint8_t>& present, Routing* out);

  // High throughput: from the experts of a token to its ranks.
  void spread(uint32_t token, const std::vector<uint8_t>& present, Routing* out) const;

  const EpShape shape_;
  std::vector<uint64_t> seen_;  // [E] by the stamp of the token that named the expert last
  uint64_t stamp_ = 0;
  std::vector<uint32_t> counts_;   // [columns]
  std::vector<uint32_t> begin_;    // [columns] into grouped_
  std::vector<uint32_t> next_;     // [columns] scratch
  std::vector<uint32_t> grouped_;  // [M * row_k]
};

}  // namespace mep
