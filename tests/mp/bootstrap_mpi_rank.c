/* mep_comm_init_mpi under mpirun: a right start over a communicator whose ranks are not the world's, and
 * a start that is wrong on one rank, which must fail on all. Status 0: all as it should be. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "mep_mpi.h"

static int failures = 0;

static void expect(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "wrong: %s (\"%s\")\n", what, mep_mpi_last_error());
  failures = 1;
}

int main(int argc, char** argv) {
  int rank = 0, size = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  MPI_Comm reversed;
  MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &reversed);
  mep_comm_t comm = NULL;
  int32_t mep_rank = -1, mep_size = -1;
  expect(mep_comm_init_mpi(reversed, NULL, &comm) == MEP_SUCCESS, "start");
  if (comm != NULL) {
    expect(mep_comm_rank(comm, &mep_rank) == MEP_SUCCESS && mep_rank == size - 1 - rank, "rank");
    expect(mep_comm_size(comm, &mep_size) == MEP_SUCCESS && mep_size == size, "size");
    expect(mep_barrier(comm, NULL) == MEP_SUCCESS, "barrier");
    expect(mep_comm_destroy(comm) == MEP_SUCCESS, "destroy");
  }

  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  if (rank == size - 1) config.rendezvous = "nowhere:1";
  config.init_timeout_ms = 1000;
  comm = NULL;
  expect(mep_comm_init_mpi(MPI_COMM_WORLD, &config, &comm) < 0 && comm == NULL,
         "one rank is wrong");
  expect(strlen(mep_mpi_last_error()) > 0, "text");
  if (rank == 0) config.struct_size = 3;
  expect(mep_comm_init_mpi(MPI_COMM_WORLD, &config, &comm) < 0 && comm == NULL, "struct_size");

  int all = failures;
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return all;
}
