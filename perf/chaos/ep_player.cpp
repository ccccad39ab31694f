#include "ep_player.hpp"

#include <algorithm>

#include "numbers.hpp"

namespace mep::programs {
namespace {

constexpr uint32_t kMakeAttempts = 8;

enum Operation : uint32_t { kDispatchSend = 0, kDispatchReceive, kCombineSend, kCombineReceive };

uint32_t part_of(uint32_t iteration, uint32_t buffer, Operation operation) {
  return iteration << 8 | buffer << 4 | operation;
}

}  // namespace

// On GPUs an operation tells there how it ended.
template <class Receive>
void EpPlayer::give_status(Buffer* buffer, Receive* receive) {
  if (buffer->status.there == nullptr) return;
  receive->op_status = &buffer->status.there->head;
  receive->op_status_bytes = sizeof(Status);
}

EpPlayer::EpPlayer(Player* player) : player_(*player) {}
EpPlayer::~EpPlayer() = default;

void EpPlayer::create(const Step& step) {
  (void)make(step.ep, player_.step_ << 8);
}

// All ranks of the comm call it. An object that could not be made is tried for again: all were told.
bool EpPlayer::make(uint32_t number, uint32_t first_serial) {
  const EpShape& shape = player_.program_.eps[number];
  const auto comm = player_.comms_.find(shape.comm);
  if (comm == player_.comms_.end() || player_.over_) return false;
  Object object;
  for (uint32_t attempt = 0; attempt < kMakeAttempts && !player_.over_; ++attempt) {
    const std::string name =
        "e" + std::to_string(number) + "." + std::to_string(first_serial + attempt);
    mep_ep_config_t config;
    mep_ep_config_defaults(&config);
    config.name = name.c_str();
    config.max_tokens_per_rank = shape.max_tokens;
    config.hidden = shape.hidden;
    config.top_k = shape.top_k;
    config.num_experts =
        static_cast<uint32_t>(comm->second.members.slots.size()) * shape.local_experts;
    config.experts_per_rank = shape.local_experts;
    config.num_buffers = shape.buffers;
    config.input_type = shape.input;
    config.combine_type = shape.combine;
    config.layout = shape.high_throughput ? MEP_EP_HIGH_THROUGHPUT
                    : shape.slotted       ? MEP_EP_SLOTTED
                                          : MEP_EP_LOW_LATENCY;
    config.on_loss = player_.program_.on_loss;
    // Apart from other objects that are made in this step.
    const uint32_t part = number << 8 | attempt;
    player_.begin(What::kEpCreate, part, shape.comm);
    Player::Said said;
    said.result = mep_ep_create(comm->second.handle, &config, &object.handle);
    player_.end(What::kEpCreate, part, shape.comm, nullptr, said);
    // On GPUs UNSUPPORTED: its kernels do not fit beside those of the other ranks.
    if (said.result == MEP_SUCCESS || said.result == MEP_ERR_UNSUPPORTED) break;
  }
  if (object.handle == nullptr) return false;
  // Rows go to those who are there now; all ask in the same operation, so all know the same.
  uint64_t value = 0;
  if (!player_.sync(shape.comm, &value, &object.live, nullptr)) {
    (void)mep_ep_destroy(object.handle);
    return false;
  }
  for (uint32_t index = 0; index < shape.buffers; ++index) {
    auto buffer = std::make_unique<Buffer>();
    mep_ep_view_defaults(&buffer->view);
    if (mep_ep_handle_create(object.handle, index, &buffer->handle) != MEP_SUCCESS ||
        mep_ep_buffer_view(object.handle, index, &buffer->view) != MEP_SUCCESS) {
      player_.wrong(What::kEpCreate, index, shape.comm, "no handle or view of a buffer");
    }
    object.buffers.push_back(std::move(buffer));
  }
  objects_[number] = std::move(object);
  return true;
}

void EpPlayer::free(uint32_t number) {
  const auto found = objects_.find(number);
  if (found == objects_.end()) return;
  const uint32_t comm = player_.program_.eps[number].comm;
  Player::Said said;
  player_.begin(What::kEpFree, 0, comm);
  for (const auto& buffer : found->second.buffers) {
    const mep_result_t result = mep_ep_handle_destroy(buffer->handle);
    if (said.result == MEP_SUCCESS) said.result = result;
  }
  const mep_result_t result = mep_ep_destroy(found->second.handle);
  if (said.result == MEP_SUCCESS) said.result = result;
  player_.end(What::kEpFree, 0, comm, nullptr, said);
  objects_.erase(found);
}

void EpPlayer::free_all() {
  while (!objects_.empty()) free(objects_.begin()->first);
}

void EpPlayer::renew_all(uint32_t before_step) {
  std::vector<bool> alive(player_.program_.eps.size(), false);
  for (uint32_t i = 0; i < before_step; ++i) {
    const Step& step = player_.program_.steps[i];
    if (step.kind == StepKind::kEpCreate) alive[step.ep] = true;
    if (step.kind == StepKind::kEpFree) alive[step.ep] = false;
  }
  for (uint32_t number = 0; number < alive.size(); ++number) {
    free(number);
    if (alive[number]) (void)make(number, before_step << 8 | 0x40);
  }
}

void EpPlayer::layers(const Step& step) {
  const auto found = objects_.find(step.ep);
  if (found == objects_.end() || player_.over_) return;
  const uint32_t comm = player_.program_.eps[step.ep].comm;
  found->second.live &= ~found->second.reported;
  bool trouble = false;
  for (uint32_t i = 0; i < step.count && !trouble && !player_.over_; ++i) {
    trouble = !round(step, &found->second, i);
  }
  if (trouble) drain(step, &found->second);
  uint64_t anybody = trouble ? 1 : 0;
  bool retried = false;
  if (!player_.sync(comm, &anybody, nullptr, &retried)) return;
  found->second.had_trouble = anybody != 0 || retried;
}

void EpPlayer::renew(const Step& step) {
  const auto found = objects_.find(step.ep);
  if (found == objects_.end() || player_.over_ || !found->second.had_trouble) return;
  free(step.ep);
  (void)make(step.ep, player_.step_ << 8 | 0x80);
}

void EpPlayer::note_reported(uint32_t comm, uint64_t ranks) {
  for (auto& [number, object] : objects_) {
    if (player_.program_.eps[number].comm == comm) object.reported |= ranks;
  }
}

// Everything sent is received, whatever comes: a handle in between could not be destroyed.
void EpPlayer::drain(const Step& step, Object* object) {
  for (uint32_t index = 0; index < object->buffers.size(); ++index) {
    Buffer& buffer = *object->buffers[index];
    if (buffer.sent == Sent::kDispatch) (void)dispatch(step, object, index, Halves::kReceive);
    if (buffer.sent == Sent::kCombine) (void)combine(step, object, index, Halves::kReceive);
  }
}

bool EpPlayer::round(const Step& step, Object* object, uint32_t iteration) {
  const EpShape& shape = player_.program_.eps[step.ep];
  const Members& members = player_.comms_[shape.comm].members;
  RandomStream plan(
      mix(player_.program_.seed, 0xe9, player_.step_, iteration));  // the same on all ranks
  const bool apart = plan.percent(50);
  const bool combines = plan.percent(85);
  const auto count = static_cast<uint32_t>(object->buffers.size());
  iteration_ = iteration;
  player_.recycle();
  for (uint32_t i = 0; i < count; ++i) {
    Buffer& buffer = *object->buffers[i];
    buffer.data = std::make_unique<EpRound>(player_.program_, shape, members, object->live,
                                            player_.step_, iteration * 8 + i);
    fill(shape, &buffer);
    player_.pause(step.pause_percent);
    if (!dispatch(step, object, i, apart ? Halves::kSend : Halves::kBoth)) return false;
  }
  for (uint32_t i = 0; i < count; ++i) {
    player_.pause(step.pause_percent);
    if (apart && !dispatch(step, object, i, Halves::kReceive)) return false;
    if (!combines) continue;
    run_experts(shape, object->buffers[i].get());
    if (!combine(step, object, i, apart ? Halves::kSend : Halves::kBoth)) return false;
  }
  for (uint32_t i = 0; i < count && combines && apart; ++i) {
    player_.pause(step.pause_percent);
    if (!combine(step, object, i, Halves::kReceive)) return false;
  }
  return true;
}

mep_op_info_t EpPlayer::last_op(const Object& object, uint32_t index, Ranks* ranks) const {
  uint64_t contributors = 0;
  mep_op_info_t info;
  mep_op_info_defaults(&info);
  info.contributors = &contributors;
  info.contributors_words = 1;
  info.failed = &ranks->failed;
  info.failed_words = 1;
  if (player_.device_ != nullptr) {
    const Status& status = object.buffers[index]->status.here[0];
    ranks->failed = ranks->lacking = status.failed;
    info.result = status.head.result;
    info.epoch = status.head.epoch;
    info.seq = status.head.seq;
    info.contributors = info.failed = nullptr;
    return info;
  }
  if (mep_ep_last_op(object.handle, index, &info) != MEP_SUCCESS) mep_op_info_defaults(&info);
  info.contributors = nullptr;
  info.failed = nullptr;
  ranks->lacking = ~contributors;
  return info;
}

bool EpPlayer::dispatch(const Step& step, Object* object, uint32_t index, Halves halves) {
  const EpShape& shape = player_.program_.eps[step.ep];
  Buffer& buffer = *object->buffers[index];
  const bool receives = halves != Halves::kSend;
  mep_dispatch_options_t receive;
  mep_dispatch_options_defaults(&receive);
  const uint32_t tokens = buffer.data->tokens(player_.comms_[shape.comm].members.rank);
  if (shape.high_throughput) receive.recv_total = buffer.total.get();
  give_status(&buffer, &receive);
  if (shape.own_memory) {
    receive.recv_x = buffer.recv_x.get();
    receive.recv_count = buffer.recv_count.get();
    receive.src_info = buffer.src_info.get();
    receive.layout_range = buffer.layout_range.get();
  }
  const Operation operation = receives ? kDispatchReceive : kDispatchSend;
  const uint32_t part = part_of(iteration_, index, operation);
  Ranks ranks;
  const mep_op_info_t before = last_op(*object, index, &ranks);
  player_.begin(What::kDispatch, part, shape.comm);
  mep_result_t result = MEP_SUCCESS;
  if (halves == Halves::kReceive) {
    result = mep_dispatch_receive(buffer.handle, nullptr, &receive, stream());
  } else if (receives) {
    result = mep_dispatch(buffer.handle, buffer.x.get(), buffer.routing.get(), buffer.weights.get(),
                          tokens, nullptr, &receive, stream());
  } else {
    result = mep_dispatch_send(buffer.handle, buffer.x.get(), buffer.routing.get(),
                               buffer.weights.get(), tokens, nullptr, stream());
  }
  const bool ended = note(What::kDispatch, step, object, index, part, &result, before, &ranks);
  if (!receives) {
    buffer.sent = is_uniform() || result == MEP_SUCCESS ? Sent::kDispatch : Sent::kNothing;
    // The input is the caller's again.
    buffer.x.here.assign(buffer.x.here.size(), uint8_t{0xee});
    buffer.routing.here.assign(buffer.routing.here.size(), int64_t{987654});
    if (player_.device_ != nullptr) {
      buffer.x.upload(player_.device_.get());
      buffer.routing.upload(player_.device_.get());
    }
    return is_uniform() || result == MEP_SUCCESS;
  }
  buffer.sent = Sent::kNothing;
  if (!ended) return false;
  if (result == MEP_SUCCESS && (ranks.lacking & object->live) != 0) {
    player_.wrong(What::kDispatch, part, shape.comm, "a success without a rank that was there");
  }
  buffer.missing = ranks.lacking;
  if (result != MEP_SUCCESS && result != MEP_PARTIAL && result != MEP_ERR_PEER_FAILED) return false;
  take_rows(shape, &buffer);
  const std::string what = check_rows(shape, buffer, result == MEP_SUCCESS);
  if (!what.empty()) player_.wrong(What::kDispatch, part, shape.comm, what);
  return result == MEP_SUCCESS;
}

bool EpPlayer::combine(const Step& step, Object* object, uint32_t index, Halves halves) {
  const EpShape& shape = player_.program_.eps[step.ep];
  Buffer& buffer = *object->buffers[index];
  const bool receives = halves != Halves::kSend;
  mep_combine_options_t receive;
  mep_combine_options_defaults(&receive);
  const void* const y = shape.own_memory ? buffer.y.get() : buffer.view.combine_input;
  give_status(&buffer, &receive);
  const Operation operation = receives ? kCombineReceive : kCombineSend;
  const uint32_t part = part_of(iteration_, index, operation);
  Ranks ranks;
  const mep_op_info_t before = last_op(*object, index, &ranks);
  player_.begin(What::kCombine, part, shape.comm);
  mep_result_t result = MEP_SUCCESS;
  if (halves == Halves::kReceive) {
    result = mep_combine_receive(buffer.handle, buffer.out.get(), &receive, stream());
  } else if (receives) {
    result = mep_combine(buffer.handle, y, buffer.out.get(), &receive, stream());
  } else {
    result = mep_combine_send(buffer.handle, y, nullptr, stream());
  }
  const bool ended = note(What::kCombine, step, object, index, part, &result, before, &ranks);
  if (!receives) {
    buffer.sent = is_uniform() || result == MEP_SUCCESS ? Sent::kCombine : Sent::kNothing;
    if (result == MEP_SUCCESS && shape.own_memory) {
      buffer.y.here.assign(buffer.y.here.size(), uint8_t{0xee});
      if (player_.device_ != nullptr) buffer.y.upload(player_.device_.get());
    }
    return is_uniform() || result == MEP_SUCCESS;
  }
  buffer.sent = Sent::kNothing;
  if (!ended) return false;
  if (result == MEP_SUCCESS && buffer.data->lacks(ranks.lacking)) {
    player_.wrong(What::kCombine, part, shape.comm, "a success without the rows of a rank");
  }
  buffer.missing = ranks.lacking;
  if (result != MEP_SUCCESS && result != MEP_PARTIAL && result != MEP_ERR_PEER_FAILED) return false;
  if (player_.device_ != nullptr) buffer.out.fetch(player_.device_.get(), buffer.out.there);
  const std::string what = check_out(shape, buffer);
  if (!what.empty()) player_.wrong(What::kCombine, part, shape.comm, what);
  return result == MEP_SUCCESS;
}

bool EpPlayer::is_uniform() const {
  return player_.program_.on_loss == MEP_EP_LOSS_UNIFORM;
}

mep_stream_t EpPlayer::stream() const {
  return player_.device_ != nullptr ? player_.device_->stream() : nullptr;
}

// A send alone has no statement of its own: what became of it the receive tells.
void EpPlayer::finish_on_stream(mep_comm_t comm, Object* object, Buffer* buffer, bool receives,
                                mep_result_t* result) const {
  player_.device_->synchronize();
  if (receives) {
    buffer->status.fetch(player_.device_.get(), buffer->status.there);
    *result = buffer->status.here[0].head.result;
  }
  // Its collectives ask the comm about themselves. A kernel that a view change ends does not know why; the comm says so
  // once.
  const mep_result_t told = mep_comm_async_result(comm);
  if (told != MEP_SUCCESS) object->why = told;
  if (*result == MEP_ERR_PEER_FAILED && object->why != MEP_SUCCESS) *result = object->why;
}

bool EpPlayer::note(What what, const Step& step, Object* object, uint32_t index, uint32_t part,
                    mep_result_t* result, const mep_op_info_t& before, Ranks* ranks) {
  const uint32_t comm = player_.program_.eps[step.ep].comm;
  const bool receives = (part & 1) != 0;
  Player::Said said;
  said.has_info = true;
  // The text of this failure, before another call may have one.
  const std::string text = *result < 0 ? mep_last_error() : "";
  const bool on_gpu = player_.device_ != nullptr;
  const bool is_enqueued = on_gpu && *result == MEP_SUCCESS;
  if (is_enqueued) {
    finish_on_stream(player_.comms_[comm].handle, object, object->buffers[index].get(), receives,
                     result);
  }
  said.result = *result;
  said.info = last_op(*object, index, ranks);
  said.failed = ranks->failed;
  player_.end(what, part, comm, &player_.comms_[comm], said, 0, text);
  if (*result == MEP_PARTIAL && player_.program_.on_loss != MEP_EP_LOSS_PARTIAL) {
    player_.wrong(what, part, comm, "MEP_PARTIAL, which nobody has asked for");
  }
  if (on_gpu) return is_enqueued;
  return *result >= 0 ||
         (said.info.seq != 0 && (said.info.epoch != before.epoch || said.info.seq != before.seq));
}

}  // namespace mep::programs
