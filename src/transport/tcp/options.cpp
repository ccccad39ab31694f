#include "transport/tcp/options.hpp"

#include "base/env.hpp"
#include "base/status.hpp"

namespace mep::tcp {

mep_result_t read_options(Options* out) {
  bool is_set = false;
  MEP_TRY(env_string("MEP_NET_IF", &out->interfaces, &is_set));
  MEP_TRY(env_bool("MEP_ENCRYPT", &out->encrypts, &is_set));
  return env_bool("MEP_AUTHENTICATE", &out->authenticates_all, &is_set);
}

}  // namespace mep::tcp
