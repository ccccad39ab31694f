/* Errors that take two ranks, here threads of a process: disagreement, a member that does not come,
 * one that leaves, one that aborts, revokes. Both sides' results are compared. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "abi_test.h"

typedef struct Side {
  mep_comm_t comm;
  mep_result_t (*work)(struct Side*);
  int32_t rank;
  mep_result_t result;
  char text[512]; /* mep_last_error of the thread */
} Side;

static void* run_side(void* argument) {
  Side* side = argument;
  side->result = side->work(side);
  snprintf(side->text, sizeof side->text, "%s", mep_last_error());
  return NULL;
}

/* A world of two with short timeouts; both ranks do `work` at once. */
static void run_pair(Side sides[2], mep_result_t (*work)(Side*), uint32_t timeout_ms) {
  pthread_t threads[2];
  mep_comm_t comms[2];
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  config.timeout_ms = timeout_ms;
  MUST(mep_comm_init_all(2, &config, comms));
  for (int32_t i = 0; i < 2; ++i) {
    sides[i] = (Side){.comm = comms[i], .work = work, .rank = i};
    assert_int_equal(pthread_create(&threads[i], NULL, run_side, &sides[i]), 0);
  }
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
}

static void destroy_pair(Side sides[2]) {
  for (int i = 0; i < 2; ++i) {
    if (sides[i].comm != NULL) MUST(mep_comm_destroy(sides[i].comm));
  }
}

static void both_got(const Side sides[2], mep_result_t code, const char* what) {
  for (int i = 0; i < 2; ++i) {
    if (sides[i].result != code) {
      fail_msg("%s: rank %d got %s (%d), expected %s; text: %s", what, i,
               mep_result_string(sides[i].result), sides[i].result, mep_result_string(code),
               sides[i].text);
    }
    if (code < 0) assert_true(sides[i].text[0] != '\0');
  }
}

static mep_result_t different_counts(Side* side) {
  float values[8] = {0};
  return mep_allreduce(values, values, side->rank == 0 ? 4 : 8, MEP_FLOAT32, MEP_SUM, side->comm,
                       NULL);
}
static mep_result_t different_types(Side* side) {
  float values[8] = {0};
  return mep_allreduce(values, values, 4, side->rank == 0 ? MEP_FLOAT32 : MEP_INT32, MEP_SUM,
                       side->comm, NULL);
}
static mep_result_t different_operators(Side* side) {
  float values[8] = {0};
  return mep_allreduce(values, values, 4, MEP_FLOAT32, side->rank == 0 ? MEP_SUM : MEP_MAX,
                       side->comm, NULL);
}
static mep_result_t different_roots(Side* side) {
  float values[8] = {0};
  const mep_result_t result =
      mep_broadcast(values, values, 4, MEP_FLOAT32, side->rank, side->comm, NULL);
  /* A root waits for nobody: the next operation that does tells it. */
  return result == MEP_SUCCESS ? mep_barrier(side->comm, NULL) : result;
}
static mep_result_t different_operations(Side* side) {
  float values[8] = {0};
  if (side->rank == 0) return mep_barrier(side->comm, NULL);
  return mep_allreduce(values, values, 4, MEP_FLOAT32, MEP_SUM, side->comm, NULL);
}
static mep_result_t different_blocks(Side* side) {
  float values[8] = {0}, all[16];
  return mep_allgather(values, all, side->rank == 0 ? 4 : 8, MEP_FLOAT32, side->comm, NULL);
}
static mep_result_t different_ep_configs(Side* side) {
  mep_ep_config_t config;
  mep_ep_t ep = NULL;
  mep_ep_config_defaults(&config);
  config.max_tokens_per_rank = 4;
  config.hidden = side->rank == 0 ? 64 : 128;
  config.top_k = 1;
  config.num_experts = 2;
  const mep_result_t result = mep_ep_create(side->comm, &config, &ep);
  if (ep != NULL) (void)mep_ep_destroy(ep);
  return result;
}

static void disagreement(void** state) {
  (void)state;
  static const struct {
    const char* name;
    mep_result_t (*work)(Side*);
  } kWorks[] = {{"counts", different_counts},         {"types", different_types},
                {"operators", different_operators},   {"roots", different_roots},
                {"operations", different_operations}, {"blocks", different_blocks}};
  for (size_t i = 0; i < sizeof kWorks / sizeof *kWorks; ++i) {
    Side sides[2];
    run_pair(sides, kWorks[i].work, 5000);
    both_got(sides, MEP_ERR_MISMATCH, kWorks[i].name);
    destroy_pair(sides);
  }
}

static void disagreement_about_ep(void** state) {
  (void)state;
  Side sides[2];
  run_pair(sides, different_ep_configs, 5000);
  both_got(sides, MEP_ERR_MISMATCH, __func__);
  assert_non_null(strstr(sides[0].text, "hidden")); /* the field is named */
  destroy_pair(sides);
}

static mep_result_t only_rank_0_comes(Side* side) {
  if (side->rank == 0) return mep_barrier(side->comm, NULL);
  /* Until the deadline of rank 0's operation has been settled here too. */
  const mep_result_t settled = mep_comm_wait_view(side->comm, 1, 30000);
  return settled == MEP_SUCCESS ? mep_barrier(side->comm, NULL) : settled;
}

/* A deadline is the same verdict for all: also for the rank that had not entered. */
static void nobody_comes(void** state) {
  (void)state;
  Side sides[2];
  run_pair(sides, only_rank_0_comes, 200);
  both_got(sides, MEP_ERR_TIMEOUT, __func__);
  destroy_pair(sides);
}

static mep_result_t rank_1_leaves(Side* side) {
  if (side->rank == 1) {
    const mep_result_t result = mep_comm_destroy(side->comm);
    side->comm = NULL;
    return result;
  }
  const mep_result_t first = mep_barrier(side->comm, NULL);
  if (first != MEP_ERR_PEER_LEFT) return first;
  int32_t live = 0;
  const mep_result_t second = mep_barrier(side->comm, NULL); /* said once, then it goes on alone */
  if (second != MEP_SUCCESS) return second;
  if (mep_comm_live_count(side->comm, &live) != MEP_SUCCESS || live != 1) return MEP_ERR_INTERNAL;
  float value = 3;
  const mep_result_t rooted =
      mep_broadcast(&value, &value, 1, MEP_FLOAT32, 1, side->comm, NULL); /* at the one that left */
  return rooted == MEP_ERR_PEER_LEFT ? MEP_SUCCESS : rooted;
}

static void a_member_leaves(void** state) {
  (void)state;
  Side sides[2];
  run_pair(sides, rank_1_leaves, 5000);
  both_got(sides, MEP_SUCCESS, __func__);
  destroy_pair(sides);
}

static mep_result_t rank_1_aborts(Side* side) {
  if (side->rank == 1) {
    const mep_result_t result = mep_comm_abort_with(side->comm, "ValueError: no such expert");
    if (result != MEP_SUCCESS) return result;
    if (mep_barrier(side->comm, NULL) != MEP_ERR_ABORTED) return MEP_ERR_INTERNAL;
    return strstr(mep_last_error(), "mep_comm_destroy") != NULL ? MEP_SUCCESS : MEP_ERR_INTERNAL;
  }
  const mep_result_t first = mep_barrier(side->comm, NULL);
  if (first != MEP_ERR_PEER_FAILED) return first;
  if (strstr(mep_last_error(), "ValueError: no such expert") == NULL) return MEP_ERR_INTERNAL;
  const mep_result_t second = mep_barrier(side->comm, NULL); /* alone */
  return second == MEP_SUCCESS ? second : second - 1000;
}

static void a_member_aborts(void** state) {
  (void)state;
  Side sides[2];
  run_pair(sides, rank_1_aborts, 5000);
  both_got(sides, MEP_SUCCESS, __func__);
  destroy_pair(sides);
}

static mep_result_t rank_1_revokes(Side* side) {
  if (side->rank == 1) {
    const mep_result_t result = mep_comm_revoke(side->comm);
    if (result != MEP_SUCCESS) return result;
  }
  const mep_result_t first = mep_barrier(side->comm, NULL);
  return first == MEP_ERR_REVOKED ? mep_barrier(side->comm, NULL) : first;
}

static void a_member_revokes(void** state) {
  (void)state;
  Side sides[2];
  run_pair(sides, rank_1_revokes, 5000);
  both_got(sides, MEP_SUCCESS, __func__);
  destroy_pair(sides);
}

/* Set by rank 0 (release) when it has checked what needs rank 1 to be absent; read by rank 1
 * (acquire), which then enters. */
static atomic_int early_checks_done;

/* A request that cannot be done yet: wait 0 says so, and the communicator cannot be destroyed. */
static mep_result_t rank_0_is_early(Side* side) {
  mep_request_t request = NULL;
  mep_op_info_t info;
  int32_t done = 1;
  mep_op_info_defaults(&info);
  if (side->rank == 0) {
    mep_result_t wrong = 0; /* which check failed; no result code */
    if (mep_ibarrier(side->comm, NULL, &request) != MEP_SUCCESS) wrong = -1000;
    if (mep_request_wait(&request, 0, &done, NULL) != MEP_SUCCESS || done != 0 || request == NULL) {
      wrong = -1001;
    }
    if (mep_request_test(&request, &done, NULL) != MEP_SUCCESS || done != 0) wrong = -1002;
    if (mep_request_info(request, &info) != MEP_SUCCESS) wrong = -1003;
    if (info.result != MEP_IN_PROGRESS) wrong = -1004;
    if (mep_comm_destroy(side->comm) != MEP_ERR_BUSY) wrong = -1005;
    atomic_store_explicit(&early_checks_done, 1, memory_order_release);
    const mep_result_t result = mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, NULL, &info);
    return wrong != 0 ? wrong : result;
  }
  while (!atomic_load_explicit(&early_checks_done, memory_order_acquire)) sched_yield();
  return mep_barrier(side->comm, NULL);
}

static void a_request_is_early(void** state) {
  (void)state;
  Side sides[2];
  run_pair(sides, rank_0_is_early, 30000);
  both_got(sides, MEP_SUCCESS, __func__);
  destroy_pair(sides);
}

static atomic_int lines_taken;

static void take_line(void* user, int32_t level, const char* line) {
  assert_int_equal(level, MEP_LOG_WARN);
  assert_non_null(strstr(line, " warn: "));
  assert_null(strchr(line, '\n'));
  EXPECT(MEP_ERR_BUSY, mep_set_log_callback(NULL, NULL));
  atomic_fetch_add((atomic_int*)user, 1);
}

static void the_log_tells_of_it(void** state) {
  (void)state;
  Side sides[2];
  MUST(mep_set_log_callback(take_line, &lines_taken));
  run_pair(sides, rank_1_aborts, 30000);
  while (atomic_load(&lines_taken) == 0) sched_yield();
  MUST(mep_set_log_callback(NULL, NULL));
  destroy_pair(sides);
}

int main(void) {
  setenv("MEP_LOG", "warn", 1); /* what the_log_tells_of_it waits for */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(disagreement),       cmocka_unit_test(disagreement_about_ep),
      cmocka_unit_test(nobody_comes),       cmocka_unit_test(a_member_leaves),
      cmocka_unit_test(a_member_aborts),    cmocka_unit_test(a_member_revokes),
      cmocka_unit_test(a_request_is_early), cmocka_unit_test(the_log_tells_of_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
