// The parts of a comm that take part in view changes besides its collectives: EP objects, and what it has on a GPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/operation/decision.hpp"

namespace mep {

// The first byte of an object's description to a joiner.
enum class ObjectKind : uint8_t { kGpu = 1, kEp = 2 };

// Called by the control thread, under the lock of ViewParticipants.
class ViewParticipant {
 public:
  virtual ~ViewParticipant() = default;
  // Channels with what is done now; freezes nothing.
  virtual void describe(std::vector<membership::ChannelState>* channels) const = 0;
  // Whether this rank needs nothing more for `seq` of `channel` or knows no such channel.
  virtual bool holds(uint64_t channel, uint64_t seq) const = 0;
  // See WorldParticipant.
  virtual void stop() {}
  virtual bool is_still() const { return true; }
  virtual void freeze(std::vector<membership::ChannelState>* channels) = 0;
  // For joiners: its kind, its name, and all that they must know to make their part of it.
  virtual ObjectKind kind() const = 0;
  virtual const std::string& name() const = 0;
  virtual void describe_object(std::vector<std::byte>* out) const = 0;
  // See WorldParticipant::quiesced().
  virtual bool quiesced() const { return true; }
  virtual void prepare() = 0;
  // change->view follows, and `committed` says of each channel what is done and where it goes on; both
  // null: nothing changed, go on.
  virtual void install(const std::shared_ptr<const CommChange>& change,
                       const membership::Proposal* committed) = 0;
  // The world has ended for this rank: when it returns, no thread posts anything more.
  virtual void terminate() {}
};

// The clients of a comm.
class ViewParticipants {
 public:
  void add(ViewParticipant* client);
  // Returned: the client's channels, which others may still be in the last operations of.
  std::vector<membership::ChannelState> remove(ViewParticipant* client);
  // More than `own`, those that go with the comm itself.
  bool any(size_t own = 0) const;
  bool holds(uint64_t channel, uint64_t seq) const;
  bool quiesced() const;
  // Held over a whole install: who is added before it takes part in it, who is added after it finds the new
  // view.
  std::mutex& mutex() const { return mutex_; }
  // Under the lock.
  const std::vector<ViewParticipant*>& all() const { return clients_; }

  // --- A joiner's objects that nobody has attached to yet (the user's thread). They are clients too ---
  void keep_unattached(std::unique_ptr<ViewParticipant> object) {
    unattached_.push_back(std::move(object));
  }
  // Null: there is none of that name.
  const ViewParticipant* find_unattached(const std::string& name) const;
  std::unique_ptr<ViewParticipant> take_unattached(const std::string& name);
  void drop_unattached() { unattached_.clear(); }
  size_t unattached() const { return unattached_.size(); }

 private:
  mutable std::mutex mutex_;
  std::vector<ViewParticipant*> clients_;
  std::unordered_map<uint64_t, ViewParticipant*> by_channel_;
  std::vector<std::unique_ptr<ViewParticipant>> unattached_;
};

}  // namespace mep
