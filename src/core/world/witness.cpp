#include "core/world/witness.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>

#include "base/hash.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/private_folder.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"
#include "base/unique_fd.hpp"

namespace mep {
namespace {

constexpr size_t kDigits = 16;
constexpr int kMostDrafts = 1000;
constexpr auto kTryAgain = std::chrono::milliseconds(100);
constexpr auto kHangs = std::chrono::seconds(2);

std::string hexadecimal(uint64_t value) {
  char text[kDigits + 1];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

mep_result_t system_failure(const std::string& path) {
  return fail(result_of_errno(errno), "witness '%.300s': %s", path.c_str(), strerrordesc_np(errno));
}

// A new file beside `path`, whole and on the disk: a host that restarts must not forget what it decided.
mep_result_t write_draft(const std::string& path, uint64_t digest, std::string* draft) {
  char host[64] = {};
  (void)gethostname(host, sizeof host - 1);
  UniqueFd fd;
  for (int i = 0; i < kMostDrafts && !fd.valid(); ++i) {
    *draft = path + "." + host + "." + std::to_string(getpid()) + "." + std::to_string(i);
    // Exclusive: ranks of one process ask at the same time, and dead ones may have left theirs.
    fd.reset(open(draft->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid() && errno != EEXIST) break;
  }
  if (!fd.valid()) return system_failure(*draft);
  const std::string text = hexadecimal(digest);
  if (write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fsync(fd.get()) == 0) {
    return MEP_SUCCESS;
  }
  const mep_result_t failed = system_failure(*draft);
  unlink(draft->c_str());
  return failed;
}

mep_result_t read_register(const std::string& path, uint64_t* held) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return system_failure(path);
  char text[kDigits + 1] = {};
  const ssize_t count = read(fd.get(), text, sizeof text);
  if (count < 0) return system_failure(path);
  const char* end = text + kDigits;
  const auto [stop, error] = std::from_chars(text, end, *held, 16);
  if (count != kDigits || error != std::errc() || stop != end) {
    return fail(MEP_ERR_SYSTEM, "witness '%.300s' holds no digest", path.c_str());
  }
  return MEP_SUCCESS;
}

}  // namespace

std::string witness_name(const membership::View& split, uint64_t epoch) {
  Hash hash;
  split.members.each([&](uint32_t slot) {
    hash.word(slot);
    hash.word(split.incarnation(slot));
  });
  return hexadecimal(hash.value()) + "." + std::to_string(epoch);
}

mep_result_t witness_store(const std::string& folder, const std::string& name, uint64_t digest,
                           uint64_t* held) {
  const std::string path = folder + "/" + name;
  std::string draft;
  MEP_TRY(write_draft(path, digest, &draft));
  // The answer of link() may get lost on NFS; the register's content does not.
  const bool linked = link(draft.c_str(), path.c_str()) == 0;
  const int error = errno;
  unlink(draft.c_str());
  const mep_result_t found = read_register(path, held);
  if (found == MEP_SUCCESS || linked || error == EEXIST) return found;
  errno = error;
  return system_failure(path);
}

// Shared by the world and the thread: the latter may outlive the former.
struct Witness::State {
  std::string folder;
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  Answer answer;  // empty: the world has ended
  bool asked = false;
  std::string name;
  uint64_t epoch = 0;
  uint64_t digest = 0;
  bool ended = false;
  std::thread thread;
};

mep_result_t Witness::open(const std::string& directory, Answer answer,
                           std::unique_ptr<Witness>* out) {
  auto state = std::make_shared<State>();
  state->folder = directory + "/mep-witness";
  state->answer = std::move(answer);
  MEP_TRY(make_private_folder(directory, state->folder, "witness"));
  MEP_TRY(start_library_thread(
      "the witness's thread", [state] { run(state); }, &state->thread));
  out->reset(new Witness(std::move(state)));
  return MEP_SUCCESS;
}

void Witness::ask(const membership::View& split, uint64_t epoch, uint64_t digest) {
  const std::lock_guard lock(state_->mutex);
  state_->name = witness_name(split, epoch);
  state_->epoch = epoch;
  state_->digest = digest;
  state_->asked = true;
  state_->changed.notify_all();
}

void Witness::answer_once(State* state, std::unique_lock<std::mutex>* lock) {
  const std::string name = state->name;
  const uint64_t epoch = state->epoch;
  const uint64_t digest = state->digest;
  uint64_t held = 0;
  lock->unlock();
  const mep_result_t result = witness_store(state->folder, name, digest, &held);
  if (result != MEP_SUCCESS) log(LogLevel::kWarn, "%s; trying again", last_error_text());
  lock->lock();
  if (result != MEP_SUCCESS) {
    state->changed.wait_for(*lock, kTryAgain);
  } else if (state->answer != nullptr) {
    state->answer(epoch, held);
    if (state->name == name) state->asked = false;
  }
}

void Witness::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  try {
    while (state->answer != nullptr) {
      if (state->asked) {
        answer_once(state.get(), &lock);
      } else {
        state->changed.wait(lock);
      }
    }
  } catch (const std::bad_alloc&) {
    if (!lock.owns_lock()) lock.lock();
    log(LogLevel::kWarn, "out of memory: the witness is asked no more");
  }
  state->ended = true;
  state->changed.notify_all();
}

Witness::~Witness() {
  std::unique_lock lock(state_->mutex);
  state_->answer = nullptr;
  state_->changed.notify_all();
  const bool ended = state_->changed.wait_for(lock, kHangs, [this] { return state_->ended; });
  lock.unlock();
  if (ended) {
    state_->thread.join();
  } else {
    log(LogLevel::kWarn, "witness: '%s' does not answer; its thread is left behind",
        state_->folder.c_str());
    state_->thread.detach();
  }
}

}  // namespace mep
