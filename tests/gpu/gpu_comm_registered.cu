// Registered memory through the C ABI: the same bytes with it, without it, and where one rank has other buffers; what ranks
// are told that give different memory; graphs from before; the end of a registration.
#include <utility>
#include <vector>

#include "gpu_comm_rig.hpp"

namespace gpu_test {
namespace {

using mep::Collective;

constexpr size_t kBlock = (size_t{1} << 19) + 5;  // elements: more than 2 MiB, and no whole packs
constexpr Collective kAll[] = {Collective::k_broadcast,      Collective::k_allgather,
                               Collective::k_allreduce,      Collective::k_reduce,
                               Collective::k_gather,         Collective::k_scatter,
                               Collective::k_reduce_scatter, Collective::k_alltoall};

uint32_t element(uint32_t rank, size_t i) {
  return static_cast<uint32_t>((rank + 1) * 0x9e3779b1u + i * 0x85ebca6bu);
}

// Each has room for a block of every rank.
struct Memory {
  uint32_t* send = nullptr;
  uint32_t* receive = nullptr;
};

class Registered {
 public:
  explicit Registered(uint32_t count) : ranks_(open_ranks(count, 20'000)), memory_(count) {
    std::vector<uint32_t> values(kBlock * count);
    for (uint32_t i = 0; i < count; ++i) {
      for (size_t k = 0; k < values.size(); ++k) values[k] = element(i, k);
      cuda(cudaSetDevice(gpu_of(i)));
      memory_[i] = {allocate(i, bytes()), allocate(i, bytes())};
      cuda(cudaMemcpy(memory_[i].send, values.data(), bytes(), cudaMemcpyHostToDevice));
    }
  }
  ~Registered() {
    for (uint32_t i = 0; i < size(); ++i) {
      need(mep_mem_free(ranks_[i].comm, memory_[i].send), "mep_mem_free");
      need(mep_mem_free(ranks_[i].comm, memory_[i].receive), "mep_mem_free");
    }
    close_ranks(&ranks_);
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  size_t bytes() const { return kBlock * 4 * size(); }
  const std::vector<Rank>& ranks() const { return ranks_; }
  std::vector<Memory>& memory() { return memory_; }
  uint32_t* allocate(uint32_t rank, size_t bytes) const {
    void* made = nullptr;
    need(mep_mem_alloc(ranks_[rank].comm, bytes, 0, 0, &made), "mep_mem_alloc");
    return static_cast<uint32_t*>(made);
  }
  // With a result for each rank.
  template <typename Call>
  std::vector<mep_result_t> each(Call&& call) const {
    std::vector<mep_result_t> results(size());
    in_threads(size(), [&](uint32_t i) { results[i] = call(i); });
    return results;
  }
  // Gives mep_comm_deregister's argument for each rank.
  std::vector<mep_registration_t> register_sends() const {
    std::vector<mep_registration_t> registrations(size());
    for (const mep_result_t result : each([&](uint32_t i) {
           return mep_comm_register(ranks_[i].comm, memory_[i].send, bytes(), &registrations[i]);
         })) {
      GPU_CHECK(result == MEP_SUCCESS, "mep_comm_register: %s", mep_result_string(result));
    }
    return registrations;
  }

  void enqueue(Collective kind, uint32_t rank, uint32_t root) const {
    const mep::OperationCall call{.send = memory_[rank].send,
                                  .receive = memory_[rank].receive,
                                  .count = kBlock,
                                  .dtype = MEP_UINT32,
                                  .root = static_cast<int32_t>(root)};
    need(mep::call_collective(kind, call, ranks_[rank].comm, ranks_[rank].stream),
         mep::name_of(kind));
  }
  void clear() const {
    for (uint32_t i = 0; i < size(); ++i) {
      cuda(cudaSetDevice(gpu_of(i)));
      cuda(cudaMemset(memory_[i].receive, 0, bytes()));
    }
    synchronize_all();
  }
  void run(Collective kind, uint32_t root, const char* where) const {
    clear();
    for (uint32_t i = 0; i < size(); ++i) enqueue(kind, i, root);
    synchronize_all();
    expect(kind, root, where);
  }
  void run_all(const char* where) const {
    for (const Collective kind : kAll) run(kind, size() - 1, where);
  }
  void expect(Collective kind, uint32_t root, const char* where) const {
    std::vector<uint32_t> got(kBlock * size());
    for (uint32_t rank = 0; rank < size(); ++rank) {
      cuda(cudaSetDevice(gpu_of(rank)));
      cuda(cudaMemcpy(got.data(), memory_[rank].receive, bytes(), cudaMemcpyDeviceToHost));
      size_t wrong = 0;
      for (size_t k = 0; k < got.size(); ++k)
        wrong += got[k] != wanted(kind, rank, root, k) ? 1 : 0;
      GPU_CHECK(wrong == 0, "%s: %s, rank %u of %u: %zu elements are wrong", where,
                mep::name_of(kind), rank, size(), wrong);
      GPU_CHECK(mep_comm_async_result(ranks_[rank].comm) == MEP_SUCCESS, "%s: %s", where,
                mep_last_error());
    }
  }

 private:
  // Element k of the receive buffer.
  uint32_t wanted(Collective kind, uint32_t rank, uint32_t root, size_t k) const {
    const auto block = static_cast<uint32_t>(k / kBlock);
    const size_t at = k % kBlock;
    uint32_t sum = 0;
    const size_t summed = (kind == Collective::k_reduce_scatter ? rank * kBlock : 0) + at;
    for (uint32_t each = 0; each < size(); ++each) sum += element(each, summed);
    const bool gets =
        rank == root || (kind != Collective::k_reduce && kind != Collective::k_gather);
    switch (kind) {
      case Collective::k_allgather:
      case Collective::k_gather:
        return gets ? element(block, at) : 0;
      case Collective::k_alltoall:
        return element(block, rank * kBlock + at);
      case Collective::k_broadcast:
        return block == 0 ? element(root, at) : 0;
      case Collective::k_scatter:
        return block == 0 ? element(root, rank * kBlock + at) : 0;
      default:
        return gets && block == 0 ? sum : 0;
    }
  }

  std::vector<Rank> ranks_;
  std::vector<Memory> memory_;
};

// The last rank differs from the others.
void expect_results(const std::vector<mep_result_t>& results, mep_result_t of_others,
                    mep_result_t of_last, const char* what) {
  for (size_t i = 0; i < results.size(); ++i) {
    const mep_result_t wanted = i + 1 == results.size() ? of_last : of_others;
    GPU_CHECK(results[i] == wanted, "%s, rank %zu: %s, not %s", what, i,
              mep_result_string(results[i]), mep_result_string(wanted));
  }
}

void refusals(const Registered& all) {
  const uint32_t last = all.size() - 1;
  std::vector<uint32_t*> other;
  for (uint32_t i = 0; i < all.size(); ++i) {
    other.push_back(all.allocate(i, i == last ? size_t{9} << 20 : size_t{3} << 20));
  }
  const auto give = [&](uint32_t i, const void* memory, size_t bytes) {
    mep_registration_t registration = 0;
    return mep_comm_register(all.ranks()[i].comm, memory, bytes, &registration);
  };
  const size_t few = size_t{1} << 20;
  expect_results(all.each([&](uint32_t i) { return give(i, other[i], few); }), MEP_ERR_MISMATCH,
                 MEP_ERR_MISMATCH, "pieces of other sizes");
  expect_results(all.each([&](uint32_t i) { return give(i, other[i], i == last ? few : 2 * few); }),
                 MEP_ERR_MISMATCH, MEP_ERR_MISMATCH, "other sizes");
  expect_results(all.each([&](uint32_t i) {
    return give(i, i == last ? all.ranks()[i].send : other[i], few);
  }),
                 MEP_ERR_MISMATCH, MEP_ERR_UNSUPPORTED, "memory that is not the library's");
  expect_results(
      all.each([&](uint32_t i) { return give(i, other[i], i == last ? 16 * few : few); }),
      MEP_ERR_MISMATCH, MEP_ERR_UNSUPPORTED, "more than there is");
  expect_results(
      all.each([&](uint32_t i) { return mep_comm_deregister(all.ranks()[i].comm, 12345); }),
      MEP_ERR_INVALID_ARGUMENT, MEP_ERR_INVALID_ARGUMENT, "memory that is not registered");
  for (uint32_t i = 0; i < all.size(); ++i) {
    need(mep_mem_free(all.ranks()[i].comm, other[i]), "mep_mem_free");
  }
}

}  // namespace

void registered(uint32_t count) {
  Registered all(count);
  std::vector<cudaGraphExec_t> graphs;
  for (uint32_t i = 0; i < count; ++i) {
    graphs.push_back(capture(all.ranks()[i], [&] { all.enqueue(Collective::k_alltoall, i, 0); }));
  }
  const bool tells = count > 1 && asked_reach().empty();
  if (tells) refusals(all);
  const std::vector<mep_registration_t> registrations = all.register_sends();
  all.run_all("registered");
  all.clear();
  for (uint32_t i = 0; i < count; ++i) cuda(cudaGraphLaunch(graphs[i], all.ranks()[i].stream));
  synchronize_all();
  all.expect(Collective::k_alltoall, 0, "a graph from before");
  if (tells) refusals(all);
  Memory& last = all.memory()[count - 1];
  uint32_t* const elsewhere = all.allocate(count - 1, all.bytes());
  cuda(cudaSetDevice(gpu_of(count - 1)));
  cuda(cudaMemcpy(elsewhere, last.send, all.bytes(), cudaMemcpyDeviceToDevice));
  uint32_t* const of_last = std::exchange(last.send, elsewhere);
  all.run_all("one rank has other memory");
  last.send = of_last;
  need(mep_mem_free(all.ranks()[count - 1].comm, elsewhere), "mep_mem_free");
  for (const mep_result_t result : all.each([&](uint32_t i) {
         return mep_comm_deregister(all.ranks()[i].comm, registrations[i]);
       })) {
    GPU_CHECK(result == MEP_SUCCESS, "mep_comm_deregister: %s", mep_result_string(result));
  }
  all.run(Collective::k_alltoall, 0, "deregistered");
  (void)all.register_sends();
  all.run(Collective::k_reduce_scatter, 0, "registered again");
  for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
  std::printf("  %u ranks: registered memory\n", count);
}

}  // namespace gpu_test
