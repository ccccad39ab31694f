/* One rank of a lab job: sums up who is there, again and again, and says what changes.
 *
 * Each rank puts in the bit of its rank, so the sum names who took part. Lines on standard output:
 *   sees MASK      an allreduce succeeded, with another MASK than the one before
 *   error NAME: TEXT  an operation failed with this code for the first time since the last success
 *   ended NAME     this rank's world is over
 *   left           everybody was told to stop, and this rank left in order
 * The file LAB_STOP of the environment ends the job once any rank finds it. */
#include <mep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kOperationsPerBarrier = 20, kPauseUs = 2000 };

static int start(mep_comm_t* comm) {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  config.flags = MEP_COMM_AUTO_RECOVER;
  const char* join = getenv("MEP_JOIN");
  const int joins = join != NULL && strcmp(join, "1") == 0;
  const mep_result_t result = joins ? mep_comm_join(&config, comm) : mep_comm_init(&config, comm);
  if (result == MEP_SUCCESS) return 1;
  printf("failed %s: %s\n", mep_result_string(result), mep_last_error());
  return 0;
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  mep_comm_t comm = NULL;
  if (!start(&comm)) return 1;
  int32_t rank = 0;
  mep_comm_rank(comm, &rank);
  printf("started\n");
  const char* stop_file = getenv("LAB_STOP");
  uint64_t seen = 0;
  const char* join = getenv("MEP_JOIN");
  /* A joiner comes in with a barrier; what follows it is its first operation. */
  const long first = join != NULL && strcmp(join, "1") == 0 ? 1 : 0;
  mep_result_t failing = MEP_SUCCESS;
  for (long i = first;; ++i) {
    const uint64_t stop = stop_file != NULL && access(stop_file, F_OK) == 0 ? 1 : 0;
    const uint64_t value = (UINT64_C(1) << rank) | stop << 32;
    uint64_t sum = 0;
    mep_result_t result = i % kOperationsPerBarrier == 0
                              ? mep_barrier(comm, NULL)
                              : mep_allreduce(&value, &sum, 1, MEP_UINT64, MEP_SUM, comm, NULL);
    if (result == MEP_ERR_NO_QUORUM || result == MEP_ERR_EVICTED || result == MEP_ERR_ABORTED) {
      printf("ended %s\n", mep_result_string(result));
      return 0;
    }
    if (result != MEP_SUCCESS) {
      if (result != failing) printf("error %s: %s\n", mep_result_string(result), mep_last_error());
      failing = result;
      continue;
    }
    if (i % kOperationsPerBarrier == 0) continue;
    failing = MEP_SUCCESS;
    const uint64_t mask = sum & 0xffffffff;
    if (mask != seen) printf("sees %llx\n", (unsigned long long)mask);
    seen = mask;
    if ((mask & UINT64_C(1) << rank) == 0) {
      printf("wrong: %llx lacks this rank\n", (unsigned long long)mask);
      return 3;
    }
    if (sum >> 32 != 0) break;
    usleep(kPauseUs);
  }
  mep_comm_destroy(comm);
  printf("left\n");
  return 0;
}
