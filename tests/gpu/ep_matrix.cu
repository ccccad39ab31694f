// Every option of dispatch and combine against the plain reference, random shapes from seeds: all bytes of
// every output are compared, those that must not change too.
#include "ep_tests.hpp"

#include "ep_oracle.hpp"
#include "ep_rig.hpp"
#include "kernels/cuda/device/protocol.cuh"
#include "support/ep_halves.hpp"
#include "support/ep_reference.hpp"

namespace {

using namespace rig;
using mep_test::Halves;
using mep_test::if_receives;
using mep_test::if_sends;

struct Case {
  uint64_t seed;
  EpSizes sizes;
  uint32_t ctas, operations, delay;
  bool split, own_outputs, without_combine, absent, partial, bad_entries, with_map, int32_ids;
  uint32_t replicas;
};

Case draw_case(uint64_t seed) {
  RandomStream random(seed);
  Case c{};
  c.seed = seed;
  EpSizes& s = c.sizes;
  s.ranks = random.pick({1u, 2u, 4u, 8u, 8u, 3u});
  s.local_experts = random.between(1, 6);
  s.experts = s.ranks * s.local_experts;
  s.top_k = std::min(s.experts, random.pick({1u, 2u, 4u, 6u, 8u, 3u, 5u, 12u, 16u, 33u, 40u}));
  s.max_tokens = random.percent(20) ? random.between(65, 150) : random.between(1, 64);
  s.hidden = random.percent(25) ? random.pick({2048u, 4096u, 7168u}) : 16 * random.between(1, 90);
  while (uint64_t{s.local_experts} * s.ranks * s.max_tokens * s.hidden > 1'500'000) {
    s.max_tokens = (s.max_tokens + 1) / 2;
    if (s.max_tokens == 1) s.hidden = 512;
  }
  s.input_type = random.pick<uint32_t>(
      {MEP_BFLOAT16, MEP_BFLOAT16, MEP_FLOAT16, MEP_FLOAT32, MEP_FLOAT8_E4M3});
  s.wire_type = random.percent(60) ? uint32_t{MEP_FLOAT8_E4M3} : s.input_type;
  s.combine_type = random.pick<uint32_t>({MEP_BFLOAT16, MEP_BFLOAT16, MEP_FLOAT16, MEP_FLOAT32});
  s.scale_type = random.pick<uint32_t>({MEP_SCALE_FLOAT32, MEP_SCALE_UE8M0, MEP_SCALE_UE8M0_32});
  if (s.scale_type == MEP_SCALE_UE8M0_32) s.hidden = (s.hidden + 31) / 32 * 32;
  s.slotted = random.percent(35);
  s.column_major = random.percent(40);
  c.ctas = random.pick({1u, 2u, 7u, 16u});
  c.operations = random.between(2, 4);
  c.delay = random.percent(50) ? static_cast<uint32_t>(seed * 7 + 1) : 0;
  c.split = random.percent(40);
  c.own_outputs = random.percent(40);
  c.without_combine = random.percent(25);
  c.absent = s.ranks > 1 && random.percent(25);
  c.partial = random.percent(50);
  c.bad_entries = random.percent(25);
  c.int32_ids = random.percent(40);
  c.with_map = random.percent(30);
  c.replicas = 1;
  if (c.with_map) {
    s.experts = std::max(s.top_k, random.between(1, s.experts));
    c.replicas = 3;
  }
  return c;
}

// A value of ordinary size, from random bits.
uint32_t ordinary_code(uint32_t type, uint32_t bits) {
  const uint32_t sign = bits >> 31;
  const uint32_t step = bits >> 8 & 7;
  if (type == MEP_FLOAT32) return sign << 31 | (121 + step) << 23 | (bits & 0x7fffff);
  if (type == MEP_BFLOAT16) return sign << 15 | (121 + step) << 7 | (bits & 0x7f);
  if (type == MEP_FLOAT16) return sign << 15 | (9 + step) << 10 | (bits & 0x3ff);
  return sign << 7 | (3 + step) << 3 | (bits & 7);
}

// Ordinary values and zeros; in some rows any bits: large ones, denormals, NaN and infinities.
void fill_values(RandomStream& random, uint32_t type, std::vector<uint8_t>* out) {
  const size_t w = width(type);
  const bool wild = random.percent(30);
  for (size_t at = 0; at + w <= out->size(); at += w) {
    const uint64_t bits = random.bits();
    const auto any = static_cast<uint32_t>(bits >> 16);
    uint32_t code = bits % 61 == 0 ? 0 : ordinary_code(type, any);
    if (wild && bits % 8 == 0) code = any;
    std::memcpy(out->data() + at, &code, w);
  }
}

// Device memory of one rank for a case, and what its outputs must hold.
struct RankData {
  std::unique_ptr<Memory> x, x_scales, topk, weights, out, bias, y;
  std::unique_ptr<Memory> recv_x, recv_scales, src_info, recv_count, layout_range, total,
      statistics;
  std::unique_ptr<Memory> status;
  std::vector<uint8_t> host_x, host_scales, host_bias, host_y;
  std::vector<float> host_weights, combine_weights;
  std::vector<uint8_t> expect_x, expect_scales, expect_info;  // of the library's memory
  std::vector<int64_t> expect_statistics;
};

class CaseRun {
 public:
  explicit CaseRun(const Case& c)
      : c_(c), random_(c.seed * 31 + 5), group_(c.sizes, 1, c.ctas, 20'000, 1 + c.seed % 70'000) {}

  bool run() {
    prepare();
    uint64_t seq = 0;
    for (uint32_t i = 0; i < c_.operations && ok_; ++i) {
      draw_operation();
      dispatch();
      ++seq;
      check_dispatch(seq);
      if (ok_ && !(c_.without_combine && random_.percent(50))) {
        combine();
        ++seq;
        check_combine(seq);
      }
      // The device state of the test's uses stands at the edge of the tag's bits now and then.
      if (i == 0 && random_.percent(30)) jump_uses(&seq);
    }
    if (ok_ && !group_.guards_intact()) report("guard bytes", 0, 0);
    for (auto& data : data_) {
      for (const auto* memory :
           {&data.x, &data.out, &data.recv_x, &data.recv_scales, &data.src_info, &data.y}) {
        if (ok_ && *memory != nullptr && !(*memory)->guards_intact()) report("output guards", 0, 0);
      }
    }
    return ok_;
  }

 private:
  uint32_t live(uint32_t rank) const { return problem_.live[rank]; }

  void report(const char* what, uint32_t rank, size_t at) {
    const EpSizes& s = c_.sizes;
    std::printf(
        "seed %llu: %s differs on rank %u at %zu (R %u M %u H %u K %u E %u/%u types %u %u %u scale "
        "%u "
        "slotted %u column %u ctas %u split %d map %d absent %d)\n",
        static_cast<unsigned long long>(c_.seed), what, rank, at, s.ranks, s.max_tokens, s.hidden,
        s.top_k, s.experts, s.local_experts, s.input_type, s.wire_type, s.combine_type,
        s.scale_type, s.slotted, s.column_major, c_.ctas, c_.split, c_.with_map, c_.absent);
    ok_ = false;
  }

  template <class T>
  void compare(const char* what, uint32_t rank, const std::vector<uint8_t>& got,
               const std::vector<T>& expected) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(expected.data());
    const size_t count = expected.size() * sizeof(T);
    if (!ok_) return;
    if (got.size() < count) return report(what, rank, count);
    for (size_t i = 0; i < count; ++i) {
      if (got[i] != bytes[i]) return report(what, rank, i);
    }
  }

  void prepare() {
    const EpSizes& s = c_.sizes;
    problem_ = {s.ranks,
                s.max_tokens,
                s.hidden,
                s.top_k,
                s.experts,
                s.local_experts,
                s.slotted != 0,
                std::vector<uint8_t>(s.ranks, 1),
                {},
                {},
                {}};
    if (c_.absent) {
      const uint32_t gone = random_.below(s.ranks);
      problem_.live[gone] = 0;
      for (uint32_t r = 0; r < s.ranks; ++r) {
        DeviceControl& shadow = group_[r].shadow;
        shadow.live[gone / 64] &= ~(uint64_t{1} << gone % 64);
        shadow.partial_allowed = c_.partial;
        group_[r].control.set(&shadow, sizeof shadow);
      }
    }
    if (c_.with_map) draw_map();
    data_.resize(s.ranks);
    const EpGeometry& g = group_[0].g;
    stride_ = g.input_row + 16 * random_.below(3);
    out_stride_ = g.combine_row + 16 * random_.below(3);
    for (uint32_t r = 0; r < s.ranks; ++r) {
      RankData& d = data_[r];
      const size_t rows = size_t{s.local_experts} * g.rows_per_expert;
      d.expect_x.assign(rows * g.wire_row, kPoison);
      d.expect_info.assign(rows * 4, kPoison);
      d.expect_scales.assign(g.recv_x - g.scales, kPoison);
      d.expect_statistics.assign(s.local_experts, 5);
      const size_t entries = std::max<size_t>(1, size_t{s.max_tokens} * s.top_k);
      d.x = std::make_unique<Memory>(stride_ * s.max_tokens, 0x11);
      d.x_scales =
          std::make_unique<Memory>(size_t{std::max(1u, g.groups)} * 4 * s.max_tokens, 0x11);
      d.topk = std::make_unique<Memory>(entries * 8);
      d.weights = std::make_unique<Memory>(entries * 4);
      d.out = std::make_unique<Memory>(out_stride_ * s.max_tokens, kPoison);
      d.bias = std::make_unique<Memory>(g.combine_row);
      d.y = std::make_unique<Memory>(rows * g.combine_row);
      d.recv_count = std::make_unique<Memory>(s.local_experts * 4);
      d.layout_range = std::make_unique<Memory>(size_t{g.places} * 8);
      d.total = std::make_unique<Memory>(8);
      d.statistics = std::make_unique<Memory>(s.local_experts * 8);
      d.statistics->set(d.expect_statistics.data(), s.local_experts * 8);
      d.status = std::make_unique<Memory>(sizeof(OpStatus));
      if (c_.own_outputs) {
        d.recv_x = std::make_unique<Memory>(d.expect_x.size(), kPoison);
        d.recv_scales = std::make_unique<Memory>(d.expect_scales.size(), kPoison);
        d.src_info = std::make_unique<Memory>(d.expect_info.size(), kPoison);
      }
    }
    GPU_OK(cudaDeviceSynchronize());
  }

  void draw_map() {
    const EpSizes& s = c_.sizes;
    const uint32_t places = s.ranks * s.local_experts;
    std::vector<uint32_t> order(places);
    for (uint32_t i = 0; i < places; ++i) order[i] = i;
    for (uint32_t i = places; i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    problem_.replicas.resize(s.experts);
    uint32_t next = 0;
    for (auto& list : problem_.replicas) list.push_back(order[next++]);
    for (auto& list : problem_.replicas) {
      while (next < places && list.size() < c_.replicas && random_.percent(50)) {
        list.push_back(order[next++]);
      }
    }
    std::vector<uint32_t> first{0};
    std::vector<uint32_t> all;
    for (const auto& list : problem_.replicas) {
      all.insert(all.end(), list.begin(), list.end());
      first.push_back(static_cast<uint32_t>(all.size()));
    }
    map_first_ = std::make_unique<Memory>(first.size() * 4);
    map_places_ = std::make_unique<Memory>(all.size() * 4);
    map_first_->set(first.data(), first.size() * 4);
    map_places_->set(all.data(), all.size() * 4);
  }

  void draw_operation() {
    const EpSizes& s = c_.sizes;
    const EpGeometry& g = group_[0].g;
    problem_.tokens.assign(s.ranks, 0);
    problem_.topk.assign(s.ranks, {});
    has_weights_ = random_.percent(60);
    const bool skewed = random_.percent(30);
    for (uint32_t r = 0; r < s.ranks; ++r) {
      RankData& d = data_[r];
      const uint32_t tokens = random_.percent(15) ? 0 : random_.between(0, s.max_tokens);
      problem_.tokens[r] = tokens;
      draw_topk(r, tokens, skewed);
      d.host_x.assign(stride_ * tokens, 0x11);
      fill_values(random_, s.input_type, &d.host_x);
      d.x->set(d.host_x.data(), d.host_x.size());
      d.host_scales.resize(size_t{g.groups} * g.scale_bytes * tokens);
      for (uint8_t& byte : d.host_scales) byte = static_cast<uint8_t>(random_.below(120));
      d.x_scales->set(d.host_scales.data(), d.host_scales.size());
      d.host_weights.resize(size_t{tokens} * s.top_k);
      for (float& weight : d.host_weights) weight = static_cast<float>(random_.below(2000)) / 1999;
      d.weights->set(d.host_weights.data(), d.host_weights.size() * 4);
    }
    routing_ = oracle::route(problem_);
  }

  void draw_topk(uint32_t r, uint32_t tokens, bool skewed) {
    const EpSizes& s = c_.sizes;
    std::vector<int64_t>& topk = problem_.topk[r];
    for (uint32_t token = 0; token < tokens; ++token) {
      std::vector<uint32_t> choices(s.experts);
      for (uint32_t e = 0; e < s.experts; ++e) choices[e] = e;
      for (uint32_t k = 0; k < s.top_k; ++k) {
        const uint32_t bound = static_cast<uint32_t>(choices.size()) - k;
        std::swap(choices[k], choices[k + (skewed ? 0 : random_.below(bound))]);
        int64_t id = random_.percent(10) ? int64_t{-1} : int64_t{choices[k]};
        if (c_.bad_entries && random_.percent(5)) {
          id = random_.pick<int64_t>({-2, int64_t{s.experts}, 1'000'000, choices[0]});
        }
        topk.push_back(id);
      }
    }
    if (c_.int32_ids) {
      std::vector<int32_t> narrow(topk.begin(), topk.end());
      data_[r].topk->set(narrow.data(), narrow.size() * 4);
    } else {
      data_[r].topk->set(topk.data(), topk.size() * 8);
    }
  }

  EpLaunch launch(uint32_t r) {
    EpLaunch out = group_.launch(r, 0, c_.delay);
    if (c_.with_map) {
      out.memory.map_first = map_first_->as<uint32_t>();
      out.memory.map_places = map_places_->as<uint32_t>();
    }
    return out;
  }

  // Each rank's calls in order; ranks in random order, split phases interleaved.
  template <class Call>
  void on_ranks(Call&& call) {
    const bool split = c_.split && random_.percent(70);
    for (const Halves half : {Halves::kSend, Halves::kReceive}) {
      const uint32_t start = random_.below(c_.sizes.ranks);
      for (uint32_t i = 0; i < c_.sizes.ranks; ++i) {
        const uint32_t r = (start + i) % c_.sizes.ranks;
        if (live(r)) GPU_OK(call(r, split ? half : Halves::kBoth));
      }
      if (!split) break;
    }
    GPU_OK(cudaDeviceSynchronize());
  }

  void dispatch() {
    on_ranks([&](uint32_t r, Halves halves) {
      RankData& d = data_[r];
      mep::DispatchInput send{};
      send.num_tokens = problem_.tokens[r];
      send.x = d.x->data();
      send.x_stride_bytes = stride_;
      if (mep_reference::has_scales(c_.sizes.input_type)) send.x_scales = d.x_scales->data();
      send.topk_idx = d.topk->data();
      send.topk_idx_type = c_.int32_ids ? MEP_INT32 : MEP_INT64;
      send.topk_weights = has_weights_ ? d.weights->as<float>() : nullptr;
      mep::DispatchOutput args{};
      if (c_.own_outputs) {
        args.recv_x = d.recv_x->data();
        args.recv_scales =
            mep_reference::has_scales(c_.sizes.wire_type) ? d.recv_scales->data() : nullptr;
        args.src_info = d.src_info->as<int32_t>();
      }
      args.recv_count = d.recv_count->as<int32_t>();
      args.layout_range = d.layout_range->as<mep_range_t>();
      args.recv_total = d.total->as<int64_t>();
      args.statistics = d.statistics->as<int64_t>();
      args.op_status = d.status->as<mep_op_status_t>();
      args.op_status_bytes = d.status->bytes();
      return ep_dispatch(launch(r), if_sends(halves, send), if_receives(halves, args),
                         group_[r].streams[0]);
    });
  }

  void check_status(uint32_t r, uint64_t seq, mep_result_t result, uint32_t bad) {
    mep_op_status_t status{};
    std::memcpy(&status, data_[r].status->get().data(), sizeof status);
    uint32_t gone = 0;
    for (const uint8_t one : problem_.live) gone += one == 0;
    if (status.version != MEP_OP_STATUS_VERSION || status.result != result || status.seq != seq ||
        status.epoch != group_[r].shadow.epoch || status.failed_count != gone ||
        status.bad_entries != bad) {
      if (ok_) {
        std::printf("op_status: result %d (%d wanted) seq %llu (%llu) failed %u (%u) bad %u (%u)\n",
                    status.result, result, static_cast<unsigned long long>(status.seq),
                    static_cast<unsigned long long>(seq), status.failed_count, gone,
                    status.bad_entries, bad);
        report("op_status", r, 0);
      }
    }
  }

  void expect_row(uint32_t r, uint32_t local, size_t index, const oracle::Row& row) {
    const EpSizes& s = c_.sizes;
    const EpGeometry& g = group_[0].g;
    RankData& d = data_[r];
    const uint8_t* x = data_[row.source].host_x.data() + row.token * stride_;
    uint8_t* to = d.expect_x.data() + (size_t{local} * g.rows_per_expert + index) * g.wire_row;
    std::memcpy(d.expect_info.data() + (size_t{local} * g.rows_per_expert + index) * 4, &row.token,
                4);
    std::vector<uint8_t> scales(size_t{g.groups} * g.scale_bytes);
    if (s.wire_type == s.input_type) {
      std::memcpy(to, x, g.wire_row);
      std::memcpy(scales.data(), data_[row.source].host_scales.data() + row.token * scales.size(),
                  scales.size());
    } else {
      mep_reference::quantize(s.input_type, x, s.hidden, s.wire_type, s.scale_type, to,
                              scales.data());
    }
    const size_t unit = g.scale_bytes;
    const size_t pitch = (g.rows_per_expert * unit + 15) / 16 * 16 / std::max<size_t>(1, unit);
    for (size_t group = 0; group < g.groups; ++group) {
      const size_t at = s.column_major != 0
                            ? (local * g.groups + group) * pitch + index
                            : (local * size_t{g.rows_per_expert} + index) * g.groups + group;
      std::memcpy(d.expect_scales.data() + at * unit, scales.data() + group * unit, unit);
    }
  }

  void check_dispatch(uint64_t seq) {
    const EpSizes& s = c_.sizes;
    const EpGeometry& g = group_[0].g;
    for (uint32_t r = 0; r < s.ranks && ok_; ++r) {
      if (!live(r)) continue;
      RankData& d = data_[r];
      std::vector<int32_t> counts;
      std::vector<int64_t> ranges;
      int64_t total = 0;
      for (uint32_t local = 0; local < s.local_experts; ++local) {
        const auto& rows = routing_.rows[r * s.local_experts + local];
        std::vector<uint32_t> by_source(s.ranks, 0);
        for (size_t i = 0; i < rows.size(); ++i) {
          const uint32_t source = rows[i].source;
          const size_t index =
              s.slotted != 0 ? size_t{source} * s.max_tokens + by_source[source] : i;
          ++by_source[source];
          expect_row(r, local, index, rows[i]);
        }
        uint64_t begin = 0;
        for (uint32_t source = 0; source < s.ranks; ++source) {
          if (s.slotted != 0) begin = uint64_t{source} * s.max_tokens;
          ranges.push_back(static_cast<int64_t>(begin << 32 | by_source[source]));
          begin += by_source[source];
        }
        counts.push_back(static_cast<int32_t>(rows.size()));
        total += static_cast<int64_t>(rows.size());
        d.expect_statistics[local] += counts.back();
      }
      compare("recv_count", r, d.recv_count->get(), counts);
      compare("layout_range", r, d.layout_range->get(), ranges);
      compare("recv_total", r, d.total->get(), std::vector<int64_t>{total});
      compare("statistics", r, d.statistics->get(), d.expect_statistics);
      const std::vector<uint8_t> window = group_[r].buffers[0]->window.get();
      const auto part = [&](uint64_t from, size_t bytes) {
        return std::vector<uint8_t>(window.begin() + from, window.begin() + from + bytes);
      };
      compare("recv_x", r, part(g.recv_x, d.expect_x.size()), d.expect_x);
      compare("src_info", r, part(g.src_info, d.expect_info.size()), d.expect_info);
      compare("recv_scales", r, part(g.scales, d.expect_scales.size()), d.expect_scales);
      if (c_.own_outputs) {
        compare("own recv_x", r, d.recv_x->get(), d.expect_x);
        compare("own src_info", r, d.src_info->get(), d.expect_info);
        if (g.groups != 0) compare("own recv_scales", r, d.recv_scales->get(), d.expect_scales);
      }
      check_status(r, seq, MEP_SUCCESS, routing_.bad[r]);
    }
  }

  void combine() {
    const EpGeometry& g = group_[0].g;
    own_y_ = random_.percent(35);
    push_ = random_.percent(40);
    use_bias_ = random_.percent(40);
    renormalize_ = random_.percent(60);
    new_weights_ = random_.percent(40);
    for (uint32_t r = 0; r < c_.sizes.ranks; ++r) {
      RankData& d = data_[r];
      d.host_y.assign(d.y->bytes(), 0);
      fill_values(random_, c_.sizes.combine_type, &d.host_y);
      d.host_bias.assign(g.combine_row, 0);
      fill_values(random_, c_.sizes.combine_type, &d.host_bias);
      d.bias->set(d.host_bias.data(), d.host_bias.size());
      const std::byte* to = group_[r].buffers[0]->window.data() + g.combine_out;
      if (own_y_) {
        d.y->set(d.host_y.data(), d.host_y.size());
      } else {
        GPU_OK(cudaMemcpy(const_cast<std::byte*>(to), d.host_y.data(), d.host_y.size(),
                          cudaMemcpyHostToDevice));
      }
      d.combine_weights = d.host_weights;
      if (new_weights_) {
        for (float& weight : d.combine_weights)
          weight = static_cast<float>(random_.below(999)) / 500;
        d.weights->set(d.combine_weights.data(), d.combine_weights.size() * 4);
      } else if (!has_weights_) {
        std::fill(d.combine_weights.begin(), d.combine_weights.end(), 1.0f);
      }
      GPU_OK(cudaMemset(d.out->data(), kPoison, d.out->bytes()));
    }
    GPU_OK(cudaDeviceSynchronize());
    on_ranks([&](uint32_t r, Halves halves) {
      RankData& d = data_[r];
      const EpLaunch to = launch(r);
      mep::CombineInput send{};
      send.y = own_y_ ? d.y->data() : to.memory.window + to.geometry.combine_out;
      mep::CombineOutput args{};
      args.flags = renormalize_ ? MEP_COMBINE_RENORMALIZE : 0;
      args.weights = new_weights_ ? d.weights->as<float>() : nullptr;
      args.bias = use_bias_ ? d.bias->data() : nullptr;
      args.out = d.out->data();
      args.out_stride_bytes = out_stride_;
      args.op_status = d.status->as<mep_op_status_t>();
      args.op_status_bytes = d.status->bytes();
      return ep_combine(to, if_sends(halves, send), if_receives(halves, args), push_,
                        group_[r].streams[0]);
    });
  }

  void check_combine(uint64_t seq) {
    const EpSizes& s = c_.sizes;
    const EpGeometry& g = group_[0].g;
    for (uint32_t r = 0; r < s.ranks && ok_; ++r) {
      if (!live(r)) continue;
      RankData& d = data_[r];
      std::vector<uint8_t> expected(d.out->bytes(), kPoison);
      bool missing = false;
      for (uint32_t token = 0; token < problem_.tokens[r]; ++token) {
        std::vector<std::pair<const uint8_t*, float>> terms;
        float all = 0, present = 0;
        bool token_missing = false;
        for (uint32_t k = 0; k < s.top_k; ++k) {
          const size_t at = size_t{token} * s.top_k + k;
          const int32_t place = routing_.place[r][at];
          if (place < 0) continue;
          const float weight = d.combine_weights[at];
          all += weight;
          const int64_t row = routing_.row[r][at];
          if (row < 0) {
            token_missing = true;
            continue;
          }
          present += weight;
          const uint32_t owner = static_cast<uint32_t>(place) / s.local_experts;
          const uint32_t local = static_cast<uint32_t>(place) % s.local_experts;
          const size_t index = size_t{local} * g.rows_per_expert + static_cast<size_t>(row);
          terms.emplace_back(data_[owner].host_y.data() + index * g.combine_row, weight);
        }
        missing = missing || token_missing;
        if (token_missing && renormalize_ && present != 0) {
          const float factor = all / present;
          for (auto& term : terms) term.second *= factor;
        }
        if (use_bias_) terms.emplace_back(d.host_bias.data(), 1.0f);
        mep_reference::RowSum sum(s.combine_type, s.hidden);
        for (const auto& [y, weight] : terms) sum.add(y, weight);
        sum.store_to(expected.data() + token * out_stride_);
      }
      compare("combined rows", r, d.out->get(), expected);
      const mep_result_t result = !missing     ? MEP_SUCCESS
                                  : c_.partial ? MEP_PARTIAL
                                               : MEP_ERR_PEER_FAILED;
      check_status(r, seq, result, 0);
    }
  }

  // All ranks alike, between operations, as after so many uses.
  void jump_uses(uint64_t* seq) {
    const uint64_t use = (uint64_t{1} << 24) - 2 + random_.below(2);
    *seq = (uint64_t{1} << 40) + 3;
    for (uint32_t r = 0; r < c_.sizes.ranks; ++r) {
      EpState state = group_[r].buffers[0]->state();
      // Words of the use before are what a real buffer would have.
      state.channel.use = use;
      state.channel.seq = *seq;
      state.credited = 1;
      state.counted = 0;
      group_[r].buffers[0]->local.set(&state, sizeof state);
      GPU_OK(cudaMemset(group_[r].buffers[0]->window.data(), 0, group_[r].g.words_end));
      const uint64_t tag = mep::signal_tag(group_[r].shadow.epoch, use);
      const EpGeometry& g = group_[r].g;
      for (uint32_t source = 0; source < c_.sizes.ranks; ++source) {
        const uint64_t at = g.combine_ready + (use % 2 * c_.sizes.ranks + source) * 8;
        GPU_OK(
            cudaMemcpy(group_[r].buffers[0]->window.data() + at, &tag, 8, cudaMemcpyHostToDevice));
      }
    }
    GPU_OK(cudaDeviceSynchronize());
  }

  Case c_;
  RandomStream random_;
  Group group_;
  oracle::Problem problem_;
  oracle::Routing routing_;
  std::vector<RankData> data_;
  std::unique_ptr<Memory> map_first_, map_places_;
  size_t stride_ = 0, out_stride_ = 0;
  bool ok_ = true;
  bool has_weights_ = false, own_y_ = false, push_ = false, use_bias_ = false, renormalize_ = false,
       new_weights_ = false;
};

}  // namespace

TestResult run_matrix(uint64_t first_seed, double seconds) {
  TestResult result{"options and shapes", 0, 0, ""};
  const Clock clock;
  for (uint64_t seed = first_seed; clock.seconds() < seconds; ++seed) {
    CaseRun run(draw_case(seed));
    ++result.cases;
    if (!run.run() && ++result.failures > 5) break;
  }
  return result;
}
