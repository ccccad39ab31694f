// Peers on this host in other processes: their windows are memfds, mapped here.
//
// The fence: once mapped, memory cannot be taken away from a process that may still run. So
// fence_out() only stops this rank from reaching the peer. That none of the peer's late bytes lands
// in memory that is still used is the work of whoever excludes it: Window::renew() for every window
// that the peer could import, new exports to the peers that stay, and no export to the one that was
// excluded. Its writes then go to pages that nobody reads.
#include "base/status.hpp"
#include "base/system_error.hpp"
#include "transport/doorbell.hpp"
#include "transport/mapped_transport.hpp"
#include "transport/memfd.hpp"

#include <fcntl.h>

#include <cerrno>

namespace mep {
namespace {

constexpr uint32_t kShmTicketMagic = 0x4d455053;

constexpr TransportTraits kTraits{.name = "shm",
                                  .reach = Reach::kHost,
                                  .is_mapped = true,
                                  .lands_at_once = true,
                                  .renews_windows = true};

class ShmTransport final : public MappedTransport {
 public:
  explicit ShmTransport(const TransportOptions& options) : MappedTransport(kTraits, options) {}

  [[nodiscard]] mep_result_t open(std::vector<std::byte>* offer) override {
    UniqueFd fd;
    MEP_TRY(create_memfd("mep-probe", 1, &fd));
    return MappedTransport::open(offer);
  }

  [[nodiscard]] mep_result_t export_window(uint32_t /*slot*/, const std::shared_ptr<Window>& window,
                                           WindowExport* out) override {
    UniqueFd fd(fcntl(window->fd(), F_DUPFD_CLOEXEC, 0));
    if (!fd.valid()) {
      return fail_call("a window's descriptor", "fcntl", errno);
    }
    out->blob = encode_ticket(
        {kShmTicketMagic, window->generation(), window->id(), window->bytes(), /*token=*/0});
    out->fd = std::move(fd);
    return MEP_SUCCESS;
  }

  [[nodiscard]] mep_result_t import_window(uint32_t slot, uint64_t window, size_t bytes,
                                           std::span<const std::byte> blob, UniqueFd fd) override {
    Peer* peer = nullptr;
    MEP_TRY(find_importing_peer(slot, window, &peer));
    WindowTicket ticket{};
    MEP_TRY(decode_ticket(blob, kShmTicketMagic, window, bytes, &ticket));
    RemoteWindow* present = peer->windows.find(window);
    if (present != nullptr) MEP_TRY(check_replacement(*present, ticket, bytes));
    MEP_TRY(check_foreign_memfd(fd.get(), bytes));
    Mapping mapping;
    MEP_TRY(Mapping::of(fd.get(), bytes, true, &mapping));
    std::byte* data = mapping.data();
    if (window == kWorldWindowId && bytes >= sizeof(Doorbell)) {
      doorbell_join(reinterpret_cast<Doorbell*>(data));
    }
    if (present == nullptr) {
      peer->windows.add(window, {data, bytes, ticket.generation, nullptr,
                                 std::make_shared<Mapping>(std::move(mapping))});
      return MEP_SUCCESS;
    }
    // The pages change, the address does not: algorithms keep pointers.
    MEP_TRY(mapping.move_to(present->data));
    present->generation = ticket.generation;
    return MEP_SUCCESS;
  }

  [[nodiscard]] mep_result_t fence_out(uint32_t slot) override {
    Peer* peer = nullptr;
    MEP_TRY(find_peer(slot, &peer));
    peer->fenced.store(true, std::memory_order_relaxed);
    return MEP_SUCCESS;
  }

 private:
  [[nodiscard]] static mep_result_t check_replacement(const RemoteWindow& present,
                                                      const WindowTicket& ticket, size_t bytes) {
    if (present.bytes != bytes) {
      return fail(MEP_ERR_MISMATCH, "window %llu was imported with %zu bytes, now with %zu",
                  static_cast<unsigned long long>(ticket.window), present.bytes, bytes);
    }
    if (ticket.generation < present.generation) {
      return fail(MEP_ERR_MISMATCH, "window %llu of generation %u came after generation %u",
                  static_cast<unsigned long long>(ticket.window), ticket.generation,
                  present.generation);
    }
    return MEP_SUCCESS;
  }
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(const TransportOptions& options) {
  return std::make_unique<ShmTransport>(options);
}

}  // namespace mep
