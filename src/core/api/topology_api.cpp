// Suggestions from this host's topology.
#include <cstring>
#include <string>

#include "core/api/api_guard.hpp"
#include "core/topo/hca_choice.hpp"

mep_result_t mep_comm_preferred_hca(mep_comm_t comm, const char* location, char* name,
                                    size_t capacity) {
  MEP_TRY(mep::check_comm(comm));
  const int32_t device = comm->backend->device();
  if (location != nullptr || device < 0) return mep_preferred_hca(location, name, capacity);
  return mep_preferred_hca(("gpu:" + std::to_string(device)).c_str(), name, capacity);
}

mep_result_t mep_preferred_hca(const char* location, char* name, size_t capacity) {
  return mep::guarded([&]() -> mep_result_t {
    if (name == nullptr) return mep::null_argument("name");
    mep::HcaQuestion question;
    if (location != nullptr) question.location = location;
    mep::HcaChoice choice;
    MEP_TRY(mep::choose_preferred_hca(question, &choice));
    if (choice.usable == 0) return mep::fail(MEP_ERR_NOT_FOUND, "%s", choice.summary.c_str());
    const std::string best = choice.ports[0].name();
    if (best.size() >= capacity) {
      return mep::fail(MEP_ERR_CAPACITY, "%s needs %zu bytes, capacity is %zu", best.c_str(),
                       best.size() + 1, capacity);
    }
    std::memcpy(name, best.c_str(), best.size() + 1);
    return MEP_SUCCESS;
  });
}
