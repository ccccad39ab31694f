#include "core/coll/fingerprint.hpp"

#include <iterator>

#include "core/coll/eager_ring.hpp"
#include "protocol/types.hpp"

namespace mep {
namespace {

// Bits of a root's call: 0-14 count, 15-20 type, 21 which of the kinds. All of them are mixed with the root.
constexpr uint32_t kTypeShift = 15;
constexpr uint32_t kKindShift = 21;
constexpr uint32_t kCountMask = (1u << kTypeShift) - 1;
constexpr uint32_t kTypeMask = (1u << (kKindShift - kTypeShift)) - 1;
constexpr Collective kKinds[] = {Collective::k_broadcast, Collective::k_scatter};

static_assert(EagerRing::kSentPayloadBytes <= kCountMask);
static_assert(kTypeSlots <= kTypeMask + 1);
static_assert(std::size(kKinds) <= kFingerprintMask >> kKindShift << 1);

uint32_t mix_of_root(uint32_t root) {
  return (root + 1) * 0x9e3779b1u >> 10 & kFingerprintMask;
}

}  // namespace

uint32_t fingerprint_of(Collective kind, const CollectiveArgs& args) {
  uint64_t hash = 1;
  for (const uint64_t value :
       {static_cast<uint64_t>(kind) | static_cast<uint64_t>(args.purpose) << 32,
        static_cast<uint64_t>(args.count), uint64_t{args.dtype}, uint64_t{args.op},
        static_cast<uint64_t>(args.root)}) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return static_cast<uint32_t>(hash >> 24) & kFingerprintMask;
}

uint32_t fingerprint_from_root(Collective kind, const CollectiveArgs& args) {
  const uint32_t which = kind == kKinds[0] ? 0 : 1;
  const uint32_t call =
      which << kKindShift | args.dtype << kTypeShift | static_cast<uint32_t>(args.count);
  return call ^ mix_of_root(static_cast<uint32_t>(args.root));
}

bool read_call_of_root(uint32_t fingerprint, uint32_t root, Collective* kind,
                       CollectiveArgs* args) {
  const uint32_t call = (fingerprint & kFingerprintMask) ^ mix_of_root(root);
  *kind = kKinds[call >> kKindShift];
  args->dtype = call >> kTypeShift & kTypeMask;
  args->count = call & kCountMask;
  args->root = static_cast<int32_t>(root);
  return mep_dtype_size(args->dtype) != 0;
}

}  // namespace mep
