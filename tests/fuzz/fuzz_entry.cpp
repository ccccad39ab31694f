#include "fuzz/fuzz_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::one(fuzz::as_byte({data, size}));
  return 0;
}
