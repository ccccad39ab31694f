#include "queue_report.hpp"

#include <string>

#include "base/build_info.hpp"
#include "report.hpp"
#if MEP_HAVE_VERBS
#include "transport/verbs/mlx5_device.hpp"
#endif

namespace mep {

void print_queues() {
  print_title("queues", "Queues that a GPU posts to");
#if MEP_HAVE_VERBS
  const int count = verbs::report_mlx5_queues(1024, [](const char* name, const std::string& lack) {
    print_line(name, lack.empty() ? "queues can be made in host memory" : lack);
  });
  if (count == 0) print_line("no adapter", "this machine has no HCA");
#else
  print_line("not built", build_info().verbs_note);
#endif
  print_line("to use them",
             "set MEP_GPU_QUEUES=auto on all ranks; the default leaves adapters alone");
}

}  // namespace mep
