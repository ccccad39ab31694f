// labels: gate processes waits
// A rank stops while others send it more than its queue takes. Alone finds: a view change that waits for a post to a rank
// that takes nothing. 10 s.
#include <atomic>

#include "support/coll_ranks.hpp"
#include "support/ep_halves.hpp"
#include "support/shared_memory.hpp"
#include "transport/tcp/peer.hpp"

using namespace mep_test;

namespace {

constexpr int kRanks = 3;
constexpr int kVictim = 2;
constexpr size_t kQueueBytes = size_t{64} << 10;
constexpr uint64_t kMostFrozenUs = 900'000;
// More than sockets of one host keep.
constexpr uint32_t kTokens = 2048;
constexpr uint32_t kHidden = 7168;

struct Job {
  std::atomic<int> begun;
  std::atomic<int> ended;
  std::atomic<uint64_t> frozen_us;  // the longest freeze
  std::atomic<pid_t> victim;
};

void note_freeze(void* user, int32_t, const char* line) {
  const char* const at = strstr(line, ": frozen ");
  unsigned long long us = 0;
  if (at == nullptr || sscanf(at, ": frozen %llu us", &us) != 1) return;
  auto& longest = static_cast<Job*>(user)->frozen_us;
  uint64_t before = longest.load();
  while (before < us && !longest.compare_exchange_weak(before, us)) {
  }
}

// The ranks call it; the victim stops in stop().
using Scene = mep_result_t (*)(mep_comm_t comm, int rank, const std::function<void()>& stop);

mep_result_t allreduce(mep_comm_t comm, int, const std::function<void()>& stop) {
  std::vector<float> values(size_t{kTokens} * kHidden, 1.0f);
  stop();
  return mep_allreduce(values.data(), values.data(), values.size(), MEP_FLOAT32, MEP_SUM, comm,
                       nullptr);
}

mep_result_t alltoall(mep_comm_t comm, int, const std::function<void()>& stop) {
  const size_t count = size_t{kTokens} * kHidden / 2;
  std::vector<float> from(count * kRanks, 1.0f);
  std::vector<float> to(count * kRanks);
  stop();
  return mep_alltoall(from.data(), to.data(), count, MEP_FLOAT32, comm, nullptr);
}

mep_result_t message(mep_comm_t comm, int rank, const std::function<void()>& stop) {
  std::vector<float> values(size_t{kTokens} * kHidden, 1.0f);
  stop();
  return rank == kVictim
             ? MEP_SUCCESS
             : mep_send(values.data(), values.size(), MEP_FLOAT32, kVictim, 0, comm, nullptr);
}

// Every token goes to the victim's expert and back.
mep_result_t call_in_turn(mep_comm_t comm, mep_ep_t ep, mep_ep_handle_t handle, int rank,
                          const std::function<void()>& stop, bool is_combine) {
  const std::vector<uint16_t> x(size_t{kTokens} * kHidden, 0x3f80);
  const std::vector<int64_t> idx(kTokens, is_combine && rank == kVictim ? 0 : kVictim);
  DispatchTokens send;
  send.num_tokens = kTokens;
  send.x = x.data();
  send.topk_idx = idx.data();
  DispatchRows receive;
  if (!is_combine) stop();
  mep_result_t result = dispatch_halves(handle, &send, &receive, nullptr);
  if (result != MEP_SUCCESS || !is_combine) return result;
  (void)mep_barrier(comm, nullptr);
  stop();
  mep_ep_view_t view;
  mep_ep_view_defaults(&view);
  result = mep_ep_buffer_view(ep, 0, &view);
  if (result != MEP_SUCCESS) return result;
  std::vector<uint16_t> out(x.size());
  const std::vector<float> weights(kTokens, 1.0f);
  CombineTerms back;
  back.y = view.recv_x;
  CombineSums sums;
  sums.out = out.data();
  sums.weights = weights.data();
  return combine_halves(handle, &back, &sums, nullptr);
}

mep_result_t exchange(mep_comm_t comm, int rank, const std::function<void()>& stop,
                      bool is_combine) {
  mep_ep_config_t config;
  mep_moe_defaults(&config, kTokens, kHidden, 1, kRanks);
  config.layout = MEP_EP_SLOTTED;
  config.num_buffers = 1;
  mep_ep_t ep = nullptr;
  mep_ep_handle_t handle = nullptr;
  mep_result_t result = mep_ep_create(comm, &config, &ep);
  if (result == MEP_SUCCESS) result = mep_ep_handle_create(ep, 0, &handle);
  if (result == MEP_SUCCESS) result = call_in_turn(comm, ep, handle, rank, stop, is_combine);
  (void)mep_ep_handle_destroy(handle);
  (void)mep_ep_destroy(ep);
  return result;
}
mep_result_t dispatch(mep_comm_t comm, int rank, const std::function<void()>& stop) {
  return exchange(comm, rank, stop, false);
}
mep_result_t combine(mep_comm_t comm, int rank, const std::function<void()>& stop) {
  return exchange(comm, rank, stop, true);
}

void play(Scene scene) {
  mep::tcp::max_queued_bytes = kQueueBytes;
  setenv("MEP_LOG", "info", 1);
  const auto job = make_shared_memory<Job>();
  mep_comm_config_t config = patient_config(0);
  config.transports = "tcp";
  config.suspect_ms = 1000;
  config.heartbeat_ms = 50;
  Report report;
  with_rank_processes(
      kRanks, config, report,
      [&](int rank, mep_comm_t comm, Report& found) {
        (void)mep_set_log_callback(note_freeze, job.get());
        if (rank == kVictim) job->victim = getpid();
        const mep_result_t result = scene(comm, rank, [&] {
          if (rank != kVictim) {
            ++job->begun;
            return;
          }
          while (job->begun != kRanks - 1) pause_us(500);
          raise(SIGSTOP);
        });
        if (rank == kVictim) return;
        const std::string text = mep_last_error();
        if (result != MEP_ERR_PEER_FAILED) {
          found.add("%s: %s", mep_result_string(result), text.c_str());
        }
        // After a personal operation the comm reports the change once more.
        mep_result_t after = mep_barrier(comm, nullptr);
        if (after == MEP_ERR_PEER_FAILED) after = mep_barrier(comm, nullptr);
        COLL_OK(found, after);
        if (++job->ended == kRanks - 1) kill(job->victim, SIGKILL);
      },
      [](int rank, int status) {
        return rank == kVictim && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      });
  if (job->frozen_us > kMostFrozenUs) {
    report.add("a view change was held up for %llu us",
               static_cast<unsigned long long>(job->frozen_us.load()));
  }
  report.require_clean();
}

void stops_in_dispatch(void**) {
  play(dispatch);
}
void stops_in_combine(void**) {
  play(combine);
}
void stops_in_allreduce(void**) {
  play(allreduce);
}
void stops_in_alltoall(void**) {
  play(alltoall);
}
void stops_in_a_message(void**) {
  play(message);
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(stops_in_dispatch),  cmocka_unit_test(stops_in_combine),
      cmocka_unit_test(stops_in_allreduce), cmocka_unit_test(stops_in_alltoall),
      cmocka_unit_test(stops_in_a_message),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
