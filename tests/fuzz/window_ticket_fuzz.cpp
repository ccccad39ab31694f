// The blob of a window that is mapped.
#include <cstring>

#include "fuzz/fuzz_target.hpp"
#include "transport/mapped_transport.hpp"

namespace fuzz {

constexpr uint32_t kMagic = 0x1234;

void one(std::span<const std::byte> input) {
  mep::WindowTicket ticket;
  if (mep::decode_ticket(input, kMagic, 9, 4096, &ticket) != MEP_SUCCESS) return;
  require(ticket.magic == kMagic && ticket.window == 9 && ticket.bytes >= 4096);
}

void seeds(const Sink& sink) {
  sink("ticket", mep::encode_ticket({kMagic, 1, 9, 4096, 77}));
  sink("small", mep::encode_ticket({kMagic, 1, 9, 64, 77}));
}

}  // namespace fuzz
