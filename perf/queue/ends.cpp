#include "queue/ends.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

namespace mep::perf {

PageMemory::PageMemory(size_t bytes) {
  const size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, rounded)));
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_.get(), 0, rounded);
}

void PageMemory::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

}  // namespace mep::perf
