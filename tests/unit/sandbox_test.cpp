// System calls that a sandbox forbids (seccomp: EPERM, ENOSYS): a start fails, and its text names the call and
// what allows it.
// labels: quick
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "mep.h"
#include "support/cmocka_cpp.hpp"

namespace {

enum Exit { kNamed = 0, kStarted = 1, kUnnamed = 2, kNoFilter = 3 };

// For the rest of this process's life.
bool forbid(unsigned call, unsigned error) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof code / sizeof code[0], code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

int start_without(unsigned call, unsigned error, const char* name, const char* transports) {
  if (!forbid(call, error)) return kNoFilter;
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  config.transports = transports;
  mep_comm_t comms[2] = {};
  if (mep_comm_init_all(2, &config, comms) == MEP_SUCCESS) return kStarted;
  const char* text = mep_last_error();
  if (std::strstr(text, name) != nullptr && std::strstr(text, "sandbox") != nullptr) return kNamed;
  std::fprintf(stderr, "%s refused with errno %u: \"%s\"\n", name, error, text);
  return kUnnamed;
}

void a_forbidden_call_is_named(void**) {
  const struct {
    unsigned call;
    const char* name;
    const char* transports;
  } cases[] = {
      {SYS_eventfd2, "eventfd2", nullptr},
      {SYS_eventfd2, "eventfd2", "tcp"},
      {SYS_memfd_create, "memfd_create", "shm"},
      {SYS_getrandom, "getrandom", nullptr},
      {SYS_sched_getaffinity, "sched_getaffinity", nullptr},
  };
  for (const auto& c : cases) {
    for (const unsigned error : {EPERM, ENOSYS}) {
      const pid_t child = fork();
      assert_true(child >= 0);
      if (child == 0) _exit(start_without(c.call, error, c.name, c.transports));
      int status = 0;
      assert_int_equal(waitpid(child, &status, 0), child);
      if (WIFEXITED(status) && WEXITSTATUS(status) == kNoFilter) skip();
      if (status != 0)
        fail_msg("%s, errno %u: status 0x%x", c.name, error, static_cast<unsigned>(status));
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(a_forbidden_call_is_named)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
