// A whole handshake with a stranger: the frames that it sends, in any order. It never becomes a peer,
// because it does not know the secret. First byte: which side the library is.
#include <sys/socket.h>

#include "core/bootstrap/greeting.hpp"
#include "fuzz/fuzz_target.hpp"

namespace fuzz {
namespace {

mep::Hello plain_hello(mep::HelloKind kind, uint32_t slot) {
  mep::Hello hello;
  hello.kind = kind;
  hello.size = hello.max_size = 4;
  hello.job = "a job";
  hello.identity.slot = slot;
  hello.identity.incarnation = 1 + slot;
  return hello;
}

const mep::JobSecret& secret() {
  static mep::JobSecret value;
  static const bool loaded = [] {
    char path[] = "/tmp/mep-fuzz-XXXXXX";
    const mep::UniqueFd fd(mkstemp(path));
    const char bytes[] = "a secret that the fuzzer cannot guess";
    const bool written = write(fd.get(), bytes, sizeof bytes) == sizeof bytes;
    const bool good = written && value.load(path) == MEP_SUCCESS;
    unlink(path);
    return good;
  }();
  require(loaded);
  return value;
}

}  // namespace

void one(std::span<const std::byte> input) {
  if (input.empty() || mep::prepare_crypto() != MEP_SUCCESS) return;
  int sides[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sides) != 0) return;
  const mep::UniqueFd raw(sides[0]);
  mep::ControlLink link{mep::UniqueFd(sides[1])};
  const bool calls = (static_cast<unsigned>(input[0]) & 1) != 0;
  const mep::Details details;
  mep::Greeting greeting(calls ? mep::HandshakeSide::kCaller : mep::HandshakeSide::kAnswerer, true,
                         secret(), details);
  if (calls) (void)!greeting.call(&link, plain_hello(mep::HelloKind::kInit, 2));
  const auto stream = input.subspan(1);
  (void)!send(raw.get(), stream.data(), stream.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  mep_result_t decision = MEP_SUCCESS;
  (void)!link.receive([&](mep::Frame& frame) {
    mep::Greeting::Step step = mep::Greeting::Step::kMore;
    decision = greeting.take(&link, &frame, &step);
    if (decision == MEP_SUCCESS && step == mep::Greeting::Step::kHello) {
      decision = greeting.answer(&link, plain_hello(mep::HelloKind::kMember, 1));
    }
    return decision == MEP_SUCCESS;
  });
  require(!greeting.done());
}

void seeds(const Sink& sink) {
  for (const unsigned char side : {0, 1}) {
    std::vector<std::byte> bytes{std::byte{side}};
    int sides[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sides) != 0) return;
    const mep::UniqueFd raw(sides[0]);
    mep::ControlLink link{mep::UniqueFd(sides[1])};
    mep::Hello hello = plain_hello(side == 1 ? mep::HelloKind::kMember : mep::HelloKind::kInit, 2);
    hello.key.fill(std::byte{9});
    (void)!link.send(mep::kHelloFrame, mep::encode_hello(hello));
    const std::vector<std::byte> proof(mep::kProofBytes + sizeof(mep::StreamHeader), std::byte{5});
    (void)!link.send(mep::kProofFrame, proof);
    (void)!link.send(mep::kDetailsFrame, mep::encode_details({}));
    std::vector<std::byte> sent(4096);
    const ssize_t count = recv(raw.get(), sent.data(), sent.size(), MSG_DONTWAIT);
    if (count <= 0) return;
    bytes.insert(bytes.end(), sent.begin(), sent.begin() + count);
    sink(side == 1 ? "answerer" : "caller", bytes);
  }
}

}  // namespace fuzz
