// libmep_mpi.so: uses MPI and the public ABI of libmep.so only. Every rank takes part in every MPI
// call of a start, whatever went wrong for it before; so nobody waits for a rank that has given up.
#include <sys/random.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "mep_mpi.h"

namespace {

constexpr size_t kJobBytes = 256;
constexpr size_t kTextBytes = 1024;
thread_local char last_error[kTextBytes] = "";

mep_result_t set_error(mep_result_t code, const char* text) {
  std::snprintf(last_error, sizeof last_error, "%s", text);
  return code;
}

mep_result_t mpi_error(const char* call, int code) {
  char reason[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, reason, &length);
  std::snprintf(last_error, sizeof last_error, "%s failed: %s", call, reason);
  return MEP_ERR_BOOTSTRAP;
}

// On rank 0: the caller's job name, or MEP_JOB, or a random one.
mep_result_t choose_job(const char* given, char* job) {
  std::memset(job, 0, kJobBytes);
  if (given == nullptr || *given == '\0') given = secure_getenv("MEP_JOB");
  if (given != nullptr && *given != '\0') {
    if (strnlen(given, kJobBytes) == kJobBytes) {
      return set_error(MEP_ERR_INVALID_ARGUMENT, "the job's name is longer than 255 bytes");
    }
    std::snprintf(job, kJobBytes, "%s", given);
    return MEP_SUCCESS;
  }
  unsigned long long random[2] = {0, 0};
  if (getrandom(random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) {
    return set_error(MEP_ERR_SYSTEM, "getrandom failed");
  }
  std::snprintf(job, kJobBytes, "mpi-%016llx%016llx", random[0], random[1]);
  return MEP_SUCCESS;
}

// The caller's struct may be shorter or longer than this library's; what is behind ours stays the
// caller's business: only the fields that MPI decides are replaced in a copy.
mep_result_t copy_config(const mep_comm_config_t* given, void** copy, mep_comm_config_t** fields) {
  size_t bytes = sizeof(mep_comm_config_t);
  if (given != nullptr) {
    if (given->struct_size < 8 || given->struct_size > 65536) {
      return set_error(MEP_ERR_INVALID_ARGUMENT,
                       "config.struct_size is wrong; use mep_comm_config_defaults");
    }
    if (given->struct_size > bytes) bytes = given->struct_size;
  }
  *copy = std::calloc(1, bytes);
  if (*copy == nullptr) return set_error(MEP_ERR_NO_MEMORY, "no memory");
  *fields = static_cast<mep_comm_config_t*>(*copy);
  if (given != nullptr) std::memcpy(*copy, given, given->struct_size);
  (*fields)->struct_size = static_cast<uint32_t>(bytes);
  return MEP_SUCCESS;
}

mep_result_t start(MPI_Comm mpi_comm, int rank, int size, const mep_comm_config_t* config,
                   mep_comm_t* comm) {
  void* copy = nullptr;
  mep_comm_config_t* fields = nullptr;
  mep_result_t result = copy_config(config, &copy, &fields);

  struct {
    mep_result_t result;
    char job[kJobBytes];
  } message{};
  message.result = result;
  if (rank == 0 && result == MEP_SUCCESS) message.result = choose_job(fields->job, message.job);
  const int sent = MPI_Bcast(&message, sizeof message, MPI_BYTE, 0, mpi_comm);
  if (sent != MPI_SUCCESS) {
    std::free(copy);
    return mpi_error("MPI_Bcast", sent);
  }
  if (rank == 0) {
    result = message.result;
  } else if (result == MEP_SUCCESS && message.result != MEP_SUCCESS) {
    result = set_error(MEP_ERR_BOOTSTRAP, "rank 0 could not begin the start");
  }

  // All or nobody enters mep_comm_init, so that none waits there for one that cannot come.
  int worst[2] = {result, 0};
  const int before = MPI_Allreduce(MPI_IN_PLACE, worst, 1, MPI_INT, MPI_MIN, mpi_comm);
  if (before != MPI_SUCCESS) {
    std::free(copy);
    return mpi_error("MPI_Allreduce", before);
  }
  if (worst[0] != MEP_SUCCESS || fields == nullptr) {
    std::free(copy);
    if (result != MEP_SUCCESS) return result;
    return set_error(MEP_ERR_BOOTSTRAP, "another rank could not begin the start");
  }

  message.job[kJobBytes - 1] = '\0';
  fields->flags |= MEP_COMM_SET_RANK;
  fields->rank = rank;
  fields->size = size;
  fields->job = message.job;
  result = mep_comm_init(fields, comm);
  if (result != MEP_SUCCESS) set_error(result, mep_last_error());
  std::free(copy);
  return result;
}

}  // namespace

mep_result_t mep_comm_init_mpi(MPI_Comm mpi_comm, const mep_comm_config_t* config,
                               mep_comm_t* comm) {
  if (comm == nullptr) return set_error(MEP_ERR_INVALID_ARGUMENT, "comm is NULL");
  *comm = nullptr;
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0 || mpi_comm == MPI_COMM_NULL) {
    return set_error(MEP_ERR_INVALID_ARGUMENT,
                     initialized == 0 ? "MPI is not initialised" : "mpi_comm is MPI_COMM_NULL");
  }
  int rank = 0;
  int size = 0;
  int status = MPI_Comm_rank(mpi_comm, &rank);
  if (status == MPI_SUCCESS) status = MPI_Comm_size(mpi_comm, &size);
  if (status != MPI_SUCCESS) return mpi_error("MPI_Comm_rank", status);

  const mep_result_t result = start(mpi_comm, rank, size, config, comm);
  int worst = result;
  status = MPI_Allreduce(MPI_IN_PLACE, &worst, 1, MPI_INT, MPI_MIN, mpi_comm);
  if (status == MPI_SUCCESS && worst >= MEP_SUCCESS) return result;
  if (*comm != nullptr) {
    (void)mep_comm_destroy(*comm);
    *comm = nullptr;
  }
  if (status != MPI_SUCCESS) return mpi_error("MPI_Allreduce", status);
  if (result < MEP_SUCCESS) return result;
  return set_error(MEP_ERR_BOOTSTRAP, "another rank could not start");
}

const char* mep_mpi_last_error(void) {
  return last_error;
}
