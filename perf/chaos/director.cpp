#include "director.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/clock.hpp"
#include "mep.h"

namespace mep::chaos {
namespace {

constexpr uint64_t kSettledIterations = 24;
constexpr uint64_t kPointMs = 3000;
constexpr int kJoinAttempts = 5;

void pause_us(long us) {
  const timespec pause{us / 1'000'000, us % 1'000'000 * 1000};
  nanosleep(&pause, nullptr);
}

double us_between(uint64_t from_ns, uint64_t to_ns) {
  return to_ns > from_ns ? static_cast<double>(to_ns - from_ns) / 1000 : 0;
}

std::string load_now() {
  std::ifstream file("/proc/loadavg");
  std::string load;
  file >> load;
  return load;
}

uint64_t bit(uint32_t rank) {
  return uint64_t{1} << rank;
}

}  // namespace

Director::Director(const Options& options) : options_(options), job_(options) {}

void Director::say(const std::string& text) const {
  if (!options_.verbose) return;
  std::fprintf(stderr, "[%8.3f] %s\n", us_between(started_ns_, now_ns()) / 1e6, text.c_str());
}

Report Director::run(const std::vector<Step>& plan) {
  started_ns_ = now_ns();
  report_.seed = options_.seed;
  report_.ranks = options_.ranks;
  report_.workload = options_.workload;
  report_.load = load_now();
  try {
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) job_.start(rank, false);
    settle();
    sample_all();
    for (const Step& step : plan) {
      const bool late = options_.seconds != 0 && us_between(started_ns_, now_ns()) >
                                                     static_cast<double>(options_.seconds) * 1e6;
      if (late && step.kind != Step::Kind::kRejoin) break;
      say(step.text());
      execute(step);
    }
    finish_job();
  } catch (const Hang& hang) {
    drain();
    ++report_.hangs;
    report_.findings.push_back(hang.what());
  }
  checker_.finish();
  judge_leaks();
  report_.load += " to " + load_now();
  report_.seconds = us_between(started_ns_, now_ns()) / 1e6;
  report_.operations = checker_.operations();
  report_.compared = checker_.compared();
  report_.wrong_results = checker_.wrong_results();
  report_.findings.insert(report_.findings.end(), checker_.findings().begin(),
                          checker_.findings().end());
  return report_;
}

void Director::execute(const Step& step) {
  switch (step.kind) {
    case Step::Kind::kKill:
      kill(step);
      break;
    case Step::Kind::kStop:
      stop(step);
      break;
    case Step::Kind::kSlow:
      slow(step);
      break;
    case Step::Kind::kRejoin:
      rejoin(step);
      break;
    case Step::Kind::kGrow:
      grow(step);
      break;
    case Step::Kind::kArm: {
      for (const uint32_t rank : step.ranks) arm(*job_.of(rank), step.point);
      const uint64_t from = highest_iteration();
      insist("the arming", [&] { return settled(from + 2); });
      break;
    }
    case Step::Kind::kWait: {
      const uint64_t from = highest_iteration();
      insist("more iterations", [&] { return settled(from + step.count); });
      break;
    }
  }
}

// --- Faults ---------------------------------------------------------------------------------------

void Director::kill(const Step& step) {
  std::vector<Process*> victims;
  uint64_t mask = 0;
  for (const uint32_t rank : step.ranks) {
    Process* process = job_.of(rank);
    if (process == nullptr || process->ended) continue;
    victims.push_back(process);
    mask |= bit(rank);
  }
  if (victims.empty()) return;
  begin_watch(mask, step.point.empty());
  if (!step.point.empty()) {
    if (!strike_at_point(step, "kill")) {
      watch_.reset();
      settle();
      return;
    }
  } else if (step.count != 0) {
    for (Process* victim : victims) {
      victim->page->kill_at_iteration.store(victim->iteration() + step.count);
    }
  } else {
    pause_us(static_cast<long>(now_ns() / 1000 % 3000));
    watch_->inject_ns = now_ns();
    for (const Process* victim : victims) job_.signal(*victim, SIGKILL);
  }
  insist("the end of a killed rank", [&] {
    return std::all_of(victims.begin(), victims.end(), [](auto* p) { return p->ended; });
  });
  for (const Process* victim : victims) {
    watch_->inject_ns = std::max(watch_->inject_ns, victim->page->acted_ns.load());
  }
  settle();
  end_watch();
  ++report_.faults;
}

// Arms the point on every rank of the step; another rank dies if the point needs a view change.
bool Director::strike_at_point(const Step& step, const char* action) {
  for (const uint32_t rank : step.ranks) {
    arm(*job_.of(rank), step.point + ":" + std::to_string(step.nth) + "=" + action);
  }
  const uint64_t from = highest_iteration();
  insist("the arming", [&] {
    return settled(from + 2) || job_.of(step.ranks[0])->ended || job_.of(step.ranks[0])->stopped;
  });
  if (is_view_point(step.point)) {
    const uint32_t trigger = another_rank(step.ranks);
    if (trigger == kMaxRanks) return false;
    if (watch_.has_value()) watch_->victims |= bit(trigger);
    job_.signal(*job_.of(trigger), SIGKILL);
  }
  // A user that allows hangs more time says that the machine is slow.
  const bool reached = wait_for(std::max<uint64_t>(kPointMs, options_.hang_ms / 15), [&] {
    return std::all_of(step.ranks.begin(), step.ranks.end(), [&](uint32_t rank) {
      return job_.of(rank)->ended || job_.of(rank)->stopped;
    });
  });
  if (reached) return true;
  say("  not reached");
  ++report_.not_reached;
  for (const uint32_t rank : step.ranks) {
    if (!job_.of(rank)->ended) arm(*job_.of(rank), "");
  }
  return false;
}

uint32_t Director::another_rank(const std::vector<uint32_t>& ranks) const {
  for (uint32_t i = 1; i <= options_.ranks; ++i) {
    const uint32_t rank = (ranks[0] + i) % options_.ranks;
    const Process* process = job_.of(rank);
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end() && !process->ended) return rank;
  }
  return kMaxRanks;
}

void Director::stop(const Step& step) {
  std::vector<Process*> stopped;
  for (const uint32_t rank : step.ranks) {
    if (!job_.of(rank)->ended) stopped.push_back(job_.of(rank));
  }
  if (stopped.empty()) return;
  const uint64_t epoch = highest_epoch();
  if (step.point.empty()) {
    for (const Process* process : stopped) job_.signal(*process, SIGSTOP);
  } else if (!strike_at_point(step, "stop")) {
    settle();
    return;
  }
  (void)wait_for(1000, [&] {
    return std::all_of(stopped.begin(), stopped.end(), [](auto* p) { return p->stopped; });
  });
  const uint64_t until = now_ns() + static_cast<uint64_t>(step.seconds * 1e9);
  (void)wait_for(UINT32_MAX, [&] { return now_ns() >= until; });
  for (const Process* process : stopped) job_.signal(*process, SIGCONT);
  settle();
  ++report_.faults;
  const uint64_t threshold_ms = options_.suspect_ms != 0 ? options_.suspect_ms : 5000;
  for (Process* process : stopped) {
    if (!process->ended && process->page->state.load() != WorkerState::kEnded) continue;
    ++report_.evictions;
    if (step.seconds * 1000 < static_cast<double>(threshold_ms)) {
      ++report_.false_evictions;
      report_.findings.push_back("rank " + std::to_string(process->rank) + " was evicted: " +
                                 step.text() + ", epoch before " + std::to_string(epoch));
    }
  }
  // A rank that was evicted, or was killed to make the view change, comes back.
  if (std::any_of(job_.all().begin(), job_.all().end(),
                  [&](const auto& p) { return p->ended && job_.of(p->rank) == p.get(); })) {
    rejoin({});
  }
}

// Runs a `factor`-th of the time.
void Director::slow(const Step& step) {
  constexpr long kRunUs = 2000;
  const uint64_t until = now_ns() + static_cast<uint64_t>(step.seconds * 1e9);
  std::vector<Process*> slowed;
  for (const uint32_t rank : step.ranks) slowed.push_back(job_.of(rank));
  while (now_ns() < until) {
    for (const Process* process : slowed) job_.signal(*process, SIGSTOP);
    pause_us(kRunUs * static_cast<long>(step.factor - 1));
    for (const Process* process : slowed) job_.signal(*process, SIGCONT);
    pause_us(kRunUs);
    drain();
  }
  settle();
  ++report_.faults;
  for (const Process* process : slowed) {
    if (!process->ended) continue;
    ++report_.evictions;
    ++report_.false_evictions;
    report_.findings.push_back("rank " + std::to_string(process->rank) +
                               " was evicted: " + step.text());
  }
}

// Replaces all that have ended. With a point: the first joiners die there, and others follow.
void Director::rejoin(const Step& step) {
  for (int attempt = 0; attempt < kJoinAttempts; ++attempt) {
    uint64_t mask = 0;
    std::vector<Process*> joiners;
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      if (!job_.of(rank)->ended) continue;
      const bool dies = attempt == 0 && !step.point.empty();
      joiners.push_back(
          &job_.start(rank, true, dies ? "MEP_FAILPOINT=" + step.point + "=kill" : ""));
      mask |= bit(rank);
    }
    if (joiners.empty()) return;
    insist("the start of joiners", [&] {
      return std::all_of(joiners.begin(), joiners.end(), [](const Process* p) {
        return p->ended || p->page->join_called_ns.load() != 0;
      });
    });
    const auto admitted = [&] {
      return std::all_of(joiners.begin(), joiners.end(),
                         [](const Process* p) { return p->ended || p->runs(); });
    };
    // Members give up waiting for who is late; then they are asked once more.
    const Deadline limit = Deadline::after_ms(options_.hang_ms);
    while (!admitted()) {
      if (limit.expired()) throw Hang("no progress: the admission; " + describe());
      send_command(Verb::kRecover, mask);
      (void)wait_for(options_.hang_ms, [&] { return admitted() || obeyed(); });
      (void)wait_for(100, admitted);
    }
    settle();
    bool all_in = true;
    for (const Process* joiner : joiners) {
      const auto number =
          static_cast<size_t>(std::find_if(job_.all().begin(), job_.all().end(),
                                           [&](const auto& p) { return p.get() == joiner; }) -
                              job_.all().begin());
      if (joiner->ended) {
        all_in = false;
        if (attempt == 0 && !step.point.empty() && joiner->killed()) {
          ++report_.faults;
          continue;
        }
        ++report_.failed_joins;
        report_.findings.push_back("rank " + std::to_string(joiner->rank) +
                                   " could not join: " + end_text_[number]);
        continue;
      }
      ++report_.joins;
      report_.rejoin.push_back(
          us_between(joiner->page->join_called_ns.load(), first_success_ns_[number]));
    }
    if (all_in) break;
  }
  sample_all();
}

void Director::grow(const Step& step) {
  uint32_t next = 0;
  while (job_.of(next) != nullptr) ++next;
  for (uint64_t i = 0; i < step.count; ++i) job_.start(next + static_cast<uint32_t>(i), true);
  send_command(Verb::kGrow, step.count);
  insist("the growth", [&] {
    for (uint64_t i = 0; i < step.count; ++i) {
      const Process* process = job_.of(next + static_cast<uint32_t>(i));
      if (!process->ended && !process->runs()) return false;
    }
    return true;
  });
  settle();
  report_.joins += step.count;
}

void Director::finish_job() {
  sample_all();
  send_command(Verb::kStop, 0);
  insist("the orderly end", [&] {
    return std::all_of(job_.all().begin(), job_.all().end(),
                       [](const auto& process) { return process->ended; });
  });
  drain();
  uint32_t number = 0;
  for (const auto& process : job_.all()) {
    if (!process->killed() && WEXITSTATUS(process->wait_status) != 0 &&
        end_result_[number] != MEP_ERR_EVICTED && end_result_[number] != MEP_ERR_NO_QUORUM &&
        end_result_[number] != MEP_ERR_TIMEOUT) {
      checker_.report("rank " + std::to_string(process->rank) + " ended with status " +
                      std::to_string(WEXITSTATUS(process->wait_status)) + ": " + end_text_[number]);
    }
    ++number;
  }
}

// --- The job ---------------------------------------------------------------------------------------

void Director::arm(Process& process, const std::string& text) {
  std::snprintf(process.page->failpoint, sizeof process.page->failpoint, "%s", text.c_str());
  process.page->arm_serial.store(++arm_serial_, std::memory_order_release);
}

void Director::send_command(Verb verb, uint64_t ranks) {
  const uint64_t command = make_command(++serial_, verb, ranks);
  for (const auto& process : job_.all()) {
    if (!process->ended) process->page->command.store(command, std::memory_order_release);
  }
}

void Director::sample_all() {
  send_command(Verb::kSample, 0);
  insist("the samples", [&] { return obeyed(); });
}

// All members have carried out the latest command.
bool Director::obeyed() const {
  return std::all_of(job_.all().begin(), job_.all().end(), [&](const auto& process) {
    return !process->runs() || process->page->done_serial.load() >= serial_;
  });
}

// Only SIGKILL is part of the plan.
void Director::check_ends() {
  for (const auto& process : job_.all()) {
    if (!process->killed() || process->end_checked) continue;
    process->end_checked = true;
    if (WTERMSIG(process->wait_status) == SIGKILL) continue;
    checker_.report("rank " + std::to_string(process->rank) + " died of signal " +
                    std::to_string(WTERMSIG(process->wait_status)));
    throw Hang("a rank crashed");
  }
}

template <typename Condition>
bool Director::wait_for(uint64_t limit_ms, Condition condition) {
  const Deadline deadline = Deadline::after_ms(limit_ms);
  for (;;) {
    job_.look();
    drain();
    check_ends();
    if (condition()) return true;
    if (deadline.expired()) return false;
    pause_us(500);
  }
}

template <typename Condition>
void Director::insist(const char* what, Condition condition) {
  if (!wait_for(options_.hang_ms, condition)) {
    throw Hang(std::string("no progress: ") + what + "; " + describe());
  }
}

uint64_t Director::expected_members() const {
  uint64_t mask = 0;
  for (const auto& process : job_.all()) {
    if (!process->ended) mask |= bit(process->rank);
  }
  return mask;
}

bool Director::settled(uint64_t beyond) {
  const uint64_t expected = expected_members();
  return std::all_of(job_.all().begin(), job_.all().end(), [&](const auto& process) {
    return process->ended || (process->runs() && process->page->members.load() == expected &&
                              process->iteration() >= beyond);
  });
}

void Director::settle() {
  insist("a view of all that live", [&] { return settled(0); });
  const uint64_t from = highest_iteration();
  insist("iterations in the new view", [&] { return settled(from + kSettledIterations); });
}

uint64_t Director::highest_iteration() const {
  uint64_t highest = 0;
  for (const auto& process : job_.all()) {
    if (!process->ended) highest = std::max(highest, process->iteration());
  }
  return highest;
}

uint64_t Director::highest_epoch() const {
  uint64_t highest = 0;
  for (const auto& process : job_.all()) {
    if (!process->ended) highest = std::max(highest, process->page->epoch.load());
  }
  return highest;
}

std::string Director::describe() const {
  std::string text;
  for (const auto& process : job_.all()) {
    if (process->ended) continue;
    text += " rank " + std::to_string(process->rank) + "." + std::to_string(process->generation) +
            " state " + std::to_string(static_cast<uint32_t>(process->page->state.load())) +
            " iteration " + std::to_string(process->iteration()) + " epoch " +
            std::to_string(process->page->epoch.load()) + " members " +
            std::to_string(process->page->members.load()) + (process->stopped ? " stopped;" : ";");
  }
  return text;
}

// --- What the ranks say ----------------------------------------------------------------------------

void Director::drain() {
  uint32_t number = 0;
  taken_.resize(job_.all().size());
  end_text_.resize(job_.all().size());
  end_result_.resize(job_.all().size());
  samples_.resize(job_.all().size());
  first_success_ns_.resize(job_.all().size());
  for (const auto& process : job_.all()) {
    Page* page = process->page;
    if (page != nullptr && !process->drained) {
      const bool last = process->ended;
      const uint64_t written = page->written.load(std::memory_order_acquire);
      for (uint64_t& at = taken_[number]; at < written; ++at) {
        take(*process, number, page->records[at % kRingRecords]);
      }
      page->read.store(written, std::memory_order_release);
      if (last) process->drained = true;
    }
    ++number;
  }
}

void Director::take(Process& process, uint32_t number, const Record& record) {
  checker_.take(process.rank, number, record);
  if (record.type == RecordType::kEnd) {
    end_result_[number] = record.result;
    end_text_[number] = std::string(mep_result_string(record.result)) + " at " +
                        name_of(record.kind) + ", epoch " + std::to_string(record.epoch) +
                        " operation " + std::to_string(record.seq) + ": " + record.text;
    say("rank " + std::to_string(process.rank) + " ends: " + end_text_[number]);
  }
  if (record.type == RecordType::kReport && record.result != MEP_SUCCESS &&
      (record.kind == Kind::kRecover || record.kind == Kind::kGrow)) {
    say("rank " + std::to_string(process.rank) + ", admission: " + record.text);
    if (record.kind == Kind::kGrow) checker_.report(std::string("grow: ") + record.text);
  }
  if (record.result == MEP_ERR_PEER_FAILED && watch_.has_value()) check_names(process, record);
  if (record.type == RecordType::kSample) samples_[number].push_back(record);
  const bool success = record.type == RecordType::kResult && record.result == MEP_SUCCESS;
  if (success && first_success_ns_[number] == 0) first_success_ns_[number] = record.at_ns;
  if (!watch_.has_value()) return;
  if (record.type == RecordType::kView) {
    watch_->views[number] = record.times;
    const uint64_t inject_ns = watch_->inject_ns;
    if (inject_ns == 0 || record.times.evidence_ns >= inject_ns) {
      watch_->detected_ns.emplace(number, record.times.evidence_ns);
    }
  }
  if (success && record.epoch > watch_->epoch && (record.contributors & watch_->victims) == 0) {
    watch_->success_ns.emplace(number, record.at_ns);
  }
}

// The text of the error says who has failed.
void Director::check_names(const Process& process, const Record& record) {
  for (const auto& other : job_.all()) {
    const std::string name = "rank " + std::to_string(other->rank);
    const bool may_have_failed = other->ended || (watch_->victims & bit(other->rank)) != 0;
    if (may_have_failed && std::string(record.text).find(name) != std::string::npos) return;
  }
  checker_.report("rank " + std::to_string(process.rank) +
                  " was told nobody's failure: " + record.text);
}

void Director::begin_watch(uint64_t victims, bool measured) {
  drain();
  watch_ = Watch{};
  watch_->epoch = highest_epoch();
  watch_->victims = victims;
  watch_->measured = measured;
}

void Director::end_watch() {
  const Watch watch = std::move(*watch_);
  watch_.reset();
  if (!watch.measured || watch.inject_ns == 0 || watch.success_ns.empty()) return;
  uint64_t first = UINT64_MAX;
  uint64_t last = 0;
  for (const auto& [number, at_ns] : watch.success_ns) {
    first = std::min(first, at_ns);
    last = std::max(last, at_ns);
    const auto view = watch.views.find(number);
    if (view == watch.views.end()) continue;
    const ViewChangeTimes& times = view->second;
    report_.detect.push_back(us_between(watch.inject_ns, watch.detected_ns.count(number) != 0
                                                             ? watch.detected_ns.at(number)
                                                             : times.evidence_ns));
    report_.freeze.push_back(us_between(times.evidence_ns, times.frozen_ns));
    report_.agree.push_back(us_between(times.frozen_ns, times.agreed_ns) +
                            us_between(times.prepared_ns, times.committed_ns));
    report_.fence.push_back(us_between(times.agreed_ns, times.prepared_ns));
    report_.install.push_back(us_between(times.committed_ns, times.installed_ns));
    report_.resume.push_back(us_between(times.installed_ns, at_ns));
  }
  report_.first_success.push_back(us_between(watch.inject_ns, first));
  report_.all_succeeded.push_back(us_between(watch.inject_ns, last));
}

// Finds what has grown beyond the most that the first half of the run has seen.
void Director::judge_growth(const std::vector<Record>& samples) {
  // The first samples of a process still contain what its first view change brings once for all.
  constexpr size_t kWarmUp = 4;
  if (samples.size() < kWarmUp + 2) return;
  const size_t middle = std::max(kWarmUp, samples.size() / 2);
  const auto growth = [&](auto member) {
    uint64_t most = 0;
    for (size_t i = kWarmUp; i <= middle; ++i) most = std::max(most, samples[i].sample.*member);
    return static_cast<int64_t>(samples.back().sample.*member) - static_cast<int64_t>(most);
  };
  report_.leaked_fds = std::max(report_.leaked_fds, growth(&Sample::fds));
  // A process that takes the meeting over has one listener more.
  report_.leaked_fds = std::max(report_.leaked_fds, growth(&Sample::listeners) - 1);
  report_.leaked_threads = std::max(report_.leaked_threads, growth(&Sample::threads));
  report_.leaked_mappings = std::max(report_.leaked_mappings, growth(&Sample::mappings));
  report_.leaked_pages = std::max(report_.leaked_pages, growth(&Sample::pages));
}

void Director::judge_leaks() {
  for (const auto& samples : samples_) judge_growth(samples);
  for (const auto& process : job_.all()) {
    if (!process->ended && report_.hangs == 0) ++report_.leaked_children;
  }
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      if (entry.path().string().find(job_.name()) != std::string::npos) ++report_.leaked_files;
    }
  }
  if (report_.hangs != 0) return;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (line.find(job_.name()) != std::string::npos) ++report_.leaked_files;
  }
}

}  // namespace mep::chaos
