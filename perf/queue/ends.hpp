// Two ends of one connection in this process: each has a send queue that reaches the memory of the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/gpu_queue/send_queue.hpp"

namespace mep::perf {

// Zeros on pages of their own.
class PageMemory {
 public:
  static constexpr size_t kPage = 4096;

  explicit PageMemory(size_t bytes);
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> data_;
};

// Memory of one end: puts are read from the source, and those of the other end arrive in the target.
class EndMemory {
 public:
  explicit EndMemory(size_t span)
      : span_((span + PageMemory::kPage - 1) / PageMemory::kPage * PageMemory::kPage),
        memory_(2 * span_) {}
  std::byte* source() const { return memory_.data(); }
  std::byte* target() const { return memory_.data() + span_; }
  size_t span() const { return span_; }

 private:
  size_t span_;
  PageMemory memory_;
};

struct End {
  gpu_queue::Queue* queue = nullptr;
  const EndMemory* memory = nullptr;
  gpu_queue::LocalMemory source{};   // as requests of this queue name memory->source()
  gpu_queue::RemoteMemory target{};  // and the target of the other end
};

class Ends {
 public:
  virtual ~Ends() = default;

  End& end(int number) { return ends_[number]; }
  // Posters are HostMemory, whose doorbells wake a software NIC; else they store in a register of an adapter.
  virtual bool posters_wake() const = 0;
  // Both say who executes the queues: for headings, and for rows.
  virtual std::string description() const = 0;
  virtual std::string name() const = 0;

 protected:
  End ends_[2];
};

constexpr uint32_t kQueueEntries = 1024;

}  // namespace mep::perf
