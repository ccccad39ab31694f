// Keys that are written, all by rank 0 (JOB: the job's name; N: which start of this job in the
// process, from 0, so that an earlier start's value is never taken for the present one's):
//   mep/JOB/N/name   rank 0 and where its meeting point is reached by ranks of other hosts (nowhere, if the job has
//                    no secret); its incarnation gives the name under which the ranks meet
//   mep/JOB/name     the same of the latest start, for joiners
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>

#include "base/fork_hold.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "core/bootstrap/rendezvous.hpp"
#include "core/bootstrap/wait_notice.hpp"

namespace mep {
namespace {

constexpr size_t kMaxValueBytes = 512;
// The caller's function cannot be interrupted: it is asked in slices.
constexpr int kGetSliceMs = 200;

// Ranks may be threads of one process, so starts are counted by job and rank; a fork()ed child
// counts from 0 like any other new process.
uint32_t next_start_number(const std::string& job, uint32_t rank) {
  const ForkHold hold;
  static std::mutex mutex;
  static std::map<std::pair<std::string, uint32_t>, uint32_t> counts;
  static pid_t owner = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (owner != getpid()) counts.clear();
  owner = getpid();
  return counts[{job, rank}]++;
}

[[nodiscard]] mep_result_t store_put(const mep_store_t& store, const std::string& key,
                                     const std::vector<std::byte>& value) {
  const int status = store.put(store.user, key.c_str(), value.data(), value.size());
  if (status == 0) return MEP_SUCCESS;
  return fail(MEP_ERR_BOOTSTRAP, "the caller's store failed to put '%s' (its put answered %d)",
              key.c_str(), status);
}

[[nodiscard]] mep_result_t store_get(const mep_store_t& store, const std::string& key,
                                     Deadline deadline, std::vector<std::byte>* value) {
  int status = 0;
  WaitNotice notice;
  do {
    if (notice.due()) {
      log(LogLevel::kWarn,
          "still waiting for rank 0 after %u s: the caller's store has no key '%s'",
          notice.seconds(), key.c_str());
    }
    value->assign(kMaxValueBytes, std::byte{0});
    size_t bytes = 0;
    const int slice_ms = std::max(1, deadline.left_ms(kGetSliceMs));
    const uint64_t asked_ns = now_ns();
    status = store.get(store.user, key.c_str(), value->data(), value->size(), &bytes,
                       static_cast<uint32_t>(slice_ms));
    if (status == 0) {
      if (bytes > value->size()) {
        return fail(MEP_ERR_BOOTSTRAP, "the caller's store gave %zu bytes for '%s' where %zu fit",
                    bytes, key.c_str(), value->size());
      }
      value->resize(bytes);
      return MEP_SUCCESS;
    }
    // A store that fails at once instead of waiting must not be asked without a pause.
    if (now_ns() - asked_ns < 1000000) usleep(1000);
  } while (!deadline.expired());
  return fail(MEP_ERR_BOOTSTRAP,
              "rank 0 did not start in time: the caller's store has no key '%s' (its get answered "
              "%d)",
              key.c_str(), status);
}

// Rank 0's record as the meeting that it stands for. The incarnation is random: nobody else makes this name.
void take_record(Place&& record, StoreMeeting* meeting) {
  char name[32];
  std::snprintf(name, sizeof name, "store-%016llx",
                static_cast<unsigned long long>(record.incarnation));
  meeting->name = name;
  meeting->addresses = std::move(record.addresses);
}

[[nodiscard]] mep_result_t get_meeting(const ResolvedConfig& config, const std::string& key,
                                       Deadline deadline, const SelfDescription& self,
                                       StoreMeeting* meeting) {
  std::vector<std::byte> value;
  MEP_TRY(store_get(*config.store, key, deadline, &value));
  Place record;
  uint32_t version = 0;
  if (!decode_place_record(value, config.job, &version, &record)) {
    if (version != 0 && version != kProtocolVersion) {
      return fail(MEP_ERR_VERSION, "rank 0 speaks protocol %u, rank %u protocol %u", version,
                  self.identity.slot, kProtocolVersion);
    }
    return fail(MEP_ERR_BOOTSTRAP, "the caller's store has something else than MEP's under '%s'",
                key.c_str());
  }
  if (record.host != self.identity.host && record.addresses.empty()) {
    return fail(MEP_ERR_DENIED,
                "rank %u is on another host (or in another container) than rank 0, which has no "
                "secret: set MEP_SECRET_FILE for all ranks",
                self.identity.slot);
  }
  take_record(std::move(record), meeting);
  return MEP_SUCCESS;
}

}  // namespace

mep_result_t agree_through_store(const ResolvedConfig& config, const SelfDescription& self,
                                 RendezvousPurpose purpose, Deadline deadline,
                                 StoreMeeting* meeting) {
  const std::string prefix = "mep/" + config.job;
  const std::string latest = prefix + "/name";
  if (purpose == RendezvousPurpose::kJoin) {
    return get_meeting(config, latest, deadline, self, meeting);
  }
  const uint32_t start = next_start_number(config.job, self.identity.slot);
  const std::string key = prefix + "/" + std::to_string(start) + "/name";
  if (self.identity.slot != 0) return get_meeting(config, key, deadline, self, meeting);
  Place record = place_of(self.identity, {});
  // Ranks of other hosts can come only with a secret.
  if (!config.secret_file.empty() || config.allow_insecure) {
    MEP_TRY(listen_for_hosts(&meeting->listener, &record.addresses));
  }
  const std::vector<std::byte> value = encode_place_record(config.job, record);
  MEP_TRY(store_put(*config.store, key, value));
  MEP_TRY(store_put(*config.store, latest, value));
  take_record(std::move(record), meeting);
  return MEP_SUCCESS;
}

}  // namespace mep
