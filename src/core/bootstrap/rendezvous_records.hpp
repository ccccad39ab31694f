// Records that ranks leave for each other where somebody else may write: a place in a file of a directory, a meeting
// in the caller's store. Decoding is safe on any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/bootstrap/net_address.hpp"
#include "core/bootstrap/rendezvous_entries.hpp"

namespace mep {

std::vector<std::byte> encode_entry_file(const std::string& job, const Place& place);
// False: no place of this job in this version.
bool decode_entry_file(std::span<const std::byte> bytes, const std::string& job, Place* place);

constexpr size_t kMaxMeetingNameBytes = 64;

struct MeetingRecord {
  uint32_t version = 0;
  uint64_t host = 0;                  // rank 0's
  std::string name;                   // under which the ranks meet
  std::vector<NetAddress> addresses;  // where it is reached from other hosts
};
std::vector<std::byte> encode_meeting_record(const MeetingRecord& meeting);
// False: something else. A record of another version gives its version and nothing more.
bool decode_meeting_record(std::span<const std::byte> bytes, MeetingRecord* out);

}  // namespace mep
