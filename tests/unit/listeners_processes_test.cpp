// labels: gate
// A rank listens only where a peer has to connect to it: in a job over shared memory nowhere. Somebody from
// another host is let in all the same.
#include <dirent.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "support/join_job.hpp"
#include "support/temporary_folder.hpp"

using namespace mep_test;

namespace {

constexpr const char* kListening = "0A";  // TCP_LISTEN of the kernel

void add_listeners(const char* table, std::set<unsigned long>* inodes) {
  FILE* file = fopen(table, "re");
  if (file == nullptr) return;  // no IPv6 here
  char line[512];
  while (fgets(line, sizeof line, file) != nullptr) {
    char state[8] = "";
    unsigned long inode = 0;
    if (sscanf(line, "%*s %*s %*s %7s %*s %*s %*s %*s %*s %lu", state, &inode) == 2 &&
        std::string(state) == kListening) {
      inodes->insert(inode);
    }
  }
  fclose(file);
}

// TCP sockets of this process that listen.
int own_listeners() {
  std::set<unsigned long> inodes;
  add_listeners("/proc/self/net/tcp", &inodes);
  add_listeners("/proc/self/net/tcp6", &inodes);
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return -1;
  int count = 0;
  while (const dirent* entry = readdir(folder)) {  // NOLINT(concurrency-mt-unsafe): own stream
    char target[64] = "";
    unsigned long inode = 0;
    if (readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1) > 0 &&
        sscanf(target, "socket:[%lu]", &inode) == 1 && inodes.contains(inode)) {
      ++count;
    }
  }
  closedir(folder);
  return count;
}

void nobody_listens_in_a_job_of_one_host(void**) {
  Report report;
  JoinJob job(3, patient_config(0), report, [](int, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    COLL_CHECK(found, own_listeners() == 0);
    COLL_OK(found, mep_barrier(comm, nullptr));
  });
  job.expect_clean_end();
  report.require_clean();
}

// Over TCP each rank listens to whom it does not call.
void only_the_called_listen(void**) {
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.transports = "tcp";
  JoinJob job(3, config, report, [](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    COLL_CHECK(found, (own_listeners() > 0) == (rank < 2));
    COLL_OK(found, mep_barrier(comm, nullptr));
  });
  job.expect_clean_end();
  report.require_clean();
}

// Three ranks of a host and a joiner of another one, which comes while they start, or later.
void let_in_a_joiner(bool comes_late) {
  const TemporaryFolder folder;
  setenv("MEP_RENDEZVOUS", folder.path().c_str(), 1);
  setenv("MEP_ALLOW_INSECURE", "1", 1);
  setenv("MEP_NET_IF", "lo", 1);
  setenv("MEP_TEST_HOST", "here", 1);
  const auto page = JoinJob::shared_page();
  Report report;
  mep_comm_config_t config = patient_config(0);
  config.max_size = 4;
  JoinJob job(3, config, report, [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    const int before = own_listeners();
    page->reach(0);
    mep_comm_t grown = nullptr;
    COLL_OK(found, mep_comm_grow(comm, 1, kNeverMs, &grown));
    if (grown == nullptr) return;
    if (comes_late) COLL_CHECK(found, own_listeners() > before);
    check_contributors(rank, grown, 0x1111, found);
    COLL_OK(found, mep_comm_destroy(grown));
  });
  if (comes_late) page->await(0, 3);
  setenv("MEP_TEST_HOST", "there", 1);
  job.join(3, [](int rank, mep_comm_t comm, Report& found) {
    check_contributors(rank, comm, 0x1111, found);
  });
  job.expect_clean_end();
  for (const char* name : {"MEP_RENDEZVOUS", "MEP_ALLOW_INSECURE", "MEP_NET_IF", "MEP_TEST_HOST"}) {
    unsetenv(name);
  }
  report.require_clean();
}

// The members listen to it once it comes; what they listen on before is for joiners to ask at.
void a_joiner_from_another_host_is_let_in(void**) {
  let_in_a_joiner(true);
}

// The joiner may find only some of the members in the directory.
void a_joiner_from_another_host_is_there_first(void**) {
  for (size_t i = 0; i < slice(5, 200); ++i) let_in_a_joiner(false);
}

void an_interface_that_is_not_there_is_named(void**) {
  mep_comm_config_t config = patient_config(0);
  config.transports = "tcp";
  setenv("MEP_NET_IF", "nowhere9", 1);
  mep_comm_t comms[2] = {};
  assert_int_equal(mep_comm_init_all(2, &config, comms), MEP_ERR_UNSUPPORTED);
  assert_non_null(std::strstr(mep_last_error(), "MEP_NET_IF=nowhere9"));
  unsetenv("MEP_NET_IF");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(nobody_listens_in_a_job_of_one_host),
                              cmocka_unit_test(only_the_called_listen),
                              cmocka_unit_test(an_interface_that_is_not_there_is_named),
                              cmocka_unit_test(a_joiner_from_another_host_is_let_in),
                              cmocka_unit_test(a_joiner_from_another_host_is_there_first)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
