// MEP_FLIGHT_RECORDER: the ring, what mep_info reads of any bytes, and ranks that are late or dead by name.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "core/operation/flight_log.hpp"
#include "info/recorder_file.hpp"
#include "support/comm_stats.hpp"
#include "support/random_numbers.hpp"
#include "support/request_waits.hpp"
#include "support/temporary_folder.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)
using mep::FlightRecorder;
using mep::RecorderFile;
using mep::flight::Kind;
using mep::flight::Record;

using Bytes = std::vector<std::byte>;

mep::ResolvedConfig config_for(const std::string& path) {
  mep::ResolvedConfig config;
  config.flight_recorder = path;
  config.job = "a job";
  return config;
}

Record call_of(uint64_t number) {
  Record record{};
  record.label = {7, 3, "world"};
  record.epoch = 1;
  record.number = number;
  record.kind = mep::flight::kind_of(mep::Collective::k_allreduce);
  return record;
}

Bytes bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  Bytes bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// Through all that mep_info does with them, in memory of just their size.
bool takes(const Bytes& bytes, RecorderFile* file) {
  *file = {};
  std::string problem;
  const bool is_one = mep::parse_recorder(Bytes(bytes), file, &problem);
  assert_true(is_one == problem.empty());
  if (is_one) assert_false(mep::recorder_text({file, 1}).empty());
  return is_one;
}

void a_ring_keeps_the_last(void**) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/7";
  auto recorder = FlightRecorder::open(config_for(folder.path() + "/%r"), 7);
  assert_non_null(recorder.get());
  constexpr uint64_t kCalls = mep::flight::kRecords + 1000;
  for (uint64_t number = 1; number <= kCalls; ++number) {
    assert_int_equal(recorder->begin(call_of(number)), number);
    if (number != kCalls) recorder->end(number, MEP_SUCCESS, 0);
  }
  // A record that the ring has no more is not written to.
  recorder->end(5, MEP_ERR_TIMEOUT, 2);
  assert_false(recorder->again(5, 1, 1));
  recorder->end(kCalls - 1, MEP_ERR_TIMEOUT, 2);
  assert_true(recorder->again(kCalls - 2, 9, 90));
  recorder->note_late(kCalls, 4);
  RecorderFile file;
  assert_true(takes(bytes_of(path), &file));
  assert_int_equal(file.records.size(), mep::flight::kRecords);
  assert_int_equal(file.torn, 0);
  assert_int_equal(file.header.rank, 7);
  assert_string_equal(file.header.job, "a job");
  for (size_t i = 0; i < file.records.size(); ++i) {
    const Record& each = file.records[i];
    assert_int_equal(each.ticket, 1001 + i);
    if (i < file.records.size() - 3) {
      assert_int_equal(each.result, MEP_SUCCESS);
      assert_true(each.ended_ns >= each.begun_ns);
    }
  }
  const Record* const last = &file.records.back();
  assert_int_equal(last->flags, mep::flight::kLate);
  assert_int_equal(last->missing, 4);
  assert_int_equal(last[-1].result, MEP_ERR_TIMEOUT);
  assert_int_equal(last[-1].missing, 2);
  assert_int_equal(last[-2].epoch, 9);
  assert_int_equal(last[-2].flags, 0);
  assert_int_equal(file.header.closed, 0);
  recorder.reset();
  assert_true(takes(bytes_of(path), &file));
  assert_int_equal(file.header.closed, 1);
}

void any_bytes_are_read(void**) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  auto recorder = FlightRecorder::open(config_for(path), 0);
  assert_non_null(recorder.get());
  constexpr size_t kCalls = 40;
  for (uint64_t number = 1; number <= kCalls; ++number) (void)recorder->begin(call_of(number));
  recorder.reset();
  const Bytes good = bytes_of(path);
  RecorderFile file;
  // Cut short.
  for (size_t size = 0; size < 6000; ++size) {
    const bool is_one = takes(Bytes(good.begin(), good.begin() + static_cast<long>(size)), &file);
    const size_t whole = size < sizeof file.header ? 0 : (size - sizeof file.header) / 128;
    assert_true(is_one == (size >= sizeof file.header));
    assert_int_equal(file.records.size(), std::min(whole, kCalls));
  }
  mep_reference::RandomStream random(test_seed());
  for (int tries = 0; tries < 2000; ++tries) {
    // A word of a record that a writer had not stored yet, or any other.
    Bytes torn = good;
    const size_t place = random.below(kCalls);
    const size_t at = sizeof file.header + place * sizeof(Record) + 8 * random.below(size_t{16});
    const uint64_t word = random.bits();
    std::memcpy(torn.data() + at, &word, sizeof word);
    assert_true(takes(torn, &file));
    assert_int_equal(file.records.size(), kCalls - 1);
    assert_int_equal(file.torn, 1);
  }
  for (int tries = 0; tries < 200; ++tries) {
    // A header of garbage, and records of it behind one that is right.
    Bytes garbage(good.begin(), good.begin() + 8000);
    const size_t from = tries % 2 == 0 ? 0 : 24;
    for (size_t i = from; i < garbage.size(); ++i) garbage[i] = std::byte(random.bits());
    assert_true(takes(garbage, &file) == (from != 0));
    assert_int_equal(file.records.size(), 0);
  }
  Bytes other = good;
  other[8] = std::byte{2};
  assert_false(takes(other, &file));
  std::string problem;
  assert_false(mep::read_recorder(folder.path() + "/none", &file, &problem));
  assert_false(mep::read_recorder(folder.path(), &file, &problem));
}

// --- Jobs -----------------------------------------------------------------------------------------

struct Job {
  std::string text;
  std::vector<RecorderFile> files;
};

Job read_job(const std::string& folder, int ranks) {
  Job job;
  for (int rank = 0; rank < ranks; ++rank) {
    RecorderFile file;
    std::string problem;
    if (mep::read_recorder(folder + "/" + std::to_string(rank), &file, &problem)) {
      job.files.push_back(std::move(file));
    }
  }
  job.text = mep::recorder_text(job.files);
  return job;
}

void expect_text(const std::string& text, const std::string& wanted, bool is_there, Report& found) {
  if ((text.find(wanted) != std::string::npos) == is_there) return;
  found.add("%s \"%s\" in:\n%s", is_there ? "no" : "a", wanted.c_str(), text.c_str());
}

bool waits_in(const RecorderFile& file, Kind kind) {
  return !file.records.empty() && file.records.back().kind == kind &&
         (file.records.back().flags & mep::flight::kEnded) == 0;
}

// Rank 2 is killed, rank 3 does not call until it is told to; 0 and 1 wait for it.
void the_late_and_the_dead_are_named(void**) {
  const TemporaryFolder folder;
  const std::string go = folder.path() + "/go";
  setenv("MEP_FLIGHT_RECORDER", (folder.path() + "/%r").c_str(), 1);
  const auto allreduce = mep::flight::kind_of(mep::Collective::k_allreduce);
  Report report;
  const auto body = [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    if (rank == 2) (void)raise(SIGKILL);
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
    for (int tries = 0; rank == 3 && tries < 3000 && access(go.c_str(), F_OK) != 0; ++tries) {
      pause_us(10'000);
    }
    int64_t one = 1;
    int64_t sum = 0;
    if (rank != 0) {
      COLL_OK(found, mep_allreduce(&one, &sum, 1, MEP_INT64, MEP_SUM, comm, nullptr));
      return;
    }
    mep_request_t request = nullptr;
    COLL_OK(found, mep_iallreduce(&one, &sum, 1, MEP_INT64, MEP_SUM, comm, nullptr, &request));
    Job job;
    for (int tries = 0; tries < 1000; ++tries) {
      job = read_job(folder.path(), 4);
      if (job.files.size() == 4 && waits_in(job.files[1], allreduce)) break;
      pause_us(10'000);
    }
    std::ofstream(go) << "go";
    COLL_OK(found, wait_in(&request, 60'000));
    expect_text(job.text, "allreduce 4 of world, epoch 2, 8 bytes of int64: ranks 0, 1 since", true,
                found);
    expect_text(job.text, "rank 3 has not begun it: its process runs", true, found);
    expect_text(job.text, "its last was barrier 3 of world", true, found);
    expect_text(job.text, "rank 1 has not begun it", false, found);
    expect_text(job.text, "without rank 2\n", true, found);
    expect_text(job.text, "process " + std::to_string(job.files[2].header.pid) + " is gone", true,
                found);
  };
  with_rank_processes(4, patient_config(0), report, body, [](int rank, int) { return rank == 2; });
  unsetenv("MEP_FLIGHT_RECORDER");
  const Job job = read_job(folder.path(), 4);
  COLL_CHECK(report, job.files.size() == 4);
  expect_text(job.text, "Operations that have not ended\n  none\n", true, report);
  for (const RecorderFile& file : job.files) {
    COLL_CHECK(report, file.header.closed == (file.header.rank == 2 ? 0 : 1));
    COLL_CHECK(report, !file.is_running && file.torn == 0);
  }
  report.require_clean();
}

void messages_and_buffers_are_recorded(void**) {
  const TemporaryFolder folder;
  setenv("MEP_FLIGHT_RECORDER", (folder.path() + "/%r").c_str(), 1);
  Report report;
  with_rank_processes(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    int64_t value = rank;
    int64_t other = 0;
    COLL_OK(found, mep_sendrecv(&value, 1, 1 - rank, 5, &other, 1, 1 - rank, 5, MEP_INT64, comm,
                                nullptr, nullptr));
    CountedCalls(rank, 2, comm, found).moe(1);
    mep_request_t request = nullptr;
    if (rank == 0) {
      COLL_OK(found, mep_irecv(&other, 1, MEP_INT64, 1, 6, comm, nullptr, nullptr, &request));
      expect_text(read_job(folder.path(), 1).text,
                  "recv 3 of world, epoch 1, 8 bytes of int64, from rank 1: rank 0 since", true,
                  found);
    }
    COLL_OK(found, mep_barrier(comm, nullptr));
    if (rank == 1) COLL_OK(found, mep_send(&value, 1, MEP_INT64, 0, 6, comm, nullptr));
    if (rank == 0) COLL_OK(found, wait_in(&request, 60'000));
  });
  unsetenv("MEP_FLIGHT_RECORDER");
  const Job job = read_job(folder.path(), 2);
  expect_text(job.text, "dispatch 1 of world, epoch 1\n", true, report);
  expect_text(job.text, "combine 2 of world, epoch 1\n", true, report);
  expect_text(job.text, "send 1 of world, epoch 1, 8 bytes of int64, to rank 1\n", true, report);
  expect_text(job.text, "Operations that have not ended\n  none\n", true, report);
  report.require_clean();
}

mep_result_t init(int32_t count) {
  mep_comm_t comms[2] = {};
  const mep_comm_config_t config = patient_config(0);
  const mep_result_t result = mep_comm_init_all(count, &config, comms);
  for (mep_comm_t each : comms) {
    if (result == MEP_SUCCESS && each != nullptr) {
      assert_int_equal(mep_comm_destroy(each), MEP_SUCCESS);
    }
  }
  return result;
}

void bad_files_are_refused_or_warned_of(void**) {
  const TemporaryFolder folder;
  setenv("MEP_FLIGHT_RECORDER", (folder.path() + "/all").c_str(), 1);
  assert_int_equal(init(2), MEP_ERR_INVALID_ARGUMENT);
  assert_non_null(strstr(mep_last_error(), "MEP_FLIGHT_RECORDER"));
  assert_int_equal(init(1), MEP_SUCCESS);
  assert_int_equal(access((folder.path() + "/all").c_str(), R_OK), 0);
  // A directory that is not there, and one without room, cost the job nothing else.
  setenv("MEP_FLIGHT_RECORDER", (folder.path() + "/none/%r").c_str(), 1);
  assert_int_equal(init(2), MEP_SUCCESS);
  unsetenv("MEP_FLIGHT_RECORDER");
  (void)signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  assert_null(FlightRecorder::open(config_for(folder.path() + "/full"), 0).get());
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_not_equal(access((folder.path() + "/full").c_str(), F_OK), 0);
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_ring_keeps_the_last),
      cmocka_unit_test(any_bytes_are_read),
      cmocka_unit_test(the_late_and_the_dead_are_named),
      cmocka_unit_test(messages_and_buffers_are_recorded),
      cmocka_unit_test(bad_files_are_refused_or_warned_of),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
