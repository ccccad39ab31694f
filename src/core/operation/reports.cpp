#include "core/operation/reports.hpp"

#include <utility>

namespace mep {

void Reports::push(Report report) {
  const std::lock_guard lock(mutex_);
  reports_.push_back(std::move(report));
  note_count();
}

Reports::Report Reports::take() {
  const std::lock_guard lock(mutex_);
  if (reports_.empty()) return nullptr;
  Report report = std::move(reports_.front());
  reports_.pop_front();
  note_count();
  return report;
}

void Reports::drop_up_to(uint64_t epoch) {
  if (!any()) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(reports_, [=](const Report& report) { return report->epoch <= epoch; });
  note_count();
}

void Reports::clear() {
  const std::lock_guard lock(mutex_);
  reports_.clear();
  note_count();
}

}  // namespace mep
