// Hellos: of any bytes that are accepted, the same hello is encoded again.
#include "core/bootstrap/hello.hpp"
#include "fuzz/fuzz_target.hpp"

namespace fuzz {

void one(std::span<const std::byte> input) {
  mep::Hello hello;
  if (mep::decode_hello(input, &hello) != MEP_SUCCESS) return;
  require(hello.job.size() <= mep::kMaxJobBytes && hello.identity.incarnation != 0);
  require(hello.identity.slot < static_cast<uint32_t>(mep::kMaxRanks));
  require(hello.size >= 0 && hello.size <= hello.max_size && hello.max_size <= mep::kMaxRanks);
  // The library's version is the sender's: it stays as it was read.
  const std::vector<std::byte> again = mep::encode_hello(hello);
  require(std::equal(again.begin(), again.end(), input.begin(), input.end()));
}

void seeds(const Sink& sink) {
  for (const auto kind : {mep::HelloKind::kInit, mep::HelloKind::kJoin, mep::HelloKind::kMember,
                          mep::HelloKind::kMeet}) {
    mep::Hello hello;
    hello.kind = kind;
    hello.size = 4;
    hello.max_size = 8;
    hello.job = "a job";
    hello.identity = {3, 77, 5, 6, 4711};
    hello.has_secret = kind == mep::HelloKind::kInit;
    hello.key.fill(std::byte{9});
    sink("hello-" + std::to_string(static_cast<int>(kind)), mep::encode_hello(hello));
  }
}

}  // namespace fuzz
