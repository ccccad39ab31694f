// Collectives of a player, blocking and not.
#include <sched.h>

#include <algorithm>
#include <optional>

#include "player.hpp"
#include "protocol/operation_calls.hpp"

namespace mep::programs {

struct Player::PendingCall {
  const Call* call = nullptr;
  void* comm = nullptr;  // of the player
  uint32_t part = 0;
  std::unique_ptr<CallBuffers> buffers;
  mep_request_t request = nullptr;
  Said said;  // when it has ended
};

namespace {

OperationCall call_of(const Call& call, const CallBuffers& buffers) {
  OperationCall made{buffers.send(), buffers.receive(), call.count,
                     call.dtype,     call.op,           static_cast<int32_t>(buffers.root())};
  const OperationFacts& facts = facts_of(call.kind);
  if (!facts.has_counts) return made;
  made.count = *buffers.counts(!facts.gives_each_a_block());
  made.counts = buffers.counts(facts.gives_each_a_block());
  made.recv_counts = buffers.counts(false);
  return made;
}

// Those of the comm's view.
uint64_t live_ranks(mep_comm_t comm, uint64_t* epoch) {
  uint64_t incarnations[kMaxSlots] = {};
  mep_view_t view;
  mep_view_defaults(&view);
  view.capacity = kMaxSlots;
  view.incarnations = incarnations;
  if (mep_comm_view(comm, &view) != MEP_SUCCESS) return 0;
  *epoch = view.epoch;
  uint64_t live = 0;
  for (int32_t rank = 0; rank < view.size; ++rank) {
    if (incarnations[rank] != 0) live |= uint64_t{1} << rank;
  }
  return live;
}

}  // namespace

Player::Said Player::ask(mep_comm_t comm, mep_result_t result) {
  Said said;
  said.result = result;
  mep_op_info_defaults(&said.info);
  said.info.contributors = &said.contributors;
  said.info.contributors_words = 1;
  said.info.failed = &said.failed;
  said.info.failed_words = 1;
  said.has_info = mep_comm_last_op(comm, &said.info) == MEP_SUCCESS;
  return said;
}

uint8_t* Player::source_memory(const Comm& comm, size_t bytes) {
  if (bytes == 0 || !own_.percent(20)) return nullptr;
  auto& [memory, capacity] = memory_[comm.handle];
  if (capacity < bytes) {
    (void)mep_mem_free(comm.handle, memory);
    void* fresh = nullptr;
    capacity = mep_mem_alloc(comm.handle, bytes, 0, 0, &fresh) == MEP_SUCCESS ? bytes : 0;
    memory = static_cast<uint8_t*>(fresh);
  }
  return capacity >= bytes ? memory : nullptr;
}

void Player::call(const Call& call, uint32_t part) {
  const auto found = comms_.find(call.comm);
  if (found == comms_.end() || over_) return;
  if (device_ != nullptr) {
    std::vector<PendingCall> pending;
    start_call(call, part, &pending);
    return finish_batch(pending, true);
  }
  const Comm& comm = found->second;
  CallBuffers buffers(program_, step_, part, call, comm.members,
                      source_memory(comm, CallBuffers::sent_bytes(call, comm.members)));
  tamper(&buffers);
  begin(What::kCall, part, call.comm);
  const mep_result_t result =
      call_collective(call.kind, call_of(call, buffers), comm.handle, nullptr);
  end_call(call, part, buffers, comm, ask(comm.handle, result));
}

void Player::tamper(CallBuffers* buffers) const {
  auto* const bytes = static_cast<uint8_t*>(const_cast<void*>(buffers->send()));
  if (lies("data") && bytes != nullptr && buffers->sent_bytes() != 0) {
    bytes[buffers->sent_bytes() / 2] ^= 1;
  }
}

void Player::end_call(const Call& call, uint32_t part, const CallBuffers& buffers, const Comm& comm,
                      const Said& said) {
  const bool intact = said.has_info && said.info.result == said.result &&
                      (said.info.flags & MEP_OP_INPUT_INTACT) != 0;
  const std::string what = buffers.check(said.result, said.contributors, intact);
  end(What::kCall, part, call.comm, &comm, said, said.result == MEP_SUCCESS ? buffers.digest() : 0);
  if (!what.empty()) wrong(What::kCall, part, call.comm, what);
}

void Player::start_call(const Call& call, uint32_t part, std::vector<PendingCall>* pending) {
  Comm& comm = comms_[call.comm];
  PendingCall entry;
  entry.call = &call;
  entry.comm = &comm;
  entry.part = part;
  entry.buffers = std::make_unique<CallBuffers>(program_, step_, part, call, comm.members, nullptr);
  tamper(entry.buffers.get());
  if (device_ != nullptr) entry.buffers->put_on(device_.get());
  pause(program_.steps[step_].pause_percent / 4);
  begin(What::kCall, part, call.comm);
  Said said;
  said.result = start_collective(call.kind, call_of(call, *entry.buffers), comm.handle,
                                 device_ != nullptr ? device_->stream() : nullptr, &entry.request);
  if (said.result == MEP_SUCCESS) return pending->push_back(std::move(entry));
  end_call(call, part, *entry.buffers, comm, said);
}

Player::Said Player::wait_for(mep_request_t* request) {
  Said said;
  mep_op_info_defaults(&said.info);
  said.info.failed = &said.failed;
  said.info.failed_words = 1;
  said.result = mep_request_wait(request, MEP_TIMEOUT_DEFAULT, nullptr, &said.info);
  said.has_info = true;
  return said;
}

void Player::check_async(uint32_t number, const std::vector<mep_result_t>& failures) {
  const mep_result_t told = mep_comm_async_result(comms_[number].handle);
  const bool is_right = failures.empty() ? told == MEP_SUCCESS
                                         : std::count(failures.begin(), failures.end(), told) != 0;
  if (is_right) return;
  wrong(What::kCall, 0, number,
        std::string("mep_comm_async_result: ") + mep_result_string(told) + ", of " +
            std::to_string(failures.size()) + " failures");
}

void Player::note_present(Comm* comm) {
  uint64_t epoch = 0;
  const uint64_t live = live_ranks(comm->handle, &epoch);
  comm->present.emplace(epoch, live);
}

void Player::note_view(What what, uint32_t part, uint32_t comm) {
  const Comm& seen = comms_[comm];
  uint64_t epoch = 0;
  const uint64_t live = live_ranks(seen.handle, &epoch);
  Record& record = next_record(Entry::kView, what, part, comm);
  record.epoch = epoch;
  record.contributors = seen.members.slots_of(live);
  push();
}

// Operations are told of here in the order of their calls.
void Player::add_contributors(Comm* comm, Said* said) {
  const uint64_t ended_in = said->info.epoch;
  if (said->result == MEP_ERR_PEER_FAILED || said->result == MEP_ERR_PEER_LEFT) {
    comm->told[ended_in] |= said->failed;
  }
  if (said->result != MEP_SUCCESS) return;
  note_present(comm);
  // The view may have gone on; then those of the epoch are those before it without those that were told of.
  const auto after = comm->present.upper_bound(ended_in);
  if (after == comm->present.begin()) return;
  const auto& [known, ranks] = *std::prev(after);
  said->contributors = ranks;
  for (const auto& [when, failed] : comm->told) {
    if (when >= known && when < ended_in) said->contributors &= ~failed;
  }
}

void Player::batch(const Step& step, bool aborts) {
  std::vector<PendingCall> pending;
  bool one_comm = true;
  for (uint32_t part = 0; part < step.calls.size(); ++part) {
    const Call& call = step.calls[part];
    const auto found = comms_.find(call.comm);
    if (found == comms_.end() || over_) continue;
    one_comm = one_comm && call.comm == step.calls[0].comm;
    start_call(call, part, &pending);
  }
  if (aborts) {
    begin(What::kAbort, 0, world_);
    Said said;
    said.result = mep_comm_abort(comms_[world_].handle);
    end(What::kAbort, 0, world_, nullptr, said);
  }
  for (size_t i = pending.size(); i > 1; --i) {
    std::swap(pending[i - 1], pending[static_cast<size_t>(own_.below(i))]);
  }
  finish_batch(pending, one_comm);
}

// Progress is made in calls on the same comm alone: with several, none is waited for alone.
void Player::finish_batch(std::vector<PendingCall>& pending, bool one_comm) {
  std::vector<PendingCall> ended;
  while (!pending.empty()) {
    for (size_t i = 0; i < pending.size();) {
      PendingCall& entry = pending[i];
      Said said;
      mep_op_info_defaults(&said.info);
      said.info.contributors = &said.contributors;
      said.info.contributors_words = 1;
      said.info.failed = &said.failed;
      said.info.failed_words = 1;
      int32_t done = 1;
      if (own_.percent(50)) {
        said.result = mep_request_test(&entry.request, &done, &said.info);
      } else {
        const uint32_t limit = one_comm && own_.percent(70) ? UINT32_MAX : 0;
        said.result = mep_request_wait(&entry.request, limit, &done, &said.info);
        if (said.result == MEP_ERR_THREAD) done = 1;
      }
      if (done == 0) {
        ++i;
        continue;
      }
      said.has_info = true;
      const Comm& comm = *static_cast<Comm*>(entry.comm);
      if (device_ == nullptr) end_call(*entry.call, entry.part, *entry.buffers, comm, said);
      if (entry.request != nullptr) {
        wrong(What::kCall, entry.part, entry.call->comm, "a finished request was not set NULL");
      }
      entry.said = said;
      ended.push_back(std::move(entry));
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (!pending.empty()) sched_yield();
  }
  if (device_ != nullptr) end_on_stream(ended);
}

void Player::end_on_stream(std::vector<PendingCall>& ended) {
  std::sort(ended.begin(), ended.end(),
            [](const PendingCall& a, const PendingCall& b) { return a.part < b.part; });
  std::map<uint32_t, std::vector<mep_result_t>> failures;  // by comm
  for (PendingCall& entry : ended) {
    Comm& comm = *static_cast<Comm*>(entry.comm);
    entry.buffers->fetch();
    add_contributors(&comm, &entry.said);
    std::vector<mep_result_t>& of_comm = failures[entry.call->comm];
    if (entry.said.result < 0) of_comm.push_back(entry.said.result);
    end_call(*entry.call, entry.part, *entry.buffers, comm, entry.said);
  }
  for (const auto& [number, of_comm] : failures) check_async(number, of_comm);
}

}  // namespace mep::programs
