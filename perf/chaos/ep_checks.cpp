// An EpPlayer's input, and its checks.
#include <cstring>

#include "ep_player.hpp"
#include "formatted.hpp"
#include "numbers.hpp"

namespace mep::programs {
void EpPlayer::fill(const EpShape& shape, Buffer* buffer) {
  const EpRound& data = *buffer->data;
  const uint32_t rank = player_.comms_[shape.comm].members.rank;
  const uint32_t tokens = data.tokens(rank);
  const size_t ranks = player_.comms_[shape.comm].members.slots.size();
  const size_t rows = shape.local_experts * data.rows_per_expert();
  buffer->x.assign(tokens * data.input_bytes() + 1, 0);
  for (uint32_t token = 0; token < tokens; ++token) {
    data.x_row(rank, token, buffer->x.data() + token * data.input_bytes());
  }
  if (player_.lies("data") && tokens != 0) buffer->x[data.input_bytes() / 2] ^= 1;
  buffer->routing = data.routing(rank);
  buffer->weights = data.weights(rank);
  buffer->out.assign(tokens * data.combine_bytes() + 64, 0x5a);
  if (!shape.own_memory) return;
  buffer->recv_x.assign(rows * data.input_bytes(), 0x5a);
  buffer->y.assign(rows * data.combine_bytes(), 0x5a);
  buffer->recv_count.assign(shape.local_experts, -1);
  buffer->src_info.assign(rows, -1);
  buffer->layout_range.assign(shape.local_experts * ranks, {-1, -1});
}

// The place of the next row of `rank` at a local expert.
size_t EpPlayer::first_row(const EpShape& shape, const Buffer& buffer, uint32_t local,
                           uint32_t rank) const {
  const size_t ranks = player_.comms_.at(shape.comm).members.slots.size();
  const mep_range_t* ranges =
      shape.own_memory ? buffer.layout_range.data() : buffer.view.layout_range;
  return static_cast<size_t>(ranges[local * ranks + rank].begin);
}

std::string EpPlayer::check_rows(const EpShape& shape, const Buffer& buffer, bool complete) const {
  const EpRound& data = *buffer.data;
  const auto ranks = static_cast<uint32_t>(player_.comms_.at(shape.comm).members.slots.size());
  if (shape.high_throughput) return check_tokens(shape, buffer);
  const int32_t* counts = shape.own_memory ? buffer.recv_count.data() : buffer.view.recv_count;
  const mep_range_t* ranges =
      shape.own_memory ? buffer.layout_range.data() : buffer.view.layout_range;
  for (uint32_t local = 0; local < shape.local_experts; ++local) {
    const std::vector<Arrival> rows = data.arrivals(local, buffer.missing);
    if (counts[local] != static_cast<int32_t>(rows.size())) {
      return formatted("expert %u has %d rows, not %zu, missing %llx", local, counts[local],
                       rows.size(), static_cast<unsigned long long>(buffer.missing));
    }
    size_t next = 0;
    size_t begin = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      if (shape.slotted) begin = size_t{rank} * shape.max_tokens;
      size_t count = 0;
      while (next + count < rows.size() && rows[next + count].rank == rank) ++count;
      const mep_range_t& range = ranges[local * ranks + rank];
      const auto said_begin = static_cast<size_t>(range.begin);
      const auto said_count = static_cast<size_t>(range.count);
      // Where a rank is missing, its rows may have had places that nobody uses.
      const bool right_place =
          said_begin == begin || (!complete && said_begin + said_count <= data.rows_per_expert());
      if (said_count != count || (count != 0 && !right_place)) {
        return formatted("expert %u, rank %u: rows %zu + %zu, not %zu + %zu", local, rank,
                         said_begin, said_count, begin, count);
      }
      for (size_t i = 0; i < count; ++i) {
        const std::string wrong = check_row(
            shape, buffer, local * data.rows_per_expert() + said_begin + i, rows[next + i]);
        if (!wrong.empty()) return formatted("expert %u: ", local) + wrong;
      }
      begin += count;
      next += count;
    }
  }
  return {};
}

// In high throughput: the rows of all local experts, and which experts each is for.
std::string EpPlayer::check_tokens(const EpShape& shape, const Buffer& buffer) const {
  const EpRound& data = *buffer.data;
  const std::vector<Arrival> rows = data.arrivals(0, buffer.missing);
  if (buffer.total != static_cast<int64_t>(rows.size())) {
    return formatted("%lld rows, not %zu, missing %llx", static_cast<long long>(buffer.total),
                     rows.size(), static_cast<unsigned long long>(buffer.missing));
  }
  const int64_t first = int64_t{player_.comms_.at(shape.comm).members.rank} * shape.local_experts;
  std::vector<int32_t> counts(shape.local_experts, 0);
  for (size_t place = 0; place < rows.size(); ++place) {
    std::string wrong = check_row(shape, buffer, place, rows[place]);
    if (!wrong.empty()) return wrong;
    const std::vector<int64_t> experts = data.routing(rows[place].rank);
    const std::vector<float> weights = data.weights(rows[place].rank);
    for (uint32_t k = 0; k < shape.top_k; ++k) {
      const size_t at = size_t{rows[place].token} * shape.top_k + k;
      const int64_t local = experts[at] - first;
      const bool is_here = local >= 0 && local < shape.local_experts;
      const int32_t said = buffer.view.recv_topk_idx[place * shape.top_k + k];
      if (said != (is_here ? static_cast<int32_t>(local) : -1)) {
        return formatted("expert %u of row %zu is %d, not %lld", k, place, said,
                         static_cast<long long>(local));
      }
      if (!is_here) continue;
      ++counts[static_cast<size_t>(local)];
      if (buffer.view.recv_topk_weights[place * shape.top_k + k] != weights[at]) {
        return formatted("weight %u of row %zu is another", k, place);
      }
    }
  }
  for (uint32_t local = 0; local < shape.local_experts; ++local) {
    if (buffer.view.recv_count[local] == counts[local]) continue;
    return formatted("expert %u has %d rows, not %d", local, buffer.view.recv_count[local],
                     counts[local]);
  }
  return {};
}

std::string EpPlayer::check_row(const EpShape& shape, const Buffer& buffer, size_t place,
                                const Arrival& row) const {
  const EpRound& data = *buffer.data;
  std::vector<uint8_t> expected(data.input_bytes());
  data.x_row(row.rank, row.token, expected.data());
  const auto* const x =
      shape.own_memory ? buffer.recv_x.data() : static_cast<const uint8_t*>(buffer.view.recv_x);
  const int32_t* const infos = shape.own_memory ? buffer.src_info.data() : buffer.view.src_info;
  if (infos[place] != static_cast<int32_t>(row.token)) {
    return formatted("src_info of row %zu is %d, not %u", place, infos[place], row.token);
  }
  if (std::memcmp(expected.data(), x + place * data.input_bytes(), expected.size()) != 0) {
    return formatted("row %zu is not token %u of rank %u", place, row.token, row.rank);
  }
  return {};
}

void EpPlayer::run_experts(const EpShape& shape, Buffer* buffer) const {
  const EpRound& data = *buffer->data;
  const auto ranks = static_cast<uint32_t>(player_.comms_.at(shape.comm).members.slots.size());
  const uint32_t own = player_.comms_.at(shape.comm).members.rank;
  uint8_t* const y =
      shape.own_memory ? buffer->y.data() : static_cast<uint8_t*>(buffer->view.combine_input);
  for (uint32_t local = 0; local < data.groups(); ++local) {
    std::vector<size_t> next(ranks);
    for (uint32_t rank = 0; rank < ranks && !shape.high_throughput; ++rank)
      next[rank] = first_row(shape, *buffer, local, rank);
    size_t count = 0;
    for (const Arrival& row : data.arrivals(local, buffer->missing)) {
      const size_t row_in_group = shape.high_throughput ? count++ : next[row.rank]++;
      const size_t place = local * data.rows_per_expert() + row_in_group;
      data.y_row(own, local, row.rank, row.token, y + place * data.combine_bytes());
    }
  }
}

std::string EpPlayer::check_out(const EpShape& shape, const Buffer& buffer) const {
  const EpRound& data = *buffer.data;
  const uint32_t tokens = data.tokens(player_.comms_.at(shape.comm).members.rank);
  const size_t bytes = data.combine_bytes();
  std::vector<uint8_t> expected(bytes);
  for (uint32_t token = 0; token < tokens; ++token) {
    data.combined_row(token, buffer.missing, expected.data());
    if (std::memcmp(expected.data(), buffer.out.data() + token * bytes, bytes) == 0) continue;
    return formatted("combined token %u of %u is wrong, missing %llx", token, tokens,
                     static_cast<unsigned long long>(buffer.missing));
  }
  for (size_t i = 0; i < 64; ++i) {
    if (buffer.out[tokens * bytes + i] != 0x5a) return "bytes behind the combined rows written";
  }
  return {};
}

}  // namespace mep::programs
