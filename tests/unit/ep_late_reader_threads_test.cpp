// A rank that reads others' terms where they lie, and does so late: after a view change their owner has received its next
// dispatch and writes them anew. The late rank's combine fails, unless its sums are right.
// labels: quick threads tsan asan
#include <sys/mman.h>

#include "support/coll_ranks.hpp"
#include "support/ep_halves.hpp"

using namespace mep_test;

namespace {

constexpr uint32_t kHidden = 1024;  // a row of float32 is a page
constexpr uint32_t kTokens = 2;
constexpr int kOwner = 0;
constexpr int kReader = 1;
constexpr int kVictim = 2;

enum class Change {
  kNone,     // the owner's next dispatch only reports the victim's end
  kTimeout,  // the owner's next dispatch waits for the reader in vain
  kLoss,     // the victim ends while the owner's next dispatch is under way
  kTwo,      // the victim's end is reported, then the owner waits in vain
};

struct Case {
  const char* name;
  mep_ep_layout_t layout;
  uint32_t flags;
  Change change;
  bool in_the_sum = false;  // the reader is late within its sum, else before it
  bool elsewhere = false;   // the reader has no tokens at the owner's expert
  mep_ep_loss_t on_loss = MEP_EP_LOSS_FAILS;
};

// Threads meet here; what each wrote before is seen by the others afterwards.
class Stage {
 public:
  void reach() { reached_.store(true); }
  void await(Report& report) const {
    for (int i = 0; !reached_.load(); ++i) {
      if (i > 500'000) return report.add("a stage of a test was not reached");
      pause_us(200);
    }
  }

 private:
  std::atomic<bool> reached_{false};
};

// Memory whose first page stops the thread that writes to it, until it is let go.
class Stopping {
 public:
  Stopping()
      : pages_(static_cast<uint8_t*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    here_.store(this);
    struct sigaction action {};
    action.sa_sigaction = [](int, siginfo_t* info, void*) { here_.load()->stop(info->si_addr); };
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before_);
  }
  ~Stopping() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(pages_, kBytes);
  }
  Stopping(const Stopping&) = delete;
  Stopping& operator=(const Stopping&) = delete;

  float* data() { return reinterpret_cast<float*>(pages_); }
  void arm() { mprotect(pages_, kBytes / kTokens, PROT_NONE); }
  Stage stopped, let_go;

 private:
  static constexpr size_t kBytes = size_t{kTokens} * kHidden * sizeof(float);

  void stop(const void* at) {
    Report unused;
    if (at < pages_ || at >= pages_ + kBytes) {
      sigaction(SIGSEGV, &before_, nullptr);  // another fault: it strikes again
      return;
    }
    stopped.reach();
    let_go.await(unused);
    mprotect(pages_, kBytes / kTokens, PROT_READ | PROT_WRITE);
  }

  static inline std::atomic<Stopping*> here_{nullptr};
  uint8_t* const pages_;
  struct sigaction before_ {};
};

// One rank's buffer. All tokens go to the expert of the owner, or the reader's to its own.
class Rank {
 public:
  Rank(const Case& c, int rank, mep_comm_t comm, Report& report) : report_(report) {
    if (c.elsewhere && rank == kReader) std::fill_n(experts_, kTokens, kReader);
    mep_ep_config_t config;
    mep_ep_config_defaults(&config);
    config.layout = c.layout;
    config.max_tokens_per_rank = kTokens;
    config.hidden = kHidden;
    config.top_k = 1;
    config.num_experts = 3;
    config.experts_per_rank = 1;
    config.num_buffers = 1;
    config.input_type = MEP_FLOAT32;
    config.wire_type = MEP_FLOAT32;
    config.combine_type = MEP_FLOAT32;
    config.on_loss = c.on_loss;
    COLL_OK(report, mep_ep_create(comm, &config, &ep_));
    if (ep_ == nullptr) return;
    COLL_OK(report, mep_ep_handle_create(ep_, 0, &handle_));
    COLL_OK(report, mep_ep_handle_create(ep_, 0, &next_));
    mep_ep_view_defaults(&view_);
    COLL_OK(report, mep_ep_buffer_view(ep_, 0, &view_));
  }
  ~Rank() {
    if (ep_ == nullptr) return;
    COLL_OK(report_, mep_ep_handle_destroy(next_));
    COLL_OK(report_, mep_ep_handle_destroy(handle_));
    COLL_OK(report_, mep_ep_destroy(ep_));
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  mep_result_t dispatch(bool is_next, bool sends, bool receives, uint32_t timeout_ms = 0) {
    DispatchTokens send;
    DispatchRows receive;
    send.num_tokens = kTokens;
    send.x = x_.data();
    send.topk_idx = experts_;
    receive.timeout_ms = timeout_ms;
    return dispatch_halves(is_next ? next_ : handle_, sends ? &send : nullptr,
                           receives ? &receive : nullptr, nullptr);
  }
  // The library's memory for y, all of it.
  void make_y(float value) {
    if (view_.combine_input == nullptr) return;
    std::fill_n(static_cast<float*>(view_.combine_input), size_t{3} * kTokens * kHidden, value);
  }
  mep_result_t send_combine() {
    CombineTerms send;
    send.y = view_.combine_input;
    return combine_halves(handle_, &send, nullptr, nullptr);
  }
  mep_result_t receive_combine(float* out) {
    CombineSums receive;
    receive.out = out;
    return combine_halves(handle_, nullptr, &receive, nullptr);
  }
  // The ranks that had no part in the last operation.
  uint64_t lacking(mep_result_t expected) {
    mep_op_info_t info;
    uint64_t failed = 0;
    mep_op_info_defaults(&info);
    info.failed = &failed;
    info.failed_words = 1;
    COLL_OK(report_, mep_ep_last_op(ep_, 0, &info));
    COLL_CHECK(report_, info.result == expected);
    return failed;
  }

 private:
  Report& report_;
  mep_ep_t ep_ = nullptr;
  mep_ep_handle_t handle_ = nullptr, next_ = nullptr;
  mep_ep_view_t view_{};
  std::vector<float> x_ = std::vector<float>(size_t{kTokens} * kHidden, 1.0F);
  int64_t experts_[kTokens] = {kOwner, kOwner};
};

constexpr float kTerm = 3.0F;
constexpr float kNewTerm = 7.0F;

// Goes to where the owner may write its terms anew, and does it.
void go_on(const Case& c, Rank& rank, mep_comm_t comm, Stage& dispatching, Report& report) {
  constexpr uint32_t kShortMs = 30;
  uint64_t epoch = 0;
  COLL_OK(report, mep_comm_epoch(comm, &epoch));
  if (c.change == Change::kLoss) COLL_OK(report, rank.dispatch(true, true, false));
  dispatching.reach();
  if (c.change == Change::kNone || c.change == Change::kTwo) {
    COLL_OK(report, mep_comm_wait_view(comm, epoch, 60'000));
    COLL_EXPECT(report, MEP_ERR_PEER_FAILED, rank.dispatch(true, true, true));
    if (c.change == Change::kNone) return;  // nothing was received
  }
  if (c.change == Change::kLoss) {
    const bool partial = c.on_loss == MEP_EP_LOSS_PARTIAL;
    const mep_result_t result = rank.dispatch(true, false, true);
    COLL_CHECK(report, result == MEP_ERR_PEER_FAILED || (partial && result == MEP_PARTIAL));
  } else {
    COLL_EXPECT(report, MEP_ERR_TIMEOUT, rank.dispatch(true, true, true, kShortMs));
  }
  rank.make_y(kNewTerm);
}

void check_late(const Case& c, Rank& rank, mep_result_t result, const float* out, Report& report) {
  const bool pushed = (c.flags & kPutOnly) != 0;
  const bool is_intact = pushed || c.elsewhere || c.change == Change::kNone;
  COLL_CHECK(report, result == (is_intact ? MEP_SUCCESS : MEP_ERR_PEER_FAILED));
  COLL_CHECK(report, rank.lacking(result) == (is_intact ? 0 : 1U << kOwner));
  const float expected = is_intact ? kTerm : 0;  // the owner's terms are left out
  for (size_t i = 0; i < size_t{kTokens} * kHidden; ++i) {
    if (out[i] == expected) continue;
    return report.add("%s: element %zu of the sum is %g, not %g", c.name, i,
                      static_cast<double>(out[i]), static_cast<double>(expected));
  }
}

void run_case(const Case& c) {
  Report report;
  Stage victim_combined, combined, dispatching, overwritten;
  Stopping out;
  with_rank_threads(3, patient_config(c.flags), report,
                    [&](int at, mep_comm_t comm, Report& found) {
                      Rank rank(c, at, comm, found);
                      COLL_OK(found, rank.dispatch(false, true, true));
                      rank.make_y(kTerm);
                      COLL_OK(found, rank.send_combine());
                      if (at == kVictim) {
                        std::vector<float> own(size_t{kTokens} * kHidden);
                        COLL_OK(found, rank.receive_combine(own.data()));
                        victim_combined.reach();
                        dispatching.await(found);
                        if (c.change == Change::kTimeout) return overwritten.await(found);
                        COLL_OK(found, mep_comm_abort(comm));
                      }
                      if (at == kOwner) {
                        std::vector<float> own(size_t{kTokens} * kHidden);
                        COLL_OK(found, rank.receive_combine(own.data()));
                        victim_combined.await(found);
                        if (c.in_the_sum) out.stopped.await(found);
                        go_on(c, rank, comm, dispatching, found);
                        overwritten.reach();
                        out.let_go.reach();
                        combined.await(found);
                      }
                      if (at == kReader) {
                        if (c.in_the_sum) {
                          out.arm();
                        } else {
                          overwritten.await(found);
                        }
                        const mep_result_t result = rank.receive_combine(out.data());
                        check_late(c, rank, result, out.data(), found);
                        combined.reach();
                      }
                    });
  if (report.bad())
    fail_msg("%s%s%s", c.name, c.in_the_sum ? " in the sum" : "", report.text().c_str());
}

void run_cases(uint32_t flags) {
  const Case cases[] = {
      {"packed, a dispatch in vain", MEP_EP_LOW_LATENCY, flags, Change::kTimeout, false},
      {"slotted, a dispatch in vain", MEP_EP_SLOTTED, flags, Change::kTimeout, false},
      {"slotted, a loss", MEP_EP_SLOTTED, flags, Change::kLoss},
      {"packed, two changes", MEP_EP_LOW_LATENCY, flags, Change::kTwo},
      {"slotted, two changes", MEP_EP_SLOTTED, flags, Change::kTwo},
      {"packed, a report", MEP_EP_LOW_LATENCY, flags, Change::kNone},
      {"throughput, a dispatch in vain", MEP_EP_HIGH_THROUGHPUT, flags, Change::kTimeout},
      {"throughput, two changes", MEP_EP_HIGH_THROUGHPUT, flags, Change::kTwo, false},
  };
  for (Case c : cases) {
    run_case(c);
    c.elsewhere = true;
    run_case(c);
    c.elsewhere = false;
    c.in_the_sum = true;
    run_case(c);
  }
}

void mapped(void**) {
  run_cases(0);
}
void mapped_partial(void**) {
  Case c{"slotted, a loss", MEP_EP_SLOTTED, 0, Change::kLoss};
  c.on_loss = MEP_EP_LOSS_PARTIAL;
  run_case(c);
}
void by_put_alone(void**) {
  run_cases(kPutOnly);
}

}  // namespace

int main(int argc, char** argv) {
  read_arguments(argc, argv);
  const CMUnitTest tests[] = {cmocka_unit_test(mapped), cmocka_unit_test(mapped_partial),
                              cmocka_unit_test(by_put_alone)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
