// Small messages. Every rank's window has an eager ring: `depth` uses, each with one eager slot per source rank.
//
//   slot of (use, source):   u64 signal word | payload
//   word of seq n:           tag(epoch, n / depth), payload 2 flags + 22 bits fingerprint
//   flags                    rooted: from a root, whose contribution alone is enough for the result. Without
//                            data in a large operation: all ranks have what they get
//                            entry only: of a large operation, whose data is elsewhere, so not enough for it
//                            both: a root's long contribution, whose data is in a long area and enough
//
// Operation n goes through use n % depth. A rank puts its contribution to every live peer and to its own
// window. There it stays until *every* live rank is known to have passed n: operation n has ended there. So
// when a rank fails, anyone can give the contribution to whoever is behind. Mostly this knowledge costs no
// message: a rank that has entered m has passed m - 1, so each signal of an operation in which ranks wait for
// each other is an acknowledgement. In broadcasts one after the other the root waits for nobody, so the others
// send it and each other an acknowledgement (epoch, 48 bits of seq) every depth / 2 operations.
//
// Over several hosts a rank puts its contribution to the ranks of its own host alone. Once all of a host are
// there, its host leader sends them to every other leader as one host batch, and writes those that come to
// the ranks of its own host: one transfer for each ordered pair of hosts, one hop between hosts. A root puts
// its contribution to its host and to the leaders, which forward it; batches leave it out, so that each slot has
// one writer. In the end every rank has all contributions in its own window, as on one host, so what is
// completed, retained and given in a catch-up is the same. Acknowledgements go through the leaders too; a
// leader's speaks for its whole host. Words that a leader writes for others, or that ranks of other hosts write, have
// another writer in another view: they are written inside a PostingScope.
//
// Where the ranks of a host do not map each other, their leader is a relay: a rank puts its contribution to
// the relay alone. The relay sends each of them the batch that it sends to other leaders, and forwards the
// batches of other hosts as they are. Each rank writes the contributions of batches into the slots of its own
// window. That is 2 (n - 1) messages for n ranks, where each to each would be n (n - 1). A root puts its
// contribution to all of its host directly. With two ranks nothing would be saved, so these have no relay.
// The entries of a large operation in which all give to all do not go through it either: each goes to its rank
// behind the first data for that rank, and so costs no message.
//
//   slots             [depth][size] slot_bytes
//   acknowledgements  [size] a line
//   batch words       [depth][size] a line; by the leader that sends. Payload: bytes of each contribution
//   batches           [depth], the hosts' one after the other: u64 words[ranks], contributions[ranks]
//   long areas        [size][kLongUses] u64 kind and type, u64 count, a line | contribution
//
// Where no ranks map each other, a root's contribution may be long: its word is in the slot, and its data in the root's
// long area seq % kLongUses. The root uses an area again when all have passed the operation that was in it. So that it
// learns this in time, ranks acknowledge every kLongUses / 2 operations, and once they have passed the last long one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/coll/fingerprint.hpp"
#include "core/coll/host_groups.hpp"
#include "core/coll/operation.hpp"
#include "core/world/remote.hpp"
#include "protocol/signal_word.hpp"

namespace mep {

class EagerRing {
 public:
  static constexpr size_t kLine = 64;
  // How far a rank may be ahead of the slowest one. A deeper ring takes more memory, a shallower one
  // more acknowledgements, each of which is a message.
  static constexpr uint64_t depth_of(uint32_t size) { return size <= 16 ? 32 : 8; }
  // The most bytes of a small contribution where all map each other, and where not: there a message
  // costs, not a byte. The slots of large comms have room for the former only.
  static constexpr size_t kMappedPayloadBytes = 4088;
  static constexpr size_t kSentPayloadBytes = 16384;
  static constexpr uint32_t kMostSentRanks = 32;
  static constexpr uint32_t kEntryOnly = 0x400000;
  static constexpr uint32_t kRooted = 0x800000;
  // A root's long contribution: longer than a slot, of at most kLongBytes.
  static constexpr uint32_t kLong = kRooted | kEntryOnly;
  static constexpr size_t kLongBytes = size_t{128} << 10;
  // The most bytes of all copies of a scatter's blocks, from a root that may send each rank its own alone instead.
  static constexpr size_t kMostSpreadBytes = size_t{512} << 10;
  // The most that a relay sends to a rank in an operation that could do without it, for each exchange it would take.
  static constexpr size_t kMostRelayedBytes = size_t{32} << 10;
  static constexpr uint64_t kLongUses = 8;
  static constexpr uint32_t kMostLongRanks = 16;

  // Bytes of the window that a comm of `size` ranks needs from `offset` on.
  static size_t window_bytes(uint32_t size) {
    return batches_end(size) + (size <= kMostLongRanks ? size * kLongUses * kLongAreaBytes : 0);
  }
  static constexpr size_t slot_bytes_of(uint32_t size) {
    return size <= kMostSentRanks ? kSentPayloadBytes + kLine
                                  : kMappedPayloadBytes + sizeof(uint64_t);
  }
  uint64_t depth() const { return depth_; }
  // The bytes of a contribution as it is retained, its word included.
  size_t slot_bytes() const { return slot_bytes_; }
  // The most bytes of a contribution of the present epoch; the same on all ranks.
  size_t payload_bytes() const { return most_.payload; }
  // The same of an operation whose blocks could go from rank to rank in so many exchanges: a relay sends all blocks to all
  // ranks.
  size_t bytes_before_blocks(uint32_t exchanges) const {
    if (!has_relay_ || !is_apart()) return most_.payload;
    return std::clamp(exchanges * kMostRelayedBytes / live_.size(), kMappedPayloadBytes,
                      most_.payload);
  }
  // The same where only the root gives.
  size_t rooted_bytes() const { return most_.rooted; }
  // The same of operations that their root may end (pair_blocks.hpp). In small ones the relay or the root sends all
  // blocks to all ranks. In large ones each block goes only where it is used, and a scatter takes two hops more.
  size_t bytes_before_ends(bool only_root_gives) const {
    if (!only_root_gives) return has_relay_ ? kMappedPayloadBytes : most_.payload;
    return std::clamp(kMostSpreadBytes / (live_.size() - 1), most_.payload, most_.rooted);
  }

  // `remotes` by comm rank, the own one included; both outlive this object.
  void open(uint32_t rank, const std::vector<Remote>* remotes);

  // After start and after each view change: everybody has passed all operations before `next`.
  void restart(uint64_t epoch, uint64_t next, const std::vector<uint32_t>& live);
  // Not before the first restart is done: to the control thread, slots of a ring that is half set up would
  // look full.
  void use_window(std::byte* window) { window_ = window; }

  // --- The user's thread ---
  // Whether all live ranks have passed what was in the slots of seq, so that they may be written again.
  bool has_credit(uint64_t seq) {
    return seq <= passed_by_all_ + depth_ || look_for_acknowledgements(seq);
  }
  // The same for the long area of an operation in which this rank is the root.
  bool has_long_credit(const Operation& operation) {
    if (!operation.is_long) return true;
    const uint64_t used = last_.in_area[operation.seq % kLongUses];
    if (used > passed_by_all_) {
      note_roots(operation.seq);
      (void)look_for_acknowledgements(operation.seq);
    }
    return used <= passed_by_all_;
  }
  // Puts to the own window and to every live peer (over several hosts: those of this host, and for a
  // root the host leaders), then signals. From then on it counts as a contribution.
  [[nodiscard]] mep_result_t post_to_all(const Operation& operation, const void* payload,
                                         size_t bytes, uint32_t flags = 0);
  // The same without data, if this rank has not posted yet: shows the others what is called here. With credit, or
  // when somebody has posted in this operation, which needed the same credit.
  [[nodiscard]] mep_result_t show_call(const Operation& operation);
  // Whether the contribution of `source` has come; *mismatch: it belongs to another call.
  bool arrived(const Operation& operation, uint32_t source, bool* mismatch) const {
    const uint64_t word = load_signal(window_, slot_offset(operation.seq, source));
    if (!signal_matches(word, tag(operation.epoch, operation.seq))) return false;
    *mismatch = !same_call(word, operation);
    return true;
  }
  static bool same_call(uint64_t word, const Operation& operation) {
    return ((signal_payload(word) ^ operation.fingerprint) & kFingerprintMask) == 0;
  }
  // For a contribution that has come: its data is elsewhere.
  bool is_entry_only(uint64_t seq, uint32_t source) const {
    return (signal_payload(load_signal(window_, slot_offset(seq, source))) & kEntryOnly) != 0;
  }
  // The root's last word of a large operation that it ends has come.
  bool has_ended(const Operation& operation, uint32_t root) const {
    const uint64_t word = load_signal(window_, slot_offset(operation.seq, root));
    return signal_matches(word, tag(operation.epoch, operation.seq)) && is_rooted(word) &&
           same_call(word, operation);
  }
  // The call of `source`, if it was a root that waits for nobody: its contribution says it. False: it was none, or the
  // contribution is not here.
  bool call_of_root(uint64_t epoch, uint64_t seq, uint32_t source, Collective* kind,
                    CollectiveArgs* args) const {
    const uint64_t word = load_signal(window_, slot_offset(seq, source));
    if (!signal_matches(word, tag(epoch, seq))) return false;
    return is_long(word) ? call_in_heading(seq, source, kind, args)
                         : call_of_root(word, source, kind, args);
  }
  // The same from the word of the contribution, unless it is long.
  static bool call_of_root(uint64_t word, uint32_t source, Collective* kind, CollectiveArgs* args) {
    return is_rooted(word) && !is_long(word) &&
           read_call_of_root(signal_payload(word), source, kind, args);
  }
  const std::byte* payload(uint64_t seq, uint32_t source) const {
    return window_ + slot_offset(seq, source) + sizeof(uint64_t);
  }
  const std::byte* long_payload(uint64_t seq, uint32_t source) const {
    return window_ + long_offset(seq, source) + kLine;
  }
  // Whether a contribution is as long as it is retained.
  bool is_retained_size(size_t bytes) const {
    return bytes == slot_bytes_ || bytes == sizeof(uint64_t) + kLongBytes;
  }
  // This rank has waited in the operation for all live peers: they have passed seq - 1, and know the same of
  // this rank.
  void note_all_entered(uint64_t seq) {
    passed_by_all_ = seq - 1;
    all_signalled_ = seq;
    passed_ = seq - 1;
    host_acknowledged_ = seq - 1;
  }
  // The contribution of `source` to seq has come: it has passed seq - 1.
  void note_entered(uint32_t source, uint64_t seq) { entered_[source] = seq; }
  // Whether any rank but this one has called something else here.
  bool differs(const Operation& operation, uint32_t* source) const;
  // Whether what was retained of an operation belongs to the same call as this rank's.
  static bool same_call(const RetainedOperation& retained, uint32_t fingerprint);
  // At the end of an operation by which the peers do not learn how far this rank is: not all of them waited
  // for it, or it failed before it waited for all. Sends an acknowledgement when it is due.
  [[nodiscard]] mep_result_t acknowledge(const Operation& operation);
  // The same for a root. All others wait for its contribution, which is the acknowledgement.
  void acknowledge_as_root(const Operation& operation) {
    passed_ = operation.seq - 1;
    all_signalled_ = operation.seq;
    if (operation.is_long) last_.long_or_failed = operation.seq;
  }

  // --- Several hosts, or a relay (the user's thread, eager_relay.cpp) ---
  // Some contributions come through host leaders, not from their ranks.
  bool through_leaders() const { return through_leaders_; }
  // The entries of a large operation may go from rank to rank: behind data for each rank none is a message more.
  bool may_enter_directly(bool is_rooted) const {
    return !through_leaders_ || (groups_.all().size() == 1 && !is_rooted);
  }
  // All ranks are on one host, and some do not map each other.
  bool is_apart() const { return groups_.all().size() == 1 && groups_.own().sharing == 0; }
  // This rank is its host's leader, in a comm where contributions go through leaders.
  bool acts_as_leader() const { return acts_as_leader_; }
  // Host batches come to this rank: to leaders, and to all where the leader is a relay.
  bool takes_batches() const { return acts_as_leader_ || has_relay_; }
  const HostGroups& groups() const { return groups_; }
  // The caller of the following is inside a PostingScope.
  // Does what can be done now: sends the own host's batch, takes those that have come, forwards
  // acknowledgements.
  [[nodiscard]] mep_result_t relay(const Operation& operation);
  // This rank has sent its host's batch, if it is a leader, and has taken all that come to it.
  bool relayed(uint64_t seq) const {
    return (!acts_as_leader_ || batch_sent_ == seq) && taken_seq_ == seq &&
           taken_count_ == taken_.size();
  }
  // The rest is for leaders.
  // Before this rank ends the operation as a mismatch, and after show_call(): forwards whatever has come, or
  // others would wait for it.
  [[nodiscard]] mep_result_t relay_rest(const Operation& operation);
  // Puts the contribution of a rank of another host to the ranks of this one.
  [[nodiscard]] mep_result_t forward(uint64_t seq, uint32_t source, size_t bytes) const;
  bool is_on_this_host(uint32_t rank) const {
    return (*remotes_)[rank].host == (*remotes_)[rank_].host;
  }
  [[nodiscard]] mep_result_t relay_acknowledgements();

  // --- The control thread, while the channel is frozen ---
  // Takes contributions to seq out of batches that have come and that the user's thread has not taken yet.
  void absorb_batches(uint64_t epoch, uint64_t seq);
  // Whether all contributions of seq that its result needs are here; copies them out.
  bool retain(uint64_t epoch, uint64_t seq, RetainedOperation* out) const;
  void zero_words();

  uint64_t tag(uint64_t epoch, uint64_t seq) const { return signal_tag(epoch, seq / depth_); }

 private:
  uint64_t slot_offset(uint64_t seq, uint32_t source) const {
    return ((seq % depth_) * size_ + source) * slot_bytes_;
  }
  static bool is_rooted(uint64_t word) { return (signal_payload(word) & kRooted) != 0; }
  static bool is_long(uint64_t word) { return (signal_payload(word) & kLong) == kLong; }
  static constexpr size_t kLongAreaBytes = kLine + kLongBytes;
  static uint64_t batches_end(uint32_t size) {
    return 2 * depth_of(size) * size * slot_bytes_of(size) + (depth_of(size) + 1) * size * kLine;
  }
  // Its heading, a line, and behind it the contribution.
  uint64_t long_offset(uint64_t seq, uint32_t source) const {
    return batches_end(size_) + (source * kLongUses + seq % kLongUses) * kLongAreaBytes;
  }
  void write_heading(const Operation& operation);
  bool call_in_heading(uint64_t seq, uint32_t source, Collective* kind, CollectiveArgs* args) const;
  uint64_t acknowledgement_offset(uint32_t source) const {
    return depth_ * size_ * slot_bytes_ + source * kLine;
  }
  static constexpr uint64_t kAcknowledgedSeqMask = (uint64_t{1} << 48) - 1;
  // "This rank has passed seq." The word may be as old as its epoch, so it has all of seq, not a use count.
  static uint64_t acknowledgement(uint64_t epoch, uint64_t seq) {
    return signal_tag(epoch, 0) | (seq & kAcknowledgedSeqMask);
  }
  uint64_t batch_word_offset(uint64_t seq, uint32_t leader) const {
    return depth_ * size_ * slot_bytes_ + (size_ + (seq % depth_) * size_ + leader) * kLine;
  }
  uint64_t batch_offset(uint64_t seq, const HostGroup& group) const {
    return depth_ * size_ * slot_bytes_ + (depth_ + 1) * size_ * kLine +
           ((seq % depth_) * size_ + group.ranks_before) * slot_bytes_;
  }
  bool look_for_acknowledgements(uint64_t seq);
  // The receivers of acknowledgements know that this rank, or host, has passed `known`: when it has passed which operation
  // they must hear of it, in time for the oldest use that one of them may wait for.
  uint64_t due_at(uint64_t known) const {
    if (last_.long_or_failed <= known) return known + depth_ / 2;
    return std::min(last_.long_or_failed, known + kLongUses / 2);
  }
  // Contributions before seq of ranks of this host that take themselves for the root where this rank does not.
  void note_roots(uint64_t seq);
  void set_targets();
  // Up to which seq the peer has passed, as far as this rank knows; of another host's leader: all of its host.
  uint64_t passed_by(uint32_t peer) const;
  bool speaks_for_itself(uint32_t peer) const {
    return is_on_this_host(peer) && (acts_as_leader_ || !has_relay_);
  }
  size_t stride_of(const Operation& operation, const std::byte* words) const;
  [[nodiscard]] mep_result_t send_batch(const Operation& operation, bool complete_only);
  [[nodiscard]] mep_result_t take_batches(const Operation& operation);
  [[nodiscard]] mep_result_t take_batch(uint64_t seq, const HostGroup& group, uint64_t expected,
                                        size_t stride);
  void unpack_batch(uint64_t seq, const HostGroup& group, uint64_t expected, size_t stride);
  [[nodiscard]] mep_result_t put_batch(uint64_t seq, const HostGroup& group, uint64_t word,
                                       uint32_t target) const;
  static size_t batch_bytes(const HostGroup& group, uint64_t word) {
    return group.ranks.size() * (sizeof(uint64_t) + signal_payload(word));
  }

  uint32_t rank_ = 0;
  uint32_t size_ = 0;
  uint64_t depth_ = 0;
  size_t slot_bytes_ = 0;
  struct {
    size_t payload = 0;
    size_t rooted = 0;
  } most_;  // bytes of a contribution of the present epoch
  const std::vector<Remote>* remotes_ = nullptr;
  std::byte* window_ = nullptr;
  std::vector<uint32_t> live_;
  uint64_t epoch_ = 0;
  uint64_t first_ = 1;          // first seq of the epoch
  uint64_t passed_by_all_ = 0;  // every live rank has passed this seq, as far as this rank knows
  struct {
    uint64_t posted = 0;               // this rank's last contribution that has gone to all
    uint64_t long_or_failed = 0;       // operation: to others a failed one may have been long
    uint64_t in_area[kLongUses] = {};  // by long area of this rank
  } last_;                             // seq
  uint64_t all_signalled_ = 0;         // every live peer knows that this rank has entered this seq
  // The last that this rank may acknowledge: the operation after it may not be committed yet.
  uint64_t passed_ = 0;
  // By rank: the last seq of which this rank has seen its contribution. Counts only if that came from itself.
  std::vector<uint64_t> entered_;
  std::vector<uint32_t> targets_;                  // whom it contributes and acknowledges to
  std::vector<uint32_t> rooted_targets_;           // whom it contributes to as a root
  std::vector<uint32_t> acknowledgement_sources_;  // whose acknowledgements come here
  std::vector<uint32_t> host_peers_;               // the other ranks of this host

  bool through_leaders_ = false;
  bool acts_as_leader_ = false;
  bool has_relay_ = false;  // the ranks of this host exchange through their leader
  HostGroups groups_;
  uint64_t batch_sent_ = 0;         // seq
  uint64_t taken_seq_ = 0;          // of the batches counted below
  std::vector<bool> taken_;         // by host
  size_t taken_count_ = 0;          // a leader's own host counts from the start
  uint64_t host_acknowledged_ = 0;  // others know that all ranks of this host have passed it
  // By host: the acknowledgement of its leader that was forwarded last to this host's ranks.
  std::vector<uint64_t> relayed_acknowledgements_;
};

}  // namespace mep
