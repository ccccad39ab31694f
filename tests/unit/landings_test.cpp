// labels: quick
// Targets and parts of blocks that land in a receive buffer, over a transport that notes what it is asked for.
#include <algorithm>
#include <vector>

#include "core/coll/landings.hpp"
#include "support/cmocka_cpp.hpp"

namespace {

using mep::Landings;
using mep::Remote;

constexpr mep::TransportTraits kTraits{.name = "noting"};

class NotingTransport final : public mep::Transport {
 public:
  NotingTransport() : Transport(kTraits) {}

  std::vector<uint64_t> open_targets;
  std::vector<mep::Posting> posted;
  uint64_t completed = 0;

  mep_result_t open(std::vector<std::byte>* /*offer*/) override { return MEP_SUCCESS; }
  mep_result_t add_peer(const mep::PeerIdentity& /*self*/, const mep::PeerIdentity& /*peer*/,
                        std::span<const std::byte> /*offer*/,
                        const mep::PeerSession& /*session*/) override {
    return MEP_SUCCESS;
  }
  void remove_peer(uint32_t /*slot*/) override {}
  mep::PeerStatus status(uint32_t /*slot*/) const override { return {}; }
  mep_result_t export_window(uint32_t /*slot*/, const std::shared_ptr<mep::Window>& /*window*/,
                             mep::WindowExport* /*out*/) override {
    return MEP_SUCCESS;
  }
  mep_result_t import_window(uint32_t /*slot*/, uint64_t /*window*/, size_t /*bytes*/,
                             std::span<const std::byte> /*blob*/, mep::UniqueFd /*fd*/) override {
    return MEP_SUCCESS;
  }
  void drop_window(uint32_t /*slot*/, uint64_t /*window*/) override {}
  uint64_t open_target(uint32_t /*slot*/, std::byte* /*memory*/, size_t /*bytes*/) override {
    open_targets.push_back(++last_target_);
    return last_target_;
  }
  void close_target(uint32_t /*slot*/, uint64_t target) override {
    assert_int_equal(std::erase(open_targets, target), 1);
  }
  mep_result_t post(uint32_t /*slot*/, mep::Batch* batch) override {
    for (; batch->next < batch->postings.size(); ++batch->next) {
      posted.push_back(batch->postings[batch->next]);
    }
    return MEP_SUCCESS;
  }
  mep_result_t completion(uint32_t /*slot*/, bool /*is_urgent*/, mep::Completion* out) override {
    *out = {posted.size(), completed};
    return MEP_SUCCESS;
  }
  bool progress(bool /*before_sleep*/) override { return false; }
  mep_result_t fence_out(uint32_t /*slot*/) override { return MEP_SUCCESS; }
  void give_up(uint32_t /*slot*/) override {}
  bool quiesced(uint32_t /*slot*/, uint64_t /*number*/) override { return true; }
  void hold_windows(bool /*is_held*/) override {}
  bool take_failure(mep::PeerFailure* /*out*/) override { return false; }

 private:
  uint64_t last_target_ = 0;
};

// This rank is 0. It has rank 1 mapped, and reaches 2 and 3 over the transport.
struct Fixture {
  Fixture() : remotes(4) {
    remotes[1].mapped = memory;
    for (const uint32_t far : {2u, 3u}) remotes[far].transport = &transport;
    landings.open(&remotes);
  }
  NotingTransport transport;
  std::byte memory[8]{};
  std::vector<Remote> remotes;
  Landings landings;
};

void test_every_end_closes(void**) {
  Fixture f;
  f.landings.begin();
  for (const uint32_t source : {1u, 2u, 3u}) f.landings.offer(source, f.memory, sizeof f.memory);
  assert_false(f.landings.is_offered(1));
  assert_true(f.landings.is_offered(2));
  assert_int_equal(f.landings.numbers()[3], f.transport.open_targets[1]);
  // An operation that begins again has other targets.
  f.landings.begin();
  assert_true(f.transport.open_targets.empty());
  assert_false(f.landings.is_offered(2));
  f.landings.offer(3, f.memory, sizeof f.memory);
  assert_int_equal(f.landings.numbers()[3], 3);
  f.landings.close();
  assert_true(f.transport.open_targets.empty());
  f.landings.close();
}

void test_one_part_at_a_time(void**) {
  Fixture f;
  f.landings.begin();
  constexpr uint64_t kNumber = 77;
  const std::vector<std::byte> block(600'000);
  size_t put = 0;
  for (size_t parts = 1; !f.landings.is_put(2, block.size()); ++parts) {
    bool moved = false;
    assert_int_equal(f.landings.put_part(2, kNumber, block.data(), block.size(), &moved),
                     MEP_SUCCESS);
    assert_true(moved);
    assert_int_equal(f.transport.posted.size(), parts);
    const mep::Posting& part = f.transport.posted.back();
    assert_true(part.is_to_target);
    assert_int_equal(part.window, kNumber);
    assert_int_equal(part.offset, put);
    assert_ptr_equal(part.local, block.data() + put);
    put += part.bytes;
    if (put == block.size()) break;
    // The network has not taken it yet.
    assert_int_equal(f.landings.put_part(2, kNumber, block.data(), block.size(), &moved),
                     MEP_SUCCESS);
    assert_false(moved);
    f.transport.completed = parts;
  }
  assert_int_equal(put, block.size());
  assert_true(f.landings.is_put(2, block.size()));
  assert_false(f.landings.is_put(3, block.size()));
  // Another operation begins with nothing put.
  f.landings.begin();
  assert_false(f.landings.is_put(2, block.size()));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(test_every_end_closes),
      cmocka_unit_test(test_one_part_at_a_time),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
