// Messages between pairs of ranks, 2k and 2k + 1, in the patterns that can be timed. With an odd number of ranks
// the last one only takes part in barriers.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "mep.h"
#include "timing.hpp"

namespace mep::perf {

enum class MessagePattern {
  kPingpong,  // there and back; the time is half of that
  kStream,  // a window of messages one way, then a word that they were received; the time is that of one
  kExchange,  // one each way at one time
};

std::optional<MessagePattern> find_message_pattern(const std::string& name);
std::string all_message_names();

// One side of the comparison, MEP or MPI: it sends and receives. Sizes are in bytes; errors are thrown.
class MessageSide {
 public:
  virtual ~MessageSide() = default;
  virtual void barrier() = 0;
  virtual void send(const void* data, size_t bytes, int peer) = 0;
  virtual void receive(void* data, size_t bytes, int peer) = 0;
  // Begin only; wait() waits for all that has begun.
  virtual void begin_send(const void* data, size_t bytes, int peer) = 0;
  virtual void begin_receive(void* data, size_t bytes, int peer) = 0;
  virtual void wait() = 0;
};

// `side` and both buffers, message_buffer_bytes() each, outlive the case.
std::unique_ptr<Case> make_message_case(MessagePattern pattern, size_t bytes, int rank, int size,
                                        MessageSide& side, std::byte* send, std::byte* receive);
size_t message_buffer_bytes(MessagePattern pattern, size_t bytes);

std::unique_ptr<MessageSide> make_mep_messages(mep_comm_t comm);

}  // namespace mep::perf
