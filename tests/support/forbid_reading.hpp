// A process that may not read the memory of others, as in a sandbox; and whether processes of this machine may.
#pragma once

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

namespace mep_test {

// From here on process_vm_readv of this thread, and of those that it starts, fails with EPERM.
inline void forbid_reading() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof code / sizeof code[0], code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    _exit(77);
  }
}

// Whether one child of this process may read another one, as ranks do. Not so with Yama's ptrace_scope above 0, or where a
// sandbox forbids the call.
inline bool siblings_can_be_read() {
  static const uint64_t word = 0x1234'5678'9abc'def0;
  const pid_t read_one = fork();
  if (read_one == 0) {
    for (;;) pause();
  }
  const pid_t reader = fork();
  if (reader == 0) {
    uint64_t found = 0;
    const iovec local{&found, sizeof found};
    const iovec remote{const_cast<uint64_t*>(&word), sizeof word};
    const ssize_t got = process_vm_readv(read_one, &local, 1, &remote, 1, 0);
    _exit(got == static_cast<ssize_t>(sizeof found) && found == word ? 0 : 1);
  }
  int status = 1;
  if (read_one < 0 || reader < 0) return false;
  (void)waitpid(reader, &status, 0);
  (void)kill(read_one, SIGKILL);
  (void)waitpid(read_one, nullptr, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace mep_test
