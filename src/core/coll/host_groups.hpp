// The live ranks of a comm by the host that they run on. All ranks make the same groups of the same view.
// The lowest rank of a host is its leader. Hosts are in the order of their leaders.
#pragma once

#include <cstdint>
#include <vector>

#include "core/world/remote.hpp"

namespace mep {

struct HostGroup {
  uint64_t host = 0;
  std::vector<uint32_t> ranks;  // rising
  uint64_t ranks_before = 0;    // live ranks of the hosts before this one
  uint64_t sharing = 0;         // see Remote; 0: some of its ranks do not map each other
  uint32_t leader() const { return ranks.front(); }
};

class HostGroups {
 public:
  void assign(const std::vector<uint32_t>& live, const std::vector<Remote>& remotes,
              uint32_t rank) {
    groups_.clear();
    for (const uint32_t each : live) {
      HostGroup& group = group_of(remotes[each].host);
      if (each == rank) own_ = static_cast<uint32_t>(&group - groups_.data());
      const uint64_t sharing = remotes[each].sharing;
      if (group.ranks.empty()) group.sharing = sharing;
      if (group.sharing != sharing) group.sharing = 0;
      group.ranks.push_back(each);
    }
    uint64_t before = 0;
    for (HostGroup& group : groups_) {
      group.ranks_before = before;
      before += group.ranks.size();
    }
  }
  const std::vector<HostGroup>& all() const { return groups_; }
  const HostGroup& own() const { return groups_[own_]; }
  // Whether each rank maps all others.
  bool all_mapped() const { return groups_.size() == 1 && groups_.front().sharing != 0; }
  bool is_own(const HostGroup& group) const { return &group == &groups_[own_]; }
  uint32_t own_index() const { return own_; }

 private:
  HostGroup& group_of(uint64_t host) {
    for (HostGroup& group : groups_) {
      if (group.host == host) return group;
    }
    groups_.emplace_back().host = host;
    return groups_.back();
  }
  std::vector<HostGroup> groups_;
  uint32_t own_ = 0;  // the index of this rank's
};

}  // namespace mep
