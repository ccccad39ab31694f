// The choice between adapters and software NICs, by ranks that are threads and adapters that a model plays: each step
// refused once, puts that fail, do not end, do not arrive or arrive as others; joiners.
// labels: gate threads tsan asan
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "core/queued/queue_nic.hpp"
#include "support/queued_ranks.hpp"

using namespace mep_test;

namespace {

using mep::GpuQueues;
using mep::QueueNic;
using mep::test::Firmware;
using mep::test::ModelFabric;

constexpr uint32_t kRanks = 3;
constexpr uint32_t kBad = 1;
constexpr uint64_t kShortMs = 300;

// The models that ranks find when they open adapters.
ModelFabric* fabric = nullptr;
std::atomic<uint32_t> refused_step{UINT32_MAX};  // of the rank kBad
std::function<void()> all_open;                  // by the last rank that opens one
std::mutex mutex;                                // of what follows
std::array<Firmware*, kRanks> opened{};
size_t number_opened = 0;
uint32_t number_made = 0;
std::vector<std::string> warnings;

mep_result_t open_model(int32_t rank, const std::string& /*near*/, std::string* name,
                        std::unique_ptr<mep::test::m::Device>* out) {
  *name = "model" + std::to_string(rank);
  mep::test::ModelPort port;
  port.is_ethernet = true;
  port.gid.fill(static_cast<uint8_t>(0x40 + rank));
  port.mac.fill(static_cast<uint8_t>(0x60 + rank));
  const std::lock_guard lock(mutex);
  // Queue pairs have 24 bits, and each adapter numbers of its own.
  auto firmware = std::make_unique<Firmware>(fabric, port, ++number_made << 12);
  if (rank == kBad) firmware->refuse_at = refused_step;
  opened[static_cast<size_t>(rank)] = firmware.get();
  if (++number_opened == kRanks && all_open) all_open();
  *out = std::move(firmware);
  return MEP_SUCCESS;
}

void note_warning(void*, int32_t, const char* line) {
  const std::lock_guard lock(mutex);
  if (std::string(line).find("MEP_GPU_QUEUES=auto") != std::string::npos) warnings.push_back(line);
}

std::string all_warnings() {
  const std::lock_guard lock(mutex);
  std::string found;
  for (const std::string& line : warnings) found += "\n" + line;
  return found;
}

size_t warnings_with(const std::string& text) {
  const std::lock_guard lock(mutex);
  size_t found = 0;
  for (const std::string& line : warnings) found += line.find(text) != std::string::npos ? 1 : 0;
  return found;
}

// For its life adapters are those of a model.
class Models {
 public:
  explicit Models(uint64_t test_ms) {
    mep::adapter_access() = {open_model, test_ms};
    fabric = &fabric_;
    number_opened = number_made = 0;
    warnings.clear();
    assert_int_equal(mep::set_log_callback(note_warning, nullptr), MEP_SUCCESS);
  }
  ~Models() {
    (void)mep::set_log_callback(nullptr, nullptr);
    mep::adapter_access() = before_;
    all_open = {};
    refused_step = UINT32_MAX;
  }
  Models(const Models&) = delete;
  Models& operator=(const Models&) = delete;

  ModelFabric& fabric_of_all() { return fabric_; }

 private:
  const mep::AdapterAccess before_ = mep::adapter_access();
  ModelFabric fabric_;
};

mep_result_t choose(mep_comm_t comm, GpuQueues queues, QueueNic* nic) {
  const mep_result_t begun = nic->begin(*comm->comm, queues, {}, {});
  return begun == MEP_SUCCESS ? nic->finish() : begun;
}

// Posters send each other data by what was chosen.
void use(mep_comm_t comm, QueueNic* nic, Report& report) {
  std::unique_ptr<mep::gpu_queue::NicPairs> made;
  COLL_OK(report, nic->make_pairs(&made));
  Pairs pairs(comm, std::move(made), 16, report);
  COLL_OK(report, pairs.make(0x5b'0000));
  if (!report.bad()) run_traffic(&pairs, 2, all);
  COLL_OK(report, mep_barrier(comm, nullptr));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Adapters that are forced are an error on all ranks. *whose: the text of the rank kBad.
void expect_error(mep_comm_t comm, std::string* whose, Report& report) {
  QueueNic nic;
  const mep_result_t result = choose(comm, GpuQueues::kAdapter, &nic);
  const std::string text = mep::last_error_text();
  COLL_CHECK(report, mep::is_error(result) && !nic.uses_adapter());
  if (!contains(text, "MEP_GPU_QUEUES=adapter: rank ") || !contains(text, " could not ") ||
      !contains(text, "MEP_GPU_QUEUES=host")) {
    report.add("%s", text.c_str());
  }
  if (comm->comm->rank() == kBad) *whose = text;
}

// --- Tests ----------------------------------------------------------------------------------------

void adapters_that_work_are_used(void**) {
  for (const GpuQueues queues : {GpuQueues::kAuto, GpuQueues::kAdapter}) {
    const Models models(kLimitMs);
    require_on_rank_threads(kRanks, 0, [&](int, mep_comm_t comm, Report& report) {
      QueueNic nic;
      COLL_OK(report, choose(comm, queues, &nic));
      COLL_CHECK(report, nic.uses_adapter());
      use(comm, &nic, report);
    });
    assert_int_equal(warnings_with(""), 0);
  }
}

// Each rank has one warning, and the one that was refused says by which adapter.
void each_step_refused_once(void**) {
  const Models models(kLimitMs);
  std::atomic<uint32_t> steps{0};
  std::string text;
  require_on_rank_threads(kRanks, 0, [&](int rank, mep_comm_t comm, Report& report) {
    for (uint32_t step = 0; !report.bad(); ++step) {
      COLL_CHECK(report, step < 100);
      if (rank == kBad) {
        refused_step = step;
        warnings.clear();
      }
      COLL_OK(report, mep_barrier(comm, nullptr));
      QueueNic nic;
      COLL_OK(report, choose(comm, GpuQueues::kAuto, &nic));
      use(comm, &nic, report);
      if (nic.uses_adapter()) break;
      if (warnings_with("") != kRanks || warnings_with("rank 1 could not ") != kRanks ||
          warnings_with("HCA model1: ") != 1) {
        report.add("step %u:%s", step, all_warnings().c_str());
      }
      if (step % 4 == 0) expect_error(comm, &text, report);
      COLL_OK(report, mep_barrier(comm, nullptr));
      if (rank == kBad && step % 4 == 0) COLL_CHECK(report, contains(text, "HCA model1: "));
      if (rank == kBad) steps = step;
    }
  });
  printf("%u steps were refused\n", steps.load() + 1);
  assert_true(steps >= 20);
}

struct Fault {
  const char* what;
  uint64_t test_ms;
  std::function<void(ModelFabric*)> make;
  const char* text;  // of the rank kBad
};

const Fault kFaults[] = {
    {"no completions", kShortMs, [](ModelFabric* all) { all->faults.never_completes = true; },
     "HCA model1: 0 of 1 requests of a put to rank 0"},
    {"a completion with an error", kLimitMs, [](ModelFabric* all) { all->faults.fails_at = 0; },
     "HCA model1: a put to rank 0 had an error at request "},
    {"a link one way", kShortMs,
     [](ModelFabric* all) {
       all_open = [all] {
         all->cut_from = opened[0]->number();
         all->cut_to = opened[kBad]->number();
         number_opened = 0;
       };
     },
     "HCA model1: a put of rank 0 did not arrive"},
    {"other bytes", kLimitMs, [](ModelFabric* all) { all->spoils = true; },
     "HCA model1: a put of rank 0 arrived with other bytes"},
};

void what_puts_come_to_is_told(void**) {
  for (const Fault& fault : kFaults) {
    printf("%s\n", fault.what);
    Models models(fault.test_ms);
    fault.make(&models.fabric_of_all());
    std::string text;
    require_on_rank_threads(kRanks, 0, [&](int, mep_comm_t comm, Report& report) {
      QueueNic nic;
      COLL_OK(report, choose(comm, GpuQueues::kAuto, &nic));
      COLL_CHECK(report, !nic.uses_adapter());
      use(comm, &nic, report);
      if (warnings_with("") != kRanks || warnings_with(fault.text) != 1) {
        report.add("%s", all_warnings().c_str());
      }
      expect_error(comm, &text, report);
    });
    if (!contains(text, fault.text)) fail_msg("%s", text.c_str());
  }
}

void joiners_follow_the_members(void**) {
  const Models models(kLimitMs);
  struct Case {
    GpuQueues queues;
    bool uses_adapter;
    uint32_t refused;
    const char* text;  // null: it joins
  };
  const Case cases[] = {
      {GpuQueues::kHost, false, UINT32_MAX, nullptr},
      {GpuQueues::kAuto, false, 0, nullptr},
      {GpuQueues::kAdapter, true, UINT32_MAX, nullptr},
      {GpuQueues::kAuto, true, UINT32_MAX, nullptr},
      {GpuQueues::kHost, true, UINT32_MAX, "rank 1 wants MEP_GPU_QUEUES=adapter"},
      {GpuQueues::kAdapter, false, UINT32_MAX, "rank 1 wants MEP_GPU_QUEUES=host"},
      {GpuQueues::kAuto, true, 0, "rank 1 could not open one: HCA model1: "},
      {GpuQueues::kAdapter, true, 1, "rank 1 could not open one: HCA model1: "},
  };
  for (const Case& each : cases) {
    refused_step = each.refused;
    QueueNic nic;
    const mep_result_t expected = each.text == nullptr ? MEP_SUCCESS : MEP_ERR_MISMATCH;
    assert_int_equal(nic.join(each.queues, each.uses_adapter, kBad, {}), expected);
    if (each.text == nullptr) {
      assert_int_equal(nic.uses_adapter(), each.uses_adapter);
    } else if (!contains(mep::last_error_text(), each.text)) {
      fail_msg("%s", mep::last_error_text());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  setenv("MEP_LOG", "warn", 1);  // which it reads
  const CMUnitTest tests[] = {
      cmocka_unit_test(adapters_that_work_are_used), cmocka_unit_test(each_step_refused_once),
      cmocka_unit_test(what_puts_come_to_is_told), cmocka_unit_test(joiners_follow_the_members)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
