#include "core/world/frames.hpp"

#include <algorithm>
#include <iterator>

#include "core/bootstrap/byte_codec.hpp"
#include "core/membership/slot_set.hpp"
#include "core/world/world_participant.hpp"
#include "transport/transport.hpp"

namespace mep {
namespace {

// The size of a welcome's payload at which the next one begins.
constexpr size_t kWelcomePartBytes = size_t{1} << 20;

// A name or an object has no bound of its own: it is as long as its bytes.
bool read_comm(ByteReader* reader, uint32_t max_slots, size_t limit, CommDescription* comm) {
  comm->id = reader->number<uint64_t>();
  comm->name = reader->text(limit);
  comm->epoch = reader->number<uint64_t>();
  comm->child_number = reader->number<uint32_t>();
  comm->ep_number = reader->number<uint32_t>();
  const auto ranks = reader->number<uint32_t>();
  if (ranks == 0 || ranks > max_slots) return false;
  membership::SlotSet seen;
  for (uint32_t rank = 0; rank < ranks && reader->valid(); ++rank) {
    const auto slot = reader->number<uint32_t>();
    if (slot >= max_slots || seen.has(slot)) return false;
    seen.add(slot);
    comm->slots.push_back(slot);
  }
  const auto objects = reader->number<uint32_t>();
  for (uint32_t object = 0; object < objects && reader->valid(); ++object) {
    comm->objects.push_back(reader->block(limit));
  }
  return reader->valid();
}

void write_done(std::span<const membership::ChannelState> done, ByteWriter* writer) {
  writer->number(static_cast<uint32_t>(done.size()));
  for (const membership::ChannelState& channel : done) {
    writer->number(channel.comm);
    writer->number(channel.channel);
    writer->number(channel.done);
  }
}

void read_done(ByteReader* reader, std::vector<membership::ChannelState>* out) {
  const auto count = reader->number<uint32_t>();
  for (uint32_t i = 0; i < count && reader->valid(); ++i) {
    membership::ChannelState channel;
    channel.comm = reader->number<uint64_t>();
    channel.channel = reader->number<uint64_t>();
    channel.done = reader->number<uint64_t>();
    out->push_back(channel);
  }
}

}  // namespace

std::vector<std::byte> encode_window_frame(const WindowFrame& window) {
  ByteWriter writer;
  writer.number(window.id);
  writer.number(window.bytes);
  writer.number(window.generation);
  writer.block(window.blob);
  writer.block(window.note);
  writer.number(static_cast<uint8_t>(window.is_for_kernels));
  return writer.take();
}

bool decode_window_frame(std::span<const std::byte> payload, WindowFrame* out) {
  ByteReader reader(payload);
  out->id = reader.number<uint64_t>();
  out->bytes = reader.number<uint64_t>();
  out->generation = reader.number<uint32_t>();
  out->blob = reader.block(kMaxWindowBlobBytes);
  out->note = reader.block(kMaxWindowBlobBytes);
  const auto is_for_kernels = reader.number<uint8_t>();
  out->is_for_kernels = is_for_kernels == 1;
  return reader.complete() && is_for_kernels <= 1;
}

std::vector<std::byte> encode_window_taken(const WindowTakenFrame& taken) {
  ByteWriter writer;
  writer.number(taken.id);
  writer.number(taken.generation);
  return writer.take();
}

bool decode_window_taken(std::span<const std::byte> payload, WindowTakenFrame* out) {
  ByteReader reader(payload);
  out->id = reader.number<uint64_t>();
  out->generation = reader.number<uint32_t>();
  return reader.complete();
}

std::vector<std::byte> encode_catch_up(const CatchUpFrame& flush) {
  ByteWriter writer;
  writer.number(flush.comm);
  writer.number(flush.channel);
  writer.number(flush.seq);
  writer.number(flush.source);
  std::vector<std::byte> payload = writer.take();
  payload.insert(payload.end(), flush.contribution.begin(), flush.contribution.end());
  return payload;
}

bool decode_catch_up(std::span<const std::byte> payload, CatchUpFrame* out) {
  ByteReader reader(payload);
  out->comm = reader.number<uint64_t>();
  out->channel = reader.number<uint64_t>();
  out->seq = reader.number<uint64_t>();
  out->source = reader.number<uint32_t>();
  if (!reader.valid()) return false;
  out->contribution = payload.subspan(3 * sizeof(uint64_t) + sizeof(uint32_t));
  return true;
}

std::vector<std::byte> encode_catch_up_end(const CatchUpEndFrame& end) {
  ByteWriter writer;
  writer.number(end.comm);
  writer.number(end.channel);
  writer.number(end.to_seq);
  return writer.take();
}

bool decode_catch_up_end(std::span<const std::byte> payload, CatchUpEndFrame* out) {
  ByteReader reader(payload);
  out->comm = reader.number<uint64_t>();
  out->channel = reader.number<uint64_t>();
  out->to_seq = reader.number<uint64_t>();
  return reader.complete();
}

std::vector<std::byte> encode_leaving(std::span<const membership::ChannelState> done) {
  ByteWriter writer;
  write_done(done, &writer);
  return writer.take();
}

bool decode_leaving(std::span<const std::byte> payload,
                    std::vector<membership::ChannelState>* out) {
  ByteReader reader(payload);
  read_done(&reader, out);
  return reader.complete();
}

std::vector<std::byte> encode_closed(const ClosedFrame& closed) {
  ByteWriter writer;
  writer.number(closed.number);
  write_done(closed.channels, &writer);
  return writer.take();
}

bool decode_closed(std::span<const std::byte> payload, ClosedFrame* out) {
  ByteReader reader(payload);
  out->number = reader.number<uint64_t>();
  read_done(&reader, &out->channels);
  return reader.complete();
}

std::vector<std::byte> encode_closed_held(uint64_t number) {
  ByteWriter writer;
  writer.number(number);
  return writer.take();
}

bool decode_closed_held(std::span<const std::byte> payload, uint64_t* number) {
  ByteReader reader(payload);
  *number = reader.number<uint64_t>();
  return reader.complete();
}

std::vector<std::byte> encode_closing(const ClosingFrame& closing) {
  ByteWriter writer;
  writer.number(closing.token);
  writer.number(closing.comm);
  writer.number(closing.channel);
  writer.number(closing.done);
  return writer.take();
}

bool decode_closing(std::span<const std::byte> payload, ClosingFrame* out) {
  ByteReader reader(payload);
  out->token = reader.number<uint64_t>();
  out->comm = reader.number<uint64_t>();
  out->channel = reader.number<uint64_t>();
  out->done = reader.number<uint64_t>();
  return reader.complete();
}

std::vector<std::byte> encode_closing_held(uint64_t token) {
  ByteWriter writer;
  writer.number(token);
  return writer.take();
}

bool decode_closing_held(std::span<const std::byte> payload, uint64_t* token) {
  ByteReader reader(payload);
  *token = reader.number<uint64_t>();
  return reader.complete();
}

std::vector<std::byte> encode_comms(std::span<const CommDescription> comms) {
  ByteWriter writer;
  writer.number(static_cast<uint32_t>(comms.size()));
  for (const CommDescription& comm : comms) {
    writer.number(comm.id);
    writer.text(comm.name);
    writer.number(comm.epoch);
    writer.number(comm.child_number);
    writer.number(comm.ep_number);
    writer.number(static_cast<uint32_t>(comm.slots.size()));
    for (const uint32_t slot : comm.slots) writer.number(slot);
    writer.number(static_cast<uint32_t>(comm.objects.size()));
    for (const std::vector<std::byte>& object : comm.objects) writer.block(object);
  }
  return writer.take();
}

bool decode_comms(std::span<const std::byte> payload, uint32_t max_slots,
                  std::vector<CommDescription>* out) {
  ByteReader reader(payload);
  const auto count = reader.number<uint32_t>();
  for (uint32_t i = 0; i < count && reader.valid(); ++i) {
    CommDescription comm;
    if (!read_comm(&reader, max_slots, payload.size(), &comm)) return false;
    out->push_back(std::move(comm));
  }
  return reader.complete();
}

void encode_welcome(std::span<const CommDescription> comms,
                    const std::function<void(std::span<const std::byte>)>& sink) {
  std::vector<CommDescription> part;
  size_t bytes = 0;
  const auto give = [&] {
    if (!part.empty()) sink(encode_comms(part));
    part.clear();
    bytes = 0;
  };
  for (const CommDescription& comm : comms) {
    CommDescription bare = comm;
    bare.objects.clear();
    part.push_back(bare);
    bytes += bare.name.size() + bare.slots.size() * sizeof(uint32_t);
    for (const std::vector<std::byte>& object : comm.objects) {
      part.back().objects.push_back(object);
      bytes += object.size();
      if (bytes < kWelcomePartBytes) continue;
      give();
      part.push_back(bare);
    }
    if (bytes >= kWelcomePartBytes) give();
  }
  give();
  sink(encode_comms({}));
}

void merge_welcome(std::vector<CommDescription> part, std::vector<CommDescription>* comms) {
  for (CommDescription& comm : part) {
    const auto known = std::find_if(comms->begin(), comms->end(),
                                    [&](const auto& other) { return other.id == comm.id; });
    if (known == comms->end()) {
      comms->push_back(std::move(comm));
    } else {
      std::move(comm.objects.begin(), comm.objects.end(), std::back_inserter(known->objects));
    }
  }
}

std::vector<std::byte> encode_pairs(const NumberPairs& pairs) {
  ByteWriter writer;
  writer.number(static_cast<uint32_t>(pairs.size()));
  for (const auto& [first, second] : pairs) {
    writer.number(first);
    writer.number(second);
  }
  return writer.take();
}

bool decode_pairs(std::span<const std::byte> payload, NumberPairs* out) {
  ByteReader reader(payload);
  const auto count = reader.number<uint32_t>();
  for (uint32_t i = 0; i < count && reader.valid(); ++i) {
    const auto first = reader.number<uint64_t>();
    out->emplace_back(first, reader.number<uint64_t>());
  }
  return reader.complete();
}

}  // namespace mep
