/* A job of a few ranks, processes, one of which, or all, runs out of something. */
#ifndef MEP_TESTS_OOM_JOB_H
#define MEP_TESTS_OOM_JOB_H

#include <mep.h>
#include <stdint.h>
#include <sys/types.h>

#include "oom_plan.h"

#define MAX_RANKS 4
#define MAX_STEPS 8
#define NOT_CALLED 99

enum { TIMEOUT_MS = 1000, INIT_TIMEOUT_MS = 4000, CHANGE_LIMIT_MS = 20000 };

typedef struct job_t {
  uint64_t seed;
  int32_t ranks;
  int32_t short_rank; /* who runs out; -1: all ranks */
  int32_t from_init;  /* armed before the start-up already */
  oom_plan_t plan;
  char transports[16];
  uint32_t init_timeout_ms; /* 0: INIT_TIMEOUT_MS */
  int32_t count;
  int32_t steps[MAX_STEPS];
} job_t;

/* In memory that the ranks share with the judge. */
typedef struct rank_log_t {
  mep_result_t init;
  mep_result_t steps[MAX_STEPS];
  mep_result_t made[MAX_STEPS]; /* what the step's calls that all ranks make together came to */
  int32_t called;               /* steps that were begun */
  mep_result_t finals[16];
  int32_t barriers; /* how many calls the last phase took */
  int32_t live;
  mep_result_t destroy;
  uint64_t refusals;
  uint64_t longest_ms; /* of one call */
  int32_t longest_step;
  int32_t at;    /* the step under way */
  int32_t wrong; /* the step that delivered wrong data, plus one; 0: none */
  int32_t finished;
  char text[200]; /* of the last error */
} rank_log_t;

const char* step_name(int32_t step);
int32_t step_of(const char* name);
int32_t step_kinds(void);
/* A step's findings beside its result. */
typedef struct step_findings_t {
  int wrong;
  mep_result_t made; /* NOT_CALLED: it has no calls by which all make something together */
} step_findings_t;
/* One step. Without an error all that it has made is freed again. */
mep_result_t run_step(mep_comm_t comm, int32_t step, uint64_t seed, step_findings_t* findings);

/* The rank's part, in a process of its own. */
void run_rank(const job_t* job, int32_t rank, rank_log_t* log);

#endif
