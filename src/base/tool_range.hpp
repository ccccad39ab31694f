// Ranges of host calls for NVIDIA's tools (NVTX; Nsight Systems shows them). Builds without CUDA have none.
#pragma once

#include <atomic>

namespace mep {

// Relaxed: it publishes nothing. Set once, by find_tool(), if a tool wants ranges.
extern std::atomic<bool> has_tool;

// Loads the tool that this process was started with. Any thread.
void find_tool();
void begin_tool_range(const char* name);
void end_tool_range();

// A range of this thread for its own life. `name` is a literal.
class ToolRange {
 public:
  explicit ToolRange(const char* name) : is_open_(has_tool.load(std::memory_order_relaxed)) {
    if (is_open_) [[unlikely]]
      begin_tool_range(name);
  }
  ~ToolRange() {
    if (is_open_) [[unlikely]]
      end_tool_range();
  }
  ToolRange(const ToolRange&) = delete;
  ToolRange& operator=(const ToolRange&) = delete;

 private:
  const bool is_open_;
};

}  // namespace mep
