/* Wrong arguments to the collectives with a length for each block, on a world of one thread: as
 * errors_comm_test.c. */
#include "world_of_one.h"

static void collectives_with_counts(void** state) {
  (void)state;
  float a[8] = {1}, b[8] = {2};
  void* const stream = &a; /* a host communicator takes none */
  const uint64_t n[1] = {8}, far[1] = {UINT64_MAX}, one[1] = {1}, nothing[1] = {0};
  mep_request_t request = NULL;
  const mep_result_t wrong = MEP_ERR_INVALID_ARGUMENT;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_allgatherv(a, b, n, NULL, MEP_FLOAT32, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_gatherv(a, b, 8, n, NULL, MEP_FLOAT32, 0, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_scatterv(a, b, 8, n, NULL, MEP_FLOAT32, 0, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_reduce_scatterv(a, b, n, NULL, MEP_FLOAT32, MEP_SUM, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_alltoallv(a, b, n, NULL, n, NULL, MEP_FLOAT32, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iallgatherv(a, b, n, NULL, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_igatherv(a, b, 8, n, NULL, MEP_FLOAT32, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_iscatterv(a, b, 8, n, NULL, MEP_FLOAT32, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_ireduce_scatterv(a, b, n, NULL, MEP_FLOAT32, MEP_SUM, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_ialltoallv(a, b, n, NULL, n, NULL, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(wrong, mep_iallgatherv(a, b, n, NULL, 99, comm, NULL, &request));
  EXPECT(wrong, mep_igatherv(a, b, 8, n, NULL, MEP_FLOAT32, 1, comm, NULL, &request));
  EXPECT(wrong, mep_iscatterv(a, b, 8, n, NULL, MEP_FLOAT32, -1, comm, NULL, &request));
  EXPECT(wrong, mep_ireduce_scatterv(a, b, n, NULL, MEP_FLOAT32, 9, comm, NULL, &request));
  EXPECT(wrong, mep_ialltoallv(a, b, n, NULL, NULL, NULL, MEP_FLOAT32, comm, NULL, &request));

  /* Arrays and buffers that are not there. */
  EXPECT(wrong, mep_allgatherv(a, b, NULL, NULL, MEP_FLOAT32, comm, NULL));
  EXPECT(wrong, mep_gatherv(a, b, 8, NULL, NULL, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(wrong, mep_scatterv(a, b, 8, NULL, NULL, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(wrong, mep_reduce_scatterv(a, b, NULL, NULL, MEP_FLOAT32, MEP_SUM, comm, NULL));
  EXPECT(wrong, mep_alltoallv(a, b, NULL, NULL, n, NULL, MEP_FLOAT32, comm, NULL));
  EXPECT(wrong, mep_allgatherv(NULL, b, n, NULL, MEP_FLOAT32, comm, NULL));
  EXPECT(wrong, mep_gatherv(a, NULL, 8, n, NULL, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(wrong, mep_scatterv(NULL, b, 8, n, NULL, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(wrong, mep_reduce_scatterv(a, NULL, n, NULL, MEP_FLOAT32, MEP_SUM, comm, NULL));
  EXPECT(wrong, mep_alltoallv(a, NULL, n, NULL, n, NULL, MEP_FLOAT32, comm, NULL));
  /* Beyond memory. */
  EXPECT(wrong, mep_allgatherv(a, b, far, NULL, MEP_FLOAT32, comm, NULL));
  EXPECT(wrong, mep_gatherv(a, b, SIZE_MAX, n, NULL, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(wrong, mep_scatterv(a, b, SIZE_MAX, n, NULL, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(wrong, mep_reduce_scatterv(a, b, n, far, MEP_FLOAT32, MEP_SUM, comm, NULL));
  EXPECT(wrong, mep_alltoallv(a, b, n, NULL, n, far, MEP_FLOAT32, comm, NULL));
  /* Overlaps. */
  EXPECT(wrong, mep_gatherv(a + 1, a, 4, n, NULL, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(wrong, mep_alltoallv(a, a, n, NULL, n, NULL, MEP_FLOAT32, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_allgatherv(a, b, n, NULL, MEP_FLOAT32, comm, stream));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_reduce_scatterv(a, b, n, NULL, MEP_FLOAT32, MEP_XOR, comm, NULL));
  assert_null(request);
  assert_true(a[0] == 1 && b[0] == 2); /* nothing was touched */
  /* The block that a rank gives itself must fit too. */
  EXPECT(MEP_ERR_MISMATCH, mep_gatherv(a, b, 7, n, NULL, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_MISMATCH, mep_scatterv(a, b, 7, n, NULL, MEP_FLOAT32, 0, comm, NULL));
  EXPECT(MEP_ERR_MISMATCH, mep_alltoallv(a, b, one, NULL, n, NULL, MEP_FLOAT32, comm, NULL));
  /* Nothing at all, in place, and at another place. */
  MUST(mep_allgatherv(NULL, NULL, nothing, far, MEP_FLOAT32, comm, NULL));
  MUST(mep_alltoallv(NULL, NULL, nothing, NULL, nothing, NULL, MEP_FLOAT32, comm, NULL));
  MUST(mep_allgatherv(a, a, n, NULL, MEP_FLOAT32, comm, NULL));
  MUST(mep_gatherv(a + 1, a, 1, one, one, MEP_FLOAT32, 0, comm, NULL));
  MUST(mep_scatterv(a, a + 1, 1, one, one, MEP_FLOAT32, 0, comm, NULL));
  MUST(mep_reduce_scatterv(a, a, n, NULL, MEP_FLOAT32, MEP_SUM, comm, NULL));
  MUST(mep_alltoallv(a, b, one, NULL, one, one, MEP_FLOAT32, comm, NULL));
  assert_true(b[0] == 2 && b[1] == 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(collectives_with_counts),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
