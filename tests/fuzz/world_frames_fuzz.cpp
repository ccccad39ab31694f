// Frames of the control thread, the description of communicators for joiners among them. First byte:
// which frame. Accepted frames are encoded again to the same bytes. (Rows and views: membership_row.)
#include "core/world/frames.hpp"

#include <algorithm>

#include "core/membership/slot_set.hpp"
#include "core/world/world.hpp"
#include "fuzz/fuzz_target.hpp"

namespace fuzz {
namespace {

constexpr uint32_t kSlots = 16;
enum Kind : unsigned char {
  kWindow,
  kTaken,
  kFlush,
  kCatchUpEnd,
  kLeaving,
  kComms,
  kEpochs,
  kClosed,
  kClosedHeld,
  kKinds
};

void require_same(const std::vector<std::byte>& again, std::span<const std::byte> payload) {
  require(std::equal(again.begin(), again.end(), payload.begin(), payload.end()));
}

void check_comms(const std::vector<mep::CommDescription>& comms, size_t bytes) {
  size_t taken = 0;
  for (const mep::CommDescription& comm : comms) {
    taken += comm.name.size();
    for (const std::vector<std::byte>& object : comm.objects) taken += object.size();
    require(taken <= bytes && !comm.slots.empty() && comm.slots.size() <= kSlots);
    mep::membership::SlotSet slots;
    for (const uint32_t slot : comm.slots) {
      require(slot < kSlots && !slots.has(slot));
      slots.add(slot);
    }
  }
}

void put(const Sink& sink, const char* name, Kind kind, const std::vector<std::byte>& payload) {
  std::vector<std::byte> bytes{std::byte{kind}};
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  sink(name, bytes);
}

}  // namespace

void one(std::span<const std::byte> input) {
  if (input.empty()) return;
  const auto payload = input.subspan(1);
  switch (static_cast<unsigned>(input[0]) % kKinds) {
    case kWindow: {
      mep::WindowFrame window;
      if (!mep::decode_window_frame(payload, &window)) return;
      require(window.blob.size() <= mep::kMaxWindowBlobBytes);
      require(window.note.size() <= mep::kMaxWindowBlobBytes);
      require_same(mep::encode_window_frame(window), payload);
      return;
    }
    case kTaken: {
      mep::WindowTakenFrame taken;
      if (!mep::decode_window_taken(payload, &taken)) return;
      require_same(mep::encode_window_taken(taken), payload);
      return;
    }
    case kFlush: {
      mep::CatchUpFrame flush;
      if (!mep::decode_catch_up(payload, &flush)) return;
      require(flush.contribution.size() < payload.size());
      require_same(mep::encode_catch_up(flush), payload);
      return;
    }
    case kCatchUpEnd: {
      mep::CatchUpEndFrame end;
      if (!mep::decode_catch_up_end(payload, &end)) return;
      require_same(mep::encode_catch_up_end(end), payload);
      return;
    }
    case kLeaving: {
      std::vector<mep::membership::ChannelState> done;
      if (!mep::decode_leaving(payload, &done)) return;
      require_same(mep::encode_leaving(done), payload);
      return;
    }
    case kComms: {
      std::vector<mep::CommDescription> comms;
      if (!mep::decode_comms(payload, kSlots, &comms)) return;
      check_comms(comms, payload.size());
      require_same(mep::encode_comms(comms), payload);
      return;
    }
    case kClosed: {
      mep::ClosedFrame closed;
      if (!mep::decode_closed(payload, &closed)) return;
      require_same(mep::encode_closed(closed), payload);
      return;
    }
    case kClosedHeld: {
      uint64_t number = 0;
      if (!mep::decode_closed_held(payload, &number)) return;
      require_same(mep::encode_closed_held(number), payload);
      return;
    }
    default: {
      mep::NumberPairs epochs;
      if (!mep::decode_pairs(payload, &epochs)) return;
      require_same(mep::encode_pairs(epochs), payload);
    }
  }
}

void seeds(const Sink& sink) {
  const std::vector<std::byte> bytes(24, std::byte{7});
  put(sink, "window", kWindow, mep::encode_window_frame({9, 4096, 3, bytes, bytes}));
  put(sink, "window-without-blob", kWindow, mep::encode_window_frame({9, 4096, 0, {}, {}}));
  put(sink, "window-taken", kTaken, mep::encode_window_taken({9, 3}));
  put(sink, "flush", kFlush, mep::encode_catch_up({11, 12, 13, 2, bytes}));
  put(sink, "flush-end", kCatchUpEnd, mep::encode_catch_up_end({11, 12, 13}));
  put(sink, "leaving", kLeaving, mep::encode_leaving({}));
  const mep::membership::ChannelState done[] = {{11, 12, 13, 0}, {21, 22, 23, 0}};
  put(sink, "leaving-two", kLeaving, mep::encode_leaving(done));
  put(sink, "closed", kClosed, mep::encode_closed({7, {done[0], done[1]}}));
  put(sink, "closed-held", kClosedHeld, mep::encode_closed_held(7));
  put(sink, "comms-none", kComms, mep::encode_comms({}));
  mep::CommDescription comm;
  comm.id = 11;
  comm.name = "world";
  comm.epoch = 5;
  comm.slots = {0, 1, 2, 3};
  mep::CommDescription half = comm;
  half.name = "half";
  half.slots = {3, 1};
  half.child_number = 2;
  half.ep_number = 1;
  half.objects = {bytes, {}};
  const mep::CommDescription comms[] = {comm, half};
  put(sink, "comms", kComms, mep::encode_comms(comms));
  comm.objects = {std::vector<std::byte>(65'600, std::byte{7})};
  put(sink, "comms-long", kComms, mep::encode_comms({&comm, 1}));
  put(sink, "epochs", kEpochs, mep::encode_pairs({{11, 5}, {12, 6}}));
}

}  // namespace fuzz
