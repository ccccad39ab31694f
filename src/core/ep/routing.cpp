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

Router::Router(const EpShape& shape)
    : shape_(shape),
      seen_(shape.experts, 0),
      counts_(shape.places(), 0),
      begin_(shape.places(), 0),
      next_(shape.places(), 0),
      grouped_(size_t{shape.max_tokens} * shape.top_k, 0) {}

mep_result_t Router::read(const mep_dispatch_send_t& input, const ExpertMap* map,
                          const std::vector<uint8_t>& present, Routing* out) {
  const size_t entries = size_t{shape_.max_tokens} * shape_.top_k;
  out->entries.resize(entries);
  out->weights.resize(entries);
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
  for (uint32_t token = 0; token < tokens; ++token) {
    ++stamp_;
    for (uint32_t k = 0; k < top_k; ++k) {
      const size_t at = size_t{token} * top_k + k;
      const auto expert = static_cast<int64_t>(indices[at]);
      RouteEntry& entry = out->entries[at];
      entry = {kNoExpert, kNotSent};
      if (expert == -1) continue;
      if (expert < 0 || expert >= int64_t{shape_.experts}) {
        return fail(MEP_ERR_INVALID_ARGUMENT,
                    "topk_idx: token %u names expert %lld; experts are 0 to %u, -1 is none", token,
                    static_cast<long long>(expert), shape_.experts - 1);
      }
      const auto logical = static_cast<uint32_t>(expert);
      if (seen_[logical] == stamp_) {
        return fail(MEP_ERR_INVALID_ARGUMENT, "topk_idx: token %u names expert %u twice", token,
                    logical);
      }
      seen_[logical] = stamp_;
      uint32_t place = logical;
      if (map != nullptr) {
        const uint32_t first = map->begin[logical];
        const uint32_t replicas = map->begin[logical + 1] - first;
        place = map->places[first + (token + shape_.rank) % replicas];
      }
      entry.place = static_cast<int32_t>(place);
      if (present[place / shape_.local_experts] != 0) entry.row = 0;
    }
  }
  return MEP_SUCCESS;
}

void Router::count(const Routing& routing) {
  std::fill(counts_.begin(), counts_.end(), 0);
  const size_t entries = size_t{routing.tokens} * shape_.top_k;
  for (size_t at = 0; at < entries; ++at) {
    const RouteEntry& entry = routing.entries[at];
    if (entry.row != kNotSent) ++counts_[static_cast<uint32_t>(entry.place)];
  }
  uint32_t total = 0;
  for (size_t place = 0; place < counts_.size(); ++place) {
    begin_[place] = next_[place] = total;
    total += counts_[place];
  }
  for (size_t at = 0; at < entries; ++at) {
    const RouteEntry& entry = routing.entries[at];
    if (entry.row == kNotSent) continue;
    grouped_[next_[static_cast<uint32_t>(entry.place)]++] = static_cast<uint32_t>(at);
  }
}

void Router::set_rows(const std::vector<uint32_t>& first_row, Routing* routing) {
  for (size_t place = 0; place < counts_.size(); ++place) {
    const uint32_t* entries = entries_of(static_cast<uint32_t>(place));
    for (uint32_t i = 0; i < counts_[place]; ++i) {
      routing->entries[entries[i]].row = first_row[place] + i;
    }
  }
}

}  // namespace mep
