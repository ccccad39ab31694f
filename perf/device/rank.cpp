// The GPU's side of a rank, put together; and its team where ranks are processes.
#include <algorithm>
#include <cstring>
#include <vector>

#include "device/collective.hpp"
#include "device/context.hpp"
#include "device/expert.hpp"
#include "device/moe.hpp"
#include "device/nccl.hpp"
#include "device_side.hpp"
#include "error.hpp"

namespace mep::perf {
namespace {

// Numbers go over the communicator, in pinned memory.
class StreamTeam : public Team {
 public:
  explicit StreamTeam(DeviceContext& context) : context_(context) {
    require(mep_comm_rank(context.comm(), &rank_), "mep_comm_rank");
    require(mep_comm_size(context.comm(), &size_), "mep_comm_size");
    context.use();
    require_cuda(cudaMallocHost(&numbers_, kNumbers * sizeof(double)), "cudaMallocHost");
  }
  ~StreamTeam() override { (void)cudaFreeHost(numbers_); }
  StreamTeam(const StreamTeam&) = delete;
  StreamTeam& operator=(const StreamTeam&) = delete;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void barrier() override {
    require(mep_barrier(context_.comm(), context_.stream()), "mep_barrier");
    context_.synchronize();
  }
  void wait_quietly() override { barrier(); }
  void maximum(double* values, size_t count) override { combine(values, count, MEP_MAX); }
  void sum(double* values, size_t count) override { combine(values, count, MEP_SUM); }

 private:
  static constexpr size_t kNumbers = 512;

  void combine(double* values, size_t count, mep_op_t op) {
    while (count > 0) {
      const size_t part = std::min(count, kNumbers);
      std::memcpy(numbers_, values, part * sizeof(double));
      require(mep_allreduce(numbers_, numbers_, part, MEP_FLOAT64, op, context_.comm(),
                            context_.stream()),
              "mep_allreduce");
      context_.synchronize();
      std::memcpy(values, numbers_, part * sizeof(double));
      values += part;
      count -= part;
    }
  }

  DeviceContext& context_;
  double* numbers_ = nullptr;
  int32_t rank_ = 0;
  int32_t size_ = 0;
};

class CudaRank : public DeviceRank {
 public:
  CudaRank(mep_comm_t comm, int32_t device) : context_(comm, device) {
    cudaDeviceProp about{};
    require_cuda(cudaGetDeviceProperties(&about, device), "cudaGetDeviceProperties");
    gpu_number_ = (about.pciDomainID * 256.0 + about.pciBusID) * 256.0 + about.pciDeviceID;
    // One launch without rows: the first that counts shall not wait for anything to be loaded.
    ExpertCall nothing{};
    auto* no_rows = context_.allocate<mep_range_t>(1);
    context_.fill(no_rows, 0, sizeof(mep_range_t));
    nothing.layout_range = no_rows;
    nothing.experts = nothing.sources = 1;
    require_cuda(launch_expert(nothing, context_.stream()), "loading kernels");
    context_.synchronize();
  }
  double gpu_number() const override { return gpu_number_; }
  std::unique_ptr<Team> make_team() override { return std::make_unique<StreamTeam>(context_); }
  std::unique_ptr<Case> make_collective(const CollectiveCall& call) override {
    context_.use();
    context_.recycle();
    return make_device_collective(context_, call, [this](const CollectiveCall& each) {
      require(each.entry->mep_call(each, context_.comm(), context_.stream()), each.entry->name());
    });
  }
  std::unique_ptr<Case> make_nccl_collective(const CollectiveCall& call) override {
    if (nccl_ == nullptr) nccl_ = std::make_unique<NcclRank>(context_);
    nccl_->check(call);
    return make_device_collective(context_, call,
                                  [this](const CollectiveCall& each) { nccl_->enqueue(each); });
  }
  std::unique_ptr<Case> make_moe(MoeOperation operation, MoeProblem& problem,
                                 const Options& options) override {
    return make_device_moe(context_, operation, problem, options);
  }
  mep_result_t reduce_ones(size_t count, float* sum) override {
    if (ones_ == nullptr) {
      context_.use();
      ones_ = context_.allocate<float>(count);
      sums_ = context_.allocate<float>(count);
      context_.upload(ones_, std::vector<float>(count, 1.0F).data(), count * sizeof(float));
    }
    const mep_result_t result = mep_allreduce(ones_, sums_, count, MEP_FLOAT32, MEP_SUM,
                                              context_.comm(), context_.stream());
    if (result < 0) return result;
    context_.download(sum, sums_, sizeof *sum);  // waits for the stream
    return mep_comm_async_result(context_.comm());
  }
  void hold(size_t bytes) override {
    context_.use();
    context_.fill(context_.allocate<uint8_t>(bytes), 1, bytes);
  }

 private:
  DeviceContext context_;
  float* ones_ = nullptr;  // of reduce_ones()
  float* sums_ = nullptr;
  std::unique_ptr<NcclRank> nccl_;
  double gpu_number_ = 0;
};

}  // namespace

std::unique_ptr<DeviceRank> make_device_rank(mep_comm_t comm) {
  int32_t device = 0;
  require(mep_comm_device(comm, nullptr, &device), "mep_comm_device");
  return std::make_unique<CudaRank>(comm, device);
}

}  // namespace mep::perf
