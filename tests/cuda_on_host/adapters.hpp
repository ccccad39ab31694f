// The fabric of the adapters beside played GPUs, for tests that let queues fail.
#pragma once

#include "support/mlx5_fabric.hpp"

namespace mep::test {

ModelFabric& played_fabric();

}  // namespace mep::test
