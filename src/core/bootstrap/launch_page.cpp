#include "core/bootstrap/launch_page.hpp"

#include <sys/wait.h>

#include <atomic>
#include <cstring>

#include "base/env.hpp"
#include "base/hash.hpp"
#include "base/status.hpp"

namespace mep {
namespace {

constexpr uint64_t kMagic = 0x31304c50454dull;  // "MEPL01"
constexpr uint64_t kEnded = 0x10000;

struct Header {
  uint64_t magic;
  uint64_t job;
  uint32_t first_rank;
  uint32_t ranks;
};

size_t bytes_of(uint32_t ranks) {
  return sizeof(Header) + size_t{ranks} * sizeof(uint64_t);
}

std::atomic<uint64_t>* end_word(std::byte* page, uint32_t index) {
  return reinterpret_cast<std::atomic<uint64_t>*>(page + bytes_of(index));
}

}  // namespace

std::string text_of_wait_status(int wait_status) {
  if (!WIFSIGNALED(wait_status))
    return "exited with status " + std::to_string(WEXITSTATUS(wait_status));
  const int signal = WTERMSIG(wait_status);
  const char* name = sigabbrev_np(signal);
  return "was killed by signal " + std::to_string(signal) + " (SIG" +
         (name != nullptr ? name : "?") + ")";
}

mep_result_t LaunchPage::create(int32_t first_rank, int32_t ranks, const std::string& job) {
  const auto count = static_cast<uint32_t>(ranks);
  MEP_TRY(create_memfd("mep-launch", round_up_to_pages(bytes_of(count)), &fd_));
  MEP_TRY(Mapping::of(fd_.get(), bytes_of(count), true, &page_));
  // No rank can tell the others a wrong end.
  MEP_TRY(seal_memfd(fd_.get(), true));
  const Header header{kMagic, hash_text(job), static_cast<uint32_t>(first_rank), count};
  std::memcpy(page_.data(), &header, sizeof header);
  return MEP_SUCCESS;
}

// Relaxed, here and below: a word speaks of nothing but itself.
void LaunchPage::note_started(int32_t rank) {
  if (!found()) return;
  end_word(page_.data(), static_cast<uint32_t>(rank))->store(0, std::memory_order_relaxed);
}

void LaunchPage::note_ended(int32_t rank, pid_t pid, int wait_status) {
  if (!found()) return;
  const uint64_t end =
      static_cast<uint64_t>(pid) << 32 | kEnded | static_cast<uint64_t>(wait_status & 0xffff);
  end_word(page_.data(), static_cast<uint32_t>(rank))->store(end, std::memory_order_relaxed);
}

void LaunchPage::find(const std::string& job) {
  const KeepErrorText kept;
  uint64_t fd = 0;
  bool given = false;
  if (env_number(kVariable, &fd, &given) != MEP_SUCCESS || !given) return;
  const auto number = static_cast<int>(fd);
  Mapping page;
  Header header{};
  if (check_foreign_memfd(number, sizeof header) != MEP_SUCCESS) return;
  if (Mapping::of(number, sizeof header, false, &page) != MEP_SUCCESS) return;
  std::memcpy(&header, page.data(), sizeof header);
  if (header.magic != kMagic || header.job != hash_text(job)) return;
  if (check_foreign_memfd(number, bytes_of(header.ranks)) != MEP_SUCCESS) return;
  if (Mapping::of(number, bytes_of(header.ranks), false, &page) != MEP_SUCCESS) return;
  page_ = std::move(page);
}

std::string LaunchPage::end_of(int32_t world_rank) const {
  if (!found()) return {};
  Header header;
  std::memcpy(&header, page_.data(), sizeof header);
  const uint32_t index = static_cast<uint32_t>(world_rank) - header.first_rank;
  if (index >= header.ranks) return {};
  const uint64_t end = end_word(page_.data(), index)->load(std::memory_order_relaxed);
  if (end == 0) return {};
  return "rank " + std::to_string(world_rank) + " (pid " + std::to_string(end >> 32) + ") " +
         text_of_wait_status(static_cast<int>(end & 0xffff));
}

}  // namespace mep
