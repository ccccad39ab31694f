// labels: quick
// Where rank, size, job and the rest come from, and what is refused; struct_size rules of API
// structs.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "base/sized_struct.hpp"
#include "base/status.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

using Environment = std::vector<std::pair<const char*, const char*>>;

constexpr const char* kVariables[] = {"MEP_RANK",
                                      "MEP_SIZE",
                                      "MEP_JOB",
                                      "MEP_RENDEZVOUS",
                                      "MEP_SECRET_FILE",
                                      "MEP_ALLOW_INSECURE",
                                      "MEP_INIT_TIMEOUT_MS",
                                      "MEP_TIMEOUT_MS",
                                      "MEP_HEARTBEAT_MS",
                                      "MEP_SUSPECT_MS",
                                      "MEP_TRANSPORTS",
                                      "MEP_MAP",
                                      "MEP_SIMD",
                                      "MEP_PROGRESS_THREAD",
                                      "OMPI_COMM_WORLD_RANK",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_MCA_orte_precondition_transports",
                                      "OMPI_MCA_ess_base_jobid",
                                      "PMIX_RANK",
                                      "PMIX_SIZE",
                                      "PMIX_NAMESPACE",
                                      "PMI_RANK",
                                      "PMI_SIZE",
                                      "SLURM_PROCID",
                                      "SLURM_NTASKS",
                                      "SLURM_STEP_NUM_TASKS",
                                      "SLURM_JOB_ID",
                                      "SLURM_STEP_ID",
                                      "SLURM_STEPID",
                                      "RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_RANK",
                                      "LOCAL_WORLD_SIZE",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "TORCHELASTIC_RUN_ID",
                                      "TORCHELASTIC_RESTART_COUNT"};

void set_environment(const Environment& environment) {
  for (const char* name : kVariables) unsetenv(name);
  for (const auto& [name, value] : environment) setenv(name, value, 1);
}

void expect_text_has(const char* part) {
  if (strstr(mep::last_error_text(), part) == nullptr) {
    fail_msg("the error text \"%s\" lacks \"%s\"", mep::last_error_text(), part);
  }
}

mep_comm_config_t plain_config() {
  mep_comm_config_t config;
  mep::init_sized_struct(&config, sizeof config);
  return config;
}

struct Place {
  Environment environment;
  int32_t rank;
  int32_t size;
  std::string job;  // "": not compared
  std::string rendezvous = {};
};

void places_come_from_the_first_source(void**) {
  const std::string shell = "shell-" + std::to_string(getppid());
  const std::string alone = "pid-" + std::to_string(getpid());
  const std::vector<Place> places = {
      {{}, 0, 1, alone},
      {{{"MEP_RANK", "2"}, {"MEP_SIZE", "3"}}, 2, 3, shell},
      {{{"MEP_RANK", "2"}, {"MEP_SIZE", "3"}, {"MEP_JOB", "j"}}, 2, 3, "j"},
      {{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_NAMESPACE", "77"}},
       1,
       4,
       "ompi-77"},
      {{{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"PMIX_NAMESPACE", "77"},
        {"OMPI_MCA_orte_precondition_transports", "aa-bb"}},
       1,
       4,
       "ompi-77-aa-bb"},
      {{{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"MEP_RANK", "0"},
        {"MEP_SIZE", "2"}},
       0,
       2,
       ""},
      {{{"PMIX_RANK", "5"}, {"SLURM_NTASKS", "8"}, {"PMIX_NAMESPACE", "slurm.1.0"}},
       5,
       8,
       "pmix-slurm.1.0"},
      {{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, 1, 2, shell},
      {{{"SLURM_PROCID", "3"},
        {"SLURM_NTASKS", "9"},
        {"SLURM_STEP_NUM_TASKS", "4"},
        {"SLURM_JOB_ID", "12"},
        {"SLURM_STEP_ID", "1"}},
       3,
       4,
       "slurm-12-1"},
      // A batch script is no task of its allocation.
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "9"}, {"SLURM_JOB_ID", "12"}}, 0, 1, alone},
      // A process that mpiexec of an MPICH starts within a step has the step's variables too.
      {{{"PMI_RANK", "1"},
        {"PMI_SIZE", "2"},
        {"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "1"},
        {"SLURM_JOB_ID", "12"},
        {"SLURM_STEP_ID", "1"}},
       1,
       2,
       "slurm-12-1"},
      // torchrun on one host, and on two within a step of Slurm that runs one task a host.
      {{{"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_ADDR", "node7"},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_RUN_ID", "abc"},
        {"TORCHELASTIC_RESTART_COUNT", "0"}},
       1,
       2,
       "torch-abc-node7-29500-0"},
      {{{"RANK", "5"},
        {"WORLD_SIZE", "8"},
        {"LOCAL_WORLD_SIZE", "4"},
        {"MASTER_ADDR", "node7"},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_RUN_ID", "abc"},
        {"TORCHELASTIC_RESTART_COUNT", "2"},
        {"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_JOB_ID", "12"},
        {"SLURM_STEP_ID", "1"}},
       5,
       8,
       "torch-abc-node7-29500-2",
       "node7:29501"},
      // Set by hand, as torch's env:// wants them.
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "65535"}},
       1,
       2,
       "torch-127.0.0.1-65535"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "fe80::1"}, {"MASTER_PORT", "65535"}},
       1,
       2,
       "torch-fe80::1-65535",
       "[fe80::1]:65534"},
      {{{"RANK", "captain"}}, 0, 1, alone},
      {{{"RANK", "1"}, {"MEP_RANK", "0"}, {"MEP_SIZE", "1"}}, 0, 1, ""},
      {{{"WORLD_SIZE", "1"}}, 0, 1, alone},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MEP_RANK", "0"}, {"MEP_SIZE", "1"}}, 0, 1, ""},
  };
  for (const Place& place : places) {
    set_environment(place.environment);
    mep::ResolvedConfig config;
    if (mep::resolve_config(nullptr, &config) != MEP_SUCCESS)
      fail_msg("%s", mep::last_error_text());
    assert_int_equal(config.rank, place.rank);
    assert_int_equal(config.size, place.size);
    assert_int_equal(config.max_size, place.size);
    if (!place.job.empty()) assert_string_equal(config.job.c_str(), place.job.c_str());
    assert_string_equal(config.rendezvous.c_str(), place.rendezvous.c_str());
  }
}

void a_rendezvous_that_leads_nowhere_is_told(void**) {
  struct Case {
    Environment environment;
    const char* text;  // empty: nothing is told
  };
  const std::vector<Case> cases = {
      {{{"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}},
       "MASTER_ADDR=localhost leads them to themselves"},
      {{{"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}}, "MASTER_ADDR is not set"},
      {{{"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "node7"}}, "MASTER_PORT is not set"},
      {{{"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}}, ""},
      {{{"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}}, ""},
      {{{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}}, ""},
      {{{"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MEP_RENDEZVOUS", "node7:7"}},
       ""},
  };
  for (const Case& entry : cases) {
    Environment environment = entry.environment;
    environment.emplace_back("RANK", "1");
    environment.emplace_back("WORLD_SIZE", "4");
    set_environment(environment);
    mep::ResolvedConfig config;
    assert_int_equal(mep::resolve_config(nullptr, &config), MEP_SUCCESS);
    assert_int_equal(config.no_rendezvous.empty(), *entry.text == '\0');
    assert_true(config.no_rendezvous.find(entry.text) != std::string::npos);
  }
}

void fields_come_before_the_environment(void**) {
  set_environment({{"MEP_RANK", "1"},
                   {"MEP_SIZE", "2"},
                   {"MEP_JOB", "env"},
                   {"MEP_TIMEOUT_MS", "11"},
                   {"MEP_INIT_TIMEOUT_MS", "12"},
                   {"MEP_HEARTBEAT_MS", "13"},
                   {"MEP_SUSPECT_MS", "14"},
                   {"MEP_TRANSPORTS", "shm, tcp"},
                   {"MEP_NUM_SMS", "15"},
                   {"MEP_MAP", "0"},
                   {"MEP_PROGRESS_THREAD", "1"}});
  mep::ResolvedConfig config;
  assert_int_equal(mep::resolve_config(nullptr, &config), MEP_SUCCESS);
  assert_int_equal(config.timeout_ms, 11);
  assert_int_equal(config.init_timeout_ms, 12);
  assert_int_equal(config.heartbeat_ms, 13);
  assert_int_equal(config.suspect_ms, 14);
  assert_int_equal(config.num_sms, 15);
  assert_true(config.rank_given);
  assert_true((config.transports == std::vector<std::string>{"shm", "tcp"}));
  assert_false(config.maps);
  assert_int_equal(config.flags & MEP_COMM_PROGRESS_THREAD, MEP_COMM_PROGRESS_THREAD);

  mep_comm_config_t given = plain_config();
  given.flags = MEP_COMM_SET_RANK;
  given.rank = 0;
  given.size = 5;
  given.max_size = 6;
  given.job = "field";
  given.timeout_ms = 21;
  given.init_timeout_ms = 22;
  given.heartbeat_ms = 23;
  given.suspect_ms = 24;
  given.num_sms = 25;
  given.transports = "inproc";
  assert_int_equal(mep::resolve_config(&given, &config), MEP_SUCCESS);
  assert_int_equal(config.rank, 0);
  assert_int_equal(config.size, 5);
  assert_int_equal(config.max_size, 6);
  assert_string_equal(config.job.c_str(), "field");
  assert_int_equal(config.timeout_ms, 21);
  assert_int_equal(config.init_timeout_ms, 22);
  assert_int_equal(config.heartbeat_ms, 23);
  assert_int_equal(config.suspect_ms, 24);
  assert_int_equal(config.num_sms, 25);
  assert_int_equal(config.transports.size(), 1);
}

void defaults_hold_when_nothing_is_said(void**) {
  set_environment({});
  mep::ResolvedConfig config;
  const mep_comm_config_t given = plain_config();
  assert_int_equal(mep::resolve_config(&given, &config), MEP_SUCCESS);
  assert_int_equal(config.timeout_ms, 30000);
  assert_int_equal(config.init_timeout_ms, 60000);
  assert_int_equal(config.heartbeat_ms, 100);
  assert_int_equal(config.suspect_ms, 5000);
  assert_int_equal(config.quorum, MEP_QUORUM_MAJORITY);
  assert_true(config.transports.empty());
  assert_false(config.rank_given);
}

void wrong_environments_are_named(void**) {
  struct Case {
    Environment environment;
    mep_result_t result;
    const char* text;
  };
  const std::vector<Case> cases = {
      {{{"MEP_RANK", "3"}, {"MEP_SIZE", "3"}}, MEP_ERR_INVALID_ARGUMENT, "MEP_RANK"},
      {{{"MEP_RANK", "3"}}, MEP_ERR_INVALID_ARGUMENT, "MEP_SIZE"},
      {{{"MEP_SIZE", "3"}}, MEP_ERR_INVALID_ARGUMENT, "MEP_RANK"},
      {{{"MEP_RANK", "x"}, {"MEP_SIZE", "3"}}, MEP_ERR_INVALID_ARGUMENT, "MEP_RANK=x"},
      {{{"MEP_RANK", "0"}, {"MEP_SIZE", "0"}}, MEP_ERR_INVALID_ARGUMENT, "MEP_SIZE=0"},
      {{{"MEP_RANK", "-1"}, {"MEP_SIZE", "2"}}, MEP_ERR_INVALID_ARGUMENT, "MEP_RANK=-1"},
      // Membership has no more places.
      {{{"MEP_RANK", "0"}, {"MEP_SIZE", "4097"}}, MEP_ERR_INVALID_ARGUMENT, "MEP_SIZE=4097"},
      {{{"MEP_ALLOW_INSECURE", "perhaps"}}, MEP_ERR_INVALID_ARGUMENT, "MEP_ALLOW_INSECURE"},
      {{{"MEP_TRANSPORTS", "shm,,tcp"}}, MEP_ERR_INVALID_ARGUMENT, "empty name"},
      {{{"MEP_TRANSPORTS", "shm,shm"}}, MEP_ERR_INVALID_ARGUMENT, "twice"},
      {{{"MEP_HEARTBEAT_MS", "6000"}}, MEP_ERR_INVALID_ARGUMENT, "suspect_ms"},
      {{{"MEP_SIMD", "foo"}}, MEP_ERR_INVALID_ARGUMENT, "MEP_SIMD=foo"},
      {{{"MEP_TIMEOUT_MS", "0"}}, MEP_ERR_INVALID_ARGUMENT, "MEP_TIMEOUT_MS"},
      {{{"OMPI_COMM_WORLD_RANK", "1"}}, MEP_ERR_INVALID_ARGUMENT, "OMPI_COMM_WORLD_RANK"},
      {{{"WORLD_SIZE", "2"}}, MEP_ERR_INVALID_ARGUMENT, "RANK is not"},
      {{{"RANK", "0"}}, MEP_ERR_INVALID_ARGUMENT, "RANK=0 is set but WORLD_SIZE is not"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, MEP_ERR_INVALID_ARGUMENT, "WORLD_SIZE=2"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}},
       MEP_ERR_INVALID_ARGUMENT,
       "MASTER_PORT"},
      {{{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
       MEP_ERR_INVALID_ARGUMENT,
       "OMPI_COMM_WORLD_SIZE"},
      {{{"PMI_RANK", "one"}, {"PMI_SIZE", "2"}}, MEP_ERR_INVALID_ARGUMENT, "PMI_RANK=one"},
  };
  for (const Case& entry : cases) {
    set_environment(entry.environment);
    mep::ResolvedConfig config;
    assert_int_equal(mep::resolve_config(nullptr, &config), entry.result);
    expect_text_has(entry.text);
  }
}

void refuse(mep_comm_config_t config, mep_result_t result, const char* text) {
  mep::ResolvedConfig out;
  assert_int_equal(mep::resolve_config(&config, &out), result);
  expect_text_has(text);
}

int never_called(void*, const char*, const void*, size_t) {
  return 1;
}

void wrong_fields_are_named(void**) {
  set_environment({});
  mep_comm_config_t config = plain_config();
  config.flags = 1u << 20;
  refuse(config, MEP_ERR_INVALID_ARGUMENT, "flags");
  config = plain_config();
  config.rank = 1;
  refuse(config, MEP_ERR_INVALID_ARGUMENT, "MEP_COMM_SET_RANK");
  config.flags = MEP_COMM_SET_RANK;
  refuse(config, MEP_ERR_INVALID_ARGUMENT, "MEP_SIZE");
  config.rank = -1;
  refuse(config, MEP_ERR_INVALID_ARGUMENT, "config.rank");
  config = plain_config();
  config.device = 1;
  refuse(config, MEP_ERR_INVALID_ARGUMENT, "config.device");
  config.device_type = MEP_DEVICE_CUDA;
  config.device = -2;
  refuse(config, MEP_ERR_INVALID_ARGUMENT, "config.device");
  config.device = 0;
  config.device_type = 3;
  refuse(config, MEP_ERR_UNSUPPORTED, "config.device_type is 3");
  config.device_type = MEP_DEVICE_CUDA_BY_RANK;
  config.flags |= MEP_COMM_AUTO_RECOVER;
  refuse(config, MEP_ERR_UNSUPPORTED, "device");
  config = plain_config();
  config.size = -2;
  refuse(config, MEP_ERR_INVALID_ARGUMENT, "config.size");
  config = plain_config();
  config.flags = MEP_COMM_SET_RANK;
  config.size = 4;
  config.max_size = 3;
  refuse(config, MEP_ERR_INVALID_ARGUMENT, "max_size");
  config = plain_config();
  config.quorum = 3;
  refuse(config, MEP_ERR_INVALID_ARGUMENT, "quorum");
  config = plain_config();
  const std::string long_name(256, 'j');
  config.job = long_name.c_str();
  refuse(config, MEP_ERR_INVALID_ARGUMENT, "255");
  mep_store_t store;
  mep::init_sized_struct(&store, sizeof store);
  store.put = never_called;
  config = plain_config();
  config.store = &store;
  refuse(config, MEP_ERR_INVALID_ARGUMENT, "store.get");
  store.flags = 1;
  refuse(config, MEP_ERR_INVALID_ARGUMENT, "store.flags");
}

void a_joiner_needs_the_job_only(void**) {
  mep::ResolvedConfig config;
  set_environment({});
  assert_int_equal(mep::resolve_config(nullptr, &config, mep::ConfigUse::kJoin),
                   MEP_ERR_INVALID_ARGUMENT);
  expect_text_has("MEP_JOB");
  set_environment({{"MEP_JOB", "j"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  assert_int_equal(mep::resolve_config(nullptr, &config, mep::ConfigUse::kJoin), MEP_SUCCESS);
  assert_false(config.rank_given);
  set_environment({{"MEP_JOB", "j"}, {"MEP_RANK", "3"}});
  assert_int_equal(mep::resolve_config(nullptr, &config, mep::ConfigUse::kJoin), MEP_SUCCESS);
  assert_true(config.rank_given);
  assert_int_equal(config.rank, 3);
}

void structs_of_other_ages_are_read_by_their_size(void**) {
  set_environment({});
  struct Newer {
    mep_comm_config_t known;
    unsigned char unknown[16];
  } newer;
  memset(&newer, 0, sizeof newer);
  newer.known.struct_size = sizeof newer;
  newer.known.timeout_ms = 5;
  mep::ResolvedConfig config;
  assert_int_equal(mep::resolve_config(&newer.known, &config), MEP_SUCCESS);
  assert_int_equal(config.timeout_ms, 5);
  newer.unknown[15] = 1;
  assert_int_equal(mep::resolve_config(&newer.known, &config), MEP_ERR_INVALID_ARGUMENT);
  expect_text_has("newer MEP");

  // An older caller's struct ends before timeout_ms; what lies behind is not read.
  mep_comm_config_t older = plain_config();
  older.struct_size = offsetof(mep_comm_config_t, timeout_ms);
  older.timeout_ms = 99;
  assert_int_equal(mep::resolve_config(&older, &config), MEP_SUCCESS);
  assert_int_equal(config.timeout_ms, 30000);
  for (const uint32_t size : {0u, 4u, 7u, 65537u, 0xffffffffu}) {
    older.struct_size = size;
    assert_int_equal(mep::resolve_config(&older, &config), MEP_ERR_INVALID_ARGUMENT);
    expect_text_has("struct_size");
  }
}

void written_structs_keep_the_callers_size(void**) {
  mep_view_t value;
  memset(&value, 0x55, sizeof value);
  mep_view_t caller;
  memset(&caller, 0, sizeof caller);
  caller.struct_size = offsetof(mep_view_t, size);
  mep::write_sized_struct(value, &caller);
  assert_int_equal(caller.struct_size, offsetof(mep_view_t, size));
  assert_int_equal(caller.epoch, value.epoch);
  assert_int_equal(caller.size, 0);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(places_come_from_the_first_source),
      cmocka_unit_test(a_rendezvous_that_leads_nowhere_is_told),
      cmocka_unit_test(fields_come_before_the_environment),
      cmocka_unit_test(defaults_hold_when_nothing_is_said),
      cmocka_unit_test(wrong_environments_are_named),
      cmocka_unit_test(wrong_fields_are_named),
      cmocka_unit_test(a_joiner_needs_the_job_only),
      cmocka_unit_test(structs_of_other_ages_are_read_by_their_size),
      cmocka_unit_test(written_structs_keep_the_callers_size),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
