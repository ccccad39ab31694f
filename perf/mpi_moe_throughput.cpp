// High throughput by plain MPI: counts per rank by MPI_Alltoall; a token's row packed once for each rank that has
// experts of it, with their numbers and weights behind it, and moved by MPI_Alltoallv; the sums of the experts back by
// MPI_Alltoallv into the packed order, and added from there.
#include <algorithm>
#include <cstring>

#include "moe_kernels.hpp"
#include "mpi_moe_side.hpp"
#include "mpi_side.hpp"

namespace mep::perf {
namespace {

class MpiThroughputMoe : public MpiMoeSide {
 public:
  explicit MpiThroughputMoe(const MoeProblem& problem)
      : MpiMoeSide(problem, row_bytes_of(problem.shape()), most_sent_of(problem.shape()),
                   problem.shape().tokens * static_cast<size_t>(problem.shape().size)),
        send_counts_(ranks_),
        recv_counts_(ranks_),
        next_row_(ranks_),
        last_token_(ranks_),
        first_place_(static_cast<size_t>(shape_.tokens) + 1),
        rows_of_token_(ranks_),
        ones_(ranks_, 1.0f) {
    places_.reserve(most_sent_of(shape_));
  }

  void dispatch() override {
    exchange_counts();
    place_rows();
    for (uint32_t token = 0; token < shape_.tokens; ++token) {
      for (size_t i = first_place_[token]; i < first_place_[token + 1]; ++i) {
        write_topk(token, places_[i]);
      }
    }
    send_rows();
  }

  // Experts and weights are still behind the rows.
  void replay() override { send_rows(); }

  void expert() override {
    for (size_t source = 0; source < ranks_; ++source) {
      uint16_t* y = y_.as<uint16_t>() + static_cast<size_t>(recv_begin_[source]) * shape_.hidden;
      for (uint64_t i = 0; i < received_count(0, static_cast<int>(source)); ++i) {
        const ReceivedRow row = received_row(0, static_cast<int>(source), i);
        run_local_experts(shape_, row.data, row.scales, row.topk_idx, row.topk_weights, y);
        y += shape_.hidden;
      }
    }
  }

  void combine() override {
    move_back();
    for (uint32_t token = 0; token < shape_.tokens; ++token) {
      size_t count = 0;
      for (size_t i = first_place_[token]; i < first_place_[token + 1]; ++i) {
        const Buffer& source = places_[i].rank == shape_.rank ? y_ : back_;
        rows_of_token_[count++] = source.as<uint16_t>() + places_[i].row * shape_.hidden;
      }
      weighted_sum_bf16(rows_of_token_.data(), ones_.data(), count, shape_.hidden,
                        problem_.out() + static_cast<size_t>(token) * shape_.hidden);
    }
  }

  uint64_t received_count(uint32_t /*local_expert*/, int source) const override {
    return static_cast<uint64_t>(recv_counts_[static_cast<size_t>(source)]);
  }
  ReceivedRow received_row(uint32_t /*local_expert*/, int source, uint64_t index) const override {
    const size_t at = static_cast<size_t>(recv_begin_[static_cast<size_t>(source)]) + index;
    const uint8_t* row = recv_.as<uint8_t>() + at * row_bytes_;
    const uint8_t* topk = row + shape_.dispatch_row_bytes();
    ReceivedRow received;
    received.data = row;
    if (shape_.wire_is_fp8) received.scales = reinterpret_cast<const float*>(row + shape_.hidden);
    received.topk_idx = reinterpret_cast<const int32_t*>(topk);
    received.topk_weights = reinterpret_cast<const float*>(topk + shape_.top_k * sizeof(int32_t));
    return received;
  }

 private:
  // A row that is sent: in the receive and y buffers if it is for this rank, else in the send and back buffers.
  struct Place {
    int rank = 0;
    size_t row = 0;
  };

  static size_t row_bytes_of(const MoeShape& shape) {
    return aligned(shape.dispatch_row_bytes() + 2 * shape.top_k * sizeof(uint32_t));
  }
  static size_t most_sent_of(const MoeShape& shape) {
    return static_cast<size_t>(shape.tokens) *
           std::min(shape.top_k, static_cast<uint32_t>(shape.size));
  }

  // Calls visit(rank) for each rank that has experts of the token, in ascending order.
  template <typename Visit>
  void for_ranks_of(uint32_t token, const Visit& visit) {
    const int64_t* experts = problem_.topk_idx().data() + static_cast<size_t>(token) * shape_.top_k;
    for (uint32_t k = 0; k < shape_.top_k; ++k) {
      if (experts[k] < 0) continue;
      last_token_[static_cast<size_t>(experts[k] / shape_.experts_per_rank)] = token;
    }
    for (size_t rank = 0; rank < ranks_; ++rank) {
      if (last_token_[rank] == token) visit(rank);
    }
  }

  void exchange_counts() {
    std::fill(send_counts_.begin(), send_counts_.end(), 0);
    std::fill(last_token_.begin(), last_token_.end(), shape_.tokens);
    for (uint32_t token = 0; token < shape_.tokens; ++token) {
      for_ranks_of(token, [this](size_t rank) { ++send_counts_[rank]; });
    }
    MPI_Alltoall(send_counts_.data(), 1, MPI_INT, recv_counts_.data(), 1, MPI_INT, MPI_COMM_WORLD);
    const auto self = static_cast<size_t>(shape_.rank);
    int received = 0;
    int sent = 0;
    for (size_t rank = 0; rank < ranks_; ++rank) {
      recv_begin_[rank] = received;
      recv_rows_[rank] = rank == self ? 0 : recv_counts_[rank];
      received += recv_counts_[rank];
      send_begin_[rank] = sent;
      send_rows_[rank] = rank == self ? 0 : send_counts_[rank];
      sent += send_rows_[rank];
    }
  }

  void place_rows() {
    next_row_ = send_begin_;
    next_row_[static_cast<size_t>(shape_.rank)] = recv_begin_[static_cast<size_t>(shape_.rank)];
    std::fill(last_token_.begin(), last_token_.end(), shape_.tokens);
    places_.clear();
    for (uint32_t token = 0; token < shape_.tokens; ++token) {
      first_place_[token] = places_.size();
      for_ranks_of(token, [this](size_t rank) {
        places_.push_back({static_cast<int>(rank), static_cast<size_t>(next_row_[rank]++)});
      });
    }
    first_place_[shape_.tokens] = places_.size();
  }

  uint8_t* row_at(const Place& place) {
    return (place.rank == shape_.rank ? recv_ : send_).as<uint8_t>() + place.row * row_bytes_;
  }

  void write_topk(uint32_t token, const Place& place) {
    const size_t first = static_cast<size_t>(token) * shape_.top_k;
    uint8_t* topk = row_at(place) + shape_.dispatch_row_bytes();
    auto* experts = reinterpret_cast<int32_t*>(topk);
    auto* weights = reinterpret_cast<float*>(topk + shape_.top_k * sizeof(int32_t));
    const int64_t begin = static_cast<int64_t>(place.rank) * shape_.experts_per_rank;
    for (uint32_t k = 0; k < shape_.top_k; ++k) {
      const int64_t local = problem_.topk_idx()[first + k] - begin;
      const bool is_there = local >= 0 && local < shape_.experts_per_rank;
      experts[k] = is_there ? static_cast<int32_t>(local) : -1;
      weights[k] = is_there ? problem_.topk_weights()[first + k] : 0;
    }
  }

  // A token is quantised once, into its first row; the others are copies of that row.
  void send_rows() {
    const uint16_t* x = problem_.x();
    for (uint32_t token = 0; token < shape_.tokens; ++token, x += shape_.hidden) {
      const void* source = shape_.wire_is_fp8 ? nullptr : x;
      for (size_t i = first_place_[token]; i < first_place_[token + 1]; ++i) {
        uint8_t* row = row_at(places_[i]);
        if (source != nullptr) {
          std::memcpy(row, source, shape_.dispatch_row_bytes());
          continue;
        }
        quantize_row(x, shape_.hidden, row, reinterpret_cast<float*>(row + shape_.hidden));
        source = row;
      }
    }
    move_rows();
  }

  std::vector<int> send_counts_;  // [rank], this one with them
  std::vector<int> recv_counts_;
  std::vector<int> next_row_;
  std::vector<uint32_t> last_token_;  // [rank] the last token with experts there
  std::vector<Place> places_;         // of all tokens, one after the other
  std::vector<size_t> first_place_;   // [token]
  std::vector<const uint16_t*> rows_of_token_;
  std::vector<float> ones_;
};

}  // namespace

std::unique_ptr<MoeSide> make_mpi_throughput_moe(const MoeProblem& problem) {
  return std::make_unique<MpiThroughputMoe>(problem);
}

}  // namespace mep::perf
