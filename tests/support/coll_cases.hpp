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

// Bytes of a rank's send or receive buffer.
inline size_t buffer_bytes(const Case& c, mep::Blocks blocks, int rank, int size) {
  const size_t block = c.count * element_bytes(c.dtype);
  switch (blocks) {
    case mep::Blocks::kNone:
      return 0;
    case mep::Blocks::kOne:
      return block;
    case mep::Blocks::kRoot:
      return rank == c.root ? block : 0;
    case mep::Blocks::kAll:
      return static_cast<size_t>(size) * block;
    case mep::Blocks::kAllOnRoot:
      return rank == c.root ? static_cast<size_t>(size) * block : 0;
  }
  return 0;
}

inline Bytes input_of(const Case& c, int rank, int size) {
  Bytes input(buffer_bytes(c, c.facts().send, rank, size));
  if (!input.empty()) {
    fill_input(c.dtype, mix(c.seed, static_cast<uint64_t>(rank)),
               input.size() / element_bytes(c.dtype), input.data());
  }
  return input;
}

inline Bytes all_of(const std::vector<Bytes>& inputs) {
  Bytes all;
  for (const Bytes& input : inputs) all.insert(all.end(), input.begin(), input.end());
  return all;
}

// Block number `block` of each.
inline std::vector<Bytes> blocks_of(const Case& c, const std::vector<Bytes>& inputs, int block) {
  const auto bytes = static_cast<ptrdiff_t>(c.count * element_bytes(c.dtype));
  std::vector<Bytes> blocks;
  for (const Bytes& input : inputs) {
    const auto begin = input.begin() + (input.empty() ? 0 : block * bytes);
    blocks.emplace_back(begin, begin + (input.empty() ? 0 : bytes));
  }
  return blocks;
}

inline Bytes reduced(const Case& c, const std::vector<Bytes>& inputs) {
  std::vector<const uint8_t*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  return reference_reduce(c.dtype, c.op, pointers, c.count);
}

// What `rank` has at its receive buffer. Nothing: the collective has no reference here, which fails its tests.
inline std::optional<Bytes> make_expected(const Case& c, int rank, int size) {
  std::vector<Bytes> inputs;
  for (int source = 0; source < size; ++source) inputs.push_back(input_of(c, source, size));
  const auto root = static_cast<size_t>(c.root);
  switch (c.kind) {
    case Kind::k_barrier:
      return Bytes{};
    case Kind::k_broadcast:
      return inputs[root];
    case Kind::k_allgather:
      return all_of(inputs);
    case Kind::k_allreduce:
      return reduced(c, inputs);
    case Kind::k_reduce:
      return rank == c.root ? reduced(c, inputs) : Bytes{};
    case Kind::k_gather:
      return rank == c.root ? all_of(inputs) : Bytes{};
    case Kind::k_scatter:
      return blocks_of(c, inputs, rank)[root];
    case Kind::k_reduce_scatter:
      return reduced(c, blocks_of(c, inputs, rank));
    case Kind::k_alltoall:
      return all_of(blocks_of(c, inputs, rank));
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
        input_(input_of(c, rank, size)),
        in_place_(has_in_place(c, rank)),
        send_(in_place_ && !lies_in_send() ? 0 : input_.size(), shift(c, 1)),
        receive_(in_place_ && lies_in_send() ? 0 : buffer_bytes(c, c.facts().receive, rank, size),
                 shift(c, 2)) {
    if (!input_.empty()) memcpy(send(), input_.data(), input_.size());
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
    return c.in_place && c.kind != Kind::k_alltoall && c.facts().gives(self, root) &&
           c.facts().gets(self, root);
  }
  // In place a part of what is sent is what is received; else the other way round.
  bool lies_in_send() const {
    return case_.kind == Kind::k_scatter || case_.kind == Kind::k_reduce_scatter;
  }
  bool lies_in_block_of_output() const {
    return case_.kind == Kind::k_gather || case_.kind == Kind::k_allgather;
  }
  size_t block_bytes() const { return case_.count * element_bytes(case_.dtype); }
  size_t own_offset() const { return static_cast<size_t>(rank_) * block_bytes(); }
  uint8_t* send() {
    if (!in_place_ || lies_in_send()) return send_.data();
    return receive_.data() + (lies_in_block_of_output() ? own_offset() : 0);
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
    // What a rank does not have is NULL.
    const auto self = static_cast<uint32_t>(rank_);
    const auto root = static_cast<uint32_t>(case_.root);
    return {case_.facts().gives(self, root) ? send() : nullptr,
            case_.facts().gets(self, root) ? receive() : nullptr,
            case_.count,
            case_.dtype,
            case_.op,
            case_.root};
  }
  // Buffers begin anywhere that suits the element.
  static size_t shift(const Case& c, uint64_t which) {
    return mix(c.seed, ~which) % 64 * element_bytes(c.dtype);
  }

  Case case_;
  int rank_;
  int size_;
  Bytes input_;
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
