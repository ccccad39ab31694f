// Peers that are ranks of this process: a window is reached at its owner's own address.
//
// The fence is cooperative, as far as threads of one process can be fenced at all. fence_out()
// closes the gate for the excluded rank's put and signal and waits until its threads are outside of
// them; later ones answer MEP_ERR_PEER_FAILED. Stores through map() pass no gate and no page can be
// taken from one thread and left to another, so for those the fence holds only once the excluded
// rank's threads have left the library's calls. That is for whoever excludes it to see to. A
// process that stops or dies takes all of its ranks along, so no such rank can be excluded by
// another one of it.
#include <mutex>
#include <utility>

#include "base/status.hpp"
#include "transport/doorbell.hpp"
#include "transport/inproc/registry.hpp"
#include "transport/mapped_transport.hpp"

namespace mep {
namespace {

constexpr uint32_t kInprocTicketMagic = 0x4d455049;
// A put is a copy: it ends within this unless its thread is kept from running.
constexpr uint64_t kFenceTimeoutMs = 10000;

constexpr TransportTraits kTraits{
    .name = "inproc", .reach = Reach::kProcess, .is_mapped = true, .lands_at_once = true};

class InprocTransport final : public MappedTransport {
 public:
  explicit InprocTransport(const TransportOptions& options) : MappedTransport(kTraits, options) {}

  ~InprocTransport() override {
    for (const auto& [window, exported] : exports_) {
      InprocRegistry::instance().remove(exported.token);
    }
  }

  [[nodiscard]] mep_result_t export_window(uint32_t /*slot*/, const std::shared_ptr<Window>& window,
                                           WindowExport* out) override {
    const std::lock_guard lock(mutex_);
    forget_expired_exports();
    Export& present = exports_[window->id()];
    if (present.window.lock() != window) {
      if (present.token != 0) InprocRegistry::instance().remove(present.token);
      present.window = window;
      present.token = InprocRegistry::instance().add({window, gates_});
    }
    out->blob = encode_ticket(
        {kInprocTicketMagic, window->generation(), window->id(), window->bytes(), present.token});
    out->fd.reset();
    return MEP_SUCCESS;
  }

  [[nodiscard]] mep_result_t import_window(uint32_t slot, uint64_t window, size_t bytes,
                                           std::span<const std::byte> blob,
                                           UniqueFd /*fd*/) override {
    Peer* peer = nullptr;
    MEP_TRY(find_importing_peer(slot, window, &peer));
    WindowTicket ticket{};
    MEP_TRY(decode_ticket(blob, kInprocTicketMagic, window, bytes, &ticket));
    std::shared_ptr<Window> memory;
    std::shared_ptr<RankGates> gates;
    if (!InprocRegistry::instance().find(ticket.token, &memory, &gates)) {
      return fail(MEP_ERR_NOT_FOUND, "slot %u has no window %llu any more", slot,
                  static_cast<unsigned long long>(window));
    }
    if (memory->id() != window || memory->bytes() < bytes) {
      return fail(MEP_ERR_MISMATCH, "slot %u describes window %llu otherwise than it is", slot,
                  static_cast<unsigned long long>(window));
    }
    std::byte* data = memory->data();
    RemoteWindow* present = peer->windows.find(window);
    if (present != nullptr) return check_replacement(present, data, bytes, ticket);
    if (window == kWorldWindowId && bytes >= sizeof(Doorbell)) {
      doorbell_join(reinterpret_cast<Doorbell*>(data));
    }
    peer->windows.add(window, {data, bytes, ticket.generation, gates->of(peer->self.incarnation),
                               std::move(memory)});
    return MEP_SUCCESS;
  }

  [[nodiscard]] mep_result_t fence_out(uint32_t slot) override {
    Peer* peer = nullptr;
    MEP_TRY(find_peer(slot, &peer));
    peer->fenced.store(true, std::memory_order_relaxed);
    const std::shared_ptr<PutGate> gate = gates_->of(peer->identity.incarnation);
    if (gate->close(Deadline::after_ms(kFenceTimeoutMs))) return MEP_SUCCESS;
    return fail(MEP_ERR_TIMEOUT,
                "a put of slot %u into this rank's windows has not ended in %llu ms", slot,
                static_cast<unsigned long long>(kFenceTimeoutMs));
  }

 private:
  struct Export {
    std::weak_ptr<Window> window;
    uint64_t token = 0;
  };

  // A renewed window has its old address, so there is nothing to replace.
  [[nodiscard]] static mep_result_t check_replacement(RemoteWindow* present, const std::byte* data,
                                                      size_t bytes, const WindowTicket& ticket) {
    const auto id = static_cast<unsigned long long>(ticket.window);
    if (present->data != data || present->bytes != bytes) {
      return fail(MEP_ERR_MISMATCH, "window %llu was imported with another address or size", id);
    }
    if (ticket.generation < present->generation) {
      return fail(MEP_ERR_MISMATCH, "window %llu of generation %u came after generation %u", id,
                  ticket.generation, present->generation);
    }
    present->generation = ticket.generation;
    return MEP_SUCCESS;
  }

  void forget_expired_exports() {
    std::erase_if(exports_, [](const auto& entry) {
      if (!entry.second.window.expired()) return false;
      InprocRegistry::instance().remove(entry.second.token);
      return true;
    });
  }

  const std::shared_ptr<RankGates> gates_ = std::make_shared<RankGates>();
  std::mutex mutex_;
  std::map<uint64_t, Export> exports_;
};

}  // namespace

std::unique_ptr<Transport> make_inproc_transport(const TransportOptions& options) {
  return std::make_unique<InprocTransport>(options);
}

}  // namespace mep
