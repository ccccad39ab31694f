// Two ends of one connection in this process: each has a send queue that reaches the memory of the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/gpu_queue/send_queue.hpp"

namespace mep::perf {

// Memory of one end: puts are read from the source, and those of the other end arrive in the target.
class EndMemory {
 public:
  explicit EndMemory(size_t span);
  std::byte* source() const { return base_.get(); }
  std::byte* target() const { return base_.get() + span_; }
  size_t span() const { return span_; }
  size_t bytes() const { return 2 * span_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  size_t span_;  // a multiple of the page
  std::unique_ptr<std::byte, Free> base_;
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
