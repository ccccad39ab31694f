// Everything that needs MPI, seen without mpi.h. Built without MPI, mpi_absent.cpp stands in and
// only says so.
#pragma once

#include <memory>

#include "collectives.hpp"
#include "mep.h"
#include "messages.hpp"
#include "moe_side.hpp"
#include "team.hpp"

namespace mep::perf {

bool mpi_is_built();

void mpi_start();
void mpi_finish();
// Ends the whole job.
void mpi_abort(int status);
// A communicator of the library over all ranks that MPI started.
mep_comm_t mpi_make_comm();

std::unique_ptr<Team> make_mpi_team();
std::unique_ptr<Case> make_mpi_collective(const CollectiveCall& call);
std::unique_ptr<MessageSide> make_mpi_messages();
std::unique_ptr<MoeSide> make_mpi_moe(const MoeProblem& problem);
std::unique_ptr<MoeSide> make_mpi_throughput_moe(const MoeProblem& problem);

}  // namespace mep::perf
