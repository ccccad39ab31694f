// Which halves of a dispatch or combine a call does.
#pragma once

namespace mep_test {

enum class Halves { kBoth, kSend, kReceive };

constexpr bool sends(Halves halves) {
  return halves != Halves::kReceive;
}
constexpr bool receives(Halves halves) {
  return halves != Halves::kSend;
}

// The struct that a call is given for a half: null if it does not do it.
template <class Struct>
const Struct* if_sends(Halves halves, const Struct& given) {
  return sends(halves) ? &given : nullptr;
}
template <class Struct>
const Struct* if_receives(Halves halves, const Struct& given) {
  return receives(halves) ? &given : nullptr;
}

}  // namespace mep_test
