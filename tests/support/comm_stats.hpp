// Calls of every kind on a communicator, and what mep_comm_stats must say after them, counted here.
#pragma once

#include <cstring>
#include <numeric>

#include "support/coll_ranks.hpp"
#include "support/ep_halves.hpp"
#include "support/request_waits.hpp"

namespace mep_test {

using Stats = mep_comm_stats_t;

inline Stats no_stats() {
  Stats stats;
  mep_comm_stats_defaults(&stats);
  return stats;
}

inline void check_stats(mep_comm_t comm, const Stats& expected, const char* where, Report& found) {
  Stats stats = no_stats();
  COLL_OK(found, mep_comm_stats(comm, &stats));
  const auto same = [&](const char* name, uint64_t got, uint64_t wanted) {
    if (got == wanted) return;
    found.add("%s: %s is %llu, not %llu", where, name, static_cast<unsigned long long>(got),
              static_cast<unsigned long long>(wanted));
  };
#define CHECK_COUNT(field) same(#field, stats.field, expected.field)
  CHECK_COUNT(struct_size);
  CHECK_COUNT(flags);
  CHECK_COUNT(collectives);
  CHECK_COUNT(sends);
  CHECK_COUNT(receives);
  CHECK_COUNT(dispatches);
  CHECK_COUNT(combines);
  CHECK_COUNT(collective_bytes);
  CHECK_COUNT(send_bytes);
  CHECK_COUNT(receive_bytes);
  CHECK_COUNT(dispatch_bytes);
  CHECK_COUNT(combine_bytes);
  CHECK_COUNT(partial_results);
  CHECK_COUNT(errors_peer_failed);
  CHECK_COUNT(errors_peer_left);
  CHECK_COUNT(errors_timeout);
  CHECK_COUNT(errors_mismatch);
  CHECK_COUNT(errors_other);
  CHECK_COUNT(view_changes);
  CHECK_COUNT(ranks_lost);
  CHECK_COUNT(ranks_admitted);
#undef CHECK_COUNT
}

// One rank's calls. Each adds to `expected` what it must count.
class CountedCalls {
 public:
  CountedCalls(int rank, int size, mep_comm_t comm, Report& found)
      : rank_(static_cast<size_t>(rank)),
        size_(static_cast<size_t>(size)),
        comm_(comm),
        found_(found) {}

  Stats expected = no_stats();

  // Each collective once, of `count` int32 elements, blocking (0), nonblocking (1) or in a group (2).
  void collectives(size_t count, int form) {
    const size_t n = size_;
    const auto root = static_cast<int32_t>(count % n);
    const bool is_root = rank_ == count % n;
    std::vector<int32_t> in(64 * n + 64, 1);
    std::vector<int32_t> out(64 * n + 64);
    std::vector<uint64_t> counts(n);  // of each rank, the same everywhere
    std::vector<uint64_t> to(n);      // from this rank to each
    std::vector<uint64_t> from(n);
    for (size_t r = 0; r < n; ++r) {
      counts[r] = count + r;
      to[r] = count + 2 * rank_ + r;
      from[r] = count + 2 * r + rank_;
    }
    const size_t sum = std::accumulate(counts.begin(), counts.end(), size_t{0});
    const size_t sum_to = std::accumulate(to.begin(), to.end(), size_t{0});
    const void* i = in.data();
    void* o = out.data();
    const mep_dtype_t type = MEP_INT32;
#define CALL(elements, name, ...)                                             \
  do_call(                                                                    \
      elements, form, [&] { return mep_##name(__VA_ARGS__ comm_, nullptr); }, \
      [&](mep_request_t* request) { return mep_i##name(__VA_ARGS__ comm_, nullptr, request); })
#define ARGS(...) __VA_ARGS__,
    CALL(0, barrier, );
    CALL(is_root ? count : 0, broadcast, ARGS(i, o, count, type, root));
    CALL(count, allgather, ARGS(i, o, count, type));
    CALL(count, allreduce, ARGS(i, o, count, type, MEP_SUM));
    CALL(count, reduce, ARGS(i, o, count, type, MEP_SUM, root));
    CALL(count, gather, ARGS(i, o, count, type, root));
    CALL(is_root ? count * n : 0, scatter, ARGS(i, o, count, type, root));
    CALL(count * n, reduce_scatter, ARGS(i, o, count, type, MEP_SUM));
    CALL(count * n, alltoall, ARGS(i, o, count, type));
    CALL(counts[rank_], allgatherv, ARGS(i, o, counts.data(), nullptr, type));
    CALL(counts[rank_], gatherv, ARGS(i, o, counts[rank_], counts.data(), nullptr, type, root));
    CALL(is_root ? sum : 0, scatterv,
         ARGS(i, o, counts[rank_], counts.data(), nullptr, type, root));
    CALL(sum, reduce_scatterv, ARGS(i, o, counts.data(), nullptr, type, MEP_SUM));
    CALL(sum_to, alltoallv, ARGS(i, o, to.data(), nullptr, from.data(), nullptr, type));
#undef CALL
#undef ARGS
  }

  // To the next rank and from the one before, which may be this one.
  void messages(size_t count) {
    const auto next = static_cast<int32_t>((rank_ + 1) % size_);
    const auto before = static_cast<int32_t>((rank_ + size_ - 1) % size_);
    std::vector<int32_t> in(count + 1);
    std::vector<int32_t> out(count + 10);
    COLL_OK(found_, mep_sendrecv(in.data(), count, next, 1, out.data(), count + 10, before, 1,
                                 MEP_INT32, comm_, nullptr, nullptr));
    mep_request_t requests[2] = {};
    COLL_OK(found_, mep_irecv(out.data(), count + 10, MEP_INT32, before, 2, comm_, nullptr, nullptr,
                              &requests[0]));
    COLL_OK(found_, mep_isend(in.data(), count, MEP_INT32, next, 2, comm_, nullptr, &requests[1]));
    COLL_OK(found_, mep_request_waitall(2, requests, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
    COLL_OK(found_, mep_group_begin());
    COLL_OK(found_, mep_send(in.data(), count, MEP_INT32, next, 3, comm_, nullptr));
    COLL_OK(found_,
            mep_recv(out.data(), count + 10, MEP_INT32, before, 3, comm_, nullptr, nullptr));
    COLL_OK(found_, mep_group_end());
    expected.sends += 3;
    expected.receives += 3;
    expected.send_bytes += 12 * count;
    expected.receive_bytes += 12 * count;
    // A receive that never gets anything.
    mep_request_t request = nullptr;
    COLL_OK(found_, mep_irecv(out.data(), 1, MEP_INT32, MEP_ANY_SOURCE, 99, comm_, nullptr, nullptr,
                              &request));
    COLL_OK(found_, cancel_now(&request));
    ++expected.receives;
  }

  // A dispatch and a combine in one call each, and once more in halves: `tokens` and hidden 16, bf16.
  void moe(uint32_t tokens) {
    constexpr uint32_t kHidden = 16;
    const auto experts = static_cast<uint32_t>(size_);
    mep_ep_config_t config;
    mep_moe_defaults(&config, 8, kHidden, 1, experts);
    mep_ep_t ep = nullptr;
    mep_ep_handle_t handle = nullptr;
    COLL_OK(found_, mep_ep_create(comm_, &config, &ep));
    COLL_OK(found_, mep_ep_handle_create(ep, 0, &handle));
    mep_ep_view_t view;
    mep_ep_view_defaults(&view);
    COLL_OK(found_, mep_ep_buffer_view(ep, 0, &view));
    if (found_.bad()) return;
    std::vector<uint16_t> x(size_t{8} * kHidden);
    std::vector<uint16_t> out(size_t{8} * kHidden);
    std::vector<int64_t> chosen;
    for (uint32_t t = 0; t < tokens; ++t) chosen.push_back(t % experts);
    DispatchTokens send;
    DispatchRows receive;
    CombineTerms results;
    CombineSums sums;
    send.num_tokens = tokens;
    send.x = x.data();
    send.topk_idx = chosen.data();
    results.y = view.combine_input;
    sums.num_tokens = tokens;
    sums.out = out.data();
    COLL_OK(found_, dispatch_halves(handle, &send, &receive, nullptr));
    COLL_OK(found_, combine_halves(handle, &results, &sums, nullptr));
    COLL_OK(found_, dispatch_halves(handle, &send, nullptr, nullptr));
    COLL_OK(found_, dispatch_halves(handle, nullptr, &receive, nullptr));
    COLL_OK(found_, combine_halves(handle, &results, nullptr, nullptr));
    COLL_OK(found_, combine_halves(handle, nullptr, &sums, nullptr));
    expected.dispatches += 2;
    expected.combines += 2;
    expected.dispatch_bytes += uint64_t{2} * tokens * kHidden * 2;
    expected.combine_bytes += uint64_t{2} * tokens * kHidden * 2;
    COLL_OK(found_, mep_ep_handle_destroy(handle));
    COLL_OK(found_, mep_ep_destroy(ep));
  }

 private:
  template <typename Blocking, typename Start>
  void do_call(size_t elements, int form, const Blocking& blocking, const Start& start) {
    if (form == 1) {
      mep_request_t request = nullptr;
      COLL_OK(found_, start(&request));
      COLL_OK(found_, mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr));
    } else {
      if (form == 2) COLL_OK(found_, mep_group_begin());
      COLL_OK(found_, blocking());
      if (form == 2) COLL_OK(found_, mep_group_end());
    }
    ++expected.collectives;
    expected.collective_bytes += 4 * elements;
  }

  const size_t rank_;
  const size_t size_;
  const mep_comm_t comm_;
  Report& found_;
};

}  // namespace mep_test
