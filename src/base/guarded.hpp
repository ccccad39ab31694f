// Where exceptions end: what runs out of memory, or fails in a way that nobody thought of, has a result like
// every other failure.
#pragma once

#include <exception>
#include <new>

#include "base/status.hpp"

namespace mep {

template <typename Body>
[[nodiscard]] mep_result_t guarded(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(MEP_ERR_NO_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return fail(MEP_ERR_INTERNAL, "unexpected: %s; please report this", error.what());
  } catch (...) {
    return fail(MEP_ERR_INTERNAL, "an unexpected exception; please report this");
  }
}

}  // namespace mep
