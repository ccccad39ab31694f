#include "progress.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace mep::perf {
namespace {

constexpr auto kQuietTime = std::chrono::seconds(2);
constexpr auto kInterval = std::chrono::milliseconds(200);

// mpirun gives every rank a pseudo-terminal even when its own output goes to a file, so under it
// the question is where the launcher writes.
bool output_is_terminal() {
  if (isatty(STDOUT_FILENO) == 0) return false;
  if (secure_getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return true;
  const std::string link = "/proc/" + std::to_string(getppid()) + "/fd/1";
  char target[64] = {};
  if (readlink(link.c_str(), target, sizeof target - 1) <= 0) return false;
  const std::string text = target;
  return text.rfind("/dev/pts/", 0) == 0 || text.rfind("/dev/tty", 0) == 0;
}

}  // namespace

Progress::Progress(bool is_speaker)
    : is_on_(is_speaker && output_is_terminal()),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

void Progress::show_step(uint64_t done, uint64_t all) {
  if (!is_on_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - start_ < kQuietTime || now - last_ < kInterval) return;
  last_ = now;
  is_shown_ = true;
  (void)std::printf("\r\033[K%s: block %llu of %llu", subject_.c_str(),
                    static_cast<unsigned long long>(done), static_cast<unsigned long long>(all));
  (void)std::fflush(stdout);
}

void Progress::clear() {
  if (!is_shown_) return;
  is_shown_ = false;
  (void)std::fputs("\r\033[K", stdout);
}

}  // namespace mep::perf
