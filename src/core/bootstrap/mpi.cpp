// libmep_mpi.so: uses MPI and the public ABI of libmep.so only. Every rank takes part in every MPI
// call of a start, even if it has failed before. So no rank waits for one that has given up.
//
// Over several hosts MPI serves as the key-value store through which rank 0 tells where it can be reached. MPI also
// carries a secret that rank 0 makes: every process that may send MPI messages in this job is trusted with it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/sized_struct.hpp"
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
    return set_error(MEP_ERR_SYSTEM, "getrandom is refused; allow it in the sandbox");
  }
  std::snprintf(job, kJobBytes, "mpi-%016llx%016llx", random[0], random[1]);
  return MEP_SUCCESS;
}

// Copies the caller's config, so that the fields that MPI decides can be replaced. The caller's struct may be shorter
// or longer than this library's: the copy has the longer size, and keeps fields that this library does not know.
mep_result_t copy_config(const mep_comm_config_t* given, void** copy, mep_comm_config_t** fields) {
  size_t bytes = sizeof(mep_comm_config_t);
  if (given != nullptr) {
    if (given->struct_size < 8 || given->struct_size > 65536 ||
        mep::sized_struct::cuts_field<mep_comm_config_t>(given->struct_size)) {
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

constexpr size_t kSecretBytes = 32;

void wipe(void* memory, size_t bytes) {
  explicit_bzero(memory, bytes);
}

// One value from rank 0 to all others. `sent`: this rank has taken part in the MPI_Bcast, which each does exactly once.
struct MpiStore {
  MPI_Comm mpi_comm = MPI_COMM_NULL;
  bool sent = false;
  bool good = false;
  struct {
    unsigned bytes = 0;
    unsigned char value[512] = {};
  } message;

  void exchange() {
    if (sent) return;
    sent = true;
    good = MPI_Bcast(&message, sizeof message, MPI_BYTE, 0, mpi_comm) == MPI_SUCCESS &&
           message.bytes != 0;
  }
};

// Rank 0 puts the place of this start, then the same for joiners. The second put is dropped: joiners cannot use MPI.
int put_by_mpi(void* user, const char*, const void* value, size_t bytes) {
  auto* store = static_cast<MpiStore*>(user);
  if (store->sent) return 0;
  if (bytes > sizeof store->message.value) return 1;
  store->message.bytes = static_cast<unsigned>(bytes);
  std::memcpy(store->message.value, value, bytes);
  store->exchange();
  return store->good ? 0 : 2;
}

int get_by_mpi(void* user, const char*, void* value, size_t capacity, size_t* bytes, uint32_t) {
  auto* store = static_cast<MpiStore*>(user);
  store->exchange();
  *bytes = store->message.bytes;
  if (!store->good || *bytes > capacity || *bytes > sizeof store->message.value) return 1;
  std::memcpy(value, store->message.value, *bytes);
  return 0;
}

// Makes a memfd with the secret and writes a path that opens it to `path`. Answers its descriptor; -1: failed.
int secret_as_file(const unsigned char* secret, char* path, size_t path_bytes) {
  const int fd = memfd_create("mep-secret", MFD_CLOEXEC);
  if (fd < 0) return -1;
  if (fchmod(fd, 0600) != 0 ||
      write(fd, secret, kSecretBytes) != static_cast<ssize_t>(kSecretBytes)) {
    close(fd);
    return -1;
  }
  std::snprintf(path, path_bytes, "/proc/self/fd/%d", fd);
  return fd;
}

// *one_host: all ranks are on one host, so they find each other by the job's name alone.
mep_result_t find_hosts(MPI_Comm mpi_comm, bool* one_host) {
  MPI_Comm neighbours = MPI_COMM_NULL;
  int status = MPI_Comm_split_type(mpi_comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &neighbours);
  if (status != MPI_SUCCESS) return mpi_error("MPI_Comm_split_type", status);
  int sizes[2] = {0, 0};
  MPI_Comm_size(neighbours, &sizes[0]);
  MPI_Comm_free(&neighbours);
  MPI_Comm_size(mpi_comm, &sizes[1]);
  const char* forced = secure_getenv("MEP_TEST_HOST");  // tests play several hosts on one
  int alike = sizes[0] == sizes[1] && (forced == nullptr || *forced == '\0') ? 1 : 0;
  status = MPI_Allreduce(MPI_IN_PLACE, &alike, 1, MPI_INT, MPI_MIN, mpi_comm);
  if (status != MPI_SUCCESS) return mpi_error("MPI_Allreduce", status);
  *one_host = alike != 0;
  return MEP_SUCCESS;
}

bool given(const char* field, const char* variable) {
  const char* value = field != nullptr && *field != '\0' ? field : secure_getenv(variable);
  return value != nullptr && *value != '\0';
}

mep_result_t init_over_hosts(MPI_Comm mpi_comm, mep_comm_config_t* fields,
                             const unsigned char* secret, mep_comm_t* comm) {
  MpiStore store;
  store.mpi_comm = mpi_comm;
  mep_store_t callbacks{};
  callbacks.struct_size = sizeof callbacks;
  callbacks.user = &store;
  callbacks.put = put_by_mpi;
  callbacks.get = get_by_mpi;
  char path[64] = "";
  int secret_fd = -1;
  mep_result_t result = MEP_SUCCESS;
  if (!given(fields->secret_file, "MEP_SECRET_FILE")) {
    secret_fd = secret_as_file(secret, path, sizeof path);
    if (secret_fd < 0)
      result =
          set_error(MEP_ERR_SYSTEM,
                    "no memory file for the job's secret (memfd_create; a sandbox must allow it)");
    fields->secret_file = path;
  }
  const bool by_store = !given(fields->rendezvous, "MEP_RENDEZVOUS") && fields->store == nullptr;
  if (by_store) fields->store = &callbacks;
  if (result == MEP_SUCCESS) {
    result = mep_comm_init(fields, comm);
    if (result != MEP_SUCCESS) set_error(result, mep_last_error());
  }
  if (secret_fd >= 0) close(secret_fd);
  // A rank whose start failed before its put or get takes part in the broadcast here.
  store.exchange();
  return result;
}

mep_result_t start(MPI_Comm mpi_comm, int rank, int size, const mep_comm_config_t* config,
                   mep_comm_t* comm) {
  void* copy = nullptr;
  mep_comm_config_t* fields = nullptr;
  mep_result_t result = copy_config(config, &copy, &fields);

  struct {
    mep_result_t result;
    char job[kJobBytes];
    unsigned char secret[kSecretBytes];
  } message{};
  message.result = result;
  if (rank == 0 && result == MEP_SUCCESS) message.result = choose_job(fields->job, message.job);
  if (rank == 0 &&
      getrandom(message.secret, kSecretBytes, 0) != static_cast<ssize_t>(kSecretBytes)) {
    message.result = set_error(MEP_ERR_SYSTEM, "getrandom is refused; allow it in the sandbox");
  }
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

  bool one_host = true;
  const mep_result_t known = find_hosts(mpi_comm, &one_host);
  if (result == MEP_SUCCESS) result = known;

  // All ranks or none enter mep_comm_init, so that no rank waits there for one that cannot come.
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
  if (one_host) {
    result = mep_comm_init(fields, comm);
    if (result != MEP_SUCCESS) set_error(result, mep_last_error());
  } else {
    result = init_over_hosts(mpi_comm, fields, message.secret, comm);
  }
  wipe(message.secret, sizeof message.secret);
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
