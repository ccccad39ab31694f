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

inline Bytes input_of(const Case& c, int rank) {
  Bytes input(c.count * element_bytes(c.dtype));
  fill_input(c.dtype, mix(c.seed, static_cast<uint64_t>(rank)), c.count, input.data());
  return input;
}

// What `rank` has at its receive buffer. Nothing: the collective has no reference here, which fails its tests.
inline std::optional<Bytes> make_expected(const Case& c, int rank, int size) {
  std::vector<Bytes> inputs;
  for (int source = 0; source < size; ++source) {
    const bool gives =
        c.facts().gives(static_cast<uint32_t>(source), static_cast<uint32_t>(c.root));
    inputs.push_back(gives ? input_of(c, source) : Bytes{});
  }
  (void)rank;  // of replicated ones all have the same
  switch (c.kind) {
    case Kind::k_barrier:
      return Bytes{};
    case Kind::k_broadcast:
      return inputs[static_cast<size_t>(c.root)];
    case Kind::k_allgather: {
      Bytes all;
      for (const Bytes& input : inputs) all.insert(all.end(), input.begin(), input.end());
      return all;
    }
    case Kind::k_allreduce: {
      std::vector<const uint8_t*> pointers;
      for (const Bytes& input : inputs) pointers.push_back(input.data());
      return reference_reduce(c.dtype, c.op, pointers, c.count);
    }
    default:
      return std::nullopt;
  }
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
    if (cache.size() > 64) cache.clear();
    std::string key = describe(c) + "/" + std::to_string(size);
    if (c.facts().operation_class == mep::OperationClass::kPersonal) {
      key += "/" + std::to_string(rank);
    }
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
  static constexpr uint8_t kPaint = 0xa5;
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
        input_(make_input(c, rank, size)),
        send_(c.in_place ? 0 : input_.size(), shift(c, 1)),
        receive_(blocks(c, rank, size, c.facts().receive) * block_bytes(c), shift(c, 2)) {
    if (!send_used()) return;
    if (send_.size() != 0) memcpy(send_.data(), input_.data(), input_.size());
    if (c.in_place && !input_.empty()) memcpy(in_place_block(), input_.data(), input_.size());
  }
  CaseRun(const CaseRun&) = delete;
  CaseRun& operator=(const CaseRun&) = delete;

  mep_result_t run(mep_comm_t comm) {
    return mep::call_collective(case_.kind, call(), comm, nullptr);
  }
  mep_result_t start(mep_comm_t comm, mep_request_t* request) {
    return mep::start_collective(case_.kind, call(), comm, request);
  }

  // After success.
  void check(Report& report) {
    const std::string what =
        describe(case_) + " on rank " + std::to_string(rank_) + " of " + std::to_string(size_);
    if (!send_.border_intact() || !receive_.border_intact()) {
      report.add("%s: wrote outside a buffer", what.c_str());
    }
    if (send_used() && !case_.in_place && !input_.empty() &&
        memcmp(send_.data(), input_.data(), input_.size()) != 0) {
      report.add("%s: the input was changed", what.c_str());
    }
    const std::shared_ptr<const std::optional<Bytes>> reference = expected_of(case_, rank_, size_);
    if (!reference->has_value()) {
      report.add("%s: the tests have no reference for it", what.c_str());
      return;
    }
    const Bytes* const expected = &**reference;
    if (expected->size() != receive_.size()) {
      report.add("%s: sizes differ", what.c_str());
      return;
    }
    // At once: ThreadSanitizer makes a loop over bytes slow.
    if (expected->empty() || memcmp(expected->data(), receive_.data(), expected->size()) == 0)
      return;
    for (size_t i = 0; i < expected->size(); ++i) {
      if ((*expected)[i] == receive_.data()[i]) continue;
      report.add("%s: byte %zu of %zu is 0x%02x, not 0x%02x", what.c_str(), i, expected->size(),
                 receive_.data()[i], (*expected)[i]);
      return;
    }
  }

 private:
  static size_t block_bytes(const Case& c) { return c.count * element_bytes(c.dtype); }
  static size_t blocks(const Case& c, int rank, int size, mep::Blocks blocks) {
    switch (blocks) {
      case mep::Blocks::kNone:
        return 0;
      case mep::Blocks::kOne:
        return 1;
      case mep::Blocks::kRoot:
        return rank == c.root ? 1 : 0;
      case mep::Blocks::kAll:
        return static_cast<size_t>(size);
    }
    return 0;
  }
  // Of as many blocks as the rank gives.
  static Bytes make_input(const Case& c, int rank, int size) {
    Bytes input(blocks(c, rank, size, c.facts().send) * block_bytes(c));
    if (!input.empty()) {
      fill_input(c.dtype, mix(c.seed, static_cast<uint64_t>(rank)),
                 input.size() / element_bytes(c.dtype), input.data());
    }
    return input;
  }
  bool send_used() const {
    return case_.facts().gives(static_cast<uint32_t>(rank_), static_cast<uint32_t>(case_.root));
  }
  mep::OperationCall call() {
    return {send(), receive_.data(), case_.count, case_.dtype, case_.op, case_.root};
  }
  // Buffers begin anywhere that suits the element.
  static size_t shift(const Case& c, uint64_t which) {
    return mix(c.seed, ~which) % 64 * element_bytes(c.dtype);
  }
  // Of what is gathered, the rank's own block of the output.
  uint8_t* in_place_block() {
    const bool gathers =
        case_.facts().receive == mep::Blocks::kAll && case_.facts().send != mep::Blocks::kAll;
    return receive_.data() + (gathers ? static_cast<size_t>(rank_) * input_.size() : 0);
  }
  const void* send() {
    if (!send_used()) return nullptr;
    return case_.in_place ? in_place_block() : send_.data();
  }

  Case case_;
  int rank_;
  int size_;
  Bytes input_;
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
