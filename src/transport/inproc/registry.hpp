// Where the ranks of one process find each other's windows.
//
// Invariants
//   - An entry does not keep its window alive; whoever found it does, until he drops it.
//   - A token is never used again, so an old one finds nothing rather than something else.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "transport/put_gate.hpp"
#include "transport/window.hpp"

namespace mep {

// The gates into the windows of one rank, one for each rank that puts, by the latter's incarnation.
// A gate stays when its rank is forgotten: closed is closed.
class RankGates {
 public:
  std::shared_ptr<PutGate> of(uint64_t incarnation);

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<PutGate>> gates_;
};

class InprocRegistry {
 public:
  struct Entry {
    std::weak_ptr<Window> window;
    std::shared_ptr<RankGates> gates;  // of the window's owner
  };

  static InprocRegistry& instance();

  uint64_t add(Entry entry);
  void remove(uint64_t token);
  // False: never there, or gone.
  bool find(uint64_t token, std::shared_ptr<Window>* window, std::shared_ptr<RankGates>* gates);
  size_t size();

 private:
  std::mutex mutex_;
  uint64_t next_token_ = 1;
  std::map<uint64_t, Entry> entries_;
};

}  // namespace mep
