/* A halo exchange: mep_irecv, mep_isend and mep_request_waitall. The ranks share a rod of cells; in each step every
 * cell becomes the mean of its two neighbours (Jacobi), the ends stay as they are. Each rank has a piece of the
 * rod, and before its first and behind its last cell a copy of its neighbours' cells: the halo.
 *
 *   mep_run -n 4 ./halo_c           (or mpirun -n 4 ./halo_c, or ./halo_c alone) */
#include <mep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kCells = 100, kSteps = 250, kHalo = 1 }; /* cells of each rank; steps; the tag */

static void must(mep_result_t result, const char* what) {
  if (result >= 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, mep_result_string(result), mep_last_error());
  exit(1);
}

/* The value that a cell of the rod begins with. Cell 0 and cell `last` are its ends. */
static double first_value(size_t cell, size_t last) {
  if (cell == 0) return 100;
  return cell == last ? -20 : (double)(cell % 7);
}

static void relax(const double* u, double* next, size_t from, size_t to) {
  for (size_t i = from; i <= to; ++i) next[i] = 0.5 * (u[i - 1] + u[i + 1]);
}

/* Swaps what the two pointers lead to. */
static void swap(double** a, double** b) {
  double* const other = *a;
  *a = *b;
  *b = other;
}

/* The steps on cells 1 .. kCells of u; u[0] and u[kCells + 1] are the halo, or an end of the rod. Returns the array
 * that has the result. */
static double* exchange_and_relax(double* u, double* next, int32_t left, int32_t right,
                                  mep_comm_t comm) {
  for (int step = 0; step < kSteps; ++step) {
    /* A rank at an end has no neighbour there; its requests stay NULL, which counts as done. One tag is enough:
     * messages of one sender are received in the order in which they were sent. */
    mep_request_t requests[4] = {NULL, NULL, NULL, NULL};
    if (left >= 0) {
      must(mep_irecv(&u[0], 1, MEP_FLOAT64, left, kHalo, comm, NULL, NULL, &requests[0]),
           "mep_irecv");
      must(mep_isend(&u[1], 1, MEP_FLOAT64, left, kHalo, comm, NULL, &requests[1]), "mep_isend");
    }
    if (right >= 0) {
      must(mep_irecv(&u[kCells + 1], 1, MEP_FLOAT64, right, kHalo, comm, NULL, NULL, &requests[2]),
           "mep_irecv");
      must(mep_isend(&u[kCells], 1, MEP_FLOAT64, right, kHalo, comm, NULL, &requests[3]),
           "mep_isend");
    }
    relax(u, next, 2, kCells - 1); /* these need no neighbour */
    must(mep_request_waitall(4, requests, MEP_TIMEOUT_DEFAULT, NULL, NULL), "mep_request_waitall");
    relax(u, next, 1, 1);
    relax(u, next, kCells, kCells);
    swap(&u, &next);
  }
  return u;
}

int main(void) {
  mep_comm_t comm;
  int32_t rank, size;
  must(mep_comm_init(NULL, &comm), "mep_comm_init");
  must(mep_comm_rank(comm, &rank), "mep_comm_rank");
  must(mep_comm_size(comm, &size), "mep_comm_size");

  /* Cell i of this rank is cell offset + i of the rod. */
  const size_t last = (size_t)size * kCells + 1, offset = (size_t)rank * kCells;
  static double one[kCells + 2], two[kCells + 2];
  for (size_t i = 0; i < kCells + 2; ++i) one[i] = first_value(offset + i, last);
  memcpy(two, one, sizeof two); /* the ends of the rod are in both */
  const double* mine =
      exchange_and_relax(one, two, rank > 0 ? rank - 1 : -1, rank + 1 < size ? rank + 1 : -1, comm);

  /* The whole rod, computed here alone. It is the same arithmetic, so the bits are the same. */
  double* whole = malloc((last + 1) * sizeof *whole);
  double* next = malloc((last + 1) * sizeof *next);
  if (whole == NULL || next == NULL) return 1;
  for (size_t i = 0; i <= last; ++i) whole[i] = next[i] = first_value(i, last);
  for (int step = 0; step < kSteps; ++step) {
    relax(whole, next, 1, last - 1);
    swap(&whole, &next);
  }
  int errors = 0;
  for (size_t i = 1; i <= kCells; ++i) errors += mine[i] != whole[offset + i];
  printf("rank %d of %d: its first cell is %g after %d steps, %s\n", rank, size, mine[1], kSteps,
         errors ? "WRONG" : "right");
  free(whole);
  free(next);

  must(mep_comm_destroy(comm), "mep_comm_destroy");
  return errors != 0;
}
