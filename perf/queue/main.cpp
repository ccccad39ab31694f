// mep_perf_queue: what `mep_perf queue` becomes, with the same words. It has the parts of the library that queues are made of.
// Exit status as that of mep_perf.
#include <cstdio>
#include <exception>
#include <string>

#include "options.hpp"
#include "queue/adapter_ends.hpp"
#include "queue/session.hpp"
#include "queue/soft_ends.hpp"
#include "standard_output.hpp"

namespace mep::perf {
namespace {

int run(int argc, char** argv) {
  Options options;
  std::string message;
  const ParseResult result = read_options(argc, argv, &options, &message);
  if (result == ParseResult::kRun) {
    message = is_queue_operation(options.operation) ? find_queue_conflict(options)
                                                    : "mep_perf_queue is run by mep_perf queue";
  } else if (result != ParseResult::kBad) {
    message = "mep_perf says this";
  }
  if (!message.empty()) {
    (void)std::fprintf(stderr, "mep_perf: %s\n", message.c_str());
    return 2;
  }
  std::unique_ptr<gpu_queue::mlx5::Device> adapter;  // ends last
  std::unique_ptr<Ends> ends;
  if (options.nic.empty()) {
    ends = make_soft_ends(queue_span(options));
  } else {
    adapter = open_adapter(options.nic);
    ends = make_adapter_ends(options.nic, *adapter, queue_span(options));
  }
  run_queue_session(options, *ends, options.nic.empty() ? kQueueLimitNs : kAdapterLimitNs);
  return 0;
}

}  // namespace
}  // namespace mep::perf

int main(int argc, char** argv) {
  try {
    return mep::perf::status_of_output("mep_perf", mep::perf::run(argc, argv));
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "mep_perf: %s\n", error.what());
  }
  return 1;
}
