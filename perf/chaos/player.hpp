// One rank of a program: makes the calls that the program says, as a user's process would, and writes
// down what each returned. It looks at its own data itself; what ranks must have in common is judged
// later, from all journals.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "buffers.hpp"
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

struct Part {
  const Program* program = nullptr;
  uint32_t slot = 0;
  uint32_t generation = 0;  // of the process, from 0
  Journal* journal = nullptr;
  std::string job;
  mep_comm_t world = nullptr;  // of a rank that is a thread
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
  };
  struct Said {
    mep_result_t result = MEP_SUCCESS;
    bool has_info = false;
    mep_op_info_t info{};
    uint64_t contributors = 0;  // ranks
    uint64_t failed = 0;
  };

  // player.cpp
  bool open();
  void run(uint32_t step);
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
  void finish_batch(std::vector<struct PendingCall>& pending, bool one_comm);
  void end_call(const Call& call, uint32_t part, const CallBuffers& buffers, const Comm& comm,
                const Said& said);
  Said ask(mep_comm_t comm, mep_result_t result);
  uint8_t* source_memory(const Comm& comm, size_t bytes);

  // player_messages.cpp
  void messages();
  void finish_message(struct PendingMessage* message);

  // player_members.cpp
  void agree(const Step& step);
  void split(const Step& step);
  void leave();
  void abort(const Step& step);
  void free_comm(uint32_t number);
  void revoke(const Step& step);
  void evict(const Step& step);
  void be_late(const Step& step);
  void mismatch(const Step& step);
  void recover(const Step& step);
  void grow(const Step& step);
  // The highest value of all, over all who are there (ranks in *live). retried: somebody was told news.
  bool sync(uint32_t number, uint64_t* value, uint64_t* live = nullptr, bool* retried = nullptr);
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
  std::map<mep_comm_t, std::pair<uint8_t*, size_t>> memory_;
};

}  // namespace mep::programs
