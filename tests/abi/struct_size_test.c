/* struct_size: initialisers touch no byte too many; a shorter struct is accepted and nothing beyond
 * it is read or written, if it ends at the end of a field; a longer one is accepted if its tail is zero. */
#include <sys/mman.h>
#include <unistd.h>

#include "abi_test.h"
#include "field_ends.h"

enum { kGuard = 64, kRoom = 512, kTail = 16 };

typedef struct {
  mep_comm_t comm;
  mep_ep_t ep;
  mep_ep_handle_t handle;
  float x[4];
  float out[4];
  float y[4];
  int64_t topk_idx[1];
} Fixture;

static int set_up(void** state) {
  static Fixture fixture;
  mep_ep_config_t config;
  MUST(mep_comm_init_all(1, NULL, &fixture.comm));
  mep_ep_config_defaults(&config);
  config.max_tokens_per_rank = 1;
  config.hidden = 4;
  config.top_k = 1;
  config.num_experts = 1;
  config.input_type = MEP_FLOAT32;
  MUST(mep_ep_create(fixture.comm, &config, &fixture.ep));
  MUST(mep_ep_handle_create(fixture.ep, 0, &fixture.handle));
  MUST(mep_barrier(fixture.comm, NULL)); /* so that there is a last operation */
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

/* ---- initialisers -----------------------------------------------------------------------------
 */

static const struct {
  const char* name;
  size_t size;
} kStructs[] = {
#undef STRUCT
#undef CONSTANT
#undef FIELD
#define STRUCT(name, size, alignment) {#name, size},
#define CONSTANT(name, value)
#define FIELD(name, field, offset, size)
#include "layout_table.h"
#undef STRUCT
#undef CONSTANT
#undef FIELD
};

static void initialisers_touch_only_their_bytes(void** state) {
  (void)state;
  for (size_t i = 0; i < sizeof kStructs / sizeof *kStructs; ++i) {
    for (size_t size = 0; size <= kStructs[i].size + kTail; ++size) {
      _Alignas(8) unsigned char memory[kGuard + kRoom + kGuard];
      memset(memory, 0xa5, sizeof memory);
      mep_struct_init(memory + kGuard, size);
      for (size_t at = 0; at < sizeof memory; ++at) {
        const int inside = at >= kGuard && at < kGuard + size;
        if (!inside && memory[at] != 0xa5) {
          fail_msg("%s(p, %zu) wrote at p%+zd", kStructs[i].name, size, (ptrdiff_t)at - kGuard);
        }
        if (inside && size >= 4 && at >= kGuard + 4 && memory[at] != 0) {
          fail_msg("%s(p, %zu) left byte %zu", kStructs[i].name, size, at - kGuard);
        }
      }
      if (size >= 4) {
        uint32_t written;
        memcpy(&written, memory + kGuard, sizeof written);
        assert_int_equal(written, size);
      }
    }
  }
  mep_struct_init(NULL, sizeof(mep_view_t));
}

static void defaults_are_inits(void** state) {
  (void)state;
#define CHECK_DEFAULTS(type, call)                     \
  do {                                                 \
    type value;                                        \
    memset(&value, 0xa5, sizeof value);                \
    call(&value);                                      \
    assert_int_equal(value.struct_size, sizeof(type)); \
    assert_int_equal(value.flags, 0);                  \
  } while (0)
  CHECK_DEFAULTS(mep_comm_config_t, mep_comm_config_defaults);
  CHECK_DEFAULTS(mep_store_t, mep_store_defaults);
  CHECK_DEFAULTS(mep_op_info_t, mep_op_info_defaults);
  CHECK_DEFAULTS(mep_comm_stats_t, mep_comm_stats_defaults);
  CHECK_DEFAULTS(mep_message_t, mep_message_defaults);
  CHECK_DEFAULTS(mep_comm_info_t, mep_comm_info_defaults);
  CHECK_DEFAULTS(mep_view_t, mep_view_defaults);
  CHECK_DEFAULTS(mep_ep_config_t, mep_ep_config_defaults);
  CHECK_DEFAULTS(mep_ep_size_t, mep_ep_size_defaults);
  CHECK_DEFAULTS(mep_ep_view_t, mep_ep_view_defaults);
  CHECK_DEFAULTS(mep_dispatch_options_t, mep_dispatch_options_defaults);
  CHECK_DEFAULTS(mep_combine_options_t, mep_combine_options_defaults);
}

/* ---- functions that take a struct ---------------------------------------------------------------
 * Each call gets a struct that `fill` made, must succeed with it, and leaves the fixture as it was.
 */

static void fill_nothing(void* memory, size_t size) {
  (void)memory;
  (void)size;
}

static void fill_config(void* memory, size_t size) {
  mep_comm_config_t* config = memory;
  (void)size;
  config->flags = MEP_COMM_SET_RANK;
  config->rank = 0;
  config->size = 1;
}

static mep_result_t call_comm_init(Fixture* f, void* memory) {
  mep_comm_t comm = NULL;
  (void)f;
  const mep_result_t result = mep_comm_init(memory, &comm);
  if (result == MEP_SUCCESS) MUST(mep_comm_destroy(comm));
  return result;
}

static mep_result_t call_comm_init_all(Fixture* f, void* memory) {
  mep_comm_t comm = NULL;
  (void)f;
  const mep_result_t result = mep_comm_init_all(1, memory, &comm);
  if (result == MEP_SUCCESS) MUST(mep_comm_destroy(comm));
  return result;
}

static int store_put(void* user, const char* key, const void* value, size_t bytes) {
  (void)user, (void)key, (void)value, (void)bytes;
  return 0;
}
static int store_get(void* user, const char* key, void* value, size_t capacity, size_t* bytes,
                     uint32_t timeout_ms) {
  (void)user, (void)key, (void)value, (void)capacity, (void)timeout_ms;
  *bytes = 0;
  return 1;
}

static void fill_store(void* memory, size_t size) {
  mep_store_t* store = memory;
  (void)size;
  store->put = store_put;
  store->get = store_get;
}

/* A world of one needs nothing from its store, but the struct is checked. */
static mep_result_t call_comm_init_store(Fixture* f, void* memory) {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  fill_config(&config, sizeof config);
  config.store = memory;
  return call_comm_init(f, &config);
}

static mep_result_t call_last_op(Fixture* f, void* memory) {
  return mep_comm_last_op(f->comm, memory);
}

/* A refused call changes nothing: the request is still there, and can be finished. */
static void finish_refused(mep_result_t result, mep_request_t* request) {
  if (result == MEP_SUCCESS) {
    assert_null(*request);
  } else {
    assert_non_null(*request);
    MUST(mep_request_wait(request, MEP_TIMEOUT_DEFAULT, NULL, NULL));
  }
}

static mep_result_t call_request_wait(Fixture* f, void* memory) {
  mep_request_t request = NULL;
  MUST(mep_ibarrier(f->comm, NULL, &request));
  const mep_result_t result = mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, NULL, memory);
  finish_refused(result, &request);
  return result;
}

static mep_result_t call_request_test(Fixture* f, void* memory) {
  mep_request_t request = NULL;
  int32_t done = 0;
  mep_result_t result = MEP_SUCCESS;
  MUST(mep_ibarrier(f->comm, NULL, &request));
  while (!done && result == MEP_SUCCESS) result = mep_request_test(&request, &done, memory);
  finish_refused(result, &request);
  return result;
}

static mep_result_t call_request_info(Fixture* f, void* memory) {
  mep_request_t request = NULL;
  MUST(mep_ibarrier(f->comm, NULL, &request));
  const mep_result_t result = mep_request_info(request, memory);
  MUST(mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, NULL, NULL));
  return result;
}

static mep_result_t call_request_waitany(Fixture* f, void* memory) {
  mep_request_t request = NULL;
  int32_t index = -1;
  MUST(mep_ibarrier(f->comm, NULL, &request));
  const mep_result_t result =
      mep_request_waitany(1, &request, MEP_TIMEOUT_DEFAULT, NULL, &index, memory);
  finish_refused(result, &request);
  return result;
}

/* A message of this rank to itself. A refused receive leaves it there. */
static void send_one(Fixture* f) {
  MUST(mep_send(f->x, 1, MEP_FLOAT32, 0, 3, f->comm, NULL));
}
static void take_one(Fixture* f) {
  MUST(mep_recv(f->out, 1, MEP_FLOAT32, 0, 3, f->comm, NULL, NULL));
}

static mep_result_t call_recv(Fixture* f, void* memory) {
  send_one(f);
  const mep_result_t result = mep_recv(f->out, 1, MEP_FLOAT32, 0, 3, f->comm, memory, NULL);
  if (result != MEP_SUCCESS) take_one(f);
  return result;
}

/* A refused call has sent nothing either. */
static mep_result_t call_sendrecv(Fixture* f, void* memory) {
  int32_t found = -1;
  const mep_result_t result =
      mep_sendrecv(f->x, 1, 0, 3, f->out, 1, 0, 3, MEP_FLOAT32, f->comm, memory, NULL);
  MUST(mep_iprobe(0, 3, f->comm, &found, NULL));
  assert_int_equal(found, 0);
  return result;
}

static mep_result_t call_irecv(Fixture* f, void* memory) {
  mep_request_t request = NULL;
  send_one(f);
  const mep_result_t result =
      mep_irecv(f->out, 1, MEP_FLOAT32, 0, 3, f->comm, memory, NULL, &request);
  if (result != MEP_SUCCESS) {
    assert_null(request);
    take_one(f);
    return result;
  }
  return mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, NULL, NULL);
}

static mep_result_t call_probe(Fixture* f, void* memory) {
  send_one(f);
  const mep_result_t result = mep_probe(0, 3, f->comm, memory);
  take_one(f);
  return result;
}

static mep_result_t call_iprobe(Fixture* f, void* memory) {
  int32_t found = 0;
  mep_result_t result = MEP_SUCCESS;
  send_one(f);
  while (!found && result == MEP_SUCCESS) result = mep_iprobe(0, 3, f->comm, &found, memory);
  take_one(f);
  return result;
}

static mep_result_t call_stats(Fixture* f, void* memory) {
  return mep_comm_stats(f->comm, memory);
}

static mep_result_t call_view(Fixture* f, void* memory) {
  return mep_comm_view(f->comm, memory);
}

static mep_result_t call_query(Fixture* f, void* memory) {
  return mep_comm_query(f->comm, memory);
}

static void fill_ep_config(void* memory, size_t size) {
  mep_ep_config_t* config = memory;
  (void)size;
  config->max_tokens_per_rank = 1;
  config->hidden = 8;
  config->top_k = 1;
  config->num_experts = 1;
}

static mep_result_t call_ep_create(Fixture* f, void* memory) {
  mep_ep_t ep = NULL;
  const mep_result_t result = mep_ep_create(f->comm, memory, &ep);
  if (result == MEP_SUCCESS) MUST(mep_ep_destroy(ep));
  return result;
}

static mep_result_t call_ep_buffer_size(Fixture* f, void* memory) {
  mep_ep_size_t size;
  mep_ep_size_defaults(&size);
  return mep_ep_buffer_size(f->comm, memory, &size);
}

static mep_result_t call_ep_buffer_size_out(Fixture* f, void* memory) {
  mep_ep_config_t config;
  mep_ep_config_defaults(&config);
  fill_ep_config(&config, sizeof config);
  return mep_ep_buffer_size(f->comm, &config, memory);
}

static mep_result_t call_ep_buffer_view(Fixture* f, void* memory) {
  return mep_ep_buffer_view(f->ep, 0, memory);
}

static mep_result_t dispatch_with(Fixture* f, void* view, const void* options) {
  return mep_dispatch(f->handle, f->x, f->topk_idx, NULL, 1, view, options, NULL);
}
static mep_result_t combine_with(Fixture* f, const void* options) {
  return mep_combine(f->handle, f->y, f->out, options, NULL);
}

static mep_result_t call_dispatch(Fixture* f, void* options) {
  const mep_result_t result = dispatch_with(f, NULL, options);
  if (result == MEP_SUCCESS) MUST(combine_with(f, NULL));
  return result;
}
static mep_result_t call_dispatch_view(Fixture* f, void* view) {
  const mep_result_t result = dispatch_with(f, view, NULL);
  if (result == MEP_SUCCESS) MUST(combine_with(f, NULL));
  return result;
}

static mep_result_t call_combine(Fixture* f, void* options) {
  MUST(dispatch_with(f, NULL, NULL));
  const mep_result_t result = combine_with(f, options);
  /* A refused call changes nothing: this one works. */
  if (result != MEP_SUCCESS) MUST(combine_with(f, NULL));
  return result;
}

static mep_result_t call_ep_last_op(Fixture* f, void* memory) {
  MUST(dispatch_with(f, NULL, NULL));
  MUST(combine_with(f, NULL));
  return mep_ep_last_op(f->ep, 0, memory);
}

#define SIZE_AND_NAME(type) sizeof(type), #type

static const struct {
  const char* name;
  mep_result_t (*call)(Fixture*, void*);
  void (*fill)(void*, size_t);
  size_t size;
  const char* type;
} kTakers[] = {
    {"mep_comm_init", call_comm_init, fill_config, SIZE_AND_NAME(mep_comm_config_t)},
    {"mep_comm_init_all", call_comm_init_all, fill_nothing, SIZE_AND_NAME(mep_comm_config_t)},
    {"mep_comm_init's store", call_comm_init_store, fill_store, SIZE_AND_NAME(mep_store_t)},
    {"mep_comm_last_op", call_last_op, fill_nothing, SIZE_AND_NAME(mep_op_info_t)},
    {"mep_request_wait", call_request_wait, fill_nothing, SIZE_AND_NAME(mep_op_info_t)},
    {"mep_request_test", call_request_test, fill_nothing, SIZE_AND_NAME(mep_op_info_t)},
    {"mep_request_info", call_request_info, fill_nothing, SIZE_AND_NAME(mep_op_info_t)},
    {"mep_request_waitany", call_request_waitany, fill_nothing, SIZE_AND_NAME(mep_op_info_t)},
    {"mep_recv", call_recv, fill_nothing, SIZE_AND_NAME(mep_message_t)},
    {"mep_sendrecv", call_sendrecv, fill_nothing, SIZE_AND_NAME(mep_message_t)},
    {"mep_irecv", call_irecv, fill_nothing, SIZE_AND_NAME(mep_message_t)},
    {"mep_probe", call_probe, fill_nothing, SIZE_AND_NAME(mep_message_t)},
    {"mep_iprobe", call_iprobe, fill_nothing, SIZE_AND_NAME(mep_message_t)},
    {"mep_comm_stats", call_stats, fill_nothing, SIZE_AND_NAME(mep_comm_stats_t)},
    {"mep_comm_query", call_query, fill_nothing, SIZE_AND_NAME(mep_comm_info_t)},
    {"mep_comm_view", call_view, fill_nothing, SIZE_AND_NAME(mep_view_t)},
    {"mep_ep_create", call_ep_create, fill_ep_config, SIZE_AND_NAME(mep_ep_config_t)},
    {"mep_ep_buffer_size", call_ep_buffer_size, fill_ep_config, SIZE_AND_NAME(mep_ep_config_t)},
    {"mep_ep_buffer_size (out)", call_ep_buffer_size_out, fill_nothing,
     SIZE_AND_NAME(mep_ep_size_t)},
    {"mep_ep_buffer_view", call_ep_buffer_view, fill_nothing, SIZE_AND_NAME(mep_ep_view_t)},
    {"mep_dispatch", call_dispatch, fill_nothing, SIZE_AND_NAME(mep_dispatch_options_t)},
    {"mep_dispatch's view", call_dispatch_view, fill_nothing, SIZE_AND_NAME(mep_ep_view_t)},
    {"mep_combine", call_combine, fill_nothing, SIZE_AND_NAME(mep_combine_options_t)},
    {"mep_ep_last_op", call_ep_last_op, fill_nothing, SIZE_AND_NAME(mep_op_info_t)},
};

/* Runs taker i with a struct of `size` bytes between bytes 0xa5 which must stay; `mark` != 0 is put
 * into the last byte of the struct. */
static mep_result_t run_taker(Fixture* f, size_t i, size_t size, unsigned char mark) {
  _Alignas(8) unsigned char memory[kGuard + kRoom];
  _Alignas(8) unsigned char full[kRoom];
  const size_t known = size < kTakers[i].size ? size : kTakers[i].size;
  memset(memory, 0xa5, sizeof memory);
  /* Filled at full length, then cut, so that `fill` never writes beyond the short one. */
  mep_struct_init(full, kTakers[i].size);
  kTakers[i].fill(full, kTakers[i].size);
  mep_struct_init(memory + kGuard, size);
  memcpy(memory + kGuard + 4, full + 4, known - 4);
  if (mark != 0) memory[kGuard + size - 1] = mark;
  const mep_result_t result = kTakers[i].call(f, memory + kGuard);
  for (size_t at = 0; at < sizeof memory; ++at) {
    if ((at < kGuard || at >= kGuard + size) && memory[at] != 0xa5) {
      fail_msg("%s with struct_size %zu wrote at offset %td", kTakers[i].name, size,
               (ptrdiff_t)at - kGuard);
    }
  }
  return result;
}

static int is_fine(const char* name, mep_result_t result) {
  /* mep_request_info of a running request is a success that says MEP_IN_PROGRESS inside. */
  if (result == MEP_SUCCESS) return 1;
  print_error("%s: %s: %s\n", name, mep_result_string(result), mep_last_error());
  return 0;
}

static void struct_size_rules(void** state) {
  Fixture* f = *state;
  for (size_t i = 0; i < sizeof kTakers / sizeof *kTakers; ++i) {
    const char* name = kTakers[i].name;
    const size_t size = kTakers[i].size;
    assert_true(is_fine(name, run_taker(f, i, size, 0)));
    assert_true(is_fine(name, run_taker(f, i, size + kTail, 0)));
    /* mep_store_t has no field that could be left out. */
    if (strstr(name, "store") == NULL) assert_true(is_fine(name, run_taker(f, i, size - 8, 0)));

    const mep_result_t refused = run_taker(f, i, size + kTail, 1);
    if (refused != MEP_ERR_INVALID_ARGUMENT) {
      fail_msg("%s took a longer struct with a nonzero tail: %s", name, mep_result_string(refused));
    }
    /* And all is as before. */
    assert_true(is_fine(name, run_taker(f, i, size, 0)));
  }
}

static void struct_size_zero_is_refused(void** state) {
  Fixture* f = *state;
  for (size_t i = 0; i < sizeof kTakers / sizeof *kTakers; ++i) {
    _Alignas(8) unsigned char memory[kRoom];
    memset(memory, 0, sizeof memory);
    kTakers[i].fill(memory, kTakers[i].size);
    const mep_result_t result = kTakers[i].call(f, memory);
    if (result != MEP_ERR_INVALID_ARGUMENT) {
      fail_msg("%s took a struct that nobody initialised: %s", kTakers[i].name,
               mep_result_string(result));
    }
  }
}

/* ---- every size, at the end of what may be touched ----------------------------------------------
 */

/* `bytes` of memory with a page behind them that nobody may touch. */
typedef struct {
  unsigned char* pages;
  size_t page_bytes;
} Fenced;

static Fenced make_fenced(void) {
  Fenced fenced;
  fenced.page_bytes = (size_t)sysconf(_SC_PAGESIZE);
  fenced.pages =
      mmap(NULL, 2 * fenced.page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(fenced.pages != MAP_FAILED);
  assert_int_equal(mprotect(fenced.pages + fenced.page_bytes, fenced.page_bytes, PROT_NONE), 0);
  return fenced;
}

/* A struct of `size` bytes whose first `set` bytes are what `fill` makes, the others zero. */
static void make_struct(size_t i, unsigned char* at, size_t size, size_t set) {
  _Alignas(8) unsigned char full[kRoom];
  const uint32_t struct_size = (uint32_t)size;
  memset(full, 0, sizeof full);
  mep_struct_init(full, kTakers[i].size);
  kTakers[i].fill(full, kTakers[i].size);
  if (set > kTakers[i].size) set = kTakers[i].size;
  memset(at, 0, size);
  if (set > sizeof struct_size) {
    memcpy(at + sizeof struct_size, full + sizeof struct_size, set - sizeof struct_size);
  }
  memcpy(at, &struct_size, sizeof struct_size);
}

/* A struct that ends early, but in no field, counts as zero behind its end: the call says what it says to a whole
 * one that is zero there. Bytes behind it cannot be touched, and those of the page before it stay. */
static void every_size_at_a_fence(void** state) {
  Fixture* f = *state;
  const Fenced fenced = make_fenced();
  for (size_t i = 0; i < sizeof kTakers / sizeof *kTakers; ++i) {
    for (size_t size = 0; size <= kTakers[i].size + kGuard; ++size) {
      const size_t bytes = size < sizeof(uint32_t) ? sizeof(uint32_t) : size;
      unsigned char* at = fenced.pages + fenced.page_bytes - bytes;
      memset(fenced.pages, 0xa5, fenced.page_bytes);
      make_struct(i, at, bytes, size);
      const uint32_t struct_size = (uint32_t)size;
      memcpy(at, &struct_size, sizeof struct_size);
      const mep_result_t result = kTakers[i].call(f, at);
      for (unsigned char* before = fenced.pages; before < at; ++before) {
        if (*before != 0xa5) fail_msg("%s wrote before its struct", kTakers[i].name);
      }
      mep_result_t expected = MEP_ERR_INVALID_ARGUMENT;
      if (size >= 8 && !ends_inside_a_field(kTakers[i].type, size)) {
        _Alignas(8) unsigned char whole[kRoom];
        make_struct(i, whole, kTakers[i].size, size);
        expected = kTakers[i].call(f, whole);
      }
      if (size >= kTakers[i].size) assert_int_equal(expected, MEP_SUCCESS);
      if (result != expected) {
        fail_msg("%s with struct_size %zu: %s, expected %s", kTakers[i].name, size,
                 mep_result_string(result), mep_result_string(expected));
      }
    }
  }
  munmap(fenced.pages, 2 * fenced.page_bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(initialisers_touch_only_their_bytes),
      cmocka_unit_test(defaults_are_inits),
      cmocka_unit_test(struct_size_rules),
      cmocka_unit_test(struct_size_zero_is_refused),
      cmocka_unit_test(every_size_at_a_fence),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
