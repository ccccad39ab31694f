// The layer by plain MPI, as far as both modes are alike: rows that MPI_Alltoallv brings to their ranks, and others that it
// brings back into the packed order. A rank's rows for itself are packed into the place where they would arrive and
// cross no MPI call. All memory is there before.
#pragma once

#include <mpi.h>

#include "moe_side.hpp"

namespace mep::perf {

class MpiMoeSide : public MoeSide {
 public:
  MpiMoeSide(const MoeProblem& problem, size_t row_bytes, size_t most_sent, size_t most_received)
      : problem_(problem),
        shape_(problem.shape()),
        ranks_(static_cast<size_t>(shape_.size)),
        row_bytes_(row_bytes),
        send_(most_sent * row_bytes_),
        recv_(most_received * row_bytes_),
        y_(most_received * shape_.combine_row_bytes()),
        back_(most_sent * shape_.combine_row_bytes()),
        send_rows_(ranks_),
        send_begin_(ranks_),
        recv_rows_(ranks_),
        recv_begin_(ranks_) {
    make_row_type(row_bytes_, &x_type_);
    make_row_type(shape_.combine_row_bytes(), &y_type_);
  }
  ~MpiMoeSide() override {
    MPI_Type_free(&x_type_);
    MPI_Type_free(&y_type_);
  }
  MpiMoeSide(const MpiMoeSide&) = delete;
  MpiMoeSide& operator=(const MpiMoeSide&) = delete;

  void sync() override { MPI_Barrier(MPI_COMM_WORLD); }

 protected:
  static size_t aligned(size_t bytes) {
    constexpr size_t kRowAlignment = 64;
    return (bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  }
  void move_rows() {
    MPI_Alltoallv(send_.as<void>(), send_rows_.data(), send_begin_.data(), x_type_,
                  recv_.as<void>(), recv_rows_.data(), recv_begin_.data(), x_type_, MPI_COMM_WORLD);
  }
  void move_back() {
    MPI_Alltoallv(y_.as<void>(), recv_rows_.data(), recv_begin_.data(), y_type_, back_.as<void>(),
                  send_rows_.data(), send_begin_.data(), y_type_, MPI_COMM_WORLD);
  }

  const MoeProblem& problem_;
  const MoeShape shape_;
  const size_t ranks_;
  const size_t row_bytes_;
  Buffer send_;
  Buffer recv_;                 // rows by source
  Buffer y_;                    // the same order
  Buffer back_;                 // the order of send_
  std::vector<int> send_rows_;  // [rank], none for this one
  std::vector<int> send_begin_;
  std::vector<int> recv_rows_;
  std::vector<int> recv_begin_;

 private:
  static void make_row_type(size_t bytes, MPI_Datatype* type) {
    MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, type);
    MPI_Type_commit(type);
  }

  MPI_Datatype x_type_ = MPI_DATATYPE_NULL;
  MPI_Datatype y_type_ = MPI_DATATYPE_NULL;
};

}  // namespace mep::perf
