// A line that is rewritten in place while a run is long. Silent before two seconds have passed and
// when the output is no terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace mep::perf {

class Progress {
 public:
  // Only one rank shows anything.
  explicit Progress(bool is_speaker);
  void set_subject(const std::string& subject) { subject_ = subject; }
  void show_step(uint64_t done, uint64_t all);
  // Before anything else is printed.
  void clear();

 private:
  bool is_on_;
  bool is_shown_ = false;
  std::string subject_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace mep::perf
