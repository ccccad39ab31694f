/* Where the fields of the ABI end, by the table of its layout. */
#include <stddef.h>
#include <string.h>

static const struct {
  const char* type;
  size_t offset, size;
} kFields[] = {
#define CONSTANT(name, value)
#define STRUCT(name, size, alignment)
#define FIELD(type, field, offset, size) {#type, offset, size},
#include "layout_table.h"
};

static int ends_inside_a_field(const char* type, size_t size) {
  for (size_t i = 0; i < sizeof kFields / sizeof *kFields; ++i) {
    if (strcmp(kFields[i].type, type) == 0 && size > kFields[i].offset &&
        size < kFields[i].offset + kFields[i].size) {
      return 1;
    }
  }
  return 0;
}
