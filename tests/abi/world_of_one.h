/* A world of one thread, for tests that need a communicator and no other rank. */
#ifndef MEP_TESTS_ABI_WORLD_OF_ONE_H
#define MEP_TESTS_ABI_WORLD_OF_ONE_H

#include "abi_test.h"

static mep_comm_t comm;

static int set_up(void** state) {
  (void)state;
  MUST(mep_comm_init_all(1, NULL, &comm));
  return 0;
}

static int tear_down(void** state) {
  (void)state;
  MUST(mep_comm_destroy(comm));
  return 0;
}

#endif
