// labels: gate threads tsan asan
// Random programs of messages: every rank makes the same plan from the seed, starts its part of it in an order of
// its own, with collectives between, and waits in yet another order. Bytes are made of the seed, the message's
// way and its number in the stream of its source, destination, communicator and tag, so one that has overtaken
// another, or went to another receive, shows.
#include <sched.h>

#include <map>
#include <tuple>

#include "support/delays.hpp"
#include "support/message_ranks.hpp"
#include "support/request_waits.hpp"

namespace {

using namespace mep_test;  // NOLINT(google-build-using-namespace)

// --- The plan ---------------------------------------------------------------------------------------

enum class Match { k_exact, k_any_tag, k_any_source };
enum OfComm { kWorld, kHalf, kDuplicate, kComms };

struct Message {
  int comm;
  int source;  // ranks of the world
  int dest;
  int tag;
  Match match;
  mep_dtype_t dtype;
  size_t count;
  uint64_t number;  // in its stream

  size_t bytes() const { return count * element_bytes(dtype); }
  uint64_t content(uint64_t seed) const {
    for (const int part : {comm, source, dest, tag}) seed = mix(seed, static_cast<uint64_t>(part));
    return mix(seed, number);
  }
};

struct Sum {
  int comm;
  size_t count;
  bool is_blocking;
};

struct Round {
  std::vector<Message> messages;  // in the order in which each source sends them
  std::vector<Sum> sums;
  int shift;      // of the exchange that ends the round
  bool in_group;  // that exchange, with a collective
  size_t exchanged;
};

class Plan {
 public:
  Plan(uint64_t seed, int size) : seed_(seed), size_(size), shared_(seed) {}

  // Tags of receives from any source are of one round: a sender may be in the next one already.
  Round next() {
    Round round{};
    round_ += 1;
    const size_t messages = static_cast<size_t>(size_) * 5 + shared_.below(12);
    for (size_t i = 0; i < messages; ++i) round.messages.push_back(message());
    for (uint64_t left = shared_.below(5); left > 0; --left) {
      Sum sum{};
      sum.comm = static_cast<int>(shared_.below(kComms));
      sum.count = shared_.one_in(4) ? 20'000 : 1 + shared_.below(300);
      sum.is_blocking = shared_.one_in(2);
      round.sums.push_back(sum);
    }
    round.shift = static_cast<int>(shared_.below(static_cast<uint64_t>(size_)));
    round.in_group = shared_.one_in(2);
    round.exchanged = bytes();
    return round;
  }

 private:
  size_t bytes() {
    const uint64_t how_large = shared_.below(20);
    if (how_large < 10) return shared_.below(200);
    if (how_large < 15) return kEagerBytes - 20 + shared_.below(40);
    return shared_.below(how_large < 19 ? 60'000 : 500'000);
  }

  Message message() {
    Message made{};
    made.comm = static_cast<int>(shared_.below(kComms));
    const auto size = static_cast<uint64_t>(size_);
    made.source = static_cast<int>(shared_.below(size));
    made.dest = static_cast<int>(shared_.below(size));
    // On its half only: ranks that are even, or odd.
    if (made.comm == kHalf && (made.source - made.dest) % 2 != 0) made.dest = made.source;
    made.tag = static_cast<int>(shared_.below(3));
    made.dtype = kAllTypes[shared_.below(std::size(kAllTypes))];
    uint64_t way = mix(seed_, round_);
    for (const int part : {made.comm, made.source, made.dest}) {
      way = mix(way, static_cast<uint64_t>(part));
    }
    if (way % 3 == 0) {
      // All messages on this way in this round: such a receive takes whatever comes on it.
      made.match = Match::k_any_tag;
    } else if (shared_.one_in(4)) {
      made.match = Match::k_any_source;
      made.tag = 1000 + static_cast<int>(round_ * 2 + shared_.below(2));
      made.dtype = MEP_UINT8;  // whoever's message it takes
    }
    made.count = bytes() / element_bytes(made.dtype);
    made.number = sent_[{made.comm, made.source, made.dest, made.tag}]++;
    return made;
  }

  uint64_t seed_;
  int size_;
  RandomStream shared_;
  uint64_t round_ = 0;
  std::map<std::tuple<int, int, int, int>, uint64_t> sent_;
};

// --- One rank's part --------------------------------------------------------------------------------

class Comms {
 public:
  Comms(int rank, int size, mep_comm_t world, Report& found) : size_(size) {
    comms_[kWorld] = world;
    COLL_OK(found, mep_comm_split(world, rank % 2, -rank, &comms_[kHalf]));
    COLL_OK(found, mep_comm_dup(world, &comms_[kDuplicate]));
  }
  void destroy(Report& found) {
    for (const int which : {kHalf, kDuplicate}) {
      if (!found.bad()) COLL_OK(found, mep_comm_destroy(comms_[which]));
    }
  }
  mep_comm_t at(int which) const { return comms_[which]; }
  // The number on a comm of a rank of the world: the highest one is the first of its half.
  int number_on(int which, int rank) const {
    return which == kHalf ? (size_ - 1 - rank) / 2 : rank;
  }
  // The part of each element of a sum beside the common one: the ranks of the world.
  int64_t sum_of_ranks(int which, int rank, int64_t* count) const {
    int64_t sum = 0;
    *count = 0;
    for (int other = 0; other < size_; ++other) {
      if (which == kHalf && (other - rank) % 2 != 0) continue;
      sum += other;
      *count += 1;
    }
    return sum;
  }

 private:
  int size_;
  mep_comm_t comms_[kComms] = {};
};

// One call of the plan on this rank, and what belongs to it until it has ended.
struct Task {
  enum Kind { k_send, k_receive, k_sum };
  Kind kind;
  const Message* message = nullptr;
  const Sum* sum = nullptr;
  Bytes content = {};
  std::unique_ptr<Inbox> inbox = nullptr;
  std::vector<int64_t> own = {};
  std::vector<int64_t> result = {};
};

class RoundRun {
 public:
  RoundRun(const Round& round, uint64_t seed, int rank, const Comms& comms, RandomStream& own,
           Report& found)
      : round_(round), seed_(seed), rank_(rank), comms_(comms), own_(own), found_(found) {
    for (const Message& message : round.messages) {
      if (message.source == rank) {
        queues_[{0, message.comm, message.dest, 0}].push_back(add(Task::k_send, &message));
      }
      if (message.dest == rank) {
        queues_[queue_of(message)].push_back(add(Task::k_receive, &message));
      }
    }
    for (const Sum& sum : round.sums) {
      queues_[{1, 0, 0, 0}].push_back(add(Task::k_sum, nullptr, &sum));
    }
  }
  RoundRun(const RoundRun&) = delete;
  RoundRun& operator=(const RoundRun&) = delete;

  void run() {
    while (!queues_.empty() && !found_.bad()) {
      auto queue = queues_.begin();
      std::advance(queue, own_.below(queues_.size()));
      Task* const task = queue->second.front();
      queue->second.erase(queue->second.begin());
      if (queue->second.empty()) queues_.erase(queue);
      start(*task);
      linger();
      // Nobody may wait for others before everything has begun.
      if (own_.one_in(3)) look(0);
    }
    while (!requests_.empty() && !found_.bad()) {
      linger();
      if (own_.one_in(3)) {
        wait_for_any(kForever);
      } else {
        look(static_cast<uint32_t>(own_.below(3)));
      }
    }
    if (found_.bad()) return;
    check_any_source();
    exchange();
  }

 private:
  using Key = std::tuple<int, int, int, int>;

  // Receives of one queue are called in the order of the messages that they take.
  static Key queue_of(const Message& message) {
    if (message.match == Match::k_any_tag) return {2, message.comm, message.source, 0};
    if (message.match == Match::k_any_source) return {3, message.comm, message.tag, 0};
    return {4, message.comm, message.source, message.tag};
  }

  Task* add(Task::Kind kind, const Message* message, const Sum* sum = nullptr) {
    tasks_.push_back(std::make_unique<Task>(Task{kind, message, sum}));
    return tasks_.back().get();
  }

  void linger() {
    const uint64_t how = own_.below(64);
    if (how == 0) pause_us(static_cast<unsigned>(own_.below(300)));
    if (how < 6) sched_yield();
  }

  // --- Begin

  void start(Task& task) {
    if (task.kind == Task::k_send) return start_send(task);
    if (task.kind == Task::k_receive) return start_receive(task);
    start_sum(task);
  }

  void start_send(Task& task) {
    const Message& message = *task.message;
    task.content = message_bytes(message.bytes(), message.content(seed_));
    mep_request_t request = nullptr;
    COLL_OK(found_, mep_isend(task.content.data(), message.count, message.dtype,
                              comms_.number_on(message.comm, message.dest), message.tag,
                              comms_.at(message.comm), nullptr, &request));
    begun(task, request);
  }

  void start_receive(Task& task) {
    const Message& message = *task.message;
    const bool is_any_source = message.match == Match::k_any_source;
    const int source = is_any_source ? static_cast<int>(MEP_ANY_SOURCE)
                                     : comms_.number_on(message.comm, message.source);
    const int tag = message.match == Match::k_any_tag ? static_cast<int>(MEP_ANY_TAG) : message.tag;
    const mep_comm_t comm = comms_.at(message.comm);
    size_t count = message.count + (own_.one_in(2) ? 0 : own_.below(20));
    if (is_any_source) count = largest_with(message);
    task.inbox = std::make_unique<Inbox>(count * element_bytes(message.dtype));
    // A message that is there now is no waiting receive's, so it is this one's.
    if (!is_any_source && own_.one_in(4)) {
      int32_t there = 0;
      COLL_OK(found_, mep_iprobe(source, tag, comm, &there, &task.inbox->message));
      if (there == 1) check_struct(task);
      mep_message_defaults(&task.inbox->message);
    }
    mep_request_t request = nullptr;
    COLL_OK(found_, mep_irecv(task.inbox->data(), count, message.dtype, source, tag, comm,
                              &task.inbox->message, nullptr, &request));
    begun(task, request);
  }

  size_t largest_with(const Message& like) const {
    size_t largest = 0;
    for (const Message& message : round_.messages) {
      const bool fits =
          message.comm == like.comm && message.dest == rank_ && message.tag == like.tag;
      if (fits) largest = std::max(largest, message.count);
    }
    return largest;
  }

  void start_sum(Task& task) {
    const Sum& sum = *task.sum;
    task.own.resize(sum.count);
    task.result.resize(sum.count);
    for (size_t i = 0; i < sum.count; ++i) task.own[i] = static_cast<int64_t>(i) * 7 + rank_;
    const mep_comm_t comm = comms_.at(sum.comm);
    if (sum.is_blocking) {
      COLL_OK(found_, mep_allreduce(task.own.data(), task.result.data(), sum.count, MEP_INT64,
                                    MEP_SUM, comm, nullptr));
      return check_sum(task);
    }
    mep_request_t request = nullptr;
    COLL_OK(found_, mep_iallreduce(task.own.data(), task.result.data(), sum.count, MEP_INT64,
                                   MEP_SUM, comm, nullptr, &request));
    begun(task, request);
  }

  void begun(Task& task, mep_request_t request) {
    if (request == nullptr) return;
    requests_.push_back(request);
    owners_.push_back(&task);
  }

  // --- Wait

  // Looks after what is under way in one of several ways, each of which ends after `ms` at most.
  void look(uint32_t ms) {
    if (requests_.empty()) return;
    const size_t one = own_.below(requests_.size());
    const uint64_t how = own_.below(4);
    if (how == 0) return wait_for_any(ms);
    if (how == 1) return wait_for_all(ms);
    mep_result_t result = MEP_SUCCESS;
    if (how == 2) {
      result = wait_in(&requests_[one], ms);
      if (requests_[one] != nullptr && result == MEP_IN_PROGRESS) return;
    } else {
      int32_t done = 0;
      result = mep_request_test(&requests_[one], &done, nullptr);
      COLL_CHECK(found_, (done == 1) == (requests_[one] == nullptr));
    }
    ended(one, result);
    sweep();
  }

  void wait_for_any(uint32_t ms) {
    int32_t index = 77;
    mep_op_info_t info;
    mep_op_info_defaults(&info);
    const auto count = static_cast<int32_t>(requests_.size());
    const mep_result_t result = wait_any_in(count, requests_.data(), ms, &index, &info);
    if (index == -1 && result == MEP_IN_PROGRESS) return;
    COLL_CHECK(found_, index >= 0 && index < count && info.result == MEP_SUCCESS);
    if (found_.bad()) return;
    ended(static_cast<size_t>(index), result);
    sweep();
  }

  void wait_for_all(uint32_t ms) {
    std::vector<mep_result_t> results(requests_.size(), 7);
    const mep_result_t all =
        wait_all_in(static_cast<int32_t>(requests_.size()), requests_.data(), ms, results.data());
    bool goes_on = false;
    for (size_t i = 0; i < results.size(); ++i) {
      if (requests_[i] == nullptr) {
        ended(i, results[i]);
      } else {
        goes_on = true;
        COLL_CHECK(found_, results[i] == MEP_IN_PROGRESS);
      }
    }
    COLL_EXPECT(found_, goes_on ? MEP_IN_PROGRESS : MEP_SUCCESS, all);
    sweep();
  }

  void ended(size_t which, mep_result_t result) {
    const Task& task = *owners_[which];
    if (result != MEP_SUCCESS) {
      found_.add("%s: %s (%s)", describe(task).c_str(), mep_result_string(result),
                 mep_last_error());
      return;
    }
    if (requests_[which] != nullptr) return;
    if (task.kind == Task::k_sum) check_sum(task);
    if (task.kind == Task::k_receive && task.message->match != Match::k_any_source) {
      check_struct(task);
      check_content(task, *task.message);
    }
  }

  void sweep() {
    for (size_t i = requests_.size(); i-- > 0;) {
      if (requests_[i] != nullptr) continue;
      requests_.erase(requests_.begin() + static_cast<ptrdiff_t>(i));
      owners_.erase(owners_.begin() + static_cast<ptrdiff_t>(i));
    }
  }

  // --- Check

  std::string describe(const Task& task) const {
    constexpr const char* kNames[] = {"sending", "receiving", "a sum"};
    char text[160];
    if (task.message == nullptr) {
      snprintf(text, sizeof text, "rank %d: a sum of %zu on comm %d", rank_, task.sum->count,
               task.sum->comm);
    } else {
      const Message& m = *task.message;
      snprintf(text, sizeof text, "rank %d: %s %zu bytes, %d to %d, comm %d, tag %d, number %llu",
               rank_, kNames[task.kind], m.bytes(), m.source, m.dest, m.comm, m.tag,
               static_cast<unsigned long long>(m.number));
    }
    return text;
  }

  void add_findings(const Task& task, const Report& of_task) {
    if (of_task.bad()) found_.add("%s:%s", describe(task).c_str(), of_task.text().c_str());
  }

  void check_struct(const Task& task) {
    const Message& message = *task.message;
    Report of_task;
    task.inbox->came(comms_.number_on(message.comm, message.source), message.tag, message.bytes(),
                     of_task, message.dtype);
    add_findings(task, of_task);
  }

  void check_content(const Task& task, const Message& message) {
    Report of_task;
    task.inbox->check(message.bytes(), message.content(seed_), of_task);
    add_findings(task, of_task);
  }

  void check_sum(const Task& task) {
    int64_t members = 0;
    const int64_t ranks = comms_.sum_of_ranks(task.sum->comm, rank_, &members);
    for (size_t i = 0; i < task.sum->count; ++i) {
      if (task.result[i] == static_cast<int64_t>(i) * 7 * members + ranks) continue;
      found_.add("%s: element %zu is %lld", describe(task).c_str(), i,
                 static_cast<long long>(task.result[i]));
      return;
    }
  }

  // Receives from any source, in the order of their calls, have what each source sent in its order.
  void check_any_source() {
    std::map<Key, std::vector<const Message*>> sent;
    for (const Message& message : round_.messages) {
      if (message.match != Match::k_any_source || message.dest != rank_) continue;
      const int source = comms_.number_on(message.comm, message.source);
      sent[{message.comm, message.tag, source, 0}].push_back(&message);
    }
    for (const auto& task : tasks_) {
      if (task->kind != Task::k_receive || task->message->match != Match::k_any_source) continue;
      const mep_message_t& came = task->inbox->message;
      std::vector<const Message*>& left = sent[{task->message->comm, came.tag, came.source, 0}];
      if (left.empty() || came.bytes != left.front()->bytes() || came.dtype != MEP_UINT8) {
        found_.add("%s: has one of %d with tag %d, %llu bytes", describe(*task).c_str(),
                   came.source, came.tag, static_cast<unsigned long long>(came.bytes));
        return;
      }
      check_content(*task, *left.front());
      left.erase(left.begin());
    }
  }

  // The round ends with a shift of all, by one call or in a group beside a sum.
  void exchange() {
    int32_t size = 0;
    const mep_comm_t comm = comms_.at(kDuplicate);
    COLL_OK(found_, mep_comm_size(comm, &size));
    const int dest = (rank_ + round_.shift) % size;
    const int source = (rank_ - round_.shift + size) % size;
    const size_t bytes = round_.exchanged;
    const Bytes content = message_bytes(bytes, static_cast<uint64_t>(rank_));
    Inbox inbox(bytes);
    if (round_.in_group) {
      const int64_t one = 1;
      int64_t sum = 0;
      COLL_OK(found_, mep_group_begin());
      COLL_OK(found_, mep_send(content.data(), bytes, MEP_UINT8, dest, 9, comm, nullptr));
      COLL_OK(found_, mep_allreduce(&one, &sum, 1, MEP_INT64, MEP_SUM, comms_.at(kWorld), nullptr));
      COLL_OK(found_, receive(inbox, source, 9, comm));
      COLL_OK(found_, mep_group_end());
      COLL_CHECK(found_, sum == size);
    } else {
      COLL_OK(found_, mep_sendrecv(content.data(), bytes, dest, 9, inbox.data(), bytes, source, 9,
                                   MEP_UINT8, comm, &inbox.message, nullptr));
    }
    inbox.came(source, 9, bytes, found_);
    inbox.check(bytes, static_cast<uint64_t>(source), found_);
  }

  const Round& round_;
  const uint64_t seed_;
  const int rank_;
  const Comms& comms_;
  RandomStream& own_;
  Report& found_;
  std::vector<std::unique_ptr<Task>> tasks_;  // receives of one queue in the order of their calls
  std::map<Key, std::vector<Task*>> queues_;  // what has not begun
  std::vector<mep_request_t> requests_;       // what is under way
  std::vector<Task*> owners_;                 // of each
};

// --- Programs ---------------------------------------------------------------------------------------

void run_program(int rank, int size, mep_comm_t world, uint64_t seed, size_t rounds,
                 Report& found) {
  Comms comms(rank, size, world, found);
  Plan plan(seed, size);
  RandomStream own(mix(seed, static_cast<uint64_t>(rank) + 99));
  for (size_t i = 0; i < rounds && !found.bad(); ++i) {
    const Round round = plan.next();
    auto run = std::make_unique<RoundRun>(round, seed, rank, comms, own, found);
    run->run();
    // Requests that are still under way have their buffers there.
    if (found.bad()) (void)run.release();
  }
  // A receive from anybody may end when all others have left.
  if (!found.bad()) COLL_OK(found, mep_barrier(world, nullptr));
  comms.destroy(found);
}

void programs(uint32_t flags) {
  for (size_t program = 0; program < slice(1, 200); ++program) {
    for (const int size : {2, 3, 4, 8}) {
      if (only_size() != 0 && only_size() != size) continue;
      const uint64_t seed = mix(mix(test_seed(), program), static_cast<uint64_t>(size) + flags);
      enable_delays(seed, 16);
      Report report;
      with_rank_threads(size, patient_config(flags), report,
                        [&](int rank, mep_comm_t comm, Report& found) {
                          run_program(rank, size, comm, seed, size < 8 ? 24 : 10, found);
                        });
      enable_delays(0, 0);
      if (report.bad()) {
        fail_msg("MEP_TEST_SEED=%llu, program %zu, %d ranks, flags %u:%s",
                 static_cast<unsigned long long>(test_seed()), program, size, flags,
                 report.text().c_str());
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  mep_test::read_arguments(argc, argv);
  (void)mep_test::test_seed();
  const CMUnitTest tests[] = {
      cmocka_unit_test(both<programs>),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
