/* Wrong arguments to the functions of expert parallelism, on a world of one thread; see
 * errors_comm_test.c. */
#include <sys/wait.h>
#include <unistd.h>

#include "abi_test.h"

enum { kTokens = 4, kHidden = 8, kTopK = 2, kExperts = 4 };

typedef struct {
  mep_comm_t comm;
  mep_ep_t ep;
  mep_ep_handle_t handle;
  float x[kTokens][kHidden];
  float out[kTokens][kHidden];
  float weights[kTokens][kTopK];
  int64_t topk_idx[kTokens][kTopK];
} Fixture;

static mep_ep_config_t good_config(void) {
  mep_ep_config_t config;
  mep_ep_config_defaults(&config);
  config.max_tokens_per_rank = kTokens;
  config.hidden = kHidden;
  config.top_k = kTopK;
  config.num_experts = kExperts;
  config.input_type = MEP_FLOAT32;
  return config;
}

static mep_dispatch_args_t good_dispatch(Fixture* f) {
  mep_dispatch_args_t args;
  mep_dispatch_args_defaults(&args);
  args.num_tokens = kTokens;
  args.x = f->x;
  args.topk_idx = f->topk_idx;
  return args;
}

static mep_combine_args_t good_combine(Fixture* f) {
  mep_combine_args_t args;
  mep_combine_args_defaults(&args);
  args.out = f->out;
  return args;
}

static int set_up(void** state) {
  static Fixture fixture;
  const mep_ep_config_t config = good_config();
  for (int t = 0; t < kTokens; ++t) {
    for (int k = 0; k < kTopK; ++k) fixture.topk_idx[t][k] = (t + k) % kExperts;
  }
  MUST(mep_comm_init_all(1, NULL, &fixture.comm));
  MUST(mep_ep_create(fixture.comm, &config, &fixture.ep));
  MUST(mep_ep_handle_create(fixture.ep, 0, &fixture.handle));
  *state = &fixture;
  return 0;
}

static int tear_down(void** state) {
  Fixture* f = *state;
  MUST(mep_ep_handle_destroy(f->handle));
  MUST(mep_ep_destroy(f->ep));
  MUST(mep_comm_destroy(f->comm));
  return 0;
}

/* One field of a good config set to a wrong value; every function that takes a config must answer.
 */
static void refused_config(Fixture* f, mep_result_t code, const mep_ep_config_t* config, int line) {
  mep_ep_size_t size;
  mep_ep_t ep = NULL;
  mep_ep_size_defaults(&size);
  expect_result(code, mep_ep_create(f->comm, config, &ep), "mep_ep_create", __FILE__, line);
  assert_null(ep);
  expect_result(code, mep_ep_buffer_size(f->comm, config, &size), "mep_ep_buffer_size", __FILE__,
                line);
}

#define REFUSED(code, field, value)                    \
  do {                                                 \
    mep_ep_config_t config = good_config();            \
    config.field = (value);                            \
    refused_config(*state, (code), &config, __LINE__); \
  } while (0)

static void configs(void** state) {
  Fixture* f = *state;
  mep_ep_config_t good = good_config();
  mep_ep_size_t size;
  mep_ep_t ep = NULL;
  mep_ep_size_defaults(&size);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_create(NULL, &good, &ep));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_create(f->comm, NULL, &ep));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_create(f->comm, &good, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_attach(NULL, &good, &ep));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_attach(f->comm, NULL, &ep));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_attach(f->comm, &good, NULL));
  good.name = "nothing has this name";
  EXPECT_IF_BUILT(MEP_ERR_NOT_FOUND, mep_ep_attach(f->comm, &good, &ep));
  assert_null(ep);
  good.name = NULL;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_buffer_size(NULL, &good, &size));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_buffer_size(f->comm, NULL, &size));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_buffer_size(f->comm, &good, NULL));
  MUST(mep_ep_buffer_size(f->comm, &good, &size));
  assert_true(size.window_bytes > 0);

  REFUSED(MEP_ERR_INVALID_ARGUMENT, max_tokens_per_rank, 0);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, hidden, 0);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, hidden, 5); /* 20 bytes, no multiple of 16 */
  REFUSED(MEP_ERR_INVALID_ARGUMENT, top_k, 0);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, top_k, 65);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, num_experts, 0);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, num_buffers, 9);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, mode, 2);
  REFUSED(MEP_ERR_UNSUPPORTED, mode, MEP_EP_HIGH_THROUGHPUT);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, receive_layout, 3);
  REFUSED(MEP_ERR_UNSUPPORTED, receive_layout, MEP_EP_EXPANDED);
  REFUSED(MEP_ERR_UNSUPPORTED, scale_layout, MEP_SCALE_COLUMN_MAJOR);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, scale_layout, 2);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, scale_type, 2);
  REFUSED(MEP_ERR_UNSUPPORTED, scale_block, 64);
  REFUSED(MEP_ERR_UNSUPPORTED, input_type, MEP_FLOAT64);
  REFUSED(MEP_ERR_UNSUPPORTED, wire_type, MEP_FLOAT8_E5M2);
  REFUSED(MEP_ERR_UNSUPPORTED, wire_type, MEP_FLOAT16); /* neither the input's nor e4m3 */
  REFUSED(MEP_ERR_UNSUPPORTED, combine_type, MEP_INT32);
  REFUSED(MEP_ERR_UNSUPPORTED, input_type, 99);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, flags, 1);
}

static void objects(void** state) {
  Fixture* f = *state;
  mep_ep_handle_t handle = NULL;
  mep_ep_view_t view;
  mep_op_info_t info;
  void* memory = NULL;
  mep_ep_view_defaults(&view);
  mep_op_info_defaults(&info);
  MUST(mep_ep_destroy(NULL));
  MUST(mep_ep_handle_destroy(NULL));
  EXPECT(MEP_ERR_BUSY, mep_comm_destroy(f->comm)); /* an EP object exists */
  EXPECT(MEP_ERR_BUSY, mep_ep_destroy(f->ep));     /* a handle exists */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_handle_create(NULL, 0, &handle));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_handle_create(f->ep, 0, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_handle_create(f->ep, 2, &handle)); /* there are 2 */
  assert_null(handle);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_buffer_view(NULL, 0, &view));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_buffer_view(f->ep, 0, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_buffer_view(f->ep, 2, &view));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_combine_input(NULL, 0, &memory));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_combine_input(f->ep, 0, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_combine_input(f->ep, 2, &memory));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_last_op(NULL, 0, &info));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_last_op(f->ep, 0, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_last_op(f->ep, 2, &info));
  EXPECT(MEP_ERR_NOT_FOUND, mep_ep_last_op(f->ep, 1, &info)); /* no operation there yet */

  static const int32_t kOutOfRange[kExperts] = {0, 1, 2, kExperts};
  static const int32_t kNoPlace[kExperts] = {0, 1, -1, 3};
  static const int32_t kGood[kExperts] = {3, 2, 1, 0};
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_set_expert_map(NULL, kGood));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_set_expert_map(f->ep, kOutOfRange));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_set_expert_map(f->ep, kNoPlace));
  MUST(mep_ep_set_expert_map(f->ep, kGood));
  MUST(mep_ep_set_expert_map(f->ep, NULL));
}

static void finish(Fixture* f) {
  const mep_combine_args_t combine = good_combine(f);
  MUST(mep_combine(f->handle, &combine, NULL));
}

#define BAD_DISPATCH(code, field, value)                  \
  do {                                                    \
    mep_dispatch_args_t args = good_dispatch(f);          \
    args.field = (value);                                 \
    EXPECT((code), mep_dispatch(f->handle, &args, NULL)); \
  } while (0)

static void dispatches(void** state) {
  Fixture* f = *state;
  mep_dispatch_args_t args = good_dispatch(f);
  char small[16];
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_dispatch(NULL, &args, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_dispatch(f->handle, NULL, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_dispatch(f->handle, &args, small)); /* a host has no stream */
  BAD_DISPATCH(MEP_ERR_INVALID_ARGUMENT, phase, 3);
  BAD_DISPATCH(MEP_ERR_INVALID_ARGUMENT, num_tokens, kTokens + 1);
  BAD_DISPATCH(MEP_ERR_INVALID_ARGUMENT, x, NULL);
  BAD_DISPATCH(MEP_ERR_INVALID_ARGUMENT, topk_idx, NULL);
  BAD_DISPATCH(MEP_ERR_INVALID_ARGUMENT, topk_idx_type, MEP_FLOAT32);
  BAD_DISPATCH(MEP_ERR_INVALID_ARGUMENT, x_stride_bytes, 4); /* less than a row */
  BAD_DISPATCH(MEP_ERR_INVALID_ARGUMENT, flags, 1);
  args.recv_x = small;
  args.recv_capacity = sizeof small;
  EXPECT(MEP_ERR_CAPACITY, mep_dispatch(f->handle, &args, NULL));
  mep_dispatch_args_defaults(&args); /* the rows are there all the same: received in another way */
  args.phase = MEP_PHASE_RECEIVE;
  MUST(mep_dispatch(f->handle, &args, NULL));
  finish(f);

  /* Bad routing names token and value, and nothing is sent. */
  f->topk_idx[2][1] = kExperts;
  args = good_dispatch(f);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_dispatch(f->handle, &args, NULL));
  assert_non_null(strstr(mep_last_error(), "2"));
  assert_non_null(strstr(mep_last_error(), "4"));
  f->topk_idx[2][1] = -2;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_dispatch(f->handle, &args, NULL));
  f->topk_idx[2][1] = f->topk_idx[2][0]; /* twice */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_dispatch(f->handle, &args, NULL));
  f->topk_idx[2][1] = 3;

  mep_ep_handle_t fresh = NULL;
  MUST(mep_ep_handle_create(f->ep, 1, &fresh));
  args.phase = MEP_PHASE_RECEIVE; /* nothing was sent */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_dispatch(fresh, &args, NULL));
  MUST(mep_ep_handle_destroy(fresh));

  args = good_dispatch(f);
  args.phase = MEP_PHASE_SEND;
  MUST(mep_dispatch(f->handle, &args, NULL));
  EXPECT(MEP_ERR_BUSY, mep_dispatch(f->handle, &args, NULL)); /* not received yet */
  EXPECT(MEP_ERR_BUSY, mep_ep_handle_destroy(f->handle));
  const mep_combine_args_t combine = good_combine(f);
  EXPECT(MEP_ERR_BUSY, mep_combine(f->handle, &combine, NULL));
  mep_dispatch_args_defaults(&args);
  args.phase = MEP_PHASE_RECEIVE;
  MUST(mep_dispatch(f->handle, &args, NULL));
  finish(f);
}

static void combines(void** state) {
  Fixture* f = *state;
  mep_dispatch_args_t dispatch = good_dispatch(f);
  MUST(mep_dispatch(f->handle, &dispatch, NULL));
  mep_combine_args_t args = good_combine(f);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine(NULL, &args, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine(f->handle, NULL, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_combine(f->handle, &args, f));
  args.out = NULL;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine(f->handle, &args, NULL));
  args = good_combine(f);
  args.phase = 3;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine(f->handle, &args, NULL));
  args = good_combine(f);
  args.out_stride_bytes = 4;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine(f->handle, &args, NULL));
  args = good_combine(f);
  args.num_tokens = dispatch.num_tokens + 1; /* made for another dispatch */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine(f->handle, &args, NULL));
  args = good_combine(f);
  args.flags = 1u << 31;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine(f->handle, &args, NULL));

  args = good_combine(f);
  args.num_tokens = dispatch.num_tokens;
  args.phase = MEP_PHASE_SEND;
  MUST(mep_combine(f->handle, &args, NULL));
  EXPECT(MEP_ERR_BUSY, mep_combine(f->handle, &args, NULL));
  EXPECT(MEP_ERR_BUSY, mep_dispatch(f->handle, &dispatch, NULL));
  EXPECT(MEP_ERR_BUSY, mep_ep_handle_destroy(f->handle));
  args.phase = MEP_PHASE_RECEIVE;
  MUST(mep_combine(f->handle, &args, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine(f->handle, &args, NULL)); /* nothing to receive */
  args.phase = MEP_PHASE_BOTH;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine(f->handle, &args, NULL)); /* combined already */
}

static void info_needs_room(void** state) {
  Fixture* f = *state;
  mep_op_info_t info;
  uint64_t bits[1] = {0};
  mep_dispatch_args_t dispatch = good_dispatch(f);
  MUST(mep_dispatch(f->handle, &dispatch, NULL));
  finish(f);
  mep_op_info_defaults(&info);
  info.contributors = bits;
  EXPECT(MEP_ERR_CAPACITY, mep_ep_last_op(f->ep, 0, &info));
}

/* The status of the child says which call did not answer MEP_ERR_FORKED. */
static int calls_in_child(Fixture* f) {
  mep_ep_view_t view;
  mep_op_info_t info;
  mep_ep_size_t size;
  void* memory = NULL;
  mep_ep_t ep = NULL;
  mep_ep_handle_t handle = NULL;
  const mep_ep_config_t config = good_config();
  const mep_dispatch_args_t dispatch = good_dispatch(f);
  const mep_combine_args_t combine = good_combine(f);
  mep_ep_view_defaults(&view);
  mep_op_info_defaults(&info);
  mep_ep_size_defaults(&size);
  const mep_result_t results[] = {
      mep_ep_create(f->comm, &config, &ep),
      mep_ep_attach(f->comm, &config, &ep),
      mep_ep_buffer_size(f->comm, &config, &size),
      mep_ep_handle_create(f->ep, 0, &handle),
      mep_ep_set_expert_map(f->ep, NULL),
      mep_ep_buffer_view(f->ep, 0, &view),
      mep_ep_combine_input(f->ep, 0, &memory),
      mep_dispatch(f->handle, &dispatch, NULL),
      mep_combine(f->handle, &combine, NULL),
      mep_ep_last_op(f->ep, 0, &info),
      mep_ep_handle_destroy(f->handle),
      mep_ep_destroy(f->ep),
  };
  for (size_t i = 0; i < sizeof results / sizeof *results; ++i) {
    if (results[i] != MEP_ERR_FORKED) return (int)i + 1;
  }
  return 0;
}

static void forked_child(void** state) {
  Fixture* f = *state;
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) _exit(calls_in_child(f));
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) != 0) {
    fail_msg("call %d in a forked child did not answer MEP_ERR_FORKED", WEXITSTATUS(status) - 1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(configs),  cmocka_unit_test(objects),         cmocka_unit_test(dispatches),
      cmocka_unit_test(combines), cmocka_unit_test(info_needs_room), cmocka_unit_test(forked_child),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
