#include "recorder_waits.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "recorder_words.hpp"

namespace mep {

using flight::Record;

namespace {

uint64_t bit(uint32_t rank) {
  return rank < 64 ? uint64_t{1} << rank : 0;
}

}  // namespace

JobWaits::JobWaits(std::span<const RecorderFile> files) : files_(files) {
  for (const RecorderFile& file : files) {
    auto& latest = latest_[file.header.rank];
    for (const Record& record : file.records) {
      const auto [channel, place] = key_of(record);
      const Record*& known = latest.try_emplace(channel, &record).first->second;
      if (place >= key_of(*known).second) known = &record;
    }
  }
  find_waits();
}

JobWaits::Key JobWaits::key_of(const Record& record) {
  return {{record.label.comm, record.channel}, {record.epoch, record.number}};
}

void JobWaits::find_waits() {
  std::map<Key, Wait> shared;
  for (const RecorderFile& file : files_) {
    size_t messages = 0;
    for (const Record& record : file.records) {
      if (has(record, flight::kEnded)) continue;
      const uint64_t own = bit(file.header.rank);
      if (record.number == 0 || is_message(record)) {
        waits_.push_back({&record, &file, own, 0, 0, messages++});
        continue;
      }
      Wait& wait = shared[key_of(record)];
      const bool is_first =
          wait.record == nullptr ||
          unix_ns(file, record.begun_ns) < unix_ns(*wait.file, wait.record->begun_ns);
      if (is_first) std::tie(wait.record, wait.file) = std::tuple(&record, &file);
      wait.ranks |= own;
    }
  }
  std::map<Channel, size_t> places;
  for (auto& [key, wait] : shared) {
    wait.place = places[key.first]++;
    find_late(&wait);
    waits_.push_back(wait);
  }
}

void JobWaits::find_late(Wait* wait) const {
  const auto [channel, place] = key_of(*wait->record);
  wait->unknown = wait->record->label.members & ~wait->ranks;
  for (const auto& [rank, latest] : latest_) {
    if ((wait->unknown & bit(rank)) == 0) continue;
    wait->unknown &= ~bit(rank);
    const auto found = latest.find(channel);
    const bool has_begun = found != latest.end() && key_of(*found->second).second >= place;
    if (!has_begun) wait->late |= bit(rank);
  }
}

uint64_t JobWaits::suspects() const {
  uint64_t late = 0;
  uint64_t waiting = 0;
  for (const Wait& wait : waits_) {
    late |= wait.late;
    waiting |= wait.ranks;
  }
  return late != 0 ? late : waiting;
}

uint64_t JobWaits::unknown() const {
  uint64_t ranks = 0;
  for (const Wait& wait : waits_) ranks |= wait.unknown;
  return ranks;
}

const RecorderFile* JobWaits::file_of(uint32_t rank) const {
  const RecorderFile* best = nullptr;
  for (const RecorderFile& file : files_) {
    if (file.header.rank != rank) continue;
    if (best == nullptr || file.is_running >= best->is_running) best = &file;
  }
  return best;
}

std::vector<std::span<const RecorderFile>> by_job(std::vector<RecorderFile>* files) {
  std::stable_sort(files->begin(), files->end(), [](const RecorderFile& a, const RecorderFile& b) {
    const int order = std::strcmp(a.header.job, b.header.job);
    return order != 0 ? order < 0 : a.header.rank < b.header.rank;
  });
  std::vector<std::span<const RecorderFile>> jobs;
  const std::span<const RecorderFile> all(*files);
  for (size_t from = 0; from < all.size();) {
    size_t to = from;
    while (to < all.size() && std::strcmp(all[to].header.job, all[from].header.job) == 0) ++to;
    jobs.push_back(all.subspan(from, to - from));
    from = to;
  }
  return jobs;
}

}  // namespace mep
