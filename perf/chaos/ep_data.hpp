// The input of an EP object's ranks in one round, and the result that must come out: a plain reference of dispatch
// and combine as mep.h describes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "buffers.hpp"
#include "program.hpp"

namespace mep::programs {

// A row that must arrive: of which rank, and its token there.
struct Arrival {
  uint32_t rank;
  uint32_t token;
};

class EpRound {
 public:
  // `live`: ranks to whose experts rows go. `stamp` names the round.
  EpRound(const Program& program, const EpShape& shape, const Members& members, uint64_t live,
          uint32_t step, uint64_t stamp);

  uint32_t experts() const;
  size_t rows_per_expert() const;  // R * M
  size_t input_bytes() const;      // of a row
  size_t combine_bytes() const;

  uint32_t tokens(uint32_t rank) const;
  std::vector<int64_t> routing(uint32_t rank) const;  // [T][K]
  std::vector<float> weights(uint32_t rank) const;    // [T][K]
  void x_row(uint32_t rank, uint32_t token, uint8_t* to) const;
  // The output of local expert `local` of the caller's rank for a row.
  void y_row(uint32_t expert_rank, uint32_t local, uint32_t rank, uint32_t token,
             uint8_t* to) const;

  // By rank and token; ranks in `missing` have none. In high throughput those of all local experts, each once.
  uint32_t groups() const { return shape_.high_throughput ? 1 : shape_.local_experts; }
  std::vector<Arrival> arrivals(uint32_t local, uint64_t missing) const;
  // The sum for the caller's token, without the experts of the ranks in `missing`.
  void combined_row(uint32_t token, uint64_t missing, uint8_t* to) const;
  // Whether one of the caller's rows goes to a rank in `missing`.
  bool lacks(uint64_t missing) const;

 private:
  uint64_t key(uint64_t what, uint32_t rank, uint64_t more = 0) const;

  const Program& program_;
  const EpShape& shape_;
  const Members& members_;
  const uint64_t live_;
  const uint32_t step_;
  const uint64_t stamp_;
};

}  // namespace mep::programs
