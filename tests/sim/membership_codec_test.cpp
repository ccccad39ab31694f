// Rows and views as bytes: what is written comes back, and no bytes whatever do harm. Run it under
// ASan and UBSan for the full effect. MEP_TEST_SEED replays.
#include "core/membership/row.hpp"
#include "support/cmocka_cpp.hpp"
#include "support/random_numbers.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

using namespace mep::membership;
using mep_reference::RandomStream;

constexpr uint32_t kSlots = 300;

std::string some_text(RandomStream& random) {
  std::string text;
  for (uint32_t i = random.below(kMaxReasonBytes + 1); i > 0; --i) text += 'x';
  return text;
}

SlotSet some_slots(RandomStream& random) {
  SlotSet set;
  const uint32_t count = random.percent(30) ? random.below(kSlots) : random.below(4);
  for (uint32_t i = 0; i < count; ++i) set.add(random.below(kSlots));
  return set;
}

ProposalPtr some_value(RandomStream& random) {
  auto value = std::make_shared<Proposal>();
  value->epoch = random.bits();
  value->origin = {random.below(100), random.below(100)};
  value->proposer = random.below(kSlots);
  value->members = some_slots(random);
  value->members.each([&](uint32_t slot) {
    if (random.percent(20)) value->added.push_back({slot, random.bits(), random.bits()});
  });
  for (uint32_t slot = 0; slot < kSlots; ++slot)
    if (!value->members.has(slot) && random.percent(3))
      value->removed.push_back({slot, random.bits(),
                                static_cast<RemovalReason>(1 + random.below(6)),
                                some_text(random)});
  for (uint32_t i = random.below(5); i > 0; --i) {
    value->comms.push_back({random.bits(), random.bits()});
    value->channels.push_back({random.bits(), random.bits(), random.bits(), random.bits(),
                               random.bits(), random.percent(50) ? kNoSlot : random.below(kSlots),
                               some_slots(random)});
    value->settled.push_back({random.bits(), random.bits(), random.bits()});
    value->revoked.push_back(random.bits());
  }
  value->recover_seq = random.bits();
  return value;
}

Row some_row(RandomStream& random) {
  Row row;
  row.slot = random.below(kSlots);
  row.incarnation = random.bits();
  row.version = random.bits();
  row.epoch = random.bits();
  row.standing = static_cast<Standing>(random.below(4));
  for (SlotSet* set : {&row.dead, &row.left, &row.gave_up, &row.link_down, &row.silent, &row.evict,
                       &row.suspected, &row.recover_wanted})
    *set = some_slots(random);
  if (random.percent(30)) row.reasons.push_back({random.below(kSlots), some_text(random)});
  row.round = random.below(9);
  row.frozen = random.percent(50);
  for (uint32_t i = random.below(6); i > 0; --i) {
    row.comms.push_back({random.bits(), random.bits()});
    row.channels.push_back({random.bits(), random.bits(), random.bits(), random.bits()});
    row.settle.push_back({random.bits(), random.bits(), random.bits()});
    row.revoke.push_back(random.bits());
    row.catch_up.push_back({random.bits(), random.bits(), random.bits(), random.bits(), 3});
    row.ready.push_back({random.below(kSlots), random.bits(), random.bits()});
  }
  if (random.percent(70)) row.offer = {{1, 2}, random.below(kSlots), some_value(random)};
  if (random.percent(50))
    row.accepted = {{3, 4}, 5, random.percent(50) ? row.offer.value : some_value(random)};
  if (random.percent(50)) row.committed = some_value(random);
  row.recover_seq = random.below(5);
  row.recover_expired = random.percent(50);
  return row;
}

void check_same_value(const ProposalPtr& a, const ProposalPtr& b) {
  assert_int_equal(a == nullptr, b == nullptr);
  if (a == nullptr) return;
  assert_true(a->same_value(*b));
  assert_true(a->members == b->members);
  assert_true(a->added == b->added && a->removed == b->removed && a->comms == b->comms);
  assert_true(a->channels == b->channels && a->revoked == b->revoked);
  assert_true(a->settled == b->settled);
  assert_int_equal(a->recover_seq, b->recover_seq);
}

void rows_come_back(void**) {
  RandomStream random(mep_reference::seed_of_run(20240611));
  for (int i = 0; i < 500; ++i) {
    const Row row = some_row(random);
    const std::vector<uint8_t> bytes = encode_row(row);
    std::string error;
    const RowPtr back = decode_row(bytes, kSlots, &error);
    if (back == nullptr) fail_msg("not decoded: %s", error.c_str());
    assert_true(encode_row(*back) == bytes);
    assert_int_equal(back->slot, row.slot);
    assert_int_equal(back->incarnation, row.incarnation);
    assert_int_equal(back->version, row.version);
    assert_int_equal(back->epoch, row.epoch);
    assert_int_equal(back->round, row.round);
    assert_true(back->standing == row.standing && back->frozen == row.frozen);
    assert_true(back->dead == row.dead && back->left == row.left && back->silent == row.silent);
    assert_true(back->gave_up == row.gave_up && back->reasons == row.reasons);
    assert_true(back->link_down == row.link_down && back->evict == row.evict);
    assert_true(back->suspected == row.suspected && back->recover_wanted == row.recover_wanted);
    assert_true(back->comms == row.comms && back->channels == row.channels);
    assert_true(back->settle == row.settle && back->revoke == row.revoke);
    assert_true(back->catch_up == row.catch_up && back->ready == row.ready);
    assert_true(back->offer.ballot == row.offer.ballot &&
                back->accepted.leader == row.accepted.leader);
    check_same_value(back->offer.value, row.offer.value);
    check_same_value(back->accepted.value, row.accepted.value);
    check_same_value(back->committed, row.committed);
  }
}

// A row has no bound of its own: what a world has is told whole.
void large_rows_come_back(void**) {
  RandomStream random(mep_reference::seed_of_run(20240611));
  Row row = some_row(random);
  auto value = std::make_shared<Proposal>(*some_value(random));
  for (uint64_t i = 0; i < 100'000; ++i) {
    row.channels.push_back({random.below(100), i, random.bits(), random.bits()});
    value->channels.push_back(
        {random.below(100), i, random.bits(), random.bits(), random.bits(), kNoSlot, {}});
  }
  row.offer = {{1, 2}, 0, value};
  const RowPtr back = decode_row(encode_row(row), kSlots, nullptr);
  assert_non_null(back.get());
  assert_true(back->channels == row.channels);
  check_same_value(back->offer.value, value);
  // Each is found, in whatever order they are.
  for (const ChannelDecision& decision : value->channels) {
    const ChannelDecision* found = back->offer.value->decision(decision.comm, decision.channel);
    assert_true(found != nullptr && *found == decision);
  }
  assert_null(back->offer.value->decision(100, 7));
}

void views_come_back(void**) {
  RandomStream random(mep_reference::seed_of_run(20240611));
  for (int i = 0; i < 200; ++i) {
    View view;
    view.epoch = random.bits();
    some_slots(random).each([&](uint32_t slot) { view.put({slot, random.bits(), random.bits()}); });
    std::vector<uint8_t> bytes = encode_view(view);
    View back;
    assert_true(decode_view(bytes, kSlots, &back, nullptr));
    assert_true(back.members == view.members);
    view.members.each([&](uint32_t slot) {
      assert_int_equal(back.incarnation(slot), view.incarnation(slot));
      assert_int_equal(back.host(slot), view.host(slot));
    });
    for (size_t cut = 0; cut < bytes.size(); ++cut)
      assert_false(decode_view({bytes.data(), cut}, kSlots, &back, nullptr));
    bytes.push_back(0);
    assert_false(decode_view(bytes, kSlots, &back, nullptr));
  }
}

void short_and_long_rows_are_refused(void**) {
  RandomStream random(mep_reference::seed_of_run(20240611));
  const std::vector<uint8_t> bytes = encode_row(some_row(random));
  std::string error;
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    // A copy of its own size, so that a sanitizer sees any read beyond it.
    const std::vector<uint8_t> part(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(cut));
    assert_null(decode_row(part, kSlots, &error).get());
  }
  std::vector<uint8_t> more = bytes;
  more.push_back(0);
  assert_null(decode_row(more, kSlots, &error).get());
  assert_string_equal(error.c_str(), "bad membership row: bytes behind the end");
}

void hostile_rows_do_no_harm(void**) {
  RandomStream random(mep_reference::seed_of_run(20240611));
  uint64_t taken = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<uint8_t> bytes = encode_row(some_row(random));
    for (uint32_t edits = 1 + random.below(4); edits > 0; --edits) {
      const size_t at = random.bits() % bytes.size();
      if (random.percent(50)) {
        bytes[at] = static_cast<uint8_t>(random.bits());
      } else {
        for (size_t k = at; k < at + 4 && k < bytes.size(); ++k) bytes[k] = 0xff;
      }
    }
    const RowPtr row = decode_row(bytes, kSlots, nullptr);
    if (row == nullptr) continue;
    ++taken;
    assert_true(row->slot < kSlots);
    row->suspected.each([](uint32_t slot) { assert_true(slot < kSlots); });
    for (const Member& member : row->ready) assert_true(member.slot < kSlots);
    for (const ProposalPtr& value : {row->offer.value, row->accepted.value, row->committed}) {
      if (value == nullptr) continue;
      for (const Member& member : value->added) assert_true(value->members.has(member.slot));
    }
  }
  assert_true(taken > 0);
  for (int i = 0; i < 3000; ++i) {
    std::vector<uint8_t> noise(random.below(200));
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random.bits());
    assert_null(decode_row(noise, kSlots, nullptr).get());
  }
}

void slots_beyond_the_world_are_refused(void**) {
  Row row;
  row.slot = 5;
  assert_non_null(decode_row(encode_row(row), 6, nullptr).get());
  assert_null(decode_row(encode_row(row), 5, nullptr).get());
  row.slot = 0;
  row.suspected.add(70);
  assert_non_null(decode_row(encode_row(row), 71, nullptr).get());
  assert_null(decode_row(encode_row(row), 70, nullptr).get());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(rows_come_back),
      cmocka_unit_test(large_rows_come_back),
      cmocka_unit_test(views_come_back),
      cmocka_unit_test(short_and_long_rows_are_refused),
      cmocka_unit_test(hostile_rows_do_no_harm),
      cmocka_unit_test(slots_beyond_the_world_are_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
