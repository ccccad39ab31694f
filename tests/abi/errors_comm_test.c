/* Wrong arguments to everything but expert parallelism, on a world of one thread: each gives the
 * code that the header names, with a text, and changes nothing. check_error_coverage.py sees to it
 * that no function is forgotten: it reads the EXPECT lines. */
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world_of_one.h"

static void results_have_names(void** state) {
  (void)state;
#define STRUCT(name, size, alignment)
#define FIELD(type, name, offset, size)
#define CONSTANT(name, value)                                                       \
  if (strcmp(#name, "MEP_SUCCESS") == 0 || strncmp(#name, "MEP_ERR_", 8) == 0 ||    \
      strcmp(#name, "MEP_PARTIAL") == 0 || strcmp(#name, "MEP_IN_PROGRESS") == 0) { \
    assert_string_equal(mep_result_string(value), #name);                           \
  }
#include "layout_table.h"
  assert_string_equal(mep_result_string(3), "unknown result");
  assert_string_equal(mep_result_string(-23), "unknown result");
  assert_string_equal(mep_result_string(INT32_MIN), "unknown result");
  assert_string_equal(mep_result_string(INT32_MAX), "unknown result");
}

static void types_have_sizes(void** state) {
  (void)state;
  /* Written out: a width that has been released never changes. */
  static const size_t kSizes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 1};
  for (uint32_t dtype = 0; dtype < 16; ++dtype) {
    assert_int_equal(mep_dtype_size(dtype), kSizes[dtype]);
  }
  assert_int_equal(mep_dtype_size(MEP_TYPES_END), 0);
  assert_int_equal(mep_dtype_size(UINT32_MAX), 0);
}

static void start_up(void** state) {
  (void)state;
  mep_comm_t out = NULL;
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init(NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init(&config, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_join(&config, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init_all(1, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init_all(0, NULL, &out));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init_all(-1, NULL, &out));

  config.flags = MEP_COMM_SET_RANK;
  config.size = 1;
  config.rank = 1; /* not below size */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init(&config, &out));
  assert_null(out);
  config.rank = -1;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init(&config, &out));
  config.rank = 0;
  config.size = -1;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init(&config, &out));
  config.size = 2;
  config.max_size = 1; /* below size */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init(&config, &out));
  config.size = 1;
  config.max_size = 0;
  config.flags |= 1u << 31; /* a flag of the future */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init(&config, &out));
  config.flags = MEP_COMM_SET_RANK;
  config.quorum = 3;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init(&config, &out));
  config.quorum = 0;
  config.transports = "carrier-pigeon";
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init(&config, &out));
  config.transports = NULL;
  config.device_type = 3; /* a device of the future */
  EXPECT(MEP_ERR_UNSUPPORTED, mep_comm_init(&config, &out));
  config.device_type = MEP_DEVICE_CUDA;
  config.device = -2; /* no GPU */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init(&config, &out));
  config.device = 9999; /* no machine has it; a build without CUDA has none */
  const mep_result_t result = mep_comm_init(&config, &out);
  assert_true(result == MEP_ERR_UNSUPPORTED || result == MEP_ERR_INVALID_ARGUMENT ||
              result == MEP_ERR_DEVICE);
  assert_null(out);

  mep_comm_config_defaults(&config);
  config.flags = MEP_COMM_SET_RANK; /* rank 0 of 2, and nobody else comes */
  config.size = 2;
  config.job = "abi-test-nobody-comes";
  config.init_timeout_ms = 200;
  EXPECT(MEP_ERR_BOOTSTRAP, mep_comm_init(&config, &out));
  assert_null(out);

  mep_store_t store; /* without functions */
  mep_store_defaults(&store);
  config.store = &store;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_init(&config, &out));
  assert_null(out);
}

static void properties(void** state) {
  (void)state;
  int32_t number = 77;
  mep_device_type_t type = 77;
  uint64_t epoch = 77;
  void* memory = NULL;
  mep_memory_t kept = NULL;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_rank(NULL, &number));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_rank(comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_size(NULL, &number));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_size(comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_live_count(NULL, &number));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_live_count(comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_epoch(NULL, &epoch));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_epoch(comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_device(NULL, &type, &number));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_device(comm, NULL, NULL));
  assert_int_equal(number, 77);
  assert_int_equal(epoch, 77);
  EXPECT(MEP_SUCCESS, mep_comm_device(comm, &type, &number));
  assert_true(type == MEP_DEVICE_HOST && number == 0);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_set_timeout(NULL, 1000));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_set_timeout(comm, 0));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_alloc(NULL, 1, 0, 0, &memory));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_alloc(comm, 1, 0, 0, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_alloc(comm, 1, 1, 0, &memory));    /* flags */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_alloc(comm, 1, 0, 24, &memory));   /* no power */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_alloc(comm, 1, 0, 8192, &memory)); /* too much */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_alloc(comm, SIZE_MAX, 0, 0, &memory));
  assert_null(memory);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_free(NULL, &number));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_free(comm, &number)); /* not from mep_mem_alloc */
  MUST(mep_mem_free(comm, NULL));
  MUST(mep_mem_alloc(comm, 5000, 0, 0, &memory));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_free(comm, (char*)memory + 64));
  MUST(mep_mem_free(comm, memory));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_free(comm, memory)); /* twice */
  MUST(mep_mem_alloc(comm, 5000, 0, 0, &memory));
  memset(memory, 7, 5000);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_free_keep(NULL, memory, &kept));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_free_keep(comm, memory, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_free_keep(comm, &number, &kept));
  assert_null(kept);
  MUST(mep_mem_free_keep(comm, memory, &kept));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_mem_free(comm, memory));
  assert_int_equal(((char*)memory)[4999], 7);
  MUST(mep_memory_release(kept));
  MUST(mep_memory_release(NULL));
  MUST(mep_comm_destroy(NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_comm_async_result(comm));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_async_result(NULL));
}

/* Descriptors run out: nothing is lost, and it works again afterwards. */
static void resources_run_out(void** state) {
  (void)state;
  struct rlimit before, none;
  void* memory = NULL;
  mep_comm_t other = NULL;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  none = before;
  none.rlim_cur = 0;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT(MEP_ERR_NO_MEMORY, mep_mem_alloc(comm, 5000, 0, 0, &memory));
  EXPECT(MEP_ERR_NO_MEMORY, mep_comm_init_all(1, NULL, &other));
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_null(memory);
  assert_null(other);
  MUST(mep_mem_alloc(comm, 5000, 0, 0, &memory));
  MUST(mep_mem_free(comm, memory));
}

static void operation_info(void** state) {
  (void)state;
  mep_comm_t fresh = NULL;
  mep_op_info_t info;
  uint64_t bits[1] = {0};
  mep_op_info_defaults(&info);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_last_op(NULL, &info));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_last_op(comm, NULL));
  MUST(mep_comm_init_all(1, NULL, &fresh));
  EXPECT(MEP_ERR_NOT_FOUND, mep_comm_last_op(fresh, &info));
  MUST(mep_barrier(fresh, NULL));
  info.contributors = bits; /* an array without a word */
  EXPECT(MEP_ERR_CAPACITY, mep_comm_last_op(fresh, &info));
  assert_int_equal(info.seq, 1); /* the rest is filled */
  info.contributors_words = 1;
  MUST(mep_comm_last_op(fresh, &info));
  assert_int_equal(bits[0], 1);
  MUST(mep_comm_destroy(fresh));
}

static void collectives(void** state) {
  (void)state;
  float a[8] = {1}, b[8] = {2};
  void* const stream = &a; /* a host communicator takes none */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_barrier(NULL, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_barrier(comm, stream));

  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_broadcast(a, b, 8, MEP_FLOAT32, 0, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_broadcast(NULL, b, 8, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_broadcast(a, NULL, 8, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_broadcast(a, b, 8, 0, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_broadcast(a, b, 8, MEP_TYPES_END, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_broadcast(a, b, 8, MEP_FLOAT32, 1, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_broadcast(a, b, 8, MEP_FLOAT32, -1, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_broadcast(a, b, SIZE_MAX, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_broadcast(a, b, 8, MEP_FLOAT32, 0, comm, stream));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_broadcast(a, a + 1, 4, MEP_FLOAT32, 0, comm, NULL));

  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_broadcast(MEP_IN_PLACE, MEP_IN_PLACE, 8, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_broadcast(a, MEP_IN_PLACE, 8, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_scatter(MEP_IN_PLACE, b, 8, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_alltoall(MEP_IN_PLACE, b, 8, MEP_FLOAT32, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_alltoall(a, MEP_IN_PLACE, 8, MEP_FLOAT32, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_gatherv(MEP_IN_PLACE, b, 8, NULL, NULL, MEP_FLOAT32, 0, comm, NULL));

  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allgather(a, b, 8, MEP_FLOAT32, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allgather(NULL, b, 8, MEP_FLOAT32, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allgather(a, NULL, 8, MEP_FLOAT32, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allgather(a, b, 8, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allgather(a, b, SIZE_MAX, MEP_FLOAT32, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_allgather(a, b, 8, MEP_FLOAT32, comm, stream));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allgather(a, a + 1, 4, MEP_FLOAT32, comm, NULL));

  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allreduce(a, b, 8, MEP_FLOAT32, MEP_SUM, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allreduce(NULL, b, 8, MEP_FLOAT32, MEP_SUM, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allreduce(a, NULL, 8, MEP_FLOAT32, MEP_SUM, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allreduce(a, b, 8, 0, MEP_SUM, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allreduce(a, b, 8, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allreduce(a, b, 8, MEP_FLOAT32, 9, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allreduce(a, b, SIZE_MAX, MEP_FLOAT32, MEP_SUM, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_allreduce(a, b, 8, MEP_FLOAT32, MEP_SUM, comm, stream));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allreduce(a, a + 1, 4, MEP_FLOAT32, MEP_SUM, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_allreduce(a, b, 8, MEP_FLOAT32, MEP_XOR, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_allreduce(a, b, 8, MEP_INT32, MEP_AVG, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_allreduce(a, b, 8, MEP_BOOL, MEP_SUM, comm, NULL));
  assert_true(a[0] == 1 && b[0] == 2); /* nothing was touched */

  MUST(mep_allreduce(NULL, NULL, 0, MEP_FLOAT32, MEP_SUM, comm, NULL));
  MUST(mep_allgather(NULL, NULL, 0, MEP_FLOAT32, comm, NULL));
  MUST(mep_broadcast(NULL, NULL, 0, MEP_FLOAT32, 0, comm, NULL));
}

static void collectives_of_blocks(void** state) {
  (void)state;
  float a[8] = {1}, b[8] = {2};
  void* const stream = &a; /* a host communicator takes none */
  mep_request_t request = NULL;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_reduce(a, b, 8, MEP_FLOAT32, MEP_SUM, 0, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_reduce(NULL, b, 8, MEP_FLOAT32, MEP_SUM, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_reduce(a, NULL, 8, MEP_FLOAT32, MEP_SUM, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_reduce(a, b, 8, 0, MEP_SUM, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_reduce(a, b, SIZE_MAX, MEP_FLOAT32, MEP_SUM, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_reduce(a, a + 1, 4, MEP_FLOAT32, MEP_SUM, 0, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_reduce(a, b, 8, MEP_FLOAT32, MEP_SUM, 0, comm, stream));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_reduce(a, b, 8, MEP_FLOAT32, MEP_SUM, 1, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_reduce(a, b, 8, MEP_FLOAT32, MEP_SUM, -1, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_reduce(a, b, 8, MEP_FLOAT32, 9, 0, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_reduce(a, b, 8, MEP_FLOAT32, MEP_XOR, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_ireduce(a, b, 8, MEP_FLOAT32, MEP_SUM, 0, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ireduce(a, b, 8, MEP_FLOAT32, MEP_SUM, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ireduce(a, b, 8, 99, MEP_SUM, 0, comm, NULL, &request));
  MUST(mep_reduce(NULL, NULL, 0, MEP_FLOAT32, MEP_SUM, 0, comm, NULL));

  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_gather(a, b, 8, MEP_FLOAT32, 0, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_gather(NULL, b, 8, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_gather(a, NULL, 8, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_gather(a, b, 8, 0, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_gather(a, b, SIZE_MAX, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_gather(a, a + 1, 4, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_gather(a, b, 8, MEP_FLOAT32, 0, comm, stream));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_gather(a, b, 8, MEP_FLOAT32, 1, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_gather(a, b, 8, MEP_FLOAT32, -1, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_igather(a, b, 8, MEP_FLOAT32, 0, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_igather(a, b, 8, MEP_FLOAT32, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_igather(a, b, 8, 99, 0, comm, NULL, &request));
  MUST(mep_gather(NULL, NULL, 0, MEP_FLOAT32, 0, comm, NULL));

  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_scatter(a, b, 8, MEP_FLOAT32, 0, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_scatter(NULL, b, 8, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_scatter(a, NULL, 8, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_scatter(a, b, 8, 0, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_scatter(a, b, SIZE_MAX, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_scatter(a, a + 1, 4, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_scatter(a, b, 8, MEP_FLOAT32, 0, comm, stream));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_scatter(a, b, 8, MEP_FLOAT32, 1, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_scatter(a, b, 8, MEP_FLOAT32, -1, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iscatter(a, b, 8, MEP_FLOAT32, 0, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iscatter(a, b, 8, MEP_FLOAT32, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iscatter(a, b, 8, 99, 0, comm, NULL, &request));
  MUST(mep_scatter(NULL, NULL, 0, MEP_FLOAT32, 0, comm, NULL));

  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_reduce_scatter(a, b, 8, MEP_FLOAT32, MEP_SUM, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_reduce_scatter(NULL, b, 8, MEP_FLOAT32, MEP_SUM, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_reduce_scatter(a, NULL, 8, MEP_FLOAT32, MEP_SUM, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_reduce_scatter(a, b, 8, 0, MEP_SUM, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_reduce_scatter(a, b, SIZE_MAX, MEP_FLOAT32, MEP_SUM, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_reduce_scatter(a, a + 1, 4, MEP_FLOAT32, MEP_SUM, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_reduce_scatter(a, b, 8, MEP_FLOAT32, MEP_SUM, comm, stream));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_reduce_scatter(a, b, 8, MEP_FLOAT32, 9, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_reduce_scatter(a, b, 8, MEP_FLOAT32, MEP_XOR, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_ireduce_scatter(a, b, 8, MEP_FLOAT32, MEP_SUM, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_ireduce_scatter(a, b, 8, MEP_FLOAT32, MEP_SUM, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ireduce_scatter(a, b, 8, 99, MEP_SUM, comm, NULL, &request));
  MUST(mep_reduce_scatter(NULL, NULL, 0, MEP_FLOAT32, MEP_SUM, comm, NULL));

  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_alltoall(a, b, 8, MEP_FLOAT32, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_alltoall(NULL, b, 8, MEP_FLOAT32, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_alltoall(a, NULL, 8, MEP_FLOAT32, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_alltoall(a, b, 8, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_alltoall(a, b, SIZE_MAX, MEP_FLOAT32, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_alltoall(a, a + 1, 4, MEP_FLOAT32, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_alltoall(a, b, 8, MEP_FLOAT32, comm, stream));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_alltoall(a, a, 8, MEP_FLOAT32, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ialltoall(a, b, 8, MEP_FLOAT32, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ialltoall(a, b, 8, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ialltoall(a, b, 8, 99, comm, NULL, &request));
  MUST(mep_alltoall(NULL, NULL, 0, MEP_FLOAT32, comm, NULL));
  assert_null(request);
  assert_true(a[0] == 1 && b[0] == 2); /* nothing was touched */
  /* In place. */
  MUST(mep_reduce(a, a, 8, MEP_FLOAT32, MEP_SUM, 0, comm, NULL));
  MUST(mep_gather(a, a, 8, MEP_FLOAT32, 0, comm, NULL));
  MUST(mep_scatter(a, a, 8, MEP_FLOAT32, 0, comm, NULL));
  MUST(mep_reduce_scatter(a, a, 8, MEP_FLOAT32, MEP_SUM, comm, NULL));
}

static void nonblocking(void** state) {
  (void)state;
  float a[8] = {1}, b[8] = {2};
  mep_request_t request = NULL;
  mep_op_info_t info;
  int32_t number = 0;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ibarrier(NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ibarrier(comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ibroadcast(a, b, 8, MEP_FLOAT32, 0, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ibroadcast(a, b, 8, MEP_FLOAT32, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_ibroadcast(a, NULL, 8, MEP_FLOAT32, 0, comm, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_ibroadcast(a, b, 8, MEP_FLOAT32, 1, comm, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iallgather(a, b, 8, MEP_FLOAT32, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iallgather(a, b, 8, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iallgather(a, b, 8, 99, comm, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_iallreduce(a, b, 8, MEP_FLOAT32, MEP_SUM, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iallreduce(a, b, 8, MEP_FLOAT32, MEP_SUM, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iallreduce(a, b, 8, MEP_FLOAT32, 77, comm, NULL, &request));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_iallreduce(a, b, 8, MEP_FLOAT32, MEP_OR, comm, NULL, &request));
  assert_null(request);

  mep_op_info_defaults(&info);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_wait(NULL, 0, &number, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_wait(&request, 0, &number, NULL)); /* NULL */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_wait(&request, 0, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_test(NULL, &number, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_test(&request, &number, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_info(NULL, &info));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_event_fd(NULL, &number));
  MUST(mep_ibarrier(comm, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_test(&request, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_info(request, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_event_fd(request, NULL));
  MUST(mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, NULL, &info));
  assert_null(request);
}

static void ignore_view(void* user, uint64_t epoch, int32_t live) {
  (void)user, (void)epoch, (void)live;
}

static void membership(void** state) {
  (void)state;
  mep_comm_t other = NULL;
  mep_view_t view;
  int32_t number = 0, rank = 0;
  uint32_t peer = 0;
  uint64_t word = 0;
  const char* text = NULL;
  char long_name[65];
  memset(long_name, 'x', sizeof long_name);
  long_name[64] = '\0';
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_peer_state(NULL, 0, &peer));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_peer_state(comm, 0, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_peer_state(comm, 1, &peer));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_peer_state(comm, -1, &peer));
  mep_comm_stats_t stats;
  mep_comm_stats_defaults(&stats);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_stats(NULL, &stats));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_stats(comm, NULL));
  mep_view_defaults(&view);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_view(NULL, &view));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_view(comm, NULL));
  view.slots = &number; /* an array without an entry */
  EXPECT(MEP_ERR_CAPACITY, mep_comm_view(comm, &view));
  assert_int_equal(view.size, 1);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_wait_view(NULL, 1, 0));
  EXPECT(MEP_ERR_TIMEOUT, mep_comm_wait_view(comm, UINT64_MAX, 20));
  MUST(mep_comm_wait_view(comm, 0, 0));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_set_view_callback(NULL, ignore_view, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_split(NULL, 0, 0, &other));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_split(comm, 0, 0, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_split(comm, -2, 0, &other));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_dup(NULL, &other));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_dup(comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_shrink(NULL, &other));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_shrink(comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_create_from_ranks(NULL, &rank, 1, "a", &other));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_create_from_ranks(comm, NULL, 1, "a", &other));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_create_from_ranks(comm, &rank, 0, "a", &other));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_create_from_ranks(comm, &rank, 1, NULL, &other));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_create_from_ranks(comm, &rank, 1, "a", NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_agree(NULL, 1, &word));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_agree(comm, 1, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_recover_ranks(NULL, NULL, 0, 1, &number));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_recover_ranks(comm, NULL, 0, 1, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_recover_ranks(comm, NULL, 1, 1, &number));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_recover_ranks(comm, &rank, -1, 1, &number));
  rank = 7; /* no rank of it */
  EXPECT_IF_BUILT(MEP_ERR_INVALID_ARGUMENT, mep_recover_ranks(comm, &rank, 1, 1, &number));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_grow(NULL, 1, 1, &other));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_grow(comm, 1, 1, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_grow(comm, 0, 1, &other));
  EXPECT_IF_BUILT(MEP_ERR_INVALID_ARGUMENT, mep_comm_grow(comm, 1, 1, &other)); /* max_size is 1 */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_attach(NULL, "a", &other));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_attach(comm, NULL, &other));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_attach(comm, "a", NULL));
  EXPECT_IF_BUILT(MEP_ERR_NOT_FOUND, mep_comm_attach(comm, "nothing has this name", &other));
  assert_null(other);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_name(NULL, &text));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_name(comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_set_name(NULL, "a"));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_set_name(comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_set_name(comm, ""));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_set_name(comm, long_name));
  long_name[63] = '\0'; /* 63 bytes are allowed */
  MUST(mep_comm_set_name(comm, long_name));
  MUST(mep_comm_name(comm, &text));
  assert_string_equal(text, long_name);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_evict(NULL, 0));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_evict(comm, 1));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_evict(comm, -1));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_evict(comm, 0)); /* itself */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_revoke(NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_abort(NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_abort_with(NULL, "text"));
}

/* Whether this machine has an HCA is not known here; both answers are checked. */
static void machine(void** state) {
  (void)state;
  char name[64] = "as it was";
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_preferred_hca(NULL, NULL, 64));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_preferred_hca("", name, sizeof name));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_preferred_hca("gpu:", name, sizeof name));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_preferred_hca("gpu:one", name, sizeof name));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_preferred_hca("18:00", name, sizeof name));
  EXPECT(MEP_ERR_NOT_FOUND, mep_preferred_hca("gpu:4000", name, sizeof name));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_preferred_hca(NULL, NULL, name, sizeof name));
  EXPECT(MEP_ERR_NOT_FOUND, mep_comm_preferred_hca(comm, "gpu:4000", name, sizeof name));
  EXPECT(MEP_ERR_NOT_FOUND, mep_preferred_hca("numa:4000", name, sizeof name));
  assert_int_equal(setenv("MEP_HCA", "mlx5_0:zero", 1), 0);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_preferred_hca(NULL, name, sizeof name));
  assert_int_equal(setenv("MEP_HCA", "no_such_device", 1), 0);
  EXPECT(MEP_ERR_NOT_FOUND, mep_preferred_hca(NULL, name, sizeof name));
  assert_string_equal(name, "as it was");
  assert_int_equal(unsetenv("MEP_HCA"), 0);
  const mep_result_t result = mep_preferred_hca("cpu", name, sizeof name);
  if (result == MEP_SUCCESS) {
    assert_non_null(strchr(name, ':'));
    EXPECT(MEP_ERR_CAPACITY, mep_preferred_hca(NULL, name, strlen(name)));
  } else {
    EXPECT(MEP_ERR_NOT_FOUND, result);
  }
}

/* The text belongs to the thread and stays until its next failure; success leaves it alone. */
static void last_error_stays(void** state) {
  (void)state;
  int32_t rank = 0;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_set_timeout(comm, 0));
  char first[512];
  snprintf(first, sizeof first, "%s", mep_last_error());
  MUST(mep_comm_rank(comm, &rank));
  assert_string_equal(mep_last_error(), first);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_evict(comm, 5));
  assert_string_not_equal(mep_last_error(), first);
}

/* In a child made by fork every handle answers MEP_ERR_FORKED. The status says which call did not.
 */
static int calls_in_child(void) {
  float a[2] = {0}, b[2] = {0};
  int32_t number = 0;
  uint64_t word = 0;
  void* memory = NULL;
  const char* text = NULL;
  mep_comm_t other = NULL;
  mep_request_t request = NULL;
  mep_op_info_t info;
  mep_view_t view;
  mep_op_info_defaults(&info);
  mep_view_defaults(&view);
  mep_comm_stats_t stats;
  mep_comm_stats_defaults(&stats);
  const mep_result_t results[] = {
      mep_comm_rank(comm, &number),
      mep_comm_size(comm, &number),
      mep_comm_live_count(comm, &number),
      mep_comm_lost_ranks(comm, &number, NULL),
      mep_comm_epoch(comm, &word),
      mep_comm_device(comm, NULL, &number),
      mep_comm_set_timeout(comm, 1000),
      mep_mem_alloc(comm, 1, 0, 0, &memory),
      mep_comm_last_op(comm, &info),
      mep_barrier(comm, NULL),
      mep_broadcast(a, b, 2, MEP_FLOAT32, 0, comm, NULL),
      mep_allgather(a, b, 2, MEP_FLOAT32, comm, NULL),
      mep_allreduce(a, b, 2, MEP_FLOAT32, MEP_SUM, comm, NULL),
      mep_reduce(a, b, 2, MEP_FLOAT32, MEP_SUM, 0, comm, NULL),
      mep_gather(a, b, 2, MEP_FLOAT32, 0, comm, NULL),
      mep_scatter(a, b, 2, MEP_FLOAT32, 0, comm, NULL),
      mep_reduce_scatter(a, b, 2, MEP_FLOAT32, MEP_SUM, comm, NULL),
      mep_alltoall(a, b, 2, MEP_FLOAT32, comm, NULL),
      mep_allgatherv(a, b, &word, NULL, MEP_FLOAT32, comm, NULL),
      mep_gatherv(a, b, 0, &word, NULL, MEP_FLOAT32, 0, comm, NULL),
      mep_scatterv(a, b, 0, &word, NULL, MEP_FLOAT32, 0, comm, NULL),
      mep_reduce_scatterv(a, b, &word, NULL, MEP_FLOAT32, MEP_SUM, comm, NULL),
      mep_alltoallv(a, b, &word, NULL, &word, NULL, MEP_FLOAT32, comm, NULL),
      mep_ibarrier(comm, NULL, &request),
      mep_iallreduce(a, b, 2, MEP_FLOAT32, MEP_SUM, comm, NULL, &request),
      mep_comm_stats(comm, &stats),
      mep_comm_view(comm, &view),
      mep_comm_wait_view(comm, 9, 10),
      mep_send(a, 2, MEP_FLOAT32, 0, 0, comm, NULL),
      mep_recv(b, 2, MEP_FLOAT32, 0, 0, comm, NULL, NULL),
      mep_sendrecv(a, 2, 0, 0, b, 2, 0, 0, MEP_FLOAT32, comm, NULL, NULL),
      mep_isend(a, 2, MEP_FLOAT32, 0, 0, comm, NULL, &request),
      mep_irecv(b, 2, MEP_FLOAT32, 0, 0, comm, NULL, NULL, &request),
      mep_probe(0, 0, comm, NULL),
      mep_iprobe(0, 0, comm, &number, NULL),
      mep_comm_split(comm, 0, 0, &other),
      mep_comm_dup(comm, &other),
      mep_comm_shrink(comm, &other),
      mep_comm_create_from_ranks(comm, &number, 1, "a", &other),
      mep_comm_agree(comm, 1, &word),
      mep_recover_ranks(comm, NULL, 0, 10, &number),
      mep_comm_name(comm, &text),
      mep_comm_revoke(comm),
      mep_comm_abort(comm),
      mep_comm_abort_with(comm, NULL),
      mep_comm_destroy(comm),
  };
  for (size_t i = 0; i < sizeof results / sizeof *results; ++i) {
    if (results[i] != MEP_ERR_FORKED) return (int)i + 1;
  }
  return 0;
}

static void forked_child(void** state) {
  (void)state;
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) _exit(calls_in_child());
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) != 0) {
    fail_msg("call %d in a forked child did not answer MEP_ERR_FORKED", WEXITSTATUS(status) - 1);
  }
  MUST(mep_barrier(comm, NULL)); /* the parent's is as good as before */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(results_have_names),
      cmocka_unit_test(types_have_sizes),
      cmocka_unit_test(start_up),
      cmocka_unit_test(properties),
      cmocka_unit_test(resources_run_out),
      cmocka_unit_test(operation_info),
      cmocka_unit_test(collectives),
      cmocka_unit_test(collectives_of_blocks),
      cmocka_unit_test(nonblocking),
      cmocka_unit_test(membership),
      cmocka_unit_test(last_error_stays),
      cmocka_unit_test(forked_child),
      cmocka_unit_test(machine),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
