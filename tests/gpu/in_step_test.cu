// MEP_EP_LOSS_IN_STEP on GPUs: a rank goes while some of the others have made a call and some make it later; nobody agrees on
// anything. The calls of those that stay belong together all the same: a row never meets a call of another round, and no
// kernel waits for one that another rank has behind it. The seed is printed; MEP_TEST_SEED replays it. With --one-each
// each GPU has one rank: kernels of two ranks on real GPUs may get one hardware queue, where one waits for the other.
#include <atomic>
#include <random>

#include "abi_rig.hpp"
#include "support/ep_halves.hpp"
#include "support/small_floats.hpp"

namespace {

using namespace gpu_test;

constexpr uint32_t kTokens = 2, kHidden = 64, kTopK = 2, kRoundsAfter = 4, kCalls = 2;

struct Case {
  uint64_t seed;
  uint32_t ranks, victim, round, call;

  Case(uint64_t given, uint32_t wanted) : seed(given) {
    std::mt19937_64 random(given);
    ranks = 3 + random() % 3;
    if (wanted != 0) ranks = wanted;
    victim = static_cast<uint32_t>(random() % ranks);
    round = 1 + random() % 2;
    call = random() % kCalls;
  }
  // Whether the rank makes the call of the loss once it knows of it.
  bool is_late(uint32_t rank) const { return std::mt19937_64(seed * 64 + rank)() % 2 == 0; }
  // A loss shows in its round and the next, and in the one before on a rank that has not read its last terms.
  bool is_clean(uint32_t at) const { return at + 1 < round || at >= round + 2; }
  uint32_t expert(uint32_t at, uint32_t rank, uint32_t token, uint32_t k) const {
    return (at + rank + token + k) % ranks;
  }
  static uint16_t value(uint32_t at, uint32_t rank) {
    uint16_t bits = 0;
    mep_reference::store_number(MEP_BFLOAT16, 1 + rank + 8 * at, &bits);
    return bits;
  }
};

template <class T>
struct Pinned {
  T* data = nullptr;
  explicit Pinned(size_t count) { cuda(cudaMallocHost(&data, count * sizeof(T))); }
  ~Pinned() { cuda(cudaFreeHost(data)); }
  Pinned(const Pinned&) = delete;
};

class Rank {
 public:
  Rank(const Case& c, uint32_t rank, mep_comm_t comm)
      : c_(c), rank_(rank), comm_(comm), rows_(c.ranks * kTokens * kTopK * kHidden) {
    cuda(cudaSetDevice(gpu_of(rank)));
    cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    mep_ep_config_t config;
    mep_ep_config_defaults(&config);
    config.on_loss = MEP_EP_LOSS_IN_STEP;
    config.max_tokens_per_rank = kTokens;
    config.hidden = kHidden;
    config.top_k = kTopK;
    config.num_experts = c.ranks;
    need(mep_ep_create(comm, &config, &ep_), "mep_ep_create in step");
    need(mep_ep_handle_create(ep_, 0, &handle_), "mep_ep_handle_create");
  }
  void close() {
    need(mep_ep_handle_destroy(handle_), "mep_ep_handle_destroy");
    need(mep_ep_destroy(ep_), "mep_ep_destroy");
    cuda(cudaStreamDestroy(stream_));
  }

  void run() {
    for (uint32_t round = 0; round <= c_.round + kRoundsAfter; ++round) {
      for (uint32_t call = 0; call < kCalls; ++call) {
        if (round == c_.round && call == c_.call && leaves()) return;
        const mep_result_t result = call == 0 ? dispatch(round) : combine(round);
        const bool is_loss = result == MEP_PARTIAL || result == MEP_ERR_PEER_FAILED;
        GPU_CHECK(result == MEP_SUCCESS || (is_loss && !c_.is_clean(round)) ||
                      (is_loss && round > c_.round && call == 1),
                  "rank %u of %u, round %u, call %u: %s", rank_, c_.ranks, round, call,
                  mep_result_string(result));
      }
    }
  }

 private:
  bool leaves() {
    if (rank_ == c_.victim) {
      need(mep_comm_abort(comm_), "mep_comm_abort");
      return true;
    }
    uint32_t state = MEP_PEER_ALIVE;
    while (c_.is_late(rank_) && (state == MEP_PEER_ALIVE || state == MEP_PEER_SUSPECT)) {
      need(mep_comm_peer_state(comm_, static_cast<int32_t>(c_.victim), &state), "peer state");
    }
    return false;
  }

  // How the kernel ended.
  mep_result_t await(mep_result_t called) {
    need(called, "a call in step");
    need(mep_comm_lost_ranks(comm_, lost_.data, stream_), "mep_comm_lost_ranks");
    cuda(cudaStreamSynchronize(stream_));
    (void)mep_comm_async_result(comm_);
    check_lost(status_.data->result);
    return status_.data->result;
  }

  // The loss shows behind the operation that it ended, from then on until it is forgotten, which some ranks do.
  void check_lost(mep_result_t result) {
    const bool is_loss = result == MEP_PARTIAL || result == MEP_ERR_PEER_FAILED;
    const bool shows = lost_.data[c_.victim] == 1;
    for (uint32_t rank = 0; rank < c_.ranks; ++rank) {
      GPU_CHECK(lost_.data[rank] == 0 || (rank == c_.victim && shows),
                "rank %u of %u: rank %u is lost: %d", rank_, c_.ranks, rank, lost_.data[rank]);
    }
    const bool must = (sees_ || is_loss) && !has_forgotten_;
    GPU_CHECK(has_forgotten_ ? !shows : shows || !must,
              "rank %u of %u: the loss shows: %d, forgotten: %d, after %s", rank_, c_.ranks, shows,
              has_forgotten_, mep_result_string(result));
    sees_ = shows;
    if (!sees_ || (c_.seed + rank_) % 2 == 0) return;
    need(mep_comm_forget_lost(comm_, stream_), "mep_comm_forget_lost");
    sees_ = false;
    has_forgotten_ = true;
  }

  mep_result_t dispatch(uint32_t round) {
    for (uint32_t token = 0; token < kTokens; ++token) {
      std::fill_n(x_.data + token * kHidden, kHidden, Case::value(round, rank_));
      for (uint32_t k = 0; k < kTopK; ++k) {
        experts_.data[token * kTopK + k] = c_.expert(round, rank_, token, k);
      }
    }
    mep_test::DispatchTokens send;
    mep_test::DispatchRows receive;
    send.num_tokens = kTokens;
    send.x = x_.data;
    send.topk_idx = experts_.data;
    receive.recv_x = rows_.data;
    receive.layout_range = ranges_.data;
    receive.op_status = status_.data;
    receive.op_status_bytes = mep_op_status_size(static_cast<int32_t>(c_.ranks));
    const mep_result_t result = await(mep_test::dispatch_halves(handle_, &send, &receive, stream_));
    if (is_error(result)) return result;
    for (uint32_t source = 0; source < c_.ranks; ++source) {
      const auto [count, first] = ranges_.data[source];
      const uint64_t begin = static_cast<uint64_t>(first) * kHidden;
      const uint64_t end = begin + static_cast<uint64_t>(count) * kHidden;
      for (uint64_t i = begin; i < end; ++i) {
        if (rows_.data[i] == Case::value(round, source)) continue;
        GPU_CHECK(false, "rank %u of %u, round %u: a row of rank %u is of another round", rank_,
                  c_.ranks, round, source);
        break;
      }
    }
    return result;
  }
  static bool is_error(mep_result_t result) { return result < 0; }

  mep_result_t combine(uint32_t round) {
    mep_test::CombineTerms terms;
    mep_test::CombineSums sums;
    terms.y = rows_.data;
    sums.out = out_.data;
    sums.op_status = status_.data;
    sums.op_status_bytes = mep_op_status_size(static_cast<int32_t>(c_.ranks));
    const mep_result_t result = await(mep_test::combine_halves(handle_, &terms, &sums, stream_));
    if (result != MEP_SUCCESS || !c_.is_clean(round)) return result;
    // Both terms came, and are of this round.
    const float value = mep_reference::load_number(MEP_BFLOAT16, out_.data);
    GPU_CHECK(value == static_cast<float>(2 * (1 + rank_ + 8 * round)),
              "rank %u of %u, round %u: the sum is %g", rank_, c_.ranks, round, value);
    return result;
  }

  const Case& c_;
  const uint32_t rank_;
  mep_comm_t comm_;
  mep_ep_t ep_ = nullptr;
  mep_ep_handle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  Pinned<uint16_t> x_{kTokens * kHidden}, rows_, out_{kTokens * kHidden};
  Pinned<int64_t> experts_{kTokens * kTopK};
  Pinned<mep_range_t> ranges_{8};
  Pinned<mep_op_status_t> status_{4};
  Pinned<int32_t> lost_{8};
  bool sees_ = false, has_forgotten_ = false;
};

void run_case(uint64_t seed, uint32_t wanted) {
  const Case c(seed, wanted);
  mep_comm_config_t config = comm_config(true, 20'000);
  std::vector<mep_comm_t> comms(c.ranks);
  need(mep_comm_init_all(static_cast<int32_t>(c.ranks), &config, comms.data()),
       "mep_comm_init_all");
  std::vector<std::unique_ptr<Rank>> ranks(c.ranks);
  in_threads(c.ranks,
             [&](uint32_t rank) { ranks[rank] = std::make_unique<Rank>(c, rank, comms[rank]); });
  in_threads(c.ranks, [&](uint32_t rank) { ranks[rank]->run(); });
  in_threads(c.ranks, [&](uint32_t rank) { ranks[rank]->close(); });
  close_comms(comms);
}

}  // namespace

int main(int argc, char** argv) {
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gpu_is_there()) return kSkipped;
  const bool one_each = argc > 1 && std::strcmp(argv[1], "--one-each") == 0;
  if (one_each && gpu_count() < 3) {
    std::printf("fewer than three GPUs: skipped\n");
    return kSkipped;
  }
  const auto ranks = static_cast<uint32_t>(one_each ? gpu_count() : 0);
  const uint64_t seed = seed_of_run();
  for (uint64_t i = 0; i < 12 && failure_count() == 0; ++i) run_case(seed + i, ranks);
  std::printf(failure_count() == 0 ? "in_step_test: passed\n" : "in_step_test: FAILED\n");
  return failure_count() == 0 ? 0 : 1;
}
