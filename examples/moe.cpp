// One MoE layer with overlap: a shared expert computes between the send and the receive phase of
// the dispatch. Rows travel as bfloat16; expert e is a stand-in that multiplies by e + 1.
//
//   mep_run -n 4 ./moe_cpp          (or mpirun -n 4 ./moe_cpp, or ./moe_cpp alone)
#include <mep.h>

#include <bit>
#include <cmath>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kTokens = 32, kHidden = 64, kTopK = 2, kExpertsPerRank = 2;

void must(mep_result_t result) {
  if (result >= 0) return;
  throw std::runtime_error(std::string(mep_result_string(result)) + ": " + mep_last_error());
}

// The values of this example are small integers, exact in bfloat16: cutting the low half rounds
// nothing.
uint16_t to_bf16(float value) {
  return uint16_t(std::bit_cast<uint32_t>(value) >> 16);
}
float to_float(uint16_t bits) {
  return std::bit_cast<float>(uint32_t(bits) << 16);
}

int run(mep_comm_t comm) {
  int32_t rank = 0, size = 0;
  must(mep_comm_rank(comm, &rank));
  must(mep_comm_size(comm, &size));
  mep_ep_config_t config;
  // bfloat16 in, on the wire and out
  mep_moe_defaults(&config, kTokens, kHidden, kTopK, uint32_t(kExpertsPerRank * size));
  mep_ep_t ep = nullptr;
  mep_ep_handle_t handle = nullptr;
  must(mep_ep_create(comm, &config, &ep));
  must(mep_ep_handle_create(ep, 0, &handle));

  const int num_experts = kExpertsPerRank * size;
  std::vector<uint16_t> x(kTokens * kHidden), out(x.size());
  std::vector<int32_t> experts(kTokens * kTopK);  // no weights: all are 1
  for (int t = 0; t < kTokens; ++t) {
    experts[2 * t] = (rank + t) % num_experts;
    experts[2 * t + 1] = (experts[2 * t] + 1 + t % (num_experts - 1)) % num_experts;
    for (int h = 0; h < kHidden; ++h) x[t * kHidden + h] = to_bf16(float((t + h) % 4));
  }

  mep_dispatch_options_t options;
  mep_dispatch_options_defaults(&options);
  options.topk_idx_type = MEP_INT32;
  must(mep_dispatch_send(handle, x.data(), experts.data(), nullptr, kTokens, &options, nullptr));
  float shared = 0;  // the rows are on their way; here a layer's shared expert would run
  for (const uint16_t bits : x) shared += to_float(bits);
  mep_ep_view_t view;
  mep_ep_view_defaults(&view);
  must(mep_dispatch_receive(handle, &view, nullptr, nullptr));

  const size_t stride = size_t(size) * kTokens * kHidden;
  for (int e = 0; e < kExpertsPerRank; ++e) {
    const auto* in = static_cast<const uint16_t*>(view.recv_x) + e * stride;
    auto* y = static_cast<uint16_t*>(view.combine_input) + e * stride;
    for (size_t i = 0; i < size_t(view.recv_count[e]) * kHidden; ++i) {
      y[i] = to_bf16(to_float(in[i]) * float(rank * kExpertsPerRank + e + 1));
    }
  }
  must(mep_combine(handle, view.combine_input, out.data(), nullptr, nullptr));

  bool right = shared > 0;
  for (int i = 0; i < kTokens * kHidden; ++i) {
    const int32_t* chosen = &experts[i / kHidden * kTopK];
    const float exact = float(chosen[0] + chosen[1] + 2) * to_float(x[i]);
    right = right && std::fabs(to_float(out[i]) - exact) <= exact / 128;
  }
  std::ostringstream line;
  line << "rank " << rank << " of " << size << ": " << view.recv_count[0] + view.recv_count[1]
       << " rows came to its experts, the combined tokens are " << (right ? "right" : "WRONG")
       << "\n";
  std::cout << line.str() << std::flush;
  must(mep_ep_handle_destroy(handle));
  must(mep_ep_destroy(ep));
  return right ? 0 : 1;
}

}  // namespace

int main() {
  try {
    mep_comm_t comm = nullptr;
    must(mep_comm_init(nullptr, &comm));
    const int status = run(comm);
    must(mep_comm_destroy(comm));
    return status;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
