// labels: quick threads tsan
// The effects of a view change on a comm and its calls, which reports are left of it, who is waited for before it,
// and what a record gives away.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/status.hpp"
#include "core/operation/operation_record.hpp"
#include "core/operation/posting_gate.hpp"
#include "core/operation/reports.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

using mep::membership::RemovalReason;

// Slots 0 .. 3 are a comm's ranks in falling order, so that neither is taken for the other.
const std::vector<uint32_t> kSlots = {3, 2, 1, 0};

mep::membership::View world_without(const std::vector<uint32_t>& absent) {
  mep::membership::View view;
  view.epoch = 7;
  for (uint32_t slot = 0; slot < 4; ++slot) {
    view.incarnations.push_back(100 + slot);
    view.hosts.push_back(1);
    if (std::find(absent.begin(), absent.end(), slot) == absent.end()) view.members.add(slot);
  }
  return view;
}

mep::membership::InstallView change_to(const mep::membership::View& view,
                                       std::vector<mep::membership::Removal> removed) {
  auto decision = std::make_shared<mep::membership::Proposal>();
  decision->removed = std::move(removed);
  return {std::make_shared<mep::membership::View>(view), decision, {}, false, 0};
}

std::shared_ptr<const mep::CommView> whole() {
  return mep::CommView::first(mep::CommMembers::of(world_without({}), kSlots), 1);
}

std::shared_ptr<const mep::CommChange> meaning(const mep::membership::InstallView& change,
                                               uint32_t why) {
  return mep::make_comm_change(*whole(), change, {1, 2, why}, kSlots, "c", true);
}

void deaths_outweigh_what_else_happened(void**) {
  const auto change =
      meaning(change_to(world_without({0, 1}),
                        {{0, 100, RemovalReason::kLeft}, {1, 101, RemovalReason::kDied}}),
              mep::membership::kAffectedByRevoke | mep::membership::kAffectedByDeadline);
  assert_int_equal(change->result, MEP_ERR_PEER_FAILED);
  assert_true(change->is_reported);
  assert_string_equal(change->text.c_str(),
                      "rank 3 of comm c left: it left by mep_comm_destroy; "
                      "rank 2 of comm c failed: its process ended");
  assert_int_equal(change->epoch, 1);
  assert_int_equal(change->view->epoch, 2);
  assert_int_equal(change->missing[0], 0b1100);
  assert_int_equal(change->view->live_bits[0], 0b0011);
  assert_int_equal(change->view->left_bits[0], 0b1000);
  assert_int_equal(
      meaning(change_to(world_without({}), {}), mep::membership::kAffectedByDeadline)->result,
      MEP_ERR_TIMEOUT);
}

void who_left_stays_so_until_replaced(void**) {
  const auto left = whole()->after(change_to(world_without({1}), {{1, 101, RemovalReason::kLeft}}),
                                   2, kSlots, true);
  const auto later = left->after(change_to(world_without({1, 2}), {{2, 102, RemovalReason::kDied}}),
                                 3, kSlots, true);
  assert_int_equal(later->left_bits[0], 0b0100);
  const auto replaced = later->after(change_to(world_without({2}), {}), 4, kSlots, true);
  assert_int_equal(replaced->left_bits[0], 0);
}

// Ranks that come after the world has grown beyond a comm stay absent there.
void outgrown_admits_nobody(void**) {
  const auto gone = change_to(world_without({1}), {{1, 101, RemovalReason::kDied}});
  const auto before = whole()->after(gone, 2, kSlots, false);
  assert_int_equal(before->live_bits[0], 0b1011);
  const auto refused = before->after(change_to(world_without({}), {}), 3, kSlots, false);
  assert_int_equal(refused->live_bits[0], 0b1011);
  assert_int_equal(refused->epoch, 3);
  const auto later = refused->after(change_to(world_without({2}), {{2, 102, RemovalReason::kDied}}),
                                    4, kSlots, false);
  assert_int_equal(later->live_bits[0], 0b1001);
  // Replaced by the change that takes it out.
  mep::membership::View view = world_without({});
  view.incarnations[3] = 999;
  assert_int_equal(whole()->after(change_to(view, {}), 2, kSlots, false)->live_bits[0], 0b1110);
}

// A change that only lets somebody in is nobody's failure: calls that it cut end by it, later ones begin anew.
void additions_are_not_reported(void**) {
  const auto change = meaning(change_to(world_without({}), {}), 0);
  assert_false(change->is_reported);
  const mep::Decision decision{change, 5, 8};
  assert_true(decision.decides(5));
  assert_false(decision.decides(6));
  const mep::Decision reported{
      meaning(change_to(world_without({1}), {{1, 101, RemovalReason::kDied}}), 0), 5, 8};
  assert_true(reported.decides(7));
  assert_false(reported.decides(8));
}

void each_change_is_reported_once(void**) {
  const auto of_epoch = [](uint64_t epoch) {
    auto change = std::make_shared<mep::CommChange>();
    change->epoch = epoch;
    return change;
  };
  mep::Reports reports;
  assert_false(reports.any());
  for (const uint64_t epoch : {1, 2, 3}) reports.push(of_epoch(epoch));
  assert_int_equal(reports.take()->epoch, 1);
  reports.drop_up_to(2);
  assert_true(reports.any());
  assert_int_equal(reports.take()->epoch, 3);
  assert_null(reports.take().get());
  reports.push(of_epoch(4));
  reports.clear();
  assert_false(reports.any());
}

// After a freeze nobody may begin to post, and whoever had begun is waited for.
void a_freeze_waits_for_posters(void**) {
  for (int round = 0; round < 200; ++round) {
    mep::Channel channel(1, 1);
    mep::PostingGate gate;
    std::atomic<bool> posting{false};
    std::atomic<bool> over{false};
    std::thread poster([&] {
      while (!over.load()) {
        const mep::PostingScope scope(gate, channel, 1);
        if (!scope.allowed()) continue;
        posting.store(true);
        std::this_thread::yield();
        posting.store(false);
      }
    });
    (void)channel.freeze();
    while (!gate.is_empty()) std::this_thread::yield();
    for (int look = 0; look < 50; ++look) assert_false(posting.load());
    over.store(true);
    poster.join();
  }
}

// A post that finds a full queue holds no view change up, and goes on with the same batch where the epoch does.
void a_blocked_poster_steps_aside(void**) {
  using Turn = mep::Poster::Turn;
  mep::Channel channel(1, 1);
  mep::PostingGate gate;
  {
    const mep::PostingScope scope(gate, channel, 1);
    assert_ptr_equal(mep::Poster::current(), &scope);
    assert_true(scope.turn() == Turn::kPost && !gate.is_empty());
    for (int change = 0; change < 2; ++change) {
      (void)channel.freeze();
      assert_false(gate.is_empty());
      assert_true(scope.turn() == Turn::kWait && gate.is_empty());
      assert_true(scope.turn() == Turn::kWait && gate.is_empty());
      channel.resume();
      assert_true(scope.turn() == Turn::kPost && !gate.is_empty());
    }
    (void)channel.freeze();
    channel.restart(2, 0);
    assert_true(scope.turn() == Turn::kOver && gate.is_empty());
    assert_false(scope.allowed());
  }
  assert_null(mep::Poster::current());
  assert_true(gate.is_empty());
  {
    const mep::PostingScope scope(gate, channel, 2);
    (void)channel.freeze();
    assert_true(scope.turn() == Turn::kWait);
    gate.close("c");
    assert_true(scope.turn() == Turn::kOver);
  }
  assert_true(gate.is_empty());
}

void a_record_fills_what_fits(void**) {
  mep::OperationRecord record;
  record.epoch = 3;
  record.seq = 9;
  record.result = MEP_ERR_PEER_FAILED;
  record.failed.assign(mep::rank_words(70), 0);
  mep::add_rank(&record.failed, 69);
  uint64_t failed[3] = {1, 1, 1};
  uint64_t contributors[1] = {1};
  mep_op_info_t info{};
  info.failed = failed;
  info.failed_words = 3;
  assert_int_equal(record.fill(70, &info), MEP_SUCCESS);
  assert_int_equal(info.seq, 9);
  assert_int_equal(failed[0], 0);
  assert_int_equal(failed[1], 1u << 5);
  assert_int_equal(failed[2], 0);
  info.contributors = contributors;
  info.contributors_words = 1;
  assert_int_equal(record.fill(70, &info), MEP_ERR_CAPACITY);
  assert_int_equal(contributors[0], 0);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(deaths_outweigh_what_else_happened),
      cmocka_unit_test(who_left_stays_so_until_replaced),
      cmocka_unit_test(additions_are_not_reported),
      cmocka_unit_test(outgrown_admits_nobody),
      cmocka_unit_test(each_change_is_reported_once),
      cmocka_unit_test(a_freeze_waits_for_posters),
      cmocka_unit_test(a_blocked_poster_steps_aside),
      cmocka_unit_test(a_record_fills_what_fits),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
