// The places of a job's ranks over several hosts: each rank writes its own place down and reads the others'. They say
// only where to knock; the process that opens proves itself on the connection.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "core/bootstrap/handshake.hpp"
#include "core/bootstrap/hello.hpp"
#include "core/bootstrap/net_address.hpp"
#include "mep.h"

namespace mep {

struct Place {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  uint64_t host = 0;
  int32_t pid = 0;
  std::vector<NetAddress> addresses;
};
void write_place(const Place& place, ByteWriter* writer);
// False: malformed.
bool read_place(ByteReader* reader, Place* place);

enum class RendezvousPurpose { kStart, kJoin };

// All functions by one thread at a time. Before settle() the rank is starting or joining, after it a
// member of a running world.
class RendezvousEntries {
 public:
  virtual ~RendezvousEntries() = default;
  // Looks for what is new. An error ends the start: somebody who knows the secret said so, or
  // nothing that was given as rendezvous can be used.
  [[nodiscard]] virtual mep_result_t progress() = 0;
  // The next progress() looks, however lately it has.
  virtual void look_again() {}
  // Readable when progress() has something to do; -1: it must be called now and then.
  virtual int fd() const { return -1; }
  // Whether the others' places are known as far as they can be now.
  virtual bool is_open() const = 0;
  [[nodiscard]] virtual mep_result_t announce(const Place& own) = 0;
  virtual void withdraw() = 0;
  // Whether the announced place is written down, and what was written down before it is known here.
  virtual bool is_announced() const { return true; }
  // Places that were written down for the slot; an old one may be among them.
  virtual std::vector<Place> find(uint32_t slot) const = 0;
  // The reason why it does not know more, for the text of a failed start.
  virtual std::string explain() const = 0;
  // Somebody who was not let in at this process's meeting point, for the same text.
  virtual std::string turned_away() const { return {}; }
  // From now on joiners may look for `members`.
  virtual void settle(const std::vector<Place>& members) = 0;
  virtual void add(const Place& member) = 0;
  virtual void forget(uint32_t slot, uint64_t incarnation) = 0;
};

// All that makes a process reachable: kept by a running world, so that joiners find it and are let in.
struct Gate {
  JobSecret secret;
  Details details;            // what this rank tells its peers
  UniqueFd network_listener;  // invalid: a job on one host
  uint32_t dead_after_ms = 10000;
  std::unique_ptr<RendezvousEntries> book;  // null: a job on one host
};

}  // namespace mep
