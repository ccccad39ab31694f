// The table that people read. Every line is printed as soon as it is known.
#pragma once

#include <string>

#include "machine.hpp"
#include "options.hpp"
#include "row.hpp"

namespace mep::perf {

// "0.2.0", of the library that runs.
std::string library_version();
void print_heading(const Options& options, const Machine& machine, const std::string& subject);
void print_row(const Options& options, const Machine& machine, const Row& row);

}  // namespace mep::perf
