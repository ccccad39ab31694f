// The routing of a dispatch in plain loops on one host thread, for all ranks at once. Shares no code with the
// kernels or with the library's host side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace oracle {

struct Row {
  uint32_t source, token, k;
};

// The routing of all: rows of every expert of every rank in order, and the place of every entry.
struct Routing {
  std::vector<std::vector<Row>> rows;       // [places]
  std::vector<std::vector<int32_t>> place;  // [rank][token * K + k]: -1 none
  std::vector<std::vector<int64_t>> row;    // index in recv_x of its expert; -1: not sent
  std::vector<uint32_t> bad;                // [rank]
};

struct Problem {
  uint32_t ranks, max_tokens, hidden, top_k, experts, local_experts;
  bool slotted;
  std::vector<uint8_t> live;
  std::vector<uint32_t> tokens;                 // [rank]
  std::vector<std::vector<int64_t>> topk;       // [rank][T * K]
  std::vector<std::vector<uint32_t>> replicas;  // [expert] places; empty: none
};

inline Routing route(const Problem& p) {
  Routing out;
  const uint32_t places = p.ranks * p.local_experts;
  out.rows.resize(places);
  out.place.resize(p.ranks);
  out.row.resize(p.ranks);
  out.bad.assign(p.ranks, 0);
  for (uint32_t rank = 0; rank < p.ranks; ++rank) {
    const size_t entries = size_t{p.tokens[rank]} * p.top_k;
    out.place[rank].assign(entries, -1);
    out.row[rank].assign(entries, -1);
    if (!p.live[rank]) continue;
    std::vector<uint32_t> from_here(places, 0);
    for (uint32_t token = 0; token < p.tokens[rank]; ++token) {
      for (uint32_t k = 0; k < p.top_k; ++k) {
        const size_t at = size_t{token} * p.top_k + k;
        const int64_t expert = p.topk[rank][at];
        if (expert == -1) continue;
        const auto* row = p.topk[rank].data() + size_t{token} * p.top_k;
        if (expert < 0 || expert >= p.experts || std::find(row, row + k, expert) != row + k) {
          ++out.bad[rank];
          continue;
        }
        auto place = static_cast<uint32_t>(expert);
        if (!p.replicas.empty()) {
          const auto& choices = p.replicas[place];
          place = choices[(token + rank) % choices.size()];
        }
        out.place[rank][at] = static_cast<int32_t>(place);
        if (!p.live[place / p.local_experts]) continue;
        if (p.slotted) {
          out.row[rank][at] = int64_t{rank} * p.max_tokens + from_here[place]++;
        } else {
          out.row[rank][at] = static_cast<int64_t>(out.rows[place].size());
        }
        out.rows[place].push_back({rank, token, k});
      }
    }
  }
  return out;
}

}  // namespace oracle
