#include "core/comm/stream_records.hpp"

#include <cstring>

#include "base/request_event.hpp"

namespace mep {

void StreamRecords::open(std::byte* memory, uint32_t ranks) {
  ranks_ = ranks;
  for (size_t i = 0; i < kMost; ++i) {
    records_[i].status =
        reinterpret_cast<mep_op_status_t*>(memory + i * (StreamRecords::bytes(ranks) / kMost));
  }
}

StreamRecord* StreamRecords::lend() {
  const std::lock_guard lock(mutex_);
  size_t place = 0;
  while (place < most_lent_ && records_[place].is_lent) ++place;
  if (place == kMost) return nullptr;
  if (place == most_lent_) ++most_lent_;
  StreamRecord& record = records_[place];
  std::memset(record.status, 0, mep_op_status_size(static_cast<int32_t>(ranks_)));
  record.is_lent = record.is_awaited = true;
  record.event = -1;
  return &record;
}

void StreamRecords::give_back(StreamRecord* record) {
  const std::lock_guard lock(mutex_);
  record->is_lent = record->is_awaited = false;
}

void StreamRecords::set_event(StreamRecord* record, int event) {
  const std::lock_guard lock(mutex_);
  record->event = event;
  if (has_ended(*record)) ring_event(event);
}

bool StreamRecords::watch() {
  const std::lock_guard lock(mutex_);
  bool any = false;
  for (size_t i = 0; i < most_lent_; ++i) {
    StreamRecord& record = records_[i];
    if (!record.is_awaited || !has_ended(record)) continue;
    record.is_awaited = false;
    any = true;
    ring_event(record.event);
  }
  return any;
}

}  // namespace mep
