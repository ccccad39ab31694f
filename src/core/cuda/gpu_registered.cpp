#include "core/cuda/gpu_registered.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "base/status.hpp"
#include "kernels/cuda/coll/state.hpp"

namespace mep {
namespace {

using device::CollRegistered;
using device::kMaxRegistered;

constexpr uint64_t kMostNumber = (uint64_t{1} << (64 - device::kOfferShift)) - 2;

}  // namespace

mep_result_t GpuRegistered::add(const std::shared_ptr<GpuWindow>& memory, size_t bytes,
                                void* stream, const Deadline& deadline, uint64_t* added) {
  uint64_t number = 0;
  MEP_TRY(agree_on_number(memory.get(), bytes, &number));
  Piece piece;
  mep_result_t mapped = map(number, memory, deadline, &piece);
  if (mapped == MEP_SUCCESS && table_ == nullptr) {
    mapped = DeviceMemory::create(device_, kMaxRegistered * sizeof(CollRegistered), &table_);
  }
  const std::string why = mapped == MEP_SUCCESS ? "" : last_error_text();
  int64_t all[] = {mapped == MEP_SUCCESS ? 1 : 0};
  MEP_TRY(agree_(all));
  if (mapped != MEP_SUCCESS) return fail(mapped, "%s", why.c_str());
  if (all[0] == 0) {
    return fail(MEP_ERR_UNSUPPORTED, "another rank cannot map the memory; its call says why");
  }
  const size_t place = number % kMaxRegistered;
  pieces_[place] = std::move(piece);
  newest_ = number;
  MEP_TRY(write(place, stream));
  MEP_TRY(write_offers(true, stream));
  *added = number;
  return MEP_SUCCESS;
}

// The least that is free on all ranks, which have the same.
mep_result_t GpuRegistered::agree_on_number(const GpuWindow* memory, size_t bytes,
                                            uint64_t* number) {
  const auto given = static_cast<int64_t>(bytes);
  const auto held = static_cast<int64_t>(memory == nullptr ? 0 : memory->bytes());
  int64_t all[] = {memory == nullptr ? 0 : 1,     given, -given, held, -held,
                   -static_cast<int64_t>(newest_)};
  MEP_TRY(agree_(all));
  if (memory == nullptr) {
    return fail(MEP_ERR_UNSUPPORTED,
                "the memory is not within one piece of mep_mem_alloc on this GPU: other memory is "
                "not read in place, take it from mep_mem_alloc");
  }
  if (all[0] == 0) {
    return fail(MEP_ERR_MISMATCH, "another rank gave memory that is not of mep_mem_alloc");
  }
  if (all[1] != -all[2] || all[3] != -all[4]) {
    const bool differs = all[1] != -all[2];
    return fail(MEP_ERR_MISMATCH, "ranks register %lld to %lld bytes%s; give the same size on all",
                static_cast<long long>(differs ? all[1] : all[3]),
                -static_cast<long long>(differs ? all[2] : all[4]),
                differs ? "" : " of mep_mem_alloc, by parts of one size");
  }
  const auto free = std::find_if(pieces_.begin(), pieces_.end(),
                                 [](const Piece& piece) { return piece.number == 0; });
  if (free == pieces_.end()) {
    return fail(MEP_ERR_CAPACITY, "%u pieces of memory are registered; deregister one first",
                kMaxRegistered);
  }
  const auto place = static_cast<uint64_t>(free - pieces_.begin());
  *number = static_cast<uint64_t>(-all[5]) / kMaxRegistered * kMaxRegistered + place;
  if (*number <= static_cast<uint64_t>(-all[5])) *number += kMaxRegistered;
  if (*number <= kMostNumber) return MEP_SUCCESS;
  return fail(MEP_ERR_CAPACITY, "memory was registered too often on this communicator");
}

mep_result_t GpuRegistered::map(uint64_t number, const std::shared_ptr<GpuWindow>& memory,
                                const Deadline& deadline, Piece* piece) {
  piece->number = number;
  const uint64_t id = hash_bytes(channel_, &number, sizeof number);
  piece->windows = std::make_unique<GpuWindows>(comm_, WindowPlace::kDevice, device_, id);
  MEP_TRY(piece->windows->offer(memory));
  return piece->windows->connect(*comm_.latest_view(), deadline);
}

mep_result_t GpuRegistered::remove(uint64_t number, void* stream) {
  Piece& piece = pieces_[number % kMaxRegistered];
  const bool is_here = number != 0 && piece.number == number;
  const auto mine = static_cast<int64_t>(is_here ? number : 0);
  int64_t all[] = {mine, -mine};
  MEP_TRY(agree_(all));
  if (!is_here) {
    return fail(MEP_ERR_INVALID_ARGUMENT, "registration %llu is none of this communicator's",
                static_cast<unsigned long long>(number));
  }
  if (all[0] != -all[1]) {
    return fail(MEP_ERR_MISMATCH, "ranks deregister different memory");
  }
  piece = {};
  return write(number % kMaxRegistered, stream);
}

mep_result_t GpuRegistered::clear(void* stream) {
  if (table_ == nullptr) return MEP_SUCCESS;
  MEP_TRY(write_offers(false, stream));
  for (size_t place = 0; place < pieces_.size(); ++place) {
    if (pieces_[place].number == 0) continue;
    pieces_[place] = {};
    MEP_TRY(write(place, stream));
  }
  return MEP_SUCCESS;
}

mep_result_t GpuRegistered::write(size_t place, void* stream) {
  const Piece& piece = pieces_[place];
  CollRegistered entry{};
  if (piece.number != 0) {
    entry.number = piece.number;
    const std::vector<std::byte*> at = piece.windows->addresses();
    std::transform(at.begin(), at.end(), entry.at,
                   [](std::byte* each) { return reinterpret_cast<const uint8_t*>(each); });
    entry.bytes = piece.windows->bytes();
  }
  auto* const table = reinterpret_cast<CollRegistered*>(table_->data());
  MEP_TRY(copy_in_order(table + place, &entry, sizeof entry, stream));
  return synchronize_stream(stream);
}

mep_result_t GpuRegistered::write_offers(bool offers, void* stream) {
  const std::byte* const table = table_->data();
  const uint32_t value = offers ? 1 : 0;
  MEP_TRY(copy_in_order(&state_->registered, &table, sizeof(void*), stream));
  MEP_TRY(copy_in_order(&state_->offers, &value, sizeof value, stream));
  return synchronize_stream(stream);
}

}  // namespace mep
