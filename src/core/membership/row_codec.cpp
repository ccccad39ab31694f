// Rows and views as bytes. Little-endian, a magic word and a version first, exact length. The
// decoder trusts nothing: every count is checked against its bound and against the bytes that are
// left before anything is allocated, every slot against max_slots, and a row never has unread bytes
// behind it.
#include <bit>

#include "core/membership/row.hpp"

namespace mep::membership {
namespace {

constexpr uint32_t kRowMagic = 0x3152504du;   // "MPR1"
constexpr uint32_t kViewMagic = 0x3156504du;  // "MPV1"
constexpr uint16_t kCodecVersion = 3;
constexpr uint8_t kSetAsList = 0;
constexpr uint8_t kSetAsWords = 1;

class Writer {
 public:
  template <typename T>
  void number(T value) {
    for (size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  void text(const std::string& text) {
    number(static_cast<uint8_t>(text.size()));
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }
  void flag(bool value) { number<uint8_t>(value ? 1 : 0); }
  void set(const SlotSet& set) {
    const uint32_t count = set.count();
    uint32_t words = 0;
    set.each([&](uint32_t slot) { words = slot / 64 + 1; });
    if (size_t{count} * 2 <= size_t{words} * 8) {
      number(kSetAsList);
      number(static_cast<uint16_t>(count));
      set.each([&](uint32_t slot) { number(static_cast<uint16_t>(slot)); });
      return;
    }
    number(kSetAsWords);
    number(static_cast<uint16_t>(words));
    for (uint32_t word = 0; word < words; ++word) {
      uint64_t bits = 0;
      for (uint32_t i = 0; i < 64; ++i)
        if (set.has(word * 64 + i)) bits |= uint64_t{1} << i;
      number(bits);
    }
  }
  template <typename T, typename F>
  void list(const std::vector<T>& items, F&& write) {
    number(static_cast<uint32_t>(items.size()));
    for (const T& item : items) write(item);
  }
  std::vector<uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

class Reader {
 public:
  Reader(std::span<const uint8_t> bytes, uint32_t max_slots)
      : bytes_(bytes), max_slots_(max_slots < kMaxSlots ? max_slots : kMaxSlots) {}

  bool fail(const char* why) {
    if (error_ == nullptr) error_ = why;
    return false;
  }
  bool ok() const { return error_ == nullptr; }
  const char* error() const { return error_; }
  size_t left() const { return bytes_.size() - at_; }
  uint32_t max_slots() const { return max_slots_; }

  template <typename T>
  bool number(T* value) {
    if (!ok() || left() < sizeof(T)) return fail("too short");
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof(T); ++i) sum |= uint64_t{bytes_[at_ + i]} << (8 * i);
    at_ += sizeof(T);
    *value = static_cast<T>(sum);
    return true;
  }
  bool text(std::string* text) {
    uint8_t length = 0;
    if (!number(&length)) return false;
    if (length > kMaxReasonBytes || length > left()) return fail("text too long");
    text->assign(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return true;
  }
  bool flag(bool* value) {
    uint8_t byte = 0;
    if (!number(&byte)) return false;
    if (byte > 1) return fail("a flag is neither 0 nor 1");
    *value = byte == 1;
    return true;
  }
  bool slot(uint32_t* value, bool or_none) {
    if (!number(value)) return false;
    if (*value >= max_slots_ && !(or_none && *value == kNoSlot)) return fail("slot out of range");
    return true;
  }
  bool set(SlotSet* set) {
    uint8_t form = 0;
    uint16_t count = 0;
    if (!number(&form) || !number(&count)) return false;
    if (form == kSetAsList) {
      for (uint32_t i = 0; i < count; ++i) {
        uint16_t slot = 0;
        if (!number(&slot)) return false;
        if (slot >= max_slots_) return fail("slot out of range");
        set->add(slot);
      }
      return true;
    }
    if (form != kSetAsWords) return fail("unknown form of a set");
    if (count > (max_slots_ + 63) / 64) return fail("set out of range");
    for (uint32_t word = 0; word < count; ++word) {
      uint64_t bits = 0;
      if (!number(&bits)) return false;
      for (; bits != 0; bits &= bits - 1) {
        const uint32_t slot = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
        if (slot >= max_slots_) return fail("slot out of range");
        set->add(slot);
      }
    }
    return true;
  }
  // `item_bytes`: the least that an entry takes, so that a count cannot make us allocate more than
  // the bytes that are really there.
  template <typename T, typename F>
  bool list(std::vector<T>* items, size_t item_bytes, F&& read) {
    uint32_t count = 0;
    if (!number(&count)) return false;
    if (count > left() / item_bytes) return fail("list too long");
    items->reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      T item{};
      if (!read(&item)) return fail("bad list entry");
      items->push_back(std::move(item));
    }
    return true;
  }

 private:
  std::span<const uint8_t> bytes_;
  uint32_t max_slots_;
  size_t at_ = 0;
  const char* error_ = nullptr;
};

void write_member(Writer& out, const Member& member) {
  out.number(member.slot);
  out.number(member.incarnation);
  out.number(member.host);
}

bool read_member(Reader& in, Member* member) {
  return in.slot(&member->slot, false) && in.number(&member->incarnation) &&
         in.number(&member->host);
}

void write_proposal(Writer& out, const Proposal& value) {
  out.number(value.epoch);
  out.number(value.origin.round);
  out.number(value.origin.suspected);
  out.number(value.proposer);
  out.set(value.members);
  out.list(value.added, [&](const Member& member) { write_member(out, member); });
  out.list(value.removed, [&](const Removal& removal) {
    out.number(removal.slot);
    out.number(removal.incarnation);
    out.number(static_cast<uint8_t>(removal.reason));
    out.text(removal.text);
  });
  out.list(value.comms, [&](const CommState& comm) {
    out.number(comm.comm);
    out.number(comm.epoch);
  });
  out.list(value.channels, [&](const ChannelDecision& decision) {
    out.number(decision.comm);
    out.number(decision.channel);
    out.number(decision.last_completed);
    out.number(decision.next);
    out.number(decision.called);
    out.number(decision.donor);
    out.set(decision.late);
  });
  out.list(value.settled, [&](const Settlement& settle) {
    out.number(settle.comm);
    out.number(settle.channel);
    out.number(settle.comm_epoch);
  });
  out.list(value.revoked, [&](uint64_t comm) { out.number(comm); });
  out.number(value.recover_seq);
}

bool read_removal(Reader& in, Removal* removal) {
  uint8_t reason = 0;
  if (!in.slot(&removal->slot, false) || !in.number(&removal->incarnation) || !in.number(&reason))
    return false;
  if (reason < 1 || reason > static_cast<uint8_t>(RemovalReason::kCutOff))
    return in.fail("unknown reason of a removal");
  removal->reason = static_cast<RemovalReason>(reason);
  return in.text(&removal->text);
}

bool read_settlement(Reader& in, Settlement* settle) {
  return in.number(&settle->comm) && in.number(&settle->channel) && in.number(&settle->comm_epoch);
}

bool read_comm(Reader& in, CommState* comm) {
  return in.number(&comm->comm) && in.number(&comm->epoch);
}

bool read_proposal(Reader& in, Proposal* value) {
  const auto decision = [&](ChannelDecision* v) {
    return in.number(&v->comm) && in.number(&v->channel) && in.number(&v->last_completed) &&
           in.number(&v->next) && in.number(&v->called) && in.slot(&v->donor, true) &&
           in.set(&v->late);
  };
  if (!in.number(&value->epoch) || !in.number(&value->origin.round) ||
      !in.number(&value->origin.suspected) || !in.slot(&value->proposer, false) ||
      !in.set(&value->members) ||
      !in.list(&value->added, 20, [&](Member* m) { return read_member(in, m); }) ||
      !in.list(&value->removed, 14, [&](Removal* r) { return read_removal(in, r); }) ||
      !in.list(&value->comms, 16, [&](CommState* c) { return read_comm(in, c); }) ||
      !in.list(&value->channels, 47, decision) ||
      !in.list(&value->settled, 24, [&](Settlement* s) { return read_settlement(in, s); }) ||
      !in.list(&value->revoked, 8, [&](uint64_t* comm) { return in.number(comm); }) ||
      !in.number(&value->recover_seq))
    return false;
  for (const Member& member : value->added)
    if (!value->members.has(member.slot)) return in.fail("an added slot is no member");
  for (const Removal& removal : value->removed)
    if (value->members.has(removal.slot)) return in.fail("a removed slot is a member");
  return true;
}

// The values of a row, each once: offer, accepted and committed mostly share one.
constexpr uint8_t kNoValue = 0xff;

uint8_t value_index(const std::vector<const Proposal*>& values, const ProposalPtr& value) {
  for (size_t i = 0; i < values.size(); ++i)
    if (value != nullptr && values[i]->same_value(*value)) return static_cast<uint8_t>(i);
  return kNoValue;
}

void write_ballot_proposal(Writer& out, const BallotProposal& offer,
                           const std::vector<const Proposal*>& values) {
  out.number(value_index(values, offer.value));
  out.number(offer.ballot.round);
  out.number(offer.ballot.suspected);
  out.number(offer.leader);
}

bool read_value(Reader& in, const std::vector<ProposalPtr>& values, ProposalPtr* value) {
  uint8_t index = 0;
  if (!in.number(&index)) return false;
  if (index == kNoValue) return true;
  if (index >= values.size()) return in.fail("value out of range");
  *value = values[index];
  return true;
}

bool read_ballot_proposal(Reader& in, const std::vector<ProposalPtr>& values,
                          BallotProposal* offer) {
  return read_value(in, values, &offer->value) && in.number(&offer->ballot.round) &&
         in.number(&offer->ballot.suspected) && in.slot(&offer->leader, true);
}

bool read_catch_up_item(Reader& in, CatchUpItem* item) {
  return in.number(&item->comm) && in.number(&item->channel) && in.number(&item->from_seq) &&
         in.number(&item->to_seq) && in.slot(&item->donor, true);
}

bool read_channel(Reader& in, ChannelState* state) {
  return in.number(&state->comm) && in.number(&state->channel) && in.number(&state->done) &&
         in.number(&state->entered);
}

bool read_evidence(Reader& in, Row* row) {
  uint8_t standing = 0;
  if (!in.slot(&row->slot, false) || !in.number(&row->incarnation) || !in.number(&row->version) ||
      !in.number(&row->epoch) || !in.number(&standing))
    return false;
  if (standing > static_cast<uint8_t>(Standing::kGaveUp)) return in.fail("unknown standing");
  row->standing = static_cast<Standing>(standing);
  return in.set(&row->dead) && in.set(&row->left) && in.set(&row->gave_up) &&
         in.set(&row->link_down) && in.set(&row->silent) && in.set(&row->evict) &&
         in.list(&row->reasons, 5,
                 [&](Statement* s) { return in.slot(&s->slot, false) && in.text(&s->text); }) &&
         in.number(&row->round) && in.set(&row->suspected) && in.flag(&row->frozen);
}

bool read_change(Reader& in, Row* row) {
  std::vector<ProposalPtr> values;
  uint8_t count = 0;
  if (!in.list(&row->comms, 16, [&](CommState* c) { return read_comm(in, c); }) ||
      !in.list(&row->channels, 32, [&](ChannelState* s) { return read_channel(in, s); }) ||
      !in.list(&row->settle, 24, [&](Settlement* s) { return read_settlement(in, s); }) ||
      !in.list(&row->revoke, 8, [&](uint64_t* comm) { return in.number(comm); }) ||
      !in.list(&row->catch_up, 36, [&](CatchUpItem* i) { return read_catch_up_item(in, i); }) ||
      !in.number(&count))
    return false;
  if (count > 3) return in.fail("too many values");
  for (uint8_t i = 0; i < count; ++i) {
    auto value = std::make_shared<Proposal>();
    if (!read_proposal(in, value.get())) return false;
    values.push_back(std::move(value));
  }
  return read_ballot_proposal(in, values, &row->offer) &&
         read_ballot_proposal(in, values, &row->accepted) &&
         read_value(in, values, &row->committed);
}

bool check_header(Reader& in, uint32_t magic) {
  uint32_t word = 0;
  uint16_t version = 0;
  if (!in.number(&word) || !in.number(&version)) return false;
  if (word != magic) return in.fail("not of this kind");
  if (version != kCodecVersion) return in.fail("unknown version");
  return true;
}

}  // namespace

std::vector<uint8_t> encode_row(const Row& row) {
  Writer out;
  out.number(kRowMagic);
  out.number(kCodecVersion);
  out.number(row.slot);
  out.number(row.incarnation);
  out.number(row.version);
  out.number(row.epoch);
  out.number(static_cast<uint8_t>(row.standing));
  for (const SlotSet* set :
       {&row.dead, &row.left, &row.gave_up, &row.link_down, &row.silent, &row.evict})
    out.set(*set);
  out.list(row.reasons, [&](const Statement& statement) {
    out.number(statement.slot);
    out.text(statement.text);
  });
  out.number(row.round);
  out.set(row.suspected);
  out.flag(row.frozen);
  out.list(row.comms, [&](const CommState& comm) {
    out.number(comm.comm);
    out.number(comm.epoch);
  });
  out.list(row.channels, [&](const ChannelState& state) {
    out.number(state.comm);
    out.number(state.channel);
    out.number(state.done);
    out.number(state.entered);
  });
  out.list(row.settle, [&](const Settlement& settle) {
    out.number(settle.comm);
    out.number(settle.channel);
    out.number(settle.comm_epoch);
  });
  out.list(row.revoke, [&](uint64_t comm) { out.number(comm); });
  out.list(row.catch_up, [&](const CatchUpItem& item) {
    out.number(item.comm);
    out.number(item.channel);
    out.number(item.from_seq);
    out.number(item.to_seq);
    out.number(item.donor);
  });
  std::vector<const Proposal*> values;
  for (const ProposalPtr& value : {row.offer.value, row.accepted.value, row.committed})
    if (value != nullptr && value_index(values, value) == kNoValue) values.push_back(value.get());
  out.number(static_cast<uint8_t>(values.size()));
  for (const Proposal* value : values) write_proposal(out, *value);
  write_ballot_proposal(out, row.offer, values);
  write_ballot_proposal(out, row.accepted, values);
  out.number(value_index(values, row.committed));
  out.number(row.recover_seq);
  out.flag(row.recover_expired);
  out.set(row.recover_wanted);
  out.list(row.ready, [&](const Member& member) { write_member(out, member); });
  return out.take();
}

RowPtr decode_row(std::span<const uint8_t> bytes, uint32_t max_slots, std::string* error) {
  Reader in(bytes, max_slots);
  auto row = std::make_shared<Row>();
  const bool good = check_header(in, kRowMagic) && read_evidence(in, row.get()) &&
                    read_change(in, row.get()) && in.number(&row->recover_seq) &&
                    in.flag(&row->recover_expired) && in.set(&row->recover_wanted) &&
                    in.list(&row->ready, 20, [&](Member* m) { return read_member(in, m); }) &&
                    (in.left() == 0 || in.fail("bytes behind the end"));
  if (good) return row;
  if (error != nullptr) *error = std::string("bad membership row: ") + in.error();
  return nullptr;
}

std::vector<uint8_t> encode_view(const View& view) {
  Writer out;
  out.number(kViewMagic);
  out.number(kCodecVersion);
  out.number(view.epoch);
  out.set(view.members);
  view.members.each([&](uint32_t slot) {
    out.number(view.incarnation(slot));
    out.number(view.host(slot));
  });
  return out.take();
}

bool decode_view(std::span<const uint8_t> bytes, uint32_t max_slots, View* view,
                 std::string* error) {
  Reader in(bytes, max_slots);
  View result;
  SlotSet members;
  bool good = check_header(in, kViewMagic) && in.number(&result.epoch) && in.set(&members);
  members.each([&](uint32_t slot) {
    Member member{slot, 0, 0};
    good = good && in.number(&member.incarnation) && in.number(&member.host);
    // 0 stands for nobody wherever a view is asked.
    if (good && member.incarnation == 0) good = in.fail("a member without an incarnation");
    if (good) result.put(member);
  });
  if (good && in.left() != 0) good = in.fail("bytes behind the end");
  if (good) {
    *view = std::move(result);
  } else if (error != nullptr) {
    *error = std::string("bad membership view: ") + in.error();
  }
  return good;
}

}  // namespace mep::membership
