// The host's half of staged dispatch and combine. This test copies as the kernels do, in words of its own; the
// same calls on an EP object of the host say what must come out, byte by byte.
// labels: quick threads asan
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "core/api/api_guard.hpp"
#include "core/staged/stage_server.hpp"
#include "core/staged/staged_ep_calls.hpp"
#include "support/coll_ranks.hpp"
#include "support/fake_stage.hpp"

using namespace mep_test;
using mep::device::StageAnswer;
using mep::device::StageKind;
using mep::device::StageMailbox;
using mep::device::StageRequest;

namespace {

constexpr uint32_t kTokens = 12;
constexpr uint32_t kHidden = 256;
constexpr uint32_t kTopK = 3;
constexpr uint32_t kLocalExperts = 2;
constexpr uint8_t kPoison = 0xa5;

struct Case {
  bool fp8 = false;
  bool slotted = false;
  bool apart = false;  // phases
  bool int32_ids = false;
};

mep_ep_config_t ep_config(const Case& c, int ranks) {
  mep_ep_config_t config;
  mep_ep_config_defaults(&config);
  config.max_tokens_per_rank = kTokens;
  config.hidden = kHidden;
  config.top_k = kTopK;
  config.num_experts = static_cast<uint32_t>(ranks) * kLocalExperts;
  config.experts_per_rank = kLocalExperts;
  config.wire_type = c.fp8 ? MEP_FLOAT8_E4M3 : MEP_BFLOAT16;
  config.receive_layout = c.slotted ? MEP_EP_SLOTTED : MEP_EP_PACKED;
  return config;
}

struct Input {
  uint32_t tokens = 0;
  std::vector<uint16_t> x;
  std::vector<int64_t> experts;  // as given, bad ones too
  std::vector<int64_t> clean;
  std::vector<float> weights;
  uint32_t bad = 0;
};

uint16_t bf16(int value) {
  const auto wide = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &wide, 4);
  return static_cast<uint16_t>(bits >> 16);
}

// named: experts of the first so many ranks.
Input draw(uint64_t seed, int named) {
  std::mt19937_64 random(seed);
  Input in;
  in.tokens = static_cast<uint32_t>(random() % (kTokens + 1));
  for (uint32_t i = 0; i < kTokens * kHidden; ++i) {
    in.x.push_back(bf16(static_cast<int>(random() % 255) - 127));
  }
  const auto experts = static_cast<int64_t>(named) * kLocalExperts;
  for (uint32_t token = 0; token < kTokens; ++token) {
    const auto first = static_cast<int64_t>(random() % 1000);
    for (uint32_t k = 0; k < kTopK; ++k) {
      int64_t expert = (first + k) % experts;
      int64_t clean = expert;
      const bool counts = token < in.tokens;
      switch (random() % 12) {
        case 0:
          expert = clean = -1;
          break;
        case 1:
          expert = 1'000'000;
          clean = -1;
          in.bad += counts ? 1 : 0;
          break;
        case 2:
          if (k == 0 || in.clean.back() < 0) break;
          expert = in.clean.back();  // twice in a token
          clean = -1;
          in.bad += counts ? 1 : 0;
          break;
        default:
          break;
      }
      in.experts.push_back(expert);
      in.clean.push_back(clean);
      in.weights.push_back(static_cast<float>(random() % 997) / 64);
    }
  }
  // An entry that was made the double of another may have left its own expert to a later double.
  for (uint32_t token = 0; token < kTokens; ++token) {
    for (uint32_t k = 1; k < kTopK; ++k) {
      const size_t at = token * kTopK + k;
      for (size_t earlier = token * kTopK; earlier < at; ++earlier) {
        if (in.clean[at] < 0 || in.clean[at] != in.clean[earlier]) continue;
        in.clean[at] = -1;
        in.bad += token < in.tokens ? 1 : 0;
      }
    }
  }
  return in;
}

struct Output {
  std::vector<uint8_t> recv_x, scales, out;
  std::vector<int32_t> src_info, counts;
  std::vector<int64_t> ranges;
  int64_t total = 0;
  Output(const Case& c, int ranks)
      : recv_x(rows(ranks) * kHidden * (c.fp8 ? 1 : 2), kPoison),
        scales(c.fp8 ? rows(ranks) * kHidden / 128 * 4 : 0, kPoison),
        out(kTokens * kHidden * 2, kPoison),
        src_info(rows(ranks), -77),
        counts(kLocalExperts, -77),
        ranges(kLocalExperts * static_cast<size_t>(ranks), -77) {}
  static size_t rows(int ranks) { return kLocalExperts * static_cast<size_t>(ranks) * kTokens; }
  bool operator==(const Output&) const = default;
};

// The expert's output for each row that came.
std::vector<uint16_t> make_y(const Output& got, int ranks, uint64_t seed) {
  std::vector<uint16_t> y(Output::rows(ranks) * kHidden, 0);
  for (size_t i = 0; i < got.ranges.size(); ++i) {
    const auto range = static_cast<uint64_t>(got.ranges[i]);
    for (uint64_t n = range >> 32; n < (range >> 32) + (range & 0xffffffff); ++n) {
      const size_t row = i / static_cast<size_t>(ranks) * static_cast<size_t>(ranks) * kTokens + n;
      std::mt19937 random(static_cast<uint32_t>(seed + row));
      for (uint32_t h = 0; h < kHidden; ++h) {
        y[row * kHidden + h] = bf16(static_cast<int>(random() % 127) - 63);
      }
    }
  }
  return y;
}

// --- The oracle: an EP object of the host -----------------------------------------------------------

void on_host(mep_ep_t ep, const Case& c, const Input& in, int ranks, uint64_t seed, Output* got,
             Report& findings) {
  mep_ep_handle_t handle = nullptr;
  COLL_OK(findings, mep_ep_handle_create(ep, 0, &handle));
  mep_dispatch_send_t send;
  mep_dispatch_send_defaults(&send);
  send.num_tokens = in.tokens;
  send.x = in.x.data();
  send.topk_idx = in.clean.data();
  send.topk_weights = in.weights.data();
  mep_dispatch_receive_t args;
  mep_dispatch_receive_defaults(&args);
  args.recv_x = got->recv_x.data();
  args.recv_scales = c.fp8 ? got->scales.data() : nullptr;
  args.src_info = got->src_info.data();
  args.recv_count = got->counts.data();
  args.layout_range = got->ranges.data();
  args.recv_total = &got->total;
  COLL_OK(findings, mep_dispatch(handle, &send, &args, nullptr));
  const std::vector<uint16_t> y = make_y(*got, ranks, seed);
  mep_combine_send_t terms;
  mep_combine_receive_t sums;
  mep_combine_send_defaults(&terms);
  mep_combine_receive_defaults(&sums);
  terms.y = y.data();
  sums.out = got->out.data();
  COLL_OK(findings, mep_combine(handle, &terms, &sums, nullptr));
  COLL_OK(findings, mep_ep_handle_destroy(handle));
}

// --- Staged -----------------------------------------------------------------------------------------

class FakeStagedEp {
 public:
  FakeStagedEp(mep_comm_t comm, const Case& c, int ranks)
      : case_(c), ranks_(ranks), box_(std::make_unique<StageMailbox>()), kernel_(box_.get()) {
    const mep_ep_config_t config = ep_config(c, ranks);
    mep::EpShape shape;
    opened = mep::resolve_ep_config(*comm->comm, config, &shape, true);
    if (opened == MEP_SUCCESS) {
      object_ = std::make_unique<mep::EpObject>(*comm->comm, shape);
      opened = object_->open(nullptr);
    }
    if (opened != MEP_SUCCESS) return;
    const mep::StagedEpLayout layout = mep::make_staged_ep_layout(shape);
    staging_.resize(layout.bytes + 256);
    memory_ = mep::staged_ep_memory(layout, staging_.data());
    served_ = std::make_unique<mep::StagedEpCalls>(*comm->comm, *object_, 0, memory_);
    opened =
        server.open(box_.get(), "a test", [this](const StageRequest& request, StageAnswer* answer) {
          return served_->serve(request, answer);
        });
    server.set_timeout_ms(60'000);
  }

  StageAnswer dispatch(const Input& in, Output* got, uint64_t capacity = 0) {
    std::memcpy(memory_.x, in.x.data(), size_t{in.tokens} * kHidden * 2);
    std::memcpy(memory_.weights, in.weights.data(), size_t{in.tokens} * kTopK * 4);
    for (size_t i = 0; i < size_t{in.tokens} * kTopK; ++i) {
      if (case_.int32_ids) {
        reinterpret_cast<int32_t*>(memory_.topk_idx)[i] = static_cast<int32_t>(in.experts[i]);
      } else {
        reinterpret_cast<int64_t*>(memory_.topk_idx)[i] = in.experts[i];
      }
    }
    StageRequest request = make_request(StageKind::kDispatch);
    request.ep.tokens = in.tokens;
    request.ep.idx_type = case_.int32_ids ? MEP_INT32 : MEP_INT64;
    request.ep.given = mep::device::kStageWeights | mep::device::kStageRecvX;
    request.ep.capacity = capacity;
    const StageAnswer answer = run(request);
    if (answer.delivers == 0) {
      std::fill(got->counts.begin(), got->counts.end(), 0);
      std::fill(got->ranges.begin(), got->ranges.end(), 0);
      return answer;
    }
    got->total = answer.total;
    std::copy_n(memory_.recv_count, got->counts.size(), got->counts.begin());
    std::copy_n(memory_.layout_range, got->ranges.size(), got->ranges.begin());
    const size_t row_bytes = kHidden * (case_.fp8 ? 1 : 2);
    const size_t scale_bytes = case_.fp8 ? kHidden / 128 * 4 : 0;
    each_row(*got, [&](size_t row, size_t place) {
      std::memcpy(got->recv_x.data() + row * row_bytes, memory_.rows + place * row_bytes,
                  row_bytes);
      if (scale_bytes != 0) {
        std::memcpy(got->scales.data() + row * scale_bytes, memory_.scales + place * scale_bytes,
                    scale_bytes);
      }
      got->src_info[row] = memory_.src_info[place];
    });
    return answer;
  }

  StageAnswer combine(const std::vector<uint16_t>& y, Output* got) {
    each_row(*got, [&](size_t row, size_t place) {
      std::memcpy(memory_.rows + place * kHidden * 2, y.data() + row * kHidden, kHidden * 2);
    });
    const StageAnswer answer = run(make_request(StageKind::kCombine));
    if (answer.delivers != 0) {
      std::memcpy(got->out.data(), memory_.out, size_t{answer.tokens} * kHidden * 2);
    }
    return answer;
  }

  mep_result_t opened = MEP_SUCCESS;

 private:
  StageRequest make_request(StageKind kind) {
    StageRequest request{};
    request.kind = kind;
    request.ep = {};
    request.ep.handle = reinterpret_cast<uint64_t>(&handle_);
    return request;
  }
  StageAnswer run(StageRequest request) {
    request.ep.sends = 1;
    request.ep.receives = case_.apart ? 0 : 1;
    StageAnswer answer = kernel_.exchange(request);
    if (!case_.apart) return answer;
    request.ep.sends = 0;
    request.ep.receives = 1;
    return kernel_.exchange(request);
  }
  template <class Visit>
  void each_row(const Output& got, Visit&& visit) const {
    size_t place = 0;
    for (size_t i = 0; i < got.ranges.size(); ++i) {
      const auto range = static_cast<uint64_t>(got.ranges[i]);
      const size_t first = i / static_cast<size_t>(ranks_) * static_cast<size_t>(ranks_) * kTokens;
      for (uint64_t n = 0; n < (range & 0xffffffff); ++n) {
        visit(first + (range >> 32) + n, place++);
      }
    }
  }

  const Case case_;
  const int ranks_;
  std::unique_ptr<StageMailbox> box_;
  FakeStageKernel kernel_;
  std::unique_ptr<mep::EpObject> object_;
  std::vector<std::byte> staging_;
  mep::device::StageEpMemory memory_{};
  std::unique_ptr<mep::StagedEpCalls> served_;
  mep::EpHandle handle_;

 public:
  mep::StageServer server;  // goes first: its thread uses the rest
};

uint64_t seed_of(int rank, uint64_t round) {
  return mix(test_seed() + round, static_cast<uint64_t>(rank));
}

void agree_on(const Case& c) {
  constexpr int kRanks = 3;
  require_on_rank_threads(kRanks, 0, [&](int rank, mep_comm_t comm, Report& findings) {
    const mep_ep_config_t config = ep_config(c, kRanks);
    mep_ep_t ep = nullptr;
    COLL_OK(findings, mep_ep_create(comm, &config, &ep));
    {
      FakeStagedEp staged(comm, c, kRanks);
      COLL_OK(findings, staged.opened);
      const uint64_t rounds = slice(8, 400);
      for (uint64_t round = 0; round < rounds && !findings.bad(); ++round) {
        const Input in = draw(seed_of(rank, round), kRanks);
        Output wanted(c, kRanks);
        on_host(ep, c, in, kRanks, round, &wanted, findings);
        Output got(c, kRanks);
        StageAnswer answer = staged.dispatch(in, &got);
        if (answer.result != MEP_SUCCESS || answer.status.head.version != MEP_OP_STATUS_VERSION ||
            answer.status.head.bad_entries != in.bad || answer.recv_x_fits != 1) {
          findings.add("rank %d, round %d: dispatch %d, %u bad entries of %u", rank,
                       static_cast<int>(round), answer.result, answer.status.head.bad_entries,
                       in.bad);
        }
        const std::vector<uint16_t> y = make_y(got, kRanks, round);
        answer = staged.combine(y, &got);
        if (answer.result != MEP_SUCCESS || answer.tokens != in.tokens) {
          findings.add("rank %d: combine %d, %u tokens", rank, answer.result, answer.tokens);
        }
        if (!(got == wanted)) {
          findings.add("rank %d, round %d: outputs differ", rank, static_cast<int>(round));
        }
      }
      if (staged.server.take_failure() != MEP_SUCCESS) findings.add("a failure is told");
    }
    COLL_OK(findings, mep_ep_destroy(ep));
  });
}

void packed(void**) {
  agree_on({});
}
void packed_in_fp8_with_phases_apart(void**) {
  agree_on({.fp8 = true, .apart = true});
}
void slotted_with_int32_ids(void**) {
  agree_on({.slotted = true, .int32_ids = true});
}

// Rows that do not fit into the caller's memory stay in the library's.
void a_small_capacity_is_told(void**) {
  const Case c;
  require_on_rank_threads(2, 0, [&](int rank, mep_comm_t comm, Report& findings) {
    FakeStagedEp staged(comm, c, 2);
    COLL_OK(findings, staged.opened);
    Input in = draw(seed_of(rank, 1), 2);
    in.tokens = 4;
    std::fill(in.experts.begin(), in.experts.end(), -1);
    in.experts[0] = 0;
    in.experts[kTopK] = 2;
    Output got(c, 2);
    const StageAnswer answer = staged.dispatch(in, &got, kHidden * 2);
    if (answer.result != MEP_ERR_CAPACITY || answer.status.head.result != MEP_ERR_CAPACITY ||
        answer.delivers != 1 || answer.recv_x_fits != 0 || answer.total != 2) {
      findings.add("rank %d: %d, total %d", rank, answer.result, static_cast<int>(answer.total));
    }
  });
}

// The last rank aborts while the others wait for it; they are told and go on without it.
void survive(const Case& c) {
  constexpr int kRanks = 4;
  require_on_rank_threads(kRanks, 0, [&](int rank, mep_comm_t comm, Report& findings) {
    FakeStagedEp staged(comm, c, kRanks);
    COLL_OK(findings, staged.opened);
    Output got(c, kRanks);
    const Input in = draw(seed_of(rank, 7), kRanks);
    if (rank == kRanks - 1) {
      COLL_OK(findings, mep_comm_abort(comm));
      const mep_result_t own = staged.dispatch(in, &got).result;
      if (own != MEP_ERR_ABORTED) findings.add("the aborted rank: %d", own);
      return;
    }
    const StageAnswer cut = staged.dispatch(in, &got);
    if (cut.result != MEP_ERR_PEER_FAILED || cut.status.head.result != MEP_ERR_PEER_FAILED) {
      findings.add("rank %d: %d", rank, cut.result);
    }
    if (staged.server.take_failure() != MEP_ERR_PEER_FAILED) findings.add("not told");
    for (uint64_t round = 0; round < 5; ++round) {
      const Input later = draw(seed_of(rank, 20 + round), kRanks - 1);
      StageAnswer answer = staged.dispatch(later, &got);
      if (answer.result != MEP_SUCCESS) return findings.add("dispatch later: %d", answer.result);
      answer = staged.combine(make_y(got, kRanks, round), &got);
      if (answer.result != MEP_SUCCESS) return findings.add("combine later: %d", answer.result);
    }
  });
}

void a_failure_is_told_and_survived(void**) {
  survive({});
  survive({.apart = true});
  survive({.fp8 = true, .slotted = true});
}

// A combine after a dispatch that was refused ends by its reason, and sends nothing.
void what_follows_a_refusal_is_refused(void**) {
  const Case c;
  require_on_rank_threads(2, 0, [&](int rank, mep_comm_t comm, Report& findings) {
    FakeStagedEp staged(comm, c, 2);
    COLL_OK(findings, staged.opened);
    Output got(c, 2);
    COLL_OK(findings, mep_barrier(comm, nullptr));
    if (rank == 1) {
      COLL_OK(findings, mep_comm_abort(comm));
      return;
    }
    COLL_OK(findings, mep_comm_wait_view(comm, 1, 20'000));
    const Input in = draw(seed_of(rank, 3), 1);
    StageAnswer answer = staged.dispatch(in, &got);
    if (answer.result != MEP_ERR_PEER_FAILED || answer.delivers != 0 ||
        answer.status.head.result != MEP_ERR_PEER_FAILED) {
      findings.add("dispatch: %d", answer.result);
    }
    answer = staged.combine(std::vector<uint16_t>(Output::rows(2) * kHidden), &got);
    if (answer.result != MEP_ERR_PEER_FAILED || answer.delivers != 0) {
      findings.add("combine: %d", answer.result);
    }
    answer = staged.dispatch(in, &got);
    if (answer.result != MEP_SUCCESS) findings.add("the next dispatch: %d", answer.result);
  });
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(packed),
      cmocka_unit_test(packed_in_fp8_with_phases_apart),
      cmocka_unit_test(slotted_with_int32_ids),
      cmocka_unit_test(a_small_capacity_is_told),
      cmocka_unit_test(a_failure_is_told_and_survived),
      cmocka_unit_test(what_follows_a_refusal_is_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
