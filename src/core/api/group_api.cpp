#include <utility>
#include <vector>

#include "base/guarded.hpp"
#include "core/api/group.hpp"

namespace mep {
namespace {

struct Group {
  uint32_t depth = 0;
  std::vector<mep_request_t> requests;  // in the order of the calls
};

// A thread that ends in the middle of a group leaves its operations to their comms, which refuse to be
// destroyed.
Group& own_group() {
  static thread_local Group group;
  return group;
}

}  // namespace

bool in_group() {
  return own_group().depth != 0;
}

void reserve_in_group() {
  std::vector<mep_request_t>& requests = own_group().requests;
  // By doubling, as push_back() would.
  if (requests.size() == requests.capacity()) requests.reserve(2 * requests.size() + 8);
}

void add_to_group(mep_request_t request) {
  own_group().requests.push_back(request);
}

}  // namespace mep

mep_result_t mep_group_begin(void) {
  ++mep::own_group().depth;
  return MEP_SUCCESS;
}

mep_result_t mep_group_end(void) {
  using namespace mep;
  Group& group = own_group();
  if (group.depth == 0) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "mep_group_end without mep_group_begin");
  }
  if (--group.depth != 0) return MEP_SUCCESS;
  std::vector<mep_request_t> requests = std::exchange(group.requests, {});
  constexpr uint32_t kUntilTimeout = 0xffffffff;
  return mep_request_waitall(static_cast<int32_t>(requests.size()), requests.data(), kUntilTimeout,
                             nullptr);
}
