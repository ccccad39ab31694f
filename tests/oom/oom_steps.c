// The calls of a job. Each call that can fail is one step, or a few that belong together.
#include <mep.h>
#include <stdio.h>
#include <string.h>

#include "oom_job.h"

enum { SMALL = 16, LARGE = 40000, MAX_LIVE = 4 };

// Memory that the steps need themselves is there before: only the library shall run out. One set for
// each thread that is a rank.
static _Thread_local float send_values[LARGE];
static _Thread_local float receive_values[LARGE * MAX_LIVE];

#define STEP_TRY(call)                                  \
  do {                                                  \
    const mep_result_t step_result = (call);            \
    if (step_result != MEP_SUCCESS) return step_result; \
  } while (0)

// Whether all ranks are in it: what an absent one had to give is missing.
static int is_whole(mep_comm_t comm) {
  int32_t live = 0;
  int32_t size = 0;
  return mep_comm_live_count(comm, &live) == MEP_SUCCESS &&
         mep_comm_size(comm, &size) == MEP_SUCCESS && live == size;
}

static void fill(size_t count, float value) {
  for (size_t i = 0; i < count; ++i) send_values[i] = value;
}

static mep_result_t step_barrier(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  (void)seed;
  (void)findings;
  return mep_barrier(comm, NULL);
}

static mep_result_t broadcast_of(mep_comm_t comm, size_t count, step_findings_t* findings) {
  int32_t rank = 0;
  STEP_TRY(mep_comm_rank(comm, &rank));
  fill(count, rank == 1 ? 7.0f : -1.0f);
  STEP_TRY(mep_broadcast(send_values, receive_values, count, MEP_FLOAT32, 1, comm, NULL));
  findings->wrong = is_whole(comm) && receive_values[count - 1] != 7.0f;
  return MEP_SUCCESS;
}

static mep_result_t step_broadcast(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  return broadcast_of(comm, seed % 2 != 0 ? SMALL : LARGE, findings);
}

static mep_result_t step_allgather(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  const size_t count = seed % 2 != 0 ? SMALL : LARGE;
  int32_t rank = 0;
  int32_t size = 0;
  STEP_TRY(mep_comm_rank(comm, &rank));
  STEP_TRY(mep_comm_size(comm, &size));
  fill(count, (float)rank);
  STEP_TRY(mep_allgather(send_values, receive_values, count, MEP_FLOAT32, comm, NULL));
  for (int32_t i = 0; i < size && is_whole(comm); ++i) {
    findings->wrong |= receive_values[(size_t)i * count + count - 1] != (float)i;
  }
  return MEP_SUCCESS;
}

static mep_result_t step_allreduce(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  const size_t count = seed % 2 != 0 ? SMALL : LARGE;
  int32_t size = 0;
  STEP_TRY(mep_comm_size(comm, &size));
  fill(count, 1.0f);
  STEP_TRY(mep_allreduce(send_values, receive_values, count, MEP_FLOAT32, MEP_SUM, comm, NULL));
  findings->wrong = is_whole(comm) && receive_values[count - 1] != (float)size;
  return MEP_SUCCESS;
}

static mep_result_t step_reduce_scatter(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  const size_t count = seed % 2 != 0 ? SMALL : LARGE / MAX_LIVE;
  int32_t size = 0;
  STEP_TRY(mep_comm_size(comm, &size));
  fill(count * (size_t)size, 1.0f);
  STEP_TRY(
      mep_reduce_scatter(send_values, receive_values, count, MEP_FLOAT32, MEP_SUM, comm, NULL));
  findings->wrong = is_whole(comm) && receive_values[count - 1] != (float)size;
  return MEP_SUCCESS;
}

static mep_result_t step_alltoall(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  const size_t count = seed % 2 != 0 ? SMALL : LARGE / MAX_LIVE;
  int32_t rank = 0;
  int32_t size = 0;
  STEP_TRY(mep_comm_rank(comm, &rank));
  STEP_TRY(mep_comm_size(comm, &size));
  fill(count * (size_t)size, (float)rank);
  STEP_TRY(mep_alltoall(send_values, receive_values, count, MEP_FLOAT32, comm, NULL));
  for (int32_t i = 0; i < size && is_whole(comm); ++i) {
    findings->wrong |= receive_values[(size_t)i * count + count - 1] != (float)i;
  }
  return MEP_SUCCESS;
}

/* Rank s gives rank r one element more than rank r - 1, and each of them is s. */
static mep_result_t step_alltoallv(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  const size_t count = seed % 2 != 0 ? SMALL / MAX_LIVE : LARGE / MAX_LIVE - MAX_LIVE;
  uint64_t given[MAX_LIVE] = {0};
  uint64_t gotten[MAX_LIVE] = {0};
  int32_t rank = 0;
  int32_t size = 0;
  STEP_TRY(mep_comm_rank(comm, &rank));
  STEP_TRY(mep_comm_size(comm, &size));
  for (int32_t i = 0; i < size && i < MAX_LIVE; ++i) {
    given[i] = count + (size_t)i;
    gotten[i] = count + (size_t)rank;
  }
  fill((count + MAX_LIVE) * (size_t)size, (float)rank);
  STEP_TRY(mep_alltoallv(send_values, receive_values, given, NULL, gotten, NULL, MEP_FLOAT32, comm,
                         NULL));
  for (int32_t i = 0; i < size && is_whole(comm); ++i) {
    findings->wrong |= receive_values[(size_t)(i + 1) * gotten[i] - 1] != (float)i;
  }
  return MEP_SUCCESS;
}

static mep_result_t step_in_place(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  // Within and beyond what is kept to restore the input.
  const size_t count = seed % 3 == 0 ? SMALL : seed % 3 == 1 ? 4000 : LARGE;
  int32_t size = 0;
  STEP_TRY(mep_comm_size(comm, &size));
  fill(count, 1.0f);
  STEP_TRY(mep_allreduce(send_values, send_values, count, MEP_FLOAT32, MEP_SUM, comm, NULL));
  findings->wrong = is_whole(comm) && send_values[count - 1] != (float)size;
  return MEP_SUCCESS;
}

// Several requests, waited for in another order; an error of one does not leave the others behind.
static mep_result_t step_requests(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  enum { REQUESTS = 3 };
  mep_request_t requests[REQUESTS] = {NULL, NULL, NULL};
  mep_result_t result = MEP_SUCCESS;
  int32_t size = 0;
  STEP_TRY(mep_comm_size(comm, &size));
  fill(4000, 1.0f);
  result = mep_iallreduce(send_values, send_values, 4000, MEP_FLOAT32, MEP_SUM, comm, NULL,
                          &requests[0]);
  if (result == MEP_SUCCESS) {
    result = mep_iallreduce(send_values + 4000, receive_values, SMALL, MEP_FLOAT32, MEP_SUM, comm,
                            NULL, &requests[1]);
  }
  if (result == MEP_SUCCESS) result = mep_ibarrier(comm, NULL, &requests[2]);
  if (result == MEP_SUCCESS && seed % 2 != 0) {
    int32_t fd = -1;
    result = mep_request_event_fd(requests[1], &fd);
  }
  for (int i = REQUESTS - 1; i >= 0; --i) {
    if (requests[i] == NULL) continue;
    const mep_result_t waited = mep_request_wait(&requests[i], MEP_TIMEOUT_DEFAULT, NULL, NULL);
    if (result == MEP_SUCCESS) result = waited;
  }
  if (result == MEP_SUCCESS) findings->wrong = is_whole(comm) && send_values[0] != (float)size;
  return result;
}

// A message to the next rank: in a cell, or larger.
static mep_result_t step_message(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  const size_t count = seed % 2 != 0 ? SMALL : LARGE;
  mep_request_t requests[2] = {NULL, NULL};
  int32_t rank = 0;
  int32_t size = 0;
  STEP_TRY(mep_comm_rank(comm, &rank));
  STEP_TRY(mep_comm_size(comm, &size));
  const int32_t from = (rank + size - 1) % size;
  fill(count, (float)rank);
  mep_result_t result =
      mep_isend(send_values, count, MEP_FLOAT32, (rank + 1) % size, 5, comm, NULL, &requests[0]);
  if (result == MEP_SUCCESS) {
    result = mep_irecv(receive_values, count, MEP_FLOAT32, from, 5, comm, NULL, NULL, &requests[1]);
  }
  for (int i = 0; i < 2; ++i) {
    if (requests[i] == NULL) continue;
    const mep_result_t waited = mep_request_wait(&requests[i], MEP_TIMEOUT_DEFAULT, NULL, NULL);
    if (result == MEP_SUCCESS) result = waited;
  }
  if (result == MEP_SUCCESS) findings->wrong = receive_values[count - 1] != (float)from;
  return result;
}

static mep_result_t step_split(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  mep_comm_t child = NULL;
  int32_t rank = 0;
  STEP_TRY(mep_comm_rank(comm, &rank));
  findings->made = mep_comm_split(comm, seed % 2 != 0 ? rank % 2 : 0, 0, &child);
  STEP_TRY(findings->made);
  const mep_result_t worked = mep_barrier(child, NULL);
  const mep_result_t destroyed = mep_comm_destroy(child);
  findings->wrong = destroyed == MEP_ERR_BUSY;
  return worked != MEP_SUCCESS ? worked : destroyed;
}

static mep_result_t step_agree(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  uint64_t agreed = 0;
  (void)seed;
  STEP_TRY(mep_comm_agree(comm, 5, &agreed));
  findings->wrong = agreed != 5;
  return MEP_SUCCESS;
}

static mep_result_t step_source_memory(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  void* memory = NULL;
  (void)findings;
  STEP_TRY(mep_mem_alloc(comm, 100 + seed % 100000, 0, 0, &memory));
  memset(memory, 1, 100);
  return mep_mem_free(comm, memory);
}

static mep_result_t step_recover(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  int32_t admitted = 0;
  (void)seed;
  STEP_TRY(mep_recover_ranks(comm, NULL, 0, TIMEOUT_MS, &admitted));
  findings->wrong = admitted != 0;
  return MEP_SUCCESS;
}

static mep_result_t step_view(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  mep_view_t view;
  mep_op_info_t info;
  (void)seed;
  (void)findings;
  mep_view_defaults(&view);
  STEP_TRY(mep_comm_view(comm, &view));
  mep_op_info_defaults(&info);
  const mep_result_t told = mep_comm_last_op(comm, &info);
  if (told != MEP_SUCCESS && told != MEP_ERR_NOT_FOUND) return told;
  return mep_barrier(comm, NULL);
}

// Until the membership has changed, as it must in the job that calls this.
static mep_result_t step_change(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  (void)seed;
  (void)findings;
  return mep_comm_wait_view(comm, 1, CHANGE_LIMIT_MS);
}

// --- Expert parallelism ---------------------------------------------------------------------------

enum { TOKENS = 8, HIDDEN = 64, TOP_K = 2, EXPERTS_PER_RANK = 2 };

static mep_result_t exchange(mep_ep_handle_t handle, int32_t size) {
  int64_t topk[TOKENS * TOP_K];
  mep_ep_view_t view;
  for (int i = 0; i < TOKENS; ++i) {
    topk[i * TOP_K] = i % (size * EXPERTS_PER_RANK);
    topk[i * TOP_K + 1] = (i + 1) % (size * EXPERTS_PER_RANK);
  }
  fill((size_t)TOKENS * HIDDEN, 1.0f);
  mep_ep_view_defaults(&view);
  STEP_TRY(mep_dispatch(handle, send_values, topk, NULL, TOKENS, &view, NULL, NULL));
  for (int expert = 0; expert < EXPERTS_PER_RANK; ++expert) {
    const size_t row_bytes = HIDDEN * sizeof(float);
    const size_t first = (size_t)expert * (size_t)size * TOKENS * row_bytes;
    memcpy((char*)view.combine_input + first, (const char*)view.recv_x + first,
           (size_t)view.recv_count[expert] * row_bytes);
  }
  return mep_combine(handle, view.combine_input, receive_values, NULL, NULL);
}

// The map by which each expert lies where it lies without one.
static mep_result_t set_same_places(mep_ep_t ep, int32_t size) {
  int32_t map[MAX_RANKS * EXPERTS_PER_RANK];
  for (int32_t i = 0; i < size * EXPERTS_PER_RANK; ++i) map[i] = i;
  return mep_ep_set_expert_map(ep, map);
}

static mep_result_t step_experts(mep_comm_t comm, uint64_t seed, step_findings_t* findings) {
  mep_ep_config_t config;
  mep_ep_t ep = NULL;
  mep_ep_handle_t handle = NULL;
  int32_t size = 0;
  STEP_TRY(mep_comm_size(comm, &size));
  mep_ep_config_defaults(&config);
  config.max_tokens_per_rank = TOKENS;
  config.hidden = HIDDEN;
  config.top_k = TOP_K;
  config.num_experts = (uint32_t)(size * EXPERTS_PER_RANK);
  config.input_type = MEP_FLOAT32;
  config.layout = seed % 2 != 0 ? MEP_EP_SLOTTED : MEP_EP_LOW_LATENCY;
  findings->made = mep_ep_create(comm, &config, &ep);
  STEP_TRY(findings->made);
  if (seed % 3 == 0) findings->made = set_same_places(ep, size);
  mep_result_t result = findings->made;
  if (result == MEP_SUCCESS) result = mep_ep_handle_create(ep, 0, &handle);
  if (result == MEP_SUCCESS) {
    result = config.layout == MEP_EP_LOW_LATENCY ? exchange(handle, size) : MEP_SUCCESS;
    if (result == MEP_SUCCESS && config.layout == MEP_EP_LOW_LATENCY) {
      findings->wrong = is_whole(comm) && receive_values[0] != 2.0f;
    }
    findings->wrong |= mep_ep_handle_destroy(handle) != MEP_SUCCESS;
  }
  findings->wrong |= mep_ep_destroy(ep) != MEP_SUCCESS;
  return result;
}

// --- The table ------------------------------------------------------------------------------------

static const struct {
  const char* name;
  mep_result_t (*run)(mep_comm_t comm, uint64_t seed, step_findings_t* findings);
} kSteps[] = {{"barrier", step_barrier},
              {"broadcast", step_broadcast},
              {"allgather", step_allgather},
              {"allreduce", step_allreduce},
              {"reduce_scatter", step_reduce_scatter},
              {"alltoall", step_alltoall},
              {"alltoallv", step_alltoallv},
              {"in place", step_in_place},
              {"requests", step_requests},
              {"message", step_message},
              {"split", step_split},
              {"agree", step_agree},
              {"memory", step_source_memory},
              {"recover", step_recover},
              {"view", step_view},
              {"experts", step_experts},
              {"change", step_change}};

int32_t step_kinds(void) {
  return (int32_t)(sizeof kSteps / sizeof kSteps[0]) - 1;  // the last is for one job only
}

const char* step_name(int32_t step) {
  return step >= 0 && step <= step_kinds() ? kSteps[step].name : "none";
}

int32_t step_of(const char* name) {
  int32_t step = 0;
  while (strcmp(kSteps[step].name, name) != 0) ++step;
  return step;
}

mep_result_t run_step(mep_comm_t comm, int32_t step, uint64_t seed, step_findings_t* findings) {
  return kSteps[step].run(comm, seed, findings);
}
