// Dispatch and combine with an expert that scales its rows by a factor of its own: what comes back is
// computed from what was given, and checked when every rank was there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mep.h"

namespace mep::chaos {

class MoeWorkload {
 public:
  // mode: MEP_EP_*.
  MoeWorkload(mep_comm_t comm, uint32_t rank, uint32_t size, const std::string& name, uint32_t mode,
              bool attaches);
  ~MoeWorkload();
  MoeWorkload(const MoeWorkload&) = delete;
  MoeWorkload& operator=(const MoeWorkload&) = delete;

  mep_result_t created() const { return created_; }
  // One layer; *wrong: what is not as it should be, after a success or MEP_PARTIAL. *members: in, who
  // is there; out, who took part.
  mep_result_t layer(uint64_t iteration, uint64_t* members, std::string* wrong);

 private:
  void ask_who(mep_result_t result, uint64_t* members) const;
  // Rows lie in groups: each local expert's, or in high throughput all of this rank's.
  uint32_t groups() const;
  int64_t rows_in(uint32_t group) const;
  bool belongs(uint32_t expert, uint32_t group) const;
  // By which this rank's experts scale a row; `at`: its place.
  float factor_of_row(uint32_t group, size_t at) const;
  void check_received(uint64_t iteration, uint64_t members, std::string* wrong) const;
  // High throughput: whether the row names these experts.
  bool names(size_t at, uint64_t iteration, uint32_t source, uint32_t token) const;
  void check_counts(std::string* wrong) const;
  void check_out(uint64_t members, std::string* wrong) const;

  const uint32_t rank_;
  const uint32_t size_;
  const bool high_throughput_;
  mep_ep_t ep_ = nullptr;
  mep_ep_handle_t handle_ = nullptr;
  mep_ep_view_t view_{};
  mep_result_t created_ = MEP_SUCCESS;
  std::vector<float> x_;
  std::vector<float> out_;
  std::vector<int64_t> experts_;
  int64_t received_ = 0;  // rows of the last dispatch
};

}  // namespace mep::chaos
