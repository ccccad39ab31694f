/* One MoE layer, whose expert e multiplies by e + 1. Start it by: mep_run -n 4 ./moe_c */
#include <mep.h>
#include <stdio.h>
#include <stdlib.h>
enum { T = 32, H = 64, K = 2, E = 8 }; /* tokens of a rank, hidden, top-k, experts of all ranks */
static float x[T][H], out[T][H];
static int64_t experts[T][K]; /* of each token; without weights all weights are 1 */
static void must(mep_result_t result) {
  if (result < 0) exit(fprintf(stderr, "%s\n", mep_last_error()) != 0);
}

int main(void) {
  for (int t = 0; t < T; ++t) { /* stands in for a router */
    for (int k = 0; k < K; ++k) experts[t][k] = (t + 3 * k) % E;
    for (int h = 0; h < H; ++h) x[t][h] = (float)(t + h);
  }
  mep_comm_t comm;
  mep_ep_t ep;
  mep_ep_handle_t layer;
  mep_ep_view_t v = {.struct_size = sizeof v};
  mep_ep_config_t config = {.struct_size = sizeof config, .input_type = MEP_FLOAT32};
  config.max_tokens_per_rank = T;
  config.hidden = H;
  config.top_k = K;
  config.num_experts = E;
  must(mep_comm_init(NULL, &comm));
  must(mep_ep_create(comm, &config, &ep));
  must(mep_ep_handle_create(ep, 0, &layer));
  must(mep_dispatch(layer, x, experts, NULL, T, &v, NULL, NULL)); /* tokens to their experts */
  for (uint32_t e = 0; e < v.local_experts; ++e) {
    const float* in = (const float*)v.recv_x + e * v.rows_per_expert * H;
    float* y = (float*)v.combine_input + e * v.rows_per_expert * H;
    for (int i = 0; i < v.recv_count[e] * H; ++i) y[i] = in[i] * (float)(v.first_expert + e + 1);
  }
  must(mep_combine(layer, v.combine_input, out, NULL, NULL)); /* and the outputs back, summed */
  int wrong = 0;
  for (int t = 0; t < T; ++t)
    for (int h = 0; h < H; ++h) wrong += out[t][h] != x[t][h] * (experts[t][0] + experts[t][1] + 2);
  printf("rank %u of %u: the combined tokens are %s\n", v.first_expert / v.local_experts,
         E / v.local_experts, wrong ? "WRONG" : "right");
  must(mep_ep_handle_destroy(layer));
  must(mep_ep_destroy(ep));
  must(mep_comm_destroy(comm));
  return wrong != 0;
}
