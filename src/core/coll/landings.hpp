// Where blocks of large collectives land in the receive buffer itself: between ranks whose transport has targets
// (WindowExchange::open_target). In its entry a rank tells each other one the number of the target that it has opened for
// that one's block. The giver puts the block there in parts, and "posted" behind the last.
//
// The receive buffer is the caller's again when the operation has ended: every end closes the targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/world/remote.hpp"

namespace mep {

// The user's thread.
class Landings {
 public:
  void open(const std::vector<Remote>* remotes);

  // An operation begins, or begins again: nothing is open and nothing was put.
  void begin();
  // `source` may put a block to `memory`, if its transport can do that.
  void offer(uint32_t source, std::byte* memory, size_t bytes);
  bool is_offered(uint32_t source) const { return numbers_[source] != 0; }
  // By rank; 0: none.
  const std::vector<uint64_t>& numbers() const { return numbers_; }
  // Nothing lands any more.
  void close();

  // Puts the next part of the block, where the one before it has left. *moved: it did.
  [[nodiscard]] mep_result_t put_part(uint32_t target, uint64_t number, const std::byte* block,
                                      size_t bytes, bool* moved);
  bool is_put(uint32_t target, size_t bytes) const { return sent_[target].bytes == bytes; }

 private:
  // One part to a peer waits for the network at a time, so a view change waits for no more. A transport holds back shorter
  // puts for the signal behind them.
  static constexpr size_t kPartBytes = size_t{256} << 10;
  struct Sent {
    size_t bytes = 0;
    uint64_t posted = 0;  // the last put; 0: it has left
  };

  const std::vector<Remote>* remotes_ = nullptr;
  bool is_open_ = false;  // some target
  std::vector<uint64_t> numbers_;
  std::vector<Sent> sent_;  // by rank
};

}  // namespace mep
