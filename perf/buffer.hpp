// Page-aligned memory, not touched before its first use.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace mep::perf {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes) {
    constexpr size_t kPage = 4096;
    const size_t rounded = (bytes / kPage + 1) * kPage;
    memory_.reset(std::aligned_alloc(kPage, rounded));
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  template <typename Type>
  Type* as() const {
    return static_cast<Type*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<void, Free> memory_;
};

}  // namespace mep::perf
