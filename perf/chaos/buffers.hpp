// The buffers of one collective call: what a rank gives, and whether what came out is what mep.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device.hpp"
#include "program.hpp"

namespace mep::programs {

// The ranks that take part, as the rank that calls sees them.
struct Members {
  std::vector<uint32_t> slots;  // of each rank of the comm
  uint32_t rank = 0;            // of the caller

  uint64_t slots_of(uint64_t ranks) const;
  uint64_t all_slots() const;
};

class CallBuffers {
 public:
  // `own_memory`: of mep_mem_alloc of that comm for what is sent, or null.
  CallBuffers(const Program& program, uint32_t step, uint32_t part, const Call& call,
              const Members& members, uint8_t* own_memory);

  // The call's are there from now on, with what these have; the device outlives this.
  void put_on(Device* device);
  // Waits for the stream, and takes what the GPU has.
  void fetch();

  const void* send() const { return address_of(send_); }
  void* receive() const { return address_of(receive_); }
  uint32_t root() const { return root_; }
  size_t sent_bytes() const;
  static size_t sent_bytes(const Call& call, const Members& members);
  // Elements of each block, where blocks have a length each, packed: of sendbuf, or of recvbuf.
  const uint64_t* counts(bool of_send) const { return (of_send ? given_ : gotten_).data(); }

  // The text of what is wrong after a call that ended with `result`; empty: nothing. `ranks`: the contributors.
  std::string check(mep_result_t result, uint64_t ranks, bool says_intact) const;
  // A digest of the result; 0 where ranks get different bytes.
  uint64_t digest() const;

 private:
  uint8_t* address_of(uint8_t* here) const;
  bool lies_in_send() const;
  size_t offset_in_place() const;
  // Elements that a rank gives another, and where they begin in its input.
  static size_t length(const Call& call, uint32_t source, uint32_t target);
  size_t first_for(uint32_t source, uint32_t target) const;
  bool is_alike() const;
  bool is_gotten() const;
  uint64_t key_of(uint32_t rank) const;
  std::string check_input(bool says_intact) const;
  std::string check_result(uint64_t ranks) const;
  std::string check_block(uint32_t rank, const uint8_t* block) const;
  std::string check_reduced(uint64_t ranks) const;
  bool is_mine(size_t element) const;

  const Program& program_;
  const Call call_;
  const Members& members_;
  const uint32_t step_;
  const uint32_t part_;
  const size_t element_;
  uint32_t root_ = 0;
  std::vector<uint64_t> given_;  // elements of each block of sendbuf
  std::vector<uint64_t> gotten_;
  std::vector<uint8_t> out_;
  std::vector<uint8_t> in_;
  size_t out_bytes_ = 0;   // of recvbuf
  size_t held_bytes_ = 0;  // between the guards: recvbuf, in place with sendbuf
  uint8_t* send_ = nullptr;
  uint8_t* receive_ = nullptr;
  Device* device_ = nullptr;
  uint8_t* out_there_ = nullptr;  // of out_ and in_, on the GPU
  uint8_t* in_there_ = nullptr;
};

}  // namespace mep::programs
