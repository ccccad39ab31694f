#include "messages.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <vector>

#include "error.hpp"

namespace mep::perf {
namespace {

struct Named {
  const char* name;
  MessagePattern pattern;
};
constexpr Named kPatterns[] = {{"pingpong", MessagePattern::kPingpong},
                               {"stream", MessagePattern::kStream},
                               {"exchange", MessagePattern::kExchange}};

// Messages of a stream that are under way at one time.
size_t window_of(size_t bytes) {
  constexpr size_t kMost = 64;
  constexpr size_t kMostBytes = 16 << 20;
  return bytes == 0 ? kMost : std::clamp<size_t>(kMostBytes / bytes, 2, kMost);
}

std::byte byte_of(int rank, uint32_t round, size_t index) {
  const uint64_t mixed = (index + 1) * 0x9e3779b97f4a7c15u +
                         static_cast<uint64_t>(rank) * 0x51ed27u + round * 0x2545f491u;
  return static_cast<std::byte>(mixed >> 32);
}

class MessageCase : public Case {
 public:
  MessageCase(MessagePattern pattern, size_t bytes, int rank, int size, MessageSide& side,
              std::byte* send, std::byte* receive)
      : pattern_(pattern),
        bytes_(bytes),
        messages_(pattern == MessagePattern::kStream ? window_of(bytes) : 1),
        rank_(rank),
        peer_(rank ^ 1),
        has_peer_(peer_ < size),
        side_(side),
        send_(send),
        receive_(receive) {}

  void sync() override { side_.barrier(); }
  void run(uint64_t iterations, double* seconds) override {
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t i = 0; has_peer_ && i < iterations; ++i) once();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (has_peer_) *seconds += took.count() / parts();
    // Messages that have ended here may need this rank's progress at its peer, before the other side has its turn.
    side_.barrier();
  }
  uint64_t verify(uint32_t round) override {
    fill(round);
    if (has_peer_) once();
    side_.barrier();
    return has_peer_ && receives() ? count_errors(round) : 0;
  }
  void reset() override { fill(0); }

 private:
  bool is_first() const { return rank_ < peer_; }
  bool receives() const { return pattern_ != MessagePattern::kStream || !is_first(); }
  // The divisor of an iteration's time.
  double parts() const {
    return pattern_ == MessagePattern::kPingpong ? 2 : static_cast<double>(messages_);
  }
  void fill(uint32_t round) {
    for (size_t i = 0; i < messages_ * bytes_; ++i) {
      send_[i] = byte_of(rank_, round, i);
      receive_[i] = ~byte_of(peer_, round, i);
    }
  }
  uint64_t count_errors(uint32_t round) const {
    uint64_t errors = 0;
    for (size_t i = 0; i < messages_ * bytes_; ++i) {
      if (receive_[i] != byte_of(peer_, round, i)) ++errors;
    }
    return errors;
  }
  void once() {
    switch (pattern_) {
      case MessagePattern::kPingpong:
        return there_and_back();
      case MessagePattern::kStream:
        return one_way();
      case MessagePattern::kExchange:
        side_.begin_receive(receive_, bytes_, peer_);
        side_.begin_send(send_, bytes_, peer_);
        return side_.wait();
    }
  }
  void there_and_back() {
    if (is_first()) side_.send(send_, bytes_, peer_);
    side_.receive(receive_, bytes_, peer_);
    if (!is_first()) side_.send(send_, bytes_, peer_);
  }
  void one_way() {
    std::byte word{};
    for (size_t i = 0; i < messages_; ++i) {
      if (is_first()) side_.begin_send(send_ + i * bytes_, bytes_, peer_);
      if (!is_first()) side_.begin_receive(receive_ + i * bytes_, bytes_, peer_);
    }
    side_.wait();
    if (is_first()) return side_.receive(&word, 1, peer_);
    side_.send(&word, 1, peer_);
  }

  const MessagePattern pattern_;
  const size_t bytes_;
  const size_t messages_;  // in one direction, of an iteration
  const int rank_;
  const int peer_;
  const bool has_peer_;
  MessageSide& side_;
  std::byte* const send_;
  std::byte* const receive_;
};

class MepMessages : public MessageSide {
 public:
  explicit MepMessages(mep_comm_t comm) : comm_(comm) {}
  void barrier() override { require(mep_barrier(comm_, nullptr), "mep_barrier"); }
  void send(const void* data, size_t bytes, int peer) override {
    require(mep_send(data, bytes, MEP_UINT8, peer, 0, comm_, nullptr), "mep_send");
  }
  void receive(void* data, size_t bytes, int peer) override {
    require(mep_recv(data, bytes, MEP_UINT8, peer, 0, comm_, nullptr, nullptr), "mep_recv");
  }
  void begin_send(const void* data, size_t bytes, int peer) override {
    mep_request_t& request = requests_.emplace_back();
    require(mep_isend(data, bytes, MEP_UINT8, peer, 0, comm_, nullptr, &request), "mep_isend");
  }
  void begin_receive(void* data, size_t bytes, int peer) override {
    mep_request_t& request = requests_.emplace_back();
    require(mep_irecv(data, bytes, MEP_UINT8, peer, 0, comm_, nullptr, nullptr, &request),
            "mep_irecv");
  }
  void wait() override {
    require(mep_request_waitall(static_cast<int32_t>(requests_.size()), requests_.data(),
                                MEP_TIMEOUT_DEFAULT, nullptr, nullptr),
            "mep_request_waitall");
    requests_.clear();
  }

 private:
  mep_comm_t comm_;
  std::vector<mep_request_t> requests_;
};

}  // namespace

std::optional<MessagePattern> find_message_pattern(const std::string& name) {
  for (const Named& each : kPatterns) {
    if (name == each.name) return each.pattern;
  }
  return std::nullopt;
}

std::string all_message_names() {
  std::string names;
  for (const Named& each : kPatterns) names += (names.empty() ? "" : " ") + std::string(each.name);
  return names;
}

size_t message_buffer_bytes(MessagePattern pattern, size_t bytes) {
  return pattern == MessagePattern::kStream ? window_of(bytes) * bytes : bytes;
}

std::unique_ptr<Case> make_message_case(MessagePattern pattern, size_t bytes, int rank, int size,
                                        MessageSide& side, std::byte* send, std::byte* receive) {
  return std::make_unique<MessageCase>(pattern, bytes, rank, size, side, send, receive);
}

std::unique_ptr<MessageSide> make_mep_messages(mep_comm_t comm) {
  return std::make_unique<MepMessages>(comm);
}

}  // namespace mep::perf
