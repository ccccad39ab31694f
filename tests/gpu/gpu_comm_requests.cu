// Requests of collectives on GPUs: they are done when the operation has ended there, well or not, and not before.
#include <poll.h>

#include <algorithm>
#include <vector>

#include "gpu_comm_rig.hpp"
#include "support/request_waits.hpp"

namespace gpu_test {
namespace {

struct Told {
  mep_op_info_t info;
  uint64_t failed = 0;
  Told() {
    mep_op_info_defaults(&info);
    info.failed = &failed;
    info.failed_words = 1;
  }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;
};

bool is_readable(mep_request_t request, int timeout_ms) {
  int32_t fd = -1;
  need(mep_request_event_fd(request, &fd), "mep_request_event_fd");
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, timeout_ms) == 1;
}

void expect_success(const Rank& rank, mep_request_t* request, uint64_t* before, const char* where) {
  uint64_t epoch = 0;
  need(mep_comm_epoch(rank.comm, &epoch), "mep_comm_epoch");
  Told told;
  const mep_result_t result = mep_request_wait(request, MEP_TIMEOUT_DEFAULT, nullptr, &told.info);
  GPU_CHECK(result == MEP_SUCCESS && *request == nullptr && told.info.result == MEP_SUCCESS &&
                told.failed == 0 && told.info.epoch == epoch &&
                (*before == 0 || !has_windows() || told.info.seq == *before + 1),
            "%s: %s, epoch %llu of %llu, operation %llu after %llu", where,
            mep_result_string(result), static_cast<unsigned long long>(told.info.epoch),
            static_cast<unsigned long long>(epoch), static_cast<unsigned long long>(told.info.seq),
            static_cast<unsigned long long>(*before));
  *before = told.info.seq;
}

void refusals(const std::vector<Rank>& ranks) {
  const Rank& rank = ranks[0];
  mep_request_t request = nullptr;
  const cudaGraphExec_t graph = capture(rank, [&] {
    GPU_CHECK(mep_ibarrier(rank.comm, rank.stream, &request) == MEP_ERR_UNSUPPORTED,
              "a request in a graph");
    need(mep_barrier(rank.comm, rank.stream), "mep_barrier");
  });
  cuda(cudaGraphExecDestroy(graph));
  const auto misplaced = static_cast<uint32_t*>(nullptr);
  GPU_CHECK(mep_iallreduce(misplaced, rank.receive, 4, MEP_UINT32, MEP_SUM, rank.comm, rank.stream,
                           &request) == MEP_ERR_INVALID_ARGUMENT,
            "no sendbuf");
  GPU_CHECK(request == nullptr, "a refused call gave a request");
}

// While the others have not called, the first rank's request goes on. Then each kind tells of itself.
void each_ends_with_its_operation(const std::vector<Rank>& ranks) {
  const auto count = static_cast<uint32_t>(ranks.size());
  std::vector<uint64_t> before(count, 0);
  std::vector<mep_request_t> requests(count, nullptr);
  for (const Kind kind : kKinds) {
    poison(ranks);
    need(enqueue_kind(ranks[0], kind, 0, 0, &requests[0]), name_of(kind));
    int32_t done = 1;
    // The root of a scatter waits for nobody.
    if (kind != Kind::kScatter) {
      Told told;
      GPU_CHECK(mep_test::wait_in(&requests[0], 2) == MEP_IN_PROGRESS, "it waits");
      GPU_CHECK(mep_request_test(&requests[0], &done, nullptr) == MEP_SUCCESS && done == 0,
                "it is not done");
      GPU_CHECK(mep_request_info(requests[0], &told.info) == MEP_SUCCESS &&
                    told.info.result == MEP_IN_PROGRESS,
                "its info says %d", told.info.result);
      GPU_CHECK(mep_test::cancel_now(&requests[0]) == MEP_ERR_UNSUPPORTED, "it is no receive");
      GPU_CHECK(!is_readable(requests[0], 0), "readable before the end");
      GPU_CHECK(mep_comm_destroy(ranks[0].comm) == MEP_ERR_BUSY, "a request is left");
    }
    for (uint32_t i = 1; i < count; ++i) {
      need(enqueue_kind(ranks[i], kind, i, 0, &requests[i]), name_of(kind));
    }
    GPU_CHECK(is_readable(requests[0], 10'000), "not readable after the end");
    for (uint32_t i = 0; i < count; ++i) {
      expect_success(ranks[i], &requests[i], &before[i], name_of(kind));
    }
    expect_kind(ranks, kind, 0, (uint64_t{1} << count) - 1, "by requests");
  }
  synchronize_all();
}

// One more than there may be is refused; all others end.
void most_at_one_time(const std::vector<Rank>& ranks) {
  std::vector<std::vector<mep_request_t>> requests(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    requests[i].resize(MEP_MAX_STREAM_REQUESTS + 1, nullptr);
    for (uint32_t k = 0; k < MEP_MAX_STREAM_REQUESTS; ++k) {
      need(mep_ibarrier(ranks[i].comm, ranks[i].stream, &requests[i][k]), "mep_ibarrier");
    }
    GPU_CHECK(
        mep_ibarrier(ranks[i].comm, ranks[i].stream, &requests[i].back()) == MEP_ERR_NO_MEMORY,
        "one request too many");
  }
  std::vector<mep_result_t> results(MEP_MAX_STREAM_REQUESTS + 1, MEP_ERR_INTERNAL);
  for (std::vector<mep_request_t>& own : requests) {
    need(mep_request_waitall(static_cast<int32_t>(own.size()), own.data(), MEP_TIMEOUT_DEFAULT,
                             nullptr, results.data()),
         "mep_request_waitall");
    GPU_CHECK(std::count(results.begin(), results.end(), MEP_SUCCESS) ==
                  static_cast<ptrdiff_t>(results.size()),
              "not all ended well");
  }
  synchronize_all();
}

// The last rank aborts; the requests of the others tell of it, and the next ones end well.
void a_loss_is_told(const std::vector<Rank>& ranks) {
  const auto count = static_cast<uint32_t>(ranks.size());
  const uint32_t gone = count - 1;
  std::vector<mep_request_t> requests(count, nullptr);
  for (uint32_t i = 0; i < gone; ++i) {
    need(enqueue_kind(ranks[i], Kind::kAlltoall, i, 0, &requests[i]), "mep_ialltoall");
  }
  need(mep_comm_abort(ranks[gone].comm), "mep_comm_abort");
  for (uint32_t i = 0; i < gone; ++i) {
    Told told;
    const mep_result_t result =
        mep_request_wait(&requests[i], MEP_TIMEOUT_DEFAULT, nullptr, &told.info);
    GPU_CHECK(result == MEP_ERR_PEER_FAILED && told.failed == uint64_t{1} << gone,
              "rank %u: %s, failed %llx", i, mep_result_string(result),
              static_cast<unsigned long long>(told.failed));
    GPU_CHECK(mep_comm_async_result(ranks[i].comm) == MEP_ERR_PEER_FAILED, "rank %u: %s", i,
              mep_last_error());
  }
  std::vector<uint64_t> before(count, 0);
  for (uint32_t i = 0; i < gone; ++i) {
    need(enqueue_kind(ranks[i], Kind::kReduce, i, 0, &requests[i]), "mep_ireduce");
  }
  for (uint32_t i = 0; i < gone; ++i) {
    expect_success(ranks[i], &requests[i], &before[i], "after the view change");
  }
  synchronize_all();
}

}  // namespace

void requests(uint32_t count) {
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  refusals(ranks);
  each_ends_with_its_operation(ranks);
  most_at_one_time(ranks);
  a_loss_is_told(ranks);
  close_ranks(&ranks);
  std::printf("  %u ranks: requests\n", count);
}

}  // namespace gpu_test
