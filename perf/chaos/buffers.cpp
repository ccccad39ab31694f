#include "buffers.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <numeric>

#include "formatted.hpp"
#include "numbers.hpp"

namespace mep::programs {
namespace {

constexpr uint8_t kUntouched = 0xa5;
constexpr size_t kGuard = 64;
// Up to here each rank looks at every element; beyond, at its share of them. Where all ranks have the same
// bytes, they see all together; else each looks at more.
constexpr size_t kWholeBytes = 32768;
constexpr size_t kWholeOwnBytes = size_t{1} << 20;
constexpr size_t kShareElements = 64;

std::string shown(const uint8_t* bytes, size_t count) {
  std::string text = "0x";
  for (size_t i = count; i > 0; --i) text += formatted("%02x", bytes[i - 1]);
  return text;
}

uint64_t digest_of(const void* bytes, size_t count) {
  const auto* from = static_cast<const uint8_t*>(bytes);
  uint64_t digest = scrambled(count);
  for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, from + i, count - i < sizeof word ? count - i : sizeof word);
    digest = (digest ^ word) * 0xff51afd7ed558ccdu;
    digest ^= digest >> 29;
  }
  return digest;
}

}  // namespace

uint64_t Members::slots_of(uint64_t ranks) const {
  uint64_t result = 0;
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    if ((ranks >> rank & 1) != 0) result |= uint64_t{1} << slots[rank];
  }
  return result;
}

uint64_t Members::all_slots() const {
  return slots_of(~uint64_t{0});
}

// With counts: nothing, a half or all of call.count, by the ranks that the block is of and for.
size_t CallBuffers::length(const Call& call, uint32_t source, uint32_t target) {
  const OperationFacts& facts = facts_of(call.kind);
  if (!facts.has_counts) return call.count;
  const uint32_t key =
      (facts.gets_a_block_of_each() ? source : 0) + (facts.gives_each_a_block() ? 2 * target : 0);
  return call.count * ((key + call.count) % 3) / 2;
}

size_t CallBuffers::first_for(uint32_t source, uint32_t target) const {
  size_t first = 0;
  if (!facts_of(call_.kind).gives_each_a_block()) return first;
  for (uint32_t before = 0; before < target; ++before) first += length(call_, source, before);
  return first;
}

size_t CallBuffers::sent_bytes(const Call& call, const Members& members) {
  if (call.kind == CallKind::k_barrier) return 0;
  size_t elements = 0;
  for (uint32_t i = 0; i < facts_of(call.kind).send_blocks(members.slots.size()); ++i) {
    elements +=
        length(call, members.rank, facts_of(call.kind).gives_each_a_block() ? i : members.rank);
  }
  return elements * element_bytes(call.dtype);
}

size_t CallBuffers::sent_bytes() const {
  return sent_bytes(call_, members_);
}

// In place a part of sendbuf is recvbuf; else the other way round.
bool CallBuffers::lies_in_send() const {
  return facts_of(call_.kind).gives_each_a_block();
}

// Where in the larger of the two the other begins, in place.
size_t CallBuffers::offset_in_place() const {
  if (!lies_in_send() && !facts_of(call_.kind).gets_a_block_of_each()) return 0;
  const std::vector<uint64_t>& blocks = lies_in_send() ? given_ : gotten_;
  return std::accumulate(blocks.begin(), blocks.begin() + members_.rank, size_t{0}) * element_;
}

// All ranks get the same bytes.
bool CallBuffers::is_alike() const {
  return call_.kind == CallKind::k_broadcast || call_.kind == CallKind::k_allgather ||
         call_.kind == CallKind::k_allgatherv || call_.kind == CallKind::k_allreduce;
}

bool CallBuffers::is_gotten() const {
  return facts_of(call_.kind).gets(members_.rank, root_);
}

CallBuffers::CallBuffers(const Program& program, uint32_t step, uint32_t part, const Call& call,
                         const Members& members, uint8_t* own_memory)
    : program_(program),
      call_(call),
      members_(members),
      step_(step),
      part_(part),
      element_(call.kind == CallKind::k_barrier ? 1 : element_bytes(call.dtype)) {
  const OperationFacts& facts = facts_of(call.kind);
  if (!facts.has_data()) return;
  root_ = call.root % static_cast<uint32_t>(members.slots.size());
  const size_t size = members.slots.size();
  for (uint32_t i = 0; i < facts.send_blocks(size); ++i) {
    given_.push_back(length(call, members.rank, facts.gives_each_a_block() ? i : members.rank));
  }
  for (uint32_t i = 0; is_gotten() && i < facts.receive_blocks(size); ++i) {
    gotten_.push_back(length(call, facts.gets_a_block_of_each() ? i : members.rank, members.rank));
    out_bytes_ += gotten_.back() * element_;
  }
  const bool gives = facts.gives(members.rank, root_);
  const bool has_none = facts.gives_each_a_block() && facts.gets_a_block_of_each();
  const bool in_place = call.in_place && gives && is_gotten() && !has_none;
  held_bytes_ = in_place ? std::max(out_bytes_, sent_bytes()) : out_bytes_;
  out_.assign(kGuard + held_bytes_ + kGuard, kUntouched);
  receive_ = out_.data() + kGuard;
  if (in_place && lies_in_send()) {
    send_ = receive_;
    receive_ += offset_in_place();
  } else if (in_place) {
    send_ = receive_ + offset_in_place();
  } else if (own_memory != nullptr) {
    send_ = own_memory;
  } else {
    in_.assign(sent_bytes() + 1, 0);
    send_ = in_.data();
  }
  if (gives) {
    make_elements(call.dtype, key_of(members.rank), sent_bytes() / element_, send_);
  } else {
    send_ = nullptr;  // not to be read
  }
}

void CallBuffers::put_on(Device* device) {
  device_ = device;
  out_there_ = static_cast<uint8_t*>(device->take(out_.size()));
  in_there_ = static_cast<uint8_t*>(device->take(in_.size()));
  device->upload(out_there_, out_.data(), out_.size());
  device->upload(in_there_, in_.data(), in_.size());
}

void CallBuffers::fetch() {
  device_->synchronize();
  device_->download(out_.data(), out_there_, out_.size());
  device_->download(in_.data(), in_there_, in_.size());
}

uint8_t* CallBuffers::address_of(uint8_t* here) const {
  if (device_ == nullptr || here == nullptr) return here;
  const bool is_out = here >= out_.data() && here < out_.data() + out_.size();
  return is_out ? out_there_ + (here - out_.data()) : in_there_ + (here - in_.data());
}

uint64_t CallBuffers::key_of(uint32_t rank) const {
  const uint32_t slot = members_.slots[rank];
  return mix(program_.seed, uint64_t{step_} << 16 | part_, slot, program_.generation(slot, step_));
}

uint64_t CallBuffers::digest() const {
  return is_alike() ? digest_of(receive_, out_bytes_) : 0;
}

bool CallBuffers::is_mine(size_t element) const {
  if (out_bytes_ <= (is_alike() ? kWholeBytes : kWholeOwnBytes)) return true;
  return element / kShareElements % members_.slots.size() == members_.rank;
}

std::string CallBuffers::check(mep_result_t result, uint64_t ranks, bool says_intact) const {
  if (call_.kind == CallKind::k_barrier) return {};
  for (size_t i = 0; i < kGuard; ++i) {
    if (out_[i] != kUntouched) return formatted("%zu bytes before the buffer written", kGuard - i);
    if (out_[kGuard + held_bytes_ + i] != kUntouched) {
      return formatted("byte %zu behind the buffer written", i);
    }
  }
  std::string wrong;
  if (result == MEP_SUCCESS) wrong = check_result(ranks);
  return wrong.empty() && send_ != nullptr ? check_input(result < 0 && says_intact) : wrong;
}

// Input that is not in place must be as it was, whatever the result.
std::string CallBuffers::check_input(bool says_intact) const {
  uint8_t expected[8];
  const size_t count = sent_bytes() / element_;
  const uint64_t key = key_of(members_.rank);
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* given = send_ + i * element_;
    const bool in_place = given >= receive_ && given < receive_ + out_bytes_;
    if (!is_mine(i) || (in_place && !says_intact)) continue;
    make_element(call_.dtype, key, i, expected);
    if (std::memcmp(expected, given, element_) == 0) continue;
    return formatted("%s: element %zu of the input was altered",
                     in_place ? "in place, called intact" : "not in place", i);
  }
  return {};
}

std::string CallBuffers::check_result(uint64_t ranks) const {
  const uint8_t* block = receive_;
  for (size_t i = 0; i < gotten_.size(); ++i) {
    using mep_reference::Content;
    const Content content =
        mep_reference::content_of(call_.kind, root_, members_.rank, members_.slots.size(), i);
    const auto source = static_cast<uint32_t>(content.source);
    const size_t bytes = gotten_[i] * element_;
    const bool is_absent =
        facts_of(call_.kind).gets_a_block_of_each() && (ranks >> source & 1) == 0;
    std::string wrong;
    if (content.how == Content::kNothing) {
      wrong = formatted("nobody here knows what %s gives", mep::name_of(call_.kind));
    } else if (content.how == Content::kReduced) {
      wrong = check_reduced(ranks);
    } else if (!is_absent) {
      wrong = check_block(source, block);
    } else if (source == members_.rank) {
      wrong = "a success without the caller's contribution";
    } else if (std::any_of(block, block + bytes, [](uint8_t b) { return b != kUntouched; })) {
      wrong = formatted("block of absent rank %u written", source);
    }
    if (!wrong.empty()) return wrong;
    block += bytes;
  }
  return {};
}

std::string CallBuffers::check_block(uint32_t rank, const uint8_t* block) const {
  uint8_t expected[8];
  const uint64_t key = key_of(rank);
  const size_t first = first_for(rank, members_.rank);
  const size_t count = length(call_, rank, members_.rank);
  for (size_t i = 0; i < count; ++i) {
    if (!is_mine(i)) continue;
    make_element(call_.dtype, key, first + i, expected);
    if (std::memcmp(expected, block + i * element_, element_) == 0) continue;
    return formatted("element %zu of rank %u is %s, not %s", i, rank,
                     shown(block + i * element_, element_).c_str(),
                     shown(expected, element_).c_str());
  }
  return {};
}

std::string CallBuffers::check_reduced(uint64_t ranks) const {
  const size_t first = first_for(members_.rank, members_.rank);
  const size_t count = gotten_[0];
  std::vector<uint64_t> keys;
  for (uint32_t rank = 0; rank < members_.slots.size(); ++rank) {
    if ((ranks >> rank & 1) != 0) keys.push_back(key_of(rank));
  }
  if (keys.empty()) return count == 0 ? "" : "a success without contributors";
  uint8_t given[64][8];
  const uint8_t* inputs[64];
  uint8_t expected[8];
  for (size_t k = 0; k < keys.size(); ++k) inputs[k] = given[k];
  for (size_t i = 0; i < count; ++i) {
    if (!is_mine(i)) continue;
    for (size_t k = 0; k < keys.size(); ++k)
      make_element(call_.dtype, keys[k], first + i, given[k]);
    mep_reference::reduce(call_.dtype, call_.op, inputs, keys.size(), 1, keys.size(), expected);
    const uint8_t* actual = receive_ + i * element_;
    if (std::memcmp(actual, expected, element_) == 0) continue;
    return formatted("element %zu of %zu is %s, not %s, contributors %" PRIx64, i, count,
                     shown(actual, element_).c_str(), shown(expected, element_).c_str(), ranks);
  }
  return {};
}

}  // namespace mep::programs
