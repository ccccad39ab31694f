// The layer by plain MPI, as well as it can be done with its collectives: counts per expert by
// MPI_Alltoall, rows packed once in order of their expert and moved by MPI_Alltoallv, the expert on
// the rows where they arrived, its output back by MPI_Alltoallv into the packed order, then the
// weighted sum straight from there.
#include <cstring>

#include "moe_kernels.hpp"
#include "mpi_moe_side.hpp"
#include "mpi_side.hpp"

namespace mep::perf {
namespace {

class MpiMoe : public MpiMoeSide {
 public:
  explicit MpiMoe(const MoeProblem& problem)
      : MpiMoeSide(problem, row_bytes_of(problem.shape()), entries_of(problem.shape()),
                   entries_of(problem.shape()) * static_cast<size_t>(problem.shape().size)),
        send_counts_(ranks_ * shape_.experts_per_rank),
        recv_counts_(send_counts_.size()),
        next_row_(send_counts_.size()),
        place_(entries_of(shape_)),
        rows_of_token_(shape_.top_k),
        weights_of_token_(shape_.top_k) {}

  void dispatch() override {
    exchange_counts();
    shape_.wire_is_fp8 ? pack_fp8() : pack_bf16();
    move_rows();
  }

  void expert() override {
    const auto first = static_cast<int64_t>(shape_.rank) * shape_.experts_per_rank;
    const int* counts = recv_counts_.data();
    for (size_t source = 0; source < ranks_; ++source) {
      auto row = static_cast<size_t>(recv_begin_[source]);
      for (uint32_t e = 0; e < shape_.experts_per_rank; ++e) {
        const auto rows = static_cast<size_t>(*counts++);
        run_expert(first + e, row, rows);
        row += rows;
      }
    }
  }

  void combine() override {
    move_back();
    const uint16_t* sources[2] = {back_.as<uint16_t>(), y_.as<uint16_t>()};
    for (size_t token = 0; token < shape_.tokens; ++token) {
      size_t count = 0;
      for (size_t entry = token * shape_.top_k; entry < (token + 1) * shape_.top_k; ++entry) {
        if (problem_.topk_idx()[entry] < 0) continue;
        const Place& place = place_[entry];
        rows_of_token_[count] = sources[place.is_local ? 1 : 0] + place.row * shape_.hidden;
        weights_of_token_[count++] = problem_.topk_weights()[entry];
      }
      weighted_sum_bf16(rows_of_token_.data(), weights_of_token_.data(), count, shape_.hidden,
                        problem_.out() + token * shape_.hidden);
    }
  }

  uint64_t received_count(uint32_t local_expert, int source) const override {
    return static_cast<uint64_t>(
        recv_counts_[static_cast<size_t>(source) * shape_.experts_per_rank + local_expert]);
  }
  ReceivedRow received_row(uint32_t local_expert, int source, uint64_t index) const override {
    size_t row = static_cast<size_t>(recv_begin_[static_cast<size_t>(source)]) + index;
    for (uint32_t e = 0; e < local_expert; ++e) row += received_count(e, source);
    ReceivedRow received;
    received.data = recv_.as<uint8_t>() + row * row_bytes_;
    if (shape_.wire_is_fp8) {
      received.scales =
          reinterpret_cast<const float*>(recv_.as<uint8_t>() + row * row_bytes_ + shape_.hidden);
    }
    return received;
  }

 private:
  // Where the row of a (token, k) is: in the receive and y buffers if its expert is on this rank,
  // else in the send and back buffers.
  struct Place {
    size_t row = 0;
    bool is_local = false;
  };

  // fp8 rows carry their scales behind the values.
  static size_t row_bytes_of(const MoeShape& shape) {
    return shape.wire_is_fp8 ? aligned(shape.dispatch_row_bytes()) : shape.combine_row_bytes();
  }
  static size_t entries_of(const MoeShape& shape) {
    return static_cast<size_t>(shape.tokens) * shape.top_k;
  }

  // Rows per expert, then where each expert's rows begin.
  void exchange_counts() {
    const size_t local = shape_.experts_per_rank;
    std::fill(send_counts_.begin(), send_counts_.end(), 0);
    for (const int64_t expert : problem_.topk_idx()) {
      if (expert >= 0) ++send_counts_[static_cast<size_t>(expert)];
    }
    const int width = static_cast<int>(local);
    MPI_Alltoall(send_counts_.data(), width, MPI_INT, recv_counts_.data(), width, MPI_INT,
                 MPI_COMM_WORLD);
    int received = 0;
    for (size_t source = 0; source < ranks_; ++source) {
      recv_begin_[source] = received;
      for (size_t e = 0; e < local; ++e) received += recv_counts_[source * local + e];
      recv_rows_[source] = received - recv_begin_[source];
    }
    const auto self = static_cast<size_t>(shape_.rank);
    int sent = 0;
    for (size_t target = 0; target < ranks_; ++target) {
      int row = target == self ? recv_begin_[self] : sent;
      send_begin_[target] = sent;
      for (size_t e = target * local; e < (target + 1) * local; ++e) {
        next_row_[e] = row;
        row += send_counts_[e];
      }
      if (target != self) sent = row;
      send_rows_[target] = sent - send_begin_[target];
    }
    recv_rows_[self] = 0;  // these rows are packed into their place
  }

  // The next free row of the expert's group; notes it for combine.
  uint8_t* take_row(size_t entry, int64_t expert) {
    Place& place = place_[entry];
    place.is_local = expert / shape_.experts_per_rank == shape_.rank;
    place.row = static_cast<size_t>(next_row_[static_cast<size_t>(expert)]++);
    return (place.is_local ? recv_ : send_).as<uint8_t>() + place.row * row_bytes_;
  }

  void pack_bf16() {
    const uint16_t* x = problem_.x();
    size_t entry = 0;
    for (uint32_t token = 0; token < shape_.tokens; ++token, x += shape_.hidden) {
      for (uint32_t k = 0; k < shape_.top_k; ++k, ++entry) {
        const int64_t expert = problem_.topk_idx()[entry];
        if (expert >= 0) std::memcpy(take_row(entry, expert), x, row_bytes_);
      }
    }
  }

  // A token is quantised once, into its first row; the others are copies of that row.
  void pack_fp8() {
    const uint16_t* x = problem_.x();
    size_t entry = 0;
    for (uint32_t token = 0; token < shape_.tokens; ++token, x += shape_.hidden) {
      const uint8_t* first = nullptr;
      for (uint32_t k = 0; k < shape_.top_k; ++k, ++entry) {
        const int64_t expert = problem_.topk_idx()[entry];
        if (expert < 0) continue;
        uint8_t* row = take_row(entry, expert);
        if (first != nullptr) {
          std::memcpy(row, first, shape_.dispatch_row_bytes());
          continue;
        }
        quantize_row(x, shape_.hidden, row, reinterpret_cast<float*>(row + shape_.hidden));
        first = row;
      }
    }
  }

  void run_expert(int64_t expert, size_t row, size_t rows) {
    const uint8_t* x = recv_.as<uint8_t>() + row * row_bytes_;
    uint16_t* y = y_.as<uint16_t>() + row * shape_.hidden;
    if (shape_.wire_is_fp8) {
      scale_rows_fp8(x, row_bytes_, x + shape_.hidden, row_bytes_, rows, shape_.hidden,
                     expert_factor(expert), y);
    } else {
      scale_rows_bf16(reinterpret_cast<const uint16_t*>(x), rows, shape_.hidden,
                      expert_factor(expert), y);
    }
  }

  std::vector<int> send_counts_;  // [rank][local expert]
  std::vector<int> recv_counts_;
  std::vector<int> next_row_;  // of each expert
  std::vector<Place> place_;
  std::vector<const uint16_t*> rows_of_token_;
  std::vector<float> weights_of_token_;
};

}  // namespace

std::unique_ptr<MoeSide> make_mpi_moe(const MoeProblem& problem) {
  return std::make_unique<MpiMoe>(problem);
}

}  // namespace mep::perf
