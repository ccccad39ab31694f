// How processes of one host give each other descriptors of device memory: every one listens on an
// abstract Unix socket with a random name, which leaves nothing in the file system, and tells the name
// and its pid over a channel that is authenticated already. The kernel says who connects.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "mep.h"

namespace mep {

struct DescriptorAddress {
  std::array<char, 24> name{};  // random; not ended by a zero
  int32_t pid = 0;
  uint32_t rank = 0;
};

class DescriptorExchange {
 public:
  [[nodiscard]] mep_result_t open(uint32_t rank);
  const DescriptorAddress& address() const { return address_; }

  // After all have opened: sends `own` to each of `peers` (self may be among them) and takes theirs.
  // by_rank has a place for every rank.
  [[nodiscard]] mep_result_t exchange(const UniqueFd& own,
                                      const std::vector<DescriptorAddress>& peers,
                                      const Deadline& deadline, std::vector<UniqueFd>* by_rank);

 private:
  mep_result_t send_to(const DescriptorAddress& peer, const UniqueFd& own) const;
  mep_result_t receive_one(const std::vector<DescriptorAddress>& peers, const Deadline& deadline,
                           std::vector<UniqueFd>* by_rank) const;

  DescriptorAddress address_;
  UniqueFd listener_;
};

}  // namespace mep
