/* Start of a MEP world from an MPI communicator: library libmep_mpi.so, beside libmep.so.
 *
 * MPI serves for the start only. Afterwards MEP neither calls MPI nor needs it to live on; but MPI's own
 * failure handling stays as it is (Open MPI's mpirun kills all ranks when one dies, unless it is started
 * with --enable-recovery). */
#ifndef MEP_MPI_H
#define MEP_MPI_H

#include <mpi.h>

#include "mep.h"

#ifdef __cplusplus
extern "C" {
#endif

/* mep_comm_init over the ranks of `mpi_comm`: comm rank = MPI rank. MPI must be initialised, by a thread
 * level that allows the calling thread to call it. config (or NULL) as for mep_comm_init, but its rank
 * and size are not used; its job counts only on MPI rank 0, and without one (and without MEP_JOB) rank 0
 * makes a random name. Its init_timeout_ms does not bound the MPI calls themselves.
 * Collective over mpi_comm. Either all ranks succeed or all get an error: a rank that could start but
 * whose peers could not gets MEP_ERR_BOOTSTRAP. Errors: as mep_comm_init, and MEP_ERR_BOOTSTRAP when
 * MPI itself fails and returns. 0.1 */
MEP_API mep_result_t mep_comm_init_mpi(MPI_Comm mpi_comm, const mep_comm_config_t* config,
                                       mep_comm_t* comm);

/* Detail text of the calling thread's last failed mep_comm_init_mpi; "" if none failed. 0.1 */
MEP_API const char* mep_mpi_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* MEP_MPI_H */
