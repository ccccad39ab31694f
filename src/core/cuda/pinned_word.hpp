// Words in pinned memory that kernels and threads of the host read and write, whole.
#pragma once

#include <cstdint>

namespace mep {

// These order what the word speaks of on the host's side; on the kernels' side their acquire loads and release stores
// do (kernels/cuda/device/protocol.cuh). Sequentially consistent, so that a thread which stores one word and then
// looks at another does not miss a kernel that does it the other way round.
inline uint64_t load_pinned(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}
inline void store_pinned(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

}  // namespace mep
