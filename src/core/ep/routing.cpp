#include "core/ep/routing.hpp"

#include <algorithm>
#include <cstring>

#include "base/status.hpp"

namespace mep {

mep_result_t make_expert_map(const EpShape& shape, const int32_t* map,
                             std::shared_ptr<const ExpertMap>* out) {
  auto made = std::make_shared<ExpertMap>();
  std::vector<uint32_t> owner(shape.places(), UINT32_MAX);
  made->begin.push_back(0);
  for (uint32_t expert = 0; expert < shape.experts; ++expert) {
    for (uint32_t i = 0; i < shape.max_replicas; ++i) {
      const int32_t place = map[size_t{expert} * shape.max_replicas + i];
      if (place == -1) continue;
      if (place < 0 || static_cast<uint32_t>(place) >= shape.places()) {
        return fail(MEP_ERR_INVALID_ARGUMENT,
                    "the map gives expert %u the place %d; places are 0 to %u, -1 is unused",
                    expert, place, shape.places() - 1);
      }
      if (owner[static_cast<uint32_t>(place)] != UINT32_MAX) {
        return fail(MEP_ERR_INVALID_ARGUMENT, "the map gives place %d to experts %u and %u", place,
                    owner[static_cast<uint32_t>(place)], expert);
      }
      owner[static_cast<uint32_t>(place)] = expert;
      made->places.push_back(static_cast<uint32_t>(place));
    }
    if (made->places.size() == made->begin.back()) {
      return fail(MEP_ERR_INVALID_ARGUMENT, "the map gives expert %u no place", expert);
    }
    made->begin.push_back(static_cast<uint32_t>(made->places.size()));
  }
  *out = std::move(made);
  return MEP_SUCCESS;
}

mep_result_t check_expert(uint32_t token, int64_t expert, uint32_t experts) {
  if (expert >= 0 && expert < int64_t{experts}) [[likely]]
    return MEP_SUCCESS;
  return fail(MEP_ERR_INVALID_ARGUMENT,
              "topk_idx: token %u names expert %lld; experts are 0 to %u, -1 is none", token,
              static_cast<long long>(expert), experts - 1);
}

mep_result_t fail_repeated(uint32_t token, uint32_t expert) {
  return fail(MEP_ERR_INVALID_ARGUMENT, "topk_idx: token %u names expert %u twice", token, expert);
}

Router::Router(const EpShape& shape)
    : shape_(shape),
      seen_(shape.experts, 0),
      counts_(shape.columns(), 0),
      begin_(shape.columns(), 0),
      next_(shape.columns(), 0),
      grouped_(size_t{shape.max_tokens} * shape.row_k, 0) {}

mep_result_t Router::read(const DispatchInput& input, const ExpertMap* map,
                          const std::vector<uint8_t>& present, Routing* out) {
  const size_t chosen = size_t{shape_.max_tokens} * shape_.top_k;
  out->entries.resize(size_t{shape_.max_tokens} * shape_.row_k);
  out->weights.resize(chosen);
  if (shape_.high_throughput()) out->experts.resize(chosen);
  out->tokens = input.num_tokens;
  const mep_result_t read = input.topk_idx_type == MEP_INT32
                                ? read_as(static_cast<const int32_t*>(input.topk_idx),
                                          input.num_tokens, map, present, out)
                                : read_as(static_cast<const int64_t*>(input.topk_idx),
                                          input.num_tokens, map, present, out);
  if (read != MEP_SUCCESS) return read;
  out->has_weights = input.topk_weights != nullptr;
  if (out->has_weights && input.num_tokens != 0) {
    std::memcpy(out->weights.data(), input.topk_weights,
                size_t{input.num_tokens} * shape_.top_k * sizeof(float));
  }
  return MEP_SUCCESS;
}

template <typename Index>
mep_result_t Router::read_as(const Index* indices, uint32_t tokens, const ExpertMap* map,
                             const std::vector<uint8_t>& present, Routing* out) {
  const uint32_t top_k = shape_.top_k;
  const auto set_entry = [&](size_t at, int32_t place) {
    if (shape_.high_throughput()) {
      out->experts[at] = place;
      return;
    }
    const bool is_sent =
        place != kNoExpert && present[static_cast<uint32_t>(place) / shape_.local_experts] != 0;
    out->entries[at] = {place, is_sent ? 0 : kNotSent};
  };
  for (uint32_t token = 0; token < tokens; ++token) {
    ++stamp_;
    for (uint32_t k = 0; k < top_k; ++k) {
      const size_t at = size_t{token} * top_k + k;
      const auto expert = static_cast<int64_t>(indices[at]);
      set_entry(at, kNoExpert);
      if (expert == -1) continue;
      MEP_TRY(check_expert(token, expert, shape_.experts));
      const auto logical = static_cast<uint32_t>(expert);
      if (seen_[logical] == stamp_) return fail_repeated(token, logical);
      seen_[logical] = stamp_;
      uint32_t place = logical;
      if (map != nullptr) {
        const uint32_t first = map->begin[logical];
        const uint32_t replicas = map->begin[logical + 1] - first;
        place = map->places[first + (token + shape_.rank) % replicas];
      }
      set_entry(at, static_cast<int32_t>(place));
    }
    if (shape_.high_throughput()) spread(token, present, out);
  }
  return MEP_SUCCESS;
}

void Router::spread(uint32_t token, const std::vector<uint8_t>& present, Routing* out) const {
  RouteEntry* ranks = out->entries.data() + size_t{token} * shape_.row_k;
  const int32_t* experts = out->experts.data() + size_t{token} * shape_.top_k;
  uint32_t count = 0;
  for (uint32_t k = 0; k < shape_.top_k; ++k) {
    if (experts[k] == kNoExpert) continue;
    const auto rank =
        static_cast<int32_t>(static_cast<uint32_t>(experts[k]) / shape_.local_experts);
    uint32_t at = count;
    while (at > 0 && ranks[at - 1].place > rank) --at;
    if (at > 0 && ranks[at - 1].place == rank) continue;
    for (uint32_t behind = count; behind > at; --behind) ranks[behind] = ranks[behind - 1];
    ranks[at] = {rank, present[static_cast<uint32_t>(rank)] != 0 ? 0 : kNotSent};
    ++count;
  }
  for (; count < shape_.row_k; ++count) ranks[count] = {kNoExpert, kNotSent};
}

void Router::count(const Routing& routing) {
  std::fill(counts_.begin(), counts_.end(), 0);
  const size_t entries = size_t{routing.tokens} * shape_.row_k;
  for (size_t at = 0; at < entries; ++at) {
    const RouteEntry& entry = routing.entries[at];
    if (entry.row != kNotSent) ++counts_[static_cast<uint32_t>(entry.place)];
  }
  uint32_t total = 0;
  for (size_t column = 0; column < counts_.size(); ++column) {
    begin_[column] = next_[column] = total;
    total += counts_[column];
  }
  for (size_t at = 0; at < entries; ++at) {
    const RouteEntry& entry = routing.entries[at];
    if (entry.row == kNotSent) continue;
    grouped_[next_[static_cast<uint32_t>(entry.place)]++] = static_cast<uint32_t>(at);
  }
}

void Router::set_rows(const std::vector<uint32_t>& first_row, Routing* routing) {
  for (size_t column = 0; column < counts_.size(); ++column) {
    const uint32_t* entries = entries_of(static_cast<uint32_t>(column));
    for (uint32_t i = 0; i < counts_[column]; ++i) {
      routing->entries[entries[i]].row = first_row[column] + i;
    }
  }
}

}  // namespace mep
