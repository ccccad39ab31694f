// A peer as this rank reaches it: its rails, its windows, and the puts and signals on their way.
//
// Invariants
//   - One lock guards all of it, and nobody waits under it.
//   - Signals go over rail 0. Before one is posted, what was put over the other rails since the last
//     one has arrived: a read behind those puts on their rail has been answered.
//   - After an error, and after fence(), no queue pair to the peer is left: nothing of this rank's
//     memory is read for it and nothing of it lands here. Signals that had come before an error are
//     still written; after fence() none is.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/transport.hpp"
#include "transport/verbs/addresses.hpp"
#include "transport/verbs/bounce_pool.hpp"
#include "transport/verbs/connection.hpp"
#include "transport/verbs/registration_cache.hpp"
#include "transport/verbs/signal_words.hpp"

namespace mep::verbs {

// The state that all peers of one transport share.
class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual RegistrationCache& memory() = 0;
  virtual BouncePool& bounce() = 0;
  // A call found no chunk: all peers shall give back those that are done, at the next progress.
  virtual void note_no_chunk() = 0;
  virtual void note_failure(const PeerFailure& failure) = 0;
  // Something was posted: somebody must look later whether it went through.
  virtual void note_posted() = 0;
};

class Peer {
 public:
  struct Rail {
    size_t hca = 0;  // index of this rank's port in registrations
    PortAddress remote;
    std::unique_ptr<Connection> connection;
  };

  Peer(Fabric* fabric, const PeerIdentity& identity, std::vector<Rail> rails);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const PeerIdentity& identity() const { return identity_; }
  bool is_fenced() const { return fenced_.load(std::memory_order_acquire); }

  // This rank's ends, for the peer, with the keys of one of this rank's windows.
  std::vector<WindowRail> ends(const Registration& window);
  [[nodiscard]] mep_result_t import(uint64_t window, size_t bytes, std::span<const std::byte> blob);
  void drop(uint64_t window);

  // See Endpoint and Drain.
  [[nodiscard]] mep_result_t post(Batch* batch);
  [[nodiscard]] mep_result_t completion(bool is_urgent, Completion* out);
  bool quiesced(uint64_t number);
  // The peer may signal in it.
  void offer(const std::shared_ptr<Window>& window) { arrived_->offer(window); }
  // Takes completions if nobody else is at it.
  void progress();
  // The same, and makes sure that what is on its way tells of its end; true: something is.
  bool check();
  const char* description() const { return description_.c_str(); }
  // Gives chunks back whose puts are done, asking the HCA about them where it must.
  void reclaim();
  void fence();
  // It has gone; nobody needs to be told. A dead process's HCA answers nothing: without this, whoever
  // waits for room or for its memory waits until packets were repeated in vain.
  void give_up();
  // An asynchronous event of one of its queue pairs, or of the device of one of its rails.
  bool owns_queue_pair(uint32_t number, const Hca* hca);
  void break_rails_of(const Hca* hca, const std::string& text);
  // For tests of error paths: spoils the key of an imported window; moves a queue pair to its error state.
  void spoil_key(uint64_t window);
  void break_queue_pair();

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct RemoteWindow {
    uint64_t address = 0;
    size_t bytes = 0;
    uint32_t generation = 0;
    std::array<uint32_t, kMaxRails> rkeys{};
  };
  struct Copied {  // a chunk whose puts are under way
    uint32_t chunk = 0;
    size_t rail = 0;
    uint64_t number = 0;  // of the last request that reads it
  };
  struct OpenChunk {  // where small puts are copied to, one behind the other
    bool is_open = false;
    uint32_t chunk = 0;
    size_t used = 0;
    uint64_t number = 0;
  };
  struct Reading {  // of the caller's memory, under way
    uint64_t posting = 0;
    size_t rail = 0;
    uint64_t number = 0;  // of the last request that reads it
  };
  struct Borrowed {  // until no posting up to this one reads the caller's memory
    uint64_t posting = 0;
    RegistrationCache::Ticket ticket = 0;
  };
  // Postings that went over a rail other than the first, by their numbers.
  struct Settling {
    uint64_t last_put = 0;
    uint64_t settled = 0;  // up to here it has arrived
    uint64_t remote = 0;   // where the last put went
    uint32_t rkey = 0;
    uint64_t read = 0;    // the request of a read that is under way; 0: none
    uint64_t covers = 0;  // up to which posting it tells
  };

  [[nodiscard]] mep_result_t usable() const;
  [[nodiscard]] mep_result_t find_target(uint64_t window, uint64_t offset, size_t bytes,
                                         RemoteWindow* out) const;
  [[nodiscard]] mep_result_t connect(const WindowAddress& address);
  // Puts one posting. kWouldBlock: *done says how many bytes are on their way.
  [[nodiscard]] mep_result_t put(const Posting& posting, uint64_t* done);
  [[nodiscard]] mep_result_t put_inline(const RemoteWindow& target, const Posting& posting);
  [[nodiscard]] mep_result_t put_direct(const RemoteWindow& target, const Posting& posting,
                                        const Registration& source, uint64_t* done);
  [[nodiscard]] mep_result_t put_copied(const RemoteWindow& target, const Posting& posting,
                                        uint64_t* done);
  [[nodiscard]] mep_result_t put_into_open_chunk(const RemoteWindow& target,
                                                 const Posting& posting);
  void note_put(size_t rail, const RemoteWindow& target);
  [[nodiscard]] mep_result_t signal(const Posting& posting, uint64_t* settles);
  [[nodiscard]] mep_result_t signal_by_code(const Posting& posting);
  // Whether all postings up to `needed` have arrived over the other rails; kWouldBlock: not yet.
  [[nodiscard]] mep_result_t settle_other_rails(uint64_t needed);
  [[nodiscard]] mep_result_t send_mark(uint64_t number);

  // Posting breaks the peer when it fails.
  [[nodiscard]] mep_result_t post(size_t rail, const Connection::Write& write, uint64_t* number);
  [[nodiscard]] mep_result_t poll_rails();
  // kWouldBlock: there is none.
  [[nodiscard]] mep_result_t check_room(size_t rail);
  [[nodiscard]] mep_result_t take_chunk(uint32_t* chunk);
  uint64_t completed() const { return reading_.empty() ? posted_ : reading_.front().posting - 1; }
  bool have_last_signalled();
  void give_back_done();
  void give_back_borrowed(uint64_t up_to);
  void retire_open_chunk();
  void destroy_rails();
  // Signals that have come by now are still written.
  void end(const std::string& text);
  [[nodiscard]] mep_result_t broken(const std::string& text);

  Fabric* fabric_;
  const PeerIdentity identity_;
  // Set before the lock is taken to fence, so that whoever waits under it leaves. Release/acquire:
  // nothing else is published with it.
  std::atomic<bool> fenced_{false};

  // The peer's signals to this rank; rails_[0] carries them.
  const std::shared_ptr<ArrivedSignals> arrived_ = std::make_shared<ArrivedSignals>();
  Hca* arrival_hca_ = nullptr;
  uint32_t arrival_queue_pair_ = 0;  // also when it is destroyed
  std::string description_;          // "verbs over mlx5_0:1"; never changes

  std::mutex mutex_;  // guards all below
  std::vector<Rail> rails_;
  bool connected_ = false;
  std::vector<uint32_t> remote_queue_pairs_;  // as the peer told when it was connected
  bool failed_ = false;
  std::string failure_;
  std::unordered_map<uint64_t, RemoteWindow> windows_;
  SentSignals sent_;
  uint64_t posted_ = 0;     // postings
  uint64_t sent_mark_ = 0;  // the last that was sent, and that quiesced() was asked for
  uint64_t asked_mark_ = 0;
  std::array<Settling, kMaxRails> settling_;
  std::deque<Copied> copied_;
  std::deque<Reading> reading_;  // in the order of postings
  std::deque<Borrowed> borrowed_;
  OpenChunk open_chunk_;
};

}  // namespace mep::verbs
