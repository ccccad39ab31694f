// Failpoints: what is armed strikes at its passage and only there; what is malformed is refused.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/failpoint.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

// The wait status of a child that arms `text` and passes "signal" `passages` times, then "commit" once.
int status_of(const char* text, int passages) {
  const pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    if (mep::failpoint_arm(text) != MEP_SUCCESS) _exit(9);
    for (int i = 0; i < passages; ++i) MEP_FAILPOINT("signal");
    MEP_FAILPOINT("commit");
    _exit(mep::failpoints_armed.load() ? 1 : 0);
  }
  int status = 0;
  assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
  if (WIFSTOPPED(status)) {
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, nullptr, 0), pid);
  }
  return status;
}

void strikes_at_the_passage_asked_for(void**) {
  const int killed = status_of("signal:3=kill", 3);
  assert_true(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL);
  const int spared = status_of("signal:3=kill", 2);
  assert_true(WIFEXITED(spared) && WEXITSTATUS(spared) == 1);
  const int paused = status_of("signal:2=pause", 2);
  assert_true(WIFEXITED(paused) && WEXITSTATUS(paused) == 0);
  const int stopped = status_of("leave=kill,commit=stop", 2);
  assert_true(WIFSTOPPED(stopped) && WSTOPSIG(stopped) == SIGSTOP);
}

void refuses_what_is_malformed(void**) {
  for (const char* text : {"", "signal", "signal=", "=kill", "signal=nap", "signal:0=kill",
                           "signal:x=kill", "signal=kill,", "signal:=kill"}) {
    assert_int_equal(mep::failpoint_arm(text), MEP_ERR_INVALID_ARGUMENT);
    assert_false(mep::failpoints_armed.load());
  }
}

void refuses_a_name_that_no_point_has(void**) {
  for (const char* text : {"here=kill", "signa=kill", "signal=stop,commits:2=kill"}) {
    assert_int_equal(mep::failpoint_arm(text), MEP_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(mep_last_error(), "ep combine ready"));  // the names that there are
    assert_non_null(strstr(mep_last_error(), "window drop"));
    assert_false(mep::failpoints_armed.load());
  }
}

void comes_from_the_environment_once(void**) {
  setenv("MEP_FAILPOINT", "leave=stop", 1);
  assert_int_equal(mep::failpoints_from_environment(), MEP_SUCCESS);
  assert_true(mep::failpoints_armed.load());
  mep::failpoint_disarm_all();
  assert_int_equal(mep::failpoints_from_environment(), MEP_SUCCESS);
  assert_false(mep::failpoints_armed.load());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(strikes_at_the_passage_asked_for),
      cmocka_unit_test(refuses_what_is_malformed),
      cmocka_unit_test(refuses_a_name_that_no_point_has),
      cmocka_unit_test(comes_from_the_environment_once),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
