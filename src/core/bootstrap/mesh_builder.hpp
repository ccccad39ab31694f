// One rank's way from its place to links with all others.
//
//   - Every rank listens; it connects to all lower ranks and takes in all higher ones.
//   - With a store of the caller, a rank other than 0 gets its link to rank 0 first. Until it has that, the start that
//     the store told it of may be an earlier one: it keeps looking for a later one.
//   - A link exists once both ends have proven themselves (greeting.hpp) and agree. Then, when a rank has all its links, it
//     says READY to all and waits for everybody's READY: so a start succeeds everywhere or
//     nowhere, as far as messages can bring that about.
//   - A rank that finds an error tells all it can reach and lingers a moment for those that come late;
//     a rank that is told passes it on. After its own READY a rank is no longer stopped by late
//     claimants: only these are refused.
//   - A caller over a network can fail nothing before it has proven itself; what it says until then
//     is kept for the text of a start that fails for want of time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/bootstrap/greeting.hpp"
#include "core/bootstrap/launch_page.hpp"
#include "core/bootstrap/rendezvous.hpp"
#include "core/bootstrap/wait_notice.hpp"

namespace mep {

class MeshBuilder {
 public:
  MeshBuilder(const ResolvedConfig& config, const SelfDescription& self, Rendezvous* rendezvous,
              Deadline deadline);

  // *superseded: the start that the caller's store told of is not the present one (success, *out stays empty); another
  // MeshBuilder begins with what the store has now.
  [[nodiscard]] mep_result_t run(Mesh* out, bool* superseded);

 private:
  // A rank's place at the table. Before `linked`, `link` is a connection to a lower rank that has
  // not answered yet.
  struct Seat {
    std::unique_ptr<ControlLink> link;
    std::unique_ptr<Greeting> greeting;
    PeerCredentials credentials;
    uint64_t incarnation = 0;  // that was looked for; 0: any
    bool readable = false;     // the link has bytes, as far as poll() or its other end's frames say
    bool linked = false;
    bool ready = false;
    bool told = false;  // it knows of the failure
    uint64_t next_try_ns = 0;
    uint64_t pause_ns = 0;
    std::string obstacle;          // why it is not linked, as far as known
    bool obstacle_denied = false;  // it would not be let in
    bool refusal_logged = false;
    std::unique_ptr<ControlLink> announcement;
  };
  struct Incoming : mep::Incoming {
    using mep::Incoming::Incoming;
    bool readable = true;  // a caller speaks first
  };
  enum class Answer { kWelcome, kRetry, kDrop, kReject };

  mep_result_t build(bool* superseded);
  mep_result_t meet_rank_zero(bool* superseded);
  // Until something may have changed. An error if that is of no use.
  mep_result_t wait_for_others();
  // Whether the launcher has seen the end of a rank that is awaited.
  mep_result_t look_for_ends() const;
  // Whether all other ranks are so.
  bool all_are(bool Seat::*state) const;
  mep_result_t announce_ready();
  mep_result_t connect_to_lower_ranks();
  mep_result_t connect_to(int32_t rank);
  mep_result_t wait_for_events();
  mep_result_t accept_incoming();

  // mesh_incoming.cpp
  mep_result_t serve_incoming();
  // *seated: the rank that the incoming connection turned out to be; -1: not yet, or it was sent away.
  mep_result_t serve_incoming(Incoming* incoming, bool* keep, int32_t* seated);
  mep_result_t on_incoming_frame(Incoming* incoming, Frame* frame, bool* keep, int32_t* seated);
  // It ends the connection itself and says why, or nothing.
  void on_incoming_abort(const Incoming& incoming, const Frame& frame);
  void on_incoming_refused(Incoming* incoming, mep_result_t code);
  mep_result_t judge(Incoming* incoming, Answer* answer);
  // False: it is not welcome, and was told so.
  mep_result_t receive_incoming(Incoming* incoming, bool* welcome);
  mep_result_t reject(Incoming* incoming, mep_result_t code);

  mep_result_t serve_seat(int32_t rank);
  // *again: why this connection is given up for a later one; empty: it goes on.
  mep_result_t on_seat_frame(int32_t rank, Frame* frame, std::string* again);
  mep_result_t on_seat_greeting(int32_t rank, Frame* frame, std::string* again);
  // The hello of a lower rank against what this one was told.
  mep_result_t check_lower(int32_t rank);
  void try_again_later(int32_t rank, const std::string& obstacle);
  uint64_t longest_pause_ns() const;

  // mesh_failure.cpp
  mep_result_t on_abort(const Frame& frame, const PeerCredentials& credentials);
  // The ranks that are missing, and all that is known about them.
  struct Missing {
    std::vector<int32_t> ranks;
    std::vector<int32_t> not_ready;  // are there, and miss others
    std::string details;             // empty, or begins with "; "
    std::string meeting;             // why nobody at all can be found; else empty
    bool any_denied = false;
  };
  // Asks for the reasons of the first `most_explained` of them.
  Missing find_missing(size_t most_explained);
  mep_result_t fail_missing();
  void say_who_is_awaited();
  void spread_failure(mep_result_t code);
  void tell_linked(const std::vector<std::byte>& payload);
  void tell_unlinked(const Abort& abort);
  void tell_incoming(const std::vector<std::byte>& payload);
  bool all_told() const;

  Seat& seat(int32_t rank) { return seats_[static_cast<size_t>(rank)]; }

  const ResolvedConfig& config_;
  const SelfDescription& self_;
  Rendezvous* rendezvous_;
  Deadline deadline_;
  std::shared_ptr<Gate> gate_;
  LaunchPage launch_page_;
  WaitNotice notice_;
  int32_t rank_;
  int32_t sought_;                           // lower ranks than this one are connected to
  Deadline look_again_ = Deadline::never();  // in the caller's store
  Hello hello_;
  UniqueFd listener_;
  std::vector<Seat> seats_;  // by rank; this rank's own stays empty
  std::vector<Incoming> incoming_;
  bool ready_sent_ = false;
  bool tell_nobody_ = false;     // everybody has heard of the failure from somebody else
  int32_t failure_origin_ = -1;  // rank that found it, when this one was told
  std::string failure_text_;     // its text
};

}  // namespace mep
