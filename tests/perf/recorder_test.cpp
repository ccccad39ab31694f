// MEP_FLIGHT_RECORDER: the ring, what mep_info reads of any bytes, and ranks that are late or dead by name, from files and
// from running processes.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "core/operation/flight_log.hpp"
#include "info/recorder_report.hpp"
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

uint64_t begin_call(FlightRecorder& recorder, uint64_t number) {
  static const mep::FlightLabel label({7, 3, "world"});
  const auto kind = mep::flight::kind_of(mep::Collective::k_allreduce);
  return recorder.begin(label, {.epoch = 1, .number = number, .kind = kind}, mep::flight::kNoPeer);
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
  if (!is_one) return false;
  std::vector<RecorderFile> files{*file};
  assert_false(mep::recorder_text(&files, true).empty());
  assert_false(mep::recorder_json(&files, {}).empty());
  return true;
}

void a_ring_keeps_the_last(void**) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/7";
  auto recorder = FlightRecorder::open(config_for(folder.path() + "/%r"), 7);
  assert_non_null(recorder.get());
  constexpr uint64_t kCalls = mep::flight::kFileRecords + 1000;
  for (uint64_t number = 1; number <= kCalls; ++number) {
    assert_int_equal(begin_call(*recorder, number), number);
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
  assert_int_equal(file.records.size(), mep::flight::kFileRecords);
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
  for (uint64_t number = 1; number <= kCalls; ++number) (void)begin_call(*recorder, number);
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
    const size_t word_at = random.below(size_t{16});
    const size_t at = sizeof file.header + place * sizeof(Record) + 8 * word_at;
    const uint64_t word = random.bits();
    std::memcpy(torn.data() + at, &word, sizeof word);
    assert_true(takes(torn, &file));
    // The end of an operation is there whenever its words are.
    const bool may_change = word_at == 10 || word_at == 12 || word_at == 13;
    assert_int_equal(file.torn, may_change ? 0 : 1);
    assert_int_equal(file.records.size(), kCalls - file.torn);
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
  other[8] = std::byte{1};
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
  job.text = mep::recorder_text(&job.files, true);
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
      // Rank 3 has left the barrier that failed, and rank 1 is in the next operation.
      if (job.files.size() == 4 && waits_in(job.files[1], allreduce) &&
          job.files[3].records.size() == 3 &&
          (job.files[3].records.back().flags & mep::flight::kEnded) != 0) {
        break;
      }
      pause_us(10'000);
    }
    std::ofstream(go) << "go";
    COLL_OK(found, wait_in(&request, 60'000));
    expect_text(job.text, "allreduce 4 of world, epoch 2, 8 bytes of int64, since ", true, found);
    expect_text(job.text, "    ranks 0, 1 wait; ranks 2, 3 have not begun it\n", true, found);
    expect_text(job.text,
                "gdb -p " + std::to_string(job.files[3].pid) + "  (last: barrier 3 of world", true,
                found);
    expect_text(job.text, "without rank 2\n", true, found);
    expect_text(job.text, "process " + std::to_string(job.files[2].header.pid) + " is gone", true,
                found);
  };
  with_rank_processes(4, patient_config(0), report, body, [](int rank, int) { return rank == 2; });
  unsetenv("MEP_FLIGHT_RECORDER");
  const Job job = read_job(folder.path(), 4);
  COLL_CHECK(report, job.files.size() == 4);
  expect_text(job.text, ": all operations have ended\n", true, report);
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
                  "recv 3 of world, epoch 1, 8 bytes of int64, from rank 1, since ", true, found);
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
  expect_text(job.text, ": all operations have ended\n", true, report);
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

// --- Running processes ----------------------------------------------------------------------------

std::string output_of(const std::string& command) {
  std::string text;
  FILE* const pipe = popen(command.c_str(), "re");
  assert_non_null(pipe);
  char line[512];
  while (fgets(line, sizeof line, pipe) != nullptr) text += line;
  (void)pclose(pipe);
  return text;
}

std::string mep_info(const std::string& arguments) {
  return output_of(std::string(MEP_INFO) + " --recorder " + arguments);
}

// Rank 3 is killed, rank 2 does not call until it may; 0 and 1 wait for it. Nobody has named a file.
void a_running_job_is_found(void**) {
  const TemporaryFolder folder;
  const std::string go = folder.path() + "/go";
  Report report;
  const auto body = [&](int rank, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    if (rank == 3) (void)raise(SIGKILL);
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
    for (int tries = 0; rank == 2 && tries < 6000 && access(go.c_str(), F_OK) != 0; ++tries) {
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
    const std::string job = std::string("--job ") + getenv("MEP_JOB");
    const std::string verdict = "ranks 0, 1 wait; rank 2 has not begun it; no records of rank 3\n";
    std::string text;
    const std::string last = "(last: barrier 3 of world, epoch 1)\n";
    for (int tries = 0; tries < 100; ++tries) {
      text = mep_info(job);
      if (text.find(verdict) != std::string::npos && text.find(last) != std::string::npos) break;
    }
    const std::string whole = mep_info(job + " --all");
    const std::string any = mep_info("");
    const std::string other = mep_info(job + "x 2>&1");
    const std::string json = output_of(
        MEP_INFO " --recorder --json " + job +
        " | " MEP_PYTHON
        " -c 'import json, sys; job, = json.load(sys.stdin)[\"jobs\"]; op = "
        "job[\"operations\"][0]; "
        "print(op[\"operation\"], op[\"wait\"], op[\"have_not_begun\"], op[\"no_records\"], "
        "job[\"look_at\"], [len(r[\"records\"]) for r in job[\"ranks\"]])'");
    const mep::RecorderSearch search = mep::find_recorders(getenv("MEP_JOB"));
    std::ofstream(go) << "go";
    COLL_OK(found, wait_in(&request, 60'000));
    COLL_CHECK(found, search.files.size() == 3);
    for (const RecorderFile& file : search.files) {
      if (file.header.rank != 2) continue;
      expect_text(text, ": gdb -p " + std::to_string(file.header.pid) + "  (last", true, found);
    }
    expect_text(text, verdict, true, found);
    expect_text(text, "  rank 2 on ", true, found);
    expect_text(text, last, true, found);
    expect_text(text, "rank 3: on another host, or ended: MEP_FLIGHT_RECORDER=FILE alone", true,
                found);
    expect_text(text, "Files", false, found);
    expect_text(whole, "Files\n", true, found);
    expect_text(whole, "barrier 1 of world, epoch 1\n", true, found);
    expect_text(whole, text, true, found);
    expect_text(any, text, true, found);
    expect_text(other, "mep_info: no records of job ", true, found);
    expect_text(json, "allreduce [0, 1] [2] [3] [2] [4, 4, 3]\n", true, found);
  };
  with_rank_processes(4, patient_config(0), report, body, [](int rank, int) { return rank == 3; });
  report.require_clean();
}

size_t recorders_here() {
  size_t count = 0;
  for (const RecorderFile& file : mep::find_recorders("").files) {
    if (file.header.pid == static_cast<uint32_t>(getpid())) ++count;
  }
  return count;
}

void it_is_switched_off(void**) {
  mep_comm_config_t config = patient_config(0);
  for (const char* word : {"0", "off", "1", ""}) {
    setenv("MEP_FLIGHT_RECORDER", word, 1);
    mep_comm_t comms[2] = {};
    assert_int_equal(mep_comm_init_all(2, &config, comms), MEP_SUCCESS);
    const bool is_off = word[0] == '0' || word[0] == 'o';
    assert_int_equal(recorders_here(), is_off ? 0 : 2);
    for (mep_comm_t each : comms) assert_int_equal(mep_comm_destroy(each), MEP_SUCCESS);
    assert_int_equal(recorders_here(), 0);
  }
  unsetenv("MEP_FLIGHT_RECORDER");
  // Without memory or a descriptor for it there is none, and nothing else is lost.
  rlimit before{};
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto recorder = FlightRecorder::open(config_for(""), 0);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_null(recorder.get());
}

// A process that other processes of its user may not look into is named, and is no evidence.
void an_unreadable_process_is_named(void**) {
  int ready[2];
  int go_on[2];
  assert_int_equal(pipe(ready), 0);
  assert_int_equal(pipe(go_on), 0);
  const auto become_user = [] {
    // Root may look into all processes.
    return geteuid() != 0 || (setgid(65534) == 0 && setuid(65534) == 0);
  };
  char byte = 0;
  const pid_t closed = fork();
  if (closed == 0) {
    close(go_on[1]);
    const auto recorder = FlightRecorder::open(config_for(""), 0);
    const bool done = become_user() && prctl(PR_SET_DUMPABLE, 0) == 0 && recorder != nullptr;
    (void)!write(ready[1], done ? "y" : "n", 1);
    (void)!read(go_on[0], &byte, 1);
    _exit(0);
  }
  assert_true(closed > 0);
  assert_int_equal(read(ready[0], &byte, 1), 1);
  assert_int_equal(byte, 'y');
  const pid_t reader = fork();
  if (reader == 0) {
    if (!become_user()) _exit(3);
    (void)prctl(PR_SET_DUMPABLE, 1);
    const mep::RecorderSearch search = mep::find_recorders("a job");
    for (const mep::Unreadable& each : search.unreadable) {
      if (each.pid == closed) _exit(search.files.empty() && !each.problem.empty() ? 0 : 1);
    }
    _exit(2);
  }
  int status = 0;
  assert_int_equal(waitpid(reader, &status, 0), reader);
  close(go_on[1]);
  assert_int_equal(waitpid(closed, nullptr, 0), closed);
  for (const int fd : {ready[0], ready[1], go_on[0]}) close(fd);
  assert_int_equal(status, 0);
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
      cmocka_unit_test(a_running_job_is_found),
      cmocka_unit_test(it_is_switched_off),
      cmocka_unit_test(an_unreadable_process_is_named),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
