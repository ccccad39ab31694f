// mep_chaos: random programs under faults, with every result checked.
#include <cstdio>

#include "command_line.hpp"

int main(int argc, char** argv) {
  mep::programs::Campaign campaign;
  std::string message;
  switch (mep::programs::parse_command_line(argc, argv, &campaign, &message)) {
    case mep::programs::Parsed::kLeave:
      return 0;
    case mep::programs::Parsed::kBad:
      std::fprintf(stderr, "mep_chaos: %s\nTry 'mep_chaos --help'.\n", message.c_str());
      return 2;
    case mep::programs::Parsed::kRun:
      break;
  }
  return mep::programs::run_campaign(campaign);
}
