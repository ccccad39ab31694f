#include <mep.h>
/* Again: the header may be included twice. */
#include <mep.h>

int main(void) {
  mep_comm_t comm = NULL;
  mep_comm_config_t config;
  int32_t value = 21;
  mep_comm_config_defaults(&config);
  config.flags = MEP_COMM_SET_RANK;
  config.size = 1;
  if (mep_comm_init(&config, &comm) != MEP_SUCCESS) return 1;
  if (mep_allreduce(&value, &value, 1, MEP_INT32, MEP_SUM, comm, NULL) != MEP_SUCCESS) return 2;
  if (mep_comm_destroy(comm) != MEP_SUCCESS) return 3;
  return value == 21 && mep_version() ==
                            MEP_VERSION_MAJOR * 10000 + MEP_VERSION_MINOR * 100 + MEP_VERSION_PATCH
             ? 0
             : 4;
}
