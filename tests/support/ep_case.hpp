// One random EP problem: what every rank puts in, and what every rank must get out, both computed
// plainly from a seed, so that any rank can check anything. Shares no code with the library.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "mep.h"
#include "support/coll_reference.hpp"
#include "support/ep_reference.hpp"

namespace mep_test {

using namespace mep_reference;

// A row as it travels.
struct WireRow {
  Bytes values;
  Bytes scales;
};

// Expert `place` gets this row.
struct ArrivedRow {
  int source;
  uint32_t token;
};

struct EpCase {
  uint64_t seed = 0;
  int ranks = 1;
  uint32_t max_tokens = 4, hidden = 16, top_k = 2, experts = 4, local_experts = 4, buffers = 2;
  mep_dtype_t input = MEP_BFLOAT16, wire = MEP_BFLOAT16, combine = MEP_BFLOAT16;
  uint32_t scale_type = MEP_SCALE_FLOAT32;
  bool slotted = false;
  bool wide_indices = true;  // int64
  bool mapped_experts = false;
  uint32_t replicas = 1;
  mep_ep_loss_t on_loss = MEP_EP_LOSS_FAILS;
  int avoided_rank = -1;  // the map places no expert there
  bool dispatch_weights = true, combine_weights = false, bias = false;
  bool own_memory = false;  // the caller's recv_x, y and so on instead of the library's
  bool strided = false;

  size_t input_bytes() const { return hidden * element_bytes(input); }
  size_t wire_bytes() const { return hidden * element_bytes(wire); }
  size_t combine_bytes() const { return hidden * element_bytes(combine); }
  size_t groups() const { return mep_reference::scale_count(scale_type, hidden); }
  bool has_scales() const { return mep_reference::has_scales(wire); }
  size_t scale_bytes() const {
    if (!has_scales()) return 0;
    return groups() * (scale_type == MEP_SCALE_FLOAT32 ? 4 : 1);
  }
  uint32_t places() const { return static_cast<uint32_t>(ranks) * local_experts; }
  size_t rows_per_expert() const { return static_cast<size_t>(ranks) * max_tokens; }

  RandomStream stream(uint64_t what, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0) const {
    return RandomStream(mix(mix(seed, what), a, b, c));
  }

  uint32_t tokens(int rank, uint64_t round) const {
    RandomStream random = stream(1, static_cast<uint64_t>(rank), round);
    if (random.one_in(5)) return 0;
    if (random.one_in(4)) return max_tokens;
    return static_cast<uint32_t>(random.below(max_tokens + 1));
  }

  // [T][K]
  std::vector<int64_t> routing(int rank, uint64_t round) const {
    RandomStream random = stream(2, static_cast<uint64_t>(rank), round);
    const bool crowded = random.one_in(4);  // everything to few experts
    std::vector<int64_t> result;
    for (uint32_t token = 0; token < tokens(rank, round); ++token) {
      std::vector<uint8_t> taken(experts, 0);
      for (uint32_t k = 0; k < top_k; ++k) {
        const uint32_t limit = crowded ? std::min(experts, top_k + 1) : experts;
        auto expert = static_cast<int64_t>(random.below(limit));
        if (random.one_in(6) || taken[static_cast<size_t>(expert)] != 0) expert = -1;
        if (expert >= 0) taken[static_cast<size_t>(expert)] = 1;
        result.push_back(expert);
      }
    }
    return result;
  }

  // [E][replicas], every place at most once.
  std::vector<int32_t> expert_map() const {
    RandomStream random = stream(3);
    std::vector<int32_t> free_places;
    for (uint32_t place = 0; place < places(); ++place) {
      if (static_cast<int>(place / local_experts) == avoided_rank) continue;
      free_places.push_back(static_cast<int32_t>(place));
    }
    for (size_t i = free_places.size(); i > 1; --i) {
      std::swap(free_places[i - 1], free_places[random.below(i)]);
    }
    std::vector<int32_t> map(size_t{experts} * replicas, -1);
    for (uint32_t expert = 0; expert < experts; ++expert) {
      map[expert * replicas + random.below(replicas)] = free_places.back();
      free_places.pop_back();
    }
    for (int32_t& entry : map) {
      if (entry != -1 || free_places.empty() || random.one_in(3)) continue;
      entry = free_places.back();
      free_places.pop_back();
    }
    return map;
  }

  // [T][K] of routing: the places that the map says.
  std::vector<int64_t> places_of(int rank, uint64_t round) const {
    std::vector<int64_t> places = routing(rank, round);
    const std::vector<int32_t> map = mapped_experts ? expert_map() : std::vector<int32_t>();
    for (size_t at = 0; at < places.size() && mapped_experts; ++at) {
      if (places[at] < 0) continue;
      std::vector<int32_t> found;
      for (uint32_t i = 0; i < replicas; ++i) {
        const int32_t place = map[static_cast<size_t>(places[at]) * replicas + i];
        if (place >= 0) found.push_back(place);
      }
      places[at] = found[(at / top_k + static_cast<size_t>(rank)) % found.size()];
    }
    return places;
  }

  Bytes x_row(int rank, uint64_t round, uint32_t token) const {
    RandomStream random = stream(4, static_cast<uint64_t>(rank), round, token);
    Bytes row(input_bytes());
    float magnitude = 1;
    for (uint32_t i = 0; i < hidden; ++i) {
      if (i % 128 == 0) magnitude = std::ldexp(1.0f, static_cast<int>(random.below(20)) - 10);
      const auto unit = static_cast<float>(static_cast<int64_t>(random.below(20001)) - 10000);
      store_number(input, unit * 1e-4f * magnitude, row.data() + i * element_bytes(input));
    }
    return row;
  }
  // The scales of input that has them.
  Bytes x_scales_row(int rank, uint64_t round, uint32_t token) const {
    RandomStream random = stream(5, static_cast<uint64_t>(rank), round, token);
    Bytes row(scale_bytes());
    for (uint8_t& byte : row) byte = static_cast<uint8_t>(random.below(256));
    return row;
  }

  WireRow wire_row(int rank, uint64_t round, uint32_t token) const {
    const Bytes x = x_row(rank, round, token);
    if (wire == input) {
      return {x, mep_reference::has_scales(input) ? x_scales_row(rank, round, token) : Bytes()};
    }
    WireRow row{Bytes(hidden), Bytes(scale_bytes())};
    quantize(input, x.data(), hidden, wire, scale_type, row.values.data(), row.scales.data());
    return row;
  }

  // All rows of a place, in the order of (source, token).
  std::vector<ArrivedRow> arrivals(uint32_t place, uint64_t round,
                                   const std::vector<uint8_t>& gone = {}) const {
    std::vector<ArrivedRow> rows;
    for (int source = 0; source < ranks; ++source) {
      if (!gone.empty() && gone[static_cast<size_t>(source)] != 0) continue;
      for (const uint32_t token : tokens_for(places_of(source, round), top_k, place, place + 1)) {
        rows.push_back({source, token});
      }
    }
    return rows;
  }

  // The output of the expert at `place` for the row of (source, token).
  Bytes y_row(uint32_t place, int source, uint64_t round, uint32_t token) const {
    RandomStream random = stream(6, place * 4096 + static_cast<uint64_t>(source), round, token);
    Bytes row(combine_bytes());
    for (uint32_t i = 0; i < hidden; ++i) {
      const auto unit = static_cast<float>(static_cast<int64_t>(random.below(200001)) - 100000);
      store_number(combine, unit * 3e-5f, row.data() + i * element_bytes(combine));
    }
    return row;
  }

  // [T][K]
  std::vector<float> weights(int rank, uint64_t round, bool of_combine) const {
    RandomStream random = stream(of_combine ? 8 : 7, static_cast<uint64_t>(rank), round);
    std::vector<float> result(size_t{tokens(rank, round)} * top_k);
    for (float& weight : result) {
      weight = static_cast<float>(random.below(1000) + 1) * 1e-3f;
    }
    return result;
  }
  Bytes bias_row(uint64_t round) const {
    RandomStream random = stream(9, round);
    Bytes row(combine_bytes());
    for (uint32_t i = 0; i < hidden; ++i) {
      store_number(combine, static_cast<float>(random.below(100)) * 0.01f,
                   row.data() + i * element_bytes(combine));
    }
    return row;
  }

  // The sum for token `token` of `rank`. gone: ranks whose experts' terms are missing.
  Bytes combined_row(int rank, uint64_t round, uint32_t token, bool renormalize = false,
                     const std::vector<uint8_t>& gone = {}) const {
    const std::vector<int64_t> places = places_of(rank, round);
    std::vector<float> weight(places.size(), 1.0f);
    if (dispatch_weights) weight = weights(rank, round, false);
    if (combine_weights) weight = weights(rank, round, true);
    const auto missing = [&](int64_t place) {
      return !gone.empty() && gone[static_cast<size_t>(place) / local_experts] != 0;
    };
    volatile float all = 0;
    volatile float present = 0;
    bool any_missing = false;
    for (uint32_t k = 0; k < top_k; ++k) {
      const size_t at = size_t{token} * top_k + k;
      const int64_t place = places[at];
      if (place < 0) continue;
      all = all + weight[at];
      if (!missing(place)) present = present + weight[at];
      any_missing = any_missing || missing(place);
    }
    RowSum sum(combine, hidden);
    for (uint32_t k = 0; k < top_k; ++k) {
      const size_t at = size_t{token} * top_k + k;
      const int64_t place = places[at];
      if (place < 0 || missing(place)) continue;
      float factor = weight[at];
      if (renormalize && any_missing && present != 0) {
        const volatile float ratio = all / present;
        factor = factor * ratio;
      }
      sum.add(y_row(static_cast<uint32_t>(place), rank, round, token).data(), factor);
    }
    if (bias) sum.add(bias_row(round).data());
    return sum.row();
  }

  mep_ep_config_t config() const {
    mep_ep_config_t config;
    mep_ep_config_defaults(&config);
    config.max_tokens_per_rank = max_tokens;
    config.hidden = hidden;
    config.top_k = top_k;
    config.num_experts = experts;
    config.experts_per_rank = local_experts;
    config.num_buffers = buffers;
    config.input_type = input;
    config.wire_type = wire;
    config.combine_type = combine;
    config.scale_type = scale_type;
    config.layout = slotted ? MEP_EP_SLOTTED : MEP_EP_LOW_LATENCY;
    config.max_replicas = replicas;
    config.on_loss = on_loss;
    return config;
  }

  std::string describe() const {
    char text[256];
    snprintf(text, sizeof text,
             "case seed %llu: R %d M %u H %u K %u E %u local %u buffers %u types %u/%u/%u scale %u "
             "%s%s%s%s",
             static_cast<unsigned long long>(seed), ranks, max_tokens, hidden, top_k, experts,
             local_experts, buffers, input, wire, combine, scale_type,
             slotted ? "slotted" : "packed", mapped_experts ? " map" : "",
             own_memory ? " own memory" : "", strided ? " strided" : "");
    return text;
  }
};

// A random case for `ranks`; every field is drawn in the same order, so a seed names a case.
inline EpCase random_ep_case(uint64_t seed, int ranks) {
  RandomStream random(mix(seed, 77));
  EpCase c;
  c.seed = seed;
  c.ranks = ranks;
  c.max_tokens = static_cast<uint32_t>(random.below(random.one_in(4) ? 40 : 9)) + 1;
  constexpr uint32_t kHidden[] = {16, 32, 64, 128, 144, 256, 272};
  c.hidden = kHidden[random.below(7)];
  c.local_experts = static_cast<uint32_t>(random.below(5)) + 1;
  const uint32_t places = c.places();
  c.experts = random.one_in(3) ? static_cast<uint32_t>(random.below(places)) + 1 : places;
  c.top_k = static_cast<uint32_t>(random.below(std::min<uint32_t>(c.experts, 9))) + 1;
  c.buffers = static_cast<uint32_t>(random.below(3)) + 1;
  constexpr mep_dtype_t kInput[] = {MEP_BFLOAT16, MEP_FLOAT16, MEP_FLOAT32, MEP_FLOAT8_E4M3};
  c.input = kInput[random.below(4)];
  c.wire = random.one_in(2) ? mep_dtype_t{MEP_FLOAT8_E4M3} : c.input;
  c.combine = kInput[random.below(3)];
  c.scale_type = random.one_in(2) ? MEP_SCALE_UE8M0 : MEP_SCALE_FLOAT32;
  if (c.hidden % 32 == 0 && random.one_in(3)) c.scale_type = MEP_SCALE_UE8M0_32;
  c.slotted = random.one_in(2);
  c.wide_indices = random.one_in(2);
  c.mapped_experts = random.one_in(3);
  c.replicas = c.mapped_experts ? static_cast<uint32_t>(random.below(std::min(places, 3u))) + 1 : 1;
  c.dispatch_weights = !random.one_in(3);
  c.combine_weights = random.one_in(3);
  c.bias = random.one_in(3);
  c.own_memory = random.one_in(2);
  c.strided = random.one_in(3);
  return c;
}

}  // namespace mep_test
