#include "core/coll/call_board.hpp"

#include "protocol/signal_word.hpp"
#include "protocol/types.hpp"

namespace mep {
namespace {

constexpr size_t kWhich = 0;
constexpr size_t kWhat = 8;
constexpr size_t kCount = 16;

}  // namespace

const char* name_of_call(Collective kind, const CollectiveArgs& args) {
  switch (args.purpose) {
    case CallPurpose::kSplit:
      return "mep_comm_split or mep_comm_dup";
    case CallPurpose::kShrink:
      return "mep_comm_shrink";
    case CallPurpose::kAgree:
      return "mep_comm_agree";
    case CallPurpose::kEp:
      return "mep_ep_create or mep_ep_set_expert_map";
    case CallPurpose::kCall:
      return name_of(kind);
  }
  return "unknown";
}

std::string text_of_call(Collective kind, const CollectiveArgs& args) {
  if (args.purpose != CallPurpose::kCall) return name_of_call(kind, args);
  std::string text = std::string("mep_") + name_of(kind);
  if (!is_collective(kind)) return text;
  const OperationFacts& facts = facts_of(kind);
  if (facts.has_data()) {
    text += " of ";
    if (!facts.has_counts) text += std::to_string(args.count) + " ";
    text += type_facts(args.dtype).name;
  }
  if (facts.takes_op) text += std::string(" (") + name_of_operator(args.op) + ")";
  if (facts.is_rooted) text += " with root " + std::to_string(args.root);
  return text;
}

CallBoard::Card CallBoard::card_of(const Operation& operation) {
  const CollectiveArgs& args = operation.args;
  const uint64_t what = uint64_t{static_cast<uint32_t>(args.root)} |
                        (static_cast<uint64_t>(operation.kind) & 0xff) << 32 |
                        (uint64_t{args.dtype} & 0xff) << 40 | (uint64_t{args.op} & 0xff) << 48 |
                        static_cast<uint64_t>(args.purpose) << 56;
  return {counted_signal(operation.epoch, operation.seq), what, args.count};
}

void CallBoard::publish(const Operation& operation, const std::vector<uint32_t>& live,
                        const PostingScope& posting) {
  note(operation);
  const Card own = card_of(operation);
  const size_t at = card(rank_, operation.seq);
  for (const uint32_t peer : live) {
    if (!posting.allowed()) return;
    if (peer == rank_) continue;
    const Remote& remote = (*remotes_)[peer];
    // Each publishes the words before it: who sees `which` sees the call.
    if (remote.signal(at + kWhich, 0) != MEP_SUCCESS) continue;
    if (remote.signal(at + kWhat, own.what) != MEP_SUCCESS) continue;
    if (remote.signal(at + kCount, own.count) != MEP_SUCCESS) continue;
    (void)remote.signal(at + kWhich, own.which);
  }
}

CallBoard::Card CallBoard::load(uint32_t source, uint64_t seq) const {
  if (source == rank_) return own_[seq % kCards];
  const std::byte* window = (*remotes_)[rank_].mapped;
  const size_t at = card(source, seq);
  const Card found{load_signal(window, at + kWhich), load_signal(window, at + kWhat),
                   load_signal(window, at + kCount)};
  // The writer begins with 0: what was read belongs together.
  return load_signal(window, at + kWhich) == found.which ? found : Card{};
}

bool CallBoard::read(uint64_t epoch, uint64_t seq, uint32_t source, Collective* kind,
                     CollectiveArgs* args) const {
  const Card found = load(source, seq);
  if (found.which != counted_signal(epoch, seq)) return false;
  args->count = found.count;
  args->root = static_cast<int32_t>(found.what & 0xffffffff);
  *kind = static_cast<Collective>((found.what >> 32) & 0xff);
  args->dtype = static_cast<mep_dtype_t>((found.what >> 40) & 0xff);
  args->op = static_cast<mep_op_t>((found.what >> 48) & 0xff);
  args->purpose = static_cast<CallPurpose>(found.what >> 56);
  return true;
}

}  // namespace mep
