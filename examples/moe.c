/* One MoE layer: mep_dispatch sends tokens to their experts, mep_combine brings the results back.
 * Expert e is a stand-in that multiplies by e + 1.
 *
 *   mep_run -n 4 ./moe_c            (or mpirun -n 4 ./moe_c, or ./moe_c alone) */
#include <math.h>
#include <mep.h>
#include <stdio.h>
#include <stdlib.h>

enum { kTokens = 32, kHidden = 64, kTopK = 2, kExpertsPerRank = 2 };

static float x[kTokens][kHidden], out[kTokens][kHidden], weights[kTokens][kTopK];
static int64_t experts[kTokens][kTopK];

static void must(mep_result_t result, const char* what) {
  if (result >= 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, mep_result_string(result), mep_last_error());
  exit(1);
}

/* Stands in for a router: two different experts for each token, and their weights. */
static void route(int rank, int num_experts) {
  for (int t = 0; t < kTokens; ++t) {
    experts[t][0] = (rank + t) % num_experts;
    experts[t][1] = (experts[t][0] + 1 + t % (num_experts - 1)) % num_experts;
    weights[t][0] = 0.75f;
    weights[t][1] = 0.25f;
    for (int h = 0; h < kHidden; ++h) x[t][h] = (float)(rank + 1) + (float)(t * kHidden + h) / 64;
  }
}

int main(void) {
  mep_comm_t comm;
  int32_t rank, size;
  must(mep_comm_init(NULL, &comm), "mep_comm_init");
  must(mep_comm_rank(comm, &rank), "mep_comm_rank");
  must(mep_comm_size(comm, &size), "mep_comm_size");
  route(rank, kExpertsPerRank * size);

  mep_ep_config_t config;
  mep_moe_defaults(&config, kTokens, kHidden, kTopK, (uint32_t)(kExpertsPerRank * size));
  config.input_type = MEP_FLOAT32;
  mep_ep_t ep;
  mep_ep_handle_t handle;
  mep_ep_view_t view;
  must(mep_ep_create(comm, &config, &ep), "mep_ep_create");
  must(mep_ep_handle_create(ep, 0, &handle), "mep_ep_handle_create");
  mep_ep_view_defaults(&view);
  must(mep_ep_buffer_view(ep, 0, &view), "mep_ep_buffer_view");

  mep_dispatch_send_t tokens;
  mep_dispatch_receive_t received;
  mep_dispatch_send_defaults(&tokens);
  mep_dispatch_receive_defaults(&received);
  tokens.num_tokens = kTokens;
  tokens.x = x;
  tokens.topk_idx = experts;
  tokens.topk_weights = &weights[0][0];
  must(mep_dispatch(handle, &tokens, &received, NULL), "mep_dispatch");

  /* The experts of this rank: rows lie packed, in the library's memory; y goes there too. */
  const size_t stride = (size_t)size * kTokens * kHidden; /* between experts */
  int rows = 0;
  for (int e = 0; e < kExpertsPerRank; ++e) {
    const float* in = (const float*)view.recv_x + (size_t)e * stride;
    float* y = (float*)view.combine_input + (size_t)e * stride;
    for (size_t i = 0; i < (size_t)view.recv_count[e] * kHidden; ++i) {
      y[i] = in[i] * (float)(rank * kExpertsPerRank + e + 1);
    }
    rows += view.recv_count[e];
  }

  mep_combine_send_t results;
  mep_combine_receive_t sums;
  mep_combine_send_defaults(&results);
  mep_combine_receive_defaults(&sums);
  results.y = view.combine_input;
  sums.out = out;
  must(mep_combine(handle, &results, &sums, NULL), "mep_combine");

  int errors = 0;
  for (int t = 0; t < kTokens; ++t) {
    const float factor = 0.75f * (float)(experts[t][0] + 1) + 0.25f * (float)(experts[t][1] + 1);
    for (int h = 0; h < kHidden; ++h) {
      errors += !(fabsf(out[t][h] - factor * x[t][h]) <= 1e-5f * fabsf(out[t][h]));
    }
  }
  printf("rank %d of %d: %d rows came to its experts, the combined tokens are %s\n", rank, size,
         rows, errors ? "WRONG" : "right");

  must(mep_ep_handle_destroy(handle), "mep_ep_handle_destroy");
  must(mep_ep_destroy(ep), "mep_ep_destroy");
  must(mep_comm_destroy(comm), "mep_comm_destroy");
  return errors != 0;
}
