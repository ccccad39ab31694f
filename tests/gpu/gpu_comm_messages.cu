// Messages on streams through the C ABI on GPUs: sizes and tags, groups in any order, graphs, what does not fit, and ranks
// that do not come or are gone. Each byte says who sends it to whom, and which message of theirs it is of.
#include <algorithm>
#include <random>

#include "gpu_comm_rig.hpp"

namespace gpu_test {
namespace {

constexpr size_t kRoom = 38u << 20;
constexpr size_t kLong = 18'500'001;  // more than the slots of all lanes hold

uint8_t byte_of(uint32_t from, uint32_t to, uint32_t number, size_t i) {
  const uint64_t mix = (from * 977u + to * 31u + number * 7u + i + 1) * 0x9e3779b97f4a7c15u;
  return static_cast<uint8_t>(mix >> 56);
}

struct Mail {
  uint32_t from, to, number;  // number: of those of the two
  size_t bytes;
};

// Pinned memory of one rank, dealt out.
struct Memory {
  uint8_t* base = nullptr;
  size_t used = 0;
  uint8_t* take(size_t bytes, std::mt19937_64* random) {
    used += (*random)() % 33;
    uint8_t* const at = base + used;
    used += bytes;
    GPU_CHECK(used <= kRoom, "the test's memory is too small");
    return at;
  }
};

std::vector<Memory> make_memory(size_t ranks) {
  std::vector<Memory> memory(ranks);
  for (Memory& each : memory) cuda(cudaMallocHost(&each.base, kRoom));
  return memory;
}
void free_memory(std::vector<Memory>* memory) {
  for (Memory& each : *memory) cuda(cudaFreeHost(each.base));
}

// Where a message lies at both ends.
struct Placed {
  Mail mail;
  uint8_t* source;
  uint8_t* target;
};

std::vector<Placed> place(const std::vector<Mail>& mails, std::vector<Memory>* memory,
                          std::mt19937_64* random) {
  for (Memory& each : *memory) each.used = 0;
  std::vector<Placed> placed;
  for (const Mail& mail : mails) {
    Placed p{mail, (*memory)[mail.from].take(mail.bytes, random),
             (*memory)[mail.to].take(mail.bytes, random)};
    for (size_t i = 0; i < mail.bytes; ++i)
      p.source[i] = byte_of(mail.from, mail.to, mail.number, i);
    std::memset(p.target, 0xee, mail.bytes);
    placed.push_back(p);
  }
  return placed;
}

void expect_mail(const std::vector<Placed>& placed, const char* where) {
  for (const Placed& p : placed) {
    size_t first = 0;
    while (first < p.mail.bytes &&
           p.target[first] == byte_of(p.mail.from, p.mail.to, p.mail.number, first)) {
      ++first;
    }
    GPU_CHECK(first == p.mail.bytes, "%s: byte %zu of message %u, %zu bytes from %u to %u", where,
              first, p.mail.number, p.mail.bytes, p.mail.from, p.mail.to);
  }
}

mep_result_t send(const Rank& r, const Placed& p) {
  return mep_send(p.source, p.mail.bytes, MEP_UINT8, static_cast<int32_t>(p.mail.to),
                  static_cast<int32_t>(p.mail.number), r.comm, r.stream);
}
mep_result_t receive(const Rank& r, const Placed& p, bool any_tag) {
  const int32_t tag = any_tag ? MEP_ANY_TAG : static_cast<int32_t>(p.mail.number);
  return mep_recv(p.target, p.mail.bytes, MEP_UINT8, static_cast<int32_t>(p.mail.from), tag, r.comm,
                  nullptr, r.stream);
}

// All of a rank's sends and receives as one group, in an order of its own that keeps those of one peer and way.
void group_of(const Rank& r, uint32_t rank, std::vector<Placed> placed, uint64_t seed) {
  std::mt19937_64 random(seed + rank);
  std::vector<std::pair<uint64_t, const Placed*>> calls;  // even: sends
  std::vector<uint64_t> keys(64);
  for (uint64_t& key : keys) key = random() / 2 * 2;
  for (const Placed& p : placed) {
    if (p.mail.from == rank) calls.emplace_back(keys[p.mail.to], &p);
    if (p.mail.to == rank) calls.emplace_back(keys[32 + p.mail.from] + 1, &p);
  }
  std::stable_sort(calls.begin(), calls.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  need(mep_group_begin(), "mep_group_begin");
  for (const auto& [key, p] : calls) {
    need(key % 2 == 0 ? send(r, *p) : receive(r, *p, p->mail.number % 2 == 0), "a message");
  }
  need(mep_group_end(), "mep_group_end");
}

std::vector<Mail> draw_mail(uint32_t ranks, std::mt19937_64* random) {
  std::vector<Mail> mails;
  for (uint32_t from = 0; from < ranks; ++from) {
    for (uint32_t to = 0; to < ranks; ++to) {
      for (uint32_t number = 0; number < (*random)() % 4; ++number) {
        const size_t most = (*random)() % 8 == 0 ? 300'000 : 3'000;
        mails.push_back({from, to, number, (*random)() % most});
      }
    }
  }
  return mails;
}

void groups(const std::vector<Rank>& ranks, std::vector<Memory>* memory, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3; ++round) {
    const std::vector<Placed> placed =
        place(draw_mail(static_cast<uint32_t>(ranks.size()), &random), memory, &random);
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) group_of(ranks[rank], rank, placed, seed);
    synchronize_all();
    expect_mail(placed, "a group");
  }
}

// A group of the most messages that it may have, to the next and from the last; one more is refused.
void full_group(const std::vector<Rank>& ranks, std::vector<Memory>* memory, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto count = static_cast<uint32_t>(ranks.size());
  std::vector<Mail> mails;
  for (uint32_t number = 0; number < most_group_messages() / 2; ++number) {
    for (uint32_t rank = 0; rank < count; ++rank) {
      mails.push_back({rank, (rank + 1) % count, number, random() % 300});
    }
  }
  const std::vector<Placed> placed = place(mails, memory, &random);
  for (uint32_t rank = 0; rank < count; ++rank) group_of(ranks[rank], rank, placed, seed);
  synchronize_all();
  expect_mail(placed, "a full group");
  need(mep_group_begin(), "mep_group_begin");
  for (uint32_t i = 0; i <= most_group_messages(); ++i) {
    need(send(ranks[0], placed[0]), "mep_send");
  }
  GPU_CHECK(mep_group_end() == MEP_ERR_UNSUPPORTED, "a group that is too large");
}

// Around the ring, to the next and from the last, of itself and in a graph that is replayed.
void ring(const std::vector<Rank>& ranks, std::vector<Memory>* memory, size_t bytes,
          uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto count = static_cast<uint32_t>(ranks.size());
  std::vector<Mail> mails;
  for (uint32_t rank = 0; rank < count; ++rank)
    mails.push_back({rank, (rank + 1) % count, 5, bytes});
  const std::vector<Placed> placed = place(mails, memory, &random);
  const auto exchange = [&](uint32_t rank) {
    const uint32_t last = (rank + count - 1) % count;
    need(mep_sendrecv(placed[rank].source, bytes, static_cast<int32_t>((rank + 1) % count), 5,
                      placed[last].target, bytes, static_cast<int32_t>(last), 5, MEP_UINT8,
                      ranks[rank].comm, nullptr, ranks[rank].stream),
         "mep_sendrecv");
  };
  for (uint32_t rank = 0; rank < count; ++rank) exchange(rank);
  synchronize_all();
  expect_mail(placed, "sendrecv");
  std::vector<cudaGraphExec_t> graphs;
  for (uint32_t rank = 0; rank < count; ++rank) {
    std::memset(placed[rank].target, 0, bytes);
    graphs.push_back(capture(ranks[rank], [&] { exchange(rank); }));
  }
  const int replays = bytes < kLong ? 3 : 1;
  for (int replay = 0; replay < replays; ++replay) {
    for (uint32_t rank = 0; rank < count; ++rank) {
      cuda(cudaGraphLaunch(graphs[rank], ranks[rank].stream));
    }
  }
  synchronize_all();
  expect_mail(placed, "sendrecv, replayed");
  for (const cudaGraphExec_t graph : graphs) cuda(cudaGraphExecDestroy(graph));
}

void expect_result(const Rank& r, mep_result_t wanted, const char* what) {
  const mep_result_t result = mep_comm_async_result(r.comm);
  GPU_CHECK(result == wanted, "%s: %s, not %s", what, mep_result_string(result),
            mep_result_string(wanted));
}

// Sends on one stream and receives on another, which nothing orders.
void two_streams(const std::vector<Rank>& ranks, std::vector<Memory>* memory) {
  const auto count = static_cast<uint32_t>(ranks.size());
  std::mt19937_64 random(9);
  std::vector<Mail> mails;
  for (uint32_t number = 0; number < 8; ++number) {
    for (uint32_t rank = 0; rank < count; ++rank) {
      mails.push_back({rank, (rank + 1) % count, number, 500 + 10 * number});
    }
  }
  const std::vector<Placed> placed = place(mails, memory, &random);
  std::vector<cudaStream_t> receiving(count);
  for (uint32_t rank = 0; rank < count; ++rank) {
    cuda(cudaSetDevice(gpu_of(rank)));
    cuda(cudaStreamCreateWithFlags(&receiving[rank], cudaStreamNonBlocking));
  }
  for (const Placed& p : placed) {
    Rank receiver = ranks[p.mail.to];
    receiver.stream = receiving[p.mail.to];
    need(send(ranks[p.mail.from], p), "mep_send");
    need(receive(receiver, p, false), "mep_recv");
  }
  synchronize_all();
  expect_mail(placed, "on two streams");
  for (const cudaStream_t stream : receiving) cuda(cudaStreamDestroy(stream));
}

// A receive that is too short, of another type or tag loses the message; the next one goes on. More are sent than lanes
// have slots, before any is received.
void does_not_fit(const std::vector<Rank>& ranks, std::vector<Memory>* memory) {
  std::mt19937_64 random(7);
  std::vector<Mail> mails{{0, 1, 0, 2'000'000}, {0, 1, 1, 100}, {0, 1, 2, 100}};
  for (uint32_t number = 3; number < 10; ++number) mails.push_back({0, 1, number, 100 * number});
  const std::vector<Placed> placed = place(mails, memory, &random);
  for (const Placed& p : placed) need(send(ranks[0], p), "mep_send");
  const Rank& r = ranks[1];
  need(mep_recv(placed[0].target, 1'000'000, MEP_UINT8, 0, 0, r.comm, nullptr, r.stream),
       "mep_recv");
  need(mep_recv(placed[1].target, 100, MEP_INT8, 0, 1, r.comm, nullptr, r.stream), "mep_recv");
  need(mep_recv(placed[2].target, 100, MEP_UINT8, 0, 99, r.comm, nullptr, r.stream), "mep_recv");
  const std::vector<Placed> rest(placed.begin() + 3, placed.end());
  for (const Placed& p : rest) need(receive(r, p, false), "mep_recv");
  synchronize_all();
  expect_result(r, MEP_ERR_CAPACITY, "a receive that is too short");
  expect_result(ranks[0], MEP_SUCCESS, "its send");
  expect_mail(rest, "after those that did not fit");
}

void refuses_messages(const std::vector<Rank>& ranks) {
  const Rank& r = ranks[0];
  mep_message_t message;
  mep_message_defaults(&message);
  mep_request_t request = nullptr;
  const mep_result_t results[] = {
      mep_recv(r.receive, 4, MEP_UINT8, MEP_ANY_SOURCE, 0, r.comm, nullptr, r.stream),
      mep_recv(r.receive, 4, MEP_UINT8, 0, 0, r.comm, &message, r.stream),
      mep_isend(r.send, 4, MEP_UINT8, 0, 0, r.comm, r.stream, &request),
      mep_probe(0, 0, r.comm, &message)};
  for (const mep_result_t result : results) {
    GPU_CHECK(result == MEP_ERR_UNSUPPORTED, "a message: %s", mep_last_error());
  }
  GPU_CHECK(mep_send(r.send, 4, MEP_UINT8, 99, 0, r.comm, r.stream) == MEP_ERR_INVALID_ARGUMENT,
            "a message to no rank");
}

// Rank 1 sends to rank 2, which receives nothing: four messages have room, and the fifth waits until its time is over.
void fills_the_room(const Rank& r, const uint8_t* memory) {
  for (int32_t number = 0; number < 5; ++number) {
    need(mep_send(memory, 60'000, MEP_UINT8, 2, number, r.comm, r.stream), "mep_send");
    cuda(cudaStreamSynchronize(r.stream));
    expect_result(r, number < 4 ? MEP_SUCCESS : MEP_ERR_TIMEOUT, "a send that nobody receives");
  }
}

}  // namespace

void messages(uint32_t count, uint64_t seed) {
  std::vector<Rank> ranks = open_ranks(count, 20'000);
  refuses_messages(ranks);
  std::vector<Memory> memory = make_memory(count);
  std::vector<size_t> sizes = {0, 1, 4097, 70'001, 2'500'000};
  if (count == 2) sizes.push_back(kLong);
  for (const size_t bytes : sizes) ring(ranks, &memory, bytes, seed + bytes);
  groups(ranks, &memory, seed);
  if (count == 2) full_group(ranks, &memory, seed);
  two_streams(ranks, &memory);
  for (const Rank& rank : ranks) expect_result(rank, MEP_SUCCESS, "messages");
  if (count > 1) does_not_fit(ranks, &memory);
  close_ranks(&ranks);
  free_memory(&memory);
  std::printf("  %u ranks: messages\n", count);
}

// Rank 0 waits for a message of the last rank, which aborts or is late, and exchanges others with rank 1 meanwhile.
void lost_messages(bool aborts, uint64_t seed) {
  constexpr uint32_t kRanks = 3;
  std::vector<Rank> ranks = open_ranks(kRanks, aborts ? 20'000 : 1'000);
  std::vector<Memory> memory = make_memory(kRanks);
  std::mt19937_64 random(seed);
  const std::vector<Placed> placed =
      place({{0, 1, 0, 1'500'000}, {1, 0, 0, 1'500'000}, {2, 0, 0, 100}}, &memory, &random);
  need(mep_group_begin(), "mep_group_begin");
  for (const Placed& p : placed) {
    need(p.mail.from == 0 ? send(ranks[0], p) : receive(ranks[0], p, false), "a message");
  }
  need(mep_group_end(), "mep_group_end");
  need(mep_group_begin(), "mep_group_begin");
  need(receive(ranks[1], placed[0], false), "mep_recv");
  need(send(ranks[1], placed[1]), "mep_send");
  need(mep_group_end(), "mep_group_end");
  if (aborts) need(mep_comm_abort(ranks[2].comm), "mep_comm_abort");
  synchronize_all();
  expect_mail({placed[0], placed[1]}, "beside a rank that does not come");
  const mep_result_t lost = aborts ? MEP_ERR_PEER_FAILED : MEP_ERR_TIMEOUT;
  expect_result(ranks[0], lost, "a message that does not come");
  expect_result(ranks[1], MEP_SUCCESS, "the other rank");
  // Later ones end alike, and the others go on.
  need(receive(ranks[0], placed[2], false), "mep_recv");
  cuda(cudaStreamSynchronize(ranks[0].stream));
  expect_result(ranks[0], lost, "the next that does not come");
  // By queues a short message has left the sender before anybody receives it, and is the next that comes.
  if (!aborts && has_windows()) {
    need(send(ranks[2], placed[2]), "mep_send");
    cuda(cudaStreamSynchronize(ranks[2].stream));
    expect_result(ranks[2], MEP_ERR_TIMEOUT, "a send to a rank that gave up");
  }
  need(send(ranks[0], placed[0]), "mep_send");
  need(receive(ranks[1], placed[0], false), "mep_recv");
  synchronize_all();
  expect_mail({placed[0]}, "afterwards");
  if (!aborts && has_windows()) fills_the_room(ranks[1], memory[1].base);
  close_ranks(&ranks);
  free_memory(&memory);
  std::printf("  3 ranks: messages beside a rank that %s\n", aborts ? "aborts" : "is late");
}

}  // namespace gpu_test
