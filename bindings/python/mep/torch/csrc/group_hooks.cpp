// Hooks of a process group, and extra time for its operations.
#include <utility>

#include "process_group.hpp"

namespace mep_torch {

void ProcessGroupMep::registerAbortHook(int64_t hook_id, std::function<void()> hook) {
  hooks_->abort.add(hook_id, std::move(hook));
}

void ProcessGroupMep::unregisterAbortHook(int64_t hook_id) {
  hooks_->abort.remove(hook_id);
}

#ifdef MEP_TORCH_HAS_COMPLETION_HOOKS
void ProcessGroupMep::registerCompletionHook(int64_t hook_id, c10d::CompletionHook hook) {
  hooks_->completion.add(hook_id, [hook = std::move(hook)](uint64_t key) {
    c10d::CompletionHookArgs ended;
    ended.completionKey = key;
    hook(ended);
  });
}

void ProcessGroupMep::unregisterCompletionHook(int64_t hook_id) {
  hooks_->completion.remove(hook_id);
}
#endif

void ProcessGroupMep::addEphemeralTimeout(const std::chrono::milliseconds& timeout) {
  hooks_->extra_time.add(timeout);
}

}  // namespace mep_torch
