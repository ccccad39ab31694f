#include "core/world/flight_recorder.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/rank_path.hpp"
#include "base/status.hpp"
#include "transport/memfd.hpp"

namespace mep {

using flight::Header;
using flight::Record;

namespace {

// The word that says what became of a record. Written as a word: made of bytes, it would cost a call 10 ns.
uint64_t state_of(uint8_t flags, mep_result_t result) {
  return uint64_t{flags} << 32 | static_cast<uint32_t>(result);
}
static_assert(std::endian::native == std::endian::little && offsetof(Record, result) % 8 == 0 &&
              offsetof(Record, flags) % 8 == 4);

}  // namespace

FlightLabel::FlightLabel(const flight::Label& label)
    : words(std::bit_cast<decltype(words)>(label)) {
  for (size_t i = 0; i < words.size(); ++i) check ^= flight::share(words[i], kAt + i);
}

std::unique_ptr<FlightRecorder> FlightRecorder::open(const ResolvedConfig& config, uint32_t rank) {
  if (!config.keeps_flight) return nullptr;
  std::string path;
  (void)rank_path("MEP_FLIGHT_RECORDER", config.flight_recorder, rank, true, &path);
  std::unique_ptr<FlightRecorder> made(new FlightRecorder(!path.empty()));
  if (path.empty()) {
    const KeepErrorText kept;
    if (is_error(made->make_memory(config.job, rank))) return nullptr;
  } else if (const int error = made->make_file(path); error != 0) {
    log(LogLevel::kWarn,
        "MEP_FLIGHT_RECORDER: %s cannot be made (errno %d); operations are not recorded",
        path.c_str(), error);
    return nullptr;
  }
  made->fill_header(config.job, rank);
  return made;
}

// A new file, so that nobody who has mapped an old one loses memory under it; with its room, for a write to a mapped page
// without room would kill.
int FlightRecorder::make_file(const std::string& path) {
  (void)unlink(path.c_str());
  file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0644));
  if (!file_.valid()) return errno;
  const int room = posix_fallocate(file_.get(), 0, bytes());
  if (room != 0) {
    (void)unlink(path.c_str());
    return room;
  }
  const int flags = MAP_SHARED | MAP_POPULATE;  // takes the page faults
  void* const mapped = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, flags, file_.get(), 0);
  if (mapped == MAP_FAILED) return errno;
  header_ = static_cast<Header*>(mapped);
  return 0;
}

// Its pages take memory as records come.
mep_result_t FlightRecorder::make_memory(const std::string& job, uint32_t rank) {
  const std::string name =
      flight::kMemoryName + job.substr(0, sizeof header_->job - 1) + "-" + std::to_string(rank);
  MEP_TRY(create_memfd(name.c_str(), bytes(), &file_));
  Mapping mapping;
  MEP_TRY(Mapping::of(file_.get(), bytes(), true, &mapping));
  header_ = reinterpret_cast<Header*>(mapping.release());
  return MEP_SUCCESS;
}

void FlightRecorder::fill_header(const std::string& job, uint32_t rank) {
  places_ = reinterpret_cast<Place*>(header_ + 1);
  // The process has it until it ends; a child does not inherit it.
  struct flock lock {};
  lock.l_type = F_WRLCK;
  (void)fcntl(file_.get(), F_SETLK, &lock);
  timespec wall{};
  clock_gettime(CLOCK_REALTIME, &wall);
  header_->mono_ns = now_ns();
  header_->wall_ns =
      static_cast<uint64_t>(wall.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(wall.tv_nsec);
  header_->version = flight::kVersion;
  header_->records = records_;
  header_->rank = rank;
  header_->pid = static_cast<uint32_t>(getpid());
  job.copy(header_->job, sizeof header_->job - 1);
  (void)gethostname(header_->host, sizeof header_->host - 1);
  header_->magic = flight::kMagic;
}

FlightRecorder::~FlightRecorder() {
  if (header_ == nullptr) return;
  if (header_->pid == static_cast<uint32_t>(getpid())) header_->closed = 1;
  unmap_memory(reinterpret_cast<std::byte*>(header_), bytes());
}

// Every call pays for it: words from the lowest on, so that the caches see one stream.
uint64_t FlightRecorder::begin(const FlightLabel& label, const FlightCall& call, uint32_t peer) {
  const uint64_t begun_ns = time();
  const uint64_t ticket = last_ticket_.fetch_add(1, std::memory_order_relaxed) + 1;
  Place& place = place_of(ticket);
  uint64_t check = label.check;
  const auto put_checked = [&](size_t offset, uint64_t word) {
    put(&place, offset, word);
    check ^= flight::share(word, offset / 8);
  };
  put_checked(offsetof(Record, ticket), ticket);
  for (size_t i = 0; i < label.words.size(); ++i) {
    put(&place, offsetof(Record, label) + 8 * i, label.words[i]);
  }
  put_checked(offsetof(Record, channel), call.channel);
  put_checked(offsetof(Record, epoch), call.epoch);
  put_checked(offsetof(Record, number), call.number);
  put_checked(offsetof(Record, begun_ns), begun_ns);
  put(&place, offsetof(Record, ended_ns), 0);
  put_checked(offsetof(Record, bytes), call.bytes);
  put(&place, offsetof(Record, missing), 0);
  put(&place, offsetof(Record, result), state_of(call.flags, MEP_SUCCESS));
  put_checked(offsetof(Record, peer), uint64_t{peer} | static_cast<uint64_t>(call.kind) << 32 |
                                          static_cast<uint64_t>(call.dtype) << 40);
  // Release: behind the words that it does not cover.
  place.back().store(check, std::memory_order_release);
  return ticket;
}

FlightRecorder::Place* FlightRecorder::find(uint64_t ticket) {
  Place& place = place_of(ticket);
  const bool is_there = ticket != 0 && place[0].load(std::memory_order_relaxed) == ticket;
  return is_there ? &place : nullptr;
}

void FlightRecorder::put(Place* place, size_t offset, uint64_t word) {
  (*place)[offset / 8].store(word, std::memory_order_relaxed);
}

void FlightRecorder::put_flags(Place* place, uint8_t flags, mep_result_t result) {
  const uint64_t old = (*place)[offsetof(Record, result) / 8].load(std::memory_order_relaxed);
  put(place, offsetof(Record, result), state_of(static_cast<uint8_t>(old >> 32 | flags), result));
}

bool FlightRecorder::again(uint64_t ticket, uint64_t epoch, uint64_t number) {
  Place* const place = find(ticket);
  if (place == nullptr) return false;
  const auto old = [place](size_t at) { return (*place)[at].load(std::memory_order_relaxed); };
  uint64_t check = place->back().load(std::memory_order_relaxed);
  const auto put_checked = [&](size_t offset, uint64_t word) {
    check ^= flight::share(old(offset / 8), offset / 8) ^ flight::share(word, offset / 8);
    put(place, offset, word);
  };
  put_checked(offsetof(Record, epoch), epoch);
  put_checked(offsetof(Record, number), number);
  put_checked(offsetof(Record, begun_ns), time());
  place->back().store(check, std::memory_order_relaxed);
  put(place, offsetof(Record, missing), 0);
  const auto flags = static_cast<uint8_t>(old(offsetof(Record, result) / 8) >> 32);
  constexpr uint8_t kPast = flight::kEnded | flight::kLate;
  put(place, offsetof(Record, result), state_of(flags & ~kPast, MEP_SUCCESS));
  return true;
}

void FlightRecorder::end(uint64_t ticket, mep_result_t result, uint64_t missing) {
  Place* const place = find(ticket);
  if (place == nullptr) return;
  if (is_exact_) put(place, offsetof(Record, ended_ns), now_ns());
  if (missing != 0) put(place, offsetof(Record, missing), missing);
  put_flags(place, flight::kEnded, result);
}

void FlightRecorder::note_late(uint64_t ticket, uint64_t missing) {
  Place* const place = find(ticket);
  if (place == nullptr) return;
  put(place, offsetof(Record, missing), missing);
  put_flags(place, flight::kLate, MEP_SUCCESS);
}

}  // namespace mep
