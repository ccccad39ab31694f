// The backend of host memory: operations block, or go on inside calls of the same comm.
#include "core/comm/backend.hpp"
#include "core/comm/comm.hpp"
#include "protocol/message_cells.hpp"

namespace mep {
namespace {

class HostBackend final : public Backend {
 public:
  explicit HostBackend(Comm& comm) : Backend(backends::kHost), comm_(comm) {}
  mep_result_t allocate(size_t bytes, void** memory) override {
    return comm_.world().host_memory().allocate(bytes, memory);
  }
  mep_result_t free(void* memory, std::shared_ptr<const void>* kept) override {
    return comm_.world().host_memory().free(memory, kept);
  }
  BackendLimits limits() const override {
    return {.message_eager_bytes = MessageLayout::of(comm_.size()).payload_bytes()};
  }
  mep_reach_t reach_of(uint32_t rank) const override {
    return comm_.world().peers().maps(comm_.slots()[rank]) ? MEP_REACH_MAPPED : MEP_REACH_NETWORK;
  }
  mep_result_t take_any_failure() override {
    return fail(MEP_ERR_UNSUPPORTED, "a host communicator has no stream operations");
  }
  mep_result_t show_losses(int32_t* lost, void* stream) override {
    MEP_TRY(check_no_stream(stream));
    comm_.losses().show(lost);
    return MEP_SUCCESS;
  }
  mep_result_t forget_losses(void* stream) override {
    MEP_TRY(check_no_stream(stream));
    comm_.losses().forget();
    return MEP_SUCCESS;
  }
  bool busy() const override { return false; }
  size_t view_participants() const override { return 0; }
  void set_timeout_ms(uint32_t) override {}
  void revoke() override {}

 private:
  mep_result_t carry_out(Collective kind, const CollectiveArgs& args, void* stream) override {
    MEP_TRY(check_no_stream(stream));
    return comm_.collectives().run(kind, args);
  }
  mep_result_t begin(Collective kind, const CollectiveArgs& args, Operation* operation) override {
    return comm_.collectives().start(kind, args, operation);
  }

  Comm& comm_;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(Comm& comm) {
  return std::make_unique<HostBackend>(comm);
}

}  // namespace mep
