// A rank's way through a job: start-up, steps until one fails on any rank, then barriers until all is
// well again or the world has ended for this rank.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "oom_job.h"

static struct {
  void (*arm)(const oom_plan_t*);
  void (*enter)(int);
  uint64_t (*refusals)(void);
} preload;

static void find_preload(void) {
  *(void**)(&preload.arm) = dlsym(RTLD_DEFAULT, "oom_arm");
  *(void**)(&preload.enter) = dlsym(RTLD_DEFAULT, "oom_enter");
  *(void**)(&preload.refusals) = dlsym(RTLD_DEFAULT, "oom_refusals");
  if (preload.arm == NULL || preload.enter == NULL || preload.refusals == NULL) {
    fprintf(stderr, "run it with LD_PRELOAD=libmep_oom.so\n");
    _exit(3);
  }
}

static uint64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// --- One rank -------------------------------------------------------------------------------------

static void note(rank_log_t* log, int32_t step, uint64_t begun_ms, mep_result_t result) {
  const uint64_t took_ms = now_ms() - begun_ms;
  if (took_ms > log->longest_ms) {
    log->longest_ms = took_ms;
    log->longest_step = step;
  }
  if (result != MEP_SUCCESS) snprintf(log->text, sizeof log->text, "%s", mep_last_error());
}

static void run_short_no_more(rank_log_t* log) {
  log->refusals = preload.refusals();
  preload.arm(NULL);
}

static int is_short(const job_t* job, int32_t rank) {
  return job->short_rank < 0 || job->short_rank == rank;
}

static int has_ended(mep_result_t result) {
  return result == MEP_ERR_NO_QUORUM || result == MEP_ERR_EVICTED || result == MEP_ERR_ABORTED ||
         result == MEP_ERR_NO_MEMORY;
}

static void run_steps(const job_t* job, int32_t rank, mep_comm_t comm, rank_log_t* log) {
  for (int32_t i = 0; i < job->count; ++i) {
    step_findings_t findings = {0, NOT_CALLED};
    const uint64_t begun_ms = now_ms();
    log->at = i;
    log->called = i + 1;
    preload.enter(is_short(job, rank));
    log->steps[i] = run_step(comm, job->steps[i], job->seed + (uint64_t)i, &findings);
    preload.enter(0);
    log->made[i] = findings.made;
    note(log, i, begun_ms, log->steps[i]);
    if (findings.wrong) log->wrong = i + 1;
    if (log->steps[i] != MEP_SUCCESS) return;
  }
}

// A rank that has met an error says so to all, and calls barriers like everybody.
static void run_finals(const job_t* job, mep_comm_t comm, rank_log_t* log) {
  const int32_t most = (int32_t)(sizeof log->finals / sizeof log->finals[0]);
  log->at = 100;
  if (log->steps[log->called - 1] != MEP_SUCCESS || log->called < job->count) {
    (void)mep_comm_revoke(comm);
  }
  for (log->barriers = 0; log->barriers < most;) {
    const uint64_t begun_ms = now_ms();
    const mep_result_t result = mep_barrier(comm, NULL);
    note(log, 100 + log->barriers, begun_ms, result);
    log->finals[log->barriers++] = result;
    if (result == MEP_SUCCESS || has_ended(result)) break;
  }
  (void)mep_comm_live_count(comm, &log->live);
}

static void make_config(const job_t* job, int32_t rank, mep_comm_config_t* config, char* name,
                        size_t name_bytes) {
  snprintf(name, name_bytes, "oom-%d-%llu", (int)getppid(), (unsigned long long)job->seed);
  mep_comm_config_defaults(config);
  config->flags = MEP_COMM_SET_RANK;
  config->rank = rank;
  config->size = job->ranks;
  config->timeout_ms = TIMEOUT_MS;
  config->init_timeout_ms = job->init_timeout_ms != 0 ? job->init_timeout_ms : INIT_TIMEOUT_MS;
  config->job = name;
  config->transports = job->transports[0] != '\0' ? job->transports : NULL;
  config->heartbeat_ms = 50;
  config->suspect_ms = 2000;
}

void run_rank(const job_t* job, int32_t rank, rank_log_t* log) {
  mep_comm_config_t config;
  mep_comm_t comm = NULL;
  char name[64];
  find_preload();
  make_config(job, rank, &config, name, sizeof name);
  if (is_short(job, rank) && job->from_init) preload.arm(&job->plan);
  const uint64_t begun_ms = now_ms();
  log->at = -1;
  preload.enter(is_short(job, rank));
  log->init = mep_comm_init(&config, &comm);
  preload.enter(0);
  note(log, -1, begun_ms, log->init);
  if (log->init == MEP_SUCCESS) {
    if (is_short(job, rank) && !job->from_init) preload.arm(&job->plan);
    run_steps(job, rank, comm, log);
    if (is_short(job, rank)) run_short_no_more(log);
    run_finals(job, comm, log);
    const uint64_t left_ms = now_ms();
    log->destroy = mep_comm_destroy(comm);
    note(log, 200, left_ms, log->destroy);
  } else if (is_short(job, rank)) {
    run_short_no_more(log);
  }
  log->finished = 1;
}
