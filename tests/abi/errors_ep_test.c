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
  mep_ep_view_t view;
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

static mep_dispatch_options_t dispatch_options(void) {
  mep_dispatch_options_t options;
  mep_dispatch_options_defaults(&options);
  return options;
}

static mep_combine_options_t combine_options(void) {
  mep_combine_options_t options;
  mep_combine_options_defaults(&options);
  return options;
}

/* Calls with right arguments but for options, which may be NULL. */
static mep_result_t dispatch_with(Fixture* f, const mep_dispatch_options_t* options) {
  return mep_dispatch(f->handle, f->x, f->topk_idx, NULL, kTokens, NULL, options, NULL);
}
static mep_result_t combine_with(Fixture* f, const mep_combine_options_t* options) {
  return mep_combine(f->handle, f->view.combine_input, f->out, options, NULL);
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
  mep_ep_view_defaults(&fixture.view);
  MUST(mep_ep_buffer_view(fixture.ep, 0, &fixture.view));
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
  REFUSED(MEP_ERR_INVALID_ARGUMENT, layout, 4);
  REFUSED(MEP_ERR_UNSUPPORTED, scale_layout, MEP_SCALE_COLUMN_MAJOR);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, scale_layout, 2);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, scale_type, 3);
  REFUSED(MEP_ERR_UNSUPPORTED, input_type, MEP_FLOAT64);
  REFUSED(MEP_ERR_UNSUPPORTED, wire_type, MEP_INT8);
  /* Neither the input's type nor one with scales. */
  REFUSED(MEP_ERR_UNSUPPORTED, wire_type, MEP_FLOAT16);
  REFUSED(MEP_ERR_UNSUPPORTED, combine_type, MEP_INT32);
  REFUSED(MEP_ERR_UNSUPPORTED, input_type, 99);
  REFUSED(MEP_ERR_INVALID_ARGUMENT, flags, 1);
}

static void objects(void** state) {
  Fixture* f = *state;
  mep_ep_handle_t handle = NULL;
  mep_memory_t kept = NULL;
  mep_ep_view_t view;
  mep_op_info_t info;
  mep_ep_view_defaults(&view);
  mep_op_info_defaults(&info);
  MUST(mep_ep_destroy(NULL));
  MUST(mep_ep_handle_destroy(NULL));
  EXPECT(MEP_ERR_BUSY, mep_comm_destroy(f->comm)); /* an EP object exists */
  EXPECT(MEP_ERR_BUSY, mep_ep_destroy(f->ep));     /* a handle exists */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_destroy_keep(f->ep, NULL));
  EXPECT(MEP_ERR_BUSY, mep_ep_destroy_keep(f->ep, &kept));
  assert_null(kept);
  MUST(mep_ep_destroy_keep(NULL, &kept));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_handle_create(NULL, 0, &handle));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_handle_create(f->ep, 0, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_handle_create(f->ep, 2, &handle)); /* there are 2 */
  assert_null(handle);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_buffer_view(NULL, 0, &view));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_buffer_view(f->ep, 0, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ep_buffer_view(f->ep, 2, &view));
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
  MUST(combine_with(f, NULL));
}

/* One option set to a wrong value. */
#define BAD_OPTION(code, field, value)                   \
  do {                                                   \
    mep_dispatch_options_t options = dispatch_options(); \
    options.field = (value);                             \
    EXPECT((code), dispatch_with(f, &options));          \
  } while (0)

/* A record without room for its header, one that lies wrong, and the smallest that works. */
static void statuses(void** state) {
  Fixture* f = *state;
  mep_dispatch_options_t options = dispatch_options();
  uint64_t record[6] = {7, 7, 7, 7, 7, 7};
  const mep_op_status_t* status = (const mep_op_status_t*)record;
  assert_int_equal(mep_op_status_size(1), 48);
  assert_int_equal(mep_op_status_size(64), 48);
  assert_int_equal(mep_op_status_size(65), 56);
  options.op_status = (mep_op_status_t*)record;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, dispatch_with(f, &options));
  options.op_status_bytes = sizeof *status - 1;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, dispatch_with(f, &options));
  options.op_status_bytes = sizeof *status;
  options.op_status = (mep_op_status_t*)(void*)((char*)record + 4);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, dispatch_with(f, &options));
  options.op_status = (mep_op_status_t*)record;
  MUST(dispatch_with(f, &options));
  assert_int_equal(status->version, MEP_OP_STATUS_VERSION);
  assert_int_equal(status->failed_words, 0);
  assert_int_equal(record[5], 7);
  finish(f);
}

static void dispatches(void** state) {
  Fixture* f = *state;
  mep_dispatch_options_t options = dispatch_options();
  mep_ep_view_t view;
  char small[16];
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_dispatch(NULL, f->x, f->topk_idx, NULL, kTokens, NULL, NULL, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_dispatch(f->handle, f->x, f->topk_idx, NULL, kTokens, NULL, NULL,
                                           small)); /* no stream here */
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_dispatch_receive(f->handle, NULL, NULL, NULL)); /* none sent */
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_dispatch(f->handle, f->x, f->topk_idx, NULL, kTokens + 1, NULL, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_dispatch(f->handle, NULL, f->topk_idx, NULL, kTokens, NULL, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_dispatch_send(f->handle, f->x, NULL, NULL, kTokens, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_dispatch_counts(f->handle, f->x, f->topk_idx, NULL, kTokens, NULL,
                             NULL)); /* belongs to high throughput */
  view.struct_size = 4;              /* nothing is sent */
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_dispatch(f->handle, f->x, f->topk_idx, NULL, kTokens, &view, NULL, NULL));
  BAD_OPTION(MEP_ERR_INVALID_ARGUMENT, topk_idx_type, MEP_FLOAT32);
  BAD_OPTION(MEP_ERR_INVALID_ARGUMENT, x_stride_bytes, 4);  /* less than a row */
  BAD_OPTION(MEP_ERR_INVALID_ARGUMENT, flags, 1);           /* no replay in this layout */
  BAD_OPTION(MEP_ERR_INVALID_ARGUMENT, flags, 2);           /* a flag of the future */
  BAD_OPTION(MEP_ERR_INVALID_ARGUMENT, reserved, 1);        /* a field of the future */
  BAD_OPTION(MEP_ERR_INVALID_ARGUMENT, recv_scales, small); /* there are none */
  BAD_OPTION(MEP_ERR_INVALID_ARGUMENT, src_info, (int32_t*)f->view.src_info);
  BAD_OPTION(MEP_ERR_INVALID_ARGUMENT, recv_topk_weights, &f->weights[0][0]);
  BAD_OPTION(MEP_ERR_INVALID_ARGUMENT, statistics_type, MEP_UINT32);
  options.recv_x = small;
  options.recv_capacity = sizeof small;
  EXPECT(MEP_ERR_CAPACITY,
         mep_dispatch(f->handle, f->x, f->topk_idx, NULL, kTokens, NULL, &options, NULL));
  /* The rows are there all the same: received in another way. */
  mep_ep_view_defaults(&view);
  MUST(mep_dispatch_receive(f->handle, &view, NULL, NULL));
  assert_true(view.recv_x == f->view.recv_x && view.combine_input == f->view.combine_input);
  finish(f);

  int32_t rows[kExperts];
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_dispatch_layout(NULL, f->topk_idx, 0, kTokens, kTopK,
                                                       kExperts, rows, rows, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_dispatch_layout(f->comm, NULL, 0, kTokens, kTopK, kExperts, rows, rows, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_dispatch_layout(f->comm, f->topk_idx, MEP_FLOAT32, kTokens,
                                                       kTopK, kExperts, rows, rows, NULL, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_dispatch_layout(f->comm, f->topk_idx, 0, kTokens, kTopK, kExperts,
                                                  rows, rows, NULL, small)); /* no stream here */

  /* Bad routing names token and value, and nothing is sent. */
  f->topk_idx[2][1] = kExperts;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, dispatch_with(f, NULL));
  assert_non_null(strstr(mep_last_error(), "2"));
  assert_non_null(strstr(mep_last_error(), "4"));
  f->topk_idx[2][1] = -2;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, dispatch_with(f, NULL));
  f->topk_idx[2][1] = f->topk_idx[2][0]; /* twice */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, dispatch_with(f, NULL));
  f->topk_idx[2][1] = 3;

  MUST(mep_dispatch_send(f->handle, f->x, f->topk_idx, NULL, kTokens, NULL, NULL));
  EXPECT(MEP_ERR_BUSY, mep_dispatch_send(f->handle, f->x, f->topk_idx, NULL, kTokens, NULL,
                                         NULL)); /* not received yet */
  EXPECT(MEP_ERR_BUSY, mep_ep_handle_destroy(f->handle));
  EXPECT(MEP_ERR_BUSY, mep_combine(f->handle, f->view.combine_input, f->out, NULL, NULL));
  EXPECT(MEP_ERR_BUSY, mep_dispatch(f->handle, f->x, f->topk_idx, NULL, kTokens, NULL, NULL, NULL));
  MUST(mep_dispatch_receive(f->handle, NULL, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_dispatch_receive(f->handle, NULL, NULL, NULL)); /* it is */
  finish(f);
}

#define BAD_SUMS(field, value)                                   \
  do {                                                           \
    mep_combine_options_t options = combine_options();           \
    options.field = (value);                                     \
    EXPECT(MEP_ERR_INVALID_ARGUMENT, combine_with(f, &options)); \
  } while (0)

#define BAD_OUT(value) \
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine(f->handle, f->view.combine_input, value, NULL, NULL))

static void combines(void** state) {
  Fixture* f = *state;
  void* const y = f->view.combine_input;
  MUST(dispatch_with(f, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine(NULL, y, f->out, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_combine_receive(f->handle, f->out, NULL, NULL));              /* none sent */
  EXPECT(MEP_ERR_UNSUPPORTED, mep_combine(f->handle, y, f->out, NULL, f)); /* no stream here */
  BAD_OUT(NULL);
  BAD_OUT(y); /* the library's own memory, whole or in part */
  BAD_OUT((char*)f->view.recv_x + sizeof(float));
  BAD_SUMS(out_stride_bytes, 4);
  BAD_SUMS(num_tokens, kTokens - 1); /* made for another dispatch */
  BAD_SUMS(flags, 1u << 31);
  BAD_SUMS(op_status, (mep_op_status_t*)f->out); /* of no bytes */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine(f->handle, NULL, f->out, NULL, NULL));

  mep_combine_options_t options = combine_options();
  options.num_tokens = kTokens;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine_send(f->handle, NULL, NULL, NULL));
  MUST(mep_combine_send(f->handle, y, NULL, NULL));
  EXPECT(MEP_ERR_BUSY, mep_combine_send(f->handle, y, NULL, NULL));
  EXPECT(MEP_ERR_BUSY, mep_dispatch_send(f->handle, f->x, f->topk_idx, NULL, kTokens, NULL, NULL));
  EXPECT(MEP_ERR_BUSY, mep_ep_handle_destroy(f->handle));
  MUST(mep_combine_receive(f->handle, f->out, &options, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_combine_receive(f->handle, f->out, NULL, NULL)); /* it is */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, combine_with(f, NULL)); /* combined */
}

static void info_needs_room(void** state) {
  Fixture* f = *state;
  mep_op_info_t info;
  uint64_t bits[1] = {0};
  MUST(dispatch_with(f, NULL));
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
  mep_ep_t ep = NULL;
  mep_ep_handle_t handle = NULL;
  const mep_ep_config_t config = good_config();
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
      mep_dispatch_layout(f->comm, f->topk_idx, 0, 1, 1, 1, NULL, NULL, NULL, NULL),
      dispatch_with(f, NULL),
      mep_dispatch_send(f->handle, f->x, f->topk_idx, NULL, kTokens, NULL, NULL),
      mep_dispatch_counts(f->handle, f->x, f->topk_idx, NULL, kTokens, NULL, NULL),
      mep_dispatch_receive(f->handle, &view, NULL, NULL),
      combine_with(f, NULL),
      mep_combine_send(f->handle, f->view.combine_input, NULL, NULL),
      mep_combine_receive(f->handle, f->out, NULL, NULL),
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
      cmocka_unit_test(configs),      cmocka_unit_test(objects),  cmocka_unit_test(statuses),
      cmocka_unit_test(dispatches),   cmocka_unit_test(combines), cmocka_unit_test(info_needs_room),
      cmocka_unit_test(forked_child),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
