// The store at a list of addresses. A rank that can bind one of them serves there as meeting point, and each starting
// rank and joiner calls all of them. Nothing here blocks but a name server. In a running world a member takes an
// address over when the process that served there has ended.
#include <algorithm>
#include <cerrno>

#include "base/log.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"
#include "core/bootstrap/meeting_point.hpp"
#include "core/bootstrap/rendezvous.hpp"

namespace mep {
namespace {

constexpr uint64_t kConnectLimitMs = 2000;
constexpr uint64_t kFirstPauseMs = 5;
constexpr uint64_t kLongestPauseMs = 200;
constexpr uint64_t kResolveEveryMs = 1000;
constexpr uint64_t kBindEveryMs = 200;
constexpr uint64_t kTakeOverEveryMs = 1000;
// So long and so often an address must have been wrong before it is believed to stay so.
constexpr uint64_t kWrongLimitMs = 3000;
constexpr unsigned kWrongTimes = 3;

class AddressStore final : public PlaceStore {
 public:
  AddressStore(const ResolvedConfig& config, const SelfDescription& self, RendezvousPurpose purpose,
               const Gate& gate)
      : purpose_(purpose),
        gate_(gate),
        hello_(make_hello(HelloKind::kMeet, config, self)),
        point_(hello_, gate) {}

  mep_result_t open(const std::string& addresses, UniqueFd listener);

  mep_result_t watch() override;
  int fd() const override { return point_.fd(); }
  int wait_ms(int cap) const override;
  bool is_open() const override { return std::any_of(calls_.begin(), calls_.end(), is_answered); }
  mep_result_t put(const Place& place) override;
  void erase(uint32_t slot, uint64_t incarnation) override;
  bool has_own() const override;
  std::vector<Place> get(uint32_t slot) const override;
  std::string explain() const override;
  std::string turned_away() const override { return point_.turned_away(); }
  void settle(const std::vector<Place>& members) override;
  void serve() override { (void)look(); }
  void close() override { point_.close(); }

 private:
  // A connection to whoever serves at a listed address.
  struct Line {
    Line(UniqueFd socket, const JobSecret& secret, const Details& details)
        : link(std::move(socket)), greeting(HandshakeSide::kCaller, true, secret, details) {}
    ControlLink link;
    Greeting greeting;
    Deadline limit = Deadline::after_ms(kConnectLimitMs);
    bool is_made = false;
    bool heard = false;     // something of MEP
    bool answered = false;  // it has told its roll
    std::map<PlaceKey, Place> roll;
  };
  // A listed address.
  struct Call {
    ListedAddress listed;
    std::vector<NetAddress> resolved;
    size_t next = 0;  // of `resolved`, to try
    Deadline next_resolve = Deadline::at(0);
    Deadline next_bind = Deadline::at(0);
    Deadline next_try = Deadline::at(0);
    uint64_t pause_ms = 0;
    bool serves = false;         // this process does
    std::string bind_obstacle;   // why it does not
    std::unique_ptr<Line> line;  // null: none now
    std::string obstacle;        // why there is no answer
    mep_result_t wrong =
        MEP_SUCCESS;           // that nobody can meet there; success: no such thing is known
    bool is_stranger = false;  // it is so since another program has the address
    unsigned wrong_times = 0;
    uint64_t wrong_since_ns = 0;
  };
  static bool is_answered(const Call& call) { return call.line != nullptr && call.line->answered; }
  static bool stays_wrong(const Call& call);
  static std::string explain_call(const Call& call);

  bool look();
  void resolve(Call* call) const;
  void bind_addresses(Call* call);
  void connect(Call* call);
  void converse(Call* call);
  void drop(Call* call, const std::string& obstacle);
  void found_wrong(Call* call, mep_result_t code, const std::string& text);
  void found_stranger(Call* call, bool is_certain, const std::string& does);
  mep_result_t take(Call* call, Frame* frame);
  void take_updates(Call* call, std::vector<EntryUpdate>&& updates);
  void tell_own(Line* line) const;
  // Members and starting ranks serve; a joiner would be a meeting point at which nobody is.
  bool may_serve() const { return purpose_ == RendezvousPurpose::kStart || settled_; }

  const RendezvousPurpose purpose_;
  const Gate& gate_;
  const Hello hello_;
  const Details no_details_;
  MeetingPoint point_;
  std::vector<Call> calls_;
  Place own_;  // incarnation 0: not put yet
  bool settled_ = false;
  mep_result_t failure_ = MEP_SUCCESS;  // of the start, told by who knows the secret
  std::string failure_text_;
};

mep_result_t AddressStore::open(const std::string& addresses, UniqueFd listener) {
  if (point_.fd() < 0) return fail_call("the rendezvous", "epoll_create1", errno);
  std::vector<ListedAddress> listed;
  MEP_TRY(parse_address_list(addresses, &listed));
  for (ListedAddress& address : listed) {
    calls_.emplace_back();
    calls_.back().listed = std::move(address);
    calls_.back().serves = listener.valid();
  }
  if (listener.valid()) point_.add_listener(std::move(listener));
  return MEP_SUCCESS;
}

mep_result_t AddressStore::watch() {
  for (Call& call : calls_) resolve(&call);
  const bool is_heard = look();
  for (Call& call : calls_) {
    if (call.line == nullptr) connect(&call);
    if (call.line != nullptr && (is_heard || !call.line->answered)) converse(&call);
  }
  if (failure_ != MEP_SUCCESS) return fail(failure_, "%s", failure_text_.c_str());
  if (is_open()) return MEP_SUCCESS;
  const Call* wrong = nullptr;
  size_t strangers = 0;
  for (const Call& call : calls_) {
    if (!stays_wrong(call)) continue;
    strangers += call.is_stranger ? 1 : 0;
    // Beside another program's address there may be a right one.
    if (!call.is_stranger || strangers == calls_.size()) wrong = &call;
  }
  if (wrong == nullptr) return MEP_SUCCESS;
  return fail(wrong->wrong, "%s", explain_call(*wrong).c_str());
}

// Whether a line may have something to read or to write.
bool AddressStore::look() {
  for (Call& call : calls_) bind_addresses(&call);
  return point_.progress();
}

int AddressStore::wait_ms(int cap) const {
  int limit_ms = point_.wait_ms(cap);
  for (const Call& call : calls_) {
    if (is_answered(call)) continue;
    const bool is_named = !call.resolved.empty();
    if (is_named && !call.serves && may_serve()) limit_ms = call.next_bind.left_ms(limit_ms);
    if (settled_ || (!is_named && is_open())) continue;
    const Deadline& next = !is_named              ? call.next_resolve
                           : call.line != nullptr ? call.line->limit
                                                  : call.next_try;
    limit_ms = next.left_ms(limit_ms);
  }
  return limit_ms;
}

mep_result_t AddressStore::put(const Place& place) {
  if (settled_) {
    point_.add(place);
    return MEP_SUCCESS;
  }
  own_ = place;
  for (const Call& call : calls_) {
    if (is_answered(call)) tell_own(call.line.get());
  }
  return MEP_SUCCESS;
}

// A meeting point tells everybody, the sender too, of each place in the order in which they came.
bool AddressStore::has_own() const {
  return std::all_of(calls_.begin(), calls_.end(), [this](const Call& call) {
    return !is_answered(call) || call.line->roll.contains(own_.key());
  });
}

std::vector<Place> AddressStore::get(uint32_t slot) const {
  std::map<uint64_t, Place> found;  // by incarnation
  for (const Call& call : calls_) {
    if (call.line == nullptr) continue;
    const auto& roll = call.line->roll;
    for (auto each = roll.lower_bound({slot, 0}); each != roll.end() && each->first.first == slot;
         ++each) {
      found.emplace(each->first.second, each->second);
    }
  }
  std::vector<Place> places;
  places.reserve(found.size());
  for (auto& [incarnation, place] : found) places.push_back(std::move(place));
  return places;
}

std::string AddressStore::explain() const {
  if (is_open()) return {};
  std::string text;
  for (const Call& call : calls_) text += (text.empty() ? "" : "; ") + explain_call(call);
  return text;
}

std::string AddressStore::explain_call(const Call& call) {
  const std::string text = "meeting point " + call.listed.text() + ": " +
                           (call.obstacle.empty() ? "no answer" : call.obstacle);
  return call.bind_obstacle.empty() ? text : text + " (" + call.bind_obstacle + ")";
}

void AddressStore::settle(const std::vector<Place>& members) {
  settled_ = true;
  for (Call& call : calls_) call.line.reset();
  point_.settle(members);
}

// Before the world runs, a place goes with its process's connection.
void AddressStore::erase(uint32_t slot, uint64_t incarnation) {
  if (!settled_) return;
  point_.forget({slot, incarnation});
  // Perhaps the one that served; its address is free as soon as its process has ended.
  for (Call& call : calls_) call.next_bind = Deadline::at(0);
}

// --- Serving --------------------------------------------------------------------------------------

// A name server may take its time, so a name is asked for only while it is needed.
void AddressStore::resolve(Call* call) const {
  if (!call->resolved.empty() || !call->next_resolve.expired() || is_open()) return;
  std::string reason;
  call->resolved = resolve_address(call->listed, &reason);
  call->next_resolve = Deadline::after_ms(kResolveEveryMs);
  call->obstacle = call->resolved.empty()
                       ? "the name '" + call->listed.host + "' is not known: " + reason
                       : std::string();
}

void AddressStore::bind_addresses(Call* call) {
  // While somebody else serves there, nobody can take it.
  if (call->serves || is_answered(*call) || !may_serve() || !call->next_bind.expired()) return;
  call->next_bind = Deadline::after_ms(settled_ ? kTakeOverEveryMs : kBindEveryMs);
  for (const NetAddress& address : call->resolved) {
    // A host's name often leads to loopback on the host itself, where others cannot follow.
    const bool is_name =
        call->listed.host != "localhost" &&
        call->listed.host.find_first_not_of("0123456789.:abcdefABCDEF") != std::string::npos;
    UniqueFd listener;
    bool taken = false;
    uint16_t port = address.port;
    if (listen_tcp(is_name && is_loopback(address) ? nullptr : &address, &listener, &taken,
                   &port) != MEP_SUCCESS) {
      call->bind_obstacle = "this rank cannot serve there: " + std::string(last_error_text());
      continue;
    }
    if (taken) call->bind_obstacle = "on this host the address is in use";
    if (!listener.valid()) continue;
    log(LogLevel::kInfo, "this rank is the meeting point at %s", address.text().c_str());
    point_.add_listener(std::move(listener));
    call->serves = true;
    call->bind_obstacle.clear();
    call->next_try = Deadline::at(0);
  }
}

// --- Calling --------------------------------------------------------------------------------------

void AddressStore::connect(Call* call) {
  if (call->resolved.empty() || !call->next_try.expired()) return;
  const NetAddress address = call->resolved[call->next++ % call->resolved.size()];
  UniqueFd socket;
  if (connect_tcp(address, gate_.dead_after_ms, &socket) != MEP_SUCCESS || !socket.valid()) {
    return drop(call, "it cannot be reached");
  }
  point_.watch(socket.get());
  call->line = std::make_unique<Line>(std::move(socket), gate_.secret, no_details_);
  if (call->line->greeting.call(&call->line->link, hello_) != MEP_SUCCESS) {
    drop(call, last_error_text());
  }
}

void AddressStore::converse(Call* call) {
  Line& line = *call->line;
  line.is_made = line.is_made || is_connected(line.link.fd());
  if (line.link.has_queued_output()) (void)line.link.flush_output();
  mep_result_t answer = MEP_SUCCESS;
  const mep_result_t received = line.link.receive([&](Frame& frame) {
    line.heard = true;
    if (std::exchange(call->is_stranger, false)) call->wrong = MEP_SUCCESS;
    answer = take(call, &frame);
    return answer == MEP_SUCCESS;
  });
  const bool is_silent = line.is_made && !line.heard;
  if (answer != MEP_SUCCESS && answer != MEP_ERR_PEER_FAILED) {
    found_wrong(call, answer, last_error_text());
  } else if (received == MEP_ERR_DENIED && !line.heard) {
    found_stranger(call, true, "sends what MEP does not say");
  } else if (received == MEP_ERR_PEER_FAILED && is_silent) {
    // So does what stands before a meeting point that is not there yet, but not on the host itself.
    found_stranger(call, !call->bind_obstacle.empty(), "closes each connection");
  } else if (answer != MEP_SUCCESS || received != MEP_SUCCESS) {
    drop(call, last_error_text());
  } else if (!line.answered && line.limit.expired()) {
    drop(call, is_silent ? "it takes connections and says nothing; if it is another program, "
                           "choose another port for MEP_RENDEZVOUS"
                         : "no answer");
  }
}

void AddressStore::drop(Call* call, const std::string& obstacle) {
  if (call->wrong == MEP_SUCCESS) call->obstacle = obstacle;
  call->line.reset();
  call->pause_ms = std::clamp(2 * call->pause_ms, kFirstPauseMs, kLongestPauseMs);
  call->next_try = Deadline::after_ms(call->pause_ms);
}

void AddressStore::found_wrong(Call* call, mep_result_t code, const std::string& text) {
  if (call->wrong != code) {
    call->wrong_times = 0;
    call->wrong_since_ns = now_ns();
  }
  ++call->wrong_times;
  call->wrong = code;
  call->obstacle = text;
  drop(call, text);
}

// is_certain: no meeting point does so, nor anything that stands before one.
void AddressStore::found_stranger(Call* call, bool is_certain, const std::string& does) {
  const std::string text = "what answers there is not a rendezvous of MEP, it " + does +
                           ": choose another port for MEP_RENDEZVOUS";
  if (!is_certain) return drop(call, text);
  call->is_stranger = true;
  found_wrong(call, MEP_ERR_BOOTSTRAP, text);
}

bool AddressStore::stays_wrong(const Call& call) {
  return call.wrong != MEP_SUCCESS && call.wrong_times >= kWrongTimes &&
         now_ns() - call.wrong_since_ns >= kWrongLimitMs * 1'000'000;
}

// MEP_ERR_PEER_FAILED: this line is of no use, another one may be. Any other error: nobody can meet there.
mep_result_t AddressStore::take(Call* call, Frame* frame) {
  Greeting& greeting = call->line->greeting;
  if (frame->type == kRetryFrame)
    return fail(MEP_ERR_PEER_FAILED, "it is full, or still in an earlier world of this job");
  if (frame->type == kAbortFrame) {
    Abort abort;
    if (!decode_abort(frame->payload, &abort)) return fail(MEP_ERR_DENIED, "a malformed refusal");
    // Sealed: from somebody who knows the secret, and so true. Else it may be anybody's.
    if (!greeting.done()) return fail(abort.code, "%s", abort.text.c_str());
    failure_ = abort.code;
    failure_text_ = abort.text;
    return MEP_SUCCESS;
  }
  if (greeting.done()) {
    std::vector<EntryUpdate> updates;
    if (frame->type != kEntriesFrame || !decode_updates(frame->payload, &updates))
      return fail(MEP_ERR_DENIED, "it says what does not belong here");
    take_updates(call, std::move(updates));
    return MEP_SUCCESS;
  }
  Greeting::Step step = Greeting::Step::kMore;
  mep_result_t result = greeting.take(&call->line->link, frame, &step);
  const Hello& hello = greeting.hello();
  if (result == MEP_SUCCESS && step == Greeting::Step::kOther)
    return fail(MEP_ERR_DENIED, "it says what does not belong here");
  if (result == MEP_SUCCESS && frame->type == kHelloFrame &&
      (hello.kind != HelloKind::kMeet || hello.job != hello_.job)) {
    result = fail(MEP_ERR_BOOTSTRAP, "another job's rank serves there");
  }
  if (result != MEP_SUCCESS && result != MEP_ERR_PEER_FAILED)
    (void)send_abort(&call->line->link, result, -1);
  return result;
}

void AddressStore::take_updates(Call* call, std::vector<EntryUpdate>&& updates) {
  Line& line = *call->line;
  if (!std::exchange(line.answered, true) && own_.incarnation != 0) tell_own(&line);
  call->pause_ms = 0;
  call->wrong = MEP_SUCCESS;
  call->obstacle.clear();
  for (EntryUpdate& each : updates) {
    line.roll.erase(each.place.key());
    if (!each.gone) line.roll.emplace(each.place.key(), std::move(each.place));
  }
}

void AddressStore::tell_own(Line* line) const {
  Place place = own_;
  // The address that leads to the meeting point leads, more likely than others, to the other ranks.
  NetAddress best;
  if (own_address(line->link.fd(), &best) && !place.addresses.empty()) {
    best.port = place.addresses[0].port;
    std::erase(place.addresses, best);
    place.addresses.insert(place.addresses.begin(), best);
    if (place.addresses.size() > kMaxAddresses) place.addresses.pop_back();
  }
  (void)line->link.send(kEntriesFrame, encode_own_entry(purpose_, place));
}

}  // namespace

mep_result_t make_address_store(const ResolvedConfig& config, const SelfDescription& self,
                                RendezvousPurpose purpose, const Gate& gate,
                                const std::string& addresses, UniqueFd listener,
                                std::unique_ptr<PlaceStore>* out) {
  auto store = std::make_unique<AddressStore>(config, self, purpose, gate);
  MEP_TRY(store->open(addresses, std::move(listener)));
  *out = std::move(store);
  return MEP_SUCCESS;
}

}  // namespace mep
