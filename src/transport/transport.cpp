// What a transport does not override, and the table of those that exist.
#include "transport/transport.hpp"

#include "base/status.hpp"

namespace mep {

#define MEP_TRANSPORT(name, factory) \
  std::unique_ptr<Transport> factory(const TransportOptions& options);
#include "transport/transports.def"
#undef MEP_TRANSPORT

namespace {

constexpr TransportEntry kTable[] = {
#define MEP_TRANSPORT(name, factory) {#name, factory},
#include "transport/transports.def"
#undef MEP_TRANSPORT
};

[[nodiscard]] mep_result_t unsupported(const Transport& transport, const char* action) {
  return fail(MEP_ERR_UNSUPPORTED, "transport %s has no %s", transport.name(), action);
}

}  // namespace

std::span<const TransportEntry> transport_table() {
  return kTable;
}

mep_result_t Transport::make_offer(std::vector<std::byte>* /*offer*/) {
  return unsupported(*this, "make_offer");
}

mep_result_t Transport::add_peer(const PeerIdentity& /*self*/, const PeerIdentity& /*peer*/,
                                 std::span<const std::byte> /*offer*/,
                                 const PeerSession& /*session*/) {
  return unsupported(*this, "add_peer");
}

mep_result_t Transport::export_window(const std::shared_ptr<Window>& /*window*/,
                                      WindowExport* /*out*/) {
  return unsupported(*this, "export_window");
}

mep_result_t Transport::export_window_to(uint32_t /*slot*/, const std::shared_ptr<Window>& window,
                                         WindowExport* out) {
  return export_window(window, out);
}

mep_result_t Transport::import_window(uint32_t /*slot*/, uint64_t /*window*/, size_t /*bytes*/,
                                      std::span<const std::byte> /*blob*/, UniqueFd /*fd*/) {
  return unsupported(*this, "import_window");
}

std::byte* Transport::map(uint32_t /*slot*/, uint64_t /*window*/) const {
  return nullptr;
}

uint32_t Transport::lanes(uint32_t /*slot*/) const {
  return 1;
}

mep_result_t Transport::progress(bool* active) {
  *active = false;
  return unsupported(*this, "progress");
}

mep_result_t Transport::fence_out(uint32_t /*slot*/) {
  return unsupported(*this, "fence_out");
}

mep_result_t Transport::mark(uint32_t /*slot*/, uint64_t /*number*/) {
  return MEP_SUCCESS;  // a put has landed when it returns
}

uint64_t Transport::marked(uint32_t /*slot*/) const {
  return UINT64_MAX;
}

bool Transport::connected(uint32_t /*slot*/) const {
  return true;
}

const char* Transport::describe(uint32_t /*slot*/) const {
  return nullptr;
}

bool Transport::take_failure(PeerFailure* /*out*/) {
  return false;
}

mep_result_t Transport::register_memory(const void* /*memory*/, size_t /*bytes*/) {
  return unsupported(*this, "register_memory");
}

void Transport::unregister_memory(const void* /*memory*/) {}

}  // namespace mep
