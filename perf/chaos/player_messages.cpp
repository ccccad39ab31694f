// Messages of a player: one to each other rank of the world and one from it, all at the same time.
#include <cstdio>
#include <cstring>

#include "numbers.hpp"
#include "player.hpp"

namespace mep::programs {

struct Player::PendingMessage {
  uint32_t peer = 0;  // rank
  bool is_received = false;
  uint32_t part = 0;
  std::vector<uint8_t> expected;
  std::vector<uint8_t> buffer;
  mep_message_t envelope{};
  mep_request_t request = nullptr;
  uint8_t* there = nullptr;  // of the buffer, on the GPU
};

namespace {

constexpr size_t kGuardBytes = 32;
constexpr uint8_t kGuardValue = 0xc3;

// The message from one slot to another: empty, one that is sent at once, or one that waits for its receiver; few take many
// parts.
std::vector<uint8_t> message_bytes(const Program& program, uint32_t step, uint32_t from,
                                   uint32_t to) {
  const uint64_t key = mix(program.seed, 0x6d7367, step, uint64_t{from} << 32 | to);
  RandomStream random(key);
  const uint64_t draw = random.below(100);
  size_t bytes = random.below(300);
  if (draw < 5) bytes = 0;
  if (draw >= 60) bytes = MEP_MESSAGE_EAGER_BYTES - 16 + random.below(33);
  if (draw >= 85) bytes = random.below(400'000);
  if (draw >= 97) bytes = random.below(kLargestMessage);
  std::vector<uint8_t> message(bytes);
  make_elements(MEP_UINT8, key, bytes, message.data());
  return message;
}

}  // namespace

void Player::messages() {
  const auto found = comms_.find(world_);
  if (found == comms_.end() || over_) return;
  const Comm& comm = found->second;
  std::vector<std::unique_ptr<PendingMessage>> pending;
  for (uint32_t peer = 0; peer < comm.members.slots.size(); ++peer) {
    if (peer == comm.members.rank) continue;
    for (const bool is_received : {false, true}) {
      auto message = std::make_unique<PendingMessage>();
      message->peer = peer;
      message->is_received = is_received;
      message->part = peer << 1 | (is_received ? 1 : 0);
      const uint32_t slot = comm.members.slots[peer];
      message->expected = message_bytes(program_, step_, is_received ? slot : part_.slot,
                                        is_received ? part_.slot : slot);
      message->buffer.assign(message->expected.size() + kGuardBytes, kGuardValue);
      pending.push_back(std::move(message));
    }
  }
  const auto shuffle = [&] {
    for (size_t i = pending.size(); i > 1; --i) std::swap(pending[i - 1], pending[own_.below(i)]);
  };
  shuffle();
  for (const auto& message : pending) {
    if (!message->is_received) {
      std::memcpy(message->buffer.data(), message->expected.data(), message->expected.size());
    }
  }
  if (device_ != nullptr) {
    exchange_on_stream(pending);
  } else {
    for (const auto& message : pending) start_message(message.get());
    shuffle();
    for (const auto& message : pending) {
      if (message->request != nullptr) finish_message(message.get());
    }
  }
  uint64_t position = step_;
  (void)sync(world_, &position);
}

void Player::start_message(PendingMessage* message) {
  const Comm& comm = comms_[world_];
  pause(program_.steps[step_].pause_percent / 4);
  begin(What::kMessage, message->part, world_);
  const auto tag = static_cast<int32_t>(step_);
  const auto peer = static_cast<int32_t>(message->peer);
  const size_t bytes = message->expected.size();
  Said said;
  mep_message_defaults(&message->envelope);
  if (message->is_received) {
    said.result = mep_irecv(message->buffer.data(), bytes, MEP_UINT8, peer, tag, comm.handle,
                            &message->envelope, nullptr, &message->request);
  } else {
    said.result = mep_isend(message->buffer.data(), bytes, MEP_UINT8, peer, tag, comm.handle,
                            nullptr, &message->request);
  }
  if (said.result != MEP_SUCCESS) end(What::kMessage, message->part, world_, &comm, said);
}

// One group, which is one operation: of several messages that fail the first is told, and not whose it is.
void Player::exchange_on_stream(const std::vector<std::unique_ptr<PendingMessage>>& pending) {
  const Comm& comm = comms_[world_];
  const auto tag = static_cast<int32_t>(step_);
  for (const auto& message : pending) {
    const size_t bytes = message->buffer.size();
    message->there = static_cast<uint8_t*>(device_->take(bytes));
    device_->upload(message->there, message->buffer.data(), bytes);
  }
  pause(program_.steps[step_].pause_percent);
  begin(What::kMessage, 0, world_);
  Said said;
  said.result = mep_group_begin();
  for (const auto& message : pending) {
    const auto peer = static_cast<int32_t>(message->peer);
    const size_t bytes = message->expected.size();
    const mep_result_t result =
        message->is_received
            ? mep_recv(message->there, bytes, MEP_UINT8, peer, tag, comm.handle, nullptr,
                       device_->stream())
            : mep_send(message->there, bytes, MEP_UINT8, peer, tag, comm.handle, device_->stream());
    if (said.result == MEP_SUCCESS) said.result = result;
  }
  const mep_result_t ended = mep_group_end();
  if (said.result == MEP_SUCCESS) said.result = ended;
  device_->synchronize();
  if (said.result == MEP_SUCCESS) said.result = mep_comm_async_result(comm.handle);
  end(What::kMessage, 0, world_, &comm, said);
  for (const auto& message : pending) {
    device_->download(message->buffer.data(), message->there, message->buffer.size());
    check_message(*message, said.result);
  }
}

void Player::finish_message(PendingMessage* message) {
  const Comm& comm = comms_[world_];
  Said said;
  said.result = mep_request_wait(&message->request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr);
  // It fails by what became of the other rank, and of no third one.
  said.has_info = said.result == MEP_ERR_PEER_FAILED;
  mep_op_info_defaults(&said.info);
  said.info.result = said.result;
  said.failed = uint64_t{1} << message->peer;
  end(What::kMessage, message->part, world_, &comm, said);
  if (message->request != nullptr) {
    wrong(What::kMessage, message->part, world_, "a finished request was not set NULL");
  }
  check_message(*message, said.result);
}

void Player::check_message(const PendingMessage& message, mep_result_t result) {
  const auto tell = [&](const std::string& text) {
    wrong(What::kMessage, message.part, world_, text);
  };
  const std::vector<uint8_t>& expected = message.expected;
  for (size_t i = 0; i < kGuardBytes; ++i) {
    if (message.buffer[expected.size() + i] != kGuardValue) return tell("bytes behind the buffer");
  }
  if (!message.is_received || result != MEP_SUCCESS) return;
  const mep_message_t& envelope = message.envelope;
  const bool has_envelope = device_ == nullptr;
  if (has_envelope &&
      (envelope.source != static_cast<int32_t>(message.peer) || envelope.bytes != expected.size() ||
       envelope.tag != static_cast<int32_t>(step_) || envelope.dtype != MEP_UINT8)) {
    return tell("another message than was sent");
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (message.buffer[i] == expected[i]) continue;
    return tell("byte " + std::to_string(i) + " of " + std::to_string(expected.size()) +
                " of the message is wrong");
  }
}

}  // namespace mep::programs
