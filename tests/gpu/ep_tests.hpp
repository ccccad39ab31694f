// The parts of the EP test program. Each prints what differs and returns its counts.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

struct TestResult {
  const char* name;
  uint64_t cases;
  uint64_t failures;
  std::string note;
};

class Clock {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

TestResult run_matrix(uint64_t first_seed, double seconds);
TestResult run_soak(uint64_t seed, double seconds, uint64_t max_operations);
TestResult run_fences(uint64_t seed, double seconds);
TestResult run_signals(double seconds);
TestResult run_faults(uint64_t seed);
