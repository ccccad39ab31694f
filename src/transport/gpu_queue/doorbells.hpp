// Where posters ring an adapter for a queue.
#pragma once

#include <cstdint>

#include "mep.h"

namespace mep::gpu_queue {

// Any thread.
class Doorbells {
 public:
  virtual ~Doorbells() = default;
  // `doorbell` lies on the adapter's page. Posters store to *of_posters, which may be `word`: one that they and threads of the
  // host reach, and that is 0 now.
  [[nodiscard]] virtual mep_result_t add(uint64_t* word, uint64_t* doorbell,
                                         uint64_t** of_posters) = 0;
  // Once after add(), and posters have ended: afterwards nobody touches either.
  virtual void remove(const uint64_t* word) = 0;
};

// Posters reach the adapter's page itself.
class PosterDoorbells : public Doorbells {
 public:
  // A poster stores the value to what add() gave.
  [[nodiscard]] virtual mep_result_t ring(uint64_t* of_posters, uint64_t value) = 0;
};

}  // namespace mep::gpu_queue
