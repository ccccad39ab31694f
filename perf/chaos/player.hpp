// One rank of a program: makes the calls that the program says, as a user's process would, and writes
// down what each returned. It looks at its own data itself; what ranks must have in common is judged
// later, from all journals.
#pragma once

#include <barrier>
#include <cstdint>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "buffers.hpp"
#include "device.hpp"
#include "journal.hpp"
#include "numbers.hpp"
#include "program.hpp"

namespace mep::programs {

// Generous: the machine may be busy. A rank that waits so long without a cause has met a fault of the library.
constexpr uint32_t kNormalTimeoutMs = 45000;

class EpPlayer;

// Alters what a rank does in a step, to see that the oracle sees it: "data" flips a bit that it gives,
// "skip" leaves the step out, "verdict" writes another result down, "crash" ends it.
struct Sabotage {
  std::string what;
  uint32_t slot = kNobody;
  uint32_t step = 0;
};

// Ranks that are threads, with GPUs: calls that free memory of a GPU wait for the kernels of all ranks there, which may wait
// for a rank that the call holds up.
struct Quiet {
  explicit Quiet(uint32_t ranks) : idle(ranks), ended(ranks) {}
  std::barrier<> idle;  // of the ranks that still have steps
  std::latch ended;
};

struct Part {
  const Program* program = nullptr;
  uint32_t slot = 0;
  uint32_t generation = 0;  // of the process, from 0
  Journal* journal = nullptr;
  std::string job;
  mep_comm_t world = nullptr;      // of a rank that is a thread
  std::shared_ptr<Device> device;  // likewise
  std::shared_ptr<Quiet> quiet;    // likewise
  Sabotage sabotage;
};

mep_comm_config_t config_of(const Program& program, uint32_t slot);

class Player {
 public:
  explicit Player(const Part& part);
  ~Player();
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;
  // Until the end of the program. The exit status of the rank's process.
  int play();

 private:
  friend class EpPlayer;

  struct Comm {
    mep_comm_t handle = nullptr;
    Members members;
    // On GPUs, by epoch: ranks that are there, and those whose end an operation in it told.
    std::map<uint64_t, uint64_t> present;
    std::map<uint64_t, uint64_t> told;
  };
  struct Said {
    mep_result_t result = MEP_SUCCESS;
    bool has_info = false;
    mep_op_info_t info{};
    uint64_t contributors = 0;  // ranks
    uint64_t failed = 0;
  };

  struct PendingCall;

  // player.cpp
  bool open();
  void run(uint32_t step);
  void act(const Step& step);
  // On GPUs: all memory of the device may be taken again.
  void recycle();
  // Until no rank of this process has work on a GPU.
  void meet_idle();
  // Until all ranks of this process have ended their steps, also after an abort.
  void end_steps();
  void close();
  void arm_faults(uint32_t step);
  void act_on_faults(uint32_t step);
  [[noreturn]] void die();
  void pause(uint32_t percent);
  bool lies(const char* what) const;
  const Fault* fault_of(uint32_t step, FaultKind kind) const;

  // player_calls.cpp
  void call(const Call& call, uint32_t part);
  void tamper(CallBuffers* buffers) const;
  void batch(const Step& step, bool aborts = false);
  void start_call(const Call& call, uint32_t part, std::vector<PendingCall>* pending);
  void finish_batch(std::vector<PendingCall>& pending, bool one_comm);
  void end_on_stream(std::vector<PendingCall>& ended);
  static Said wait_for(mep_request_t* request);
  // mep_comm_async_result tells one of these failures of operations that have ended, or none where there are none.
  void check_async(uint32_t number, const std::vector<mep_result_t>& failures);
  // On GPUs: who is in a success is not told; the view of the epoch tells it.
  static void note_present(Comm* comm);
  // Writes down whom the comm's view has.
  void note_view(What what, uint32_t part, uint32_t comm);
  static void add_contributors(Comm* comm, Said* said);
  void end_call(const Call& call, uint32_t part, const CallBuffers& buffers, const Comm& comm,
                const Said& said);
  Said ask(mep_comm_t comm, mep_result_t result);
  uint8_t* source_memory(const Comm& comm, size_t bytes);

  // player_messages.cpp
  void messages();
  struct PendingMessage;
  void start_message(PendingMessage* message);
  void finish_message(PendingMessage* message);
  void exchange_on_stream(const std::vector<std::unique_ptr<PendingMessage>>& pending);
  void check_message(const PendingMessage& message, mep_result_t result);

  // player_members.cpp
  void agree(const Step& step);
  void split(const Step& step);
  void leave();
  void abort(const Step& step);
  void free_comm(uint32_t number);
  void revoke(const Step& step);
  void evict(const Step& step);
  bool posts_to_queues(mep_comm_t comm) const;
  void be_late(const Step& step);
  void mismatch(const Step& step);
  void recover(const Step& step);
  void grow(const Step& step);
  // The highest value of all, over all who are there (ranks in *live). retried: somebody was told news.
  bool sync(uint32_t number, uint64_t* value, uint64_t* live = nullptr, bool* retried = nullptr);
  bool sync_hosts(uint32_t number);
  Said highest_of_all(Comm* comm, uint64_t value, uint64_t* highest);
  bool add_comm(uint32_t number, mep_comm_t handle);
  void attach_all(bool is_new);

  // Writing.
  void begin(What what, uint32_t part, uint32_t comm);
  void end(What what, uint32_t part, uint32_t comm, const Comm* members, const Said& said,
           uint64_t digest = 0, const std::string& text = {});
  void wrong(What what, uint32_t part, uint32_t comm, const std::string& text);
  Record& next_record(Entry entry, What what, uint32_t part, uint32_t comm);
  void push();
  // After a result with which nothing can go on.
  void note_reported(What what, uint32_t comm, const Said& said);
  void judge_end(What what, mep_result_t result);

  const Part part_;
  const Program& program_;
  Journal& journal_;
  RandomStream own_;
  std::map<uint32_t, Comm> comms_;
  uint32_t world_ = kWorld;
  uint32_t step_ = 0;
  bool over_ = false;
  bool joined_ = false;
  bool left_ = false;  // by the program
  std::unique_ptr<EpPlayer> ep_;
  std::shared_ptr<Device> device_;  // null: on hosts
  std::map<mep_comm_t, std::pair<uint8_t*, size_t>> memory_;
};

}  // namespace mep::programs
