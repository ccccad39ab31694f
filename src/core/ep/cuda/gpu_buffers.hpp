// The buffers of an EP object on a GPU: for each a window that peers write (mapped, or by queues: queued_buffer.hpp), a private
// block with the kernels' state and control block, and what the host knows of the calls made. Where the window
// lies on the host, kernels copy what came out of it into memory of the GPU, and take y from there.
//
// The kernels read epoch, members and timeouts from the buffer's control block in device memory. When the
// view changes, the control thread only raises the abort word in pinned memory, and kernels of the old
// epoch leave. The new epoch is installed by the next call on the buffer, in stream order behind what ran
// there before, so no kernel meets a control block that changes. Until then replayed graphs leave at
// once. Words are not cleared: they carry the epoch.
//
// A rank may install its epoch while kernels of another still run in the old one: rows of the new epoch are
// written only after every member's counts of that epoch have come, hence after its old kernels. Slotted,
// and for terms, each place has one writer.
//
// Three threads: the user's, the control thread of the world (install), and the comm's watcher, which takes the
// kernels' reports to membership. The last two make no CUDA call.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/cuda/cuda_backend.hpp"
#include "core/cuda/gpu_windows.hpp"
#include "core/ep/cuda/ep_call.hpp"
#include "core/ep/cuda/ep_geometry.hpp"
#include "core/ep/cuda/ep_views.hpp"
#include "core/ep/cuda/queued_buffer.hpp"
#include "core/ep/ep_buffers.hpp"
#include "protocol/ep_call.hpp"
#include "transport/cuda/device_memory.hpp"

namespace mep {

class GpuBuffers final : public EpBuffers, public GpuPart {
 public:
  GpuBuffers(Comm& comm, CudaBackend& backend, const EpShape& shape,
             const EpDeviceOptions& options);
  ~GpuBuffers() override;
  GpuBuffers(const GpuBuffers&) = delete;
  GpuBuffers& operator=(const GpuBuffers&) = delete;
  // How many ranks share this host, and that all gave the same options.
  mep_result_t meet(RankValues* values) override;
  mep_result_t offer(const std::string& name, uint64_t window_seed) override;
  mep_result_t connect(const std::shared_ptr<const CommView>& view,
                       const Deadline& deadline) override;

  // --- The user's thread ---
  bool in_flight() override;
  mep_result_t make_handle(EpHandle* handle) override;
  mep_result_t end_handle(EpHandle& handle) override;
  mep_result_t use_map(const std::shared_ptr<const ExpertMap>& map) override;
  void fill_view(uint32_t buffer, mep_ep_view_t* view) const override;
  mep_result_t dispatch(EpHandle& handle, const DispatchInput* send, const DispatchOutput* receive,
                        void* stream) override;
  mep_result_t combine(EpHandle& handle, const CombineInput* send, const CombineOutput* receive,
                       void* stream) override;
  mep_result_t last_op(uint32_t buffer, mep_op_info_t* info) override;
  mep_result_t take_failure() override;
  void watch() override;
  mep_result_t meet_joiners(const Deadline& deadline) override;
  void leave() override;

  // --- The control thread ---
  void describe(std::vector<membership::ChannelState>* channels) const override {
    views_.describe(channels);
  }
  void freeze(std::vector<membership::ChannelState>* channels) override { views_.freeze(channels); }
  void install(const std::shared_ptr<const CommChange>& change,
               const membership::Proposal* committed) override;
  void terminate() override;

 private:
  struct Buffer {
    uint64_t id = 0;
    std::byte* window = nullptr;
    std::byte* views = nullptr;  // device memory laid out like the window: what fill_view() shows
    std::shared_ptr<DeviceMemory> views_memory;  // null: views lie in the window
    std::shared_ptr<DeviceMemory> expanded;      // rows by expert, and y for them; null without
    std::shared_ptr<GpuWindows> windows;         // of mapped peers; null: there are none
    std::unique_ptr<QueuedBuffer> queued;        // null: all peers are mapped
    std::shared_ptr<DeviceMemory> block;         // local, control, status, peers
    device::DeviceControl* control = nullptr;
    device::OpStatus* status = nullptr;  // of operations whose caller wants none
    std::byte** peers = nullptr;
    uint64_t epoch = 0;  // that was installed
    uint64_t told = 0;   // epoch up to which changes were told
    EpCallState calls;
  };

  mep_result_t check_host_memory() const;
  mep_result_t offer_buffer(Buffer* buffer);
  mep_result_t offer_windows(Buffer* buffer);
  mep_result_t tell_windows(const Buffer& buffer, void* stream) const;
  mep_result_t connect_buffers(const CommView& view, const Deadline& deadline);
  mep_result_t choose_ctas();
  device::DeviceControl control_of(const CommView& view) const;
  mep_result_t begin_call(Buffer& buffer, void* stream);
  mep_result_t catch_up(Buffer& buffer, void* stream);
  mep_result_t move_to_view(Buffer& buffer, const CommView& view, void* stream);
  bool is_over(const Buffer& buffer) const;
  device::EpLaunch launch(const Buffer& buffer, const EpHandle& handle) const;
  void fill_expanded_view(const Buffer& buffer, mep_ep_view_t* view) const;
  std::string queue_error_text(const Buffer& buffer, const device::DeviceReport& report) const;
  void read_reports();

  Comm& comm_;
  CudaBackend& backend_;
  const EpShape shape_;
  const EpDeviceOptions options_;
  const device::EpGeometry geometry_;
  std::string name_;
  uint32_t ranks_on_host_ = 1;
  uint32_t ctas_ = 1;
  std::vector<Buffer> buffers_;
  std::unique_ptr<DeviceStream> stream_;
  std::shared_ptr<DeviceMemory> map_memory_;
  bool has_map_ = false;  // one was set: ids go through map_memory_ from then on
  ExpertMap no_map_;      // physical ids, as a table
  std::shared_ptr<PinnedMemory> pinned_;
  uint64_t* abort_word_ = nullptr;           // pinned
  device::DeviceReport* reports_ = nullptr;  // pinned, by buffer
  bool is_part_ = false;

  std::mutex handles_mutex_;
  std::vector<std::shared_ptr<DeviceMemory>> handle_memory_;  // of all handles that ever were
  std::vector<std::byte*> free_handles_;

  EpViews views_;

  std::mutex report_mutex_;
  mep_result_t failure_ = MEP_SUCCESS;  // the first that nobody was told of
  std::string failure_text_;
};

}  // namespace mep
