// Keys that are written, all by rank 0 (JOB: the job's name; START: its incarnation, in hexadecimal digits):
//   mep/JOB/name             rank 0 of the latest start, and where its meeting point is reached by ranks of other hosts
//                            (nowhere, if the job has no secret); START gives the name under which the ranks meet
//   mep/JOB/START/complete   all ranks of that start have met
// A store outlives starts, so the record that a rank finds may be an earlier start's. The rank takes a start for the
// present one when that start's rank 0 takes it in (mesh_builder.hpp); until then it looks for a later record.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/log.hpp"
#include "base/status.hpp"
#include "core/bootstrap/rendezvous.hpp"
#include "core/bootstrap/wait_notice.hpp"

namespace mep {
namespace {

constexpr size_t kMaxValueBytes = 512;
// The caller's function cannot be interrupted: it is asked in slices.
constexpr int kGetSliceMs = 200;

constexpr useconds_t kLookAgainUs = 20000;

std::string latest_key(const std::string& job) {
  return "mep/" + job + "/name";
}

std::string digits_of(uint64_t start) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(start));
  return digits;
}

std::string complete_key(const std::string& job, uint64_t start) {
  return "mep/" + job + "/" + digits_of(start) + "/complete";
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

// Whether the key exists now, and its value as far as it fits.
bool store_has(const mep_store_t& store, const std::string& key, std::vector<std::byte>* value) {
  value->assign(kMaxValueBytes, std::byte{0});
  size_t bytes = 0;
  if (store.get(store.user, key.c_str(), value->data(), value->size(), &bytes, 1) != 0) {
    return false;
  }
  value->resize(std::min(bytes, value->size()));
  return true;
}

// Rank 0's record as the meeting that it stands for. The incarnation is random: nobody else makes this name.
void take_record(Place&& record, StoreMeeting* meeting) {
  meeting->start = record.incarnation;
  meeting->name = "store-" + digits_of(record.incarnation);
  meeting->addresses = std::move(record.addresses);
}

[[nodiscard]] mep_result_t get_record(const ResolvedConfig& config, Deadline deadline,
                                      const SelfDescription& self, Place* record) {
  const std::string key = latest_key(config.job);
  std::vector<std::byte> value;
  MEP_TRY(store_get(*config.store, key, deadline, &value));
  uint32_t version = 0;
  if (!decode_place_record(value, config.job, &version, record)) {
    if (version != 0 && version != kProtocolVersion) {
      return fail(MEP_ERR_VERSION, "rank 0 speaks protocol %u, rank %u protocol %u", version,
                  self.identity.slot, kProtocolVersion);
    }
    return fail(MEP_ERR_BOOTSTRAP, "the caller's store has something else than MEP's under '%s'",
                key.c_str());
  }
  return MEP_SUCCESS;
}

[[nodiscard]] mep_result_t get_meeting(const ResolvedConfig& config, const SelfDescription& self,
                                       RendezvousPurpose purpose, Deadline deadline,
                                       StoreMeeting* meeting) {
  for (;;) {
    Place record;
    MEP_TRY(get_record(config, deadline, self, &record));
    if (record.host == self.identity.host || !record.addresses.empty()) {
      take_record(std::move(record), meeting);
      return MEP_SUCCESS;
    }
    // Nobody there can be asked whether this is the present start.
    std::vector<std::byte> unused;
    const bool is_old =
        purpose == RendezvousPurpose::kStart &&
        store_has(*config.store, complete_key(config.job, record.incarnation), &unused);
    if (!is_old || deadline.expired()) {
      return fail(
          MEP_ERR_DENIED,
          "rank %u is on another host (or in another container) than rank 0%s, which has no "
          "secret: set MEP_SECRET_FILE for all ranks",
          self.identity.slot, is_old ? " of the latest start" : "");
    }
    usleep(kLookAgainUs);
  }
}

}  // namespace

bool store_has_later_start(const ResolvedConfig& config, uint64_t start) {
  std::vector<std::byte> value;
  if (!store_has(*config.store, latest_key(config.job), &value)) return false;
  Place record;
  uint32_t version = 0;
  // A record that cannot be read fails the start when it is taken.
  return !decode_place_record(value, config.job, &version, &record) || record.incarnation != start;
}

void tell_store_of_success(const ResolvedConfig& config, const SelfDescription& self) {
  (void)store_put(*config.store, complete_key(config.job, self.identity.incarnation), {});
}

mep_result_t agree_through_store(const ResolvedConfig& config, const SelfDescription& self,
                                 RendezvousPurpose purpose, Deadline deadline,
                                 StoreMeeting* meeting) {
  if (purpose == RendezvousPurpose::kJoin || self.identity.slot != 0) {
    return get_meeting(config, self, purpose, deadline, meeting);
  }
  Place record = place_of(self.identity, {});
  // Ranks of other hosts can come only with a secret.
  if (!config.secret_file.empty() || config.allow_insecure) {
    MEP_TRY(listen_for_hosts(&meeting->listener, &record.addresses));
  }
  MEP_TRY(
      store_put(*config.store, latest_key(config.job), encode_place_record(config.job, record)));
  take_record(std::move(record), meeting);
  return MEP_SUCCESS;
}

}  // namespace mep
