// mep_perf: finds out how its ranks were started, gives each its communicator, runs the session.
// Exit status: 0 all right, 1 something failed or --check found errors, 2 wrong command line.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "beside.hpp"
#include "device_side.hpp"
#include "error.hpp"
#include "mpi_side.hpp"
#include "options.hpp"
#include "recovery.hpp"
#include "session.hpp"
#include "standard_output.hpp"
#include "thread_team.hpp"

namespace mep::perf {
namespace {

void report(int rank, const std::string& text) {
  (void)std::fprintf(stderr, "mep_perf: rank %d: %s\n", rank, text.c_str());
}

enum class Outcome { kRight, kWrongValues, kFailed };

// Runs the session and says what went wrong.
Outcome run_rank(const RankContext& context) {
  try {
    return run_session(context) ? Outcome::kRight : Outcome::kWrongValues;
  } catch (const std::exception& error) {
    report(context.team->rank(), error.what());
    // The others need not wait for a timeout.
    if (context.comm != nullptr) (void)mep_comm_abort(context.comm);
    return Outcome::kFailed;
  }
}

// The floors that all ranks of this process need of a GPU; measured before there is anything else on it.
DeviceFloors open_device(const Options& options, bool is_first_rank) {
  DeviceFloors floors;
  if (!options.on_device) return floors;
  prepare_device(options.device);
  if (is_first_rank && options.measure_machine) floors = measure_device(options.device);
  return floors;
}

mep_comm_config_t comm_config(const Options& options) {
  mep_comm_config_t config;
  mep_comm_config_defaults(&config);
  if (options.on_device) {
    config.device_type = options.device < 0 ? MEP_DEVICE_CUDA_BY_RANK : MEP_DEVICE_CUDA;
    config.device = std::max(options.device, 0);
  }
  return config;
}

// After a failure the communicator is not asked to leave in order: that was said already.
int finish(Outcome outcome, int rank, mep_comm_t comm) {
  if (outcome == Outcome::kRight && comm == nullptr) return 0;
  const mep_result_t result = mep_comm_destroy(comm);
  if (result < 0 && outcome != Outcome::kFailed) {
    report(rank, std::string("mep_comm_destroy: ") + mep_last_error());
    return 1;
  }
  return outcome == Outcome::kRight ? 0 : 1;
}

int run_threads(const Options& options) {
  const auto count = static_cast<size_t>(options.threads);
  std::vector<mep_comm_t> comms(count, nullptr);
  const DeviceFloors floors = open_device(options, true);
  const mep_comm_config_t config = comm_config(options);
  require(mep_comm_init_all(options.threads, &config, comms.data()), "mep_comm_init_all");
  MeetingPoint meeting_point(options.threads);
  std::vector<std::unique_ptr<DeviceRank>> devices(count);
  std::vector<int> statuses(count, 1);
  for (size_t i = 0; options.on_device && i < count; ++i) {
    devices[i] = make_device_rank(comms[i]);
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      const std::unique_ptr<Team> team = options.on_device
                                             ? make_thread_team(meeting_point, static_cast<int>(i))
                                             : make_mep_team(comms[i]);
      const Outcome outcome = run_rank({&options, team.get(), comms[i], devices[i].get(), floors});
      if (outcome == Outcome::kFailed) meeting_point.give_up();
      statuses[i] = finish(outcome, team->rank(), comms[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(statuses.begin(), statuses.end());
}

int run_by_mpi(const Options& options) {
  mpi_start();
  const std::unique_ptr<Team> team = make_mpi_team();
  int status = 1;
  try {
    const mep_comm_t comm = options.run_mep ? mpi_make_comm() : nullptr;
    const Outcome outcome = run_rank({&options, team.get(), comm, nullptr, {}});
    if (outcome == Outcome::kFailed) mpi_abort(1);  // MPI_Finalize would wait for the others
    status = finish(outcome, team->rank(), comm);
  } catch (const std::exception& error) {
    report(team->rank(), error.what());
    mpi_abort(1);
  }
  mpi_finish();
  return status;
}

bool is_set(const char* name) {
  return secure_getenv(name) != nullptr;
}

// Only one of several processes with the same command line complains about it.
bool is_first_process() {
  for (const char* name : {"MEP_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    const char* value = secure_getenv(name);
    if (value != nullptr) return std::string(value) == "0";
  }
  return true;
}

int run_by_environment(const Options& options) {
  const DeviceFloors floors = open_device(options, is_first_process());
  const mep_comm_config_t config = comm_config(options);
  mep_comm_t comm = nullptr;
  require(mep_comm_init(&config, &comm), "mep_comm_init");
  const std::unique_ptr<DeviceRank> device = options.on_device ? make_device_rank(comm) : nullptr;
  const std::unique_ptr<Team> team = device != nullptr ? device->make_team() : make_mep_team(comm);
  const Outcome outcome = run_rank({&options, team.get(), comm, device.get(), floors});
  return finish(outcome, team->rank(), comm);
}

// Ranks that MPI's launcher started share their numbers through MPI; with mep_run they do by
// themselves.
bool is_started_by_mpi() {
  return !is_set("MEP_RANK") &&
         (is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMI_SIZE") || is_set("PMIX_RANK"));
}

bool compares_with_nccl(char** argv) {
  for (; *argv != nullptr; ++argv) {
    const std::string word = *argv;
    if (word == "--vs=nccl") return true;
    if (word == "--vs" && argv[1] != nullptr && std::string(argv[1]) == "nccl") return true;
  }
  return false;
}

void run_suite(char** argv) {
  if (is_set("MEP_RANK") || is_started_by_mpi()) {
    throw PerfError("suite starts its ranks itself: run it without mpirun and mep_run");
  }
  if (!compares_with_nccl(argv) && !mpi_is_built()) {
    throw PerfError(
        "this mep_perf was built without MPI, which suite compares with: install Open MPI and its "
        "headers (libopenmpi-dev), and configure with MEP_MPI=ON; a wheel: in the source tree "
        "pip install . -C cmake.define.MEP_MPI=ON");
  }
  become_beside("mep_perf_suite", "suite", argv + 1);
}

void run_queue(char** argv) {
  if (is_set("MEP_RANK") || is_started_by_mpi()) {
    throw PerfError("queue has no ranks: run it without mpirun and mep_run");
  }
  become_beside("mep_perf_queue", "queue", argv);
}

int run(const Options& options) {
  if (is_recovery_operation(options.operation)) return run_recovery(options, comm_config(options));
  if (options.threads > 0) return run_threads(options);
  if (options.run_mpi && is_set("MEP_RANK")) {
    throw PerfError("--vs mpi needs mpirun: the ranks were started by mep_run, which knows no MPI");
  }
  if (options.on_device && is_started_by_mpi()) {
    throw PerfError("--device cuda wants ranks of mep_run or --threads, not of mpirun");
  }
  if (options.run_mpi || (mpi_is_built() && is_started_by_mpi())) return run_by_mpi(options);
  return run_by_environment(options);
}

int run_command(int argc, char** argv) {
  try {
    if (argc > 1 && std::string(argv[1]) == "suite") run_suite(argv);
    Options options;
    std::string message;
    switch (parse_options(argc, argv, &options, &message)) {
      case ParseResult::kHelp:
        (void)std::fputs(help_text().c_str(), stdout);
        return 0;
      case ParseResult::kVersion:
        (void)std::printf("mep_perf %u.%u.%u\n", mep_version() / 10000, mep_version() / 100 % 100,
                          mep_version() % 100);
        return 0;
      case ParseResult::kBad:
        if (is_first_process()) (void)std::fprintf(stderr, "mep_perf: %s\n", message.c_str());
        return 2;
      case ParseResult::kRun:
        if (is_queue_operation(options.operation)) run_queue(argv);
        return run(options);
    }
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "mep_perf: %s\n", error.what());
  }
  return 1;
}

}  // namespace
}  // namespace mep::perf

int main(int argc, char** argv) {
  return mep::perf::status_of_output("mep_perf", mep::perf::run_command(argc, argv));
}
