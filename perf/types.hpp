// Names of element types and reductions, as the command line, the table and the JSON file have
// them.
#pragma once

#include <string>

#include "mep.h"

namespace mep::perf {

// The first name is the one that is printed. False: no such name.
bool parse_dtype(const std::string& text, mep_dtype_t* dtype);
bool parse_reduction(const std::string& text, mep_op_t* reduction);
const char* dtype_name(mep_dtype_t dtype);
const char* reduction_name(mep_op_t reduction);
std::string all_dtype_names();
std::string all_reduction_names();

// "8", "64 KiB", "1.5 MiB"; for headings, never for columns that are read by programs.
std::string bytes_text(double bytes);

// A column's figure: three digits that matter, never an exponent.
std::string figure_text(double value);
// `text` behind `left`, in lines of at most 80 columns; those behind the first are indented.
std::string wrapped(const std::string& left, size_t indent, const std::string& text);

}  // namespace mep::perf
