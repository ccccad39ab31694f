/* A job that loses a rank, goes on without it, and takes in a replacement.
 *
 *   mep_run -n 4 --respawn ./recover_c           a replacement comes
 *   mep_run -n 4 --allow-failures 1 ./recover_c  none comes: three ranks finish
 *
 * The ranks minimise the mean of (w - target)^2 / 2 over all ranks' targets, each rank from its own one. Rank 1 kills
 * itself on the way. A step that was lost is done again, so all ranks end with the w of the ranks that are there. */
#include <mep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kSteps = 100, kDeath = 30, kPolls = 10, kWaitMs = 10000 };

/* The state that a joiner has to learn: the same bytes on all ranks. */
typedef struct state {
  int64_t step;
  int64_t polls; /* how often the members have looked for joiners since a place is free */
  double w;
} state;

typedef struct job {
  mep_comm_t comm;
  int32_t rank, size;
  state now;
  int is_joiner;   /* until it has the state */
  int must_meet;   /* somebody is gone or has come: see meet() */
  int32_t* mine;   /* [size] */
  int32_t* seen;   /* [size] */
  int32_t* absent; /* [size], of which `count` are used: the free places */
  int32_t count;
} job;

static void must(mep_result_t result, const char* what) {
  if (result >= 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, mep_result_string(result), mep_last_error());
  exit(1); /* leaving without mep_comm_destroy: the other ranks see a failure, none of them hangs */
}

/* All ranks learn who is there, and joiners the state, from the highest rank that has it. */
static mep_result_t meet(job* j) {
  enum { kAbsent, kJoiner, kMember };
  for (int32_t r = 0; r < j->size; ++r) j->mine[r] = kAbsent;
  j->mine[j->rank] = j->is_joiner ? kJoiner : kMember;
  mep_result_t result =
      mep_allreduce(j->mine, j->seen, (size_t)j->size, MEP_INT32, MEP_MAX, j->comm, NULL);
  if (result != MEP_SUCCESS) return result;
  int32_t root = 0;
  j->count = 0;
  for (int32_t r = 0; r < j->size; ++r) {
    if (j->seen[r] == kAbsent) j->absent[j->count++] = r;
    if (j->seen[r] == kMember) root = r;
  }
  /* In place: what is small has its old bytes after a failure. */
  result = mep_broadcast(&j->now, &j->now, sizeof j->now, MEP_UINT8, root, j->comm, NULL);
  if (result != MEP_SUCCESS) return result;
  j->is_joiner = 0;
  j->must_meet = 0;
  return MEP_SUCCESS;
}

/* Collective. While a place is free the members look once a step whether somebody wants it; after kPolls steps they
 * wait, once. */
static mep_result_t admit(job* j) {
  if (j->count == 0 || j->now.polls > kPolls) return MEP_SUCCESS;
  int32_t came = 0;
  mep_result_t result;
  if (j->now.polls++ < kPolls) {
    /* No ranks, no time: whoever is ready. Nobody is: success, and none came. */
    result = mep_recover_ranks(j->comm, NULL, 0, 0, &came);
  } else {
    result = mep_recover_ranks(j->comm, j->absent, j->count, kWaitMs, &came);
    if (result == MEP_ERR_TIMEOUT) result = MEP_SUCCESS; /* go on with those that are there */
  }
  if (came > 0) {
    j->must_meet = 1;
    j->now.polls = 0;
  }
  return result;
}

/* A gradient, its mean over the ranks that are there, and a step against it. */
static mep_result_t step(job* j) {
  if (j->rank == 1 && j->now.step == kDeath && getenv("MEP_JOIN") == NULL) raise(SIGKILL);
  const struct timespec work = {0, 5000000};
  nanosleep(&work, NULL);
  double gradient = j->now.w - j->rank, mean = 0;
  const mep_result_t result =
      mep_allreduce(&gradient, &mean, 1, MEP_FLOAT64, MEP_AVG, j->comm, NULL);
  if (result != MEP_SUCCESS) return result;
  j->now.w -= 0.5 * mean;
  ++j->now.step;
  return MEP_SUCCESS;
}

/* The step and w change after a call has succeeded, and on all ranks then: what failed is done again. */
static mep_result_t advance(job* j) {
  if (j->must_meet) return meet(j);
  const mep_result_t result = admit(j);
  if (result != MEP_SUCCESS || j->must_meet) return result;
  return step(j);
}

static void begin(job* j) {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  j->is_joiner = getenv("MEP_JOIN") != NULL; /* mep_run sets it in a replacement */
  must(j->is_joiner ? mep_comm_join(&config, &j->comm) : mep_comm_init(&config, &j->comm),
       j->is_joiner ? "mep_comm_join" : "mep_comm_init");
  must(mep_comm_rank(j->comm, &j->rank), "mep_comm_rank");
  must(mep_comm_size(j->comm, &j->size), "mep_comm_size"); /* places, free ones too */
  j->now.w = 100;
  j->must_meet = 1;
  j->mine = malloc(3 * (size_t)j->size * sizeof *j->mine);
  if (j->mine == NULL) exit(1);
  j->seen = j->mine + j->size;
  j->absent = j->seen + j->size;
}

int main(void) {
  job j = {0};
  begin(&j);
  while (j.now.step < kSteps) {
    const mep_result_t result = advance(&j);
    if (result == MEP_ERR_PEER_FAILED || result == MEP_ERR_PEER_LEFT) {
      j.must_meet = 1; /* on every survivor, for the same call */
      j.now.polls = 0;
    } else {
      must(result, "a step");
    }
  }

  /* The mean of the targets of those that are there; each step halves the distance to it. */
  double sum = 0;
  for (int32_t r = 0; r < j.size; ++r) sum += j.seen[r] != 0 ? r : 0;
  const double distance = j.now.w - sum / (j.size - j.count);
  const int right = distance > -1e-6 && distance < 1e-6;
  printf("rank %d of %d: %d places are free, w = %g, %s\n", j.rank, j.size, j.count, j.now.w,
         right ? "right" : "WRONG");

  free(j.mine);
  must(mep_comm_destroy(j.comm), "mep_comm_destroy");
  return right ? 0 : 1;
}
