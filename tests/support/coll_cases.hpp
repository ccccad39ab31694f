// One collective call with its data: prepares guarded buffers, makes the call (blocking or not),
// and compares every byte with the reference. Sizes are chosen next to the library's limits.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "protocol/operation_calls.hpp"
#include "support/coll_ranks.hpp"

namespace mep_test {

using Kind = mep::Collective;

struct Case {
  Kind kind = Kind::k_barrier;
  const mep::OperationFacts& facts() const { return mep::facts_of(kind); }
  mep_dtype_t dtype = MEP_UINT8;
  mep_op_t op = MEP_SUM;
  size_t count = 0;
  int root = 0;
  bool in_place = false;
  uint64_t seed = 0;  // of the data
};

inline std::string describe(const Case& c) {
  char text[160];
  snprintf(text, sizeof text, "%s dtype %u op %u count %zu root %d%s seed 0x%llx", c.facts().name,
           c.dtype, c.op, c.count, c.root, c.in_place ? " in place" : "",
           static_cast<unsigned long long>(c.seed));
  return text;
}

// The byte that a buffer has where nothing was written.
inline constexpr uint8_t kPaint = 0xa5;

// Elements that `source` gives `target`. With counts c.count is the longest, and the seed says what the others
// have: all the same, one alone, every second, any, or next to nothing.
inline size_t block_count(const Case& c, int source, int target, int size) {
  if (!c.facts().has_counts) return c.count;
  const bool by_source = !c.facts().gives_each_a_block();
  const bool by_target = !c.facts().gets_a_block_of_each();
  const int block = by_source ? source : by_target ? target : source * size + target;
  const int blocks = by_source || by_target ? size : size * size;
  const auto number = static_cast<uint64_t>(block);
  switch (mix(c.seed, 0xc0) % 6) {
    case 0:
      return c.count;
    case 1:
      return number == mix(c.seed, 0xc1) % static_cast<uint64_t>(blocks) ? c.count : 0;
    case 2:
      return number % 2 == 0 ? c.count : 0;
    case 3:
      return mix(c.seed, number) % 2;
    default:
      return mix(c.seed, number) % (c.count + 1);
  }
}

// Where the blocks of one of a rank's buffers lie, in elements.
struct Layout {
  std::vector<uint64_t> counts;
  std::vector<uint64_t> displs;
  bool is_packed = true;
  size_t elements = 0;
};

inline Layout layout_of(const Case& c, bool is_send, int rank, int size) {
  const mep::OperationFacts& facts = c.facts();
  const auto self = static_cast<uint32_t>(rank);
  const auto root = static_cast<uint32_t>(c.root);
  Layout layout;
  if (is_send ? !facts.gives(self, root) : !facts.gets(self, root)) return layout;
  const bool for_each = is_send ? facts.gives_each_a_block() : facts.gets_a_block_of_each();
  const int blocks = for_each ? size : 1;
  const uint64_t style = mix(c.seed, 0xd0 + self * 2 + (is_send ? 1 : 0));
  layout.is_packed = !facts.has_counts || !for_each || style % 3 == 0;
  layout.displs.resize(static_cast<size_t>(blocks));
  for (int i = 0; i < blocks; ++i) {
    layout.counts.push_back(is_send ? block_count(c, rank, i, size)
                                    : block_count(c, i, rank, size));
    if (!for_each) layout.counts[0] = block_count(c, rank, rank, size);
  }
  // With gaps, and from the last rank to the first.
  for (int i = 0; i < blocks; ++i) {
    const auto at = static_cast<size_t>(!layout.is_packed && style % 3 == 1 ? blocks - 1 - i : i);
    if (!layout.is_packed) layout.elements += mix(style, at) % 4;
    layout.displs[at] = layout.elements;
    layout.elements += layout.counts[at];
  }
  return layout;
}

// Bytes of a rank's send or receive buffer.
inline size_t buffer_bytes(const Case& c, bool is_send, int rank, int size) {
  return layout_of(c, is_send, rank, size).elements * element_bytes(c.dtype);
}

inline Bytes input_of(const Case& c, int rank, int size) {
  Bytes input(buffer_bytes(c, true, rank, size));
  if (!input.empty()) {
    make_elements(c.dtype, mix(c.seed, static_cast<uint64_t>(rank)),
                  input.size() / element_bytes(c.dtype), input.data());
  }
  return input;
}

// The expected content of `rank`'s receive buffer. Nothing: the collective has no reference here, which fails its tests.
inline std::optional<Bytes> make_expected(const Case& c, int rank, int size) {
  const size_t element = element_bytes(c.dtype);
  std::vector<Bytes> inputs;
  for (int source = 0; source < size; ++source) inputs.push_back(input_of(c, source, size));
  const auto given = [&](size_t source, size_t block) {
    const Layout layout = layout_of(c, true, static_cast<int>(source), size);
    return inputs[source].data() + layout.displs[block] * element;
  };
  const Layout layout = layout_of(c, false, rank, size);
  Bytes all(layout.elements * element, kPaint);
  for (size_t i = 0; i < layout.counts.size(); ++i) {
    const Content content = content_of(c.kind, static_cast<size_t>(c.root),
                                       static_cast<size_t>(rank), inputs.size(), i);
    Bytes block;
    std::vector<const uint8_t*> blocks;
    switch (content.how) {
      case Content::kCopy:
        block.resize(layout.counts[i] * element);
        if (!block.empty())
          memcpy(block.data(), given(content.source, content.block), block.size());
        break;
      case Content::kReduced:
        for (size_t k = 0; k < inputs.size(); ++k) blocks.push_back(given(k, content.block));
        block = mep_reference::reduced(c.dtype, c.op, blocks, layout.counts[i]);
        break;
      default:
        return std::nullopt;
    }
    std::copy(block.begin(), block.end(),
              all.begin() + static_cast<ptrdiff_t>(layout.displs[i] * element));
  }
  return all;
}

// Ranks that are threads share one computation. Keyed by all that the result depends on.
inline std::shared_ptr<const std::optional<Bytes>> expected_of(const Case& c, int rank, int size) {
  struct Entry {
    std::once_flag once;
    std::optional<Bytes> bytes;
  };
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<Entry>> cache;
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex);
    if (cache.size() > 256) cache.clear();
    std::string key = describe(c) + "/" + std::to_string(size);
    // The same on all ranks?
    const bool is_common = c.kind == Kind::k_barrier || c.kind == Kind::k_broadcast ||
                           c.kind == Kind::k_allgather || c.kind == Kind::k_allreduce;
    if (!is_common) key += "/" + std::to_string(rank);
    std::shared_ptr<Entry>& place = cache[key];
    if (place == nullptr) place = std::make_shared<Entry>();
    entry = place;
  }
  std::call_once(entry->once, [&] { entry->bytes = make_expected(c, rank, size); });
  return {entry, &entry->bytes};
}

// Bytes with a painted border on both sides.
class GuardedBuffer {
 public:
  GuardedBuffer(size_t bytes, size_t shift) : begin_(kBorder + shift), bytes_(bytes) {
    memory_.assign(begin_ + bytes + kBorder, kPaint);
  }
  uint8_t* data() { return memory_.data() + begin_; }
  size_t size() const { return bytes_; }
  bool border_intact() const {
    const auto painted = [](uint8_t byte) { return byte == kPaint; };
    const auto begin = memory_.begin() + static_cast<ptrdiff_t>(begin_);
    return std::all_of(memory_.begin(), begin, painted) &&
           std::all_of(begin + static_cast<ptrdiff_t>(bytes_), memory_.end(), painted);
  }

 private:
  static constexpr size_t kBorder = 128;
  size_t begin_;
  size_t bytes_;
  Bytes memory_;
};

class CaseRun {
 public:
  CaseRun(const Case& c, int rank, int size)
      : case_(c),
        rank_(rank),
        size_(size),
        input_(input_of(c, rank, size)),
        sent_(layout_of(c, true, rank, size)),
        received_(layout_of(c, false, rank, size)),
        in_place_(has_in_place(c, rank)),
        send_(in_place_ && !lies_in_send() ? 0 : input_.size(), shift(c, 1)),
        receive_(in_place_ && lies_in_send() ? 0 : buffer_bytes(c, false, rank, size),
                 shift(c, 2)) {
    if (!input_.empty()) memcpy(send(), input_.data(), input_.size());
  }
  CaseRun(const CaseRun&) = delete;
  CaseRun& operator=(const CaseRun&) = delete;

  mep_result_t run(mep_comm_t comm) {
    return mep::call_collective(case_.kind, call(), comm, nullptr);
  }
  mep_result_t start(mep_comm_t comm, mep_request_t* request) {
    const mep_result_t result = mep::start_collective(case_.kind, call(), comm, nullptr, request);
    forget_counts();
    return result;
  }

  // After success.
  void check(Report& report) {
    const std::string what =
        describe(case_) + " on rank " + std::to_string(rank_) + " of " + std::to_string(size_);
    if (!send_.border_intact() || !receive_.border_intact()) {
      report.add("%s: wrote outside a buffer", what.c_str());
    }
    if (!input_unchanged()) report.add("%s: the input was changed", what.c_str());
    const std::shared_ptr<const std::optional<Bytes>> reference = expected_of(case_, rank_, size_);
    if (!reference->has_value()) {
      report.add("%s: the tests have no reference for it", what.c_str());
      return;
    }
    const Bytes* const expected = &**reference;
    const size_t received = in_place_ && lies_in_send() ? block_bytes() : receive_.size();
    if (expected->size() != received) {
      report.add("%s: sizes differ", what.c_str());
      return;
    }
    // At once: ThreadSanitizer makes a loop over bytes slow.
    if (expected->empty() || memcmp(expected->data(), receive(), expected->size()) == 0) return;
    for (size_t i = 0; i < expected->size(); ++i) {
      if ((*expected)[i] == receive()[i]) continue;
      report.add("%s: byte %zu of %zu is 0x%02x, not 0x%02x", what.c_str(), i, expected->size(),
                 receive()[i], (*expected)[i]);
      return;
    }
  }

 private:
  // An alltoall has none, and who only gives or only gets has none.
  static bool has_in_place(const Case& c, int rank) {
    const auto self = static_cast<uint32_t>(rank);
    const auto root = static_cast<uint32_t>(c.root);
    const bool has_none = c.facts().gives_each_a_block() && c.facts().gets_a_block_of_each();
    return c.in_place && !has_none && c.facts().gives(self, root) && c.facts().gets(self, root);
  }
  // In place a part of what is sent is what is received; else the other way round.
  bool lies_in_send() const { return case_.facts().gives_each_a_block(); }
  // The buffer in which the other one lies, in place: there from the rank's own block on.
  const Layout& outer() const { return lies_in_send() ? sent_ : received_; }
  size_t own_block() const {
    const bool for_each = lies_in_send() || case_.facts().gets_a_block_of_each();
    return for_each ? static_cast<size_t>(rank_) : 0;
  }
  size_t block_bytes() const { return outer().counts[own_block()] * element_bytes(case_.dtype); }
  size_t own_offset() const { return outer().displs[own_block()] * element_bytes(case_.dtype); }
  uint8_t* send() {
    if (!in_place_ || lies_in_send()) return send_.data();
    return receive_.data() + own_offset();
  }
  uint8_t* receive() {
    return in_place_ && lies_in_send() ? send_.data() + own_offset() : receive_.data();
  }
  bool input_unchanged() {
    if (send_.size() == 0) return true;
    // In place all but the rank's own block.
    const size_t before = in_place_ ? own_offset() : input_.size();
    const size_t after = in_place_ ? before + block_bytes() : input_.size();
    return memcmp(send_.data(), input_.data(), before) == 0 &&
           memcmp(send_.data() + after, input_.data() + after, input_.size() - after) == 0;
  }
  mep::OperationCall call() {
    // A buffer that a rank does not have is NULL.
    const auto self = static_cast<uint32_t>(rank_);
    const auto root = static_cast<uint32_t>(case_.root);
    mep::OperationCall call{case_.facts().gives(self, root) ? send() : nullptr,
                            case_.facts().gets(self, root) ? receive() : nullptr,
                            case_.count,
                            case_.dtype,
                            case_.op,
                            case_.root};
    if (in_place_ && case_.seed % 2 == 0) {
      if (lies_in_send()) call.receive = MEP_IN_PLACE;
      if (!lies_in_send()) call.send = MEP_IN_PLACE;
    }
    if (!case_.facts().has_counts) return call;
    call.count = block_count(case_, rank_, rank_, size_);
    // The library has its own copy once the call has returned.
    passed_[0] = lies_in_send() ? sent_ : received_;
    passed_[1] = received_;
    const auto displs = [](const Layout& layout) {
      return layout.is_packed ? nullptr : layout.displs.data();
    };
    if (!passed_[0].counts.empty()) {
      call.counts = passed_[0].counts.data();
      call.displs = displs(passed_[0]);
    }
    call.recv_counts = passed_[1].counts.data();
    call.recv_displs = displs(passed_[1]);
    return call;
  }
  void forget_counts() {
    for (Layout& layout : passed_) {
      std::fill(layout.counts.begin(), layout.counts.end(), ~uint64_t{0});
      std::fill(layout.displs.begin(), layout.displs.end(), ~uint64_t{0});
    }
  }
  // Buffers begin anywhere that suits the element.
  static size_t shift(const Case& c, uint64_t which) {
    return mix(c.seed, ~which) % 64 * element_bytes(c.dtype);
  }

  Case case_;
  int rank_;
  int size_;
  Bytes input_;
  Layout sent_;
  Layout received_;
  Layout passed_[2];  // as the call is given them
  bool in_place_;
  GuardedBuffer send_;
  GuardedBuffer receive_;
};

// Element counts next to every limit of the library's algorithms.
inline std::vector<size_t> interesting_counts(mep_dtype_t dtype, int size) {
  constexpr size_t kCellPayload = 4088;
  constexpr size_t kPage = 4096;
  constexpr size_t kChunk = size_t{512} << 10;
  const size_t section = (kChunk / static_cast<size_t>(size) + 63) / 64 * 64;
  const size_t element = element_bytes(dtype);
  std::vector<size_t> counts = {0, 1, 2, 3, 17, 257};
  const auto around = [&](size_t bytes) {
    for (const size_t count : {bytes / element - 1, bytes / element, bytes / element + 1}) {
      counts.push_back(count);
    }
  };
  around(kCellPayload);
  around(kPage);
  around(section);
  around(kChunk);
  around(section * static_cast<size_t>(size));  // one chunk of an allreduce
  around(2 * section);
  around(3 * kChunk);  // the ring of areas is used again
  counts.push_back(5 * kChunk / element + 33);
  return counts;
}

inline size_t small_count(RandomStream& random, mep_dtype_t dtype) {
  const std::vector<size_t> small = {0, 1, 2, 3, 17, 257, 4088 / element_bytes(dtype)};
  return random.one_in(2) ? small[random.below(small.size())]
                          : random.below(4096 / element_bytes(dtype) + 2);
}

}  // namespace mep_test
