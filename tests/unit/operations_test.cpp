// Kinds of operations x what carries them out: each backend carries out what the table says of it, and
// refuses all else, kinds that no table knows too, without taking one for another.
// labels: quick threads tsan asan
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "core/api/api_guard.hpp"
#include "core/staged/stage_plan.hpp"
#include "core/staged/staged_collectives.hpp"
#include "kernels/cuda/coll/state.hpp"
#include "protocol/operation_calls.hpp"
#include "support/coll_ranks.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)
using mep::Collective;
using mep::device::CollPath;
using mep::device::StageAnswer;
using mep::device::StageRequest;

constexpr uint8_t kBackends[] = {mep::backends::kHost, mep::backends::kGpu, mep::backends::kStaged};

// Beyond the table: the next kind that somebody adds, and what bytes of a peer may hold.
const std::vector<uint32_t> kUnknown = {
    mep::kCollectiveCount, mep::kCollectiveCount + 1, 255, 256, 0x7fffffff, 0xffffffff};

// All kinds, known and not.
std::vector<Collective> every_kind() {
  std::vector<Collective> kinds;
  for (uint32_t each = 0; each < mep::kCollectiveCount; ++each) {
    kinds.push_back(static_cast<Collective>(each));
  }
  for (const uint32_t each : kUnknown) kinds.push_back(static_cast<Collective>(each));
  return kinds;
}

// Says what it was asked for, and is asked for nothing that it does not have.
class RecordingBackend : public mep::Backend {
 public:
  explicit RecordingBackend(uint8_t which) : Backend(which) {}
  mep_result_t allocate(size_t, void**) override { return MEP_ERR_UNSUPPORTED; }
  mep_result_t free(void*, std::shared_ptr<const void>*) override { return MEP_ERR_UNSUPPORTED; }
  mep::BackendLimits limits() const override { return {}; }
  mep_reach_t reach_of(uint32_t) const override { return MEP_REACH_MAPPED; }
  mep_result_t take_any_failure() override { return MEP_SUCCESS; }
  mep_result_t show_losses(int32_t*, void*) override { return MEP_SUCCESS; }
  mep_result_t forget_losses(void*) override { return MEP_SUCCESS; }
  bool busy() const override { return false; }
  size_t view_participants() const override { return 0; }
  void set_timeout_ms(uint32_t) override {}
  void revoke() override {}
  std::vector<Collective> asked;

 private:
  mep_result_t carry_out(Collective kind, const mep::CollectiveArgs&, void*) override {
    asked.push_back(kind);
    return MEP_SUCCESS;
  }
  mep_result_t begin(Collective kind, const mep::CollectiveArgs&, mep::Operation*) override {
    asked.push_back(kind);
    return MEP_SUCCESS;
  }
};

void test_every_backend_refuses_what_it_has_not(void**) {
  for (const uint8_t which : kBackends) {
    for (const Collective kind : every_kind()) {
      RecordingBackend backend(which);
      mep::set_last_error_text("");
      const mep_result_t run = backend.run(kind, {}, nullptr);
      const mep_result_t started = backend.start(kind, {}, nullptr);
      const bool built = mep::runs_on(kind, which);
      assert_int_equal(run, built ? MEP_SUCCESS : MEP_ERR_UNSUPPORTED);
      assert_int_equal(started, run);
      assert_int_equal(backend.asked.size(), built ? 2 : 0);
      for (const Collective asked : backend.asked) assert_true(asked == kind);
      if (!built) assert_non_null(strstr(mep_last_error(), "not built"));
    }
  }
}

// The kernels: a way for each kind of the table that a GPU has, none for others, and none for two that differ.
void test_gpu_kernels(void**) {
  for (const Collective kind : every_kind()) {
    const CollPath path = mep::device::coll_path(kind);
    assert_int_equal(path != CollPath::kNone, mep::runs_on(kind, mep::backends::kGpu));
    if (path == CollPath::kNone) continue;
    assert_int_equal(path == CollPath::kCounted, mep::facts_of(kind).has_counts);
    if (path == CollPath::kCounted) continue;
    // A kind that takes an operator reduces, one that takes none does not.
    const bool reduces = path == CollPath::kReduce || path == CollPath::kReduceBlocks;
    assert_int_equal(reduces, mep::facts_of(kind).takes_op);
    // Where ranks get different blocks, or one rank gets what the others gave, nobody can give what is lacking.
    const bool is_apart = path == CollPath::kBlocks || path == CollPath::kReduceBlocks;
    const std::set<Collective> apart{Collective::k_gather, Collective::k_scatter,
                                     Collective::k_alltoall, Collective::k_reduce_scatter};
    assert_int_equal(is_apart, apart.contains(kind));
  }
}

// Checks the kinds whose plan is known here.
void check_plan(Collective kind, uint32_t rank, uint32_t ranks, uint32_t root,
                const mep::StagePlan& plan) {
  const bool gathers = kind == Collective::k_allgather;
  const bool reduces = kind == Collective::k_allreduce;
  if (kind == Collective::k_barrier) {
    assert_true(!plan.gives && !plan.gets);
  } else if (gathers || reduces || kind == Collective::k_broadcast) {
    assert_int_equal(plan.gives, gathers || reduces || rank == root);
    assert_true(plan.gets);
    assert_int_equal(plan.receive_rows, gathers ? ranks : 1);
    assert_int_equal(plan.send_row, gathers ? rank : 0);
    assert_int_equal(plan.is_output_apart, reduces);
  }
}

// Where the data of a kind lies in the staging, for each rank and root.
void test_staging(void**) {
  constexpr uint32_t kRanks = 5;
  for (const Collective kind : every_kind()) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const uint32_t root = 2;
      mep::StagePlan plan;
      const mep_result_t planned = mep::plan_stage(kind, rank, kRanks, root, &plan);
      // Those with counts lie where StagedCounted puts them.
      if (!mep::runs_on(kind, mep::backends::kStaged) || mep::facts_of(kind).has_counts) {
        assert_int_equal(planned, MEP_ERR_UNSUPPORTED);
        continue;
      }
      assert_int_equal(planned, MEP_SUCCESS);
      check_plan(kind, rank, kRanks, root, plan);
      // Inputs and outputs fit.
      constexpr size_t kBytes = 1 << 20;
      const size_t block = plan.most_block_bytes(kBytes);
      assert_true(block > 0);
      assert_true((plan.send_row + 1) * block <= kBytes);
      assert_true((plan.send_row + plan.send_rows) * block <= kBytes);
      const size_t output = plan.output_at(kBytes, block);
      assert_true(output + plan.receive_rows * block <= kBytes);
      // Blocks are as long on all ranks.
      mep::StagePlan other;
      assert_int_equal(mep::plan_stage(kind, (rank + 1) % kRanks, kRanks, root, &other),
                       MEP_SUCCESS);
      assert_int_equal(other.blocks, plan.blocks);
    }
  }
}

// Requests that kernels may leave in the mailbox.
void test_requests_through_host_memory(void**) {
  require_on_rank_threads(2, 0, [](int, mep_comm_t comm, Report& report) {
    std::vector<uint64_t> memory(16, 7);
    for (const Collective kind : every_kind()) {
      StageRequest request{};
      request.collective = {reinterpret_cast<uint64_t>(memory.data()),
                            reinterpret_cast<uint64_t>(memory.data() + 8),
                            1,
                            MEP_UINT64,
                            MEP_SUM,
                            0,
                            kind};
      StageAnswer answer{};
      mep_op_info_t before;
      mep_op_info_t after;
      mep_op_info_defaults(&before);
      mep_op_info_defaults(&after);
      COLL_OK(report, mep_barrier(comm, nullptr));
      COLL_OK(report, mep_comm_last_op(comm, &before));
      const mep_result_t result =
          mep::serve_staged_collective(*comm->comm, request, &answer, [](mep_result_t) {});
      COLL_OK(report, mep_comm_last_op(comm, &after));
      const bool built =
          mep::runs_on(kind, mep::backends::kStaged) && !mep::facts_of(kind).has_counts;
      COLL_CHECK(report, result == (built ? MEP_SUCCESS : MEP_ERR_UNSUPPORTED));
      // Refused: no operation of any kind took place.
      COLL_CHECK(report, after.seq - before.seq == (built ? 1u : 0u));
      COLL_CHECK(report, answer.delivers == (built ? 1u : 0u));
      if (!built) continue;
      const mep_op_status_t& status = answer.status.head;
      COLL_CHECK(report, status.version == MEP_OP_STATUS_VERSION && status.result == MEP_SUCCESS &&
                             status.seq == after.seq && status.epoch == after.epoch &&
                             status.failed_count == 0);
    }
    COLL_OK(report, mep_barrier(comm, nullptr));
  });
}

// Calls by kind refuse a kind that has no function.
void test_calls_by_kind(void**) {
  require_on_rank_threads(1, 0, [](int, mep_comm_t comm, Report& report) {
    for (const uint32_t each : kUnknown) {
      const auto kind = static_cast<Collective>(each);
      mep_request_t request = nullptr;
      COLL_EXPECT(report, MEP_ERR_UNSUPPORTED, mep::call_collective(kind, {}, comm, nullptr));
      COLL_EXPECT(report, MEP_ERR_UNSUPPORTED,
                  mep::start_collective(kind, {}, comm, nullptr, &request));
      COLL_CHECK(report, request == nullptr);
    }
  });
}

void test_table(void**) {
  std::set<std::string> names;
  for (uint32_t each = 0; each < mep::kCollectiveCount; ++each) {
    const auto kind = static_cast<Collective>(each);
    const mep::OperationFacts& facts = mep::facts_of(kind);
    assert_true(names.insert(facts.name).second);
    // Every operation has a backend, and the host's is the reference.
    assert_true(facts.runs_on(mep::backends::kHost));
    assert_int_equal(facts.takes_op && !facts.has_data(), 0);
    const mep::CollectiveType& type = mep::collective_type(kind);
    assert_string_equal(type.name, facts.name);
    assert_true(type.check != nullptr && type.step != nullptr && type.settle != nullptr);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_table),
      cmocka_unit_test(test_every_backend_refuses_what_it_has_not),
      cmocka_unit_test(test_gpu_kernels),
      cmocka_unit_test(test_staging),
      cmocka_unit_test(test_requests_through_host_memory),
      cmocka_unit_test(test_calls_by_kind),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
