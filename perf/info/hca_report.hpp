// The HCA choice in words, for mep_info --topology.
#pragma once

#include <string>

namespace mep {

// `xml_file` empty: this machine; `location` empty: the cores and every GPU. The exit status.
int print_hca_report(const std::string& xml_file, const std::string& location);

}  // namespace mep
