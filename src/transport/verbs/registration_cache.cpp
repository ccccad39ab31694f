#include "transport/verbs/registration_cache.hpp"

#include <algorithm>

#include "base/status.hpp"

namespace mep::verbs {
namespace {

constexpr uintptr_t kPageBytes = 4096;

uintptr_t address_of(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory);
}

bool holds(uintptr_t begin, size_t bytes, uintptr_t wanted, size_t wanted_bytes) {
  return wanted >= begin && wanted - begin <= bytes && wanted_bytes <= bytes - (wanted - begin);
}

}  // namespace

RegistrationCache::RegistrationCache(Registrar* registrar, size_t limit_bytes)
    : registrar_(registrar), limit_bytes_(limit_bytes) {}

RegistrationCache::~RegistrationCache() {
  for (auto& [begin, entry] : adopted_) registrar_->remove(&entry.registration);
  for (Cached& entry : cached_) registrar_->remove(&entry.registration);
}

mep_result_t RegistrationCache::adopt(const void* memory, size_t bytes,
                                      std::weak_ptr<const void> owner, Registration* out,
                                      Registration* previous) {
  const std::lock_guard lock(mutex_);
  Adopted entry;
  entry.bytes = bytes;
  entry.owner = std::move(owner);
  MEP_TRY(registrar_->add(memory, bytes, true, &entry.registration));
  *out = entry.registration;
  *previous = {};
  const auto present = adopted_.find(address_of(memory));
  if (present != adopted_.end()) {
    *previous = present->second.registration;
    adopted_.erase(present);
  }
  longest_ = std::max(longest_, bytes);
  adopted_.emplace(address_of(memory), std::move(entry));
  return MEP_SUCCESS;
}

void RegistrationCache::sweep() {
  const std::lock_guard lock(mutex_);
  for (auto entry = adopted_.begin(); entry != adopted_.end();) {
    const auto next = std::next(entry);
    if (entry->second.owner.expired()) erase(entry);
    entry = next;
  }
}

void RegistrationCache::erase(std::map<uintptr_t, Adopted>::iterator entry) {
  registrar_->remove(&entry->second.registration);
  adopted_.erase(entry);
}

bool RegistrationCache::find(const void* memory, size_t bytes, Registration* out) {
  const uintptr_t wanted = address_of(memory);
  const std::lock_guard lock(mutex_);
  // Entries without an owner may overlap others, so the nearest one before is not always the one.
  auto entry = adopted_.upper_bound(wanted);
  while (entry != adopted_.begin()) {
    --entry;
    if (wanted - entry->first > longest_) return false;
    if (!holds(entry->first, entry->second.bytes, wanted, bytes)) continue;
    if (entry->second.owner.expired()) {
      // Other memory may have taken its place.
      const auto next = std::next(entry);
      erase(entry);
      entry = next;
      continue;
    }
    *out = entry->second.registration;
    return true;
  }
  return false;
}

bool RegistrationCache::borrow(const void* memory, size_t bytes, Registration* out,
                               Ticket* ticket) {
  if (limit_bytes_ == 0) return false;
  const uintptr_t wanted = address_of(memory);
  const std::lock_guard lock(mutex_);
  auto entry = std::find_if(cached_.begin(), cached_.end(), [&](const Cached& each) {
    return holds(each.begin, each.bytes, wanted, bytes);
  });
  if (entry == cached_.end()) {
    Cached fresh;
    fresh.begin = wanted / kPageBytes * kPageBytes;
    fresh.bytes = (wanted + bytes + kPageBytes - 1) / kPageBytes * kPageBytes - fresh.begin;
    if (!make_room(fresh.bytes)) return false;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): rounded down to its page
    const void* begin = reinterpret_cast<const void*>(fresh.begin);
    if (registrar_->add(begin, fresh.bytes, false, &fresh.registration) != MEP_SUCCESS) {
      return false;
    }
    fresh.ticket = ++last_ticket_;
    cached_bytes_ += fresh.bytes;
    cached_.push_front(fresh);
    entry = cached_.begin();
  }
  ++entry->users;
  *out = entry->registration;
  *ticket = entry->ticket;
  cached_.splice(cached_.begin(), cached_, entry);
  return true;
}

void RegistrationCache::give_back(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  for (Cached& entry : cached_) {
    if (entry.ticket == ticket && entry.users > 0) --entry.users;
  }
}

// False: what is in use does not leave enough room.
bool RegistrationCache::make_room(size_t bytes) {
  if (bytes > limit_bytes_) return false;
  for (auto entry = cached_.end(); cached_bytes_ > limit_bytes_ - bytes;) {
    if (entry == cached_.begin()) return false;
    --entry;
    if (entry->users != 0) continue;
    registrar_->remove(&entry->registration);
    cached_bytes_ -= entry->bytes;
    entry = cached_.erase(entry);
  }
  return true;
}

size_t RegistrationCache::cached_bytes() const {
  const std::lock_guard lock(mutex_);
  return cached_bytes_;
}

}  // namespace mep::verbs
