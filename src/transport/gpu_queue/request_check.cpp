#include "transport/gpu_queue/request_check.hpp"

#include <cstdio>

namespace mep::gpu_queue {
namespace {

// One request on its way through the checks, in the order in which an adapter comes to them.
class Check {
 public:
  Check(const RequestRules& rules, const Request& request, Accepted* out, Refusal* why)
      : rules_(rules), request_(request), out_(*out), why_(*why) {}

  bool control(uint64_t index) {
    const auto control = get_segment<ControlSegment>(request_, 0);
    const uint32_t first = control.index_opcode.value();
    const uint32_t second = control.queue_segments.value();
    opcode_ = static_cast<Opcode>(first & 0xff);
    segments_ = second & 0xff;
    const auto completion = static_cast<Completion>(control.completion);
    out_.completes = completion == Completion::kAlways;
    if ((first >> 8 & 0xffff) != (index & 0xffff)) return operation(Reason::kIndex);
    if (second >> 8 != rules_.queue_pair) return operation(Reason::kQueuePair);
    if (first >> 24 != 0) return operation(Reason::kModifier);
    if ((control.signature | control.stream[0] | control.stream[1]) != 0) {
      return operation(Reason::kReserved);
    }
    if (completion != Completion::kAlways && completion != Completion::kOnError) {
      return operation(Reason::kCompletion);
    }
    return control.immediate.raw == 0 || opcode_ == Opcode::kWriteImmediate ||
           operation(Reason::kReserved);
  }

  bool body() {
    switch (opcode_) {
      case Opcode::kNop:
        return segments_ == 1 || operation(Reason::kSegments);
      case Opcode::kWrite:
        return write();
      case Opcode::kWriteImmediate:
        // It would have to arrive in a completion of the peer, who has none.
        return write() && refuse(Syndrome::kRemoteRequest, Reason::kUnsupported);
      case Opcode::kFetchAdd:
        return add();
      default:
        return operation(Reason::kOpcode);
    }
  }

 private:
  bool refuse(Syndrome syndrome, Reason reason) {
    why_ = {syndrome, reason};
    return false;
  }
  bool operation(Reason reason) { return refuse(Syndrome::kOperation, reason); }
  bool length(Reason reason) { return refuse(Syndrome::kLength, reason); }

  template <typename Region>
  static const Region* find(std::span<const Region> regions, uint32_t key) {
    for (const Region& region : regions) {
      if (region.key == key) return &region;
    }
    return nullptr;
  }
  template <typename Region>
  static bool has(const Region& region, uint64_t address, uint64_t bytes) {
    return address >= region.address && bytes <= region.bytes &&
           address - region.address <= region.bytes - bytes;
  }

  bool local(const DataSegment& data, bool writes, std::byte** here) {
    const LocalRegion* region = find(rules_.local, data.key.value());
    if (region == nullptr) return refuse(Syndrome::kLocalProtection, Reason::kLocalKey);
    if (!has(*region, data.address.value(), data.bytes.value())) {
      return refuse(Syndrome::kLocalProtection, Reason::kLocalRange);
    }
    if (writes && !region->allows_write) {
      return refuse(Syndrome::kLocalProtection, Reason::kLocalAccess);
    }
    *here = region->here + (data.address.value() - region->address);
    return true;
  }

  bool remote(uint64_t bytes, bool is_atomic) {
    const auto segment = get_segment<RemoteSegment>(request_, 1);
    const RemoteRegion* region = find(rules_.remote, segment.key.value());
    if (region == nullptr) return refuse(Syndrome::kRemoteAccess, Reason::kRemoteKey);
    if (!has(*region, segment.address.value(), bytes)) {
      return refuse(Syndrome::kRemoteAccess, Reason::kRemoteRange);
    }
    if (!(is_atomic ? region->allows_atomic : region->allows_write)) {
      return refuse(Syndrome::kRemoteAccess, Reason::kRemoteAccess);
    }
    out_.remote = region;
    out_.offset = segment.address.value() - region->address;
    out_.bytes = bytes;
    return true;
  }
  bool remote_reserved() {
    return get_segment<RemoteSegment>(request_, 1).reserved.raw == 0 ||
           operation(Reason::kReserved);
  }
  bool is_aligned() const {
    return get_segment<RemoteSegment>(request_, 1).address.value() % 8 == 0;
  }

  bool write() {
    if (segments_ != 3 && segments_ != 4) return operation(Reason::kSegments);
    if (!remote_reserved()) return false;
    uint32_t bytes = swapped(request_.words[8]);
    if ((bytes & kInline) != 0) {
      bytes &= ~kInline;
      if (bytes == 0 || bytes > kMaxInline || segments_ != (bytes <= 12 ? 3u : 4u)) {
        return length(Reason::kInlineBytes);
      }
      out_.from = reinterpret_cast<const std::byte*>(&request_.words[9]);
    } else {
      if (segments_ != 3) return operation(Reason::kSegments);
      if (bytes == 0 || bytes > kMaxWrite) return length(Reason::kBytes);
      std::byte* here = nullptr;
      if (!local(get_segment<DataSegment>(request_, 2), false, &here)) return false;
      out_.from = here;
    }
    out_.kind = bytes == 8 && is_aligned() ? Accepted::Kind::kWord : Accepted::Kind::kPut;
    return remote(bytes, false);
  }

  bool add() {
    if (segments_ != 4) return operation(Reason::kSegments);
    if (!remote_reserved()) return false;
    const auto operands = get_segment<AtomicSegment>(request_, 2);
    const auto sink = get_segment<DataSegment>(request_, 3);
    if (operands.compare.raw != 0) return operation(Reason::kCompare);
    if (sink.bytes.value() != 8) return length(Reason::kAtomicBytes);
    if (!local(sink, true, &out_.before)) return false;
    out_.kind = Accepted::Kind::kAdd;
    out_.add = operands.add.value();
    if (!is_aligned()) return refuse(Syndrome::kRemoteRequest, Reason::kMisaligned);
    return remote(8, true);
  }

  const RequestRules& rules_;
  const Request& request_;
  Accepted& out_;
  Refusal& why_;
  Opcode opcode_ = Opcode::kNone;
  uint32_t segments_ = 0;
};

const char* meaning_of(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::kLength:
      return "wrong length";
    case Syndrome::kOperation:
      return "wrong request";
    case Syndrome::kLocalProtection:
      return "no access to the local memory";
    case Syndrome::kFlushed:
      return "flushed: the queue was stopped, or the error of an earlier request was overwritten";
    case Syndrome::kRemoteRequest:
      return "the other end takes no such request";
    case Syndrome::kRemoteAccess:
      return "no access to the memory of the other end";
    case Syndrome::kRemoteOperation:
      return "the other end failed";
    case Syndrome::kRetriesExhausted:
      return "the other end does not answer: the link or the process is gone";
  }
  return "no known syndrome";
}

}  // namespace

bool check_request(const RequestRules& rules, uint64_t index, const Request& request, Accepted* out,
                   Refusal* why) {
  *out = {};
  Check check(rules, request, out, why);
  return check.control(index) && check.body();
}

const char* text_of(Reason reason) {
  switch (reason) {
    case Reason::kNone:
      return "nothing";
    case Reason::kDoorbell:
      return "the doorbell names another queue pair";
    case Reason::kRecord:
      return "the doorbell record goes back or tells of more than the ring has";
    case Reason::kIndex:
      return "the slot has another index";
    case Reason::kQueuePair:
      return "the request names another queue pair";
    case Reason::kOpcode:
      return "the opcode is none of MEP";
    case Reason::kModifier:
      return "the opcode has a modifier";
    case Reason::kSegments:
      return "the number of segments is not that of the opcode";
    case Reason::kReserved:
      return "a reserved field is not 0";
    case Reason::kCompletion:
      return "fm_ce_se is neither 0x00 nor 0x08";
    case Reason::kCompare:
      return "an addition compares";
    case Reason::kBytes:
      return "a write has no bytes or more than 2^30";
    case Reason::kInlineBytes:
      return "the inline bytes are not as many as the segments hold";
    case Reason::kAtomicBytes:
      return "the value before an addition needs 8 bytes";
    case Reason::kLocalKey:
      return "no local memory has the key";
    case Reason::kLocalRange:
      return "it leaves the local memory of the key";
    case Reason::kLocalAccess:
      return "the local memory of the key may only be read";
    case Reason::kRemoteKey:
      return "no remote memory has the key";
    case Reason::kRemoteRange:
      return "it leaves the remote memory of the key";
    case Reason::kRemoteAccess:
      return "the remote memory of the key does not allow it";
    case Reason::kRemotePlace:
      return "the transport does not know the place";
    case Reason::kMisaligned:
      return "the address of an addition is no multiple of 8";
    case Reason::kUnsupported:
      return "the way to the peer cannot do it";
    case Reason::kPeerLost:
      return "the peer does not answer";
    case Reason::kStopped:
      return "the NIC serves the queue no more";
    case Reason::kFlushed:
      return "an earlier request has failed";
  }
  return "an unknown reason";
}

std::string text_of(const QueueError& error) {
  char text[200];
  (void)std::snprintf(text, sizeof text,
                      "an error at request %u: syndrome 0x%02x (%s), vendor's syndrome 0x%02x",
                      unsigned{error.wqe_counter}, unsigned{error.syndrome},
                      meaning_of(static_cast<Syndrome>(error.syndrome)), unsigned{error.vendor});
  return text;
}

}  // namespace mep::gpu_queue
