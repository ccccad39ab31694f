// A rank of the job: the checking workload.
//
// All members run the same operations in lockstep of an iteration number. Replicated operations succeed
// or fail on all alike, and every failure is told once to each member, so each member that meets an error
// goes to the sync operation, which finds the common iteration again and names who is in. The next calls
// follow from what sync agreed on, never from what this rank happens to know.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mep.h"
#include "moe_workload.hpp"
#include "options.hpp"
#include "page.hpp"

namespace mep::chaos {

// SplitMix64's finisher: spreads every input bit over the result.
constexpr uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// The first words of every contribution: who gave it, and when.
constexpr uint64_t make_stamp(uint32_t generation, uint64_t iteration) {
  return uint64_t{generation} << 40 | (iteration & 0xffffffffffu);
}

class Worker {
 public:
  Worker(const Options& options, Page* page);
  int run();

 private:
  enum class Outcome { kSuccess, kFailed, kOver };

  bool open();
  bool step();
  Outcome sync();
  Outcome command();
  Outcome ordinary();
  Outcome moe();
  Outcome renew_moe();
  Outcome carry_out(uint64_t command);

  Outcome allreduce(Kind kind, size_t lanes, bool in_place);
  Outcome allgather(size_t lanes);
  Outcome broadcast(Kind kind, size_t lanes);
  Outcome barrier();

  // Records the result of the call that has just returned and says what it means.
  Outcome note(Kind kind, mep_result_t result, const void* bytes, size_t count);
  void check_named(Kind kind, const uint64_t* stamps);
  void wrong(Kind kind, uint32_t detail, const char* format, ...)
      __attribute__((format(printf, 4, 5)));
  void write(const Record& record);
  void sample();
  void note_view();
  void obey_director();
  // A grown communicator counts its epochs anew; the number of its ranks tells them apart.
  uint64_t epoch_key(uint64_t epoch) const {
    return size_ == options_.ranks ? epoch : uint64_t{size_} << 32 | epoch;
  }
  bool in(uint64_t mask, uint32_t rank) const { return ((mask >> rank) & 1u) != 0; }
  uint64_t value_of(uint32_t rank, uint64_t stamp, size_t lane) const;

  const Options& options_;
  Page* const page_;
  mep_comm_t comm_ = nullptr;
  mep_comm_t old_ = nullptr;  // what was grown from
  uint32_t rank_ = 0;
  uint32_t size_ = 0;
  uint32_t generation_ = 0;
  uint64_t iteration_ = 1;
  uint64_t serial_ = 0;                // of the last command carried out
  uint64_t members_ = 0;               // contributors of the last sync
  std::vector<uint64_t> generations_;  // by rank, as their stamps said
  bool resync_ = true;
  bool stop_ = false;
  bool moe_wanted_ = false;  // to be made anew, by all
  uint64_t moe_number_ = 0;
  std::unique_ptr<MoeWorkload> moe_;
  uint64_t armed_ = 0;
  mep_op_info_t info_{};
  uint64_t info_contributors_ = 0;
  uint64_t last_epoch_ = 0;
  uint64_t last_seq_ = 0;
  uint64_t failed_epoch_ = 0;  // of the last operation that failed
  uint64_t report_epoch_ = 0;  // when the last news was told
  uint64_t seen_view_ = 0;
  std::vector<uint64_t> send_;
  std::vector<uint64_t> receive_;
};

int run_worker(const Options& options);

}  // namespace mep::chaos
