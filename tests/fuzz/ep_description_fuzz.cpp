// The description of an EP object for a joiner: one that is accepted can be laid out, and its map be read. First
// byte: of how many ranks.
#include "core/ep/ep_description.hpp"

#include <algorithm>

#include "core/ep/host/ep_layout.hpp"
#include "core/ep/routing.hpp"
#include "fuzz/fuzz_target.hpp"

namespace fuzz {
namespace {

constexpr uint32_t kMostRanks = 8;
// A map is read with memory for every place.
constexpr uint64_t kMostPlaces = 1 << 20;

mep::EpDescription described(uint32_t ranks) {
  mep::EpDescription made;
  made.name = "ep0";
  made.window_seed = 77;
  made.shape.ranks = ranks;
  made.shape.max_tokens = 16;
  made.shape.hidden = 64;
  made.shape.top_k = 2;
  made.shape.experts = made.shape.local_experts = 2;
  made.shape.buffers = 2;
  return made;
}

void put(const Sink& sink, const char* name, const mep::EpDescription& description) {
  std::vector<std::byte> bytes{static_cast<std::byte>(description.shape.ranks - 1)};
  const std::vector<std::byte> encoded = mep::encode_ep_description(description);
  bytes.insert(bytes.end(), encoded.begin(), encoded.end());
  sink(name, bytes);
}

}  // namespace

void one(std::span<const std::byte> input) {
  if (input.empty()) return;
  const uint32_t ranks = static_cast<uint32_t>(input[0]) % kMostRanks + 1;
  mep::EpDescription description;
  if (mep::decode_ep_description(input.subspan(1), ranks - 1, ranks, &description) != MEP_SUCCESS) {
    return;
  }
  const mep::EpShape& shape = description.shape;
  require(shape.rank == ranks - 1 && shape.ranks == ranks &&
          description.name.size() <= input.size());
  require(shape.experts > 0 && shape.local_experts > 0 && shape.experts <= shape.places());
  require(shape.top_k > 0 && shape.top_k <= MEP_MAX_TOP_K);
  require(shape.buffers > 0 && shape.buffers <= MEP_MAX_EP_BUFFERS);
  require(shape.wire_row_bytes() % 16 == 0 && shape.combine_row_bytes() % 16 == 0);
  const mep::EpLayout layout(shape);
  if (layout.bytes() != 0) {
    require(layout.combine_out(shape.rows() - 1) + shape.combine_row_bytes() <= layout.bytes());
  }
  std::shared_ptr<const mep::ExpertMap> map;
  if (!description.map.empty() && shape.places() <= kMostPlaces &&
      mep::make_expert_map(shape, description.map.data(), &map) == MEP_SUCCESS) {
    require(map->begin.size() == size_t{shape.experts} + 1 && map->begin.back() > 0);
    for (const uint32_t place : map->places) require(place < shape.places());
  }
  mep::EpDescription second;
  require(mep::decode_ep_description(mep::encode_ep_description(description), ranks - 1, ranks,
                                     &second) == MEP_SUCCESS);
  require(second.name == description.name && second.map == description.map);
}

void seeds(const Sink& sink) {
  mep::EpDescription plain = described(4);
  put(sink, "plain", plain);
  plain.shape.wire_type = MEP_FLOAT8_E4M3;
  plain.shape.scale_type = MEP_SCALE_UE8M0;
  plain.shape.hidden = 256;
  plain.shape.layout = MEP_EP_SLOTTED;
  put(sink, "scaled-slotted", plain);
  mep::EpDescription mapped = described(2);
  mapped.shape.max_replicas = 2;
  mapped.map = {0, 2, 1, -1};
  put(sink, "mapped", mapped);
}

}  // namespace fuzz
