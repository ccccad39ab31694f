// Streams of a GPU, by c10's interface: the binding is compiled without CUDA's headers.
#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace mep_torch {

inline c10::impl::VirtualGuardImpl guard_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}
// CUDA's number of the capture that the stream is in, 0 outside of one.
uint64_t capture_of(const c10::Stream& stream);
// `behind` runs what it gets from now on after all that `stream` has.
void wait_for(const c10::Stream& stream, const c10::Stream& behind);

// The stream of a communicator's last operation. MEP wants one stream at a time, so an operation on another stream
// waits for the last one. One thread at a time.
class StreamOrder {
 public:
  // `stream` goes on behind the last operation, and has the next one.
  void follow(const c10::Stream& stream);
  // Blocks the host until the last operation has run.
  void synchronize() const;
  void reset() { last_.reset(); }

 private:
  // Each capture of a graph is a time of its own: its work cannot wait for work outside.
  struct Last {
    c10::Stream stream;
    uint64_t capture;
  };
  std::optional<Last> last_;
};

}  // namespace mep_torch
