// The first and last steps of every ABI function: no exception leaves, a handle of another process is refused, and
// one comm is used by one thread at a time.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "base/guarded.hpp"
#include "base/sized_struct.hpp"
#include "base/status.hpp"
#include "core/comm/backend.hpp"
#include "core/comm/comm.hpp"
#include "mep.h"

struct mep_comm {
  // On host memory, until it is given another backend. Without memory for that, whoever had the comm still has
  // it.
  explicit mep_comm(std::unique_ptr<mep::Comm>&& made) {
    backend = mep::make_host_backend(*made);
    comm = std::move(made);
  }

  std::unique_ptr<mep::Comm> comm;
  std::unique_ptr<mep::Backend> backend;  // goes before the comm
  bool is_world = false;                  // its end is the end of the world for this rank
  bool is_grown = false;                  // made by mep_comm_grow over the whole world
  // A joiner's comms that mep_comm_attach has not asked for yet, by name.
  std::map<std::string, std::unique_ptr<mep_comm>> unattached;
  // Requests and EP objects of this comm, and for a world the comms made from it. One is added inside a
  // CallScope of this comm; who takes one away releases what it did to the end of this comm.
  std::atomic<uint32_t> users{0};
  // The world of a comm that was split, grown or attached; it may not end before this comm.
  mep_comm_t world = nullptr;

  void belongs_to(mep_comm_t other) {
    world = other->world != nullptr ? other->world : other;
    world->users.fetch_add(1, std::memory_order_relaxed);
  }
  ~mep_comm() {
    unattached.clear();
    // Objects on the backend's GPU go before it.
    if (comm != nullptr) comm->clients().drop_unattached();
    backend.reset();
    comm.reset();
    // Release: nothing of this comm uses the world any more.
    if (world != nullptr) world->users.fetch_sub(1, std::memory_order_release);
  }
};

// Memory of the library that outlives the object that it was part of.
struct mep_memory {
  std::shared_ptr<const void> memory;
};

namespace mep {

[[nodiscard]] inline mep_result_t null_argument(const char* name) {
  return fail(MEP_ERR_INVALID_ARGUMENT, "%s is NULL", name);
}

[[nodiscard]] inline mep_result_t check_comm(mep_comm_t comm) {
  if (comm == nullptr) [[unlikely]]
    return null_argument("comm");
  if (comm->comm->world().forked()) [[unlikely]] {
    return fail(MEP_ERR_FORKED,
                "this communicator belongs to the parent process; a child made by fork() must call "
                "mep_comm_init itself");
  }
  return MEP_SUCCESS;
}

// Marks the comm as in use by this thread for the life of the scope, and publishes what it did to the
// comm, its requests and `users` to the next one's thread.
class CallScope {
 public:
  explicit CallScope(mep_comm_t comm) : comm_(comm), entered_(comm->comm->enter_call()) {}
  ~CallScope() {
    if (entered_) comm_->comm->leave_call();
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  // The comm is no more.
  void forget() { entered_ = false; }
  [[nodiscard]] mep_result_t check() const {
    if (entered_) [[likely]]
      return MEP_SUCCESS;
    return fail(MEP_ERR_THREAD, "another thread is inside a call on this communicator");
  }

 private:
  mep_comm_t comm_;
  bool entered_;
};

// Inside a CallScope of the comm: a function that is made of operations of the comm, all on every rank.
class PurposeScope {
 public:
  PurposeScope(mep_comm_t comm, CallPurpose purpose) : collectives_(comm->comm->collectives()) {
    collectives_.set_purpose(purpose);
  }
  ~PurposeScope() { collectives_.set_purpose(CallPurpose::kCall); }
  PurposeScope(const PurposeScope&) = delete;
  PurposeScope& operator=(const PurposeScope&) = delete;

 private:
  Collectives& collectives_;
};

}  // namespace mep
