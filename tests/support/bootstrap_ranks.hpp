// Ranks of a bootstrap test as processes: bootstrap_rank started, and what it said.
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "mep.h"
#include "support/cmocka_cpp.hpp"

namespace {

const char* rank_program = nullptr;

using Variables = std::vector<std::pair<std::string, std::string>>;

struct Outcome {
  int result = 1;
  unsigned ms = 0;
  int fds = 0;
  size_t peers = 0;
  unsigned slot = 0;
  int sound = 0;
  std::string text;
};

struct Process {
  pid_t pid = 0;
  int output = -1;
  int input = -1;
};

std::string new_job() {
  static int count = 0;
  return "test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

Process launch(int rank, int size, const std::string& job, unsigned timeout_ms,
               std::vector<std::string> options = {}, const Variables& variables = {}) {
  int sides[2];
  int input[2];
  assert_int_equal(pipe2(sides, O_CLOEXEC), 0);
  assert_int_equal(pipe2(input, O_CLOEXEC), 0);
  std::vector<std::string> words = {rank_program, std::to_string(rank), std::to_string(size), job,
                                    std::to_string(timeout_ms)};
  words.insert(words.end(), options.begin(), options.end());
  const pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    dup2(sides[1], STDOUT_FILENO);
    dup2(input[0], STDIN_FILENO);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execv(rank_program, arguments.data());
    _exit(126);
  }
  close(sides[1]);
  close(input[0]);
  return {pid, sides[0], input[1]};
}

// Until a member of a running world says that its door is open.
void await_serving(const Process& process) {
  char line[9] = "";
  size_t length = 0;
  while (length < 8) {
    const ssize_t count = read(process.output, line + length, 8 - length);
    if (count <= 0) fail_msg("a member ended before it served");
    length += static_cast<size_t>(count);
  }
  assert_string_equal(line, "serving\n");
}

std::vector<Outcome> parse_outcomes(const std::string& output) {
  std::vector<Outcome> outcomes;
  for (size_t begin = 0; begin < output.size();) {
    const size_t end = std::min(output.find('\n', begin), output.size());
    const std::string line = output.substr(begin, end - begin);
    Outcome outcome;
    if (sscanf(line.c_str(), "result=%d ms=%u fds=%d peers=%zu slot=%u sound=%d", &outcome.result,
               &outcome.ms, &outcome.fds, &outcome.peers, &outcome.slot, &outcome.sound) == 6) {
      outcome.text = line.substr(line.find("text=") + 5);
      outcomes.push_back(outcome);
    }
    begin = end + 1;
  }
  return outcomes;
}

std::vector<Outcome> finish_all(const Process& process) {
  std::string output;
  char chunk[4096];
  ssize_t count = 0;
  close(process.input);  // who serves ends then
  while ((count = read(process.output, chunk, sizeof chunk)) > 0) {
    output.append(chunk, static_cast<size_t>(count));
  }
  close(process.output);
  int status = -1;
  assert_int_equal(waitpid(process.pid, &status, 0), process.pid);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fail_msg("a rank ended with status 0x%x after \"%s\"", static_cast<unsigned>(status),
             output.c_str());
  }
  std::vector<Outcome> outcomes = parse_outcomes(output);
  for (const Outcome& outcome : outcomes) {
    assert_int_equal(outcome.fds, 0);
    if (outcome.sound != 1) fail_msg("the links do not work: %s", output.c_str());
  }
  return outcomes;
}

Outcome finish(const Process& process) {
  const std::vector<Outcome> outcomes = finish_all(process);
  assert_int_equal(outcomes.size(), 1);
  return outcomes[0];
}

void expect(const Outcome& outcome, mep_result_t result, const std::vector<std::string>& parts) {
  if (outcome.result != result) {
    fail_msg("result %d instead of %d, text \"%s\"", outcome.result, result, outcome.text.c_str());
  }
  for (const std::string& part : parts) {
    if (outcome.text.find(part) == std::string::npos) {
      fail_msg("the text \"%s\" lacks \"%s\"", outcome.text.c_str(), part.c_str());
    }
  }
}

}  // namespace
