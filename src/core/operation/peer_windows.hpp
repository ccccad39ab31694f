// A window of this rank, and those of the same id of the comm's other ranks: what the operations of a channel
// write to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/operation/comm_identity.hpp"
#include "core/operation/comm_view.hpp"
#include "core/world/remote.hpp"

namespace mep {

class PeerWindows {
 public:
  explicit PeerWindows(const CommIdentity& comm) : comm_(comm) {}
  PeerWindows(const PeerWindows&) = delete;
  PeerWindows& operator=(const PeerWindows&) = delete;
  ~PeerWindows() { drop(); }

  [[nodiscard]] mep_result_t create(uint64_t id, size_t bytes) {
    return Window::create(id, bytes, &own_);
  }
  void drop();
  // Null: not made.
  const std::shared_ptr<Window>& own() const { return own_; }
  std::byte* data() const { return own_->data(); }

  // Waits for those of the ranks that `incarnations` names. A joiner that is not in the view yet goes on
  // without a member that leaves the view meanwhile. `has_changed`: see WorldWindows::receive().
  [[nodiscard]] mep_result_t receive(const std::vector<uint64_t>& incarnations,
                                     const Deadline& deadline,
                                     const std::function<bool()>& has_changed = {});
  // By rank; nothing of those that are not reached.
  const std::vector<Remote>& remotes() const { return remotes_; }
  const Remote& operator[](uint32_t rank) const { return remotes_[rank]; }
  bool has(uint32_t rank) const { return maps(rank) || remotes_[rank].transport != nullptr; }
  // Whether this rank reads `rank`'s window in place.
  bool maps(uint32_t rank) const { return remotes_[rank].mapped != nullptr; }
  // Whether the rank's windows are those of that process.
  bool reaches(uint32_t rank, uint64_t incarnation) const {
    return incarnations_[rank] == incarnation;
  }

  // Takes the windows of ranks that have come with the view, and says of whom. A joiner's are here before
  // it is in the view, unless this rank is a joiner too: then they come at once. `what`, where a joiner
  // may have none because the windows were made while it came: it takes no part in that.
  [[nodiscard]] mep_result_t reach_joiners(const CommView& view, const Deadline& deadline,
                                           const char* what = nullptr,
                                           const std::function<void(uint32_t)>& reached = {});
  // Puts that may still wait to be sent leave the memory that they come from.
  void flush_puts() const;

 private:
  mep_result_t take(uint32_t rank, uint64_t incarnation, const Deadline& deadline, bool may_lack);

  const CommIdentity& comm_;
  std::shared_ptr<Window> own_;
  std::vector<Remote> remotes_;
  std::vector<uint64_t> incarnations_;  // by rank: whose windows remotes_ reaches
};

}  // namespace mep
