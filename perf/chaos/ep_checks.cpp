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
  const size_t rows = data.groups() * data.rows_per_expert();
  buffer->x.here.assign(tokens * data.input_bytes() + 1, 0);
  for (uint32_t token = 0; token < tokens; ++token) {
    data.x_row(rank, token, buffer->x.here.data() + token * data.input_bytes());
  }
  if (player_.lies("data") && tokens != 0) buffer->x.here[data.input_bytes() / 2] ^= 1;
  buffer->routing.here = data.routing(rank);
  buffer->weights.here = data.weights(rank);
  buffer->out.here.assign(tokens * data.combine_bytes() + 64, 0x5a);
  buffer->total.here.assign(1, -1);
  const bool on_gpu = player_.device_ != nullptr;
  if (shape.own_memory || on_gpu) {
    buffer->recv_x.here.assign(rows * data.input_bytes(), 0x5a);
    buffer->y.here.assign(rows * data.combine_bytes(), 0x5a);
    buffer->recv_count.here.assign(shape.local_experts, -1);
    buffer->src_info.here.assign(rows, -1);
    buffer->layout_range.here.assign(shape.local_experts * ranks, {-1, -1});
  }
  if (on_gpu) put_on_device(shape, buffer);
}

void EpPlayer::put_on_device(const EpShape& shape, Buffer* buffer) const {
  Device* const device = player_.device_.get();
  buffer->status.here.assign(1, {});
  buffer->x.put_on(device);
  buffer->routing.put_on(device);
  buffer->weights.put_on(device);
  buffer->out.put_on(device);
  buffer->total.put_on(device);
  buffer->status.put_on(device);
  if (!shape.own_memory) return;
  buffer->recv_x.put_on(device);
  buffer->y.put_on(device);
  buffer->recv_count.put_on(device);
  buffer->src_info.put_on(device);
  buffer->layout_range.put_on(device);
}

// The rows of a dispatch, to where the checks read them.
void EpPlayer::take_rows(const EpShape& shape, Buffer* buffer) const {
  const bool own = shape.own_memory;
  Device* const device = player_.device_.get();
  const auto seen = [&](auto* array, const auto* from) {
    if (device == nullptr) return from;
    array->fetch(device, from);
    return static_cast<decltype(from)>(array->here.data());
  };
  mep_ep_view_t& view = buffer->view;
  buffer->seen = view;
  buffer->seen.recv_x =
      seen(&buffer->recv_x, own ? buffer->recv_x.get() : static_cast<const uint8_t*>(view.recv_x));
  buffer->seen.recv_count =
      seen(&buffer->recv_count, own ? buffer->recv_count.get() : view.recv_count);
  buffer->seen.src_info = seen(&buffer->src_info, own ? buffer->src_info.get() : view.src_info);
  if (!shape.high_throughput) {
    buffer->seen.layout_range =
        seen(&buffer->layout_range, own ? buffer->layout_range.get() : view.layout_range);
    return;
  }
  const size_t values = buffer->data->rows_per_expert() * shape.top_k;
  buffer->topk_idx.here.resize(values);
  buffer->topk_weights.here.resize(values);
  buffer->seen.recv_topk_idx = seen(&buffer->topk_idx, view.recv_topk_idx);
  buffer->seen.recv_topk_weights = seen(&buffer->topk_weights, view.recv_topk_weights);
  if (device != nullptr) buffer->total.fetch(device, buffer->total.there);
}

// The place of the next row of `rank` at a local expert.
size_t EpPlayer::first_row(const EpShape& shape, const Buffer& buffer, uint32_t local,
                           uint32_t rank) const {
  const size_t ranks = player_.comms_.at(shape.comm).members.slots.size();
  return static_cast<size_t>(buffer.seen.layout_range[local * ranks + rank].begin);
}

std::string EpPlayer::check_rows(const EpShape& shape, const Buffer& buffer, bool complete) const {
  const EpRound& data = *buffer.data;
  const auto ranks = static_cast<uint32_t>(player_.comms_.at(shape.comm).members.slots.size());
  if (shape.high_throughput) return check_tokens(shape, buffer);
  const int32_t* counts = buffer.seen.recv_count;
  const mep_range_t* ranges = buffer.seen.layout_range;
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
        const std::string wrong =
            check_row(buffer, local * data.rows_per_expert() + said_begin + i, rows[next + i]);
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
  if (buffer.total.here[0] != static_cast<int64_t>(rows.size())) {
    return formatted("%lld rows, not %zu, missing %llx",
                     static_cast<long long>(buffer.total.here[0]), rows.size(),
                     static_cast<unsigned long long>(buffer.missing));
  }
  const int64_t first = int64_t{player_.comms_.at(shape.comm).members.rank} * shape.local_experts;
  std::vector<int32_t> counts(shape.local_experts, 0);
  for (size_t place = 0; place < rows.size(); ++place) {
    std::string wrong = check_row(buffer, place, rows[place]);
    if (!wrong.empty()) return wrong;
    const std::vector<int64_t> experts = data.routing(rows[place].rank);
    const std::vector<float> weights = data.weights(rows[place].rank);
    for (uint32_t k = 0; k < shape.top_k; ++k) {
      const size_t at = size_t{rows[place].token} * shape.top_k + k;
      const int64_t local = experts[at] - first;
      const bool is_here = local >= 0 && local < shape.local_experts;
      const int32_t said = buffer.seen.recv_topk_idx[place * shape.top_k + k];
      if (said != (is_here ? static_cast<int32_t>(local) : -1)) {
        return formatted("expert %u of row %zu is %d, not %lld", k, place, said,
                         static_cast<long long>(local));
      }
      if (!is_here) continue;
      ++counts[static_cast<size_t>(local)];
      if (buffer.seen.recv_topk_weights[place * shape.top_k + k] != weights[at]) {
        return formatted("weight %u of row %zu is another", k, place);
      }
    }
  }
  for (uint32_t local = 0; local < shape.local_experts; ++local) {
    if (buffer.seen.recv_count[local] == counts[local]) continue;
    return formatted("expert %u has %d rows, not %d", local, buffer.seen.recv_count[local],
                     counts[local]);
  }
  return {};
}

std::string EpPlayer::check_row(const Buffer& buffer, size_t place, const Arrival& row) const {
  const EpRound& data = *buffer.data;
  std::vector<uint8_t> expected(data.input_bytes());
  data.x_row(row.rank, row.token, expected.data());
  const auto* const x = static_cast<const uint8_t*>(buffer.seen.recv_x);
  const int32_t* const infos = buffer.seen.src_info;
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
  Device* const device = player_.device_.get();
  auto* const input = static_cast<uint8_t*>(buffer->view.combine_input);
  uint8_t* const y = shape.own_memory || device != nullptr ? buffer->y.here.data() : input;
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
  if (device == nullptr) return;
  device->upload(shape.own_memory ? buffer->y.there : input, y, buffer->y.here.size());
}

std::string EpPlayer::check_out(const EpShape& shape, const Buffer& buffer) const {
  const EpRound& data = *buffer.data;
  const uint32_t tokens = data.tokens(player_.comms_.at(shape.comm).members.rank);
  const size_t bytes = data.combine_bytes();
  std::vector<uint8_t> expected(bytes);
  for (uint32_t token = 0; token < tokens; ++token) {
    data.combined_row(token, buffer.missing, expected.data());
    if (std::memcmp(expected.data(), buffer.out.here.data() + token * bytes, bytes) == 0) continue;
    return formatted("combined token %u of %u is wrong, missing %llx", token, tokens,
                     static_cast<unsigned long long>(buffer.missing));
  }
  for (size_t i = 0; i < 64; ++i) {
    if (buffer.out.here[tokens * bytes + i] != 0x5a)
      return "bytes behind the combined rows written";
  }
  return {};
}

}  // namespace mep::programs
