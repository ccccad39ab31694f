// Rendezvous by address list. A thread of its own talks with the meeting points, and is one where it
// can bind a listed address: so a name server, a flood of strangers or a dead host keeps nobody else
// waiting. In a running world the thread goes on only to take an address over when the one that
// served it has ended.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/request_event.hpp"
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
constexpr uint64_t kTakeOverEveryMs = 1000;
// So long all meeting points must refuse before that is believed: one of them may be a stranger.
constexpr uint64_t kRefusedLimitMs = 3000;
// So long and so often another program must have answered before it is believed to stay.
constexpr uint64_t kStrangerLimitMs = 1000;
constexpr unsigned kStrangerTimes = 3;
constexpr int kLongestWaitMs = 1000;

class AddressStore final : public PlaceStore {
 public:
  AddressStore(const ResolvedConfig& config, const SelfDescription& self, RendezvousPurpose purpose,
               const Gate& gate)
      : self_(self),
        purpose_(purpose),
        gate_(gate),
        hello_(make_hello(HelloKind::kMeet, config, self)),
        point_(hello_, gate) {}
  ~AddressStore() override;

  mep_result_t open(const std::string& addresses, UniqueFd listener);

  mep_result_t watch() override;
  int fd() const override { return update_event_.get(); }
  bool is_open() const override;
  mep_result_t put(const Place& place) override;
  void erase(uint32_t slot, uint64_t incarnation) override;
  bool has_own() const override;
  std::vector<Place> get(uint32_t slot) const override;
  std::string explain() const override;
  std::string turned_away() const override;
  void settle(const std::vector<Place>& members) override;

 private:
  // A listed address, and the connection to whoever serves there.
  struct Client {
    ListedAddress listed;
    std::vector<NetAddress> resolved;
    size_t next = 0;  // of `resolved`, to try
    Deadline next_resolve = Deadline::at(0);
    Deadline next_bind = Deadline::at(0);
    uint64_t bind_pause_ms = kLongestPauseMs;
    Deadline next_try = Deadline::at(0);
    uint64_t pause_ms = 0;
    bool serves = false;  // this process does
    std::unique_ptr<ControlLink> link;
    std::unique_ptr<Greeting> greeting;
    bool broken = false;  // the link is to be closed, but may be in use
    Deadline limit = Deadline::never();
    bool open = false;          // it has told its roll
    uint64_t told_version = 0;  // of the own place
    std::map<std::pair<uint32_t, uint64_t>, Place> roll;
    bool is_made = false;       // the connection
    bool heard = false;         // something of MEP, by this connection
    std::string bind_obstacle;  // why this process does not serve there
    std::string stranger;       // what another program does there; empty: none is known
    unsigned strange_answers = 0;
    uint64_t strange_since_ns = 0;
    bool stranger_stays = false;
    std::string obstacle;
    mep_result_t refusal = MEP_SUCCESS;
    uint64_t refused_since_ns = 0;
  };

  void loop();
  void round(std::unique_lock<std::mutex>* lock);
  void give_up_for_memory();
  void wake() const { ring_event(wake_.get()); }
  void signal_update() const { ring_event(update_event_.get()); }
  void resolve(std::unique_lock<std::mutex>* lock);
  void bind_addresses(Client* client);
  void serve_client(Client* client);
  void connect(Client* client);
  void converse(Client* client);
  void drop(Client* client, const std::string& obstacle);
  void refused(Client* client, mep_result_t code, const std::string& text);
  void found_stranger(Client* client, bool is_certain, const char* does);
  static std::string explain_client(const Client& client);
  void take(Client* client, Frame* frame);
  void take_abort(Client* client, const Frame& frame);
  void tell_entry(Client* client);
  int wait_ms() const;
  // Members and starting ranks serve; a joiner would be a meeting point at which nobody is.
  bool may_serve() const { return purpose_ == RendezvousPurpose::kStart || settled_; }

  const SelfDescription self_;
  const RendezvousPurpose purpose_;
  const Gate& gate_;
  const Hello hello_;
  UniqueFd wake_;
  UniqueFd update_event_;
  std::thread thread_;

  mutable std::mutex mutex_;  // guards all below
  MeetingPoint point_;
  std::vector<Client> clients_;
  Details no_details_;
  Place own_;
  uint64_t own_version_ = 0;  // 0: not announced
  bool settled_ = false;
  bool stopping_ = false;
  mep_result_t failure_ = MEP_SUCCESS;
  std::string failure_text_;
};

AddressStore::~AddressStore() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

mep_result_t AddressStore::open(const std::string& addresses, UniqueFd listener) {
  std::vector<ListedAddress> listed;
  MEP_TRY(parse_address_list(addresses, &listed));
  for (ListedAddress& address : listed) {
    clients_.emplace_back();
    clients_.back().listed = std::move(address);
    clients_.back().serves = listener.valid();
  }
  if (listener.valid()) point_.add_listener(std::move(listener));
  MEP_TRY(open_eventfd("the rendezvous", 0, &wake_));
  MEP_TRY(open_eventfd("the rendezvous", 0, &update_event_));
  return start_library_thread(
      "the rendezvous thread", [this] { loop(); }, &thread_);
}

mep_result_t AddressStore::watch() {
  uint64_t count = 0;
  (void)!read(update_event_.get(), &count, sizeof count);
  const std::lock_guard lock(mutex_);
  if (failure_ != MEP_SUCCESS) return fail(failure_, "%s", failure_text_.c_str());
  const Client* refused = nullptr;
  size_t strangers = 0;
  for (const Client& client : clients_) {
    if (client.open) return MEP_SUCCESS;
    strangers += client.stranger_stays ? 1 : 0;
    if (client.refusal != MEP_SUCCESS &&
        now_ns() - client.refused_since_ns > kRefusedLimitMs * 1'000'000) {
      refused = &client;
    }
  }
  if (strangers > 0 && strangers == clients_.size()) {
    return fail(MEP_ERR_BOOTSTRAP, "%s", explain_client(clients_[0]).c_str());
  }
  if (refused == nullptr) return MEP_SUCCESS;
  return fail(refused->refusal, "%s", refused->obstacle.c_str());
}

bool AddressStore::is_open() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(clients_.begin(), clients_.end(),
                     [](const Client& client) { return client.open; });
}

mep_result_t AddressStore::put(const Place& place) {
  const std::lock_guard lock(mutex_);
  if (settled_) {
    point_.add(place);
  } else {
    own_ = place;
    ++own_version_;
  }
  wake();
  return MEP_SUCCESS;
}

// A meeting point tells everybody, the sender too, of each place in the order in which they came.
bool AddressStore::has_own() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(clients_.begin(), clients_.end(), [this](const Client& client) {
    return !client.open || client.roll.contains(own_.key());
  });
}

std::vector<Place> AddressStore::get(uint32_t slot) const {
  const std::lock_guard lock(mutex_);
  std::vector<Place> found;
  for (const Client& client : clients_) {
    const auto begin = client.roll.lower_bound({slot, 0});
    for (auto each = begin; each != client.roll.end() && each->first.first == slot; ++each) {
      const uint64_t incarnation = each->first.second;
      if (std::none_of(found.begin(), found.end(),
                       [&](const Place& other) { return other.incarnation == incarnation; })) {
        found.push_back(each->second);
      }
    }
  }
  return found;
}

std::string AddressStore::explain() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const Client& client : clients_) {
    if (client.open) return {};
    if (!text.empty()) text += "; ";
    text += explain_client(client);
  }
  return text;
}

std::string AddressStore::explain_client(const Client& client) {
  std::string text = "meeting point " + client.listed.text() + ": ";
  if (!client.stranger.empty()) {
    text += "what answers there is not a rendezvous of MEP, it " + client.stranger +
            ": choose another port for MEP_RENDEZVOUS";
  } else {
    text += client.obstacle.empty() ? "no answer" : client.obstacle;
  }
  return client.bind_obstacle.empty() ? text : text + " (" + client.bind_obstacle + ")";
}

std::string AddressStore::turned_away() const {
  const std::lock_guard lock(mutex_);
  return point_.turned_away();
}

void AddressStore::settle(const std::vector<Place>& members) {
  const std::lock_guard lock(mutex_);
  settled_ = true;
  for (Client& client : clients_) {
    client.link.reset();
    client.greeting.reset();
    client.open = false;
    client.roll.clear();
  }
  point_.settle(members);
  wake();
}

// Before the world runs, a place goes with its process's connection.
void AddressStore::erase(uint32_t slot, uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  if (!settled_) return;
  point_.forget(slot, incarnation);
  // Perhaps the one that served; its address is free as soon as its process has ended.
  for (Client& client : clients_) {
    client.next_bind = Deadline::at(0);
    client.bind_pause_ms = kFirstPauseMs;
  }
  wake();
}

// --- The thread -----------------------------------------------------------------------------------

void AddressStore::loop() {
  pthread_setname_np(pthread_self(), "mep-meeting");
  set_log_rank(static_cast<int>(self_.identity.slot));
  std::unique_lock lock(mutex_);
  try {
    while (!stopping_) round(&lock);
  } catch (const std::bad_alloc&) {
    if (!lock.owns_lock()) lock.lock();
    give_up_for_memory();
  }
}

// A start fails; in a running job another member takes over what this rank has served.
void AddressStore::give_up_for_memory() {
  log(LogLevel::kWarn, "no memory for the rendezvous; this rank serves it no more");
  if (!settled_ && failure_ == MEP_SUCCESS) {
    failure_ = MEP_ERR_NO_MEMORY;
    failure_text_ = "out of memory";  // so short that it needs none
    signal_update();
  }
  point_.close();
}

void AddressStore::round(std::unique_lock<std::mutex>* lock) {
  resolve(lock);
  for (Client& client : clients_) {
    bind_addresses(&client);
    if (!settled_) serve_client(&client);
  }
  point_.progress();
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
  point_.add_to_poll(&entries);
  for (const Client& client : clients_) {
    if (client.link == nullptr) continue;
    const int events = POLLIN | (client.link->has_queued_output() ? POLLOUT : 0);
    entries.push_back({client.link->fd(), static_cast<short>(events), 0});
  }
  const int limit_ms = wait_ms();
  lock->unlock();
  (void)poll(entries.data(), entries.size(), limit_ms);
  uint64_t count = 0;
  (void)!read(wake_.get(), &count, sizeof count);
  lock->lock();
}

int AddressStore::wait_ms() const {
  int limit_ms = kLongestWaitMs;
  for (const Client& client : clients_) {
    if (!client.serves && !client.open && may_serve())
      limit_ms = client.next_bind.left_ms(limit_ms);
    if (settled_) continue;
    if (client.link == nullptr) limit_ms = client.next_try.left_ms(limit_ms);
    if (client.link != nullptr && !client.open) limit_ms = client.limit.left_ms(limit_ms);
  }
  return limit_ms;
}

// A name server may take its time: the lock is not held meanwhile.
void AddressStore::resolve(std::unique_lock<std::mutex>* lock) {
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (!clients_[i].resolved.empty() || !clients_[i].next_resolve.expired()) continue;
    const ListedAddress listed = clients_[i].listed;
    std::string reason;
    lock->unlock();
    std::vector<NetAddress> resolved = resolve_address(listed, &reason);
    lock->lock();
    Client& client = clients_[i];
    client.resolved = std::move(resolved);
    client.next_resolve = Deadline::after_ms(kResolveEveryMs);
    if (client.resolved.empty())
      client.obstacle = "the name '" + listed.host + "' is not known: " + reason;
  }
}

void AddressStore::bind_addresses(Client* client) {
  // While somebody else serves there, nobody can take it.
  if (client->serves || client->open || !may_serve() || !client->next_bind.expired()) return;
  client->next_bind = Deadline::after_ms(client->bind_pause_ms);
  if (settled_) client->bind_pause_ms = std::min(2 * client->bind_pause_ms, kTakeOverEveryMs);
  for (const NetAddress& address : client->resolved) {
    if (!is_local_address(address)) continue;
    // A host's name often leads to loopback on the host itself, where others cannot follow.
    const bool is_name =
        client->listed.host != "localhost" &&
        client->listed.host.find_first_not_of("0123456789.:abcdefABCDEF") != std::string::npos;
    UniqueFd listener;
    bool taken = false;
    uint16_t port = address.port;
    if (listen_tcp(is_name && is_loopback(address) ? nullptr : &address, &listener, &taken,
                   &port) != MEP_SUCCESS) {
      client->bind_obstacle = "this rank cannot serve there: " + std::string(last_error_text());
      continue;
    }
    if (!listener.valid()) {
      client->bind_obstacle = "on this host the address is in use";
      continue;
    }
    log(LogLevel::kInfo, "this rank is the meeting point at %s", address.text().c_str());
    point_.add_listener(std::move(listener));
    client->serves = true;
    client->bind_obstacle.clear();
    client->next_try = Deadline::at(0);
  }
}

void AddressStore::connect(Client* client) {
  if (client->resolved.empty() || !client->next_try.expired()) return;
  const NetAddress address = client->resolved[client->next++ % client->resolved.size()];
  UniqueFd socket;
  if (connect_tcp(address, gate_.dead_after_ms, &socket) != MEP_SUCCESS || !socket.valid()) {
    drop(client, "it cannot be reached");
    return;
  }
  client->link = std::make_unique<ControlLink>(std::move(socket));
  client->greeting =
      std::make_unique<Greeting>(HandshakeSide::kCaller, true, gate_.secret, no_details_);
  client->broken = false;
  client->is_made = false;
  client->heard = false;
  client->limit = Deadline::after_ms(kConnectLimitMs);
  client->told_version = 0;
  if (client->greeting->call(client->link.get(), hello_) != MEP_SUCCESS) {
    drop(client, last_error_text());
  }
}

void AddressStore::drop(Client* client, const std::string& obstacle) {
  if (!obstacle.empty() && client->refusal == MEP_SUCCESS) client->obstacle = obstacle;
  client->broken = true;
  client->open = false;
  client->roll.clear();
  client->pause_ms = std::clamp(2 * client->pause_ms, kFirstPauseMs, kLongestPauseMs);
  client->next_try = Deadline::after_ms(client->pause_ms);
}

void AddressStore::refused(Client* client, mep_result_t code, const std::string& text) {
  if (client->refusal == MEP_SUCCESS) client->refused_since_ns = now_ns();
  client->refusal = code;
  client->obstacle = "the meeting point " + client->listed.text() + ": " + text;
  drop(client, {});
  signal_update();
}

// is_certain: no meeting point does so, nor anything that stands before one.
void AddressStore::found_stranger(Client* client, bool is_certain, const char* does) {
  drop(client, {});
  client->stranger = does;
  if (client->strange_answers++ == 0) client->strange_since_ns = now_ns();
  if (client->strange_answers < kStrangerTimes ||
      now_ns() - client->strange_since_ns < kStrangerLimitMs * 1'000'000) {
    return;
  }
  client->stranger_stays = is_certain || !client->bind_obstacle.empty();
  signal_update();
}

void AddressStore::serve_client(Client* client) {
  if (client->link == nullptr) connect(client);
  if (client->link != nullptr) converse(client);
  if (!client->broken) return;
  client->link.reset();
  client->greeting.reset();
}

void AddressStore::converse(Client* client) {
  if (client->broken) return;
  client->is_made = client->is_made || is_connected(client->link->fd());
  if (client->link->has_queued_output()) (void)client->link->flush_output();
  const mep_result_t received = client->link->receive([&](Frame& frame) {
    client->heard = true;
    client->stranger.clear();
    client->strange_answers = 0;
    take(client, &frame);
    return !client->broken;
  });
  if (client->broken) return;
  if (received == MEP_ERR_DENIED && !client->heard) {
    found_stranger(client, true, "sends what MEP does not say");
    return;
  }
  if (received == MEP_ERR_PEER_FAILED && client->is_made && !client->heard) {
    found_stranger(client, false, "closes each connection");
    return;
  }
  if (received != MEP_SUCCESS) {
    drop(client, last_error_text());
    return;
  }
  if (!client->open && client->limit.expired()) {
    drop(client, client->is_made && !client->heard
                     ? "it takes connections and says nothing; if it is another program, choose "
                       "another port for MEP_RENDEZVOUS"
                     : "no answer");
    return;
  }
  if (client->open && client->told_version != own_version_) tell_entry(client);
}

void AddressStore::tell_entry(Client* client) {
  client->told_version = own_version_;
  Place place = own_;
  // The address that leads to the meeting point leads, more likely than others, to the other ranks.
  NetAddress best;
  if (own_address(client->link->fd(), &best) && !place.addresses.empty()) {
    best.port = place.addresses[0].port;
    std::erase(place.addresses, best);
    place.addresses.insert(place.addresses.begin(), best);
    if (place.addresses.size() > kMaxAddresses) place.addresses.pop_back();
  }
  (void)client->link->send(kEntriesFrame, encode_own_entry(purpose_, place));
}

void AddressStore::take_abort(Client* client, const Frame& frame) {
  Abort abort;
  if (!decode_abort(frame.payload, &abort)) return drop(client, "a malformed refusal");
  // Sealed: from somebody who knows the secret, and so true. Else it may be anybody's.
  if (!client->greeting->done()) return refused(client, abort.code, abort.text);
  failure_ = abort.code;
  failure_text_ = abort.text;
  signal_update();
}

void AddressStore::take(Client* client, Frame* frame) {
  if (frame->type == kAbortFrame) return take_abort(client, *frame);
  if (frame->type == kRetryFrame)
    return drop(client, "it is full, or still in an earlier world of this job");
  if (!client->greeting->done()) {
    Greeting::Step step = Greeting::Step::kMore;
    mep_result_t result = client->greeting->take(client->link.get(), frame, &step);
    const Hello& hello = client->greeting->hello();
    if (result == MEP_SUCCESS && frame->type == kHelloFrame &&
        (hello.kind != HelloKind::kMeet || hello.job != hello_.job)) {
      result = fail(MEP_ERR_BOOTSTRAP, "another job's rank serves there");
    }
    if (result != MEP_SUCCESS) {
      const std::string text = send_abort(client->link.get(), result, -1);
      return refused(client, result, text);
    }
    if (step == Greeting::Step::kOther) drop(client, "it says what does not belong here");
    return;
  }
  std::vector<EntryUpdate> updates;
  if (frame->type != kEntriesFrame || !decode_updates(frame->payload, &updates)) {
    return drop(client, "it says what does not belong here");
  }
  client->open = true;
  client->pause_ms = 0;
  client->refusal = MEP_SUCCESS;
  client->obstacle.clear();
  for (EntryUpdate& each : updates) {
    client->roll.erase(each.place.key());
    if (!each.gone) client->roll.emplace(each.place.key(), std::move(each.place));
  }
  signal_update();
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
