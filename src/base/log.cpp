// A line is built in one buffer and handed over by one write(): with O_APPEND, and on terminals and
// pipes up to PIPE_BUF, lines of different ranks then stay whole.
#include "base/log.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/env.hpp"
#include "base/fork_hold.hpp"
#include "base/rank_path.hpp"
#include "base/status.hpp"

namespace mep {
namespace {

constexpr size_t kLineBytes = 2048;  // below PIPE_BUF (4096)
constexpr const char* kLevelNames[] = {"error", "warn", "info", "debug"};

thread_local int log_rank = -1;

struct LogSettings {
  LogLevel level = LogLevel::kWarn;
  int descriptor = STDERR_FILENO;
  bool with_origin = false;  // when, and of which process
};

// UTC and "HOST:PID": `sort -k 2` merges the files of several processes and hosts.
int write_origin(char* line, size_t bytes) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char host[HOST_NAME_MAX + 1] = "";
  (void)gethostname(host, sizeof host - 1);
  return std::snprintf(line, bytes, "%04d-%02d-%02dT%02d:%02d:%02d.%06ldZ %s:%d ",
                       parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday, parts.tm_hour,
                       parts.tm_min, parts.tm_sec, now.tv_nsec / 1000, host,
                       static_cast<int>(getpid()));
}

// Makes the line, with a NUL behind it; its length, which leaves room for an end of line. 0: there is none.
size_t make_line(const LogSettings& settings, LogLevel level, const char* format, va_list arguments,
                 char (&line)[kLineBytes]) {
  int length = log_rank >= 0 ? std::snprintf(line, sizeof line, "mep[%d] ", log_rank)
                             : std::snprintf(line, sizeof line, "mep ");
  if (settings.with_origin) length += write_origin(line + length, sizeof line - length);
  length += std::snprintf(line + length, sizeof line - length,
                          "%s: ", kLevelNames[static_cast<int>(level)]);
  const int text_start = length;
  const int text_length = std::vsnprintf(line + length, sizeof line - length, format, arguments);
  if (text_length < 0) return 0;
  size_t total = static_cast<size_t>(length) + static_cast<size_t>(text_length);
  if (total > kLineBytes - 1) {
    total = kLineBytes - 1;
    std::memcpy(line + total - 3, "...", 3);
  }
  // Text from a peer or the environment must not forge a second line or drive a terminal.
  for (size_t i = static_cast<size_t>(text_start); i < total; ++i) {
    const auto byte = static_cast<unsigned char>(line[i]);
    if (byte < 0x20 || byte == 0x7f) line[i] = '?';
  }
  line[total] = '\0';
  return total;
}

// A line that cannot be written is lost: nothing sensible can be done about it here.
void write_line(int descriptor, const char* line, size_t length) {
  char end[] = "\n";
  const iovec parts[] = {{const_cast<char*>(line), length}, {end, 1}};  // NOLINT: writev reads
  while (writev(descriptor, parts, 2) < 0 && errno == EINTR) {
  }
}

// The program's callback in place of stderr.
struct Sink {
  LogCallback callback;
  void* user;
  std::atomic<int32_t> running{0};  // calls of it that have not returned
};

std::mutex sink_mutex;  // guards the pointer; held inside a ForkHold only
Sink* sink = nullptr;
thread_local bool is_inside_callback = false;

// In the child of a fork nobody is left to return from a callback.
[[maybe_unused]] const int kForgetsCalls = pthread_atfork(nullptr, nullptr, [] {
  if (sink != nullptr) sink->running.store(0, std::memory_order_relaxed);
});

// False: there is no callback, or the line is of the callback itself.
bool give_to_callback(LogLevel level, const char* line) {
  if (is_inside_callback) return false;
  Sink* to = nullptr;
  {
    const ForkHold hold;
    const std::lock_guard lock(sink_mutex);
    to = sink;
    if (to == nullptr) return false;
    to->running.fetch_add(1, std::memory_order_relaxed);
  }
  is_inside_callback = true;
  to->callback(to->user, static_cast<int32_t>(level), line);
  is_inside_callback = false;
  // Release: what the callback did is over for whoever takes it away.
  to->running.fetch_sub(1, std::memory_order_release);
  return true;
}

__attribute__((format(printf, 2, 3))) void complain(const LogSettings& settings, const char* format,
                                                    ...) {
  va_list arguments;
  va_start(arguments, format);
  char line[kLineBytes];
  const size_t length = make_line(settings, LogLevel::kWarn, format, arguments, line);
  va_end(arguments);
  write_line(settings.descriptor, line, length);
}

void read_level(LogSettings* settings) {
  std::string text;
  bool is_set = false;
  if (is_error(env_string("MEP_LOG", &text, &is_set)) || !is_set) return;
  for (int i = 0; i < 4; ++i) {
    if (text == kLevelNames[i]) {
      settings->level = static_cast<LogLevel>(i);
      settings->with_origin = settings->level == LogLevel::kDebug;
      return;
    }
  }
  complain(*settings, "MEP_LOG=%s is not error, warn, info or debug; using warn", text.c_str());
}

LogRankFinder rank_finder = nullptr;

std::optional<uint32_t> rank_of_process() {
  constexpr uint64_t kMost = std::numeric_limits<int32_t>::max();
  uint64_t told = 0;
  bool is_set = false;
  if (is_error(env_uint("MEP_RANK", 0, kMost, &told, &is_set))) return std::nullopt;
  if (is_set) return static_cast<uint32_t>(told);
  uint32_t found = 0;
  if (rank_finder == nullptr || !rank_finder(&found)) return std::nullopt;
  return found;
}

void open_file(LogSettings* settings) {
  const KeepErrorText kept;
  std::string pattern;
  std::string path;
  bool is_set = false;
  if (is_error(env_string("MEP_LOG_FILE", &pattern, &is_set)) || !is_set) return;
  const std::optional<uint32_t> rank = rank_of_process();
  if (is_error(rank_path("MEP_LOG_FILE", pattern, rank, true, &path))) {
    complain(*settings, "%s; logging to stderr", last_error_text());
    return;
  }
  // Nonblocking: a FIFO that nobody reads is no file, and lines that find one full are lost.
  constexpr int kFlags = O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  int descriptor = open(path.c_str(), O_WRONLY | kFlags, 0644);
  struct stat status {};
  if (descriptor >= 0 && fstat(descriptor, &status) == 0 && S_ISFIFO(status.st_mode)) {
    // A FIFO that this process reads too raises no SIGPIPE when its other reader goes.
    const int both = open(path.c_str(), O_RDWR | kFlags, 0644);
    close(descriptor);
    descriptor = both;
  }
  if (descriptor < 0) {
    complain(*settings, "MEP_LOG_FILE=%s cannot be opened (errno %d); logging to stderr",
             path.c_str(), errno);
    return;
  }
  settings->descriptor = descriptor;  // open for the life of the process
  settings->with_origin = true;
}

// Read once, at the first use: a log that changes its place half-way helps nobody.
const LogSettings& log_settings() {
  const ForkHold hold;
  static const LogSettings settings = [] {
    LogSettings settings;
    try {
      read_level(&settings);
      open_file(&settings);
    } catch (const std::exception&) {
      // Out of memory: the defaults serve.
      settings.descriptor = STDERR_FILENO;
    }
    return settings;
  }();
  return settings;
}

}  // namespace

bool log_enabled(LogLevel level) {
  return level <= log_settings().level;
}

void log(LogLevel level, const char* format, ...) {
  if (!log_enabled(level)) return;
  const int saved_errno = errno;
  const LogSettings& settings = log_settings();
  char line[kLineBytes];
  va_list arguments;
  va_start(arguments, format);
  const size_t length = make_line(settings, level, format, arguments, line);
  va_end(arguments);
  if (length != 0) {
    const bool is_taken = give_to_callback(level, line);
    if (!is_taken || settings.descriptor != STDERR_FILENO) {
      write_line(settings.descriptor, line, length);
    }
  }
  errno = saved_errno;
}

mep_result_t set_log_callback(LogCallback callback, void* user) {
  if (is_inside_callback) {
    return fail(MEP_ERR_BUSY,
                "the log callback cannot take itself away: it is inside a call of it");
  }
  Sink* replaced = callback != nullptr ? new Sink{callback, user} : nullptr;
  {
    const ForkHold hold;
    const std::lock_guard lock(sink_mutex);
    std::swap(sink, replaced);
  }
  constexpr timespec kPause{0, 100'000};
  while (replaced != nullptr && replaced->running.load(std::memory_order_acquire) > 0) {
    (void)nanosleep(&kPause, nullptr);
  }
  delete replaced;
  return MEP_SUCCESS;
}

void log_to_descriptor(int descriptor, const char* line) {
  write_line(descriptor, line, std::strlen(line));
}

void set_log_rank_finder(LogRankFinder finder) {
  rank_finder = finder;
}

void set_log_rank(int rank) {
  log_rank = rank;
}

}  // namespace mep
