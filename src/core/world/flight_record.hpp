// The last operations of one rank, in a file of MEP_FLIGHT_RECORDER or in a memfd named kMemoryName, the job, "-" and the
// rank: a Header, then a ring of Records. Ranks are those of the world; in masks, ranks 0 to 63.
//
// Its writer may be killed at any instruction, and a reader may look at any time: a record counts whose `check` is right.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace mep::flight {

inline constexpr uint64_t kMagic = 0x44524f434552504d;  // "MPRECORD" in the file
// Changes with the layout, and with the order of operations.def.
inline constexpr uint32_t kVersion = 2;
// The ring of a file, and that of a memfd, which is there by default: 16 KiB stay in a core's first cache.
inline constexpr uint32_t kFileRecords = 4096;
inline constexpr uint32_t kMemoryRecords = 128;
inline constexpr char kMemoryName[] = "mep-flight-";

enum class Kind : uint8_t {
  kNone,
  kSend,
  kReceive,
  kDispatch,
  kCombine,
  kMessages,     // sends and receives that are enqueued together
  kOnStream,     // whatever a GPU carries out, as its watcher sees it
  kCollectives,  // and those behind it: one of the table
};

inline constexpr uint32_t kNoPeer = ~uint32_t{0};

inline constexpr uint8_t kEnded = 1;
inline constexpr uint8_t kEnqueued =
    2;  // the record ends when the call returns; a stream carries it out later
inline constexpr uint8_t kOwn = 4;   // part of a function that is made of operations
inline constexpr uint8_t kLate = 8;  // over its time

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t records;
  uint32_t rank;
  uint32_t pid;
  uint64_t wall_ns;  // the clocks at one moment: Unix time and the host's monotonic clock
  uint64_t mono_ns;
  uint64_t closed;  // 1: the rank's world has ended in order
  char job[64];
  char host[64];
  uint64_t reserved[2];
};
static_assert(sizeof(Header) == 192);

// The lasting facts of a communicator. Its name is cut to the room that there is, and ended by a 0.
struct Label {
  uint64_t comm;
  uint64_t members;  // a mask
  char name[24];
};

struct Record {
  uint64_t ticket;  // n-th of the rank, from 1, at place (n - 1) % Header::records; 0: none yet
  Label label;
  uint64_t channel;  // numbers of one channel are the same on all ranks, but for messages
  uint64_t epoch;
  uint64_t number;    // 0: unknown
  uint64_t begun_ns;  // monotonic; in a memfd up to a second early
  uint64_t ended_ns;  // 0 in a memfd
  uint64_t bytes;     // that this rank gives, or has room for
  uint64_t missing;   // a mask of those that it lacked or waits for, as far as this rank knows
  int32_t result;
  uint8_t flags;
  uint8_t reserved[3];
  int32_t peer;  // root, or the other rank of a message; below 0: none, or any
  Kind kind;
  uint8_t dtype;
  uint16_t reserved2;
  uint64_t check;
};
// Words that change while the others stay, each by one store.
constexpr bool is_checked(size_t at) {
  return at != offsetof(Record, ended_ns) / 8 && at != offsetof(Record, missing) / 8 &&
         at != offsetof(Record, result) / 8;
}
inline constexpr size_t kWords = 16;
static_assert(sizeof(Record) == kWords * 8 && std::is_trivially_copyable_v<Record>);

constexpr size_t bytes_of(uint32_t records) {
  return sizeof(Header) + records * sizeof(Record);
}

// The part of a word in a record's check, which is the exclusive or of these of all words before it that are checked.
constexpr uint64_t share(uint64_t word, size_t at) {
  return std::rotl(word, static_cast<int>(at * 7 % 64));
}
constexpr uint64_t check_of(const std::array<uint64_t, kWords>& words) {
  uint64_t check = kMagic;
  for (size_t i = 0; i + 1 < kWords; ++i) check ^= is_checked(i) ? share(words[i], i) : 0;
  return check;
}

}  // namespace mep::flight
