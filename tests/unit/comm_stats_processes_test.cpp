// labels: gate
// mep_comm_stats of rank processes, with a death and a replacement; and MEP_METRICS_FILE, read line by line.
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "support/comm_stats.hpp"
#include "support/join_job.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

void calls_and_bytes_of_processes(void**) {
  for (const int size : {1, 2, 3}) {
    Meeting all(size);
    Report report;
    const auto body = [&](int rank, mep_comm_t comm, Report& found) {
      CountedCalls calls(rank, size, comm, found);
      for (int form = 0; form < 3; ++form) calls.collectives(5, form);
      calls.messages(20'000);
      calls.moe(4);
      check_stats(comm, calls.expected, "all", found);
      all.pass(found);
    };
    with_rank_processes(size, patient_config(0), report, body);
    report.require_clean();
  }
}

void a_death_and_a_replacement(void**) {
  Meeting all(3);
  Report report;
  JoinJob job(3, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    all.pass(found);
    if (rank == 1) die();
    Stats expected = no_stats();
    COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
    expected.collectives = 1;
    expected.errors_peer_failed = 1;
    expected.view_changes = 1;
    expected.ranks_lost = 1;
    check_stats(comm, expected, "after a death", found);
    const int32_t victim = 1;
    int32_t admitted = 0;
    COLL_OK(found, mep_recover_ranks(comm, &victim, 1, kNeverMs, &admitted));
    COLL_OK(found, mep_barrier(comm, nullptr));
    expected.collectives = 2;
    expected.view_changes = 2;
    expected.ranks_admitted = 1;
    check_stats(comm, expected, "with a replacement", found);
    COLL_OK(found, mep_barrier(comm, nullptr));  // a rank that leaves is counted
  });
  job.expect_killed(1);
  job.join(1, [](int, mep_comm_t comm, Report& found) {
    COLL_OK(found, mep_barrier(comm, nullptr));
    Stats stats = no_stats();
    COLL_OK(found, mep_comm_stats(comm, &stats));
    COLL_CHECK(found, stats.collectives == 1 && stats.ranks_lost == 0);
    COLL_OK(found, mep_barrier(comm, nullptr));
  });
  job.expect_clean_end();
  report.require_clean();
}

// --- MEP_METRICS_FILE -----------------------------------------------------------------------------

struct Metrics {
  std::map<std::string, uint64_t> samples;  // by name and labels
  std::map<std::string, std::string> types;
  std::vector<std::string> wrong;  // what Prometheus' text format does not allow
};

Metrics read_metrics(std::istream& in) {
  static const std::regex help("# HELP ([a-z_]+) [^\\\\\n]+");
  static const std::regex type("# TYPE ([a-z_]+) (counter|gauge)");
  static const std::regex sample(
      "([a-z_]+)\\{(([a-z]+=\"([^\"\\\\]|\\\\[\\\\\"n])*\")(,[a-z]+=\"([^\"\\\\]|\\\\[\\\\\"n])*\")"
      "*)\\}"
      " ([0-9]+)");
  Metrics metrics;
  std::string helped;
  std::string current;
  std::string text;
  for (std::string line; std::getline(in, line); text += line + '\n') {
    std::smatch found;
    if (std::regex_match(line, found, help)) {
      helped = found[1];
    } else if (std::regex_match(line, found, type)) {
      current = found[1];
      const bool is_counter = current.ends_with("_total");
      const bool is_new = metrics.types.emplace(current, found[2]).second;
      if (current != helped || !is_new || is_counter != (found[2] == "counter")) {
        metrics.wrong.push_back(line);
      }
    } else if (std::regex_match(line, found, sample) && found[1] == current) {
      const std::string key = current + "{" + found[2].str() + "}";
      if (!metrics.samples.emplace(key, std::stoull(found[7])).second)
        metrics.wrong.push_back(line);
    } else {
      metrics.wrong.push_back(line);
    }
  }
  return metrics;
}

Metrics read_metrics_file(const std::string& path, Report& found) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (text.str().empty() || !text.str().ends_with('\n')) found.add("%s is cut short", path.c_str());
  Metrics metrics = read_metrics(text);
  for (const std::string& line : metrics.wrong) found.add("%s: %s", path.c_str(), line.c_str());
  return metrics;
}

void expect_sample(const Metrics& metrics, const std::string& key, uint64_t wanted, Report& found) {
  const auto at = metrics.samples.find(key);
  if (at == metrics.samples.end()) {
    found.add("no sample %s", key.c_str());
  } else if (at->second != wanted) {
    found.add("%s is %llu, not %llu", key.c_str(), static_cast<unsigned long long>(at->second),
              static_cast<unsigned long long>(wanted));
  }
}

// The last state of a rank, and its file while it works.
void metrics_files_have_the_counters(void**) {
  const TemporaryFolder folder;
  setenv("MEP_METRICS_FILE", (folder.path() + "/%%-%r.prom").c_str(), 1);
  setenv("MEP_METRICS_INTERVAL_S", "1", 1);
  Report report;
  with_rank_processes(2, patient_config(0), report, [&](int rank, mep_comm_t comm, Report& found) {
    // Names that must be escaped, and one that two communicators have.
    mep_comm_t children[2] = {};
    for (mep_comm_t& child : children) {
      COLL_OK(found, mep_comm_split(comm, 0, 0, &child));
      COLL_OK(found, mep_comm_set_name(child, "a \"b\" \\ c"));
    }
    CountedCalls calls(rank, 2, comm, found);
    calls.collectives(3, 0);
    calls.messages(10);
    calls.moe(2);
    int32_t value = 0;
    int32_t sum = 0;
    COLL_EXPECT(found, MEP_ERR_INVALID_ARGUMENT,
                mep_allreduce(&value, &sum, 1, 99, MEP_SUM, comm, nullptr));
    const std::string path = folder.path() + "/%-" + std::to_string(rank) + ".prom";
    const std::string labels =
        std::string("{job=\"") + getenv("MEP_JOB") + "\",rank=\"" + std::to_string(rank) + "\",";
    const std::string calls_of_world =
        "mep_calls_total" + labels + "comm=\"world\",kind=\"collective\"}";
    // Written anew within the interval and the second that the control thread may sleep.
    Metrics metrics;
    for (int tries = 0; tries < 600; ++tries) {
      pause_us(50'000);
      if (access(path.c_str(), R_OK) != 0) continue;
      metrics = read_metrics_file(path, found);
      if (metrics.samples[calls_of_world] == calls.expected.collectives + 1) break;
    }
    const auto expect = [&](const std::string& name, const std::string& rest, uint64_t wanted) {
      expect_sample(metrics, name + labels + rest + "}", wanted, found);
    };
    const Stats& e = calls.expected;
    const std::string world = "comm=\"world\"";
    expect("mep_epoch", world, 1);
    expect("mep_live_ranks", world, 2);
    expect("mep_calls_total", world + ",kind=\"collective\"", e.collectives + 1);
    expect("mep_calls_total", world + ",kind=\"send\"", e.sends);
    expect("mep_calls_total", world + ",kind=\"receive\"", e.receives);
    expect("mep_calls_total", world + ",kind=\"dispatch\"", e.dispatches);
    expect("mep_calls_total", world + ",kind=\"combine\"", e.combines);
    expect("mep_bytes_total", world + ",kind=\"collective\"", e.collective_bytes);
    expect("mep_bytes_total", world + ",kind=\"send\"", e.send_bytes);
    expect("mep_bytes_total", world + ",kind=\"receive\"", e.receive_bytes);
    expect("mep_bytes_total", world + ",kind=\"dispatch\"", e.dispatch_bytes);
    expect("mep_bytes_total", world + ",kind=\"combine\"", e.combine_bytes);
    expect("mep_partial_results_total", world, 0);
    expect("mep_errors_total", world + ",error=\"other\"", 1);
    for (const char* error : {"peer_failed", "peer_left", "timeout", "mismatch"}) {
      expect("mep_errors_total", world + ",error=\"" + error + "\"", 0);
    }
    expect("mep_view_changes_total", world, 0);
    expect("mep_ranks_lost_total", world, 0);
    expect("mep_ranks_admitted_total", world, 0);
    const std::string renamed = "comm=\"a \\\"b\\\" \\\\ c";
    expect("mep_epoch", renamed + "\"", 1);
    COLL_CHECK(found, metrics.samples.size() == 3 * 21);
    // The end is written too: the first interval is long over, the second is not.
    for (mep_comm_t child : children) COLL_OK(found, mep_comm_destroy(child));
    COLL_OK(found, mep_barrier(comm, nullptr));
  });
  unsetenv("MEP_METRICS_INTERVAL_S");
  for (const char* rank : {"0", "1"}) {
    const Metrics metrics = read_metrics_file(folder.path() + "/%-" + rank + ".prom", report);
    uint64_t collectives = 0;
    for (const auto& [key, value] : metrics.samples) {
      if (key.find("kind=\"collective\"") != std::string::npos &&
          key.find("mep_calls_total") == 0) {
        collectives += value;
      }
    }
    if (collectives != 14 + 1 + 1)
      report.add("%llu collectives at the end", static_cast<unsigned long long>(collectives));
    if (metrics.samples.size() != 21) report.add("%zu samples at the end", metrics.samples.size());
  }
  unsetenv("MEP_METRICS_FILE");
  COLL_CHECK(report, access((folder.path() + "/%-0.prom.tmp").c_str(), F_OK) != 0);
  report.require_clean();
}

// The file of a rank that dies shows the members that are left on the others.
void metrics_files_tell_of_a_death(void**) {
  const TemporaryFolder folder;
  setenv("MEP_METRICS_FILE", (folder.path() + "/%r.prom").c_str(), 1);
  Report report;
  with_rank_processes(
      3, patient_config(0), report,
      [&](int rank, mep_comm_t comm, Report& found) {
        COLL_OK(found, mep_barrier(comm, nullptr));
        if (rank == 1) die();
        COLL_EXPECT(found, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
        COLL_OK(found, mep_barrier(comm, nullptr));
      },
      [](int rank, int) { return rank == 1; });
  unsetenv("MEP_METRICS_FILE");
  const Metrics metrics = read_metrics_file(folder.path() + "/0.prom", report);
  uint64_t lost = 0;
  uint64_t failed = 0;
  for (const auto& [key, value] : metrics.samples) {
    if (key.starts_with("mep_ranks_lost_total")) lost = value;
    if (key.starts_with("mep_errors_total") && key.ends_with("error=\"peer_failed\"}")) {
      failed = value;
    }
  }
  if (lost < 1 || failed != 1) {
    report.add("%llu ranks lost, %llu errors", static_cast<unsigned long long>(lost),
               static_cast<unsigned long long>(failed));
  }
  report.require_clean();
}

void wrong_paths_are_refused(void**) {
  const auto init = [](int32_t count) {
    mep_comm_t comms[2] = {};
    const mep_comm_config_t config = patient_config(0);
    const mep_result_t result = mep_comm_init_all(count, &config, comms);
    for (mep_comm_t each : comms) {
      if (result == MEP_SUCCESS) assert_int_equal(mep_comm_destroy(each), MEP_SUCCESS);
    }
    return result;
  };
  const TemporaryFolder folder;
  setenv("MEP_METRICS_FILE", (folder.path() + "/all.prom").c_str(), 1);
  assert_int_equal(init(2), MEP_ERR_INVALID_ARGUMENT);
  assert_non_null(strstr(mep_last_error(), "%r"));
  assert_int_equal(init(1), MEP_SUCCESS);
  assert_int_equal(access((folder.path() + "/all.prom").c_str(), R_OK), 0);
  for (const char* wrong : {"/tmp/%h-%r", "/tmp/%r-%"}) {
    setenv("MEP_METRICS_FILE", wrong, 1);
    assert_int_equal(init(2), MEP_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(mep_last_error(), "%p"));
  }
  setenv("MEP_METRICS_INTERVAL_S", "0", 1);
  unsetenv("MEP_METRICS_FILE");
  assert_int_equal(init(1), MEP_ERR_INVALID_ARGUMENT);
  unsetenv("MEP_METRICS_INTERVAL_S");
  // A directory that is not there costs the job nothing.
  setenv("MEP_METRICS_FILE", (folder.path() + "/none/%r-%p").c_str(), 1);
  assert_int_equal(init(2), MEP_SUCCESS);
  setenv("MEP_METRICS_FILE", (folder.path() + "/%r-%p").c_str(), 1);
  assert_int_equal(init(2), MEP_SUCCESS);
  const std::string of_process = folder.path() + "/1-" + std::to_string(getpid());
  assert_int_equal(access(of_process.c_str(), R_OK), 0);
  unsetenv("MEP_METRICS_FILE");
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {
      cmocka_unit_test(calls_and_bytes_of_processes),
      cmocka_unit_test(a_death_and_a_replacement),
      cmocka_unit_test(metrics_files_have_the_counters),
      cmocka_unit_test(metrics_files_tell_of_a_death),
      cmocka_unit_test(wrong_paths_are_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
