// ControlLink::receive over a stream socket: open frames, and sealed ones of a stranger. First byte of
// the input: 1 sealed, 2 a small limit, then what is written to the socket, in two parts.
#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "core/bootstrap/control_link.hpp"
#include "fuzz/fuzz_target.hpp"

namespace fuzz {
namespace {

constexpr size_t kSmallLimit = 64;

}  // namespace

void one(std::span<const std::byte> input) {
  if (input.empty() || mep::prepare_crypto() != MEP_SUCCESS) return;
  int sides[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sides) != 0) return;
  mep::UniqueFd raw(sides[0]);
  mep::ControlLink link{mep::UniqueFd(sides[1])};
  const auto mode = static_cast<unsigned>(input[0]);
  const bool small = (mode & 2) != 0;
  if (small) link.limit_payload(kSmallLimit);
  const mep::StreamKey key{};
  mep::StreamHeader header{};
  if ((mode & 1) != 0) link.open_input(std::make_unique<mep::FrameOpener>(key, header));
  const auto stream = input.subspan(1, std::min<size_t>(input.size() - 1, 60000));
  const size_t half = stream.size() / 2;
  mep_result_t result = MEP_SUCCESS;
  for (const auto part : {stream.first(half), stream.subspan(half)}) {
    (void)!send(raw.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    result = link.receive([&](mep::Frame& frame) {
      require(frame.type != 0 && frame.payload.size() <= (small ? kSmallLimit : input.size()));
      require(frame.fds.empty());
      return true;
    });
    require(result == MEP_SUCCESS || result == MEP_ERR_DENIED);
  }
  raw.reset();
  result = link.receive([](mep::Frame&) { return true; });
  require(result == MEP_ERR_DENIED || result == MEP_ERR_PEER_FAILED);
}

void seeds(const Sink& sink) {
  for (const unsigned char mode : {0, 1, 2}) {
    int sides[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sides) != 0) return;
    mep::UniqueFd raw(sides[0]);
    mep::ControlLink link{mep::UniqueFd(sides[1])};
    if (mode == 1) {
      const mep::StreamKey key{};
      mep::StreamHeader header{};
      link.seal_output(std::make_unique<mep::FrameSealer>(key, &header));
    }
    const std::vector<std::byte> payload(20, std::byte{7});
    (void)!link.send(64, payload);
    (void)!link.send(65, {});
    std::vector<std::byte> bytes(4096);
    bytes[0] = std::byte{mode};
    const ssize_t count = recv(raw.get(), bytes.data() + 1, bytes.size() - 1, MSG_DONTWAIT);
    if (count > 0) sink("frames-" + std::to_string(mode), {bytes.data(), 1 + size_t(count)});
    if (mode != 0) continue;
    // The same as pieces of one message: the header's bytes 4 and 5 are the type.
    std::memcpy(bytes.data() + 1 + 4, "\x41\x80", 2);
    if (count > 0) sink("pieces", {bytes.data(), 1 + size_t(count)});
  }
}

}  // namespace fuzz
