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

namespace mep {

using flight::Header;
using flight::Record;

namespace {

// The word of a record that says what became of it.
struct State {
  flight::Kind kind;
  uint8_t dtype;
  uint8_t flags;
  uint8_t reserved;
  int32_t result;
};
constexpr size_t kStateAt = offsetof(Record, kind) / 8;
static_assert(sizeof(State) == 8 && offsetof(Record, kind) % 8 == 0 &&
              offsetof(Record, result) == kStateAt * 8 + offsetof(State, result));

}  // namespace

std::unique_ptr<FlightRecorder> FlightRecorder::open(const ResolvedConfig& config, uint32_t rank) {
  std::string path;
  (void)rank_path("MEP_FLIGHT_RECORDER", config.flight_recorder, rank, true, &path);
  if (path.empty()) return nullptr;
  std::unique_ptr<FlightRecorder> made(new FlightRecorder);
  const int error = made->make(path, config.job, rank);
  if (error == 0) return made;
  log(LogLevel::kWarn,
      "MEP_FLIGHT_RECORDER: %s cannot be made (errno %d); operations are not recorded",
      path.c_str(), error);
  return nullptr;
}

// A new file, so that nobody who has mapped an old one loses memory under it; with its room, for a write to a mapped page
// without room would kill.
int FlightRecorder::make(const std::string& path, const std::string& job, uint32_t rank) {
  (void)unlink(path.c_str());
  file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0644));
  if (!file_.valid()) return errno;
  const int room = posix_fallocate(file_.get(), 0, flight::kFileBytes);
  if (room != 0) {
    (void)unlink(path.c_str());
    return room;
  }
  void* const mapped =
      mmap(nullptr, flight::kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (mapped == MAP_FAILED) return errno;
  std::memset(mapped, 0, flight::kFileBytes);  // takes the page faults
  header_ = static_cast<Header*>(mapped);
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
  header_->records = flight::kRecords;
  header_->rank = rank;
  header_->pid = static_cast<uint32_t>(getpid());
  job.copy(header_->job, sizeof header_->job - 1);
  header_->magic = flight::kMagic;
  return 0;
}

FlightRecorder::~FlightRecorder() {
  if (header_ == nullptr) return;
  if (header_->pid == static_cast<uint32_t>(getpid())) header_->closed = 1;
  (void)munmap(header_, flight::kFileBytes);
}

uint64_t FlightRecorder::begin(const Record& record) {
  const uint64_t ticket = last_ticket_.fetch_add(1, std::memory_order_relaxed) + 1;
  std::array<uint64_t, flight::kWords> words;
  std::memcpy(words.data(), &record, sizeof record);
  words[0] = ticket;
  words[offsetof(Record, begun_ns) / 8] = now_ns();
  words.back() = flight::check_of(words);
  Place& place = place_of(ticket);
  for (size_t i = 0; i < flight::kWords; ++i) place[i].store(words[i], std::memory_order_relaxed);
  return ticket;
}

FlightRecorder::Place* FlightRecorder::find(uint64_t ticket) {
  Place& place = place_of(ticket);
  const bool is_there = ticket != 0 && place[0].load(std::memory_order_relaxed) == ticket;
  return is_there ? &place : nullptr;
}

// Stores it, and its share of the check.
void FlightRecorder::put(Place* place, size_t at, uint64_t word) {
  const uint64_t old = (*place)[at].load(std::memory_order_relaxed);
  const uint64_t check = place->back().load(std::memory_order_relaxed);
  (*place)[at].store(word, std::memory_order_relaxed);
  place->back().store(check ^ flight::share(old, at) ^ flight::share(word, at),
                      std::memory_order_relaxed);
}

void FlightRecorder::put_state(Place* place, uint8_t flags, uint8_t without, mep_result_t result) {
  State state = std::bit_cast<State>((*place)[kStateAt].load(std::memory_order_relaxed));
  state.flags = static_cast<uint8_t>((state.flags & ~without) | flags);
  state.result = result;
  put(place, kStateAt, std::bit_cast<uint64_t>(state));
}

bool FlightRecorder::again(uint64_t ticket, uint64_t epoch, uint64_t number) {
  Place* const place = find(ticket);
  if (place == nullptr) return false;
  put(place, offsetof(Record, epoch) / 8, epoch);
  put(place, offsetof(Record, number) / 8, number);
  put(place, offsetof(Record, begun_ns) / 8, now_ns());
  put(place, offsetof(Record, missing) / 8, 0);
  put_state(place, 0, flight::kEnded | flight::kLate, MEP_SUCCESS);
  return true;
}

void FlightRecorder::end(uint64_t ticket, mep_result_t result, uint64_t missing) {
  Place* const place = find(ticket);
  if (place == nullptr) return;
  put(place, offsetof(Record, ended_ns) / 8, now_ns());
  if (missing != 0) put(place, offsetof(Record, missing) / 8, missing);
  put_state(place, flight::kEnded, 0, result);
}

void FlightRecorder::note_late(uint64_t ticket, uint64_t missing) {
  Place* const place = find(ticket);
  if (place == nullptr) return;
  put(place, offsetof(Record, missing) / 8, missing);
  put_state(place, flight::kLate, 0, MEP_SUCCESS);
}

}  // namespace mep
