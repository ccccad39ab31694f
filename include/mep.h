/* MEP: MoE expert parallelism and collectives that survive rank failures.
 *
 * The whole C ABI. This header needs only <stdint.h> and <stddef.h> and compiles as C99 and C++.
 *
 * Conventions that hold for every function unless its comment says otherwise:
 *
 *   Results    0 is success, negative values are errors, positive values are qualified success.
 *              mep_result_string() names a result, mep_last_error() has the calling thread's
 *              detail text of the last failure. A call refused for its arguments changes nothing.
 *   Structs    Begin with struct_size, set by the caller: mep_X_defaults(&x) sets it, and all other
 *              fields to 0. A zero field means the default. A shorter struct of an older caller is
 *              accepted, if it ends at the end of a field; a longer one only if its tail is zero.
 *              Fields declared but not built yet return MEP_ERR_UNSUPPORTED.
 *   Threads    A communicator's operations and requests, and queries of them, are for one thread at
 *              a time, and so is each buffer of an EP object: a call that finds another thread
 *              inside returns MEP_ERR_THREAD and does nothing. Different communicators and buffers
 *              may be used by different threads at once. A handle must not be destroyed while
 *              another thread may still begin a call on it.
 *   Blocking   On a host communicator, one without a GPU, stream is NULL and a call returns when
 *              done. Every wait ends: by success, by a change of the membership, or by its timeout.
 *   Buffers    Are indexed by communicator rank. A call that has returned, with whatever result,
 *              reads and writes the caller's buffers no more (nonblocking calls: their request).
 *   fork       In a child made by fork() calls on every handle return MEP_ERR_FORKED.
 *   Errors     MEP_ERR_INVALID_ARGUMENT (a NULL or out-of-range argument) and MEP_ERR_FORKED are
 *              possible everywhere and not repeated below.
 *   Since      The number at the end of a comment is the version that first had the function.
 */
#ifndef MEP_H
#define MEP_H

#include <stddef.h>
#include <stdint.h>

#define MEP_VERSION_MAJOR 0
#define MEP_VERSION_MINOR 4
#define MEP_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MEP_API __attribute__((visibility("default")))
#else
#define MEP_API
#endif

/* ------------------------------------------------------------------------------------------------
 * Results
 * --------------------------------------------------------------------------------------------- */

typedef int32_t mep_result_t;

enum {
  MEP_SUCCESS = 0,
  MEP_PARTIAL = 1,     /* done, without the contribution of a rank that left the view, by choice:
                          mep_ep_loss_t */
  MEP_IN_PROGRESS = 2, /* in records and lists of results: the operation goes on; no function
                          returns it */

  MEP_ERR_INVALID_ARGUMENT = -1, /* an argument is wrong; nothing was changed */
  MEP_ERR_UNSUPPORTED = -2,      /* right, but not built, not possible here, or not built yet */
  MEP_ERR_NO_MEMORY = -3,        /* memory, descriptors or another resource ran out */
  MEP_ERR_SYSTEM = -4,           /* a system call failed; the text has errno in words */
  MEP_ERR_INTERNAL = -5,         /* a bug of MEP; please report it with the text */
  MEP_ERR_TIMEOUT = -6,          /* the time given was over; all members get it for a collective */
  MEP_ERR_PEER_FAILED = -7,      /* a member failed; the comm goes on without it */
  MEP_ERR_PEER_LEFT = -8,  /* a member left by mep_comm_destroy; the comm goes on without it */
  MEP_ERR_NO_QUORUM = -9,  /* this side of a split is too small to decide; it may rejoin */
  MEP_ERR_EVICTED = -10,   /* the others went on without this rank; it may rejoin */
  MEP_ERR_BUSY = -11,      /* something that belongs to it is left: finish or destroy that first */
  MEP_ERR_FORKED = -12,    /* the handle belongs to the parent process */
  MEP_ERR_MISMATCH = -13,  /* members called different things, or with different arguments */
  MEP_ERR_BOOTSTRAP = -14, /* the ranks could not find each other; the text names who and why */
  MEP_ERR_DENIED = -15,    /* a stranger: wrong user id or wrong secret */
  MEP_ERR_REVOKED = -16,   /* a member revoked the communicator */
  MEP_ERR_ABORTED = -17,   /* mep_comm_abort was called on the communicator */
  MEP_ERR_VERSION = -18,   /* members run library versions that cannot talk to each other */
  MEP_ERR_CAPACITY = -19,  /* a buffer of the caller is too small; the text says how large */
  MEP_ERR_NOT_FOUND = -20, /* nothing has that name */
  MEP_ERR_DEVICE = -21,    /* a GPU or NIC reported an error */
  MEP_ERR_THREAD = -22     /* another thread is inside a call on it; nothing was changed */
};

/* The constant's name, e.g. "MEP_ERR_TIMEOUT"; "unknown result" for other values. Never NULL. 0.1
 */
MEP_API const char* mep_result_string(mep_result_t result);

/* Detail text of the calling thread's last failed call, in English, for people; "" if none failed.
 * Valid until the thread's next failing call. 0.1 */
MEP_API const char* mep_last_error(void);

/* MEP_VERSION_MAJOR * 10000 + MEP_VERSION_MINOR * 100 + MEP_VERSION_PATCH of the library. 0.1 */
MEP_API uint32_t mep_version(void);

/* Sets struct_size, the first field, to `size` and all bytes behind it to 0: what
 * mep_X_defaults(&x) calls for each struct, and what a binding calls. Local; any thread. 0.3 */
MEP_API void mep_struct_init(void* x, size_t size);

/* A timeout in ms that stands for the operation's own timeout. */
#define MEP_TIMEOUT_DEFAULT 0xffffffffu

/* ------------------------------------------------------------------------------------------------
 * Types and reduction operators
 * --------------------------------------------------------------------------------------------- */

typedef uint32_t mep_dtype_t;

enum {
  MEP_INT8 = 1,
  MEP_UINT8 = 2,
  MEP_INT16 = 3,
  MEP_UINT16 = 4,
  MEP_INT32 = 5,
  MEP_UINT32 = 6,
  MEP_INT64 = 7,
  MEP_UINT64 = 8,
  MEP_FLOAT16 = 9,
  MEP_BFLOAT16 = 10,
  MEP_FLOAT32 = 11,
  MEP_FLOAT64 = 12,
  MEP_BOOL = 13,        /* one byte, 0 or 1 */
  MEP_FLOAT8_E4M3 = 14, /* OCP 8-bit floating point, "fn": no infinity, NaN = 0x7f, max 448 */
  MEP_FLOAT8_E5M2 = 15  /* OCP 8-bit floating point with infinities, max 57344 */
};

typedef uint32_t mep_op_t;

/* sum, prod, min, max: all numeric types. avg: floating types; divides by the number of
 * contributors. and, or, xor: integers and bool (bitwise; on bool logical). Other pairs:
 * MEP_ERR_UNSUPPORTED. Integers wrap. 16-bit and 8-bit floats are accumulated in float32 and
 * rounded once. NaN propagates through min and max. Contributions are combined in rank order, so
 * every rank and every run gives the same bits. */
enum {
  MEP_SUM = 1,
  MEP_PROD = 2,
  MEP_MIN = 3,
  MEP_MAX = 4,
  MEP_AVG = 5,
  MEP_AND = 6,
  MEP_OR = 7,
  MEP_XOR = 8
};

/* Bytes of one element; 0 for a value that is no type. 0.1 */
MEP_API size_t mep_dtype_size(mep_dtype_t dtype);

/* ------------------------------------------------------------------------------------------------
 * Communicators
 * --------------------------------------------------------------------------------------------- */

typedef struct mep_comm* mep_comm_t;
typedef struct mep_request* mep_request_t;
typedef struct mep_ep* mep_ep_t;
typedef struct mep_ep_handle* mep_ep_handle_t;
typedef struct mep_memory* mep_memory_t;

/* A cudaStream_t, or NULL. On a host communicator it must be NULL. */
typedef void* mep_stream_t;

/* Bits of mep_comm_config_t.flags. */
enum {
  MEP_COMM_SET_RANK = 1u << 0, /* rank is given; 0 is a rank, and size may come from elsewhere */
  MEP_COMM_AUTO_RECOVER = 1u << 1, /* admit ready joiners at a barrier on the world */
  /* A thread of the library carries nonblocking operations on while the program does something
   * else; or MEP_PROGRESS_THREAD=1. Each rank's own choice. */
  MEP_COMM_PROGRESS_THREAD = 1u << 2
};

/* Where a communicator's buffers are. CUDA_BY_RANK chooses the GPU of number n modulo the number of
 * GPUs that the process sees; n is the rank with mep_comm_init_all, else MEP_LOCAL_RANK, what the
 * launcher says, or the rank. Other values: MEP_ERR_UNSUPPORTED. 0.4 */
typedef uint32_t mep_device_type_t;
enum { MEP_DEVICE_HOST = 0, MEP_DEVICE_CUDA = 1, MEP_DEVICE_CUDA_BY_RANK = 2 };

typedef uint32_t mep_quorum_t;
enum { MEP_QUORUM_MAJORITY = 0, MEP_QUORUM_WITNESS = 1 };

/* Limits. */
enum {
  MEP_MAX_RANKS = 4096,   /* of a world */
  MEP_MAX_NAME_BYTES = 63 /* of a communicator's name */
};

/* A key-value store of the caller, for start-up only. Both functions may be called from the thread
 * that calls mep_comm_init, never later. They return 0, or any other value for failure.
 * get waits until the key exists, at most timeout_ms, and stores at most capacity bytes.
 * A store serves any number of starts of a job, one after another: by the same processes or others,
 * with other ranks and sizes. */
typedef struct mep_store_t {
  uint32_t struct_size;
  uint32_t flags; /* must be 0 */
  void* user;
  int (*put)(void* user, const char* key, const void* value, size_t bytes);
  int (*get)(void* user, const char* key, void* value, size_t capacity, size_t* bytes,
             uint32_t timeout_ms);
} mep_store_t;
static inline void mep_store_defaults(mep_store_t* store) {
  mep_struct_init(store, sizeof *store);
}

typedef struct mep_comm_config_t {
  uint32_t struct_size;
  uint32_t flags;   /* MEP_COMM_* */
  int32_t rank;     /* with MEP_COMM_SET_RANK; else MEP_RANK, Open MPI, PMIx, Slurm */
  int32_t size;     /* number of ranks; 0: from the environment, else 1 */
  int32_t max_size; /* up to how many ranks mep_comm_grow may go; 0: size */
  mep_device_type_t device_type;
  int32_t device;           /* CUDA's number, with MEP_DEVICE_CUDA; else 0 */
  uint32_t timeout_ms;      /* of every operation; 0: MEP_TIMEOUT_MS, else 30000 */
  uint32_t init_timeout_ms; /* of start-up; 0: MEP_INIT_TIMEOUT_MS, else 60000 */
  uint32_t num_sms; /* GPUs: blocks of a kernel at most, the least of all ranks; 0: MEP_NUM_SMS,
                       else no limit. A group of messages has 16 all the same; ignored on hosts and
                       by the copies of collectives that go over queues. 0.3 */
  const char* job;  /* the name that the ranks of one job share; NULL: MEP_JOB, launcher */
  const char* rendezvous; /* "HOST:PORT[,..]" or a directory; NULL: MEP_RENDEZVOUS, else one host */
  const char* transports; /* preference, e.g. "shm,tcp"; NULL: MEP_TRANSPORTS, else all usable */
  const char* secret_file;  /* job secret across hosts; NULL: MEP_SECRET_FILE */
  const mep_store_t* store; /* start-up through the caller's key-value store; NULL: none */
  mep_quorum_t quorum;      /* which side may go on after a split */
  uint32_t heartbeat_ms;    /* interval of the sign of life; 0: MEP_HEARTBEAT_MS, else 100 */
  uint32_t suspect_ms; /* silence after which a member is suspected; 0: MEP_SUSPECT_MS, else 5000 */
  uint32_t reserved;
} mep_comm_config_t;
static inline void mep_comm_config_defaults(mep_comm_config_t* config) {
  mep_struct_init(config, sizeof *config);
}

/* Joins the job's world and returns a communicator of all its ranks. config NULL: all defaults, so
 * a program started by `mpirun` or `mep_run` needs nothing, and one started alone is a world of
 * one. Collective: every rank calls it. Blocks until all ranks are connected, at most
 * init_timeout_ms. Any thread. Errors: MEP_ERR_BOOTSTRAP (a rank is missing, has a wrong size or a
 * number twice, or ended during the start; the text names it), MEP_ERR_DENIED, MEP_ERR_VERSION,
 * MEP_ERR_TIMEOUT, MEP_ERR_NO_MEMORY, MEP_ERR_SYSTEM, MEP_ERR_UNSUPPORTED; after an error *comm is
 * NULL and nothing is left behind. 0.1 */
MEP_API mep_result_t mep_comm_init(const mep_comm_config_t* config, mep_comm_t* comm);

/* Makes a world of `count` ranks inside this process; comms[i] is rank i, to be used by one thread
 * each. One thread calls it. config: as above; rank, size, job, rendezvous and store are not used.
 * For tests and for ranks that are threads. config.device is the GPU of all ranks; with
 * MEP_DEVICE_CUDA_BY_RANK each has its own. Errors as mep_comm_init. 0.1 */
MEP_API mep_result_t mep_comm_init_all(int32_t count, const mep_comm_config_t* config,
                                       mep_comm_t* comms);

/* Leaves in order: waits until no member needs anything from this rank (bounded by timeout_ms),
 * tells the others, frees everything. Not collective; any order and speed is fine. Members that
 * still call operations which need this rank get MEP_ERR_PEER_LEFT once and go on without it. All
 * EP objects and requests of the comm must be destroyed or finished before, its operations on
 * streams must have ended, and for a world all comms made from it (mep_comm_split, mep_comm_grow,
 * mep_comm_attach, also from those) must be destroyed and its mep_mem_alloc memory freed: else
 * MEP_ERR_BUSY and the comm stays. NULL is accepted. A comm from mep_comm_split frees only itself,
 * once the others hold what succeeded on it here, in any order with its siblings and parents but
 * the world. 0.1 */
MEP_API mep_result_t mep_comm_destroy(mep_comm_t comm);

/* This process's rank in comm: constant, no error but a NULL pointer. 0.1 */
MEP_API mep_result_t mep_comm_rank(mep_comm_t comm, int32_t* rank);
/* All ranks of the comm, absent ones too: what buffers are indexed by. 0.1 */
MEP_API mep_result_t mep_comm_size(mep_comm_t comm, int32_t* size);
/* Ranks in the present view. 0.3 */
MEP_API mep_result_t mep_comm_live_count(mep_comm_t comm, int32_t* live);
/* The comm's epoch: 1 at first; grows whenever members leave or come. 0.1 */
MEP_API mep_result_t mep_comm_epoch(mep_comm_t comm, uint64_t* epoch);
/* MEP_DEVICE_CUDA and CUDA's number of the comm's GPU, or MEP_DEVICE_HOST and 0. Either may be
 * NULL. Streams and device memory that are given to its calls belong to that GPU. 0.4 */
MEP_API mep_result_t mep_comm_device(mep_comm_t comm, mep_device_type_t* type, int32_t* device);
/* Changes the timeout of later operations on this comm, ms; 0 is refused. Local. 0.1 */
MEP_API mep_result_t mep_comm_set_timeout(mep_comm_t comm, uint32_t timeout_ms);

/* How this rank reaches another one's memory. */
typedef uint32_t mep_reach_t;
enum {
  MEP_REACH_NONE = 0,    /* the rank is absent */
  MEP_REACH_SELF = 1,    /* it is this rank */
  MEP_REACH_MAPPED = 2,  /* this rank writes it in place; on a GPU communicator its GPU's memory */
  MEP_REACH_HOST = 3,    /* GPUs: through pinned memory of the host that both map */
  MEP_REACH_QUEUES = 4,  /* GPUs: they post to queues, which threads of the host execute */
  MEP_REACH_NETWORK = 5, /* by puts of its transport, also on one host ("put only") */
  MEP_REACH_ADAPTER = 6  /* GPUs: as QUEUES; adapters execute dispatch and combine. 0.4 */
};

/* The values in force on a comm. */
typedef struct mep_comm_info_t {
  uint32_t struct_size;
  uint32_t flags;                /* out: MEP_COMM_* in force, without SET bits */
  int32_t rank;                  /* out: as mep_comm_rank */
  int32_t size;                  /* out: as mep_comm_size */
  int32_t live;                  /* out: as mep_comm_live_count */
  int32_t max_size;              /* out: of the world */
  mep_device_type_t device_type; /* out: as mep_comm_device */
  int32_t device;                /* out: as mep_comm_device */
  mep_quorum_t quorum;           /* out */
  uint32_t timeout_ms;           /* out: of this comm */
  uint32_t heartbeat_ms;         /* out */
  uint32_t suspect_ms;           /* out */
  uint64_t message_eager_bytes;  /* out: a message of up to that many needs no receiver */
  uint32_t max_group_messages;   /* out: GPUs: of one group; hosts: 0, no limit */
  uint32_t num_sms;  /* out: GPUs: blocks of a collective kernel at most; 0 on hosts and queues */
  uint32_t capacity; /* in: entries at reach and transports, one a comm rank */
  uint32_t reserved;
  mep_reach_t* reach; /* in: array, or NULL; out: how each rank is reached */
  /* in: array, or NULL; out: names for people, "self", "inproc", "shm", ..; with " (put only)"
   * where the rank's memory is not mapped. With a GPU: of its host. Valid for the life of the comm.
   * 0.4 */
  const char** transports;
} mep_comm_info_t;
static inline void mep_comm_info_defaults(mep_comm_info_t* info) {
  mep_struct_init(info, sizeof *info);
}

/* Fills info: effective values, after defaults and environment. Local; any thread; does not block.
 * Error: MEP_ERR_CAPACITY (an array is too short; the rest is filled). 0.3 */
MEP_API mep_result_t mep_comm_query(mep_comm_t comm, mep_comm_info_t* info);

/* Memory of the library, zeroed: on a GPU communicator memory of its GPU, else of the host. flags
 * must be 0. alignment: 0, or a power of two up to 4096; memory is page-aligned anyway. Blocks
 * briefly. Free it before the world, by a communicator like the one that it was made with. Any
 * thread. Memory of a GPU is for kernels and copies of that GPU: make it the thread's device before
 * cudaMemcpy. Errors: MEP_ERR_NO_MEMORY, MEP_ERR_SYSTEM, MEP_ERR_DEVICE; mep_mem_free of another
 * address: MEP_ERR_INVALID_ARGUMENT. NULL may be freed. 0.1, of GPUs 0.3, flags and alignment 0.4
 */
MEP_API mep_result_t mep_mem_alloc(mep_comm_t comm, size_t bytes, uint32_t flags, size_t alignment,
                                   void** memory);
MEP_API mep_result_t mep_mem_free(mep_comm_t comm, void* memory);

/* Memory that mep_comm_register has registered; 0: none. 0.4 */
typedef uint64_t mep_registration_t;

/* Registers `bytes` bytes of GPU memory from `memory` on: peers may then read an operation's send
 * buffer in it where it lies, and never write it. Bits and errors of the operation are the same;
 * docs/guide/gpus.md says which operations gain. Collective: every rank calls it, with the same
 * bytes, in one order with the communicator's operations, while its streams are idle; blocks until
 * all have mapped it, at most timeout_ms. Does nothing on hosts and where GPUs do not map each
 * other: *registration is 0. A view that admits a rank ends all registrations; so do
 * mep_comm_deregister, collective in the same way, and the end of the communicator; memory that is
 * freed before lives until then. Errors: MEP_ERR_UNSUPPORTED (the memory is not within one piece of
 * mep_mem_alloc on this GPU, or another rank cannot map its peers'), MEP_ERR_MISMATCH (ranks gave
 * other sizes, one gave memory that cannot be registered, or they deregister different memory),
 * MEP_ERR_INVALID_ARGUMENT (no such registration), MEP_ERR_BUSY (operations run), MEP_ERR_CAPACITY
 * (32 at a time), MEP_ERR_NO_MEMORY, MEP_ERR_DEVICE, those of mep_allreduce; after an error nothing
 * has changed on any rank. 0.3; bytes and registration 0.4 */
MEP_API mep_result_t mep_comm_register(mep_comm_t comm, const void* memory, size_t bytes,
                                       mep_registration_t* registration);
MEP_API mep_result_t mep_comm_deregister(mep_comm_t comm, mep_registration_t registration);

/* For bindings that cannot say when the last pointer goes. mep_mem_free_keep and
 * mep_ep_destroy_keep do what mep_mem_free and mep_ep_destroy do, with their errors, but the
 * memory, and all that mep_ep_buffer_view gave, stays for this process to read and write until
 * mep_memory_release, also beyond the end of the world. *kept is NULL after an error, and after
 * mep_ep_destroy_keep on a communicator with a GPU: device memory is not kept. mep_memory_release:
 * local; any thread; NULL is accepted. 0.2 */
MEP_API mep_result_t mep_mem_free_keep(mep_comm_t comm, void* memory, mep_memory_t* kept);
MEP_API mep_result_t mep_ep_destroy_keep(mep_ep_t ep, mep_memory_t* kept);
MEP_API mep_result_t mep_memory_release(mep_memory_t kept);

/* ------------------------------------------------------------------------------------------------
 * How an operation ended
 * --------------------------------------------------------------------------------------------- */

enum {
  MEP_OP_INPUT_INTACT = 1u << 0
}; /* mep_op_info_t.flags: the input buffer has its old bytes */

/* Bitmaps have one bit a comm rank, bit r % 64 of word r / 64. The caller gives their capacity in
 * 64-bit words (or NULL); words beyond the comm's size are zeroed. */
typedef struct mep_op_info_t {
  uint32_t struct_size;
  uint32_t flags; /* out: MEP_OP_* */
  uint64_t epoch; /* out: epoch in which it ended */
  /* out: number of the operation on its channel, from 1. MEP's own count too: on the world's comm
   * mep_comm_init makes the first, so the program's begin with 2; mep_comm_split and others make
   * some */
  uint64_t seq;
  mep_result_t result;         /* out */
  uint32_t contributors_words; /* in */
  uint64_t* contributors;      /* in: array; out: ranks whose contribution is in the result */
  /* in: array; out: ranks that were missing. After an error of the membership they are the same on
   * all ranks: those that went, or, after MEP_ERR_TIMEOUT, had not called the operation when its
   * time was over */
  uint64_t* failed;
  uint32_t failed_words; /* in */
  uint32_t reserved;
} mep_op_info_t;
static inline void mep_op_info_defaults(mep_op_info_t* info) {
  mep_struct_init(info, sizeof *info);
}

/* About the last operation that this rank finished on comm, in whichever call, or on the progress
 * thread (MEP_COMM_PROGRESS_THREAD): after a blocking one it is that. One that only reported a
 * change of the membership is given with its number too, and `failed` has the ranks that went.
 * Errors: MEP_ERR_NOT_FOUND (there was none), MEP_ERR_CAPACITY (a bitmap is too short; the rest is
 * filled), MEP_ERR_THREAD. Does not block. 0.1 */
MEP_API mep_result_t mep_comm_last_op(mep_comm_t comm, mep_op_info_t* info);

/* The statement of a dispatch or combine about itself when it ends, in memory of the caller. On a
 * stream this is pinned or device memory, and the GPU writes it. The caller gives where it lies, on
 * 8 bytes, and how many bytes are there: as many as mep_op_status_size() says, more, or fewer down
 * to this header. Behind it lies the bitmap of failed ranks, see mep_op_status_failed(): as many
 * words as the comm's size needs, or as fit. Nothing is read, and nothing is written behind the
 * bitmap. */
typedef struct mep_op_status_t {
  uint32_t version;      /* MEP_OP_STATUS_VERSION */
  uint32_t failed_words; /* 64-bit words of the bitmap */
  mep_result_t result;
  uint32_t failed_count; /* ranks that were missing: all, also those without a bit */
  uint64_t epoch;
  uint64_t seq;
  uint32_t bad_entries; /* routing entries that were treated as -1 */
  uint32_t reserved;    /* 0 */
} mep_op_status_t;

enum { MEP_OP_STATUS_VERSION = 2 };

/* Bytes of a record that has room for `ranks` ranks, the comm's size. 0.2 */
static inline size_t mep_op_status_size(int32_t ranks) {
  return sizeof(mep_op_status_t) + ((size_t)ranks + 63) / 64 * sizeof(uint64_t);
}
/* Its bitmap, failed_words words. 0.2 */
static inline const uint64_t* mep_op_status_failed(const mep_op_status_t* status) {
  return (const uint64_t*)(status + 1);
}

/* First failure of the comm's stream operations since the last call, MEP_SUCCESS if none. Does not
 * block. MEP_ERR_UNSUPPORTED on a host communicator. 0.1 */
MEP_API mep_result_t mep_comm_async_result(mep_comm_t comm);

/* ------------------------------------------------------------------------------------------------
 * Counters
 * --------------------------------------------------------------------------------------------- */

/* Counts of this rank on one communicator since it was made; none goes back. Each collective, send,
 * receive, dispatch and combine of the program counts once, in whichever form: blocking when it
 * begins, nonblocking or in a group when it is started, on a stream when it is enqueued, in a graph
 * when it is captured. The library's own calls (in mep_comm_split, mep_comm_agree, mep_ep_create)
 * do not count, and neither does a call that finds another thread inside. Bytes count when the call
 * has ended without an error, of a nonblocking one when its request is freed, and are payload in
 * the caller's types: no headers, scales, routing or padding. */
typedef struct mep_comm_stats_t {
  uint32_t struct_size;
  uint32_t flags;       /* out: 0 */
  uint64_t collectives; /* out: calls, like the next four */
  uint64_t sends;       /* out: mep_sendrecv is one send and one receive */
  uint64_t receives;    /* out: a receive that is cancelled later counts too */
  uint64_t dispatches;  /* out: calls that send; one that only receives belongs to one of these */
  uint64_t combines;    /* out: calls that send, as of dispatches */
  uint64_t collective_bytes; /* out: what this rank's sendbuf gives: 0 on ranks that give nothing */
  uint64_t send_bytes;       /* out */
  uint64_t receive_bytes;    /* out: of the messages, not of the buffers */
  uint64_t dispatch_bytes;   /* out: num_tokens * hidden elements of the input type */
  uint64_t combine_bytes;    /* out: tokens of the dispatch * hidden elements of the combine type */
  uint64_t partial_results;  /* out: calls that ended with MEP_PARTIAL */
  uint64_t errors_peer_failed; /* out: calls that ended with MEP_ERR_PEER_FAILED */
  uint64_t errors_peer_left;   /* out: with MEP_ERR_PEER_LEFT */
  uint64_t errors_timeout;     /* out: with MEP_ERR_TIMEOUT */
  uint64_t errors_mismatch;    /* out: with MEP_ERR_MISMATCH */
  uint64_t errors_other;       /* out: with another error; most refused arguments among them */
  uint64_t view_changes;       /* out: changes of the comm's epoch that this rank has seen */
  uint64_t ranks_lost;     /* out: members that went by them; a replaced one is lost and admitted */
  uint64_t ranks_admitted; /* out: members that came by them */
} mep_comm_stats_t;
static inline void mep_comm_stats_defaults(mep_comm_stats_t* stats) {
  mep_struct_init(stats, sizeof *stats);
}

/* Reads the counters of comm. Each is exact; while other threads call they need not belong to one
 * moment. On a communicator with a GPU errors are those of the calls; mep_comm_async_result returns
 * how operations ended on streams. Local, any thread, also while another thread is inside a call on
 * comm; does not block. 0.2 */
MEP_API mep_result_t mep_comm_stats(mep_comm_t comm, mep_comm_stats_t* stats);

/* ------------------------------------------------------------------------------------------------
 * Collectives
 *
 * Every live rank of the comm calls the same ones in the same order with matching count, type,
 * operator and root: else MEP_ERR_MISMATCH (on the root of a small broadcast or scatter, which
 * waits for nobody, by its next operation that waits for all). count 0 is allowed. Each says what
 * "in place" means for it, and MEP_IN_PLACE stands for the address that it says; other overlaps are
 * refused. A buffer that is read or written on root only may be NULL elsewhere.
 * On host communicators stream is NULL and they block. With a GPU (config.device_type) they are
 * enqueued on stream and return; buffers are device, managed or pinned memory and belong to the
 * operation until the stream has run it; graphs capture them, and run after a change of the
 * membership too; mep_comm_async_result returns how operations ended, also MEP_ERR_MISMATCH. Stream
 * and device memory are of the comm's GPU. Several ranks of a process on one GPU need a stream
 * each, not the NULL stream: MEP_ERR_INVALID_ARGUMENT.
 * Errors of all: MEP_ERR_PEER_FAILED, MEP_ERR_PEER_LEFT, MEP_ERR_TIMEOUT, MEP_ERR_MISMATCH,
 * MEP_ERR_NO_QUORUM, MEP_ERR_EVICTED, MEP_ERR_REVOKED, MEP_ERR_ABORTED, MEP_ERR_NO_MEMORY (refused
 * before anything was sent, or in the midst of it: then this rank's part of the world has ended),
 * MEP_ERR_THREAD (another thread is inside a call on this comm). After an error the receive buffer
 * is undefined; mep_comm_last_op says whether the input is intact.
 * These are replicated operations: one succeeds on all ranks or on none. (Dispatch, combine and
 * messages are personal: what one rank gets nobody else has.)
 *
 * Which calls report a failure. The calls of a communicator are counted on every rank, from 1; a
 * call refused for its arguments does not count. A loss, a timeout or a revoke has one range of
 * these numbers, the same on all ranks: calls before it succeed, calls in it return what happened,
 * calls after it belong to the next epoch. So ranks that make the same calls get the same results
 * in the same order. The next collective on the comm gives the report that mep_comm_agree,
 * mep_comm_shrink, mep_recover_ranks and mep_comm_grow skip. A change that only adds members is not
 * reported. While the root of an operation is not in the view, it fails on all ranks at once, each
 * time. docs/guide/failures.md has more.
 * --------------------------------------------------------------------------------------------- */

/* In place of sendbuf, for scatter and reduce_scatter of recvbuf: the address in the other buffer
 * at which the operation is in place on this rank. 0.3 */
#define MEP_IN_PLACE ((void*)(intptr_t)-1)

/* Returns after every live rank has entered. 0.1 */
MEP_API mep_result_t mep_barrier(mep_comm_t comm, mep_stream_t stream);

/* recvbuf[count] on every rank = sendbuf[count] of root. sendbuf is read on root only, where
 * recvbuf may equal it. A dead root is MEP_ERR_PEER_FAILED on all. 0.1 */
MEP_API mep_result_t mep_broadcast(const void* sendbuf, void* recvbuf, size_t count,
                                   mep_dtype_t dtype, int32_t root, mep_comm_t comm,
                                   mep_stream_t stream);

/* recvbuf[size][count]: block r = sendbuf[count] of rank r; blocks of absent ranks stay untouched.
 * In place: sendbuf == recvbuf + rank * count elements. 0.1 */
MEP_API mep_result_t mep_allgather(const void* sendbuf, void* recvbuf, size_t count,
                                   mep_dtype_t dtype, mep_comm_t comm, mep_stream_t stream);

/* recvbuf[count] = op over the live ranks' sendbuf[count], element by element, in rank order.
 * In place: sendbuf == recvbuf. 0.1 */
MEP_API mep_result_t mep_allreduce(const void* sendbuf, void* recvbuf, size_t count,
                                   mep_dtype_t dtype, mep_op_t op, mep_comm_t comm,
                                   mep_stream_t stream);

/* recvbuf[count] of root = op over the live ranks' sendbuf[count], as of mep_allreduce. recvbuf is
 * written on root only, where sendbuf may equal it. A dead root is MEP_ERR_PEER_FAILED on all. 0.1
 */
MEP_API mep_result_t mep_reduce(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                                mep_op_t op, int32_t root, mep_comm_t comm, mep_stream_t stream);

/* recvbuf[size][count] of root: block r = sendbuf[count] of rank r; blocks of absent ranks stay
 * untouched. recvbuf is written on root only; in place there: sendbuf == recvbuf + root * count
 * elements. A dead root is MEP_ERR_PEER_FAILED on all. 0.1 */
MEP_API mep_result_t mep_gather(const void* sendbuf, void* recvbuf, size_t count, mep_dtype_t dtype,
                                int32_t root, mep_comm_t comm, mep_stream_t stream);

/* recvbuf[count] of rank r = block r of root's sendbuf[size][count]; blocks for absent ranks go to
 * nobody. sendbuf is read on root only; in place there: recvbuf == sendbuf + root * count elements.
 * A dead root is MEP_ERR_PEER_FAILED on all. 0.1 */
MEP_API mep_result_t mep_scatter(const void* sendbuf, void* recvbuf, size_t count,
                                 mep_dtype_t dtype, int32_t root, mep_comm_t comm,
                                 mep_stream_t stream);

/* recvbuf[count] of rank r = op over the live ranks' block r of sendbuf[size][count], as of
 * mep_allreduce; the reductions of absent ranks' blocks go to nobody. In place: recvbuf == sendbuf
 * + rank * count elements. 0.1 */
MEP_API mep_result_t mep_reduce_scatter(const void* sendbuf, void* recvbuf, size_t count,
                                        mep_dtype_t dtype, mep_op_t op, mep_comm_t comm,
                                        mep_stream_t stream);

/* recvbuf[size][count] of rank r: block s = block r of sendbuf[size][count] of rank s; blocks of
 * absent ranks stay untouched. There is no in-place form. 0.1 */
MEP_API mep_result_t mep_alltoall(const void* sendbuf, void* recvbuf, size_t count,
                                  mep_dtype_t dtype, mep_comm_t comm, mep_stream_t stream);

/* Forms with counts: a block has a length of its own. counts[size] and displs[size] are for the
 * buffer that has a block for each rank, in elements, indexed by comm rank: block r is the
 * counts[r] elements from displs[r] on. displs NULL: one block right behind the other, those of
 * absent ranks too. Otherwise blocks lie in any order, and gaps stay untouched; where blocks to be
 * received overlap the result is undefined. Both arrays are read during the call only, on the host;
 * a graph keeps those of the call. The block that a rank gives another must be as long as the other
 * expects, between any two live ranks: else MEP_ERR_MISMATCH on all. Ranks wait for each other, the
 * roots too. From the first element that is used to the last, sendbuf and recvbuf do not overlap
 * but in place. Further errors: MEP_ERR_NO_MEMORY; MEP_ERR_INVALID_ARGUMENT for counts whose sum is
 * no size in memory. */

/* Like mep_allgather: block r of recvbuf = sendbuf[counts[r]] of rank r. In place: sendbuf ==
 * recvbuf + displs[rank] elements. 0.2 */
MEP_API mep_result_t mep_allgatherv(const void* sendbuf, void* recvbuf, const uint64_t* counts,
                                    const uint64_t* displs, mep_dtype_t dtype, mep_comm_t comm,
                                    mep_stream_t stream);

/* Like mep_gather: block r of root's recvbuf = sendbuf[count] of rank r. counts and displs are read
 * on root only, where counts[r] must be the count of rank r. In place there: sendbuf == recvbuf +
 * displs[root] elements. 0.2 */
MEP_API mep_result_t mep_gatherv(const void* sendbuf, void* recvbuf, size_t count,
                                 const uint64_t* counts, const uint64_t* displs, mep_dtype_t dtype,
                                 int32_t root, mep_comm_t comm, mep_stream_t stream);

/* Like mep_scatter: recvbuf[count] of rank r = block r of root's sendbuf. counts and displs are
 * read on root only, where counts[r] must be the count of rank r. In place there: recvbuf ==
 * sendbuf + displs[root] elements. 0.2 */
MEP_API mep_result_t mep_scatterv(const void* sendbuf, void* recvbuf, size_t count,
                                  const uint64_t* counts, const uint64_t* displs, mep_dtype_t dtype,
                                  int32_t root, mep_comm_t comm, mep_stream_t stream);

/* Like mep_reduce_scatter: recvbuf[counts[r]] of rank r = op over the live ranks' block r of
 * sendbuf. In place: recvbuf == sendbuf + displs[rank] elements. 0.2 */
MEP_API mep_result_t mep_reduce_scatterv(const void* sendbuf, void* recvbuf, const uint64_t* counts,
                                         const uint64_t* displs, mep_dtype_t dtype, mep_op_t op,
                                         mep_comm_t comm, mep_stream_t stream);

/* Like mep_alltoall: block s of rank r's recvbuf = block r of sendbuf of rank s. recvcounts[s] of
 * rank r must be sendcounts[r] of rank s. There is no in-place form. 0.2 */
MEP_API mep_result_t mep_alltoallv(const void* sendbuf, void* recvbuf, const uint64_t* sendcounts,
                                   const uint64_t* senddispls, const uint64_t* recvcounts,
                                   const uint64_t* recvdispls, mep_dtype_t dtype, mep_comm_t comm,
                                   mep_stream_t stream);

/* Nonblocking forms: return at once with a request. Operations of one comm run in the order of
 * their calls. Buffers belong to the operation until the request is done. A wait or a test that
 * says done finishes the request and frees it. Progress is made inside calls that wait for an
 * operation, or test one: on its comm as far as that operation, and on the other comms of the world
 * that no other thread is inside of. Calls that begin an operation make it on their comm. EP calls,
 * and calls that only ask or set something make none. With MEP_COMM_PROGRESS_THREAD progress needs
 * no call: whatever is pending goes on, also to its timeout and through changes of the membership;
 * a call may wait for that thread, for as long as a step takes. With a GPU they are enqueued on
 * stream as the blocking forms are, and the request is done when the operation has ended on the
 * GPU. Its result and failed ranks are that operation's, which mep_comm_async_result returns too;
 * contributors and MEP_OP_INPUT_INTACT are not given. MEP_TIMEOUT_DEFAULT waits as long as the
 * stream takes. Up to MEP_MAX_STREAM_REQUESTS of a comm at one time. In a graph:
 * MEP_ERR_UNSUPPORTED, capture the blocking form. Further error: MEP_ERR_NO_MEMORY. 0.1; with
 * counts 0.2; on GPUs 0.3 */
enum { MEP_MAX_STREAM_REQUESTS = 256 };

MEP_API mep_result_t mep_ibarrier(mep_comm_t comm, mep_stream_t stream, mep_request_t* request);
MEP_API mep_result_t mep_ibroadcast(const void* sendbuf, void* recvbuf, size_t count,
                                    mep_dtype_t dtype, int32_t root, mep_comm_t comm,
                                    mep_stream_t stream, mep_request_t* request);
MEP_API mep_result_t mep_iallgather(const void* sendbuf, void* recvbuf, size_t count,
                                    mep_dtype_t dtype, mep_comm_t comm, mep_stream_t stream,
                                    mep_request_t* request);
MEP_API mep_result_t mep_iallreduce(const void* sendbuf, void* recvbuf, size_t count,
                                    mep_dtype_t dtype, mep_op_t op, mep_comm_t comm,
                                    mep_stream_t stream, mep_request_t* request);
MEP_API mep_result_t mep_ireduce(const void* sendbuf, void* recvbuf, size_t count,
                                 mep_dtype_t dtype, mep_op_t op, int32_t root, mep_comm_t comm,
                                 mep_stream_t stream, mep_request_t* request);
MEP_API mep_result_t mep_igather(const void* sendbuf, void* recvbuf, size_t count,
                                 mep_dtype_t dtype, int32_t root, mep_comm_t comm,
                                 mep_stream_t stream, mep_request_t* request);
MEP_API mep_result_t mep_iscatter(const void* sendbuf, void* recvbuf, size_t count,
                                  mep_dtype_t dtype, int32_t root, mep_comm_t comm,
                                  mep_stream_t stream, mep_request_t* request);
MEP_API mep_result_t mep_ireduce_scatter(const void* sendbuf, void* recvbuf, size_t count,
                                         mep_dtype_t dtype, mep_op_t op, mep_comm_t comm,
                                         mep_stream_t stream, mep_request_t* request);
MEP_API mep_result_t mep_ialltoall(const void* sendbuf, void* recvbuf, size_t count,
                                   mep_dtype_t dtype, mep_comm_t comm, mep_stream_t stream,
                                   mep_request_t* request);
MEP_API mep_result_t mep_iallgatherv(const void* sendbuf, void* recvbuf, const uint64_t* counts,
                                     const uint64_t* displs, mep_dtype_t dtype, mep_comm_t comm,
                                     mep_stream_t stream, mep_request_t* request);
MEP_API mep_result_t mep_igatherv(const void* sendbuf, void* recvbuf, size_t count,
                                  const uint64_t* counts, const uint64_t* displs, mep_dtype_t dtype,
                                  int32_t root, mep_comm_t comm, mep_stream_t stream,
                                  mep_request_t* request);
MEP_API mep_result_t mep_iscatterv(const void* sendbuf, void* recvbuf, size_t count,
                                   const uint64_t* counts, const uint64_t* displs,
                                   mep_dtype_t dtype, int32_t root, mep_comm_t comm,
                                   mep_stream_t stream, mep_request_t* request);
MEP_API mep_result_t mep_ireduce_scatterv(const void* sendbuf, void* recvbuf,
                                          const uint64_t* counts, const uint64_t* displs,
                                          mep_dtype_t dtype, mep_op_t op, mep_comm_t comm,
                                          mep_stream_t stream, mep_request_t* request);
MEP_API mep_result_t mep_ialltoallv(const void* sendbuf, void* recvbuf, const uint64_t* sendcounts,
                                    const uint64_t* senddispls, const uint64_t* recvcounts,
                                    const uint64_t* recvdispls, mep_dtype_t dtype, mep_comm_t comm,
                                    mep_stream_t stream, mep_request_t* request);

/* Waits at most timeout_ms; MEP_TIMEOUT_DEFAULT: until the operation's own timeout. *done = 1:
 * returns the operation's result, frees the request and sets *request NULL. *done = 0: not done in
 * time; it goes on, with MEP_SUCCESS, or with MEP_ERR_THREAD if another thread is inside a call on
 * the comm. done may be NULL with MEP_TIMEOUT_DEFAULT. info (or NULL) is filled when done; a bitmap
 * of it that is too short for the comm is MEP_ERR_CAPACITY at once, and the operation goes on. 0.1;
 * done 0.4 */
MEP_API mep_result_t mep_request_wait(mep_request_t* request, uint32_t timeout_ms, int32_t* done,
                                      mep_op_info_t* info);

/* Never blocks. *done = 1: as mep_request_wait when done. *done = 0: it goes on, with MEP_SUCCESS,
 * or with MEP_ERR_THREAD if another thread is inside a call on the comm. 0.1 */
MEP_API mep_result_t mep_request_test(mep_request_t* request, int32_t* done, mep_op_info_t* info);

/* About a request that is not freed yet; info->result is MEP_IN_PROGRESS while it runs, and its own
 * once it has ended, in another call or on the progress thread. Error: MEP_ERR_THREAD (another
 * thread is inside a call on the comm; info is untouched). 0.1 */
MEP_API mep_result_t mep_request_info(mep_request_t request, mep_op_info_t* info);

/* A descriptor for poll/epoll/asyncio that is readable when a call of mep_request_test is worth
 * while; with MEP_COMM_PROGRESS_THREAD when that will say done, and not before. It belongs to the
 * library and lives as long as the request. Errors: MEP_ERR_NO_MEMORY, MEP_ERR_THREAD. 0.1 */
MEP_API mep_result_t mep_request_event_fd(mep_request_t request, int32_t* fd);

/* Withdraws a receive that no message has come for. *cancelled = 1: the request is freed and
 * *request NULL, and its buffer is as it was, unless the sender of a large message has withdrawn it
 * midway. *cancelled = 0: too late, with MEP_SUCCESS: a message is arriving in it or has come, and
 * the request goes on; so also after an error. Errors: MEP_ERR_UNSUPPORTED (it is no receive),
 * MEP_ERR_THREAD. Does not block. 0.2; cancelled 0.4 */
MEP_API mep_result_t mep_request_cancel(mep_request_t* request, int32_t* cancelled);

/* Waits for `count` requests, of any comms, at most timeout_ms; MEP_TIMEOUT_DEFAULT: until each
 * one's own timeout. *done: 1 if all are done, 0 if one goes on; done may be NULL with
 * MEP_TIMEOUT_DEFAULT. Those that are done are freed and set NULL. NULL requests count as done.
 * results[i] (or results NULL): the result of requests[i], MEP_IN_PROGRESS of one that goes on,
 * MEP_SUCCESS of a NULL one. Returns the first result that is an error, in their order, else
 * MEP_SUCCESS. A request that stands in the list twice: MEP_ERR_INVALID_ARGUMENT, and nothing has
 * happened. It makes progress on the comms of all of them. 0.2; done 0.4 */
MEP_API mep_result_t mep_request_waitall(int32_t count, mep_request_t* requests,
                                         uint32_t timeout_ms, int32_t* done, mep_result_t* results);

/* Waits until one of them is done. *done = 1: *index is its place; its result is returned, it is
 * freed and set NULL, and info (or NULL) is filled. NULL requests are left out; with none left
 * *done is 1, *index -1. None done in time: *done is 0, *index -1. Else as mep_request_waitall.
 * 0.2; done 0.4 */
MEP_API mep_result_t mep_request_waitany(int32_t count, mep_request_t* requests,
                                         uint32_t timeout_ms, int32_t* done, int32_t* index,
                                         mep_op_info_t* info);

/* ------------------------------------------------------------------------------------------------
 * Messages from one rank to another
 *
 * A message goes from one rank of a comm to one rank of it, itself too, and carries a tag, a number
 * from 0 up. A receive takes the first message that has come from its source with its tag, or waits
 * for one. Messages of one sender that fit the same receive are taken in the order in which they
 * were sent; those of different senders in any order. Messages and collectives do not wait for each
 * other.
 *
 * A send ends when its buffer is the caller's again. That says nothing about the receiver: a
 * message of up to message_eager_bytes (mep_comm_query) is put where the receiver finds it, as long
 * as there is room; a larger one is sent once its receiver has called, or over a network, up to 64
 * KB, at once too. So two ranks that both send first may wait for each other until their timeout:
 * mep_sendrecv, nonblocking calls or a group do not. Messages that nobody has received take memory
 * of their receiver.
 *
 * A receive whose buffer is too small for its message ends with MEP_ERR_CAPACITY, one of another
 * type with MEP_ERR_MISMATCH, which goes first; the message stays, and is the next receive's. count
 * may be larger than what comes: the rest of the buffer is untouched.
 *
 * These are personal operations: each ends by what has happened to it. A change of the membership
 * ends those with a rank that is gone, MEP_ERR_PEER_FAILED or MEP_ERR_PEER_LEFT, also those that
 * are called later, and no others. Messages that had come whole from it are still received, until
 * another takes its place. A receive from MEP_ANY_SOURCE goes on while any other rank lives; on a
 * comm of one rank it waits for that rank itself. Timeouts too are each call's own; a receive that
 * had taken a large message by then has lost it. mep_comm_revoke ends those that are pending with
 * MEP_ERR_REVOKED. None of these is a report of a change. mep_comm_last_op does not report
 * messages; mep_request_info and mep_request_wait do, with a number of their own.
 *
 * On a host communicator stream is NULL. With GPUs mep_send, mep_recv and mep_sendrecv are enqueued
 * on stream and return, graphs capture them, and mep_comm_async_result returns failures. There
 *   - messages of one rank to another are taken in the order in which they were sent. A receive
 *     names its source; its tag and type must be the message's, else MEP_ERR_MISMATCH, and its
 *     buffer must hold it, else MEP_ERR_CAPACITY. That message is lost, and the next receive goes
 *     on;
 *   - message is NULL. Not built: MEP_ANY_SOURCE, nonblocking forms and probes;
 *   - four messages of one rank to another, each of up to message_eager_bytes, need no receive; a
 *     longer one, and a fifth, wait. A group is one operation of at most max_group_messages
 *     (mep_comm_query) of a communicator, on one stream, and none waits for another but those of
 *     one rank, one way. Where GPUs post to queues all operations of a communicator run in the
 *     order of their calls, whatever streams they are enqueued on;
 *   - a send to a rank that is gone already fails at once; the rest of its group is enqueued, but
 *     not captured in a graph;
 *   - calls with one rank, one way, are in one order: on one stream, or on several that events
 *     order;
 *   - one that has waited longer than the timeout ends with MEP_ERR_TIMEOUT, and then all further
 *     ones with that rank that way do, on both ranks, but for GPUs that post to queues.
 *     mep_comm_revoke does not end those that wait on GPUs that map each other.
 * MEP_IN_PLACE is no buffer of a message: MEP_ERR_INVALID_ARGUMENT.
 * Errors of all: MEP_ERR_PEER_FAILED, MEP_ERR_PEER_LEFT, MEP_ERR_TIMEOUT, MEP_ERR_NO_QUORUM,
 * MEP_ERR_EVICTED, MEP_ERR_REVOKED, MEP_ERR_ABORTED, MEP_ERR_NO_MEMORY, MEP_ERR_THREAD (another
 * thread is inside a call on this comm).
 * --------------------------------------------------------------------------------------------- */

enum { MEP_ANY_SOURCE = -1, MEP_ANY_TAG = -1 };

/* message_eager_bytes of mep_comm_query on a host communicator of at most 16 ranks; less on larger
 * ones. */
enum { MEP_MESSAGE_EAGER_BYTES = 8144 };

/* A message's description. */
typedef struct mep_message_t {
  uint32_t struct_size;
  uint32_t flags;    /* out: 0 */
  int32_t source;    /* out: rank that sent it */
  int32_t tag;       /* out */
  uint64_t bytes;    /* out: its length */
  mep_dtype_t dtype; /* out: as it was sent */
  uint32_t reserved;
} mep_message_t;
static inline void mep_message_defaults(mep_message_t* message) {
  mep_struct_init(message, sizeof *message);
}

/* Sends buffer[count] to rank `dest`. Blocks until the buffer is the caller's again. 0.2; on GPUs
 * 0.2 */
MEP_API mep_result_t mep_send(const void* buffer, size_t count, mep_dtype_t dtype, int32_t dest,
                              int32_t tag, mep_comm_t comm, mep_stream_t stream);

/* Receives at most buffer[count] from `source` (or MEP_ANY_SOURCE) with `tag` (or MEP_ANY_TAG).
 * message (or NULL) is filled when a message was received, and with MEP_ERR_CAPACITY or
 * MEP_ERR_MISMATCH. Blocks. 0.2 */
MEP_API mep_result_t mep_recv(void* buffer, size_t count, mep_dtype_t dtype, int32_t source,
                              int32_t tag, mep_comm_t comm, mep_message_t* message,
                              mep_stream_t stream);

/* Sends and receives at one time; the buffers do not overlap. Blocks until both have ended; returns
 * the send's result if that is an error, else the receive's. 0.2 */
MEP_API mep_result_t mep_sendrecv(const void* sendbuf, size_t sendcount, int32_t dest,
                                  int32_t sendtag, void* recvbuf, size_t recvcount, int32_t source,
                                  int32_t recvtag, mep_dtype_t dtype, mep_comm_t comm,
                                  mep_message_t* message, mep_stream_t stream);

/* Nonblocking forms, as those of the collectives; but messages do not wait for what was called
 * before them. message (or NULL) belongs to the operation until the request is done. 0.2 */
MEP_API mep_result_t mep_isend(const void* buffer, size_t count, mep_dtype_t dtype, int32_t dest,
                               int32_t tag, mep_comm_t comm, mep_stream_t stream,
                               mep_request_t* request);
MEP_API mep_result_t mep_irecv(void* buffer, size_t count, mep_dtype_t dtype, int32_t source,
                               int32_t tag, mep_comm_t comm, mep_message_t* message,
                               mep_stream_t stream, mep_request_t* request);

/* Waits for a message that a receive with this source and tag would take now, and leaves it there.
 * Blocks, at most the comm's timeout; a revoke ends it with MEP_ERR_REVOKED. message as of
 * mep_recv. 0.2 */
MEP_API mep_result_t mep_probe(int32_t source, int32_t tag, mep_comm_t comm,
                               mep_message_t* message);
/* The same without waiting: *found is 1, or 0 if there is none now. 0.2 */
MEP_API mep_result_t mep_iprobe(int32_t source, int32_t tag, mep_comm_t comm, int32_t* found,
                                mep_message_t* message);

/* Between mep_group_begin and mep_group_end of a thread its calls of mep_send, mep_recv,
 * mep_sendrecv and the blocking collectives on host communicators only begin, on any comms, and
 * MEP_SUCCESS says no more than that; mep_group_end waits for all of them and returns the first
 * result that is an error, in the order of the calls, else MEP_SUCCESS. Their buffers, and message,
 * belong to them until then. Groups may be nested: the outermost end waits. Messages of
 * communicators with a GPU are enqueued by the outermost end; other calls on these are as outside
 * of a group. A comm of the group must not be destroyed before its end. A thread that ends inside a
 * group ends the group. A child made by fork() is in no group. Error of mep_group_begin:
 * MEP_ERR_NO_MEMORY. Errors of mep_group_end: MEP_ERR_INVALID_ARGUMENT (no begin), MEP_ERR_THREAD
 * (another thread is inside a call on a comm of it; end again). 0.2 */
MEP_API mep_result_t mep_group_begin(void);
MEP_API mep_result_t mep_group_end(void);

/* ------------------------------------------------------------------------------------------------
 * Membership
 * --------------------------------------------------------------------------------------------- */

typedef uint32_t mep_peer_state_t;
enum {
  MEP_PEER_ALIVE = 0,
  MEP_PEER_SLOW = 1,    /* alive, but late; it stays a member */
  MEP_PEER_SUSPECT = 2, /* evidence against it; not decided yet */
  MEP_PEER_DEAD = 3,    /* its process has ended; confirmed */
  MEP_PEER_LEFT = 4,    /* it called mep_comm_destroy */
  MEP_PEER_EXCLUDED = 5 /* the view went on without it although its death is not confirmed */
};

/* The state of a rank of comm, as this rank knows it now. Does not block. 0.1 */
MEP_API mep_result_t mep_comm_peer_state(mep_comm_t comm, int32_t rank, mep_peer_state_t* state);

/* The comm's members. Arrays of the caller hold `capacity` entries, one a comm rank, or are NULL.
 */
typedef struct mep_view_t {
  uint32_t struct_size;
  uint32_t flags;       /* out: 0 */
  uint64_t epoch;       /* out: of the comm */
  uint64_t world_epoch; /* out: of the world's view */
  int32_t size;         /* out */
  int32_t live;         /* out */
  uint32_t capacity;    /* in */
  uint32_t reserved;
  int32_t* slots;           /* in: array; out: rank -> slot of the world */
  uint64_t* incarnations;   /* in: array; out: 0 for an absent rank */
  mep_peer_state_t* states; /* in: array; out */
} mep_view_t;
static inline void mep_view_defaults(mep_view_t* view) {
  mep_struct_init(view, sizeof *view);
}

/* Errors: MEP_ERR_CAPACITY (arrays too short; scalars are filled). Does not block. 0.1 */
MEP_API mep_result_t mep_comm_view(mep_comm_t comm, mep_view_t* view);

/* lost: [size], of the comm's GPU or of the host where it has none; entry r becomes 1 if rank r has
 * gone from the comm and mep_comm_forget_lost has not made that forgotten, else 0. On a GPU both
 * calls enqueue a kernel and return, graphs capture them: after an operation of the same stream
 * that a loss ended, the loss shows. Local; neither blocks. Errors: MEP_ERR_INVALID_ARGUMENT
 * (memory or a stream that is not the GPU's). 0.3 */
MEP_API mep_result_t mep_comm_lost_ranks(mep_comm_t comm, int32_t* lost, mep_stream_t stream);
/* Forgets the losses that mep_comm_lost_ranks has shown: they show no more. A rank that goes later
 * shows, and so does one that came back and goes again. 0.3 */
MEP_API mep_result_t mep_comm_forget_lost(mep_comm_t comm, mep_stream_t stream);

/* Waits until the comm's epoch is larger than `epoch`, at most timeout_ms: else MEP_ERR_TIMEOUT,
 * which concerns only this call. 0.1 */
MEP_API mep_result_t mep_comm_wait_view(mep_comm_t comm, uint64_t epoch, uint32_t timeout_ms);

/* Called from the library's control thread after each view change of the world; it must not block
 * and not call MEP. NULL removes it; when this returns the old one runs no more. 0.1 */
typedef void (*mep_view_callback_t)(void* user, uint64_t world_epoch, int32_t live);
MEP_API mep_result_t mep_comm_set_view_callback(mep_comm_t comm, mep_view_callback_t callback,
                                                void* user);

/* Splits the live ranks: those of one color form a comm, ordered by (key, rank); color -1: *child
 * is NULL. Collective and replicated, errors as for collectives; also MEP_ERR_NO_MEMORY, like any
 * other error on all ranks if one of them cannot do its part. After an error no rank has a child.
 * Every comm of a process shares the world's one view. 0.1 */
MEP_API mep_result_t mep_comm_split(mep_comm_t comm, int32_t color, int32_t key, mep_comm_t* child);

/* A comm of the same live ranks in the same order: as mep_comm_split with one color. 0.2 */
MEP_API mep_result_t mep_comm_dup(mep_comm_t comm, mep_comm_t* duplicate);

/* A comm of the ranks of `comm` that live, in the same order, which failures do not prevent: as
 * mep_comm_split with one color, but it skips reports of ranks that failed or left and of revokes,
 * and begins again until all ranks that live have the same child without such a change in between.
 * The next collective on comm reports what it skipped. Collective on the live ranks; blocks. Each
 * wait ends by comm's timeout, and it begins again within that time only: else MEP_ERR_TIMEOUT on
 * all. Other errors as mep_comm_split. 0.3 */
MEP_API mep_result_t mep_comm_shrink(mep_comm_t comm, mep_comm_t* child);

/* A comm of the `count` listed ranks of `comm`: rank i of it is ranks[i]. Only they call it, each
 * with the same list and name; it is no call that is counted on comm, and the other ranks know
 * nothing of it. `name`, 1 to MEP_MAX_NAME_BYTES bytes, is what mep_comm_attach asks for, and
 * together with the ranks it distinguishes what is made at one time: a name that these ranks have
 * used before is refused with MEP_ERR_INVALID_ARGUMENT, unless one of them was replaced since.
 * Blocks until all of them have called, at most comm's timeout. Errors as for collectives; also
 * MEP_ERR_TIMEOUT (one did not call), MEP_ERR_PEER_FAILED and MEP_ERR_PEER_LEFT (one of them is not
 * in the view, or goes meanwhile: list those that live and call again), MEP_ERR_REVOKED (one of
 * them could not do its part), MEP_ERR_NO_MEMORY. After an error no rank has the comm. 0.2 */
MEP_API mep_result_t mep_comm_create_from_ranks(mep_comm_t comm, const int32_t* ranks,
                                                int32_t count, const char* name, mep_comm_t* child);

/* All live ranks give a flag; *result on all is the bitwise AND of those given, over the same
 * contributors. Collective, replicated. Failures do not prevent success: the next collective on
 * comm reports those that it skipped. 0.1 */
MEP_API mep_result_t mep_comm_agree(mep_comm_t comm, uint64_t flag, uint64_t* result);

/* Admits ready replacements of absent ranks. Collective on the world, which must be idle: else
 * MEP_ERR_BUSY (or MEP_ERR_THREAD); on GPUs the streams that calls on it and its EP objects were
 * made on are idle too. Waits at most timeout_ms for `ranks` (count of them; count 0: whoever is
 * ready). *admitted: how many came. Every rank gives the same ranks and count. Failures do not
 * prevent success: the next collective on world reports those that it skipped, on GPUs
 * mep_comm_async_result. Errors: MEP_ERR_TIMEOUT (not all came; those ready did; at once if a
 * replacement had connected and ended), MEP_ERR_INVALID_ARGUMENT (no rank of it; the world has
 * grown beyond this comm). Graphs that were captured before go on with the replacement. A
 * communicator made from the world meets it at its next call, streams idle; a rank is replaced on
 * GPUs when its process has ended, not when it was only evicted. 0.1; on GPUs 0.2 */
MEP_API mep_result_t mep_recover_ranks(mep_comm_t world, const int32_t* ranks, int32_t count,
                                       uint32_t timeout_ms, int32_t* admitted);

/* Grows the world by `count` ranks, up to max_size; else as mep_recover_ranks. Returns a new comm
 * over the grown world. The old one goes on with the ranks that it has: a rank that is admitted
 * later, a replacement too, is no member of it. mep_recover_ranks, mep_comm_grow and automatic
 * recovery need the new one from then on. On GPUs it has this rank's, and all must have one: else
 * MEP_ERR_MISMATCH. Errors: also MEP_ERR_INVALID_ARGUMENT (no room below max_size),
 * MEP_ERR_NO_MEMORY (on all members, if one of them cannot make its part of the new comm). After an
 * error those that were admitted leave again, their mep_comm_join fails; the call returns when they
 * are out of the view. 0.1; on GPUs 0.2 */
MEP_API mep_result_t mep_comm_grow(mep_comm_t world, int32_t count, uint32_t timeout_ms,
                                   mep_comm_t* grown);

/* The joiner's side: asks the running job `config->job` for admission and waits at most
 * init_timeout_ms for the members' mep_recover_ranks or mep_comm_grow (or auto-recovery). *comm is
 * the world. The job's name is required (config->job or MEP_JOB). config->rank with
 * MEP_COMM_SET_RANK, else MEP_RANK: the absent rank to fill; with neither any. config->device as
 * the members have it, a GPU or none: else MEP_ERR_MISMATCH, also for a GPU of another kind.
 * Errors: MEP_ERR_BOOTSTRAP (no such job; it ended, filled the place or lost members before the
 * rank was in), MEP_ERR_TIMEOUT (nobody admitted it), MEP_ERR_DENIED (the secret). 0.1 */
MEP_API mep_result_t mep_comm_join(const mep_comm_config_t* config, mep_comm_t* comm);

/* The joiner's side of a comm made by mep_comm_split: attaches by its name, the default one or what
 * mep_comm_set_name gave it. A comm ends with the last of its members that was there before:
 * joiners that are admitted together afterwards have it no more. A joiner of a grown world
 * (mep_comm_grow) is no member of the world before. Errors: MEP_ERR_NOT_FOUND (this rank is no
 * member of such a comm, or it has ended so). 0.1 */
MEP_API mep_result_t mep_comm_attach(mep_comm_t world, const char* name, mep_comm_t* comm);
/* At most MEP_MAX_NAME_BYTES; the same on all members. Default: "world", and "PARENT/k.COLOR" for
 * the k-th split of PARENT. Local; any thread. *name is valid until the comm is destroyed and never
 * changes: after mep_comm_set_name it is the old name, and mep_comm_name gives another pointer. 0.1
 */
MEP_API mep_result_t mep_comm_name(mep_comm_t comm, const char** name);
MEP_API mep_result_t mep_comm_set_name(mep_comm_t comm, const char* name);

/* Asks that `rank` be removed although it may live; decided by the quorum like a failure. Returns
 * when asked. The own rank is refused. 0.1 */
MEP_API mep_result_t mep_comm_evict(mep_comm_t comm, int32_t rank);
/* Ends all pending operations of the comm on all members with MEP_ERR_REVOKED, once; the comm then
 * goes on in its next epoch. Returns when asked. 0.1 */
MEP_API mep_result_t mep_comm_revoke(mep_comm_t comm);
/* Ends this rank's part at once, without waiting for anybody: pending and later calls on the
 * world's comms return MEP_ERR_ABORTED, and the other members see this rank fail. mep_comm_destroy
 * then frees without waiting. 0.1 */
MEP_API mep_result_t mep_comm_abort(mep_comm_t comm);
/* The same with a reason, which the text of the others' MEP_ERR_PEER_FAILED has: an exception of
 * the program, say. At most 200 bytes of it; NULL or "": none. Read before the call returns. 0.2 */
MEP_API mep_result_t mep_comm_abort_with(mep_comm_t comm, const char* text);

/* ------------------------------------------------------------------------------------------------
 * Expert parallelism
 *
 * Shapes: T tokens of this rank (<= M = max_tokens_per_rank, may differ per rank, 0 allowed),
 * hidden H, top-k K, E experts, R = comm size, E_local = experts_per_rank. All arrays are dense,
 * last index fastest, unless a stride is given.
 *
 * On a communicator with a GPU calls enqueue on the stream, and one that meets a new view waits for
 * the GPU; pointers are device memory, small outputs may be pinned host memory, and rows lie on 16
 * bytes. Bad routing entries count as -1 and are counted in op_status. After a view change the
 * first dispatch or combine on each buffer reports it and does nothing else; mep_ep_last_op,
 * streams idle, moves a buffer to the new view too. GPUs of several hosts post to queues that a
 * thread serves. docs/guide/gpus.md has more.
 * --------------------------------------------------------------------------------------------- */

/* How tokens travel, and how their rows lie where they arrive. Low latency sends a row for each
 * expert of a token, to fixed places; high throughput sends a token once to each rank that has
 * experts of it, to packed rows.
 *
 *                   rows       recv_x, combine_input, recv_scales  recv_count          layout_range
 *   LOW_LATENCY     by expert  [E_local, R*M, ..], packed          rows of an expert   [E_local, R]
 *   SLOTTED         by expert  [E_local, R*M, ..], source s at s*M rows of an expert   [E_local, R]
 *   HIGH_THROUGHPUT by source  [R*M, ..], one a token              rows with an expert [R]
 *   EXPANDED        by expert  [X, ..], one a token and expert     rows of an expert   [E_local, R]
 *
 * In high throughput recv_count is rounded up to expert_alignment. Expanded, X is R*M * min(K,
 * E_local) + E_local * (expert_alignment - 1), rounded up to expert_alignment, and begins count
 * from the first row of all. Source ranks are in ascending order everywhere, and tokens of a source
 * too. */
typedef uint32_t mep_ep_layout_t;
enum {
  MEP_EP_LOW_LATENCY = 0,
  MEP_EP_SLOTTED = 1,
  MEP_EP_HIGH_THROUGHPUT = 2,
  MEP_EP_EXPANDED = 3
};

/* Scales of e4m3 rows: float32, or UE8M0, a power of two stored as its biased exponent. FLOAT32 and
 * UE8M0 have one for 128 values, and the last group of a row may be shorter. UE8M0_32 has one for 32
 * values, the layout of MXFP8, and hidden must be a multiple of 32. Dispatch rounds exponents up, so
 * that finite values stay finite and none saturates; OCP's MX formula rounds them down, and its rows
 * differ. With all three NaN stays NaN, and an infinity makes its whole group NaN. UE8M0_32 0.4 */
typedef uint32_t mep_scale_type_t;
enum { MEP_SCALE_FLOAT32 = 0, MEP_SCALE_UE8M0 = 1, MEP_SCALE_UE8M0_32 = 2 };

typedef uint32_t mep_scale_layout_t;
enum { MEP_SCALE_ROW_MAJOR = 0, MEP_SCALE_COLUMN_MAJOR = 1 };

/* Says how dispatch and combine end when a rank has gone whose rows or terms they lack. They
 * deliver all others in each case. docs/guide/failures.md has a table of each call. 0.4
 *   FAILS    MEP_ERR_PEER_FAILED, each rank by its own data. A change of the membership that no
 *            call of this rank has reported is reported by its next call on the buffer, which does
 *            nothing else.
 *   PARTIAL  the same, but MEP_PARTIAL, which is no error, in place of MEP_ERR_PEER_FAILED.
 *   UNIFORM  one result on all ranks: the gravest that one of them has, or what the change says,
 *            reported once on each buffer by the same call on all ranks. That costs one round more,
 *            on the comm: the calls are ordered with its collectives, one thread makes both, and
 *            what was sent and failed is received all the same. Hosts.
 *   IN_STEP  MEP_PARTIAL, and no call only reports: for programs that go on without an agreement,
 *            each rank makes its next call whatever the last returned. A call that another rank had
 *            made when the change came is over on all: a rank that makes it later gets
 *            MEP_ERR_PEER_FAILED, with nothing received. On GPUs the record at op_status says so,
 *            and a call waits while a view change is decided; calls that a graph captured are not
 *            counted. */
typedef uint32_t mep_ep_loss_t;
enum {
  MEP_EP_LOSS_FAILS = 0,
  MEP_EP_LOSS_PARTIAL = 1,
  MEP_EP_LOSS_UNIFORM = 2,
  MEP_EP_LOSS_IN_STEP = 3
};

enum { MEP_MAX_TOP_K = 64, MEP_MAX_EP_BUFFERS = 8, MEP_MAX_EP_NAME_BYTES = 65535 };

/* Rows that follow each other. */
typedef struct mep_range_t {
  int32_t count;
  int32_t begin; /* the first row */
} mep_range_t;

enum {
  /* Expanded: the library keeps no memory for rows, scales and y, so each dispatch gives recv_x,
   * and recv_scales where rows have scales; the view has NULL for them. 0.2 */
  MEP_EP_NO_ROW_MEMORY = 1u << 0,
  /* High throughput: the library keeps no memory for y, a third of what a GPU gives: each combine
   * gives y, and is mep_combine; the view's combine_input is NULL. The same on all ranks. 0.3 */
  MEP_EP_NO_COMBINE_MEMORY = 1u << 1
};

typedef struct mep_ep_config_t {
  uint32_t struct_size;
  uint32_t flags;   /* MEP_EP_* */
  const char* name; /* same on all ranks, at most MEP_MAX_EP_NAME_BYTES; NULL: "ep0", "ep1", ..
                                   in order of creation */
  mep_ep_layout_t layout;
  uint32_t max_tokens_per_rank;    /* M; required */
  uint32_t hidden;                 /* H; required; a row must be a multiple of 16 bytes */
  uint32_t top_k;                  /* K; required, at most MEP_MAX_TOP_K and at most E */
  uint32_t num_experts;            /* E, logical; required */
  uint32_t experts_per_rank;       /* E_local; 0: num_experts / comm size, rounded up */
  uint32_t num_buffers;            /* 1 to MEP_MAX_EP_BUFFERS; 0: 2 */
  mep_dtype_t input_type;          /* of x: bf16, f16, f32, e4m3 (with x_scales); 0: bf16 */
  mep_dtype_t wire_type;           /* of recv_x: the input type, or e4m3; 0: the input type */
  mep_dtype_t combine_type;        /* of y and out: bf16, f16, f32; 0: input type, for e4m3 bf16 */
  mep_scale_type_t scale_type;     /* for e4m3 on the wire */
  mep_scale_layout_t scale_layout; /* column-major: MEP_ERR_UNSUPPORTED on hosts */
  uint32_t expert_alignment;       /* high throughput: recv_count is rounded up to it; 0: 1 */
  uint32_t num_sms;                /* CUDA; 0: the communicator's limit, else all that help */
  uint32_t timeout_ms;             /* of dispatch and combine; 0: the comm's */
  uint32_t max_replicas; /* columns of the expert map, which has at most 2^27 entries; 0: 1 */
  /* Opaque rows, whose format MEP does not know: bytes of a row of x and recv_x, a multiple of 16,
   * and bytes of its side words at x_scales and recv_scales, a multiple of 4 or 0 for none. A
   * dispatch copies both as they are. input_type, wire_type and scale_type must be 0; hidden and
   * combine_type (0: bf16) speak of y and out alone. row_bytes 0: rows have types. 0.3 */
  uint32_t row_bytes;
  uint32_t side_bytes;
  mep_ep_loss_t on_loss; /* 0.4 */
  uint32_t reserved;     /* must be 0 */
} mep_ep_config_t;
static inline void mep_ep_config_defaults(mep_ep_config_t* config) {
  mep_struct_init(config, sizeof *config);
}

/* mep_ep_config_defaults and the required fields, M, H, K and E: low latency in bf16. 0.2 */
static inline void mep_moe_defaults(mep_ep_config_t* config, uint32_t tokens, uint32_t hidden,
                                    uint32_t topk, uint32_t experts) {
  mep_ep_config_defaults(config);
  config->max_tokens_per_rank = tokens;
  config->hidden = hidden;
  config->top_k = topk;
  config->num_experts = experts;
}

/* Bytes that mep_ep_create would reserve on this rank: windows (address space; pages are taken when
 * rows arrive, resident_bytes at most at one time for uniform routing) and private memory. Local.
 * Errors: MEP_ERR_UNSUPPORTED. 0.1 */
typedef struct mep_ep_size_t {
  uint32_t struct_size;
  uint32_t flags;
  uint64_t window_bytes;
  uint64_t resident_bytes;
  uint64_t private_bytes;
} mep_ep_size_t;
static inline void mep_ep_size_defaults(mep_ep_size_t* size_info) {
  mep_struct_init(size_info, sizeof *size_info);
}

MEP_API mep_result_t mep_ep_buffer_size(mep_comm_t comm, const mep_ep_config_t* config,
                                        mep_ep_size_t* size_info);

/* Collective on comm; blocks. Allocates everything that dispatch and combine will use. Errors:
 * MEP_ERR_MISMATCH (ranks gave different configs; the text names the field and the rank),
 * MEP_ERR_UNSUPPORTED, MEP_ERR_NO_MEMORY, and those of collectives. The comm must outlive it. 0.1
 */
MEP_API mep_result_t mep_ep_create(mep_comm_t comm, const mep_ep_config_t* config, mep_ep_t* ep);

/* Local. Errors: MEP_ERR_BUSY (a handle exists, or an operation runs). NULL is accepted. 0.1 */
MEP_API mep_result_t mep_ep_destroy(mep_ep_t ep);

/* Joiner's side: attaches to the EP object `name` of a comm that it joined; config as the members
 * gave it. Errors: MEP_ERR_NOT_FOUND, MEP_ERR_MISMATCH. 0.1 */
MEP_API mep_result_t mep_ep_attach(mep_comm_t comm, const mep_ep_config_t* config, mep_ep_t* ep);

/* A handle holds the routing of one dispatch (token, k, place) for its combine. Local; the address
 * is fixed. One handle is used by one thread at a time; buffers of one EP object may be in flight
 * at once. Destroy: MEP_ERR_BUSY while its dispatch or combine has been sent but not received; a
 * change of the membership ends that too. 0.1 */
MEP_API mep_result_t mep_ep_handle_create(mep_ep_t ep, uint32_t buffer, mep_ep_handle_t* handle);
MEP_API mep_result_t mep_ep_handle_destroy(mep_ep_handle_t handle);

/* Logical experts -> places. map int32 [E, max_replicas], entries rank * E_local + local expert, -1
 * unused, every expert with at least one place. The replica used is (token + source rank) mod the
 * number of places. NULL: back to physical ids (id / E_local is the rank). Collective, ordered like
 * an operation of the comm; all ranks give the same map, else MEP_ERR_MISMATCH. A map that is no
 * such map is MEP_ERR_INVALID_ARGUMENT on all ranks, whichever gave it. 0.1 */
MEP_API mep_result_t mep_ep_set_expert_map(mep_ep_t ep, const int32_t* map);

/* The library's memory of one buffer: where rows arrive, and where the experts' outputs may be made
 * so that combine need not copy them. Fixed addresses, known before the first dispatch; the only
 * way to them. */
typedef struct mep_ep_view_t {
  uint32_t struct_size;
  uint32_t flags;
  const void* recv_x; /* [E_local, R*M, H] wire type, or [E_local, R*M, row_bytes] */
  /* [E_local, R*M, ceil(H/128)] float32 or uint8 (UE8M0), [E_local, R*M, H/32] uint8 (UE8M0_32), or
   * [E_local, R*M, side_bytes]; else NULL */
  const void* recv_scales;
  const int32_t* recv_count;       /* [E_local] rows per local expert */
  const int32_t* src_info;         /* [E_local, R*M] the token's index on its source rank */
  const mep_range_t* layout_range; /* [E_local, R] the rows of each source */
  void* combine_input; /* [E_local, R*M, H] combine type: make y here and give this address */
  /* High throughput, else NULL: shapes as of mep_ep_layout_t, src_info [R*M]. Expanded, src_info
   * [X], -1 for padding; recv_topk_idx NULL, recv_topk_weights [X]. */
  const int32_t*
      recv_topk_idx; /* [R*M, K] local experts of each row, -1 for those of other ranks. 0.2 */
  const float* recv_topk_weights; /* [R*M, K] their weights, 0 for those of other ranks. 0.2 */
  /* Expanded, else NULL: the rows before that, one for each token of a source, in the order of
   * source rank, then token. Valid as long as the rows. 0.2 */
  const int32_t* token_rows;      /* [R*M, K] the expanded row of each k, -1: none */
  const int32_t* token_topk_idx;  /* [R*M, K] local experts, -1 for those of other ranks */
  const int32_t* token_src_info;  /* [R*M] the token's index on its source rank */
  const mep_range_t* token_range; /* [R] the tokens of each source */
  uint32_t local_experts;         /* E_local */
  uint32_t first_expert;          /* rank * E_local: the place of the first local expert. 0.4 */
  uint64_t rows_per_expert; /* R*M: rows between the experts of recv_x and combine_input. 0.4 */
} mep_ep_view_t;
static inline void mep_ep_view_defaults(mep_ep_view_t* view) {
  mep_struct_init(view, sizeof *view);
}

/* Local, does not block. The data behind the pointers is valid from when a dispatch on that buffer
 * was received until its combine starts or, without one, until the next dispatch on it starts. 0.1
 */
MEP_API mep_result_t mep_ep_buffer_view(mep_ep_t ep, uint32_t buffer, mep_ep_view_t* view);

/* Counts where T tokens go, without sending them: topk_idx [T, K], int32 or int64 by topk_idx_type
 * (0: int64), -1 for none; E experts of R ranks, ceil(E / R) of them each. tokens_per_rank int32
 * [R], tokens_per_expert int32 [E], is_token_in_rank [T, R] bytes, 1 or 0; NULL: not wanted. Local,
 * on no EP object; any comm size R. On a GPU it is one kernel on the stream, and entries that name
 * no expert, or one that the token named before, count as -1. Errors: MEP_ERR_INVALID_ARGUMENT
 * (sizes; on hosts also such an entry, by token and value). 0.2 */
MEP_API mep_result_t mep_dispatch_layout(mep_comm_t comm, const void* topk_idx,
                                         mep_dtype_t topk_idx_type, uint32_t num_tokens,
                                         uint32_t top_k, uint32_t num_experts,
                                         int32_t* tokens_per_rank, int32_t* tokens_per_expert,
                                         uint8_t* is_token_in_rank, mep_stream_t stream);

/* ---- dispatch and combine: whole, or in the two halves of each ---- */

enum {
  /* High throughput: sends x by the routing of the handle's last dispatch that was received, to the
   * same rows; topk_idx and topk_weights are not read, and no counts are exchanged. All ranks
   * replay the same dispatch, in the same membership: else MEP_ERR_INVALID_ARGUMENT. For a backward
   * pass. */
  MEP_DISPATCH_REPLAY = 1u << 0,
  /* With MEP_DISPATCH_REPLAY, in mep_dispatch alone: sends the routing and no rows, so that a handle
   * that was combined, or whose buffer other dispatches have used, can be combined again. x is not
   * read, the rows of the view are undefined, and recv_x, recv_scales and statistics must be NULL.
   * 0.4 */
  MEP_DISPATCH_NO_ROWS = 1u << 1
};

/* Options of a dispatch; a zero field is its default. A call reads the fields of what it does.
 * Outputs are memory of the caller's, no part of the library's; NULL: not wanted. Rows that have no
 * such memory lie in the library's (mep_ep_buffer_view). recv_x and recv_scales, where given, get
 * the rows in place of the view's, which are undefined then; the other arrays are copies, the view
 * has them too. 0.4 */
typedef struct mep_dispatch_options_t {
  uint32_t struct_size;
  /* To send. */
  uint32_t flags;                 /* MEP_DISPATCH_* */
  mep_dtype_t topk_idx_type;      /* MEP_INT32 or MEP_INT64; 0: int64 */
  uint32_t timeout_ms;            /* of this call, also to receive; 0: the object's. Hosts */
  uint64_t x_stride_bytes;        /* between rows; 0: dense */
  const void* x_scales;           /* [T, ceil(H/128)] or [T, H/32] for e4m3 input, [T, side_bytes]
                                     for opaque rows; NULL: quantise while sending */
  uint64_t x_scales_stride_bytes; /* 0: dense */
  /* To receive. */
  void* recv_x;           /* as mep_ep_view_t; only rows that arrived are written */
  uint64_t recv_capacity; /* bytes at recv_x; 0: as large as the view's */
  void* recv_scales;
  uint64_t recv_scales_token_stride_bytes; /* 0: dense */
  uint64_t recv_scales_group_stride_bytes; /* between experts; 0: dense */
  int32_t* recv_count;                     /* [E_local] */
  int32_t* recv_count_host;                /* the same in pinned host memory */
  int32_t* src_info;                       /* [E_local, R*M] */
  mep_range_t* layout_range;               /* [E_local, R] */
  mep_range_t* token_range;                /* [R] high throughput: the tokens of each source */
  int32_t* recv_topk_idx;   /* [recv_total, K], high throughput; expanded: must be NULL */
  float* recv_topk_weights; /* [recv_total, K], high throughput; expanded: [recv_total] */
  int64_t* recv_total;      /* rows that arrived, all local experts; expanded: with their padding */
  void* statistics;         /* [E_local] statistics_type, added to: rows per local expert */
  mep_op_status_t* op_status; /* filled at the end, or NULL */
  uint64_t op_status_bytes;   /* at op_status, see there */
  /* [R], added to: nanoseconds that this call waited for each rank, for its counts and for its
   * rows; 0 for the own rank and absent ones. The largest entry is of the slowest rank. Hosts. */
  int64_t* wait_ns;
  mep_dtype_t statistics_type; /* MEP_INT32 (hosts), which wraps around, or MEP_INT64; 0: int64 */
  uint32_t reserved;           /* must be 0 */
} mep_dispatch_options_t;
static inline void mep_dispatch_options_defaults(mep_dispatch_options_t* options) {
  mep_struct_init(options, sizeof *options);
}

enum { MEP_COMBINE_RENORMALIZE = 1u << 0 }; /* rescale when an expert's rank is missing */

/* Options of a combine, in the same way. 0.4 */
typedef struct mep_combine_options_t {
  uint32_t struct_size;
  uint32_t flags; /* MEP_COMBINE_* */
  /* To send. [recv_total, K], high throughput: values that go back with the rows, the gradients of
   * the weights, say; expanded: [recv_total]. NULL: none. */
  const float* topk_weights;
  /* To receive. */
  const float* weights;       /* [T, K]; NULL: topk_weights of the dispatch; had none: all 1 */
  const void* bias;           /* [H] combine type, added once at the end; NULL: none */
  uint64_t out_stride_bytes;  /* 0: dense */
  mep_op_status_t* op_status; /* filled at the end, or NULL */
  uint64_t op_status_bytes;   /* at op_status, see there */
  /* [T, K], high throughput: the sums of what came back as topk_weights, over ranks in ascending
   * order; +0 where nothing came. NULL: not wanted. */
  float* recv_topk_weights;
  int64_t* wait_ns;    /* [R], added to, as of a dispatch: the wait for each rank's terms. Hosts */
  uint32_t num_tokens; /* T that out and weights are made for; another one than the dispatch had:
                          MEP_ERR_INVALID_ARGUMENT. 0: not checked */
  uint32_t timeout_ms; /* of this call; 0: the object's. Hosts */
  /* [T, H] combine type, high throughput: the first terms of each token's sum, in this order; or
   * NULL */
  const void* token_bias;
  const void* token_bias2;
} mep_combine_options_t;
static inline void mep_combine_options_defaults(mep_combine_options_t* options) {
  mep_struct_init(options, sizeof *options);
}

/* Sends each token to each of its experts, and receives what the others sent here.
 *
 *   mep_dispatch          both
 *   mep_dispatch_send     sends; mep_dispatch_receive is the other half
 *   mep_dispatch_counts   high throughput: the same, and gives recv_count, recv_count_host,
 *   recv_total
 *                         and token_range, no other output; no replay. Memory for the rows may be
 *                         made then; mep_dispatch_receive has them, and says how the dispatch
 *                         ended. x and x_scales stay as they are until then: GPUs send their rows
 *                         by that call, and write pinned memory here as soon as all counts have
 *                         come
 *
 * x: [num_tokens, H] input type, or [num_tokens, row_bytes]. topk_idx: [T, K], -1 for none.
 * topk_weights: [T, K] or NULL; kept in the handle for combine. view (or NULL): as
 * mep_ep_buffer_view fills it. options: or NULL. Collective over the ranks of the EP object, per
 * buffer, in the same order everywhere; blocks when stream is NULL. Sending returns when x,
 * x_scales, topk_idx and topk_weights are the caller's again: packed it waits for the other ranks
 * to send (their counts), never for rows. Receiving returns when all rows have come. Rows of a
 * source are in token order, sources in rank order (slotted: source s begins at s*M). High
 * throughput sends a token once to each rank that has experts of it. The rows are recv_x
 * [recv_total, H], in the order of source rank, then token, with recv_topk_idx and
 * recv_topk_weights; recv_count [E_local] is how many of them have each local expert, rounded up to
 * expert_alignment. Expanded: a row is there once for each of its local experts. The groups of the
 * experts follow each other in ascending order, recv_count rows each, in the order of source rank,
 * then token; what rounds a group up is zeros. Errors: MEP_ERR_BUSY (the buffer's last dispatch or
 * combine was not received, or met MEP_ERR_CAPACITY; until the membership changes), MEP_ERR_THREAD
 * (another thread is inside a call on the buffer), MEP_ERR_INVALID_ARGUMENT (an expert out of range
 * or twice in a row: names token and value, and nothing was sent; nothing was sent that could be
 * received), MEP_ERR_CAPACITY (receive again with more room), and those of collectives. It is a
 * personal operation: what it returns with a rank gone is mep_ep_loss_t; counts and layout_range
 * cover complete rows only. The comm's collectives report the change all the same; with
 * MEP_EP_LOSS_UNIFORM, whose calls count as calls of the comm, only if they come before the first
 * of them. 0.4 */
MEP_API mep_result_t mep_dispatch(mep_ep_handle_t handle, const void* x, const void* topk_idx,
                                  const float* topk_weights, uint32_t num_tokens,
                                  mep_ep_view_t* view, const mep_dispatch_options_t* options,
                                  mep_stream_t stream);
MEP_API mep_result_t mep_dispatch_send(mep_ep_handle_t handle, const void* x, const void* topk_idx,
                                       const float* topk_weights, uint32_t num_tokens,
                                       const mep_dispatch_options_t* options, mep_stream_t stream);
MEP_API mep_result_t mep_dispatch_counts(mep_ep_handle_t handle, const void* x,
                                         const void* topk_idx, const float* topk_weights,
                                         uint32_t num_tokens, const mep_dispatch_options_t* options,
                                         mep_stream_t stream);
MEP_API mep_result_t mep_dispatch_receive(mep_ep_handle_t handle, mep_ep_view_t* view,
                                          const mep_dispatch_options_t* options,
                                          mep_stream_t stream);

/* out[t] = bias + sum over k of weight[t,k] * y(row of token t at its k-th expert), float32, in
 * ascending k, each product and sum rounded (not fused), one rounding at the end; entries -1 and
 * those of missing ranks are left out. High throughput: out[t] = bias + sum over ranks of y(row of
 * token t there), in ascending rank, without weights. Expanded, y(row of token t there) is the sum
 * of its expanded rows, also without weights, in ascending k, rounded to the combine type.
 *
 *   mep_combine           sends and receives
 *   mep_combine_send      gives the rows back; mep_combine_receive, which sums, is the other half
 *
 * y: [E_local, R*M, H] combine type, combine_input of the view or memory of the caller; high
 * throughput: [recv_total, H]. out: [T, H] combine type, no memory of the view. options: or NULL.
 * While this rank's tokens are routed to experts of an absent rank, each combine returns
 * MEP_ERR_PEER_FAILED or MEP_PARTIAL by mep_ep_loss_t, with the sum of the others in out:
 * mep_ep_set_expert_map routes around it, and so does -1. Sending gives the buffer's received rows
 * back to the senders, and returns when y may be overwritten if it is the caller's (the library's
 * own, combine_input: after the next dispatch on the buffer was received; one that only reports a
 * change is none). If a change ended that dispatch, a rank that had not read y yet has
 * MEP_ERR_PEER_FAILED, with the sum of the others in out; on GPUs one that failed is none either.
 * Errors: as mep_dispatch; MEP_ERR_BUSY also when the handle's dispatch was not received. 0.4 */
MEP_API mep_result_t mep_combine(mep_ep_handle_t handle, const void* y, void* out,
                                 const mep_combine_options_t* options, mep_stream_t stream);
MEP_API mep_result_t mep_combine_send(mep_ep_handle_t handle, const void* y,
                                      const mep_combine_options_t* options, mep_stream_t stream);
MEP_API mep_result_t mep_combine_receive(mep_ep_handle_t handle, void* out,
                                         const mep_combine_options_t* options, mep_stream_t stream);

/* Like mep_comm_last_op, for the last dispatch or combine finished on that buffer; MEP_ERR_THREAD:
 * another thread is inside a call on the buffer. 0.1 */
MEP_API mep_result_t mep_ep_last_op(mep_ep_t ep, uint32_t buffer, mep_op_info_t* info);

/* ------------------------------------------------------------------------------------------------
 * The log
 * --------------------------------------------------------------------------------------------- */

enum { MEP_LOG_ERROR = 0, MEP_LOG_WARN = 1, MEP_LOG_INFO = 2, MEP_LOG_DEBUG = 3 };

/* Takes the log lines of the process in place of stderr, those that MEP_LOG asks for; a
 * MEP_LOG_FILE has them too. `line` is one of them without its end, "mep[RANK] LEVEL: TEXT", and
 * valid during the call; level: MEP_LOG_*. Any thread calls it, the library's own too, several at
 * one time: it must not block and not call MEP. callback NULL: stderr again, as at first. When
 * mep_set_log_callback returns the old one runs no more. Any thread. Errors: MEP_ERR_BUSY (called
 * by a callback), MEP_ERR_NO_MEMORY. 0.3 */
typedef void (*mep_log_callback_t)(void* user, int32_t level, const char* line);
MEP_API mep_result_t mep_set_log_callback(mep_log_callback_t callback, void* user);
/* A callback for it: writes the line and '\n' at once to a file descriptor, user =
 * (void*)(intptr_t)fd. For a binding that cannot be called by any thread: it reads the other end of
 * a pipe. One that is full and O_NONBLOCK loses lines. 0.3 */
MEP_API void mep_log_to_descriptor(void* user, int32_t level, const char* line);

/* ------------------------------------------------------------------------------------------------
 * The machine
 * --------------------------------------------------------------------------------------------- */

/* The HCA (RDMA adapter) and port that this process should use to be near `location`: "cpu" (the
 * cores it is bound to; so also NULL), "gpu:0" (CUDA's numbers where hwloc knows them, else
 * NVIDIA's GPUs by PCI address), "numa:0" (memory of a node) or a PCI address, "0000:18:00.0".
 * name: "mlx5_3:1" and a NUL in at most `capacity` bytes. Nearest first, then link state and speed;
 * equally good ones are dealt out by the local rank. MEP_HCA limits the choice; `mep_info
 * --topology` explains it. Local; any thread; takes milliseconds, nothing is kept. Errors:
 * MEP_ERR_NOT_FOUND (no such GPU, node or address, or no HCA that can be used), MEP_ERR_CAPACITY,
 * MEP_ERR_INVALID_ARGUMENT (also a malformed location or MEP_HCA), MEP_ERR_SYSTEM (the topology
 * cannot be read); after an error name is untouched. 0.1 */
MEP_API mep_result_t mep_preferred_hca(const char* location, char* name, size_t capacity);
/* The same with comm's GPU as the default: location NULL is "gpu:N" of mep_comm_device, or "cpu" on
 * a host communicator. 0.3 */
MEP_API mep_result_t mep_comm_preferred_hca(mep_comm_t comm, const char* location, char* name,
                                            size_t capacity);

#ifdef __cplusplus
}
#endif

#endif /* MEP_H */
