// How this copy of the library was built; the values are filled in by CMake.
#pragma once

namespace mep {

struct BuildInfo {
  const char* version;
  const char* compiler;
  const char* build_type;
  const char* sanitizers;  // empty: none
  const char* cuda_note;   // what was found, or why the part is absent
  const char* verbs_note;
  const char* mpi_note;
  const char* openssl_note;
  const char* hwloc_version;
  const char* sodium_version;
  bool have_cuda;
  bool have_verbs;
  bool have_mpi;
  bool have_openssl;
};

const BuildInfo& build_info();

}  // namespace mep
