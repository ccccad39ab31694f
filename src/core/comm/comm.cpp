// The effects of a view change on a comm: handed to its collectives and its clients by the control thread.
#include "core/comm/comm.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "base/test_delay.hpp"

namespace mep {

Comm::Comm(std::shared_ptr<World> world, const std::string& name, std::vector<uint32_t> slots,
           uint64_t id)
    : identity_(std::move(world), name, id != 0 ? id : id_of(name), std::move(slots)),
      collectives_(identity_, personal_reports_),
      messages_(identity_, collectives_.channel(), collectives_.windows(),
                messages_offset(identity_.size())),
      losses_(identity_.size()) {
  collectives_.set_side_progress(&messages_);
  messages_.set_side_progress(&collectives_, this);
}

Comm::~Comm() {
  close();
}

mep_result_t Comm::rename(const char* name) {
  identity_.rename(name);
  return MEP_SUCCESS;
}

void Comm::defer_report(Reports::Report report) {
  Reports::Report deferred = collectives_.defer_report(std::move(report));
  // A dispatch or combine that comes first reports it as well. It has all that was deferred before.
  if (!clients_.any()) return;
  personal_reports_.drop_up_to(deferred->epoch);
  personal_reports_.push(std::move(deferred));
}

void Comm::keep_losses_in(uint64_t* memory) {
  const std::lock_guard lock(clients_.mutex());
  losses_.move_to(memory);
}

void Comm::remove_client(ViewParticipant* client) {
  // Others may still be in the last operations of this client. Destructors come here.
  (void)world().attempt([&] { world().note_closed(clients_.remove(client), member_slots()); });
  if (!clients_.any()) personal_reports_.clear();
}

void Comm::leave_pending() {
  ProgressThread* const progress = world().progress_thread();
  if (progress == nullptr) {
    world().pending_comms().add(this);
    return gate_.leave();
  }
  // Before the end of the call: from then on another thread may finish the requests and destroy the comm.
  do {
    progress->begin(this);
    MEP_TEST_DELAY_POINT("leave pending");
  } while (!gate_.leave_to_looks());
}

// --- The progress thread --------------------------------------------------------------------------

Progress Comm::look() {
  MEP_TEST_DELAY_POINT("look");
  Progress progress;
  (void)world().attempt([&] {
    progress = collectives_.progress();
    if (!messages_.has_pending()) return;
    const Progress of_messages = messages_.progress();
    progress.pending = progress.pending || of_messages.pending;
    progress.advanced = progress.advanced || of_messages.advanced;
    progress.deadline_ns = std::min(progress.deadline_ns, of_messages.deadline_ns);
  });
  return progress;
}

// --- The control thread ---------------------------------------------------------------------------

void Comm::describe(std::vector<membership::ChannelState>* channels) const {
  channels->push_back(collectives_.state());
  const std::lock_guard lock(clients_.mutex());
  for (const ViewParticipant* client : clients_.all()) client->describe(channels);
}

void Comm::stop() {
  MEP_TEST_DELAY_POINT("freeze");
  collectives_.stop();
  const std::lock_guard lock(clients_.mutex());
  for (ViewParticipant* client : clients_.all()) client->stop();
}

bool Comm::is_still() const {
  if (!collectives_.is_still()) return false;
  const std::lock_guard lock(clients_.mutex());
  return std::all_of(clients_.all().begin(), clients_.all().end(),
                     [](const ViewParticipant* client) { return client->is_still(); });
}

void Comm::freeze(std::vector<membership::ChannelState>* channels) {
  channels->push_back(collectives_.freeze());
  const std::lock_guard lock(clients_.mutex());
  for (ViewParticipant* client : clients_.all()) client->freeze(channels);
}

bool Comm::holds(uint64_t channel, uint64_t seq) {
  return is_replicated(channel) ? collectives_.holds(seq) : clients_.holds(channel, seq);
}

void Comm::give_catch_up(uint64_t channel, uint64_t from_seq, uint64_t to_seq,
                         const CatchUpSink& sink) {
  if (is_replicated(channel)) collectives_.give_catch_up(from_seq, to_seq, sink);
}

void Comm::take_catch_up(uint64_t channel, uint64_t seq, uint32_t source,
                         std::span<const std::byte> bytes) {
  if (is_replicated(channel)) collectives_.take_catch_up(seq, source, bytes);
}

void Comm::prepare() {
  MEP_TEST_DELAY_POINT("prepare");
  collectives_.prepare();
  const std::lock_guard lock(clients_.mutex());
  for (ViewParticipant* client : clients_.all()) client->prepare();
}

void Comm::note_change(const CommView& before, const CommView& after) {
  uint64_t lost = 0;
  uint64_t admitted = 0;
  for (uint32_t each = 0; each < size(); ++each) {
    if (before.incarnations[each] == after.incarnations[each]) continue;
    lost += before.is_live(each) ? 1 : 0;
    admitted += after.is_live(each) ? 1 : 0;
  }
  counters_.note_change(lost, admitted);
}

// The report is there before any channel shows the change: whichever call gives it takes it off the list, and
// nobody else gives it again.
void Comm::install(const membership::InstallView& change, const membership::AffectedComm* affected,
                   bool admits) {
  MEP_TEST_DELAY_POINT("install");
  const std::lock_guard lock(clients_.mutex());
  if (affected == nullptr) {
    for (ViewParticipant* client : clients_.all()) client->install(nullptr, nullptr);
    collectives_.resume();
    ring();
    return;
  }
  const std::shared_ptr<const CommChange> made =
      make_comm_change(*latest_view(), change, *affected, slots(), name(), admits);
  note_change(*latest_view(), *made->view);
  losses_.note(*made->view);  // before what ends operations
  if (made->is_reported && !clients_.all().empty()) personal_reports_.push(made);
  for (ViewParticipant* client : clients_.all()) client->install(made, change.decision.get());
  MEP_TEST_DELAY_POINT("install clients");
  messages_.install(made);
  collectives_.install(made, *change.decision);
  ring();
  log(LogLevel::kInfo, "comm %s: epoch %llu, %zu of %u ranks", name().c_str(),
      static_cast<unsigned long long>(made->view->epoch), made->view->live.size(), size());
}

bool Comm::quiesced() const {
  if (!clients_.quiesced()) return false;
  if (collectives_.channel().has_adopted_all()) return true;
  return gate_.uses_no_windows();
}

CommDescription Comm::description() const {
  CommDescription description{id(),    name(),         latest_view()->epoch,
                              slots(), child_number(), ep_number_.load(std::memory_order_relaxed),
                              {}};
  const std::lock_guard lock(clients_.mutex());
  for (const ViewParticipant* client : clients_.all()) {
    std::vector<std::byte> about;
    client->describe_object(&about);
    about.insert(about.begin(), static_cast<std::byte>(client->kind()));
    description.objects.push_back(std::move(about));
  }
  return description;
}

CommMetrics Comm::metrics() const {
  const auto view = latest_view();
  return {name(), view->epoch, view->live.size(), &counters_};
}

// The others may take what this rank says next for its end, and wait for nothing that it still writes.
void Comm::terminate() {
  collectives_.terminate();
  {
    const std::lock_guard lock(clients_.mutex());
    for (ViewParticipant* client : clients_.all()) client->terminate();
  }
  ring();
}

}  // namespace mep
