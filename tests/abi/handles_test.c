/* Handles: who may use them at once, what keeps them alive, and how long what they gave is valid. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "abi_test.h"

/* ---- names ------------------------------------------------------------------------------------ */

static atomic_int renaming;

static void* read_names(void* memory) {
  mep_comm_t comm = memory;
  while (atomic_load(&renaming)) {
    const char* name = NULL;
    MUST(mep_comm_name(comm, &name));
    if (strlen(name) != 5 && strncmp(name, "a name of some length", 21) != 0) fail_msg("%s", name);
  }
  return NULL;
}

static void names_stay_where_they_are(void** state) {
  enum { kNames = 500 };
  static const char* names[kNames];
  mep_comm_t comm = NULL;
  const char* first = NULL;
  pthread_t reader;
  (void)state;
  MUST(mep_comm_init_all(1, NULL, &comm));
  MUST(mep_comm_name(comm, &first));
  atomic_store(&renaming, 1);
  assert_int_equal(pthread_create(&reader, NULL, read_names, comm), 0);
  for (int i = 0; i < kNames; ++i) {
    char text[64];
    snprintf(text, sizeof text, "a name of some length, number %d", i);
    MUST(mep_comm_set_name(comm, text));
    MUST(mep_comm_name(comm, &names[i]));
  }
  atomic_store(&renaming, 0);
  pthread_join(reader, NULL);
  assert_string_equal(first, "world");
  for (int i = 0; i < kNames; ++i) {
    char text[64];
    snprintf(text, sizeof text, "a name of some length, number %d", i);
    assert_string_equal(names[i], text);
  }
  /* A name that comes back is where it was. */
  const char* again = NULL;
  MUST(mep_comm_set_name(comm, "world"));
  MUST(mep_comm_name(comm, &again));
  assert_ptr_equal(again, first);
  MUST(mep_comm_destroy(comm));
}

/* ---- what keeps a world ------------------------------------------------------------------------ */

static void barrier_works(mep_comm_t comm) {
  MUST(mep_barrier(comm, NULL));
}

static void a_world_outlives_its_splits(void** state) {
  mep_comm_t world = NULL;
  mep_comm_t child = NULL;
  mep_comm_t grandchild = NULL;
  (void)state;
  MUST(mep_comm_init_all(1, NULL, &world));
  MUST(mep_comm_split(world, 0, 0, &child));
  MUST(mep_comm_dup(child, &grandchild));
  EXPECT(MEP_ERR_BUSY, mep_comm_destroy(world));
  barrier_works(world);
  barrier_works(child);
  barrier_works(grandchild);
  MUST(mep_comm_destroy(child)); /* frees only itself */
  EXPECT(MEP_ERR_BUSY, mep_comm_destroy(world));
  barrier_works(grandchild);
  MUST(mep_comm_destroy(grandchild));
  barrier_works(world);
  MUST(mep_comm_destroy(world));
}

static void an_aborted_world_too(void** state) {
  mep_comm_t world = NULL;
  mep_comm_t child = NULL;
  (void)state;
  MUST(mep_comm_init_all(1, NULL, &world));
  MUST(mep_comm_split(world, 0, 0, &child));
  MUST(mep_comm_abort(world));
  EXPECT(MEP_ERR_BUSY, mep_comm_destroy(world));
  EXPECT(MEP_ERR_ABORTED, mep_barrier(child, NULL));
  MUST(mep_comm_destroy(child));
  MUST(mep_comm_destroy(world));
}

/* ---- several threads on one communicator --------------------------------------------------------
 * Each call succeeds with the right result or answers MEP_ERR_THREAD. On each rank the threads make the
 * same number of successful calls, dealt out by tickets.
 */

enum { kRanks = 2, kThreads = 3, kCalls = 20000, kItems = 33, kWidth = 8 };

typedef struct {
  int rank;
  mep_comm_t comm;
  mep_ep_t ep;
  mep_ep_handle_t handle;
  atomic_int tickets;
  atomic_int dispatches;
  atomic_int running; /* threads that still make calls */
} Rank;

typedef struct {
  Rank* rank;
  int number;
  pthread_t thread;
} Caller;

/* Asserts of cmocka jump, which they may only on its own thread. */
static atomic_int wrong;
static void check(int fine, const char* what) {
  if (fine) return;
  if (atomic_fetch_add(&wrong, 1) < 5) print_error("%s: %s\n", what, mep_last_error());
}

static mep_result_t by_request(const float* x, float* sum, mep_comm_t comm, int tests) {
  mep_request_t request = NULL;
  mep_result_t result = mep_iallreduce(x, sum, kItems, MEP_FLOAT32, MEP_SUM, comm, NULL, &request);
  if (result != MEP_SUCCESS) return result;
  while (request != NULL) {
    mep_op_info_t info;
    int32_t fd = -1;
    int32_t done = 0;
    mep_op_info_defaults(&info);
    result = mep_request_info(request, &info);
    check(result == MEP_SUCCESS || result == MEP_ERR_THREAD, "mep_request_info");
    result = mep_request_event_fd(request, &fd);
    check(result == MEP_ERR_THREAD || (result == MEP_SUCCESS && fd >= 0), "mep_request_event_fd");
    result = tests ? mep_request_test(&request, &done, NULL)
                   : mep_request_wait(&request, 1, &done, NULL);
    check(result == MEP_SUCCESS || result == MEP_ERR_THREAD, "finishing a request");
    if (result != MEP_SUCCESS) sched_yield();
  }
  return result;
}

static void call_collectives(Caller* caller) {
  Rank* rank = caller->rank;
  float x[kItems];
  for (int i = 0; i < kItems; ++i) x[i] = (float)(rank->rank + i);
  while (atomic_fetch_add(&rank->tickets, 1) < kCalls) {
    mep_result_t result = MEP_ERR_THREAD;
    while (result == MEP_ERR_THREAD) {
      float sum[kItems];
      memset(sum, 0x7f, sizeof sum);
      result = caller->number == 0
                   ? mep_allreduce(x, sum, kItems, MEP_FLOAT32, MEP_SUM, rank->comm, NULL)
                   : by_request(x, sum, rank->comm, caller->number == 1);
      if (result == MEP_ERR_THREAD) sched_yield();
      for (int i = 0; result == MEP_SUCCESS && i < kItems; ++i) {
        if (sum[i] != (float)(2 * i + 1)) {
          check(0, "a sum is wrong");
          break;
        }
      }
    }
    check(result == MEP_SUCCESS, "allreduce");
    if (result != MEP_SUCCESS) return;
  }
}

static void call_dispatch(Caller* caller) {
  Rank* rank = caller->rank;
  const int64_t topk_idx[1] = {1 - rank->rank};
  float x[kWidth];
  for (int i = 0; i < kWidth; ++i) x[i] = (float)(100 * rank->rank + i);
  while (atomic_fetch_add(&rank->dispatches, 1) < kCalls / 4) {
    mep_result_t result = MEP_ERR_THREAD;
    while (result == MEP_ERR_THREAD) {
      float recv_x[kRanks * kWidth];
      int64_t total = -1;
      mep_dispatch_options_t options;
      mep_dispatch_options_defaults(&options);
      options.recv_x = recv_x;
      options.recv_total = &total;
      result = mep_dispatch(rank->handle, x, topk_idx, NULL, 1, NULL, &options, NULL);
      if (result == MEP_ERR_THREAD) sched_yield();
      if (result != MEP_SUCCESS) continue;
      check(total == 1 && recv_x[0] == (float)(100 * (1 - rank->rank)) &&
                recv_x[kWidth - 1] == recv_x[0] + kWidth - 1,
            "a row is wrong");
    }
    check(result == MEP_SUCCESS, "dispatch");
    if (result != MEP_SUCCESS) return;
  }
}

static void* call(void* memory) {
  Caller* caller = memory;
  call_collectives(caller);
  call_dispatch(caller);
  atomic_fetch_sub(&caller->rank->running, 1);
  return NULL;
}

/* Calls that run no operation, at any time between. */
static void* ask(void* memory) {
  Rank* rank = memory;
  while (atomic_load(&rank->running) != 0) {
    mep_op_info_t info;
    mep_op_info_defaults(&info);
    mep_result_t result = mep_comm_last_op(rank->comm, &info);
    check(result == MEP_SUCCESS || result == MEP_ERR_THREAD || result == MEP_ERR_NOT_FOUND,
          "mep_comm_last_op");
    result = mep_ep_last_op(rank->ep, 0, &info);
    check(result == MEP_SUCCESS || result == MEP_ERR_THREAD || result == MEP_ERR_NOT_FOUND,
          "mep_ep_last_op");
    check(mep_ep_destroy(rank->ep) == MEP_ERR_BUSY, "mep_ep_destroy");
    result = mep_comm_destroy(rank->comm);
    check(result == MEP_ERR_BUSY || result == MEP_ERR_THREAD, "mep_comm_destroy");
    sched_yield();
  }
  return NULL;
}

static void* make_ep(void* memory) {
  Rank* rank = memory;
  mep_ep_config_t config;
  mep_ep_config_defaults(&config);
  config.max_tokens_per_rank = 1;
  config.hidden = kWidth;
  config.top_k = 1;
  config.num_experts = kRanks;
  config.input_type = MEP_FLOAT32;
  check(mep_ep_create(rank->comm, &config, &rank->ep) == MEP_SUCCESS, "mep_ep_create");
  check(mep_ep_handle_create(rank->ep, 0, &rank->handle) == MEP_SUCCESS, "mep_ep_handle_create");
  return NULL;
}

static void threads_get_success_or_busy(void** state) {
  static Rank ranks[kRanks];
  static Caller callers[kRanks][kThreads];
  mep_comm_t comms[kRanks];
  pthread_t others[kRanks];
  (void)state;
  MUST(mep_comm_init_all(kRanks, NULL, comms));
  for (int r = 0; r < kRanks; ++r) {
    ranks[r].rank = r;
    ranks[r].comm = comms[r];
    atomic_store(&ranks[r].running, kThreads);
    assert_int_equal(pthread_create(&others[r], NULL, make_ep, &ranks[r]), 0);
  }
  for (int r = 0; r < kRanks; ++r) pthread_join(others[r], NULL);
  assert_int_equal(atomic_load(&wrong), 0);
  for (int r = 0; r < kRanks; ++r) {
    assert_int_equal(pthread_create(&others[r], NULL, ask, &ranks[r]), 0);
    for (int i = 0; i < kThreads; ++i) {
      callers[r][i].rank = &ranks[r];
      callers[r][i].number = i;
      assert_int_equal(pthread_create(&callers[r][i].thread, NULL, call, &callers[r][i]), 0);
    }
  }
  for (int r = 0; r < kRanks; ++r) {
    for (int i = 0; i < kThreads; ++i) pthread_join(callers[r][i].thread, NULL);
    pthread_join(others[r], NULL);
  }
  assert_int_equal(atomic_load(&wrong), 0);
  for (int r = 0; r < kRanks; ++r) {
    MUST(mep_ep_handle_destroy(ranks[r].handle));
    MUST(mep_ep_destroy(ranks[r].ep));
  }
  for (int r = 0; r < kRanks; ++r) MUST(mep_comm_destroy(comms[r]));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_stay_where_they_are),
      cmocka_unit_test(a_world_outlives_its_splits),
      cmocka_unit_test(an_aborted_world_too),
      cmocka_unit_test(threads_get_success_or_busy),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
