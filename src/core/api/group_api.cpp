#include "core/api/group.hpp"

#include <vector>

namespace mep {

constinit thread_local Group own_group;

namespace {

// Those that are not done stay in the group: another thread is inside a call on one of their comms.
mep_result_t end_group() {
  std::vector<mep_request_t> requests;
  for (mep_request_t each = own_group.first; each != nullptr; each = each->behind_in_group) {
    requests.push_back(each);
  }
  const mep_result_t result = mep_request_waitall(static_cast<int32_t>(requests.size()),
                                                  requests.data(), kUntilTimeout, nullptr);
  own_group = {};
  for (mep_request_t each : requests) {
    if (each != nullptr) own_group.add(each);
  }
  own_group.depth = own_group.first == nullptr ? 0 : 1;
  return result;
}

}  // namespace
}  // namespace mep

mep_result_t mep_group_begin(void) {
  ++mep::own_group.depth;
  return MEP_SUCCESS;
}

mep_result_t mep_group_end(void) {
  using namespace mep;
  if (own_group.depth == 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "mep_group_end without mep_group_begin");
  }
  if (own_group.depth > 1) {
    --own_group.depth;
    return MEP_SUCCESS;
  }
  return guarded(end_group);
}
