// mep_run seen from outside: environments, exit codes, output, signals, and that nothing outlives
// it. usage: bootstrap_mep_run_test PATH_OF_MEP_RUN
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "mep.h"
#include "support/cmocka_cpp.hpp"

namespace {

const char* run_program = nullptr;
std::string own_program;

struct Job {
  pid_t pid = 0;
  int input = -1;
  int output = -1;  // both streams
};

Job launch(std::vector<std::string> words) {
  int input[2];
  int output[2];
  assert_int_equal(pipe2(input, O_CLOEXEC), 0);
  assert_int_equal(pipe2(output, O_CLOEXEC), 0);
  words.insert(words.begin(), run_program);
  const pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    dup2(input[0], 0);
    dup2(output[1], 1);
    dup2(output[1], 2);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execv(run_program, arguments.data());
    _exit(126);
  }
  close(input[0]);
  close(output[1]);
  return {pid, input[1], output[0]};
}

// Everything that is said until nobody holds the output any more.
std::string read_all(const Job& job) {
  std::string text;
  char chunk[4096];
  ssize_t count = 0;
  while ((count = read(job.output, chunk, sizeof chunk)) > 0) {
    text.append(chunk, static_cast<size_t>(count));
  }
  return text;
}

std::string read_until(const Job& job, const std::string& part) {
  std::string text;
  char byte = 0;
  while (text.find(part) == std::string::npos) {
    if (read(job.output, &byte, 1) != 1)
      fail_msg("\"%s\" lacks \"%s\"", text.c_str(), part.c_str());
    text += byte;
  }
  return text;
}

int finish(const Job& job, std::string* text) {
  close(job.input);
  *text = read_all(job);
  close(job.output);
  int status = 0;
  assert_int_equal(waitpid(job.pid, &status, 0), job.pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int run(std::vector<std::string> words, std::string* text) {
  return finish(launch(std::move(words)), text);
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

void ranks_know_who_they_are(void**) {
  std::string first;
  std::string second;
  setenv("MEP_JOIN", "1", 1);  // of somebody else
  const std::vector<std::string> words = {
      "-n", "3",  "--",
      "sh", "-c", "echo \"<$MEP_RANK $MEP_LOCAL_RANK $MEP_SIZE ${MEP_JOIN-no} $MEP_JOB>\""};
  assert_int_equal(run(words, &first), 0);
  assert_int_equal(run(words, &second), 0);
  unsetenv("MEP_JOIN");
  std::set<std::string> jobs;
  for (const std::string& text : {first, second}) {
    for (const char* start : {"<0 0 3 no ", "<1 1 3 no ", "<2 2 3 no "}) {
      const size_t at = text.find(start);
      assert_true(at != std::string::npos);
      jobs.insert(text.substr(at + strlen(start), text.find('>', at) - at - strlen(start)));
    }
  }
  assert_int_equal(jobs.size(), 2);  // one name a job, another one for the next
}

// The variables of torch.distributed's env://: <rank size local_rank local_size address port>.
std::string torch_variables_of(const std::vector<std::string>& options, size_t ranks) {
  std::vector<std::string> words = options;
  for (const char* word : {"--", "sh", "-c",
                           "echo \"<$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE "
                           "${MASTER_ADDR-no} ${MASTER_PORT-no}>\""}) {
    words.emplace_back(word);
  }
  std::string text;
  assert_int_equal(run(words, &text), 0);
  assert_int_equal(count_of(text, ">"), ranks);
  return text;
}

void ranks_have_the_variables_of_torch(void**) {
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "MEP_RENDEZVOUS"}) unsetenv(name);
  setenv("RANK", "7", 1);  // of somebody else
  std::string text = torch_variables_of({"-n", "2"}, 2);
  const std::string first = "<0 2 0 2 127.0.0.1 ";
  const size_t at = text.find(first);
  assert_true(at != std::string::npos);
  const std::string port = text.substr(at + first.size(), text.find('>', at) - at - first.size());
  assert_true(atoi(port.c_str()) > 0);
  assert_int_equal(count_of(text, "<1 2 1 2 127.0.0.1 " + port + ">"), 1);  // one port for all

  // Several hosts: where MEP meets, one port below it.
  setenv("MEP_RENDEZVOUS", "node1:7000,node2:7100", 1);
  text = torch_variables_of({"-n", "2", "--size", "4", "--rank-offset", "2"}, 2);
  assert_int_equal(count_of(text, "<2 4 0 2 node1 6999>"), 1);
  assert_int_equal(count_of(text, "<3 4 1 2 node1 6999>"), 1);
  // The caller's own place stays.
  setenv("MASTER_ADDR", "elsewhere", 1);
  setenv("MASTER_PORT", "29500", 1);
  text = torch_variables_of({"-n", "1", "--size", "2"}, 1);
  assert_int_equal(count_of(text, "<0 2 0 1 elsewhere 29500>"), 1);
  unsetenv("MASTER_ADDR");
  unsetenv("MASTER_PORT");
  // Hosts that meet in a directory: none of them is known.
  setenv("MEP_RENDEZVOUS", "/shared/of/all", 1);
  text = torch_variables_of({"-n", "1", "--size", "2"}, 1);
  assert_int_equal(count_of(text, "<0 2 0 1 no no>"), 1);
  unsetenv("MEP_RENDEZVOUS");
  unsetenv("RANK");
}

void the_first_failing_rank_gives_the_status(void**) {
  std::string text;
  assert_int_equal(run({"-n", "2", "true"}, &text), 0);
  assert_string_equal(text.c_str(), "");
  assert_int_equal(run({"-n", "3", "sh", "-c", "exit $((MEP_RANK == 1 ? 7 : 0))"}, &text), 7);
  assert_int_equal(count_of(text, "mep_run: rank 1 (pid "), 1);
  assert_int_equal(count_of(text, "exited with status 7"), 1);
  assert_int_equal(run({"-n", "1", "sh", "-c", "kill -SEGV $$"}, &text), 128 + SIGSEGV);
  assert_int_equal(count_of(text, "was killed by signal 11 (SIGSEGV)"), 1);
  assert_int_equal(run({"-n", "2", "/no/such/program"}, &text), 127);
  assert_int_equal(count_of(text, "'/no/such/program' cannot be started"), 1);
}

void who_ended_well_before_a_failure_is_told(void**) {
  std::string text;
  const std::string waits = "while kill -0 $(cat \"$0\") 2>/dev/null; do sleep 0.01; done; exit 3";
  char file[] = "/tmp/mep-run-XXXXXX";
  const int fd = mkstemp(file);
  assert_true(fd >= 0);
  close(fd);
  // Rank 1 fails once rank 0 has been reaped.
  assert_int_equal(run({"-n", "2", "sh", "-c",
                        "if [ $MEP_RANK = 0 ]; then echo $$ > \"$0\"; exit 0; fi; "
                        "while ! [ -s \"$0\" ]; do sleep 0.01; done; " +
                            waits,
                        file},
                       &text),
                   3);
  unlink(file);
  assert_int_equal(count_of(text, "rank 0 had exited with status 0 before"), 1);
  assert_int_equal(count_of(text, "mep_comm_destroy"), 1);
}

void the_hosts_job_is_named_by_where_it_meets(void**) {
  std::string text;
  const auto name_at = [&text](const char* rendezvous) {
    setenv("MEP_RENDEZVOUS", rendezvous, 1);
    assert_int_equal(run({"-n", "1", "--size", "2", "sh", "-c", "echo $MEP_JOB"}, &text), 0);
    unsetenv("MEP_RENDEZVOUS");
    return text;
  };
  unsetenv("MEP_JOB");
  assert_string_equal(name_at("a:7001,b:7000").c_str(), "hosts-7000\n");
  assert_string_equal(name_at("b:7000, localhost:7001").c_str(), "hosts-7000\n");
  assert_string_equal(name_at("/shared/one/").c_str(), "hosts-one\n");
  assert_string_equal(name_at("nonsense").c_str(), "hosts\n");
}

void wrong_usage_is_refused(void**) {
  std::string text;
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{},
                                             {"-n", "0", "true"},
                                             {"-n", "x", "true"},
                                             {"-n", "2"},
                                             {"-n"},
                                             {"--odd", "true"},
                                             {"-n", "1", "--timeout", "0", "true"},
                                             {"true"}}) {
    assert_int_equal(run(words, &text), 2);
    assert_int_equal(count_of(text, "--help"), 1);
  }
  assert_int_equal(run({"--help"}, &text), 0);
  assert_int_equal(count_of(text, "--respawn"), 1);
  const std::string version = "mep_run " + std::to_string(MEP_VERSION_MAJOR) + "." +
                              std::to_string(MEP_VERSION_MINOR) + "." +
                              std::to_string(MEP_VERSION_PATCH) + "\n";
  assert_int_equal(run({"--version"}, &text), 0);
  assert_string_equal(text.c_str(), version.c_str());
  for (const char* option : {"-H", "--hostfile"}) {
    assert_int_equal(run({"-n", "2", option, "hosts", "/bin/true"}, &text), 2);
    assert_int_equal(count_of(text, "mpirun or srun"), 1);
  }
}

void a_death_takes_nobody_along(void**) {
  const Job job = launch({"-n", "3", "sh", "-c",
                          "if [ $MEP_RANK = 1 ]; then kill -KILL $$; fi; "
                          "if [ $MEP_RANK = 0 ]; then read go; fi; echo done$MEP_RANK"});
  std::string before = read_until(job, "was killed by signal 9 (SIGKILL)");
  assert_int_equal(write(job.input, "go\n", 3), 3);
  std::string text;
  assert_int_equal(finish(job, &text), 128 + SIGKILL);
  text = before + text;
  assert_int_equal(count_of(text, "done0"), 1);
  assert_int_equal(count_of(text, "done2"), 1);
}

// A rank that begins to start: says how that ended. It must be long before the 60 s that a start may take.
int start_as_rank() {
  constexpr uint64_t kLongNs = 20'000'000'000;
  mep_comm_t comm = nullptr;
  const uint64_t begun_ns = mep::now_ns();
  const mep_result_t result = mep_comm_init(nullptr, &comm);
  const bool in_time = mep::now_ns() - begun_ns < kLongNs;
  printf("rank %s: %s, %s\n", getenv("MEP_RANK"), mep_result_string(result), mep_last_error());
  return in_time && result == MEP_ERR_BOOTSTRAP ? 0 : 5;
}

// Ranks that start before and after it learn of a death that only the launcher has seen.
void a_death_before_the_start_ends_it(void**) {
  const Job job = launch({"-n", "4", "--allow-failures", "1", "sh", "-c",
                          "if [ $MEP_RANK = 1 ]; then kill -KILL $$; fi; "
                          "if [ $MEP_RANK = 0 ]; then read go; fi; exec " +
                              own_program + " --start"});
  std::string before = read_until(job, "was killed by signal 9 (SIGKILL)");
  before += read_until(job, "rank 3: MEP_ERR_BOOTSTRAP");  // it does not wait for rank 0
  assert_int_equal(write(job.input, "go\n", 3), 3);
  std::string text;
  assert_int_equal(finish(job, &text), 0);
  text = before + text;
  for (const char* rank : {"0", "2", "3"}) {
    const size_t at = text.find(std::string("rank ") + rank + ": MEP_ERR_BOOTSTRAP");
    assert_true(at != std::string::npos);
    const std::string line = text.substr(at, text.find('\n', at) - at);
    if (line.find("rank 1 (pid ") == std::string::npos)
      fail_msg("\"%s\" does not name rank 1", line.c_str());
  }
}

void lost_ranks_may_be_allowed(void**) {
  std::string text;
  const char* program = "if [ $MEP_RANK -lt $LOST ]; then kill -KILL $$; fi; exit ${STATUS-0}";
  const auto with = [&](const char* lost, const char* allowed) {
    setenv("LOST", lost, 1);
    return run({"-n", "3", "--allow-failures", allowed, "sh", "-c", program}, &text);
  };
  const char* line =
      "mep_run: 1 of 3 ranks lost, as --allow-failures 1 allows; the others succeeded\n";
  assert_int_equal(with("1", "1"), 0);
  assert_int_equal(count_of(text, line), 1);
  assert_int_equal(with("0", "1"), 0);
  assert_string_equal(text.c_str(), "");
  assert_int_equal(with("1", "0"), 128 + SIGKILL);
  assert_int_equal(with("2", "1"), 128 + SIGKILL);
  assert_int_equal(count_of(text, "allows"), 0);
  // A rank that exits with a status of its own has failed.
  setenv("STATUS", "4", 1);
  assert_int_equal(with("1", "1"), 4);
  assert_int_equal(count_of(text, "allows"), 0);
  unsetenv("STATUS");
  unsetenv("LOST");
  assert_int_equal(run({"-n", "2", "--allow-failures", "2", "true"}, &text), 2);
  assert_int_equal(run({"-n", "2", "--size", "4", "--allow-failures", "2", "true"}, &text), 0);

  // Ranks that the user ends are not lost.
  const Job job = launch({"-n", "2", "--allow-failures", "1", "sh", "-c",
                          "if [ $MEP_RANK = 0 ]; then trap '' INT; read go; exit 0; fi; "
                          "echo up; while :; do sleep 0.05; done"});
  read_until(job, "up");
  kill(job.pid, SIGINT);
  read_until(job, "was killed by signal 2 (SIGINT)");
  assert_int_equal(finish(job, &text), 128 + SIGINT);
}

// The others never end by themselves: where the option does nothing, --timeout gives status 124. 0.1 s
void a_failure_may_end_the_others(void**) {
  std::string text;
  // Rank 1 fails once the others are up; its replacement, if one is started, fails at once.
  const std::string rank_1_waits =
      "if [ $MEP_RANK != 1 ]; then echo up$MEP_RANK; exec sleep 600; fi; "
      "if [ \"$MEP_JOIN\" ]; then exit 6; fi; read go <\"$0\"; ";
  const auto with = [&](std::vector<std::string> options, const std::string& end) {
    char folder[] = "/tmp/mep-run-XXXXXX";
    assert_non_null(mkdtemp(folder));
    const std::string pipe = std::string(folder) + "/go";
    assert_int_equal(mkfifo(pipe.c_str(), 0600), 0);
    options.insert(options.begin(), {"-n", "3", "--timeout", "20"});
    options.insert(options.end(), {"sh", "-c", rank_1_waits + end, pipe});
    const Job job = launch(options);
    std::string before = read_until(job, "up");
    before += read_until(job, "up");
    const int go = open(pipe.c_str(), O_WRONLY | O_CLOEXEC);
    assert_int_equal(write(go, "go\n", 3), 3);
    close(go);
    const int status = finish(job, &text);
    text = before + text;
    unlink(pipe.c_str());
    rmdir(folder);
    return status;
  };
  for (const auto& [end, status] : {std::pair<std::string, int>{"exit 7", 7},
                                    std::pair<std::string, int>{"kill -KILL $$", 128 + SIGKILL}}) {
    assert_int_equal(with({"--end-on-failure"}, end), status);
    assert_int_equal(count_of(text, "--end-on-failure: ending the other ranks\n"), 1);
    assert_int_equal(count_of(text, "mep_run: rank "), 1);  // of the one that failed
  }
  // Losses that are allowed, and ranks that are replaced, are no failures; an exit is one.
  assert_int_equal(
      with({"--end-on-failure", "--respawn"}, "[ \"$MEP_JOIN\" ] && exit 6; kill -KILL $$"), 6);
}

void a_failed_rank_names_the_option(void**) {
  std::string text;
  const char* words = "; the others continue, --end-on-failure would end them\n";
  const char* fails = "if [ $MEP_RANK = 1 ]; then kill -KILL $$; fi; read go; exit $MEP_RANK";
  for (const std::vector<std::string>& options :
       std::vector<std::vector<std::string>>{{}, {"--allow-failures", "1"}}) {
    std::vector<std::string> all = {"-n", "2"};
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), {"sh", "-c", fails});
    const Job job = launch(all);
    const std::string before = read_until(job, "SIGKILL)");
    assert_int_equal(finish(job, &text), options.empty() ? 128 + SIGKILL : 0);
    assert_int_equal(count_of(before + text, words), options.empty() ? 1 : 0);
  }
}

// Without the size each host would make a world of its own.
void hosts_that_meet_need_a_size(void**) {
  std::string text;
  setenv("MEP_RENDEZVOUS", "node1:7700", 1);
  assert_int_equal(run({"-n", "2", "echo", "up"}, &text), 2);
  assert_int_equal(count_of(text, "up\n"), 0);
  assert_int_equal(count_of(text, "mep_run -n 2 --size 4 COMMAND"), 1);
  assert_int_equal(count_of(text, "mep_run -n 2 --size 4 --rank-offset 2 COMMAND"), 1);
  assert_int_equal(run({"-n", "2", "--size", "2", "true"}, &text), 0);
  setenv("MEP_RENDEZVOUS", "", 1);
  assert_int_equal(run({"-n", "2", "true"}, &text), 0);
  unsetenv("MEP_RENDEZVOUS");
}

void a_killed_rank_is_replaced(void**) {
  std::string text;
  const std::vector<std::string> words = {
      "-n",
      "2",
      "--respawn",
      "sh",
      "-c",
      "if [ $MEP_RANK = 1 ] && [ -z \"$MEP_JOIN\" ]; then kill -KILL $$; fi; "
      "if [ $MEP_RANK = 0 ]; then read go; fi; echo end$MEP_RANK-${MEP_JOIN-first}"};
  const Job job = launch(words);
  const std::string before = read_until(job, "end1-1");
  assert_int_equal(write(job.input, "go\n", 3), 3);
  assert_int_equal(finish(job, &text), 0);
  assert_int_equal(count_of(before + text, "end0-first"), 1);
  // A rank that exits by itself has failed and is not started again.
  assert_int_equal(run({"-n", "2", "--respawn", "sh", "-c", "echo up; exit 3"}, &text), 3);
  assert_int_equal(count_of(text, "up"), 2);
}

void output_is_tagged_by_lines(void**) {
  std::string text;
  assert_int_equal(run({"-n", "2", "--tag-output", "sh", "-c",
                        "printf 'a%s\\nb' $MEP_RANK; printf 'c%s' $MEP_RANK >&2"},
                       &text),
                   0);
  for (const char* line : {"[0] a0\n", "[1] a1\n", "[0] b\n", "[1] b\n", "[0] c0\n", "[1] c1\n"}) {
    assert_int_equal(count_of(text, line), 1);
  }
}

void input_goes_to_rank_zero(void**) {
  const Job job = launch({"-n", "3", "--tag-output", "cat"});
  assert_int_equal(write(job.input, "hello\n", 6), 6);
  std::string text;
  assert_int_equal(finish(job, &text), 0);
  assert_string_equal(text.c_str(), "[0] hello\n");
}

void signals_are_passed_on_and_the_second_kills(void**) {
  std::string text;
  Job job =
      launch({"-n", "2", "sh", "-c", "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done"});
  read_until(job, "up");
  read_until(job, "up");
  kill(job.pid, SIGTERM);
  assert_int_equal(finish(job, &text), 5);

  job = launch({"-n", "2", "--respawn", "sh", "-c",
                "trap 'echo heard' INT; echo up; while :; do sleep 0.05; done"});
  read_until(job, "up");
  read_until(job, "up");
  kill(job.pid, SIGINT);
  read_until(job, "heard");
  kill(job.pid, SIGINT);
  assert_int_equal(finish(job, &text), 128 + SIGKILL);
  assert_int_equal(count_of(text, "started again"), 0);
}

void time_is_limited(void**) {
  std::string text;
  assert_int_equal(run({"-n", "2", "--timeout", "1", "sleep", "600"}, &text), 124);
  assert_int_equal(count_of(text, "1 s are over"), 1);
}

// The pipe is held by ranks and by what they started: it ends when all of them are gone.
void nothing_outlives_mep_run(void**) {
  const Job job = launch({"-n", "2", "sh", "-c", "sleep 600 & echo up; sleep 600"});
  read_until(job, "up");
  read_until(job, "up");
  kill(job.pid, SIGKILL);
  std::string text;
  assert_int_equal(finish(job, &text), 1000 + SIGKILL);

  // A rank in a session of its own, which the keeper's signal does not reach.
  const Job alone = launch({"-n", "1", "setsid", "sh", "-c", "echo up; exec sleep 600"});
  read_until(alone, "up");
  kill(alone.pid, SIGKILL);
  assert_int_equal(finish(alone, &text), 1000 + SIGKILL);

  // After an orderly end too.
  assert_int_equal(run({"-n", "2", "sh", "-c", "sleep 600 & exit 0"}, &text), 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  if (strcmp(argv[1], "--start") == 0) return start_as_rank();
  own_program = argv[0];
  run_program = argv[1];
  signal(SIGPIPE, SIG_IGN);
  const CMUnitTest tests[] = {
      cmocka_unit_test(ranks_know_who_they_are),
      cmocka_unit_test(ranks_have_the_variables_of_torch),
      cmocka_unit_test(the_first_failing_rank_gives_the_status),
      cmocka_unit_test(who_ended_well_before_a_failure_is_told),
      cmocka_unit_test(the_hosts_job_is_named_by_where_it_meets),
      cmocka_unit_test(wrong_usage_is_refused),
      cmocka_unit_test(a_death_takes_nobody_along),
      cmocka_unit_test(a_death_before_the_start_ends_it),
      cmocka_unit_test(lost_ranks_may_be_allowed),
      cmocka_unit_test(a_failure_may_end_the_others),
      cmocka_unit_test(a_failed_rank_names_the_option),
      cmocka_unit_test(hosts_that_meet_need_a_size),
      cmocka_unit_test(a_killed_rank_is_replaced),
      cmocka_unit_test(output_is_tagged_by_lines),
      cmocka_unit_test(input_goes_to_rank_zero),
      cmocka_unit_test(signals_are_passed_on_and_the_second_kills),
      cmocka_unit_test(time_is_limited),
      cmocka_unit_test(nothing_outlives_mep_run),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
