// Frames of the control thread. Each payload is written field by field, see byte_codec.hpp.
//
// Invariants
//   - decode_*() is safe on any bytes and takes no memory beyond a small multiple of theirs. False or
//     an error: nothing of what it gave may be used.
//   - Bytes that decode_*() accepts come back from encode_*() unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/bootstrap/control_link.hpp"
#include "core/membership/row.hpp"

namespace mep {

struct CommDescription;

enum WorldFrame : uint16_t {
  kFrameWindow =
      kFirstWorldFrame,  // u64 id, u64 bytes, u32 generation, block blob, u8 for kernels; [descriptor]
  kFrameWindowTaken,     // u64 id, u32 generation
  kFrameRow,             // membership::encode_row
  kFrameHeartbeat,       // empty
  kFrameCatchUp,         // u64 comm, u64 channel, u64 seq, u32 source, then the contribution
  kFrameCatchUpEnd,      // u64 comm, u64 channel, u64 to_seq
  kFrameLeaving,         // u32 count, then per channel: u64 comm, u64 channel, u64 done
  kFrameLeavingHeld,     // empty: this rank holds all that the leaving one has completed
  kFrameClosing,         // u64 token, u64 comm, u64 channel, u64 done
  kFrameClosingHeld,     // u64 token: this rank holds all that the frame of that token asked for
  // For and from joiners.
  kFrameView,  // membership::encode_view
  kFrameComms,  // u32 count, then per comm: u64 id, text name, u64 epoch, u32 splits, u32 EP objects made,
  // u32 ranks, u32 slot each, u32 objects, block each. Several; an empty one is the last
  kFrameReady,       // empty: the joiner has taken all windows that it was offered
  kFrameOffered,     // empty: the joiner was offered all windows that this rank shares with it
  kFrameCommEpochs,  // u32 count, then per comm: u64 id, u64 epoch; now
  kFrameClosed,      // u64 number, then as kFrameLeaving: channels that this rank has closed
  kFrameClosedHeld,  // u64 number: this rank holds all that was completed on them
  kFramePeerStates,  // u32 count, then per slot outside of the view: u64 slot, u64 MEP_PEER_*; to a joiner
};

struct WindowFrame {
  uint64_t id = 0;
  uint64_t bytes = 0;
  uint32_t generation = 0;
  std::vector<std::byte> blob;
  std::vector<std::byte> note;  // see WorldWindows::set_note()
  bool is_for_kernels = false;  // see WorldWindows::offer_memory()
};
std::vector<std::byte> encode_window_frame(const WindowFrame& window);
bool decode_window_frame(std::span<const std::byte> payload, WindowFrame* out);

struct WindowTakenFrame {
  uint64_t id = 0;
  uint32_t generation = 0;
};
std::vector<std::byte> encode_window_taken(const WindowTakenFrame& taken);
bool decode_window_taken(std::span<const std::byte> payload, WindowTakenFrame* out);

struct CatchUpFrame {
  uint64_t comm = 0;
  uint64_t channel = 0;
  uint64_t seq = 0;
  uint32_t source = 0;
  std::span<const std::byte> contribution;  // of a decoded one: within the payload
};
std::vector<std::byte> encode_catch_up(const CatchUpFrame& flush);
bool decode_catch_up(std::span<const std::byte> payload, CatchUpFrame* out);

struct CatchUpEndFrame {
  uint64_t comm = 0;
  uint64_t channel = 0;
  uint64_t to_seq = 0;
};
std::vector<std::byte> encode_catch_up_end(const CatchUpEndFrame& end);
bool decode_catch_up_end(std::span<const std::byte> payload, CatchUpEndFrame* out);

// `entered` does not travel.
std::vector<std::byte> encode_leaving(std::span<const membership::ChannelState> done);
bool decode_leaving(std::span<const std::byte> payload, std::vector<membership::ChannelState>* out);

struct ClosingFrame {
  uint64_t token = 0;
  uint64_t comm = 0;
  uint64_t channel = 0;
  uint64_t done = 0;
};
std::vector<std::byte> encode_closing(const ClosingFrame& closing);
bool decode_closing(std::span<const std::byte> payload, ClosingFrame* out);
std::vector<std::byte> encode_closing_held(uint64_t token);
bool decode_closing_held(std::span<const std::byte> payload, uint64_t* token);
struct ClosedFrame {
  uint64_t number = 0;
  std::vector<membership::ChannelState> channels;
};
std::vector<std::byte> encode_closed(const ClosedFrame& closed);
bool decode_closed(std::span<const std::byte> payload, ClosedFrame* out);
std::vector<std::byte> encode_closed_held(uint64_t number);
bool decode_closed_held(std::span<const std::byte> payload, uint64_t* number);

// A comm has at least one slot, and no slot twice; all are below `max_slots`.
std::vector<std::byte> encode_comms(std::span<const CommDescription> comms);
bool decode_comms(std::span<const std::byte> payload, uint32_t max_slots,
                  std::vector<CommDescription>* out);

// All of `comms` in as many payloads of kFrameComms as keep each of them small, the empty one behind them:
// a comm comes again for each part of its objects.
void encode_welcome(std::span<const CommDescription> comms,
                    const std::function<void(std::span<const std::byte>)>& sink);
// Adds what one payload said to what the earlier ones have.
void merge_welcome(std::vector<CommDescription> part, std::vector<CommDescription>* comms);

// The payload of kFrameCommEpochs and kFramePeerStates.
using NumberPairs = std::vector<std::pair<uint64_t, uint64_t>>;
std::vector<std::byte> encode_pairs(const NumberPairs& pairs);
bool decode_pairs(std::span<const std::byte> payload, NumberPairs* out);

}  // namespace mep
