// Launches of the expanded layout: after a dispatch has received, and before a combine sends.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/ep/common.cuh"

namespace mep::device {

// Places each received row once for each of its local experts, and what goes with it; zeros pad the groups.
// a: the dispatch, whose launches before this one leave its rows in the window and nothing in the caller's memory for rows.
cudaError_t launch_expansion(const DispatchArgs& a, const ExpandedOutputs& out, uint32_t ctas,
                             cudaStream_t stream);
// The sum of each received row's expanded rows in y, to `terms`; and expanded values back into the order of received
// rows, to the layout's `values`. values: null for none.
cudaError_t launch_fold(const CombineArgs& a, const std::byte* y, const float* values,
                        std::byte* terms, uint32_t ctas, cudaStream_t stream);
int load_expansion_kernels(const EpGeometry& g, int* ctas_per_sm);

}  // namespace mep::device
