/* The header against layout_table.h at compile time: names, values, sizes, alignments, offsets. */
#include <mep.h>
#include <stddef.h>

_Static_assert(sizeof(void*) == 8, "layout_table.h is written for 64-bit machines");
_Static_assert(sizeof(mep_result_t) == 4 && (mep_result_t)-1 < 0, "mep_result_t");
_Static_assert(sizeof(mep_dtype_t) == 4 && (mep_dtype_t)-1 > 0, "mep_dtype_t");
_Static_assert(sizeof(mep_op_t) == 4 && (mep_op_t)-1 > 0, "mep_op_t");
_Static_assert(sizeof(mep_comm_t) == 8 && sizeof(mep_request_t) == 8 && sizeof(mep_ep_t) == 8 &&
                   sizeof(mep_ep_handle_t) == 8 && sizeof(mep_stream_t) == 8,
               "handles are pointers");

#define CONSTANT(name, value) _Static_assert((name) == (value), #name);
#define STRUCT(name, size, alignment)            \
  _Static_assert(sizeof(name) == (size), #name); \
  _Static_assert(_Alignof(name) == (alignment), #name);
#define FIELD(type, name, offset, size)                              \
  _Static_assert(offsetof(type, name) == (offset), #type "." #name); \
  _Static_assert(sizeof(((type*)0)->name) == (size), #type "." #name);
#include "layout_table.h"

int main(void) {
  /* Compiling was the test; a caller built with this header must also fit the library. */
  return mep_version() == MEP_VERSION_MAJOR * 10000 + MEP_VERSION_MINOR * 100 + MEP_VERSION_PATCH
             ? 0
             : 1;
}
