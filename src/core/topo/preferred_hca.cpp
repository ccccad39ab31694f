#include "core/topo/preferred_hca.hpp"

#include "base/env.hpp"
#include "base/status.hpp"
#include "core/bootstrap/launcher_environment.hpp"
#include "core/topo/usable_cores.hpp"

namespace mep {

mep_result_t choose_preferred_hca(const HcaQuestion& question, HcaChoice* choice) {
  bool is_set = false;
  std::string list;
  MEP_TRY(env_string("MEP_HCA", &list, &is_set));
  DeviceFilter filter;
  MEP_TRY(DeviceFilter::parse(list, "MEP_HCA", &filter));
  uint64_t local_rank = static_cast<uint64_t>(question.fallback_rank);
  MEP_TRY(find_local_rank(&local_rank));

  HcaTopology topology;
  MEP_TRY(read_hca_topology(question.xml_file, &topology));
  std::vector<uint64_t> bound_to = topology.cpus;
  if (topology.is_this_host) MEP_TRY(affinity_mask(&bound_to));
  HcaLocation location;
  MEP_TRY(find_location(topology, question.location, bound_to, &location));
  *choice = choose_hca(topology, location, filter, static_cast<uint32_t>(local_rank));
  return MEP_SUCCESS;
}

}  // namespace mep
