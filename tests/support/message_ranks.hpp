// Shared by the tests of messages: bytes that only one message has, buffers that show what was written behind a
// message, and stages at which ranks wait for each other without the library.
#pragma once

#include <atomic>

#include "base/clock.hpp"
#include "support/coll_ranks.hpp"

namespace mep_test {

inline constexpr uint32_t kForever = 0xffffffff;
inline constexpr size_t kEagerBytes = MEP_MESSAGE_EAGER_BYTES;
// Waits for its receiver, also where it is not put into memory of it.
inline constexpr size_t kLeastAnnounced = (size_t{64} << 10) + 1;
inline constexpr size_t kLargeBytes = (size_t{1} << 20) + 3;
// Calls that end "at once", or when a peer has gone, do so long before: the timeouts are twice as long.
inline constexpr uint64_t kBoundedNs = 30'000'000'000;

// Ranks that are threads, and those that are processes where this lies in shared memory, wait for each other
// here. A wait ends without its condition when something was found or after a generous time.
class Stages {
 public:
  void reach(int stage) { at_[stage].fetch_add(1); }
  void await(int stage, int count, Report& report) const {
    const mep::Deadline limit = mep::Deadline::after_ms(100'000);
    while (at_[stage].load() < count && !report.bad()) {
      if (limit.expired()) report.add("not all came to stage %d of a test", stage);
      pause_us(200);
    }
  }
  // All of `count` ranks come to this stage before one goes on.
  void meet(int stage, int count, Report& report) {
    reach(stage);
    await(stage, count, report);
  }

 private:
  std::atomic<int> at_[16] = {};
};

// Byte i of the message `seed` is byte i % 8 of the (i / 8)-th number of that seed.
inline void fill_message(uint8_t* to, size_t bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = mix(seed, at / 8);
    std::memcpy(to + at, &word, std::min<size_t>(8, bytes - at));
  }
}

inline Bytes message_bytes(size_t bytes, uint64_t seed) {
  Bytes made(bytes + 1);  // so that there is an address even of no bytes
  fill_message(made.data(), bytes, seed);
  made.resize(bytes);
  return made;
}

// Where a message is received, with guarded memory behind it.
class Inbox {
 public:
  explicit Inbox(size_t room) : memory_(room + kGuard, kUntouched), room_(room) {
    mep_message_defaults(&message);
  }

  uint8_t* data() { return memory_.data(); }
  size_t room() const { return room_; }

  // The message of `seed` lies here, and nothing was written behind it.
  void check(size_t bytes, uint64_t seed, Report& report, int line = __builtin_LINE()) const {
    if (bytes > room_) return report.add("line %d: %zu bytes in %zu", line, bytes, room_);
    // Whole blocks at once: ThreadSanitizer makes a loop over bytes slow.
    const Bytes expected = message_bytes(bytes, seed);
    if (bytes != 0 && std::memcmp(memory_.data(), expected.data(), bytes) != 0) {
      size_t at = 0;
      while (memory_[at] == expected[at]) ++at;
      report.add("line %d: byte %zu of %zu is 0x%x, not 0x%x", line, at, bytes, memory_[at],
                 expected[at]);
    }
    check_untouched_from(bytes, report, line);
  }
  void check_untouched(Report& report, int line = __builtin_LINE()) const {
    check_untouched_from(0, report, line);
  }
  // Nothing was written since it looked like `before`.
  void check_same(const Inbox& before, Report& report, int line = __builtin_LINE()) const {
    if (memory_ == before.memory_) return;
    size_t at = 0;
    while (memory_[at] == before.memory_[at]) ++at;
    report.add("line %d: byte %zu was written after the call had returned", line, at);
  }
  // Behind the room, whatever is in it.
  void check_guard(Report& report, int line = __builtin_LINE()) const {
    check_untouched_from(room_, report, line);
  }
  // Checks what the struct says.
  void came(int source, int tag, size_t bytes, Report& report, mep_dtype_t dtype = MEP_UINT8,
            int line = __builtin_LINE()) const {
    if (message.source == source && message.tag == tag && message.bytes == bytes &&
        message.dtype == dtype && message.flags == 0) {
      return;
    }
    report.add("line %d: a message of %d, tag %d, %llu bytes, dtype %u; not of %d, tag %d, %zu, %u",
               line, message.source, message.tag, static_cast<unsigned long long>(message.bytes),
               message.dtype, source, tag, bytes, dtype);
  }

  mep_message_t message;

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kUntouched = 0xa5;

  void check_untouched_from(size_t begin, Report& report, int line) const {
    const Bytes untouched(memory_.size() - begin, kUntouched);
    if (std::memcmp(memory_.data() + begin, untouched.data(), untouched.size()) == 0) return;
    size_t at = begin;
    while (memory_[at] == kUntouched) ++at;
    report.add("line %d: byte %zu was written, the message has %zu and the buffer %zu", line, at,
               begin, room_);
  }

  Bytes memory_;
  size_t room_;
};

// Bytes to another rank; the bytes are those of `seed`.
inline mep_result_t send_bytes(size_t bytes, uint64_t seed, int dest, int tag, mep_comm_t comm) {
  const Bytes content = message_bytes(bytes, seed);
  return mep_send(content.data(), bytes, MEP_UINT8, dest, tag, comm, nullptr);
}
inline mep_result_t receive(Inbox& inbox, int source, int tag, mep_comm_t comm) {
  return mep_recv(inbox.data(), inbox.room(), MEP_UINT8, source, tag, comm, &inbox.message,
                  nullptr);
}
inline mep_result_t begin_receive(Inbox& inbox, int source, int tag, mep_comm_t comm,
                                  mep_request_t* request) {
  return mep_irecv(inbox.data(), inbox.room(), MEP_UINT8, source, tag, comm, &inbox.message,
                   nullptr, request);
}
inline mep_result_t finish(mep_request_t* request) {
  return mep_request_wait(request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr);
}

// Sends under way, and what they send.
class Sent {
 public:
  void start(size_t bytes, uint64_t seed, int dest, int tag, mep_comm_t comm, Report& found) {
    contents_.push_back(message_bytes(bytes, seed));
    requests_.push_back(nullptr);
    COLL_OK(found, mep_isend(contents_.back().data(), bytes, MEP_UINT8, dest, tag, comm, nullptr,
                             &requests_.back()));
  }
  void finish_all(Report& found) {
    COLL_OK(found, mep_request_waitall(static_cast<int32_t>(requests_.size()), requests_.data(),
                                       MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
  }

 private:
  std::vector<Bytes> contents_;
  std::vector<mep_request_t> requests_;
};

// Receives exactly the message of `seed`, from where and with what tag it is expected.
inline void expect_message(size_t bytes, uint64_t seed, int source, int tag, mep_comm_t comm,
                           Report& report, int line = __builtin_LINE()) {
  Inbox inbox(bytes);
  const mep_result_t result = receive(inbox, source, tag, comm);
  if (result != MEP_SUCCESS) {
    return report.add("line %d: receiving %zu bytes of rank %d, tag %d: %s (%s)", line, bytes,
                      source, tag, mep_result_string(result), mep_last_error());
  }
  inbox.came(source, tag, bytes, report, MEP_UINT8, line);
  inbox.check(bytes, seed, report, line);
}

// Every rank gives 16^rank, so the sum names who took part.
inline void expect_sum_of_ranks(mep_comm_t comm, uint64_t expected, Report& report,
                                int line = __builtin_LINE()) {
  int32_t rank = 0;
  COLL_OK(report, mep_comm_rank(comm, &rank));
  const uint64_t own = uint64_t{1} << (4 * rank);
  uint64_t sum = 0;
  COLL_OK(report, mep_allreduce(&own, &sum, 1, MEP_UINT64, MEP_SUM, comm, nullptr));
  if (sum != expected) {
    report.add("line %d: rank %d: contributors are %#llx, not %#llx", line, rank,
               static_cast<unsigned long long>(sum), static_cast<unsigned long long>(expected));
  }
}
inline uint64_t sum_of_all(int size) {
  return 0x1111111111111111u & ((size == 16 ? 0 : uint64_t{1} << (4 * size)) - 1);
}

// A test on peers whose memory is mapped, then by put and signal alone: cmocka_unit_test(both<body>).
template <void (*kBody)(uint32_t flags)>
void both(void**) {
  kBody(0);
  kBody(kPutOnly);
}

}  // namespace mep_test
