/* The values that mep_comm_query tells, and its errors. */
#include <stdlib.h>

#include "world_of_one.h"

static void wrong_arguments(void** state) {
  (void)state;
  mep_comm_info_t info;
  mep_comm_info_defaults(&info);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_query(NULL, &info));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_query(comm, NULL));
  mep_reach_t reach = 99;
  info.reach = &reach; /* an array without an entry */
  EXPECT(MEP_ERR_CAPACITY, mep_comm_query(comm, &info));
  assert_int_equal(reach, 99);
  assert_int_equal(info.size, 1);
  info.capacity = 1;
  MUST(mep_comm_query(comm, &info));
  assert_int_equal(reach, MEP_REACH_SELF);
}

static void values_in_force(void** state) {
  (void)state;
  setenv("MEP_HEARTBEAT_MS", "70", 1);
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  config.max_size = 20;
  config.suspect_ms = 900;
  mep_comm_t one = NULL;
  MUST(mep_comm_init_all(1, &config, &one));
  unsetenv("MEP_HEARTBEAT_MS");
  MUST(mep_comm_set_timeout(one, 1234));
  mep_comm_info_t info;
  mep_comm_info_defaults(&info);
  MUST(mep_comm_query(one, &info));
  assert_int_equal(info.flags, 0);
  assert_int_equal(info.rank, 0);
  assert_int_equal(info.size, 1);
  assert_int_equal(info.live, 1);
  assert_int_equal(info.max_size, 20);
  assert_true(info.device_type == MEP_DEVICE_HOST && info.device == 0);
  assert_int_equal(info.quorum, MEP_QUORUM_MAJORITY);
  assert_int_equal(info.timeout_ms, 1234);
  assert_int_equal(info.heartbeat_ms, 70);
  assert_int_equal(info.suspect_ms, 900);
  assert_int_equal(info.message_eager_bytes, MEP_MESSAGE_EAGER_BYTES);
  assert_int_equal(info.max_group_messages, 0);
  assert_int_equal(info.num_sms, 0);
  MUST(mep_comm_destroy(one));
}

/* Twenty ranks have smaller rings; one that leaves is reached no more. */
static void reaches(int maps, mep_reach_t expected) {
  enum { kRanks = 20 };
  mep_comm_t comms[kRanks];
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  setenv("MEP_MAP", maps ? "1" : "0", 1);
  MUST(mep_comm_init_all(kRanks, &config, comms));
  unsetenv("MEP_MAP");
  mep_reach_t reach[kRanks];
  const char* transports[kRanks];
  mep_comm_info_t info;
  mep_comm_info_defaults(&info);
  info.reach = reach;
  info.transports = transports;
  info.capacity = kRanks;
  MUST(mep_comm_query(comms[1], &info));
  assert_int_equal(info.rank, 1);
  assert_int_equal(info.flags, 0);
  assert_int_equal(info.message_eager_bytes, 4048);
  for (int i = 0; i < kRanks; ++i) {
    assert_int_equal(reach[i], i == 1 ? MEP_REACH_SELF : expected);
    assert_string_equal(transports[i], i == 1 ? "self" : maps ? "inproc" : "inproc (put only)");
  }
  MUST(mep_comm_abort(comms[0]));
  MUST(mep_comm_wait_view(comms[1], 1, 30000));
  MUST(mep_comm_query(comms[1], &info));
  assert_int_equal(info.live, kRanks - 1);
  assert_int_equal(reach[0], MEP_REACH_NONE);
  assert_int_equal(reach[2], expected);
  int32_t lost[kRanks];
  for (int forgotten = 0; forgotten < 2; ++forgotten) {
    memset(lost, 7, sizeof lost);
    MUST(mep_comm_lost_ranks(comms[1], lost, NULL));
    for (int i = 0; i < kRanks; ++i) assert_int_equal(lost[i], i == 0 && !forgotten);
    MUST(mep_comm_forget_lost(comms[1], NULL));
  }
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_lost_ranks(NULL, lost, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_lost_ranks(comms[1], NULL, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_comm_lost_ranks(comms[1], lost, lost)); /* a stream */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_forget_lost(NULL, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_comm_forget_lost(comms[1], lost));
  for (int i = 0; i < kRanks; ++i) MUST(mep_comm_abort(comms[i]));
  for (int i = 0; i < kRanks; ++i) MUST(mep_comm_destroy(comms[i]));
}

static void how_ranks_are_reached(void** state) {
  (void)state;
  reaches(1, MEP_REACH_MAPPED);
  reaches(0, MEP_REACH_NETWORK);
}

/* On hosts registering changes nothing. */
static void registered_memory(void** state) {
  (void)state;
  mep_comm_t comm;
  void* memory = NULL;
  MUST(mep_comm_init(NULL, &comm));
  MUST(mep_mem_alloc(comm, 5000, 0, 0, &memory));
  mep_registration_t registration = 7;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_register(NULL, memory, 5000, &registration));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_register(comm, NULL, 5000, &registration));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_register(comm, memory, 0, &registration));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_register(comm, memory, 5000, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_comm_deregister(NULL, 0));
  MUST(mep_comm_register(comm, memory, 5000, &registration));
  assert_true(registration == 0);
  MUST(mep_comm_deregister(comm, registration));
  MUST(mep_mem_free(comm, memory));
  MUST(mep_comm_destroy(comm));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(wrong_arguments),
      cmocka_unit_test(values_in_force),
      cmocka_unit_test(how_ranks_are_reached),
      cmocka_unit_test(registered_memory),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
