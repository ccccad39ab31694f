// A queue pair of an mlx5 NIC whose send queue the owner of its memory posts to: RC, no receive queue, one completion
// entry that the NIC overwrites.
//
// Its memory, in this order: the ring, and on pages of their own the completion entry and the doorbell record. It lies on the
// host or on a GPU; make_empty() prepares it before create().
//
//   create    all objects; the queue pair is in reset
//   connect   to the peer's queue pair: from then on requests are executed
//   fail      the NIC executes nothing more and flushes what it is told of, with syndrome 0x05
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/gpu_queue/mlx5_device.hpp"

namespace mep::gpu_queue::mlx5 {

struct Capabilities {
  uint32_t log_max_entries = 0;
  uint32_t log_max_completions = 0;
  uint32_t log_max_message = 0;
  uint32_t completion_version = 0;
  bool ignores_overrun = false;
  bool is_ethernet = false;
  bool has_roce = false;
  bool adds_words = false;  // fetch-and-add of 8 bytes
};
[[nodiscard]] mep_result_t read_capabilities(Device& device, Capabilities* out);
// Empty: queues of `entries` can be made. Else one sentence that says what the NIC lacks.
std::string what_lacks(const Capabilities& capabilities, uint32_t entries);

// Offsets in a queue's memory.
struct QueueLayout {
  explicit constexpr QueueLayout(uint32_t entries)
      : completion((uint64_t{entries} * 64 + kPage - 1) / kPage * kPage),
        record(completion + kPage),
        bytes(record + kPage) {}
  static constexpr uint64_t kPage = 4096;
  uint64_t completion;
  uint64_t record;
  uint64_t bytes;
};

// How long an adapter tries to reach a peer: so often, and for each try it waits 4.096 us * 2^ack_timeout by its name; an
// adapter may take up to four times that.
constexpr uint32_t kTries = 8;
constexpr uint32_t kShortestAckTimeout = 14, kLongestAckTimeout = 20;  // 0.5 s and 34 s of tries
constexpr uint64_t tries_ns(uint32_t ack_timeout) {
  return uint64_t{kTries} * 4096 << ack_timeout;
}
// With which the tries take at most the time after which the world counts a silent peer as lost.
constexpr uint32_t ack_timeout_for(uint32_t suspect_ms) {
  uint32_t ack_timeout = kLongestAckTimeout;
  while (ack_timeout > kShortestAckTimeout && tries_ns(ack_timeout) / 1'000'000 > suspect_ms) {
    --ack_timeout;
  }
  return ack_timeout;
}

class SendQueuePair {
 public:
  struct Options {
    uint32_t entries = 0;  // power of two
    uint32_t mtu = 0;
    uint32_t first_psn = 0;
    uint32_t ack_timeout = kLongestAckTimeout;
    MemoryRange memory;  // QueueLayout(entries).bytes
  };

  [[nodiscard]] static mep_result_t create(Device& device, const Capabilities& capabilities,
                                           const Options& options,
                                           std::unique_ptr<SendQueuePair>* out);

  // Once. An error leaves the pair in the state that it had come to: destroy it.
  [[nodiscard]] mep_result_t connect(const QueueAddress& peer, const PathOptions& path);
  [[nodiscard]] mep_result_t fail();

  uint32_t number() const { return number_; }
  uint32_t first_psn() const { return options_.first_psn; }
  uint64_t* doorbell() const { return page_->address(); }

 private:
  SendQueuePair(const Capabilities& capabilities, const Options& options)
      : capabilities_(capabilities), options_(options) {}

  [[nodiscard]] mep_result_t create_completions(Device& device);
  [[nodiscard]] mep_result_t create_pair(Device& device);
  [[nodiscard]] mep_result_t change(Mailbox* in, Command command);
  void set_path(Mailbox* in, const QueueAddress& peer, const PathOptions& path) const;

  const Capabilities capabilities_;
  const Options options_;
  uint32_t number_ = 0;
  uint32_t completions_number_ = 0;
  // They end from the last to the first: the NIC lets go of memory and doorbells last.
  std::unique_ptr<DoorbellPage> page_;
  std::unique_ptr<SharedMemory> memory_;
  std::unique_ptr<Object> completions_;
  std::unique_ptr<Object> pair_;
};

}  // namespace mep::gpu_queue::mlx5
