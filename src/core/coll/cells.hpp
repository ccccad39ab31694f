// Small messages: every rank's window has a ring of `depth` slots of one cell per source rank.
//
//   cell of (slot, source):  u64 signal word | payload
//   word of seq n:           tag(epoch, n / depth), payload 2 flags + 22 bits fingerprint
//   flags                    from a root (alone enough for the result); entry only (of a large
//                            operation, whose data is elsewhere: not enough for the result)
//
// The cell of seq n is that of slot n % depth. A contribution is put to every live peer and to the
// own window; it stays there until *every* live rank is known to have passed n, so that whoever is
// behind when a rank fails can be given it by anyone. That knowledge comes for free from any signal of
// an operation in which a rank waits for a peer (it entered m, hence passed m - 1), and where the
// pattern gives none, from a "passed" word (epoch, 48 bits of seq) every depth / 2 operations: in a row
// of broadcasts from all but the root.
//
// Over several hosts a rank gives its cell to the ranks of its own host alone. The leader of each host
// sends the cells of its host, once all are there, to every other leader in one block, and writes those
// that come to its host's ranks: one transfer for each pair of hosts, one hop between hosts. A root's
// cell goes to its host and to the leaders. In the end every rank has all cells in its own window, as
// on one host, so nothing else differs: what is done, kept and flushed. "Passed" words go by the leaders
// too; a leader's speaks for its whole host. What a leader writes for others, and what is written by
// ranks of other hosts, has another writer in another view: it is written inside a PostingScope.
//
// A host whose ranks do not map each other has its leader as a hub: a rank gives its cell to the leader
// alone, which sends each of them the same block that it sends to other leaders, and gives on the
// blocks of other hosts as they are. Each rank writes the cells of blocks into its own window. That is
// 2 (n - 1) messages for n ranks, where each to each would be n (n - 1). A root's cell goes to all
// directly. With two ranks nothing would be saved, so these have no hub.
//
//   cells   [depth][size] cell_bytes
//   passed  [size] a line
//   block words [depth][size] a line; by the leader that sends. Payload: bytes of each contribution
//   blocks  [depth], the hosts' one after the other: u64 words[ranks], contributions[ranks]
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/coll/host_groups.hpp"
#include "core/coll/operation.hpp"
#include "core/world/remote.hpp"
#include "protocol/signal_word.hpp"

namespace mep {

class Cells {
 public:
  static constexpr size_t kLine = 64;
  // How far a rank may be ahead of the slowest one. Each "passed" word is a message; each slot is memory.
  static constexpr uint64_t depth_of(uint32_t size) { return size <= 16 ? 32 : 8; }
  // What a small contribution has at most where all map each other, and where not: there a message is
  // what costs, not a byte. The cells of large comms are all for the former.
  static constexpr size_t kMappedPayloadBytes = 4088;
  static constexpr size_t kSentPayloadBytes = 16384;
  static constexpr uint32_t kMostSentRanks = 32;
  static constexpr uint32_t kFingerprintMask = 0x3fffff;
  static constexpr uint32_t kEntryOnly = 0x400000;
  static constexpr uint32_t kRooted = 0x800000;

  // Bytes of the window that a comm of `size` ranks needs from `offset` on.
  static size_t window_bytes(uint32_t size) {
    return 2 * depth_of(size) * size * cell_bytes_of(size) + (depth_of(size) + 1) * size * kLine;
  }
  static constexpr size_t cell_bytes_of(uint32_t size) {
    return size <= kMostSentRanks ? kSentPayloadBytes + kLine
                                  : kMappedPayloadBytes + sizeof(uint64_t);
  }
  uint64_t depth() const { return depth_; }
  // Of a contribution as it is kept for others, its word included.
  size_t cell_bytes() const { return cell_bytes_; }
  // What a contribution of the present epoch may have; the same on all ranks.
  size_t payload_bytes() const { return payload_bytes_; }

  // `remotes` by comm rank, the own one included; both outlive this object.
  void open(uint32_t rank, const std::vector<Remote>* remotes);

  // After start and after each view change: everybody has passed all operations before `next`.
  void restart(uint64_t epoch, uint64_t next, const std::vector<uint32_t>& live);
  // Once the first restart is done, of which half would look like cells that are full.
  void use_window(std::byte* window) { window_ = window; }

  // --- The user's thread ---
  // Whether the cells of seq are free at all live ranks.
  bool free(uint64_t seq) { return seq <= passed_by_all_ + depth_ || look_for_passed(seq); }
  // Puts to the own window and to every live peer (over several hosts: those of this host, and for a
  // root the leaders), then signals. From then on it counts as a contribution.
  [[nodiscard]] mep_result_t post_to_all(const Operation& operation, const void* payload,
                                         size_t bytes, uint32_t flags = 0);
  // Whether the contribution of `source` has come; *mismatch: it belongs to another call.
  bool arrived(const Operation& operation, uint32_t source, bool* mismatch) const {
    const uint64_t word = load_signal(window_, cell_offset(operation.seq, source));
    if (!signal_matches(word, tag(operation.epoch, operation.seq))) return false;
    *mismatch = !same_call(word, operation);
    return true;
  }
  static bool same_call(uint64_t word, const Operation& operation) {
    return ((signal_payload(word) ^ operation.fingerprint) & kFingerprintMask) == 0;
  }
  // Of a contribution that has come: its data is elsewhere.
  bool is_entry_only(uint64_t seq, uint32_t source) const {
    return (signal_payload(load_signal(window_, cell_offset(seq, source))) & kEntryOnly) != 0;
  }
  const std::byte* payload(uint64_t seq, uint32_t source) const {
    return window_ + cell_offset(seq, source) + sizeof(uint64_t);
  }
  // The operation is done and this rank has waited in it for all live peers: they passed seq - 1.
  void note_all_entered(uint64_t seq) {
    passed_by_all_ = seq - 1;
    all_signalled_ = seq;
    passed_ = seq - 1;
    told_passed_ = seq - 1;
  }
  // A cell of seq has come from `source`: it passed seq - 1.
  void note_entered(uint32_t source, uint64_t seq) { entered_[source] = seq; }
  // Whether any rank but this one has called something else here.
  bool differs(const Operation& operation, uint32_t* source) const;
  // Whether what was kept of an operation belongs to the same call as this rank's.
  static bool same_call(const RetainedOperation& kept, uint32_t fingerprint);
  // The operation is done, but it did not make all wait for this rank, or failed before it waited for
  // all: tell those who might not know.
  [[nodiscard]] mep_result_t note_done(const Operation& operation);
  // The root's side of it: all others wait for its cell, and know by that.
  void note_done_as_root(uint64_t seq) {
    passed_ = seq - 1;
    all_signalled_ = seq;
  }

  // --- Several hosts, or a hub (the user's thread, cells_relay.cpp) ---
  // Cells come through leaders, not all from their ranks.
  bool through_leaders() const { return through_leaders_; }
  // This rank leads its host, in a comm with leaders.
  bool relays() const { return relays_; }
  // Blocks come to this rank: to leaders, and to all where the leader is a hub.
  bool takes_blocks() const { return relays_ || hub_; }
  const HostGroups& groups() const { return groups_; }
  // What follows is inside a PostingScope.
  // Does what can be done now: sends the own host's block, takes those that have come, passes on words.
  [[nodiscard]] mep_result_t relay(const Operation& operation);
  // The block is sent, if this is a leader, and all others are taken.
  bool relayed(uint64_t seq) const {
    return (!relays_ || block_sent_ == seq) && taken_seq_ == seq && taken_count_ == taken_.size();
  }
  // The rest is for leaders.
  // Before this rank ends the operation as a mismatch: gives on whatever has come, or others would wait
  // for it.
  [[nodiscard]] mep_result_t relay_rest(const Operation& operation);
  // Gives the cell of a rank of another host to the ranks of this one.
  [[nodiscard]] mep_result_t forward(uint64_t seq, uint32_t source, size_t bytes) const;
  bool is_on_this_host(uint32_t rank) const {
    return (*remotes_)[rank].host == (*remotes_)[rank_].host;
  }
  [[nodiscard]] mep_result_t relay_passed();

  // --- The control thread, while the channel is wedged ---
  // Contributions to seq that have come in blocks which the user's thread has not taken yet.
  void absorb_blocks(uint64_t epoch, uint64_t seq);
  // Whether this rank holds all contributions of seq; copies them out.
  bool retain(uint64_t epoch, uint64_t seq, RetainedOperation* out) const;
  void zero_words();

  uint64_t tag(uint64_t epoch, uint64_t seq) const { return signal_tag(epoch, seq / depth_); }

 private:
  uint64_t cell_offset(uint64_t seq, uint32_t source) const {
    return ((seq % depth_) * size_ + source) * cell_bytes_;
  }
  uint64_t passed_offset(uint32_t source) const {
    return depth_ * size_ * cell_bytes_ + source * kLine;
  }
  static constexpr uint64_t kPassedSeqMask = (uint64_t{1} << 48) - 1;
  // "This rank has passed seq." It may be as old as its epoch, so the whole seq is in it.
  static uint64_t passed_word(uint64_t epoch, uint64_t seq) {
    return signal_tag(epoch, 0) | (seq & kPassedSeqMask);
  }
  uint64_t block_word_offset(uint64_t seq, uint32_t leader) const {
    return depth_ * size_ * cell_bytes_ + (size_ + (seq % depth_) * size_ + leader) * kLine;
  }
  uint64_t block_offset(uint64_t seq, const HostGroup& group) const {
    return depth_ * size_ * cell_bytes_ + (depth_ + 1) * size_ * kLine +
           ((seq % depth_) * size_ + group.ranks_before) * cell_bytes_;
  }
  bool look_for_passed(uint64_t seq);
  void set_targets();
  // By the peer, or by all for whom its word speaks.
  uint64_t passed_by(uint32_t peer) const;
  bool speaks_for_itself(uint32_t peer) const {
    return is_on_this_host(peer) && (relays_ || !hub_);
  }
  size_t stride_of(const Operation& operation, const std::byte* words) const;
  [[nodiscard]] mep_result_t send_block(const Operation& operation, bool complete_only);
  [[nodiscard]] mep_result_t take_blocks(const Operation& operation);
  [[nodiscard]] mep_result_t take_block(uint64_t seq, const HostGroup& group, uint64_t expected,
                                        size_t stride);
  void unpack_block(uint64_t seq, const HostGroup& group, uint64_t expected, size_t stride);
  [[nodiscard]] mep_result_t give_block(uint64_t seq, const HostGroup& group, uint64_t word,
                                        uint32_t target) const;
  static size_t block_bytes(const HostGroup& group, uint64_t word) {
    return group.ranks.size() * (sizeof(uint64_t) + signal_payload(word));
  }

  uint32_t rank_ = 0;
  uint32_t size_ = 0;
  uint64_t depth_ = 0;
  size_t cell_bytes_ = 0;
  size_t payload_bytes_ = 0;
  const std::vector<Remote>* remotes_ = nullptr;
  std::byte* window_ = nullptr;
  std::vector<uint32_t> live_;
  uint64_t epoch_ = 0;
  uint64_t first_ = 1;          // first seq of the epoch
  uint64_t passed_by_all_ = 0;  // every live rank passed this seq, as far as this rank knows
  uint64_t all_signalled_ = 0;  // last seq of which every live peer knows that this rank entered it
  uint64_t passed_ = 0;  // by this rank, for certain: a view change may still hold the present one
  std::vector<uint64_t> entered_;  // by rank: the last seq of which its cell was seen by itself
  std::vector<uint32_t> targets_;  // who is given this rank's cell and "passed" word by itself
  std::vector<uint32_t> rooted_targets_;  // and its cell when it is a root
  std::vector<uint32_t> passed_sources_;  // whose "passed" words come here
  std::vector<uint32_t> host_peers_;      // the other ranks of this host

  bool through_leaders_ = false;
  bool relays_ = false;
  bool hub_ = false;  // the leader of this host is one
  HostGroups groups_;
  uint64_t block_sent_ = 0;          // seq
  uint64_t taken_seq_ = 0;           // of the blocks counted below
  std::vector<bool> taken_;          // by host
  size_t taken_count_ = 0;           // a leader's own host counts from the start
  uint64_t told_passed_ = 0;         // what the other leaders know of this host
  std::vector<uint64_t> told_here_;  // by host: its "passed" word as given to this host's ranks
};

}  // namespace mep
