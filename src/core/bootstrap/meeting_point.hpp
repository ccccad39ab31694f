// The serving side of a rendezvous by address: who knows the job's secret writes down where it is and
// reads where the others are.
//
// During a start the roll has who is connected; in a running world it has the members, and beside
// them the joiners that are connected. Strangers are dropped; no byte of the roll leaves before the
// other end has proven itself. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/bootstrap/greeting.hpp"
#include "core/bootstrap/place_store.hpp"

namespace mep {

// A change of the roll, as kEntriesFrame carries it: u32 count, then each: u8 gone, the place.
struct EntryUpdate {
  bool gone = false;
  Place place;
};
std::vector<std::byte> encode_updates(std::span<const EntryUpdate> updates);
bool decode_updates(std::span<const std::byte> payload, std::vector<EntryUpdate>* updates);
// From a guest: u8 purpose, the place.
std::vector<std::byte> encode_own_entry(RendezvousPurpose purpose, const Place& place);

class MeetingPoint {
 public:
  MeetingPoint(Hello hello, const Gate& gate);

  // Readable when progress() has something to do; -1: no descriptor was left.
  int fd() const { return epoll_.get(); }
  // fd() tells of this socket too, each time that it can be read or written anew.
  void watch(int socket) const;
  // Milliseconds until progress() has something to do for the time alone, at most `cap`.
  int wait_ms(int cap) const;
  // Looks at everything without blocking. True: fd() has told of a socket that is not this one's own.
  bool progress();

  void add_listener(UniqueFd listener);
  void settle(const std::vector<Place>& members);
  void add(const Place& member);
  void forget(const PlaceKey& key);
  // Nobody is served any more.
  void close();

  // The first caller that could not stay, and why; empty: nobody.
  const std::string& turned_away() const { return turned_away_; }

 private:
  struct Guest : Incoming {
    using Incoming::Incoming;
    PlaceKey place;  // incarnation 0: it has told none
    std::vector<EntryUpdate> unsent;
    bool gone = false;
  };
  struct Entry {
    Place place;
    const Guest* guest = nullptr;  // null: a member
  };

  void accept_all();
  void make_room();
  void serve(Guest* guest);
  void take(Guest* guest, Frame* frame);
  void take_hello(Guest* guest);
  void take_place(Guest* guest, const Frame& frame);
  void note_turned_away(const Guest& guest, const char* text);
  void refuse(Guest* guest, mep_result_t code);
  void refuse_double(Guest* guest, const Place& place, const Place& other);
  void tell_everybody(const EntryUpdate& updates);
  void send_news(Guest* guest);
  void remove(const Guest& guest);

  Hello hello_;
  const Gate& gate_;
  Details no_details_;
  UniqueFd epoll_;
  std::vector<UniqueFd> listeners_;
  std::map<int, Guest> guests_;  // by socket
  std::map<PlaceKey, Entry> roll_;
  std::string turned_away_;
  bool running_ = false;
};

}  // namespace mep
