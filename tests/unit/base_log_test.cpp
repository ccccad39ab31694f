// labels: quick
// The log reads its settings once a process, so every case runs in a child of its own.
#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "base/status.hpp"
#include "base/stranger_log.hpp"
#include "mep.h"
#include "support/cmocka_cpp.hpp"

namespace {

using mep::LogLevel;

std::string read_all(int descriptor) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(descriptor, buffer, sizeof buffer);
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

// Runs `body` in a child with this MEP_LOG and MEP_LOG_FILE; gives what it wrote to stderr.
std::string stderr_of(const char* level, const char* file, const std::function<void()>& body) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    unsetenv("MEP_LOG");
    unsetenv("MEP_LOG_FILE");
    if (level != nullptr) setenv("MEP_LOG", level, 1);
    if (file != nullptr) setenv("MEP_LOG_FILE", file, 1);
    body();
    _exit(0);
  }
  close(ends[1]);
  std::string text = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return text;
}

void all_levels() {
  mep::log(LogLevel::kError, "e%d", 1);
  mep::log(LogLevel::kWarn, "w%d", 2);
  mep::log(LogLevel::kInfo, "i%d", 3);
}

void level_selects_lines(void**) {
  assert_string_equal(stderr_of("error", nullptr, all_levels).c_str(), "mep error: e1\n");
  assert_string_equal(stderr_of(nullptr, nullptr, all_levels).c_str(),
                      "mep error: e1\nmep warn: w2\n");
  assert_string_equal(stderr_of("info", nullptr, all_levels).c_str(),
                      "mep error: e1\nmep warn: w2\nmep info: i3\n");
}

void unknown_level_is_said_once(void**) {
  const std::string text = stderr_of("loud", nullptr, all_levels);
  assert_string_equal(text.c_str(),
                      "mep warn: MEP_LOG=loud is not error, warn, info or debug; using warn\n"
                      "mep error: e1\nmep warn: w2\n");
}

void rank_is_shown_per_thread(void**) {
  const std::string text = stderr_of("warn", nullptr, [] {
    mep::set_log_rank(3);
    mep::log(LogLevel::kWarn, "x");
    std::thread([] { mep::log(LogLevel::kWarn, "y"); }).join();
    mep::set_log_rank(-1);
    mep::log(LogLevel::kWarn, "z");
  });
  assert_string_equal(text.c_str(), "mep[3] warn: x\nmep warn: y\nmep warn: z\n");
}

void control_bytes_cannot_forge_lines(void**) {
  const std::string text = stderr_of("warn", nullptr, [] {
    mep::log(LogLevel::kWarn, "%s", "a\nmep error: forged\x1b[2J\t\x7f");
  });
  assert_string_equal(text.c_str(), "mep warn: a?mep error: forged?[2J??\n");
}

void long_lines_are_cut(void**) {
  const std::string text = stderr_of(
      "warn", nullptr, [] { mep::log(LogLevel::kWarn, "%s", std::string(10000, 'q').c_str()); });
  assert_int_equal(text.size(), 2048);
  assert_string_equal(text.c_str() + 2048 - 5, "q...\n");
}

void file_takes_whole_lines_of_many_threads(void**) {
  char path[] = "/tmp/mep_log_test_XXXXXX";
  const int descriptor = mkstemp(path);
  assert_true(descriptor >= 0);
  const std::string errors = stderr_of("info", path, [] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        mep::set_log_rank(t);
        for (int i = 0; i < 200; ++i)
          mep::log(LogLevel::kInfo, "%s", std::string(100, 'm').c_str());
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  const std::string text = read_all(descriptor);
  close(descriptor);
  unlink(path);
  assert_string_equal(errors.c_str(), "");
  size_t lines = 0;
  const std::string tail = " info: " + std::string(100, 'm');
  for (size_t start = 0; start < text.size(); ++lines) {
    const size_t end = text.find('\n', start);
    assert_true(end != std::string::npos);
    const std::string line = text.substr(start, end - start);
    int rank = 0, year = 0, day[5] = {}, pid = 0;
    double second = 0;
    char host[65] = "";
    assert_int_equal(std::sscanf(line.c_str(), "mep[%d] %4d-%2d-%2dT%2d:%2d:%9lfZ %64[^:]:%d info",
                                 &rank, &year, day, day + 1, day + 2, day + 3, &second, host, &pid),
                     9);
    assert_true(year >= 2024 && pid > 1 && pid != getpid());
    assert_true(line.size() > tail.size());
    assert_string_equal(line.c_str() + line.size() - tail.size(), tail.c_str());
    start = end + 1;
  }
  assert_int_equal(lines, 800);
}

struct Taken {
  std::string lines;
  std::atomic<bool> is_inside{false};
  std::atomic<bool> may_return{true};
  mep_result_t nested = MEP_SUCCESS;
};

void take(void* user, int32_t level, const char* line) {
  Taken& taken = *static_cast<Taken*>(user);
  taken.is_inside = true;
  while (!taken.may_return) std::this_thread::yield();
  taken.lines += std::to_string(level) + " " + line + "\n";
  mep::log(LogLevel::kError, "of the callback");
  taken.nested = mep_set_log_callback(nullptr, nullptr);
}

void callback_takes_lines(void**) {
  char path[] = "/tmp/mep_log_test_XXXXXX";
  const int descriptor = mkstemp(path);
  assert_true(descriptor >= 0);
  for (const bool to_file : {false, true}) {
    const std::string errors = stderr_of("info", to_file ? path : nullptr, [] {
      Taken taken;
      if (mep_set_log_callback(take, &taken) != MEP_SUCCESS) _exit(1);
      all_levels();
      if (mep_set_log_callback(nullptr, nullptr) != MEP_SUCCESS) _exit(2);
      mep::log(LogLevel::kWarn, "after");
      if (taken.nested != MEP_ERR_BUSY) _exit(3);
      if (getenv("MEP_LOG_FILE") == nullptr &&
          taken.lines != "0 mep error: e1\n1 mep warn: w2\n2 mep info: i3\n") {
        _exit(4);
      }
      if (std::count(taken.lines.begin(), taken.lines.end(), '\n') != 3) _exit(5);
    });
    const std::string own = "mep error: of the callback\n";
    assert_string_equal(errors.c_str(),
                        to_file ? "" : (own + own + own + "mep warn: after\n").c_str());
  }
  const std::string text = read_all(descriptor);
  close(descriptor);
  unlink(path);
  assert_int_equal(std::count(text.begin(), text.end(), '\n'), 7);
}

// The one that takes a callback away may free what it uses. A child of a fork waits for no thread that it has not.
void callback_is_over_when_replaced(void**) {
  const std::string errors = stderr_of("warn", nullptr, [] {
    Taken taken;
    taken.may_return = false;
    if (mep_set_log_callback(take, &taken) != MEP_SUCCESS) _exit(1);
    std::thread logs([] { mep::log(LogLevel::kWarn, "a line"); });
    while (!taken.is_inside) std::this_thread::yield();
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      _exit(mep_set_log_callback(nullptr, nullptr) == MEP_SUCCESS ? 0 : 1);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) _exit(2);
    std::atomic<bool> is_replaced{false};
    std::thread replaces([&] {
      (void)mep_set_log_callback(mep_log_to_descriptor,
                                 reinterpret_cast<void*>(intptr_t{STDERR_FILENO}));
      is_replaced = true;
    });
    usleep(20'000);
    if (is_replaced) _exit(3);
    taken.may_return = true;
    replaces.join();
    if (taken.lines != "1 mep warn: a line\n") _exit(4);
    logs.join();
    mep::log(LogLevel::kWarn, "to the descriptor");
  });
  assert_string_equal(errors.c_str(), "mep error: of the callback\nmep warn: to the descriptor\n");
}

void unusable_file_falls_back_to_stderr(void**) {
  const std::string text =
      stderr_of("error", "/nonexistent/log", [] { mep::log(LogLevel::kError, "still seen"); });
  assert_true(text.find("MEP_LOG_FILE=/nonexistent/log") != std::string::npos);
  assert_true(text.find("mep error: still seen\n") != std::string::npos);
}

// Each rank has a file of its own where its number is known.
void file_is_named_by_rank_and_process(void**) {
  char folder[] = "/tmp/mep-log-XXXXXX";
  assert_non_null(mkdtemp(folder));
  const struct {
    const char* variable;
    const char* size;
    const char* rank;
  } sources[] = {{"MEP_RANK", "MEP_SIZE", "3"},
                 {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "4"},
                 {"PMI_RANK", "PMI_SIZE", "5"}};
  const std::string path = std::string(folder) + "/a%%b-%r-%p";
  for (const auto& source : sources) {
    pid_t writer = 0;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const std::string errors = stderr_of("error", path.c_str(), [&] {
      setenv(source.variable, source.rank, 1);
      setenv(source.size, "8", 1);
      mep::log(LogLevel::kError, "of rank %s", source.rank);
      const pid_t own = getpid();
      if (write(ends[1], &own, sizeof own) != sizeof own) _exit(1);
    });
    assert_int_equal(read(ends[0], &writer, sizeof writer), sizeof writer);
    close(ends[0]);
    close(ends[1]);
    assert_string_equal(errors.c_str(), "");
    const std::string file =
        std::string(folder) + "/a%b-" + source.rank + "-" + std::to_string(writer);
    assert_int_equal(unlink(file.c_str()), 0);
  }
  assert_int_equal(rmdir(folder), 0);
}

void file_that_cannot_be_named_is_refused(void**) {
  const struct {
    const char* path;
    const char* text;
  } cases[] = {{"/tmp/mep-%r", "MEP_LOG_FILE=/tmp/mep-%r has %r, but neither MEP_RANK nor"},
               {"/tmp/mep-%d", "MEP_LOG_FILE=/tmp/mep-%d has a % that is not %r, %p or %%"}};
  for (const auto& each : cases) {
    const std::string text = stderr_of("error", each.path, [] {
      (void)mep::fail(MEP_ERR_SYSTEM, "kept");
      mep::log(LogLevel::kError, "still seen");
      if (std::string(mep_last_error()) != "kept") _exit(1);
    });
    assert_true(text.find(each.text) != std::string::npos);
    assert_true(text.find("mep error: still seen\n") != std::string::npos);
  }
}

void fifo_blocks_nobody(void**) {
  char folder[] = "/tmp/mep-log-XXXXXX";
  assert_non_null(mkdtemp(folder));
  const std::string path = std::string(folder) + "/fifo";
  assert_int_equal(mkfifo(path.c_str(), 0600), 0);
  const auto log_much = [] {
    alarm(20);  // ends a child that blocks
    for (int i = 0; i < 4000; ++i) mep::log(LogLevel::kError, "%0100d", i);
  };
  const std::string unread = stderr_of("error", path.c_str(), [] {
    alarm(20);
    mep::log(LogLevel::kError, "still seen");
  });
  assert_true(unread.find("logging to stderr") != std::string::npos);
  assert_true(unread.find("mep error: still seen\n") != std::string::npos);

  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  assert_true(reader >= 0);
  assert_string_equal(stderr_of("error", path.c_str(), log_much).c_str(), "");
  assert_true(read_all(reader).find("error: 00") != std::string::npos);
  // The reader goes while the child writes.
  assert_string_equal(stderr_of("error", path.c_str(),
                                [&] {
                                  mep::log(LogLevel::kError, "first");
                                  close(reader);
                                  log_much();
                                })
                          .c_str(),
                      "");
  close(reader);
  unlink(path.c_str());
  rmdir(folder);
}

void strangers_have_one_line_a_minute(void**) {
  const std::string text = stderr_of(nullptr, nullptr, [] {
    mep::log_stranger("dropped %s", "somebody");
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([] {
        for (int i = 0; i < 100; ++i) mep::log_stranger("dropped %s", "somebody");
      });
    }
    for (std::thread& thread : threads) thread.join();
    mep::log(LogLevel::kWarn, "another line");
    mep::allow_stranger_line_for_test();
    mep::log_stranger("dropped %s", "another");
  });
  assert_string_equal(text.c_str(),
                      "mep warn: dropped somebody\nmep warn: another line\n"
                      "mep warn: dropped another (and 400 more since the last such line)\n");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(level_selects_lines),
      cmocka_unit_test(unknown_level_is_said_once),
      cmocka_unit_test(rank_is_shown_per_thread),
      cmocka_unit_test(control_bytes_cannot_forge_lines),
      cmocka_unit_test(long_lines_are_cut),
      cmocka_unit_test(file_takes_whole_lines_of_many_threads),
      cmocka_unit_test(callback_takes_lines),
      cmocka_unit_test(callback_is_over_when_replaced),
      cmocka_unit_test(unusable_file_falls_back_to_stderr),
      cmocka_unit_test(file_is_named_by_rank_and_process),
      cmocka_unit_test(file_that_cannot_be_named_is_refused),
      cmocka_unit_test(fifo_blocks_nobody),
      cmocka_unit_test(strangers_have_one_line_a_minute),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
