/* Messages round a ring: mep_sendrecv. Each rank sends off a token; it goes from rank to rank until it is back,
 * and every rank that it comes to adds its number.
 *
 *   mep_run -n 4 ./ring_c           (or mpirun -n 4 ./ring_c, or ./ring_c alone) */
#include <mep.h>
#include <stdio.h>
#include <stdlib.h>

enum { kToken = 1 }; /* the tag: a number of the program's own */

typedef struct token {
  int64_t origin; /* the rank that sent it off */
  int64_t sum;    /* of the ranks that it came to */
} token;

static void must(mep_result_t result, const char* what) {
  if (result >= 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, mep_result_string(result), mep_last_error());
  exit(1); /* leaving without mep_comm_destroy: the other ranks see a failure, none of them hangs */
}

int main(void) {
  mep_comm_t comm;
  int32_t rank, size;
  must(mep_comm_init(NULL, &comm), "mep_comm_init");
  must(mep_comm_rank(comm, &rank), "mep_comm_rank");
  must(mep_comm_size(comm, &size), "mep_comm_size");
  const int32_t right = (rank + 1) % size, left = (rank + size - 1) % size;

  /* All ranks send to the right and receive from the left at one time: mep_send and then mep_recv could wait
   * for each other all round the ring. */
  token mine = {rank, 0}, came;
  int errors = 0;
  for (int32_t step = 0; step < size; ++step) {
    mep_message_t message;
    mep_message_defaults(&message);
    must(mep_sendrecv(&mine, 2, right, kToken, &came, 2, left, kToken, MEP_INT64, comm, &message,
                      NULL),
         "mep_sendrecv");
    errors += message.source != left || message.bytes != sizeof came;
    mine = came;
    mine.sum += rank;
  }

  /* After as many steps as there are ranks each one has its own token again. */
  errors += mine.origin != rank || mine.sum != (int64_t)size * (size - 1) / 2;
  printf("rank %d of %d: its token is back with the sum %lld, %s\n", rank, size,
         (long long)mine.sum, errors ? "WRONG" : "right");

  must(mep_comm_destroy(comm), "mep_comm_destroy");
  return errors != 0;
}
