// The key-value store of a start: under a rank and an incarnation it has the place where that process listens for
// ranks of other hosts. A place says only where to knock; the process that opens proves itself on the connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/bootstrap/bootstrap.hpp"
#include "core/bootstrap/handshake.hpp"
#include "core/bootstrap/hello.hpp"
#include "core/bootstrap/net_address.hpp"
#include "mep.h"

namespace mep {

using PlaceKey = std::pair<uint32_t, uint64_t>;  // slot and incarnation

struct Place {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  uint64_t host = 0;
  int32_t pid = 0;
  std::vector<NetAddress> addresses;

  PlaceKey key() const { return {slot, incarnation}; }
};
Place place_of(const PeerIdentity& identity, const std::vector<NetAddress>& addresses);
void write_place(const Place& place, ByteWriter* writer);
// False: malformed. A place may have no address.
bool read_place(ByteReader* reader, Place* place);

// A place where somebody else may write: in a file of a directory, in the caller's store.
std::vector<std::byte> encode_place_record(const std::string& job, const Place& place);
// False: no place of this job in this protocol's version. *version is the record's; 0: no record at all.
bool decode_place_record(std::span<const std::byte> bytes, const std::string& job,
                         uint32_t* version, Place* place);

enum class RendezvousPurpose { kStart, kJoin };

// All functions by one thread at a time. Before settle() the rank is starting or joining and calls watch(); after it
// the rank is a member of a running world and calls serve(). This class itself is the store of a job on one host: it
// stays empty, since the kernel has the ranks' names.
class PlaceStore {
 public:
  virtual ~PlaceStore() = default;
  // Looks for what is new. An error ends the start: somebody who knows the secret said so, or
  // nothing that was given as rendezvous can be used.
  [[nodiscard]] virtual mep_result_t watch() { return MEP_SUCCESS; }
  // The next watch() looks, however lately it has.
  virtual void look_again() {}
  // Readable when watch() or serve() has something to do; -1: watch() must be called now and then.
  virtual int fd() const { return -1; }
  // Milliseconds until they have something to do for the time alone, at most `cap`.
  virtual int wait_ms(int cap) const { return cap; }
  // Whether the others' places are known as far as they can be now.
  virtual bool is_open() const { return true; }
  // The own place; in a running world any member's.
  [[nodiscard]] virtual mep_result_t put(const Place& place) {
    (void)place;
    return MEP_SUCCESS;
  }
  // Whether the own place can be found by others, and what was put before it is known here.
  virtual bool has_own() const { return true; }
  virtual void erase(uint32_t slot, uint64_t incarnation) {
    (void)slot;
    (void)incarnation;
  }
  // Places that were put for the slot; an old one may be among them.
  virtual std::vector<Place> get(uint32_t slot) const {
    (void)slot;
    return {};
  }
  // From now on joiners may look for `members`.
  virtual void settle(const std::vector<Place>& members) { (void)members; }
  // Answers joiners that ask here.
  virtual void serve() {}
  // Nobody is answered here any more.
  virtual void close() {}
  // The reason why it does not know more, for the text of a failed start.
  virtual std::string explain() const { return {}; }
  // Somebody who was not let in at this process's meeting point, for the same text.
  virtual std::string turned_away() const { return {}; }
};

// All that makes a process reachable: kept by a running world, so that joiners find it and are let in.
struct Gate {
  JobSecret secret;
  Details details;            // what this rank tells its peers
  UniqueFd network_listener;  // invalid: a job on one host
  uint32_t dead_after_ms = 10000;
  std::unique_ptr<PlaceStore> places = std::make_unique<PlaceStore>();
};

}  // namespace mep
