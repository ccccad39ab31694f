// Queue pairs between the ranks of a comm, of a software NIC over mapped memory, by put alone and over TCP, and of adapters
// that a model plays: all traffic, requests that are refused, ranks that are lost, joiners, and ends in any order.
// labels: gate threads tsan asan
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/view_participant.hpp"
#include "support/queued_ranks.hpp"

using namespace mep_test;

namespace {

struct Way {
  const char* name;
  uint32_t flags;
  const char* transports;
  const char* hosts;
  bool by_adapters = false;
};
constexpr Way kMapped{"mapped", 0, "", ""};
constexpr Way kByPuts{"put only", kPutOnly, "", ""};
constexpr Way kTcp{"tcp", 0, "tcp", ""};
constexpr Way kHosts{"mapped and put only", 0, "", "0011"};
constexpr Way kAdapters{"adapters", 0, "", "", true};
constexpr const Way* kWays[] = {&kMapped, &kByPuts, &kTcp, &kAdapters};

class FabricScope {
 public:
  explicit FabricScope(const Way& way) {
    fabric_.waits_for_peers = true;
    model_fabric() = way.by_adapters ? &fabric_ : nullptr;
  }
  ~FabricScope() { model_fabric() = nullptr; }
  FabricScope(const FabricScope&) = delete;
  FabricScope& operator=(const FabricScope&) = delete;

 private:
  mep::test::ModelFabric fabric_;
};

void on_ranks(const Way& way, int ranks, const RankBody& body) {
  printf("%d ranks, %s\n", ranks, way.name);
  const FabricScope fabric(way);
  setenv("MEP_TRANSPORTS", way.transports, 1);
  hosts_pattern() = way.hosts;
  require_on_rank_threads(ranks, way.flags, body);
  hosts_pattern() = "";
  unsetenv("MEP_TRANSPORTS");
}

void every_rank_to_every_rank(void**) {
  const uint64_t rounds = slice(12, 500);
  const auto body = [&](int rank, mep_comm_t comm, Report& report) {
    RankNic nic(static_cast<uint32_t>(rank), report);
    COLL_OK(report, nic.start());
    uint64_t id = 0x51'0000;
    for (const uint32_t entries : {16u, 1024u}) {
      // Two objects at once.
      Pairs first(comm, &nic, entries, report);
      Pairs second(comm, &nic, 16, report);
      COLL_OK(report, first.make(++id));
      COLL_OK(report, second.make(++id));
      if (report.bad()) return;
      Threads threads;
      start_traffic(&threads, &first, rounds, all);
      start_traffic(&threads, &second, rounds, all);
      threads.join();
      COLL_OK(report, mep_barrier(comm, nullptr));
    }
  };
  for (const Way* way : kWays) {
    on_ranks(*way, 2, body);
    on_ranks(*way, 4, body);
  }
  on_ranks(kHosts, 4, body);
}

// --- Requests that are refused --------------------------------------------------------------------

struct Bad {
  const char* what;
  uint8_t syndrome;  // MLX5_CQE_SYNDROME_...
  RemoteMemory remote;
  LocalMemory local;
  uint64_t bytes;  // 0: a signal
};
constexpr uint8_t kLocalProtection = 0x04;
constexpr uint8_t kRemoteAccess = 0x13;

std::vector<Bad> bad_requests(Pairs* pairs) {
  const QueuePeer<> peer = pairs->peer(1);
  const size_t end = pairs->places.window_bytes();
  const RemoteMemory window = peer.in_window(0);
  const RemoteMemory other_window{window.address, window.key ^ 0x80000000u};
  const std::byte* bytes = pairs->source.data();
  const std::byte* bytes_end = bytes + pairs->source.size();
  const LocalMemory source = peer.in_source(bytes);
  const LocalMemory other_source{bytes, source.key ^ 0x80000000u};
  const RemoteMemory around{0 - 8ull, window.key};
  return {{"beyond the window", kRemoteAccess, peer.in_window(end - 39), source, 40},
          {"around the address space", kRemoteAccess, around, source, 40},
          {"few bytes", kRemoteAccess, peer.in_window(end - 3), source, 4},
          {"another window", kRemoteAccess, other_window, source, 40},
          {"a word", kRemoteAccess, peer.in_window(end), {}, 0},
          {"before the source", kLocalProtection, window, peer.in_source(bytes - 1), 40},
          {"beyond the source", kLocalProtection, window, peer.in_source(bytes_end - 39), 40},
          {"another source", kLocalProtection, window, other_source, 40}};
}

// The fourth request of a ring of 16 completes in any case, so no other follows that is flushed.
void post_bad(Pairs* pairs, const Bad& bad, Report& report) {
  QueuePeer<> peer = pairs->peer(1);
  const RemoteMemory word = peer.in_window(pairs->places.word(0, 0));
  for (uint64_t i = 1; i <= 3; ++i) COLL_CHECK(report, peer.signal(word, i) == Status::kOk);
  const Status posted =
      bad.bytes == 0 ? peer.signal(bad.remote, 1) : peer.put(bad.remote, bad.local, bad.bytes);
  COLL_CHECK(report, posted == Status::kOk);
  const Status flushed = peer.flush();
  QueueError error{};
  COLL_CHECK(report, peer.error(&error));
  if (flushed != Status::kFailed || error.syndrome != bad.syndrome || error.wqe_counter != 3) {
    report.add("%s: status %u, syndrome 0x%x of request %u", bad.what,
               static_cast<uint32_t>(flushed), error.syndrome, error.wqe_counter);
  }
  COLL_CHECK(report, peer.signal(word, 4) == Status::kFailed);
}

void what_is_outside_ends_its_queue(void**) {
  for (const Way* way : kWays) {
    on_ranks(*way, 3, [](int rank, mep_comm_t comm, Report& report) {
      RankNic nic(static_cast<uint32_t>(rank), report);
      COLL_OK(report, nic.start());
      size_t cases = 1;
      for (size_t i = 0; i < cases && !report.bad(); ++i) {
        Pairs pairs(comm, &nic, 16, report);
        COLL_OK(report, pairs.make(0x52'0000 + i));
        const std::vector<Bad> requests = bad_requests(&pairs);
        cases = requests.size();
        if (rank == 0) post_bad(&pairs, requests[i], report);
        run_traffic(&pairs, 3, [](uint32_t from, uint32_t to) {
          return from != to && from + to != 1;  // not between 0 and 1
        });
        if (rank == 1) (void)pairs.await(pairs.places.word(0, 0), 3);
        COLL_OK(report, mep_barrier(comm, nullptr));
        if (rank != 1) continue;
        COLL_CHECK(report, mep::load_signal(pairs.window(), pairs.places.word(0, 0)) == 3);
        const std::vector<std::byte> nothing(kPosters * kCellBytes);
        COLL_CHECK(report, std::memcmp(pairs.window(), nothing.data(), nothing.size()) == 0);
      }
    });
  }
}

// --- Ranks that are lost --------------------------------------------------------------------------

// Tells two objects of views as EP objects do: by the control thread, which it then holds until release().
class Keeper final : public mep::ViewParticipant {
 public:
  // `look`, where a view is installed, before the objects know of it.
  Keeper(Pairs* first, Pairs* second, std::function<void()> look = {})
      : first_(*first), second_(*second), look_(std::move(look)) {
    first_.comm.add_client(this);
  }
  ~Keeper() override {
    release();
    first_.comm.remove_client(this);
  }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  void describe(std::vector<mep::membership::ChannelState>*) const override {}
  bool holds(uint64_t, uint64_t) const override { return true; }
  void freeze(std::vector<mep::membership::ChannelState>*) override {}
  mep::ObjectKind kind() const override { return mep::ObjectKind::kEp; }
  const std::string& name() const override { return name_; }
  void describe_object(std::vector<std::byte>*) const override {}
  void prepare() override {}
  void install(const std::shared_ptr<const mep::CommChange>& change,
               const mep::membership::Proposal*) override {
    if (change == nullptr) return;
    if (look_) look_();
    first_.keep(*change->view);
    second_.keep(*change->view);
    holds_ = true;
    while (!is_released_) pause_us(100);
  }

  bool holds_control_thread() const { return holds_; }
  void release() { is_released_ = true; }

 private:
  Pairs& first_;
  Pairs& second_;
  const std::function<void()> look_;
  std::atomic<bool> holds_{false};
  std::atomic<bool> is_released_{false};
  const std::string name_ = "queue pairs";
};

// Puts and flushes until something is wrong; `*begun` counts those that are about to wait.
Status post_until_failure(Pairs* pairs, uint32_t to, uint32_t poster, std::atomic<int>* begun) {
  const uint32_t own = pairs->comm.rank();
  const std::byte* source = pairs->source.data() + pairs->places.cell(to, poster);
  const mep::Deadline deadline = mep::Deadline::after_ms(kLimitMs);
  for (uint64_t round = 1; !deadline.expired(); ++round) {
    QueuePeer<> peer = pairs->peer(to);
    Status status = peer.put(peer.in_window(pairs->places.cell(own, poster)),
                             peer.in_source(source), kCellBytes);
    if (status == Status::kOk) {
      status = peer.signal(peer.in_window(pairs->places.word(own, poster)), round);
    }
    if (round == 1) begun->fetch_add(1);
    if (status == Status::kOk) status = peer.flush();
    if (status != Status::kOk) return status;
  }
  return Status::kOk;
}

void expect_failure(Pairs* pairs, uint32_t to, uint32_t poster, std::atomic<int>* begun) {
  const Status status = post_until_failure(pairs, to, poster, begun);
  QueueError error{};
  if (status != Status::kFailed || !pairs->peer(to).error(&error)) {
    pairs->report.add("rank %u to %u: status %u", pairs->comm.rank(), to,
                      static_cast<uint32_t>(status));
  }
}

// The last rank aborts while all others post to it, and it to them; its adapter goes on. `is_served`: by running NICs; else by such that start
// when the rank is gone, so that all that post to it wait until their queue ends. Afterwards the others' control threads
// are held, which would else take now and then what comes.
void lose_a_rank(const Way& way, int ranks, bool is_served) {
  std::atomic<int> begun{0};
  const auto victim = static_cast<uint32_t>(ranks - 1);
  // Each of the others' posters, and one of the lost rank to each of them.
  const int all_begun = (ranks - 1) * static_cast<int>(kPosters + (is_served ? 1 : 0));
  on_ranks(way, ranks, [&](int rank, mep_comm_t comm, Report& report) {
    RankNic nic(static_cast<uint32_t>(rank), report);
    if (is_served) COLL_OK(report, nic.start());
    Pairs pairs(comm, &nic, 16, report);
    Pairs later(comm, &nic, 16, report);
    COLL_OK(report, pairs.make(0x53'0000));
    COLL_OK(report, later.make(0x53'0001));
    Keeper keeper(&pairs, &later, [&] { COLL_CHECK(report, !nic.hears(victim)); });
    COLL_OK(report, mep_barrier(comm, nullptr));
    if (report.bad()) return;
    Threads posters;
    if (static_cast<uint32_t>(rank) == victim) {
      // Until its NIC stops, or none of the others hears it.
      for (uint32_t to = 0; to < victim && is_served; ++to) {
        posters.add([&, to] { expect_failure(&pairs, to, 0, &begun); });
      }
      (void)wait_until(report, "posters", [&] { return begun.load() == all_begun; });
      COLL_OK(report, mep_comm_abort(comm));
      if (!way.by_adapters) nic.stop();
      return;
    }
    for (uint32_t poster = 0; poster < kPosters; ++poster) {
      posters.add([&, poster] { expect_failure(&pairs, victim, poster, &begun); });
    }
    const auto survivors = [&](uint32_t from, uint32_t to) {
      return from != to && from != victim && to != victim;
    };
    if (is_served) run_traffic(&pairs, 20, survivors);
    posters.join();
    if (!is_served) COLL_OK(report, nic.start());
    if (wait_until(report, "the view", [&] { return keeper.holds_control_thread(); })) {
      run_traffic(&later, 5, survivors);
    }
    keeper.release();
    COLL_EXPECT(report, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
    COLL_OK(report, mep_barrier(comm, nullptr));
  });
}

void queues_to_a_lost_rank_end(void**) {
  for (const bool is_served : {false, true}) {
    for (const Way* way : kWays) {
      if (way->by_adapters && !is_served) continue;
      lose_a_rank(*way, 2, is_served);
      lose_a_rank(*way, 4, is_served);
    }
    lose_a_rank(kHosts, 4, is_served);
  }
}

// A view may have another process in the place of one that was lost.
void a_process_that_took_a_place_is_another(void**) {
  for (const Way* way : kWays) {
    on_ranks(*way, 3, [&](int rank, mep_comm_t comm, Report& report) {
      RankNic nic(static_cast<uint32_t>(rank), report);
      COLL_OK(report, nic.start());
      Pairs pairs(comm, &nic, 16, report);
      COLL_OK(report, pairs.make(0x58'0000));
      if (report.bad()) return;
      mep::CommView view = *comm->comm->latest_view();
      pairs.keep(view);
      run_traffic(&pairs, 2, all);
      COLL_OK(report, mep_barrier(comm, nullptr));
      // Ranks 0 and 1 take each other for other processes.
      const uint32_t other = rank == 0 ? 1 : 0;
      const uint32_t same = rank == 2 ? 0 : 2;
      if (rank != 2) ++view.incarnations[other];
      pairs.keep(view);
      std::atomic<int> begun{0};
      if (rank != 2) expect_failure(&pairs, other, 0, &begun);
      QueuePeer<> peer = pairs.peer(same);
      COLL_CHECK(report, peer.signal(peer.in_window(0), 1) == Status::kOk);
      COLL_CHECK(report, peer.flush() == Status::kOk);
      COLL_OK(report, mep_barrier(comm, nullptr));
    });
  }
}

// --- Joiners --------------------------------------------------------------------------------------

constexpr uint32_t kLost = 2;
constexpr uint64_t kJoinedId = 0x59'0000;
bool with_joiner(uint32_t from, uint32_t to) {
  return from != to && (from == kLost || to == kLost);
}

// The joiner has got this rank's window and offers its own.
bool has_offered(const Pairs& pairs) {
  const mep::CommIdentity& comm = pairs.comm.identity();
  return comm.world().windows().has_offered(comm.slots()[kLost], kJoinedId);
}

// Until a view has the joiner and all are reached in it.
void reach_joiner(Pairs* pairs, Report& report) {
  (void)wait_until(report, "the joiner", [&] {
    const auto view = pairs->comm.latest_view();
    if (view->is_live(kLost) && pairs->reaches(*view)) return true;
    COLL_OK(report, pairs->reach(*view));
    return false;
  });
}

// `is_ready`: it has made other pairs before the joiner comes. Counts itself in *prepared once the joiner may come.
void be_a_member(mep_comm_t comm, bool is_ready, std::atomic<int>* prepared, Report& report) {
  const auto rank = static_cast<uint32_t>(comm->comm->rank());
  RankNic nic(rank, report);
  COLL_OK(report, nic.start());
  Pairs pairs(comm, &nic, 16, report);
  COLL_OK(report, pairs.make(kJoinedId));
  // Until the loss: to a joiner it would be an EP object that it has to make.
  auto keeper = std::make_unique<Keeper>(&pairs, &pairs);
  keeper->release();
  run_traffic(&pairs, 2,
              [](uint32_t from, uint32_t to) { return all(from, to) && from + to == 1; });
  COLL_OK(report, mep_barrier(comm, nullptr));
  if (rank == kLost) {
    COLL_OK(report, mep_comm_abort(comm));
    return;
  }
  COLL_EXPECT(report, MEP_ERR_PEER_FAILED, mep_barrier(comm, nullptr));
  keeper.reset();
  prepared->fetch_add(1);
  if (is_ready) COLL_OK(report, pairs.reach(*comm->comm->latest_view()));
  const auto lost = static_cast<int32_t>(kLost);
  int32_t admitted = 0;
  COLL_OK(report, mep_recover_ranks(comm, &lost, 1, uint32_t{kLimitMs}, &admitted));
  if (!is_ready) (void)wait_until(report, "the offer", [&] { return has_offered(pairs); });
  reach_joiner(&pairs, report);
  if (!report.bad()) run_traffic(&pairs, 5, with_joiner);
  COLL_OK(report, mep_barrier(comm, nullptr));
}

void join(mep_comm_t comm, Report& report) {
  RankNic nic(kLost + 1, report);
  COLL_OK(report, nic.start());
  Pairs pairs(comm, &nic, 16, report);
  COLL_OK(report, pairs.make(kJoinedId));
  if (!report.bad()) run_traffic(&pairs, 5, with_joiner);
  COLL_OK(report, mep_barrier(comm, nullptr));
}

void replace_a_rank(const Way& way, bool is_ready) {
  printf("a joiner, %s\n", way.name);
  const FabricScope fabric(way);
  const std::string job = new_job_name();
  Report report;
  std::atomic<int> prepared{0};
  on_threads(kLost + 2, [&](int number) {
    const bool joins = number == kLost + 1;
    mep_comm_config_t config = patient_config(MEP_COMM_SET_RANK);
    config.transports = way.transports[0] == 0 ? nullptr : way.transports;
    config.job = job.c_str();
    config.rank = joins ? number - 1 : number;
    config.size = joins ? 0 : static_cast<int32_t>(kLost + 1);
    mep_comm_t comm = nullptr;
    if (joins) (void)wait_until(report, "the loss", [&] { return prepared == kLost + 1; });
    COLL_OK(report, joins ? mep_comm_join(&config, &comm) : mep_comm_init(&config, &comm));
    if (comm == nullptr) return;
    joins ? join(comm, report) : be_a_member(comm, is_ready, &prepared, report);
    COLL_OK(report, mep_comm_destroy(comm));
    if (number == kLost) prepared.fetch_add(1);
  });
  report.require_clean();
}

void joiners_get_queues(void**) {
  for (const Way* way : {&kMapped, &kTcp, &kAdapters}) {
    for (const bool is_ready : {true, false}) replace_a_rank(*way, is_ready);
  }
}

// --- Ends -----------------------------------------------------------------------------------------

// Rank 0 ends its object while posters of rank 1 write to it. They may be told of an error; all goes on afterwards.
void an_object_ends_while_a_peer_posts(void**) {
  for (const Way* way : kWays) {
    std::atomic<bool> has_ended{false};
    on_ranks(*way, 2, [&](int rank, mep_comm_t comm, Report& report) {
      RankNic nic(static_cast<uint32_t>(rank), report);
      COLL_OK(report, nic.start());
      Pairs pairs(comm, &nic, 16, report);
      COLL_OK(report, pairs.make(0x54'0000));
      if (rank == 0) {
        for (uint32_t poster = 0; poster < kPosters; ++poster) {
          (void)pairs.await(pairs.places.word(1, poster), 1);
        }
        pairs.destroy();
        has_ended = true;
      } else {
        Threads posters;
        for (uint32_t poster = 0; poster < kPosters; ++poster) {
          posters.add([&, poster] {
            Status status = Status::kOk;
            for (int left = 100; left > 0 && status == Status::kOk && !report.bad();) {
              if (has_ended) --left;
              QueuePeer<> peer = pairs.peer(0);
              status = peer.put(peer.in_window(pairs.places.cell(1, poster)),
                                peer.in_source(pairs.source.data()), 10'000);
              if (status == Status::kOk) {
                status = peer.signal(peer.in_window(pairs.places.word(1, poster)), 1);
              }
              if (status == Status::kOk) status = peer.flush();
            }
            COLL_CHECK(report, status == Status::kOk || status == Status::kFailed);
          });
        }
      }
      pairs.destroy();
      Pairs next(comm, &nic, 16, report);
      COLL_OK(report, next.make(0x54'0001));
      if (!report.bad()) run_traffic(&next, 5, all);
      COLL_OK(report, mep_barrier(comm, nullptr));
    });
  }
}

// Posters leave without a flush, as kernels do, and their object ends at once.
void an_object_that_ends_delivers(void**) {
  for (const Way* way : kWays) {
    on_ranks(*way, 2, [&](int rank, mep_comm_t comm, Report& report) {
      RankNic nic(static_cast<uint32_t>(rank), report);
      COLL_OK(report, nic.start());
      Pairs pairs(comm, &nic, 1024, report);
      COLL_OK(report, pairs.make(0x57'0000));
      if (report.bad()) return;
      // Both have the other's window before one ends its own.
      COLL_OK(report, mep_barrier(comm, nullptr));
      const Round content(0, 1, 0, 1);
      std::vector<std::byte> expected(kCellBytes);
      content.fill(expected.data());
      if (rank == 0) {
        content.fill(pairs.source.data());
        QueuePeer<> peer = pairs.peer(1);
        const LocalMemory local = peer.in_source(pairs.source.data());
        for (int i = 0; i < 1000; ++i) {
          COLL_CHECK(report, peer.put(peer.in_window(0), local, kCellBytes) == Status::kOk);
        }
        COLL_CHECK(report, peer.signal(peer.in_window(pairs.places.word(0, 0)), 1) == Status::kOk);
        pairs.destroy();
      } else if (pairs.await(pairs.places.word(0, 0), 1)) {
        COLL_CHECK(report, std::memcmp(pairs.window(), expected.data(), kCellBytes) == 0);
      }
      COLL_OK(report, mep_barrier(comm, nullptr));
    });
  }
}

void a_nic_stops_before_its_objects_end(void**) {
  for (const Way* way : kWays) {
    on_ranks(*way, 2, [&](int rank, mep_comm_t comm, Report& report) {
      std::atomic<int> begun{0};
      RankNic nic(static_cast<uint32_t>(rank), report);
      COLL_OK(report, nic.start());
      Pairs pairs(comm, &nic, 16, report);
      COLL_OK(report, pairs.make(0x55'0000));
      COLL_OK(report, mep_barrier(comm, nullptr));  // both have it before one gives it up
      if (report.bad()) return;
      Threads posters;
      for (uint32_t poster = 0; poster < kPosters; ++poster) {
        posters.add([&, poster] { expect_failure(&pairs, rank ^ 1, poster, &begun); });
      }
      (void)wait_until(report, "posters", [&] { return begun.load() == int{kPosters}; });
      nic.stop();
      posters.join();
      pairs.destroy();
      Pairs late(comm, &nic, 16, report);
      const bool is_soft = model_fabric() == nullptr;
      COLL_EXPECT(report, is_soft ? MEP_ERR_INVALID_ARGUMENT : MEP_SUCCESS, late.make(0x55'0001));
      COLL_OK(report, mep_barrier(comm, nullptr));
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  setenv("MEP_LOG", "error", 0);  // each refusal is a warning
  const CMUnitTest tests[] = {cmocka_unit_test(every_rank_to_every_rank),
                              cmocka_unit_test(what_is_outside_ends_its_queue),
                              cmocka_unit_test(queues_to_a_lost_rank_end),
                              cmocka_unit_test(a_process_that_took_a_place_is_another),
                              cmocka_unit_test(joiners_get_queues),
                              cmocka_unit_test(an_object_that_ends_delivers),
                              cmocka_unit_test(an_object_ends_while_a_peer_posts),
                              cmocka_unit_test(a_nic_stops_before_its_objects_end)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
