#include "core/world/closings.hpp"

#include <algorithm>

#include "base/status.hpp"
#include "core/world/frames.hpp"

namespace mep {

void Closings::ask(const WorldParticipant* comm, uint64_t channel, uint64_t done,
                   std::shared_ptr<std::atomic<bool>> held) {
  Closing closing;
  closing.token = next_token_++;
  closing.comm = comm;
  closing.held = std::move(held);
  const std::vector<std::byte> payload =
      encode_closing({closing.token, comm->comm_id(), channel, done});
  const membership::View& view = membership_.view();
  const membership::SlotSet others = view.members & comm->member_slots();
  others.each([&](uint32_t slot) {
    if (slot == peers_.self_slot()) return;
    closing.awaited.emplace_back(slot, view.incarnation(slot));
    links_.send(slot, kFrameClosing, payload);
  });
  closings_.push_back(std::move(closing));
}

void Closings::forget(const WorldParticipant* comm) {
  std::erase_if(closings_, [comm](const Closing& each) { return each.comm == comm; });
}

// A member whose link broke is waited for while it is in the view: it may stay there, and lack something.
void Closings::check() {
  const membership::View& view = membership_.view();
  std::erase_if(closings_, [&](Closing& closing) {
    std::erase_if(closing.awaited, [&](const auto& member) {
      return view.incarnation(member.first) != member.second ||
             membership_.confirmed_dead(member.first);
    });
    if (!closing.awaited.empty()) return false;
    // Release: what made it true is over for the thread that reads it.
    closing.held->store(true, std::memory_order_release);
    doorbell_ring(windows_.doorbell());
    return true;
  });
}

bool Closings::take_question(uint32_t slot, const Frame& frame) {
  ClosingFrame closing;
  if (!decode_closing(frame.payload, &closing)) {
    (void)fail(MEP_ERR_DENIED, "a bad question about a communicator");
    return false;
  }
  asked_.push_back({slot, closing.token, {closing.comm, closing.channel, closing.done, 0}});
  return true;
}

bool Closings::take_answer(uint32_t slot, const Frame& frame) {
  uint64_t token = 0;
  if (!decode_closing_held(frame.payload, &token)) {
    (void)fail(MEP_ERR_DENIED, "a bad answer about a communicator");
    return false;
  }
  const uint64_t incarnation = peers_[slot].identity.incarnation;
  for (Closing& closing : closings_) {
    if (closing.token == token) std::erase(closing.awaited, std::pair(slot, incarnation));
  }
  return true;
}

// A rank that has closed the comm itself holds all of it.
void Closings::answer() {
  std::erase_if(asked_, [this](const Question& question) {
    WorldParticipant* comm = participants_.find(question.done.comm);
    if (comm != nullptr && !comm->holds(question.done.channel, question.done.done)) return false;
    links_.send(question.slot, kFrameClosingHeld, encode_closing_held(question.token));
    return true;
  });
}

void Closings::forget_peer(uint32_t slot) {
  std::erase_if(asked_, [slot](const Question& question) { return question.slot == slot; });
}

}  // namespace mep
