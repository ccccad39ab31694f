// Which losses show, and which are forgotten, as ranks go, come back and go again.
// labels: quick
#include "core/comm/losses.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

constexpr uint32_t kRanks = 3;

mep::CommView view_of(uint64_t epoch, std::initializer_list<uint32_t> live) {
  mep::CommView view;
  view.epoch = epoch;
  view.live_bits.assign(mep::rank_words(kRanks), 0);
  for (const uint32_t rank : live) mep::add_rank(&view.live_bits, rank);
  return view;
}

void expect(mep::Losses& losses, std::initializer_list<int32_t> expected) {
  int32_t lost[kRanks] = {7, 7, 7};
  losses.show(lost);
  uint32_t rank = 0;
  for (const int32_t each : expected) assert_int_equal(lost[rank++], each);
}

void shows_until_it_is_forgotten(void**) {
  mep::Losses losses(kRanks);
  losses.note(view_of(1, {0, 1, 2}));
  expect(losses, {0, 0, 0});
  losses.note(view_of(2, {0, 2}));
  losses.forget();  // nothing was shown of it
  expect(losses, {0, 1, 0});
  losses.note(view_of(3, {0}));
  losses.forget();  // rank 1 alone was shown
  expect(losses, {0, 0, 1});
}

void shows_again_where_a_rank_goes_again(void**) {
  mep::Losses losses(kRanks);
  losses.note(view_of(5, {0, 1}));  // one that was never there
  expect(losses, {0, 0, 1});
  losses.forget();
  losses.note(view_of(6, {0}));
  expect(losses, {0, 1, 0});
  losses.forget();
  losses.note(view_of(7, {0, 1, 2}));
  losses.note(view_of(8, {0, 2}));
  expect(losses, {0, 1, 0});
}

void keeps_its_state_where_its_memory_moves(void**) {
  uint64_t words[mep::Losses::bytes(kRanks) / sizeof(uint64_t)];
  mep::Losses losses(kRanks);
  losses.note(view_of(2, {0}));
  expect(losses, {0, 1, 1});
  losses.move_to(words);
  losses.forget();
  losses.note(view_of(3, {0, 1}));
  losses.move_to(nullptr);
  losses.note(view_of(4, {0}));
  expect(losses, {0, 1, 0});
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(shows_until_it_is_forgotten),
                              cmocka_unit_test(shows_again_where_a_rank_goes_again),
                              cmocka_unit_test(keeps_its_state_where_its_memory_moves)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
