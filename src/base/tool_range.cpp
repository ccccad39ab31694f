#include "base/tool_range.hpp"

#if MEP_HAVE_CUDA
#include <nvtx3/nvToolsExt.h>
#include <sys/auxv.h>
#endif

namespace mep {

constinit std::atomic<bool> has_tool{false};

#if MEP_HAVE_CUDA

namespace {

// Null: no tool, or one that takes no domains.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("MEP");
  return made;
}

}  // namespace

// The environment names the tool's library: a set-uid program must not load it.
void find_tool() {
  if (getauxval(AT_SECURE) != 0 || domain() == nullptr) return;
  has_tool.store(true, std::memory_order_relaxed);
}

void begin_tool_range(const char* name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  (void)nvtxDomainRangePushEx(domain(), &attributes);
}

void end_tool_range() {
  (void)nvtxDomainRangePop(domain());
}

#else

void find_tool() {}
void begin_tool_range(const char*) {}
void end_tool_range() {}

#endif

}  // namespace mep
