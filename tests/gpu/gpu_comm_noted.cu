// Calls on a stream are noted as they are enqueued: in the counters of their communicator, and in a file of
// MEP_FLIGHT_RECORDER. This part alone finds a call on a GPU that is not counted or has no record. Under 0.1 s.
#include <filesystem>
#include <fstream>

#include "core/world/flight_record.hpp"
#include "gpu_comm_rig.hpp"

namespace gpu_test {
namespace {

using mep::flight::Kind;
using mep::flight::Record;

struct Noted {
  Kind kind;
  mep_result_t result;
  uint64_t bytes;
};

Kind kind_of(mep::Collective collective) {
  return static_cast<Kind>(static_cast<uint32_t>(Kind::kCollectives) +
                           static_cast<uint32_t>(collective));
}

std::vector<Record> enqueued_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(sizeof(mep::flight::Header));
  std::vector<Record> enqueued;
  Record each;
  while (file.read(reinterpret_cast<char*>(&each), sizeof each)) {
    if ((each.flags & mep::flight::kEnqueued) != 0) enqueued.push_back(each);
  }
  return enqueued;
}

void call_collectives(const Rank& r) {
  need(mep_allreduce(r.send, r.receive, 5, MEP_UINT32, MEP_SUM, r.comm, r.stream), "allreduce");
  mep_request_t request = nullptr;
  need(mep_iallreduce(r.send, r.receive, 6, MEP_UINT32, MEP_SUM, r.comm, r.stream, &request),
       "iallreduce");
  need(mep_request_wait(&request, MEP_TIMEOUT_DEFAULT, nullptr, nullptr), "mep_request_wait");
  GPU_CHECK(mep_broadcast(nullptr, nullptr, 7, MEP_UINT32, 0, r.comm, r.stream) ==
                MEP_ERR_INVALID_ARGUMENT,
            "a broadcast of nothing");
}

void call_messages(const Rank& r) {
  need(mep_send(r.send, 2, MEP_UINT32, 0, 1, r.comm, r.stream), "send");
  need(mep_recv(r.receive, 2, MEP_UINT32, 0, 1, r.comm, nullptr, r.stream), "recv");
  need(mep_sendrecv(r.send, 3, 0, 1, r.receive, 3, 0, 1, MEP_UINT32, r.comm, nullptr, r.stream),
       "sendrecv");
  // Refused before it is a message, so it has no record.
  GPU_CHECK(mep_recv(r.receive, 3, MEP_UINT32, MEP_ANY_SOURCE, 1, r.comm, nullptr, r.stream) ==
                MEP_ERR_UNSUPPORTED,
            "a receive from any rank");
}

void call_moe(const Rank& r) {
  mep_ep_config_t config;
  mep_moe_defaults(&config, 8, 128, 1, 1);
  mep_ep_t ep = nullptr;
  mep_ep_handle_t handle = nullptr;
  need(mep_ep_create(r.comm, &config, &ep), "mep_ep_create");
  need(mep_ep_handle_create(ep, 0, &handle), "mep_ep_handle_create");
  mep_ep_view_t view;
  mep_ep_view_defaults(&view);
  need(mep_dispatch(handle, nullptr, nullptr, nullptr, 0, &view, nullptr, r.stream), "dispatch");
  need(mep_combine(handle, view.combine_input, nullptr, nullptr, r.stream), "combine");
  cuda(cudaStreamSynchronize(r.stream));
  need(mep_ep_handle_destroy(handle), "mep_ep_handle_destroy");
  need(mep_ep_destroy(ep), "mep_ep_destroy");
}

void expect_counts(const Rank& r) {
  mep_comm_stats_t got;
  mep_comm_stats_t wanted;
  mep_comm_stats_defaults(&got);
  mep_comm_stats_defaults(&wanted);
  need(mep_comm_stats(r.comm, &got), "mep_comm_stats");
  wanted.collectives = 3;
  wanted.collective_bytes = 20 + 24;
  wanted.sends = 2;
  wanted.receives = 3;
  wanted.send_bytes = wanted.receive_bytes = 8 + 12;
  wanted.dispatches = wanted.combines = 1;
  wanted.errors_other = 2;
  GPU_CHECK(std::memcmp(&got, &wanted, sizeof got) == 0,
            "counted: %llu collectives, %llu sends, %llu receives, %llu dispatches, %llu combines",
            static_cast<unsigned long long>(got.collectives),
            static_cast<unsigned long long>(got.sends),
            static_cast<unsigned long long>(got.receives),
            static_cast<unsigned long long>(got.dispatches),
            static_cast<unsigned long long>(got.combines));
}

void expect_records(const std::string& path) {
  const Noted wanted[] = {{kind_of(mep::Collective::k_allreduce), MEP_SUCCESS, 20},
                          {kind_of(mep::Collective::k_allreduce), MEP_SUCCESS, 24},
                          {kind_of(mep::Collective::k_broadcast), MEP_ERR_INVALID_ARGUMENT, 28},
                          {Kind::kSend, MEP_SUCCESS, 8},
                          {Kind::kReceive, MEP_SUCCESS, 8},
                          {Kind::kMessages, MEP_SUCCESS, 12},
                          {Kind::kDispatch, MEP_SUCCESS, 0},
                          {Kind::kCombine, MEP_SUCCESS, 0}};
  const std::vector<Record> got = enqueued_in(path);
  GPU_CHECK(got.size() == std::size(wanted), "%zu records of enqueued calls", got.size());
  for (size_t i = 0; i < std::min(got.size(), std::size(wanted)); ++i) {
    GPU_CHECK(got[i].kind == wanted[i].kind && got[i].result == wanted[i].result &&
                  got[i].bytes == wanted[i].bytes && got[i].epoch == 1 &&
                  (got[i].flags & mep::flight::kEnded) != 0,
              "record %zu: kind %u, result %d, %llu bytes, epoch %llu, flags %u", i,
              static_cast<unsigned>(got[i].kind), got[i].result,
              static_cast<unsigned long long>(got[i].bytes),
              static_cast<unsigned long long>(got[i].epoch), got[i].flags);
  }
}

}  // namespace

void noted() {
  char folder[] = "/tmp/mep-noted-XXXXXX";
  GPU_CHECK(mkdtemp(folder) != nullptr, "mkdtemp");
  (void)setenv("MEP_FLIGHT_RECORDER", (std::string(folder) + "/%r").c_str(), 1);
  std::vector<Rank> ranks = open_ranks(1, 20'000);
  (void)unsetenv("MEP_FLIGHT_RECORDER");
  call_collectives(ranks[0]);
  call_messages(ranks[0]);
  call_moe(ranks[0]);
  expect_counts(ranks[0]);
  expect_records(std::string(folder) + "/0");
  close_ranks(&ranks);
  std::filesystem::remove_all(folder);
  std::printf("  calls are counted and recorded\n");
}

}  // namespace gpu_test
