#include "device_side.hpp"
#include "error.hpp"

namespace mep::perf {
namespace {

[[noreturn]] void refuse_device() {
  throw PerfError("this mep_perf was built without CUDA (configure with MEP_CUDA=ON)");
}

}  // namespace

bool device_is_built() {
  return false;
}
void prepare_device(int32_t) {
  refuse_device();
}
DeviceFloors measure_device(int32_t) {
  refuse_device();
}
std::unique_ptr<DeviceRank> make_device_rank(mep_comm_t) {
  refuse_device();
}

}  // namespace mep::perf
