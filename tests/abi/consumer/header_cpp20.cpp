#include <mep.h>

static_assert(sizeof(mep_result_t) == 4);

int main() {
  mep_ep_config_t config;
  mep_ep_config_defaults(&config);
  return config.struct_size == sizeof config && mep_dtype_size(MEP_BFLOAT16) == 2 ? 0 : 1;
}
