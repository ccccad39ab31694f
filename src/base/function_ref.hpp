// A callable that somebody else keeps, for the time of a call: unlike std::function it needs no memory.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace mep {

template <typename Signature>
class FunctionRef;

template <typename Result, typename... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <typename Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef> &&
           std::is_invocable_r_v<Result, Callable&, Arguments...>)
      FunctionRef(
          Callable&&
              callable)  // NOLINT(google-explicit-constructor): a parameter, like a reference
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        invoke_([](void* object, Arguments... arguments) -> Result {
          return (*static_cast<std::remove_reference_t<Callable>*>(object))(
              std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const {
    return invoke_(object_, std::forward<Arguments>(arguments)...);
  }

 private:
  void* object_;
  Result (*invoke_)(void* object, Arguments... arguments);
};

}  // namespace mep
