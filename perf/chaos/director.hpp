// Carries out the plan against the job, waits after each step until the job has settled, and measures.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "checker.hpp"
#include "job.hpp"
#include "plan.hpp"
#include "report.hpp"

namespace mep::chaos {

// The job makes no progress any more; there is nothing left to do with it.
class Hang : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Director {
 public:
  explicit Director(const Options& options);
  Report run(const std::vector<Step>& plan);

 private:
  // One injected fault, while its consequences are observed.
  struct Watch {
    uint64_t inject_ns = 0;
    uint64_t epoch = 0;                         // of the comm, before
    uint64_t victims = 0;                       // ranks
    bool measured = false;                      // whether its times are to be reported
    std::map<uint32_t, ViewChangeTimes> views;  // by process: the last
    std::map<uint32_t, uint64_t> detected_ns;   // by process
    std::map<uint32_t, uint64_t> success_ns;    // by process
  };

  void execute(const Step& step);
  void kill(const Step& step);
  void stop(const Step& step);
  void slow(const Step& step);
  void rejoin(const Step& step);
  void grow(const Step& step);
  void finish_job();

  void begin_watch(uint64_t victims, bool measured);
  void end_watch();
  void arm(Process& process, const std::string& text);
  bool strike_at_point(const Step& step, const char* action);
  uint32_t another_rank(const std::vector<uint32_t>& ranks) const;
  void send_command(Verb verb, uint64_t ranks);
  void sample_all();

  void drain();
  void take(Process& process, uint32_t number, const Record& record);
  void check_names(const Process& process, const Record& record);
  bool obeyed() const;
  void check_ends();
  // Waits until condition(); false: `limit_ms` is over. Drains all the time.
  template <typename Condition>
  bool wait_for(uint64_t limit_ms, Condition condition);
  template <typename Condition>
  void insist(const char* what, Condition condition);
  void settle();
  bool settled(uint64_t beyond);
  uint64_t expected_members() const;
  uint64_t highest_iteration() const;
  uint64_t highest_epoch() const;
  std::string describe() const;
  void say(const std::string& text) const;
  void judge_growth(const std::vector<Record>& samples);
  void judge_leaks();

  const Options& options_;
  Job job_;
  Checker checker_;
  Report report_;
  std::vector<uint64_t> taken_;  // by process: records
  std::vector<std::string> end_text_;
  std::vector<int32_t> end_result_;
  std::vector<std::vector<Record>> samples_;
  std::vector<uint64_t> first_success_ns_;
  std::optional<Watch> watch_;
  uint64_t serial_ = 0;
  uint64_t arm_serial_ = 0;
  uint64_t started_ns_ = 0;
};

}  // namespace mep::chaos
