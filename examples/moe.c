/* One MoE layer, whose expert e multiplies by e + 1. Start it by: mep_run -n 4 ./moe_c */
#include <mep.h>
#include <stdio.h>
#include <stdlib.h>
enum { T = 32, H = 64, K = 2, E = 8 }; /* tokens of a rank, hidden, top-k, experts of all ranks */
static float x[T][H], out[T][H];
static int64_t experts[T][K]; /* of each token; without weights all weights are 1 */
static void must(mep_result_t result) {
  if (result < 0) exit(fprintf(stderr, "%s\n", mep_last_error()));
}

int main(void) {
  for (int t = 0; t < T; ++t) { /* stands in for a router */
    for (int k = 0; k < K; ++k) experts[t][k] = (t + 3 * k) % E;
    for (int h = 0; h < H; ++h) x[t][h] = (float)(t + h);
  }
  mep_comm_t comm;
  mep_ep_t ep;
  mep_ep_handle_t layer;
  mep_ep_view_t view = {.struct_size = sizeof view};
  mep_ep_config_t config = {.struct_size = sizeof config,
                            .max_tokens_per_rank = T,
                            .hidden = H,
                            .top_k = K,
                            .num_experts = E,
                            .input_type = MEP_FLOAT32};
  must(mep_comm_init(NULL, &comm));
  must(mep_ep_create(comm, &config, &ep));
  must(mep_ep_handle_create(ep, 0, &layer));
  must(mep_dispatch(layer, x, experts, NULL, T, &view, NULL, NULL)); /* tokens to their experts */
  for (uint32_t e = 0; e < view.local_experts; ++e) {
    const float* in = (const float*)view.recv_x + e * view.rows_per_expert * H;
    float* y = (float*)view.combine_input + e * view.rows_per_expert * H;
    for (int i = 0; i < view.recv_count[e] * H; ++i)
      y[i] = in[i] * (float)(view.first_expert + e + 1);
  }
  must(mep_combine(layer, view.combine_input, out, NULL, NULL)); /* and the outputs back, summed */
  const int right = out[5][7] == x[5][7] * (5 + 1 + 0 + 1);      /* experts 5 and 0 */
  printf("rank %u of %u: the combined tokens are %s\n", view.first_expert / view.local_experts,
         E / view.local_experts, right ? "right" : "WRONG");
  must(mep_ep_handle_destroy(layer));
  must(mep_ep_destroy(ep));
  must(mep_comm_destroy(comm));
  return !right;
}
