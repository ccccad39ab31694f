// Scenes in which one rank of a world goes while others send to it and receive from it: what each call of the
// others says, that it says so soon, and that the comm goes on. The same for ranks that die, abort or leave.
#pragma once

#include "support/message_ranks.hpp"
#include "support/request_waits.hpp"

namespace mep_test {

// How the victim goes, and what the others are told then.
struct Loss {
  mep_result_t told;                   // MEP_ERR_PEER_FAILED or MEP_ERR_PEER_LEFT
  std::function<void(mep_comm_t)> go;  // may return; the scene's body then does, too
  Stages& stages;
  std::function<void(uint64_t us)> go_after = {};  // where it can go in the middle of a call
};

// When the victim goes in a scene in which it makes calls until then.
class Hour {
 public:
  Hour(const Loss& loss, uint64_t after_us)
      : end_ns_(mep::now_ns() + (loss.go_after ? 60'000'000 : after_us) * 1000) {
    if (loss.go_after) loss.go_after(after_us);
  }
  bool has_come() const { return mep::now_ns() >= end_ns_; }

 private:
  uint64_t end_ns_;
};

// Limits how long the calls from here to the end of the scope take altogether.
class Bounded {
 public:
  explicit Bounded(Report& found, int line = __builtin_LINE())
      : found_(found), line_(line), begun_ns_(mep::now_ns()) {}
  ~Bounded() {
    const uint64_t ns = mep::now_ns() - begun_ns_;
    if (ns > kBoundedNs) {
      found_.add("line %d: it took %llu ms", line_,
                 static_cast<unsigned long long>(ns / 1'000'000));
    }
  }
  Bounded(const Bounded&) = delete;
  Bounded& operator=(const Bounded&) = delete;

 private:
  Report& found_;
  int line_;
  uint64_t begun_ns_;
};

inline void await_loss(mep_comm_t comm, Report& found) {
  COLL_OK(found, mep_comm_wait_view(comm, 1, 60'000));
}

// The next collective of the survivors tells of it, once; then the comm works, its messages too. Nobody leaves
// before all have come here.
inline void go_on_after(const Loss& loss, int rank, const std::vector<int>& survivors,
                        mep_comm_t comm, Report& found) {
  const Bounded bounded(found);
  COLL_EXPECT(found, loss.told, mep_barrier(comm, nullptr));
  uint64_t sum = 0;
  for (const int each : survivors) sum |= uint64_t{1} << (4 * each);
  expect_sum_of_ranks(comm, sum, found);
  Sent sent;
  const auto seed_of = [](int source, int dest) {
    return static_cast<uint64_t>(source) * 100 + static_cast<uint64_t>(dest);
  };
  for (const int dest : survivors) {
    for (const size_t bytes : {size_t{20}, kLargeBytes / 4}) {
      sent.start(bytes, seed_of(rank, dest), dest, 900, comm, found);
    }
  }
  for (const int source : survivors) {
    for (const size_t bytes : {size_t{20}, kLargeBytes / 4}) {
      expect_message(bytes, seed_of(source, rank), source, 900, comm, found);
    }
  }
  sent.finish_all(found);
  COLL_OK(found, mep_barrier(comm, nullptr));
}

// Calls to and from one that is gone end at once.
inline void expect_gone(const Loss& loss, int victim, mep_comm_t comm, Report& found) {
  const Bounded bounded(found);
  const Bytes content = message_bytes(kLargeBytes, 1);
  Inbox inbox(64);
  mep_request_t request = nullptr;
  COLL_EXPECT(found, loss.told, receive(inbox, victim, 1, comm));
  COLL_EXPECT(found, loss.told, receive(inbox, victim, MEP_ANY_TAG, comm));
  COLL_EXPECT(found, loss.told, mep_probe(victim, 1, comm, nullptr));
  for (const size_t bytes : {size_t{0}, size_t{8}, kLargeBytes}) {
    COLL_EXPECT(found, loss.told,
                mep_send(content.data(), bytes, MEP_UINT8, victim, 1, comm, nullptr));
    COLL_OK(found, mep_isend(content.data(), bytes, MEP_UINT8, victim, 1, comm, nullptr, &request));
    COLL_EXPECT(found, loss.told, finish(&request));
  }
  COLL_OK(found, begin_receive(inbox, victim, 1, comm, &request));
  COLL_EXPECT(found, loss.told, finish(&request));
  COLL_EXPECT(found, loss.told,
              mep_sendrecv(content.data(), 8, victim, 1, inbox.data(), 8, victim, 1, MEP_UINT8,
                           comm, nullptr, nullptr));
  inbox.check_untouched(found);
}

// --- Scenes: rank 2 of three goes, unless they say otherwise ----------------------------------------

// Rank 0 has receives from it under way, rank 1 blocks in one.
inline void lost_while_receiving(const Loss& loss, int rank, mep_comm_t comm, Report& found) {
  if (rank == 2) {
    loss.stages.await(0, 2, found);
    return loss.go(comm);
  }
  {
    Inbox inboxes[2] = {Inbox(8), Inbox(kLargeBytes)};
    mep_request_t requests[2] = {};
    if (rank == 0) {
      COLL_OK(found, begin_receive(inboxes[0], 2, 1, comm, &requests[0]));
      COLL_OK(found, begin_receive(inboxes[1], 2, MEP_ANY_TAG, comm, &requests[1]));
    }
    loss.stages.reach(0);
    const Bounded bounded(found);
    if (rank == 1) COLL_EXPECT(found, loss.told, receive(inboxes[0], 2, 1, comm));
    if (rank == 0) {
      mep_result_t results[2] = {};
      COLL_EXPECT(found, loss.told,
                  mep_request_waitall(2, requests, MEP_TIMEOUT_DEFAULT, nullptr, results));
      COLL_CHECK(found, results[0] == loss.told && results[1] == loss.told);
    }
    for (const Inbox& inbox : inboxes) inbox.check_untouched(found);
  }
  expect_gone(loss, 2, comm, found);
  go_on_after(loss, rank, {0, 1}, comm, found);
  expect_gone(loss, 2, comm, found);
}

// Rank 0 has large sends to it under way, rank 1 blocks in one, and it receives none. The two send to each other.
inline void lost_while_sending(const Loss& loss, int rank, mep_comm_t comm, Report& found) {
  if (rank == 2) {
    loss.stages.await(0, 2, found);
    return loss.go(comm);
  }
  const Bytes content = message_bytes(kLargeBytes, 1);
  mep_request_t requests[2] = {};
  if (rank == 0) {
    for (mep_request_t& request : requests) {
      COLL_OK(found,
              mep_isend(content.data(), kLargeBytes, MEP_UINT8, 2, 1, comm, nullptr, &request));
    }
  }
  loss.stages.reach(0);
  {
    const Bounded bounded(found);
    if (rank == 1) COLL_EXPECT(found, loss.told, send_bytes(kLargeBytes, 1, 2, 1, comm));
    if (rank == 1) COLL_OK(found, send_bytes(kLargeBytes, 2, 0, 1, comm));
    if (rank == 0) expect_message(kLargeBytes, 2, 1, 1, comm, found);
    for (mep_request_t& request : requests) {
      if (rank == 0) COLL_EXPECT(found, loss.told, finish(&request));
    }
  }
  expect_gone(loss, 2, comm, found);
  go_on_after(loss, rank, {0, 1}, comm, found);
}

// Rank 0 has sent it more small ones than there is room for: those that were put have ended well, and behind the
// first that was not there is none that was.
inline void lost_with_many_unreceived(const Loss& loss, int rank, mep_comm_t comm, Report& found) {
  constexpr size_t kMany = 3000;
  if (rank == 2) {
    loss.stages.await(0, 1, found);
    return loss.go(comm);
  }
  if (rank == 0) {
    const Bytes content = message_bytes(100, 1);
    std::vector<mep_request_t> requests(kMany, nullptr);
    for (mep_request_t& request : requests) {
      COLL_OK(found, mep_isend(content.data(), 100, MEP_UINT8, 2, 1, comm, nullptr, &request));
    }
    loss.stages.reach(0);
    const Bounded bounded(found);
    bool was_put = true;
    for (size_t i = 0; i < kMany; ++i) {
      const mep_result_t result = finish(&requests[i]);
      const bool fits = result == loss.told || (was_put && result == MEP_SUCCESS);
      if (!fits) found.add("send %zu gave %s", i, mep_result_string(result));
      was_put = result == MEP_SUCCESS;
    }
  }
  await_loss(comm, found);
  expect_gone(loss, 2, comm, found);
  go_on_after(loss, rank, {0, 1}, comm, found);
}

// A receive from anybody goes on while rank 1 lives, and has what that one sends.
inline void lost_beside_another_source(const Loss& loss, int rank, mep_comm_t comm, Report& found) {
  if (rank == 2) {
    loss.stages.await(0, 1, found);
    return loss.go(comm);
  }
  if (rank == 1) {
    loss.stages.await(1, 1, found);
    COLL_OK(found, send_bytes(30, 1, 0, 4, comm));
    COLL_OK(found, send_bytes(kLargeBytes, 2, 0, 5, comm));
    COLL_OK(found, send_bytes(9, 3, 0, 6, comm));
    return go_on_after(loss, rank, {0, 1}, comm, found);
  }
  Inbox before(30);
  Inbox after(kLargeBytes);
  mep_request_t request = nullptr;
  COLL_OK(found, begin_receive(before, MEP_ANY_SOURCE, 4, comm, &request));
  loss.stages.reach(0);
  COLL_EXPECT(found, loss.told, receive(after, 2, 4, comm));
  await_loss(comm, found);
  COLL_EXPECT(found, MEP_IN_PROGRESS, wait_in(&request, 20));
  loss.stages.reach(1);
  COLL_OK(found, finish(&request));
  before.came(1, 4, 30, found);
  before.check(30, 1, found);
  COLL_OK(found, receive(after, MEP_ANY_SOURCE, 5, comm));
  after.came(1, 5, kLargeBytes, found);
  after.check(kLargeBytes, 2, found);
  COLL_OK(found, mep_probe(MEP_ANY_SOURCE, MEP_ANY_TAG, comm, &before.message));
  before.came(1, 6, 9, found);
  expect_message(9, 3, 1, 6, comm, found);
  go_on_after(loss, rank, {0, 1}, comm, found);
}

// There are two ranks, and the other one goes: nobody is left to receive from.
inline void lost_the_only_source(const Loss& loss, int rank, mep_comm_t comm, Report& found) {
  if (rank == 1) {
    loss.stages.await(0, 1, found);
    return loss.go(comm);
  }
  Inbox inbox(8);
  mep_request_t request = nullptr;
  COLL_OK(found, begin_receive(inbox, MEP_ANY_SOURCE, 4, comm, &request));
  loss.stages.reach(0);
  {
    const Bounded bounded(found);
    COLL_EXPECT(found, loss.told, receive(inbox, MEP_ANY_SOURCE, MEP_ANY_TAG, comm));
    COLL_EXPECT(found, loss.told, finish(&request));
    COLL_EXPECT(found, loss.told, receive(inbox, MEP_ANY_SOURCE, 4, comm));
  }
  go_on_after(loss, rank, {0}, comm, found);
}

// Messages that had come whole are received after their sender has gone, before and after a collective told of that,
// by number, by tag, and from anybody. Then there is no more.
inline void lost_after_sending(const Loss& loss, int rank, mep_comm_t comm, Report& found) {
  constexpr int kTags = 8;
  const auto bytes_of = [](int tag) { return static_cast<size_t>(tag) * 700; };
  if (rank == 2) {
    for (int tag = 0; tag < kTags; ++tag) {
      COLL_OK(found, send_bytes(bytes_of(tag), static_cast<uint64_t>(tag), 0, tag, comm));
    }
    loss.stages.await(0, 1, found);
    return loss.go(comm);
  }
  const Bounded bounded(found);
  const auto expect = [&](int tag) {
    expect_message(bytes_of(tag), static_cast<uint64_t>(tag), 2, tag, comm, found);
  };
  if (rank == 0) {
    for (int tag = 0; tag < kTags; ++tag) COLL_OK(found, mep_probe(2, tag, comm, nullptr));
    loss.stages.reach(0);
  }
  await_loss(comm, found);
  if (rank == 0) {
    expect(5);
    expect(0);
  }
  go_on_after(loss, rank, {0, 1}, comm, found);
  if (rank == 0) {
    for (const int source : {2, static_cast<int>(MEP_ANY_SOURCE)}) {
      Inbox inbox(6000);
      const int tag = source == 2 ? 1 : 2;
      COLL_OK(found, receive(inbox, source, MEP_ANY_TAG, comm));
      inbox.came(2, tag, bytes_of(tag), found);
      inbox.check(bytes_of(tag), static_cast<uint64_t>(tag), found);
    }
    for (const int tag : {7, 3, 6, 4}) expect(tag);
    expect_gone(loss, 2, comm, found);
  }
  COLL_OK(found, mep_barrier(comm, nullptr));
}

// Ranks 0 and 1 exchange large messages all the time, and none of these is any the worse for it.
inline void lost_beside_a_transfer(const Loss& loss, uint64_t after_us, int rank, mep_comm_t comm,
                                   Report& found) {
  loss.stages.meet(0, 3, found);
  if (rank == 2) {
    pause_us(static_cast<unsigned>(after_us));
    return loss.go(comm);
  }
  const auto own = static_cast<uint64_t>(rank);
  for (uint64_t round = 0; round < 12 && !found.bad(); ++round) {
    Sent sent;
    Inbox inbox(kLargeBytes);
    sent.start(kLargeBytes, 2 * round + own, 1 - rank, 1, comm, found);
    sent.start(100, 2 * round + own, 1 - rank, 2, comm, found);
    COLL_OK(found, receive(inbox, 1 - rank, 1, comm));
    inbox.check(kLargeBytes, 2 * round + (1 - own), found);
    expect_message(100, 2 * round + (1 - own), 1 - rank, 2, comm, found);
    sent.finish_all(found);
  }
  go_on_after(loss, rank, {0, 1}, comm, found);
}

// The results of calls to one rank, or from it: after the first that it is gone none ends well.
class OneWay {
 public:
  void note(mep_result_t result, const Loss& loss, Report& found, int line = __builtin_LINE()) {
    const bool fits = result == loss.told || (lives_ && result == MEP_SUCCESS);
    if (!fits) {
      found.add("line %d: %s where the rank %s (%s)", line, mep_result_string(result),
                lives_ ? "lived" : "was gone", mep_last_error());
    }
    lives_ = lives_ && result == MEP_SUCCESS;
  }
  bool lives() const { return lives_; }

 private:
  bool lives_ = true;
};

// The victim sends large messages to rank 0 and receives others from rank 1 until its hour has come.
inline void transfer_until(const Loss& loss, uint64_t after_us, mep_comm_t comm, Report& found) {
  const Hour hour(loss, after_us);
  for (uint64_t round = 0; !found.bad(); ++round) {
    Inbox inbox(kLargeBytes);
    const Bytes content = message_bytes(kLargeBytes, round);
    mep_request_t requests[2] = {};
    COLL_OK(found,
            mep_isend(content.data(), kLargeBytes, MEP_UINT8, 0, 1, comm, nullptr, &requests[0]));
    COLL_OK(found, begin_receive(inbox, 1, 1, comm, &requests[1]));
    mep_result_t result = MEP_IN_PROGRESS;
    while (result == MEP_IN_PROGRESS && !hour.has_come()) {
      result = wait_all_in(2, requests, 0);
    }
    if (hour.has_come()) {
      loss.go(comm);
      // Requests that an abort has ended are freed before the comm is; a rank that leaves has them done first.
      (void)mep_request_waitall(2, requests, MEP_TIMEOUT_DEFAULT, nullptr, nullptr);
      return;
    }
    COLL_OK(found, result);
    inbox.check(kLargeBytes, round, found);
  }
}

// The victim itself is in the middle of large messages.
inline void lost_in_a_transfer(const Loss& loss, uint64_t after_us, int rank, mep_comm_t comm,
                               Report& found) {
  loss.stages.meet(0, 3, found);
  if (rank == 2) return transfer_until(loss, after_us, comm, found);
  const Bounded bounded(found);
  OneWay victim;
  Inbox inbox(kLargeBytes);
  for (uint64_t round = 0; victim.lives() && !found.bad(); ++round) {
    if (rank == 1) {
      victim.note(send_bytes(kLargeBytes, round, 2, 1, comm), loss, found);
      continue;
    }
    victim.note(receive(inbox, 2, 1, comm), loss, found);
    if (victim.lives()) inbox.check(kLargeBytes, round, found);
  }
  const Inbox as_it_was = inbox;
  go_on_after(loss, rank, {0, 1}, comm, found);
  inbox.check_same(as_it_was, found);
}

// One round of a storm with one other rank.
struct Exchange {
  Exchange(uint64_t seed, uint64_t round, int rank, int of_peer)
      : peer(of_peer),
        sent_seed(seed_of(seed, round, rank, of_peer)),
        received_seed(seed_of(seed, round, of_peer, rank)),
        content(message_bytes(bytes_of(sent_seed), sent_seed)),
        inbox(bytes_of(received_seed)) {}

  static uint64_t seed_of(uint64_t seed, uint64_t round, int source, int dest) {
    return mix(mix(seed, round), static_cast<uint64_t>(source) * 100 + static_cast<uint64_t>(dest));
  }
  static size_t bytes_of(uint64_t seed) {
    RandomStream random(seed);
    return random.below(random.one_in(4) ? 100'000 : 300);
  }

  int peer;
  uint64_t sent_seed;
  uint64_t received_seed;
  Bytes content;
  Inbox inbox;
  mep_request_t requests[2] = {};  // send, receive
  mep_result_t results[2] = {};
};

// Everybody exchanges messages with everybody, round after round, and one of them goes meanwhile.
inline void lost_in_a_storm(const Loss& loss, uint64_t seed, int rank, int size, int victim,
                            mep_comm_t comm, Report& found) {
  constexpr uint64_t kRounds = 80;
  RandomStream own(mix(seed, static_cast<uint64_t>(rank) + 5));
  std::vector<OneWay> sending(static_cast<size_t>(size));
  std::vector<OneWay> receiving(static_cast<size_t>(size));
  loss.stages.meet(0, size, found);
  const Hour hour(rank == victim ? loss : Loss{loss.told, {}, loss.stages}, mix(seed, 1) % 20'000);
  for (uint64_t round = 0; (round < kRounds || rank == victim) && !found.bad(); ++round) {
    if (round >= kRounds) return loss.go(comm);
    std::vector<std::unique_ptr<Exchange>> exchanges;
    const auto first = static_cast<int>(own.below(static_cast<uint64_t>(size)));
    for (int i = 0; i < size; ++i) {
      const int peer = (first + i) % size;
      if (peer == rank) continue;
      exchanges.push_back(std::make_unique<Exchange>(seed, round, rank, peer));
      Exchange& with = *exchanges.back();
      COLL_OK(found, mep_isend(with.content.data(), with.content.size(), MEP_UINT8, peer, 1, comm,
                               nullptr, &with.requests[0]));
      COLL_OK(found, begin_receive(with.inbox, peer, 1, comm, &with.requests[1]));
    }
    const bool goes = rank == victim && hour.has_come();
    if (goes) loss.go(comm);
    for (const auto& with : exchanges) {
      (void)mep_request_waitall(2, with->requests, MEP_TIMEOUT_DEFAULT, nullptr, with->results);
    }
    if (goes) return;
    for (const auto& with : exchanges) {
      OneWay& to = sending[static_cast<size_t>(with->peer)];
      OneWay& from = receiving[static_cast<size_t>(with->peer)];
      to.note(with->results[0], loss, found);
      from.note(with->results[1], loss, found);
      if (from.lives()) with->inbox.check(with->inbox.room(), with->received_seed, found);
      if (with->peer != victim) COLL_CHECK(found, to.lives() && from.lives());
    }
  }
  std::vector<int> survivors;
  for (int each = 0; each < size; ++each) {
    if (each != victim) survivors.push_back(each);
  }
  go_on_after(loss, rank, survivors, comm, found);
}

// --- All of them ------------------------------------------------------------------------------------

using Scene = std::function<void(const Loss&, int rank, mep_comm_t, Report&)>;

struct NamedScene {
  const char* name;
  int size;
  int victim;
  Scene scene;
};

inline std::vector<NamedScene> scenes() {
  return {{"receiving", 3, 2, lost_while_receiving},
          {"sending", 3, 2, lost_while_sending},
          {"many unreceived", 3, 2, lost_with_many_unreceived},
          {"another source", 3, 2, lost_beside_another_source},
          {"the only source", 2, 1, lost_the_only_source},
          {"after sending", 3, 2, lost_after_sending}};
}

// In which something is under way when the victim goes, after a time drawn from the seed.
inline std::vector<NamedScene> timed_scenes(uint64_t seed) {
  RandomStream random(seed);
  const uint64_t beside = random.below(15'000);
  const uint64_t inside = random.below(15'000);
  const int size = 3 + static_cast<int>(random.below(3));
  const int victim = static_cast<int>(random.below(static_cast<uint64_t>(size)));
  return {
      {"beside a transfer", 3, 2,
       [beside](const Loss& loss, int rank, mep_comm_t comm, Report& found) {
         lost_beside_a_transfer(loss, beside, rank, comm, found);
       }},
      {"in a transfer", 3, 2,
       [inside](const Loss& loss, int rank, mep_comm_t comm, Report& found) {
         lost_in_a_transfer(loss, inside, rank, comm, found);
       }},
      {"in a storm", size, victim, [=](const Loss& loss, int rank, mep_comm_t comm, Report& found) {
         lost_in_a_storm(loss, seed, rank, size, victim, comm, found);
       }}};
}

}  // namespace mep_test
