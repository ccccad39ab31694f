/* The mean of a vector over all ranks: mep_allreduce.
 *
 *   mep_run -n 4 ./allreduce_c      (or mpirun -n 4 ./allreduce_c, or ./allreduce_c alone) */
#include <mep.h>
#include <stdio.h>
#include <stdlib.h>

enum { kCount = 1000 };

static void must(mep_result_t result, const char* what) {
  if (result >= 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, mep_result_string(result), mep_last_error());
  exit(1); /* leaving without mep_comm_destroy: the other ranks see a failure, none of them hangs */
}

int main(void) {
  mep_comm_t comm;
  must(mep_comm_init(NULL, &comm), "mep_comm_init"); /* rank and size from the launcher */
  int32_t rank, size;
  must(mep_comm_rank(comm, &rank), "mep_comm_rank");
  must(mep_comm_size(comm, &size), "mep_comm_size");

  float mine[kCount], mean[kCount];
  for (int i = 0; i < kCount; ++i) mine[i] = (float)(rank + i);
  must(mep_allreduce(mine, mean, kCount, MEP_FLOAT32, MEP_AVG, comm, NULL), "mep_allreduce");

  /* The mean of rank + i over the ranks 0 .. size-1 is i + (size-1)/2, exact in float. */
  int errors = 0;
  for (int i = 0; i < kCount; ++i) errors += mean[i] != (float)i + 0.5f * (float)(size - 1);
  printf("rank %d of %d: mean[0] = %g, %s\n", rank, size, mean[0], errors ? "WRONG" : "right");

  must(mep_comm_destroy(comm), "mep_comm_destroy");
  return errors != 0;
}
