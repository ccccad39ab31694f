#include "queue/ends.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

namespace mep::perf {

EndMemory::EndMemory(size_t span) {
  constexpr size_t kPage = 4096;
  span_ = (span + kPage - 1) / kPage * kPage;
  base_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes())));
  if (base_ == nullptr) throw std::bad_alloc();
  std::memset(base_.get(), 0, bytes());
}

void EndMemory::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

}  // namespace mep::perf
