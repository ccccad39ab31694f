#include "checker.hpp"

#include <algorithm>

#include "mep.h"

namespace mep::chaos {
namespace {

constexpr size_t kMaxFindings = 50;
constexpr uint64_t kKeptEpochs = 8;
constexpr size_t kKeptEntries = 200'000;

std::string operation_name(uint64_t epoch, uint64_t seq) {
  return "operation " + std::to_string(seq) + " of epoch " + std::to_string(epoch);
}

}  // namespace

void Checker::report(std::string text) {
  ++wrong_results_;
  if (findings_.size() < kMaxFindings) findings_.push_back(std::move(text));
}

void Checker::take(uint32_t rank, uint32_t process, const Record& record) {
  if (record.type == RecordType::kWrong) {
    report("rank " + std::to_string(rank) + ", " + operation_name(record.epoch, record.seq) + ": " +
           record.text);
    return;
  }
  if (record.epoch != 0) last_epoch_[process] = std::max(last_epoch_[process], record.epoch);
  if (record.type != RecordType::kResult) return;
  ++operations_;
  Epoch& epoch = epochs_[record.epoch];
  uint32_t& owner = epoch.process[rank];
  if (owner == 0) owner = process + 1;
  if (owner != process + 1) {
    report("two processes of rank " + std::to_string(rank) + " are in epoch " +
           std::to_string(record.epoch));
  }
  Entry& entry = epoch.entries[record.seq];
  const uint64_t bit = uint64_t{1} << rank;
  if ((entry.succeeded | entry.failed) == 0) {
    entry.kind = record.kind;
  } else {
    ++compared_;
    compare_kinds(rank, record, entry);
  }
  if (record.result == MEP_SUCCESS) {
    if (entry.succeeded == 0) {
      entry.digest = record.digest;
      entry.contributors = record.contributors;
    } else if (entry.digest != record.digest || entry.contributors != record.contributors) {
      report(operation_name(record.epoch, record.seq) + ", " + name_of(entry.kind) +
             ", has other " +
             (entry.contributors != record.contributors
                  ? "contributors (" + std::to_string(entry.contributors) + ", " +
                        std::to_string(record.contributors) + ")"
                  : "bytes") +
             " on rank " + std::to_string(rank));
    }
    entry.succeeded |= bit;
  } else if (record.result == MEP_ERR_PEER_FAILED || record.result == MEP_ERR_PEER_LEFT ||
             record.result == MEP_ERR_TIMEOUT) {
    if (entry.failed != 0 && entry.failure != record.result) {
      report(operation_name(record.epoch, record.seq) + " failed in two ways");
    }
    entry.failure = record.result;
    entry.failed |= bit;
  }
  if (epochs_.size() > kKeptEpochs || epoch.entries.size() > 2 * kKeptEntries) judge_old();
}

void Checker::compare_kinds(uint32_t rank, const Record& record, const Entry& entry) {
  if (entry.kind == record.kind) return;
  report(operation_name(record.epoch, record.seq) + " is " + name_of(record.kind) + " to rank " +
         std::to_string(rank) + ", " + name_of(entry.kind) + " to another");
}

// A success of a rank that did not live to see the next epoch binds nobody.
void Checker::judge(uint64_t number, const Epoch& epoch) {
  for (const auto& [seq, entry] : epoch.entries) {
    if (entry.failed == 0 || entry.succeeded == 0) continue;
    uint64_t lived_on = 0;
    for (uint32_t rank = 0; rank < kMaxRanks; ++rank) {
      const uint32_t owner = epoch.process[rank];
      if (owner == 0 || ((entry.succeeded >> rank) & 1u) == 0) continue;
      if (last_epoch_[owner - 1] > number) lived_on |= uint64_t{1} << rank;
    }
    if (lived_on == 0) continue;
    report(operation_name(number, seq) + " succeeded on some survivors and failed on others");
  }
}

void Checker::judge_old() {
  while (epochs_.size() > kKeptEpochs / 2) {
    judge(epochs_.begin()->first, epochs_.begin()->second);
    epochs_.erase(epochs_.begin());
  }
  // Entries of the latest epochs that all ranks have long passed cannot change any more.
  for (auto& [number, epoch] : epochs_) {
    while (epoch.entries.size() > kKeptEntries) {
      const Entry& oldest = epoch.entries.begin()->second;
      if (oldest.failed != 0) break;
      epoch.entries.erase(epoch.entries.begin());
    }
  }
}

void Checker::finish() {
  for (const auto& [number, epoch] : epochs_) judge(number, epoch);
  epochs_.clear();
}

}  // namespace mep::chaos
