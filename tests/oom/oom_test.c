// Jobs whose ranks run out of memory, descriptors or mappings, and the judge.
//
// First each request that is made for the start, a split or an EP object is refused once, in its turn: all ranks get
// the same error, and nothing is left behind. Then jobs of operations are drawn from seeds: the rank that runs out goes
// on or ends with MEP_ERR_NO_MEMORY, and the others go on. MEP_TEST_SEED=N replays one job, `oom_test N COUNT` that and
// those after it; MEP_TEST_SOAK=1 draws more; OOM_TEST_VERBOSE=1 tells of each job.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "oom_job.h"

enum {
  QUICK_JOBS = 120,
  QUICK_MS = 12000,
  SOAK_JOBS = 10000,
  // Beyond all that membership may take after a deadline, and for a loaded machine.
  CALL_LIMIT_MS = 30000,
  JOB_LIMIT_MS = 90000
};

static uint64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// --- Drawing a job --------------------------------------------------------------------------------

static uint64_t draw(uint64_t* state, uint64_t below) {
  uint64_t value = (*state += 0x9e3779b97f4a7c15u);
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return (value ^ (value >> 31)) % below;
}

// Operations, while one rank, or all, have too little; in one job of four for good.
static void draw_operations(uint64_t seed, job_t* job) {
  static const uint32_t kKinds[] = {OOM_MEMORY, OOM_MEMORY,      OOM_MEMORY,
                                    OOM_MEMORY, OOM_DESCRIPTORS, OOM_MAPPINGS};
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  memset(job, 0, sizeof *job);
  job->seed = seed;
  job->ranks = 2 + (int32_t)draw(&state, MAX_RANKS - 1);
  job->short_rank = draw(&state, 8) == 0 ? -1 : (int32_t)draw(&state, (uint64_t)job->ranks);
  snprintf(job->transports, sizeof job->transports, "%s", draw(&state, 2) == 0 ? "tcp" : "");
  job->plan.kinds = kKinds[draw(&state, sizeof kKinds / sizeof kKinds[0])];
  job->plan.threads = 1 + (uint32_t)draw(&state, 3);
  job->plan.refusals = draw(&state, 4) == 0 ? UINT64_MAX : 1 + draw(&state, 3);
  // Most jobs ask seldom, some often: each order of magnitude is as likely.
  job->plan.first = draw(&state, (uint64_t)1 << draw(&state, 10));
  job->count = 1 + (int32_t)draw(&state, MAX_STEPS);
  for (int32_t i = 0; i < job->count; ++i) {
    job->steps[i] = (int32_t)draw(&state, (uint64_t)step_kinds());
  }
}

// One rank's request number `first` for something is refused, once. The seed says it all.
typedef struct sweep_t {
  const char* step; /* NULL: the start */
  uint32_t kinds;
  uint64_t stride;
  int is_over_tcp; /* over shared memory an operation asks for next to nothing */
} sweep_t;
static const sweep_t kSweeps[] = {
    {"split", OOM_MEMORY, 1, 0},    {"split", OOM_DESCRIPTORS | OOM_MAPPINGS, 1, 0},
    {"experts", OOM_MEMORY, 1, 0},  {"experts", OOM_DESCRIPTORS | OOM_MAPPINGS, 1, 0},
    {NULL, OOM_MEMORY, 71, 0},      {NULL, OOM_DESCRIPTORS | OOM_MAPPINGS | OOM_THREADS, 1, 0},
    {"alltoall", OOM_MEMORY, 1, 1}, {"requests", OOM_MEMORY, 1, 1},
    {"message", OOM_MEMORY, 1, 1}};
enum { SWEEPS = sizeof kSweeps / sizeof kSweeps[0] };
static const uint64_t kSweep = (uint64_t)1 << 32;

static uint64_t sweep_seed(uint64_t sweep, uint64_t first) {
  return kSweep + first * SWEEPS + sweep;
}

static void draw_sweep(uint64_t seed, job_t* job) {
  const sweep_t* const sweep = &kSweeps[(seed - kSweep) % SWEEPS];
  memset(job, 0, sizeof *job);
  job->seed = seed;
  job->ranks = 3;
  job->short_rank = 1;
  job->from_init = sweep->step == NULL;
  snprintf(job->transports, sizeof job->transports, "%s", sweep->is_over_tcp ? "tcp" : "");
  job->plan.kinds = sweep->kinds;
  job->plan.threads = OOM_CALLERS;
  job->plan.refusals = 1;
  job->plan.first = (seed - kSweep) / SWEEPS;
  job->count = 1;
  job->steps[0] = step_of(sweep->step == NULL ? "barrier" : sweep->step);
}

// --- Running it -----------------------------------------------------------------------------------

// Says in words what ended badly; NULL: nothing.
static const char* run_processes(const job_t* job, rank_log_t* logs) {
  static char trouble[200];
  const int processes = job->ranks;
  const char* found = NULL;
  pid_t pids[MAX_RANKS];
  int left = processes;
  for (int i = 0; i < processes; ++i) {
    pids[i] = fork();
    if (pids[i] < 0) _exit(3);
    if (pids[i] != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_rank(job, i, &logs[i]);
    _exit(0);
  }
  const uint64_t begun_ms = now_ms();
  while (left > 0) {
    for (int i = 0; i < processes; ++i) {
      int status = 0;
      if (pids[i] == 0 || waitpid(pids[i], &status, WNOHANG) != pids[i]) continue;
      pids[i] = 0;
      --left;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      snprintf(trouble, sizeof trouble, "process %d ended with status %#x", i, (unsigned)status);
      found = trouble;
    }
    if (left > 0 && now_ms() - begun_ms > JOB_LIMIT_MS) {
      snprintf(trouble, sizeof trouble, "the job hangs, %d processes are left", left);
      found = trouble;
      if (getenv("OOM_TEST_STOP") != NULL) raise(SIGSTOP);
      for (int i = 0; i < processes; ++i) {
        if (pids[i] != 0) kill(pids[i], SIGKILL);
      }
    }
    const struct timespec pause = {0, 1000000};
    if (left > 0) nanosleep(&pause, NULL);
  }
  return found;
}

// --- Judging it -----------------------------------------------------------------------------------

static const char* judge_rank(const rank_log_t* log) {
  if (!log->finished) return "a rank did not come to its end";
  if (log->longest_ms > CALL_LIMIT_MS) return "a call took too long";
  if (log->wrong != 0)
    return "a step that succeeded delivered wrong data, or what it made was busy";
  for (int32_t i = 0; i < log->called; ++i) {
    if (log->steps[i] == MEP_ERR_INTERNAL) return "an internal error";
    if (log->steps[i] == MEP_ERR_BUSY) return "something was left busy";
  }
  if (log->init == MEP_ERR_INTERNAL) return "an internal error at the start";
  if (log->init != MEP_SUCCESS) return NULL;
  if (log->destroy == MEP_ERR_BUSY) return "the communicator was left busy";
  if (log->destroy == MEP_ERR_INTERNAL) return "an internal error at the end";
  return NULL;
}

static int is_in_it(const rank_log_t* log) {
  return log->init == MEP_SUCCESS && log->finals[log->barriers - 1] == MEP_SUCCESS;
}

// Steps that all make together fail on all alike, whoever ran out: in the first step that failed anywhere, if all
// have called it. A rank whose world has ended has the result of that.
static const char* judge_made_together(const job_t* job, const rank_log_t* logs) {
  for (int32_t i = 0; i < job->count; ++i) {
    const rank_log_t* first = NULL;
    int failed = 0;
    for (int32_t rank = 0; rank < job->ranks; ++rank) {
      if (logs[rank].called <= i) return NULL;
      failed |= logs[rank].steps[i] != MEP_SUCCESS;
      if (!is_in_it(&logs[rank])) continue;
      if (first == NULL) first = &logs[rank];
      if (logs[rank].made[i] != first->made[i]) return "ranks made something with unlike results";
    }
    if (failed) return NULL;
  }
  return NULL;
}

// Others than those who ran out go on; of two ranks one does not if the other cannot say its last words.
static int may_end(const job_t* job, int32_t rank) {
  const int is_short = job->short_rank < 0 || job->short_rank == rank;
  return is_short || (job->plan.kinds & OOM_SENDING) != 0 ||
         (job->ranks == 2 && job->plan.refusals > 1);
}

// After the shortage all that are still in it meet in a barrier, and know the same members.
static const char* judge(const job_t* job, const rank_log_t* logs) {
  int32_t met = 0;
  int32_t ended = 0;  // perhaps after it had given its part to the others' barrier
  for (int32_t rank = 0; rank < job->ranks; ++rank) {
    const char* trouble = judge_rank(&logs[rank]);
    if (trouble != NULL) return trouble;
    if (logs[rank].init != MEP_SUCCESS) continue;
    const mep_result_t last = logs[rank].finals[logs[rank].barriers - 1];
    if (last == MEP_SUCCESS) {
      ++met;
    } else if (!may_end(job, rank)) {
      return "a rank that had what it needs does not go on";
    } else if (last == MEP_ERR_NO_MEMORY || last == MEP_ERR_NO_QUORUM || last == MEP_ERR_EVICTED) {
      ++ended;
    } else {
      return "a rank's communicator neither works again nor has ended";
    }
  }
  for (int32_t rank = 0; rank < job->ranks; ++rank) {
    if (!is_in_it(&logs[rank])) continue;
    // Others may have left by now.
    if (logs[rank].live > met + ended) return "a rank counts others in that are not there";
  }
  return judge_made_together(job, logs);
}

static void describe(const job_t* job, const rank_log_t* logs) {
  printf("job %llu: %d ranks%s, short %d%s, kinds %x threads %x first %llu refusals %llu\n",
         (unsigned long long)job->seed, job->ranks, job->transports, job->short_rank,
         job->from_init ? " from init" : "", job->plan.kinds, job->plan.threads,
         (unsigned long long)job->plan.first, (unsigned long long)job->plan.refusals);
  for (int32_t rank = 0; rank < job->ranks; ++rank) {
    const rank_log_t* log = &logs[rank];
    printf("  rank %d: init %d", rank, log->init);
    for (int32_t i = 0; i < log->called; ++i) {
      printf(", %s %d", step_name(job->steps[i]), log->steps[i]);
    }
    printf("; barriers");
    for (int32_t i = 0; i < log->barriers; ++i) printf(" %d", log->finals[i]);
    printf(", live %d, destroy %d, refusals %llu, longest %llu ms at %d, at %d, finished %d; %s\n",
           log->live, log->destroy, (unsigned long long)log->refusals,
           (unsigned long long)log->longest_ms, log->longest_step, log->at, log->finished,
           log->text);
  }
}

// One control message of rank 1 is lost. Whom it was for would miss it without a word: so the link is given
// up, and the membership takes one of the two out.
static void make_job_of_a_lost_message(job_t* job) {
  memset(job, 0, sizeof *job);
  job->ranks = 3;
  job->short_rank = 1;
  job->plan.kinds = OOM_SENDING;
  job->plan.threads = OOM_LIBRARY;
  job->plan.refusals = 1;
  job->count = 1;
  job->steps[0] = step_kinds();
}

// No port is free for anybody who is to listen.
static const uint64_t kNoPorts = ((uint64_t)1 << 32) - 1;

static void make_job_without_ports(job_t* job) {
  memset(job, 0, sizeof *job);
  job->seed = kNoPorts;
  job->ranks = 2;
  job->short_rank = -1;
  job->from_init = 1;
  snprintf(job->transports, sizeof job->transports, "tcp");
  job->init_timeout_ms =
      5 * INIT_TIMEOUT_MS; /* ends by what the other rank says, however slow the machine is */
  job->plan.kinds = OOM_PORTS;
  job->plan.threads = OOM_CALLERS | OOM_LIBRARY;
  job->plan.refusals = UINT64_MAX;
  job->count = 1;
}

static const char* judge_no_ports(const job_t* job, const rank_log_t* logs) {
  int refused = 0;
  for (int32_t rank = 0; rank < job->ranks; ++rank) {
    refused |= logs[rank].init == MEP_ERR_NO_MEMORY;
    if (logs[rank].init != MEP_ERR_NO_MEMORY && logs[rank].init != MEP_ERR_BOOTSTRAP) {
      return "a start without ports says something else";
    }
  }
  return refused ? NULL : "no rank says that there is no port";
}

static const char* judge_lost_message(const job_t* job, const rank_log_t* logs) {
  for (int32_t rank = 0; rank < job->ranks; ++rank) {
    if (logs[rank].steps[0] == MEP_ERR_TIMEOUT) return "nobody noticed that a message was lost";
  }
  return NULL;
}

static void draw_job(uint64_t seed, job_t* job) {
  if (seed == 0) {
    make_job_of_a_lost_message(job);
  } else if (seed == kNoPorts) {
    make_job_without_ports(job);
  } else if (seed >= kSweep) {
    draw_sweep(seed, job);
  } else {
    draw_operations(seed, job);
  }
}

typedef struct tally_t {
  uint64_t jobs;
  uint64_t refusals;
  uint64_t failures;
  uint64_t ended; /* ranks that ran out of memory and left the others */
} tally_t;

// Returns how many requests were refused.
static uint64_t run_job(uint64_t seed, rank_log_t* logs, tally_t* tally) {
  job_t job;
  uint64_t refusals = 0;
  draw_job(seed, &job);
  memset(logs, 0, sizeof(rank_log_t) * MAX_RANKS);
  for (int i = 0; i < MAX_RANKS; ++i) logs[i].destroy = NOT_CALLED;
  fflush(stdout);
  const char* trouble = run_processes(&job, logs);
  if (trouble == NULL) trouble = judge(&job, logs);
  if (trouble == NULL && seed == 0) trouble = judge_lost_message(&job, logs);
  if (trouble == NULL && seed == kNoPorts) trouble = judge_no_ports(&job, logs);
  for (int i = 0; i < MAX_RANKS; ++i) {
    refusals += logs[i].refusals;
    tally->ended +=
        logs[i].barriers != 0 && logs[i].finals[logs[i].barriers - 1] == MEP_ERR_NO_MEMORY;
  }
  ++tally->jobs;
  tally->refusals += refusals;
  if (trouble != NULL) {
    ++tally->failures;
    printf("FAILED with MEP_TEST_SEED=%llu: %s\n", (unsigned long long)seed, trouble);
  }
  if (trouble != NULL || getenv("OOM_TEST_VERBOSE") != NULL) describe(&job, logs);
  return refusals;
}

// Each of them until it asks for no more than was granted.
static void sweep_all(rank_log_t* logs, tally_t* tally) {
  for (uint64_t sweep = 0; sweep < SWEEPS; ++sweep) {
    const sweep_t* const each = &kSweeps[sweep];
    uint64_t first = 0;
    while (run_job(sweep_seed(sweep, first), logs, tally) != 0) first += each->stride;
    printf("%s: %llu requests of kinds %x, one of %llu refused\n",
           each->step == NULL ? "start" : each->step, (unsigned long long)first, each->kinds,
           (unsigned long long)each->stride);
  }
}

int main(int argc, char** argv) {
  const char* given = argc > 1 ? argv[1] : getenv("MEP_TEST_SEED");
  const int soak = getenv("MEP_TEST_SOAK") != NULL;
  const uint64_t begun_ms = now_ms();
  tally_t tally = {0, 0, 0, 0};
  const size_t bytes = sizeof(rank_log_t) * MAX_RANKS;
  rank_log_t* logs = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (logs == MAP_FAILED) return 3;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (given != NULL) {
    const uint64_t first = strtoull(given, NULL, 0);
    const uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    for (uint64_t i = 0; i < count; ++i) (void)run_job(first + i, logs, &tally);
  } else {
    (void)run_job(kNoPorts, logs, &tally);
    sweep_all(logs, &tally);
    const uint64_t drawn_ms = now_ms();
    for (uint64_t seed = 0; seed <= (soak ? SOAK_JOBS : QUICK_JOBS); ++seed) {
      if (!soak && now_ms() - drawn_ms > QUICK_MS) break;
      (void)run_job(seed, logs, &tally);
    }
    // Else the jobs would show nothing of it.
    if (tally.ended == 0) {
      ++tally.failures;
      printf("FAILED: no rank has run out of memory in an operation\n");
    }
  }
  printf("%llu jobs, %llu requests refused, %llu ranks ended, %llu failures, %llu ms\n",
         (unsigned long long)tally.jobs, (unsigned long long)tally.refusals,
         (unsigned long long)tally.ended, (unsigned long long)tally.failures,
         (unsigned long long)(now_ms() - begun_ms));
  return tally.failures == 0 ? 0 : 1;
}
