#include "base/failpoint.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iterator>
#include <mutex>
#include <thread>
#include <vector>

#include "base/env.hpp"
#include "base/fork_hold.hpp"
#include "base/status.hpp"

namespace mep {

std::atomic<bool> failpoints_armed{false};

namespace {

// All points in src/, sorted; tests/lint/check_tree.py compares.
constexpr const char* kPoints[] = {
    "adopt",
    "call awaits look",
    "catch-up",
    "catch-up receive",
    "comm agreed",
    "comm begin",
    "comm closing",
    "comm finish",
    "comm offered",
    "comm open",
    "commit",
    "complete",
    "doorbell",
    "eager collect",
    "eager post",
    "enter",
    "ep combine ready",
    "ep counts",
    "ep number",
    "ep rows ready",
    "ep sum",
    "ep token",
    "fence",
    "finish look",
    "finish relay",
    "freeze",
    "frozen",
    "gpus meet",
    "hosts pass",
    "hosts publish",
    "hosts read",
    "hosts reduce",
    "hosts send",
    "init connected",
    "install",
    "install clients",
    "join begin",
    "join connected",
    "join ready",
    "join welcomed",
    "joiner connect",
    "joiner map",
    "joiner welcomed",
    "landing ends",
    "large copy",
    "large finish",
    "large publish",
    "large reduce",
    "leave",
    "leave pending",
    "look",
    "message begins",
    "message cell",
    "message ends",
    "message post",
    "message pulled",
    "message read",
    "message stops",
    "message target",
    "message withdrawn",
    "messages adopt",
    "prepare",
    "pulled",
    "put",
    "put half",
    "recover",
    "relay forward",
    "relay send",
    "relay take",
    "signal",
    "stage answer",
    "stage request",
    "window drop",
    "world started",
};

enum class Action : uint8_t { kNone, kKill, kStop, kPause };

struct Entry {
  std::string name;
  uint64_t left = 1;  // passages until it acts
  Action action = Action::kNone;
};

std::mutex table_mutex;
// Never destroyed: a thread may pass a point while the process ends.
std::vector<Entry>& table() {
  static auto* const entries = new std::vector<Entry>;
  return *entries;
}

bool parse_entry(const std::string& text, Entry* entry) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos) return false;
  const std::string action = text.substr(equals + 1);
  if (action == "kill") {
    entry->action = Action::kKill;
  } else if (action == "stop") {
    entry->action = Action::kStop;
  } else if (action == "pause") {
    entry->action = Action::kPause;
  } else {
    return false;
  }
  entry->name = text.substr(0, equals);
  const size_t colon = entry->name.find(':');
  if (colon != std::string::npos) {
    const char* const end = entry->name.data() + entry->name.size();
    const auto [stop, error] = std::from_chars(entry->name.data() + colon + 1, end, entry->left);
    if (error != std::errc() || stop != end || entry->left == 0) return false;
    entry->name.resize(colon);
  }
  return !entry->name.empty();
}

bool is_point(const std::string& name) {
  return std::any_of(std::begin(kPoints), std::end(kPoints),
                     [&](const char* point) { return name == point; });
}

mep_result_t refuse_unknown(const std::string& name) {
  std::string points;
  for (const char* point : kPoints) points.append(points.empty() ? "" : ", ").append(point);
  return fail(MEP_ERR_INVALID_ARGUMENT, "MEP_FAILPOINT: there is no point \"%.64s\"; there are: %s",
              name.c_str(), points.c_str());
}

}  // namespace

mep_result_t failpoint_arm(const std::string& text) {
  std::vector<Entry> added;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    Entry entry;
    if (!parse_entry(text.substr(begin, end - begin), &entry)) {
      return fail(MEP_ERR_INVALID_ARGUMENT,
                  "MEP_FAILPOINT: \"%.64s\" is not NAME[:NTH]=kill, =stop or =pause",
                  text.substr(begin, end - begin).c_str());
    }
    if (!is_point(entry.name)) return refuse_unknown(entry.name);
    added.push_back(entry);
    begin = end + 1;
  }
  const ForkHold hold;
  const std::lock_guard lock(table_mutex);
  table().insert(table().end(), added.begin(), added.end());
  failpoints_armed.store(true, std::memory_order_relaxed);
  return MEP_SUCCESS;
}

void failpoint_disarm_all() {
  const ForkHold hold;
  const std::lock_guard lock(table_mutex);
  table().clear();
  failpoints_armed.store(false, std::memory_order_relaxed);
}

mep_result_t failpoints_from_environment() {
  static std::atomic<bool> read{false};
  if (read.exchange(true)) return MEP_SUCCESS;
  std::string text;
  bool is_set = false;
  MEP_TRY(env_string("MEP_FAILPOINT", &text, &is_set));
  return is_set ? failpoint_arm(text) : MEP_SUCCESS;
}

void failpoint_passed(const char* name) {
  Action action = Action::kNone;
  {
    const ForkHold hold;
    const std::lock_guard lock(table_mutex);
    for (auto entry = table().begin(); entry != table().end(); ++entry) {
      if (entry->name != name || --entry->left != 0) continue;
      action = entry->action;
      table().erase(entry);
      break;
    }
    if (table().empty()) failpoints_armed.store(false, std::memory_order_relaxed);
  }
  switch (action) {
    case Action::kNone:
      return;
    case Action::kKill:
    case Action::kStop:
      kill(getpid(), action == Action::kKill ? SIGKILL : SIGSTOP);
      return;
    case Action::kPause:
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
  }
}

}  // namespace mep
