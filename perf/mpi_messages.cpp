#include <mpi.h>

#include <vector>

#include "mpi_side.hpp"

namespace mep::perf {
namespace {

class MpiMessages : public MessageSide {
 public:
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  void send(const void* data, size_t bytes, int peer) override {
    MPI_Send(data, static_cast<int>(bytes), MPI_BYTE, peer, 0, MPI_COMM_WORLD);
  }
  void receive(void* data, size_t bytes, int peer) override {
    MPI_Recv(data, static_cast<int>(bytes), MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  void begin_send(const void* data, size_t bytes, int peer) override {
    MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, 0, MPI_COMM_WORLD,
              &requests_.emplace_back());
  }
  void begin_receive(void* data, size_t bytes, int peer) override {
    MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, 0, MPI_COMM_WORLD,
              &requests_.emplace_back());
  }
  void wait() override {
    MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
    requests_.clear();
  }

 private:
  std::vector<MPI_Request> requests_;
};

}  // namespace

std::unique_ptr<MessageSide> make_mpi_messages() {
  return std::make_unique<MpiMessages>();
}

}  // namespace mep::perf
