// The outside witness of an even split: for every epoch of a world a register that is written once, a
// file in a directory that all hosts see.
//
//   DIRECTORY/mep-witness/VIEW.EPOCH    16 hexadecimal digits: the digest of the change that was decided
//
// VIEW stands for the members of the view that has split, with their random incarnations, so no other job
// and no other view has the same name. A file appears whole, by link(), which fails where one is there: of
// two halves that ask at the same time one finds the other's digest, also over NFS. Files stay: the other
// half may ask at any later time.
//
// A shared file system may hang, so a thread of its own asks. The membership waits for it, and has its own limit for
// that; a thread that hangs is left behind when the world ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "core/membership/row.hpp"
#include "mep.h"

namespace mep {

class Witness {
 public:
  // Called by the witness's thread; what the register holds.
  using Answer = std::function<void(uint64_t epoch, uint64_t digest)>;

  ~Witness();
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

  // The directory must exist; MEP_ERR_NOT_FOUND, MEP_ERR_DENIED or MEP_ERR_SYSTEM say what is wrong with it.
  [[nodiscard]] static mep_result_t open(const std::string& directory, Answer answer,
                                         std::unique_ptr<Witness>* out);
  // Never waits. While the directory cannot be used it is tried again and again; a new question replaces
  // one that is not answered yet.
  void ask(const membership::View& split, uint64_t epoch, uint64_t digest);

 private:
  struct State;
  explicit Witness(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void run(const std::shared_ptr<State>& state);
  static void answer_once(State* state, std::unique_lock<std::mutex>* lock);

  std::shared_ptr<State> state_;
};

// Writes `digest` into the register unless it is written; *held is what it holds then. MEP_ERR_SYSTEM: the
// directory cannot be used now.
[[nodiscard]] mep_result_t witness_store(const std::string& folder, const std::string& name,
                                         uint64_t digest, uint64_t* held);
std::string witness_name(const membership::View& split, uint64_t epoch);

}  // namespace mep
