// labels: gate
// Posters, ringers, NIC and faults in orders drawn from a seed: 100'000 schedules, in the soak a million.
//
// Posters are fibers that may be stopped before each memory operation of the queue. A request's bytes stay in the
// poster's store buffer until it releases something, so a publication without release is seen. The oracle is a list of
// what was called, and when. A failure prints the seed; MEP_TEST_SEED begins there.
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "support/cmocka_cpp.hpp"
#include "support/fiber.hpp"
#include "support/model_nic.hpp"
#include "support/random_numbers.hpp"
#include "transport/gpu_queue/peer.hpp"

namespace {

using namespace mep::gpu_queue;  // NOLINT(google-build-using-namespace)
using mep_reference::RandomStream;
using mep_test::Fiber;
using mep_test::ModelNic;

// --- Memory that others may change between any two operations ----------------------------------------

// A request that a fiber has stored and not released.
struct StoreBuffer {
  Request* slot = nullptr;
  Request request;
};
StoreBuffer* running_buffer;
uint64_t now;  // counts operations

void drain() {
  if (running_buffer->slot == nullptr) return;
  *running_buffer->slot = running_buffer->request;
  running_buffer->slot = nullptr;
}

struct SteppedMemory {
  using Real = SystemMemory;
  static constexpr uint32_t kPollsPerLook = 2;
  static constexpr uint64_t kAbortLookNs = 0;

  static uint64_t load(const uint64_t* word) { return Fiber::yield(), Real::load(word); }
  static uint64_t load_acquire(const uint64_t* word) {
    return Fiber::yield(), Real::load_acquire(word);
  }
  static Big32 load_completion(const Big32* word) {
    return Fiber::yield(), Real::load_completion(word);
  }
  static uint64_t load_abort(const uint64_t* word) {
    return Fiber::yield(), Real::load_abort(word);
  }
  static bool take(uint64_t* count, uint64_t* expected, uint64_t next) {
    return Fiber::yield(), Real::take(count, expected, next);
  }
  static void store_first(uint64_t* word, uint64_t value) {
    Fiber::yield(), Real::store_first(word, value);
  }
  static void fill(Request* slot, const Request& request) {
    Fiber::yield();
    drain();
    *running_buffer = {slot, request};
  }
  static void store_release(uint64_t* word, uint64_t value) {
    release(), Real::store_release(word, value);
  }
  static uint32_t exchange(uint32_t* word, uint32_t value) {
    return release(), Real::exchange(word, value);
  }
  static void raise(uint64_t* word, uint64_t value) { release(), Real::raise(word, value); }
  static void store_record(Big32* record, Big32 value) {
    release(), Real::store_record(record, value);
  }
  static void ring(uint64_t* doorbell, uint64_t value) { release(), Real::ring(doorbell, value); }
  static uint64_t nanoseconds() { return now; }
  static void pause(uint32_t) { Fiber::yield(); }
  static uint32_t lane() { return 0; }
  static void meet() {}
  static uint32_t from_first(uint32_t value) { return value; }

 private:
  static void release() {
    Fiber::yield();
    drain();
  }
};

// --- A schedule --------------------------------------------------------------------------------------

constexpr uint32_t kMaxQueues = 2;
constexpr uint32_t kMaxPosters = 4;
constexpr uint32_t kMaxCalls = 32;
constexpr uint32_t kCellBytes = 96;
constexpr uint32_t kLocalKey = 17;
constexpr uint32_t kRemoteKey = 29;
constexpr uint64_t kStepLimit = 300'000;

enum class Kind : uint32_t { kPut, kSignal, kAdd, kFlush };

struct Call {
  Kind kind;
  uint32_t queue;
  uint32_t poster;
  uint32_t bytes;
  uint64_t deadline;
  std::optional<Status> status;  // once it has returned
  bool begun = false;
  uint32_t before = 0;  // calls on its queue, a bit each, that had returned well when it began
  uint32_t landed = 0;
};

enum class Nic : uint32_t { kHealthy, kPauses, kFails, kNeverCompletes };

struct OneQueue {
  std::unique_ptr<Request[]> ring;
  std::unique_ptr<uint64_t[]> ready;
  CompletionEntry completion;
  DoorbellRecord record;
  uint64_t doorbell = 0;
  uint64_t first = 0;
  Queue queue{};
  std::optional<ModelNic> nic;
  Nic mode = Nic::kHealthy;
  uint64_t paused_from = UINT64_MAX;
  uint64_t paused_until = 0;
  bool repeats = false;
};

class Schedule {
 public:
  explicit Schedule(uint64_t seed) : random_(seed) {}

  // Empty, or what went wrong.
  std::string run() {
    now = 0;
    make_calls();
    for (uint32_t q = 0; q < queues_; ++q) make_queue(&rigs_[q]);
    for (uint32_t p = 0; p < posters_; ++p)
      fibers_.push_back(std::make_unique<Fiber>([this, p] { call_all(p); }));
    if (!play()) return violation_;
    // The queue is whole after any outcome: posters that gave up hold nothing.
    fibers_.clear();
    fibers_.push_back(std::make_unique<Fiber>([this] { close(); }));
    posters_ = 1;
    if (play()) check_memory();
    return violation_;
  }

 private:
  void make_calls() {
    queues_ = 1 + random_.below(kMaxQueues);
    posters_ = 1 + random_.below(kMaxPosters);
    const uint32_t count = 1 + random_.below(random_.percent(50) ? 8 : kMaxCalls);
    if (random_.percent(15)) abort_at_ = random_.below(2000);
    const bool all_have_deadlines = random_.percent(20);
    for (uint32_t i = 0; i < count; ++i) {
      Call call{};
      const uint32_t kind = random_.below(10);
      call.kind = kind < 5   ? Kind::kPut
                  : kind < 7 ? Kind::kSignal
                  : kind < 8 ? Kind::kAdd
                             : Kind::kFlush;
      call.queue = random_.below(queues_);
      call.poster = random_.below(posters_);
      call.bytes = call.kind == Kind::kPut
                       ? 1 + random_.below(random_.percent(50) ? kMaxInline : kCellBytes)
                       : 8;
      call.deadline = all_have_deadlines || random_.percent(15) ? random_.below(3000) : UINT64_MAX;
      calls_.push_back(call);
    }
    for (auto& byte : source_) byte = static_cast<uint8_t>(1 + random_.below(255));
    for (auto& weight : weights_) weight = 1 + random_.below(random_.percent(30) ? 40 : 4);
  }

  void make_queue(OneQueue* rig) {
    const uint64_t firsts[] = {0, 0xffff, 0x1'0000, 0x7fff, 0xffff'ffff, uint64_t{7} << 40};
    rig->queue.entries = 2u << random_.below(3);
    rig->first = firsts[random_.below(6)];
    if (rig->first != 0) rig->first -= random_.below(6);
    rig->ring.reset(new Request[rig->queue.entries]);
    rig->queue.ring = rig->ring.get();
    rig->ready.reset(new uint64_t[rig->queue.entries]());
    rig->queue.ready = rig->ready.get();
    rig->queue.record = &rig->record;
    rig->queue.doorbell = &rig->doorbell;
    rig->queue.queue_pair = 0x100 + random_.below(1 << 20);
    make_empty(&rig->queue, &rig->completion, rig->first);
    rig->nic.emplace(
        mep_test::NicWiring{rig->ring.get(), &rig->completion, &rig->record, &rig->doorbell,
                            rig->queue.queue_pair, rig->queue.entries, rig->first},
        mep_test::NicMemory{kLocalKey, source_.data(), source_.size()},
        mep_test::NicMemory{kRemoteKey, target_.data(), target_.size()});
    rig->nic->on_executed = [this, rig](uint64_t, uint64_t remote) { land(rig, remote); };
    rig->repeats = random_.percent(30);
    choose_fault(rig);
  }

  void choose_fault(OneQueue* rig) {
    const uint32_t chance = random_.below(100);
    if (chance < 25) {
      rig->mode = Nic::kFails;
      rig->nic->fails_at = rig->first + random_.below(12);
      rig->nic->flushes = random_.percent(50);
    } else if (chance < 50) {
      rig->mode = Nic::kPauses;
      rig->paused_from = random_.below(500);
      rig->paused_until = rig->paused_from + random_.below(5000);
    } else if (chance < 60) {
      rig->mode = Nic::kNeverCompletes;
      rig->paused_from = random_.below(500);
      rig->paused_until = UINT64_MAX;
      if (random_.percent(50)) abort_at_ = random_.below(6000);
      if (abort_at_ != UINT64_MAX) return;
      for (Call& call : calls_) call.deadline = std::min<uint64_t>(call.deadline, 6000);
    }
  }

  // --- Steps ---

  // Until all fibers have ended. False: something went wrong.
  bool play() {
    for (const uint64_t limit = now + kStepLimit; now < limit; ++now) {
      if (now == abort_at_) abort_word_ = 1;
      uint32_t running = 0;
      for (const auto& fiber : fibers_) running += fiber->ended() ? 0 : 1;
      if (running == 0) return true;
      step(draw());
      for (uint32_t q = 0; q < queues_; ++q) {
        if (!rigs_[q].nic->violation().empty()) wrong("%s", rigs_[q].nic->violation().c_str());
      }
      if (!violation_.empty()) return false;
    }
    wrong("a wait does not end");
    return false;
  }

  // A poster, or the NIC of a queue behind them.
  uint32_t draw() {
    uint32_t total = 0;
    for (uint32_t i = 0; i < posters_ + queues_; ++i) total += weights_[i];
    uint32_t at = random_.below(total);
    uint32_t actor = 0;
    while (at >= weights_[actor]) at -= weights_[actor++];
    return actor;
  }

  void step(uint32_t actor) {
    if (actor < posters_) {
      running_buffer = &buffers_[actor];
      if (!fibers_[actor]->ended()) fibers_[actor]->resume();
      return;
    }
    OneQueue& rig = rigs_[actor - posters_];
    if (now >= rig.paused_from && now < rig.paused_until) return;
    switch (random_.below(rig.repeats ? 4 : 3)) {
      case 0:
        rig.nic->look();
        break;
      case 1:
        rig.nic->execute();
        break;
      case 2:
        rig.nic->complete();
        break;
      default:
        if (random_.percent(20)) rig.nic->repeat(random_.bits());
    }
  }

  // --- Calls ---

  RemoteMemory cell(uint32_t call) {
    return {static_cast<uint64_t>(reinterpret_cast<uintptr_t>(target_.data() + kCellBytes * call)),
            kRemoteKey};
  }
  LocalMemory source(uint32_t call) { return {source_.data() + kCellBytes * call, kLocalKey}; }
  static uint64_t value_of(uint32_t call) { return 0x0102030405060700u * (call + 1) + 1; }

  void call_all(uint32_t poster) {
    for (uint32_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i].poster == poster) make(i);
    }
  }

  void make(uint32_t i) {
    Call& call = calls_[i];
    call.before = done_well(call.queue);
    call.begun = true;
    const Patience patience{call.deadline, &abort_word_, 1};
    QueuePeer<SteppedMemory> peer(&rigs_[call.queue].queue, patience);
    SendQueue<SteppedMemory> queue(&rigs_[call.queue].queue, patience);
    Status status = Status::kOk;
    switch (call.kind) {
      case Kind::kPut:
        status = peer.put(cell(i), source(i), call.bytes);
        break;
      case Kind::kSignal:
        status = peer.signal(cell(i), value_of(i));
        break;
      case Kind::kAdd:
        status = queue.post(fetch_add(
            cell(i), value_of(i), {source_.data() + kMaxCalls * kCellBytes + 8 * i, kLocalKey}));
        break;
      case Kind::kFlush:
        status = peer.flush();
        if (status == Status::kOk) expect_landed(call.queue, call.before, "flush");
    }
    call.status = status;
    expect_reason(rigs_[call.queue], status, call.deadline);
  }

  uint32_t done_well(uint32_t queue) const {
    uint32_t calls = 0;
    for (uint32_t i = 0; i < calls_.size(); ++i) {
      const Call& call = calls_[i];
      if (call.queue == queue && call.kind != Kind::kFlush && call.status == Status::kOk)
        calls |= 1u << i;
    }
    return calls;
  }

  // The NIC has executed a request.
  void land(OneQueue* rig, uint64_t remote) {
    if (remote == 0) return;  // a nop
    const auto i = static_cast<uint32_t>((remote - cell(0).address) / kCellBytes);
    if (i >= calls_.size() || &rigs_[calls_[i].queue] != rig)
      return wrong("a request that nobody posted");
    Call& call = calls_[i];
    if (!call.begun || call.status.value_or(Status::kOk) != Status::kOk)
      wrong("call %u was refused and landed", i);
    if (++call.landed != 1) wrong("call %u landed twice", i);
    if (call.kind == Kind::kSignal) expect_landed(call.queue, call.before, "signal");
  }

  void expect_landed(uint32_t queue, uint32_t before, const char* what) {
    for (uint32_t i = 0; i < calls_.size(); ++i) {
      if ((before >> i & 1) != 0 && calls_[i].landed != 1)
        wrong("%s on queue %u before call %u", what, queue, i);
    }
  }

  void expect_reason(OneQueue& rig, Status status, uint64_t deadline) {
    if (status == Status::kTimedOut && now <= deadline) wrong("timed out before the deadline");
    if (status == Status::kAborted && abort_word_ == 0) wrong("aborted by nobody");
    if (status == Status::kFailed) expect_evidence(rig);
  }

  void expect_evidence(OneQueue& rig) {
    QueueError error{};
    if (!SendQueue<SteppedMemory>(&rig.queue, {}).error(&error)) wrong("failed without evidence");
    if (!rig.nic->failed()) wrong("failed without an error");
    const auto behind = static_cast<uint16_t>(error.wqe_counter - rig.nic->fails_at);
    if (behind >= rig.queue.entries || (behind != 0 && !rig.nic->flushes))
      wrong("evidence of another request");
    const bool flushed =
        error.syndrome == ModelNic::kFlushed && error.vendor == ModelNic::kVendorOfFlushed;
    const bool original = error.syndrome == rig.nic->syndrome && error.vendor == rig.nic->vendor;
    if (!original && !(flushed && rig.nic->flushes))
      wrong("syndrome 0x%x, vendor 0x%x", error.syndrome, error.vendor);
  }

  // A last flush of each queue, whatever the others met.
  void close() {
    for (uint32_t q = 0; q < queues_; ++q) {
      OneQueue& rig = rigs_[q];
      const bool stands = rig.mode == Nic::kNeverCompletes;
      const uint64_t deadline = stands ? now + 5000 : UINT64_MAX;
      const Status status = QueuePeer<SteppedMemory>(&rig.queue, {deadline, nullptr, 0}).flush();
      expect_reason(rig, status, deadline);
      if (status == Status::kOk) expect_landed(q, done_well(q), "last flush");
      if (!stands && status != (rig.nic->failed() ? Status::kFailed : Status::kOk)) {
        wrong("the last flush gives %u", static_cast<uint32_t>(status));
      }
    }
  }

  void check_memory() {
    std::vector<uint8_t> expected(target_.size());
    for (uint32_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i].landed == 0) continue;
      const uint64_t value = value_of(i);
      const void* from = calls_[i].kind == Kind::kPut ? source(i).address : &value;
      memcpy(expected.data() + kCellBytes * i, from, calls_[i].bytes);
    }
    if (memcmp(expected.data(), target_.data(), expected.size()) != 0)
      wrong("other bytes in the target");
  }

  template <typename... Arguments>
  void wrong(const char* format, Arguments... arguments) {
    if (!violation_.empty()) return;
    char text[300];
    if constexpr (sizeof...(arguments) == 0) {
      violation_ = format;
    } else {
      snprintf(text, sizeof text, format, arguments...);
      violation_ = text;
    }
  }

  RandomStream random_;
  std::string violation_;
  uint32_t queues_ = 0;
  uint32_t posters_ = 0;
  std::array<uint32_t, kMaxPosters + kMaxQueues> weights_{};
  uint64_t abort_at_ = UINT64_MAX;
  uint64_t abort_word_ = 0;
  std::vector<Call> calls_;
  std::array<OneQueue, kMaxQueues> rigs_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::array<StoreBuffer, kMaxPosters> buffers_{};
  // Local memory: what is put, and where the values before additions go.
  alignas(16) std::array<uint8_t, kMaxCalls*(kCellBytes + 8)> source_{};
  alignas(16) std::array<uint8_t, kMaxCalls * kCellBytes> target_{};
};

uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void schedules(void**) {
  const uint64_t first = number_of("MEP_TEST_SEED", 1);
  const uint64_t count = number_of("MEP_TEST_SOAK", 0) != 0 ? 1'000'000 : 100'000;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const std::string violation = std::make_unique<Schedule>(seed)->run();
    if (!violation.empty()) {
      fail_msg("MEP_TEST_SEED=%llu: %s", static_cast<unsigned long long>(seed), violation.c_str());
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(schedules)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
