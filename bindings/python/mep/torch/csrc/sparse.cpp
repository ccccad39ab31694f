// The sum of sparse tensors: all ranks get the coordinates and values of all, and add up.
#include <functional>
#include <numeric>

#include <c10/util/Exception.h>

#include "calls.hpp"

namespace mep_torch {

ProcessGroupMep::WorkPtr ProcessGroupMep::allreduce_sparse(at::Tensor& tensor,
                                                           const c10d::AllreduceOptions& opts) {
  TORCH_CHECK_VALUE(opts.reduceOp == c10d::ReduceOp::SUM,
                    "mep: allreduce: sparse tensors have SUM alone");
  check_host(tensor, "allreduce of a sparse tensor");
  const at::Tensor own = tensor.coalesce();
  const std::string shape =
      c10::str(own.sizes(), own.sparse_dim(), own.dense_dim(), own.scalar_type());
  // Each rank's number of coordinates, and what has to be the same on all.
  const auto hash = static_cast<int64_t>(std::hash<std::string>()(shape) | 1);
  at::Tensor mine = at::empty({2}, at::kLong);
  mine[0] = own._nnz();
  mine[1] = hash;
  at::Tensor all = at::zeros({size_, 2}, at::kLong);
  c10d::AllgatherOptions blocking;
  blocking.timeout = opts.timeout;
  _allgather_base(all, mine, blocking)->wait();
  std::vector<int64_t> counts;
  for (int rank = 0; rank < size_; ++rank) {
    const auto theirs = all[rank][1].item<int64_t>();
    // 0: of a rank that is gone.
    TORCH_CHECK_VALUE(theirs == hash || theirs == 0, "mep: allreduce: the sparse tensors of ranks ",
                      rank_, " and ", rank, " differ in shape or type; this rank's has ", shape);
    counts.push_back(all[rank][0].item<int64_t>());
  }
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const at::Tensor indices = own.indices().t().contiguous();
  const at::Tensor values = own.values().contiguous();
  const auto room = [total](const at::Tensor& rows) {
    std::vector<int64_t> sizes = rows.sizes().vec();
    sizes[0] = total;
    return at::empty(sizes, rows.options());
  };
  const at::Tensor all_indices = room(indices);
  const at::Tensor all_values = room(values);
  Call call = call_of(OpType::ALLREDUCE, "allreduce", "all_reduce", opts);
  call.inputs = {tensor};
  call.outputs = {tensor};
  Tensors of_ranks = all_indices.split_with_sizes(counts);
  add_allgather_list(of_ranks, indices, &call);
  of_ranks = all_values.split_with_sizes(counts);
  add_allgather_list(of_ranks, values, &call);
  append_finish(
      [tensor, all_indices, all_values] {
        tensor.copy_(at::sparse_coo_tensor(all_indices.t(), all_values, tensor.sizes()).coalesce());
      },
      &call);
  return run(std::move(call));
}

}  // namespace mep_torch
