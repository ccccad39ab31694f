#include "transport/gpu_queue/mlx5_pairs.hpp"

#include <sys/random.h>

#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "base/guarded.hpp"
#include "base/log.hpp"

namespace mep::gpu_queue::mlx5 {
namespace {

constexpr uint64_t kWordInRecordPage = 64;  // see Doorbells
constexpr uint64_t kMostOfTries = 4;        // an adapter's tries may take so many times their name

// A pair tells it to its peer.
struct Told {
  static constexpr uint8_t kVersion = 1;

  uint64_t window_base;
  uint32_t window_key;
  uint32_t queue_pair;
  uint32_t first_psn;
  uint16_t lid;
  uint8_t mtu;
  uint8_t has_gid;
  std::array<uint8_t, 16> gid;
  std::array<uint8_t, 6> mac;
  uint8_t is_ethernet;
  uint8_t version;
};
static_assert(std::has_unique_object_representations_v<Told> && sizeof(Told) == 48);

mep_result_t random_psn(uint32_t* psn) {
  if (getrandom(psn, sizeof *psn, 0) != static_cast<ssize_t>(sizeof *psn)) {
    return fail(MEP_ERR_SYSTEM, "getrandom is refused; allow it in the sandbox");
  }
  *psn &= 0xffffff;
  return MEP_SUCCESS;
}

// The same error, which says whose it is.
mep_result_t named(const std::string& name, mep_result_t result) {
  return result == MEP_SUCCESS ? result : add_context(result, "HCA %s", name.c_str());
}

class AdapterPair final : public NicPair {
 public:
  AdapterPair(Adapter* adapter, std::unique_ptr<SendQueuePair> pair, const Queue& queue,
              const RegisteredMemory& window, const std::byte* window_data, uint32_t ack_timeout)
      : adapter_(adapter),
        finish_ns_(kMostOfTries * tries_ns(ack_timeout)),
        pair_(std::move(pair)),
        queue_(queue),
        ready_(queue.entries) {
    queue_.ready = ready_.data();
    const QueueAddress& port = adapter->port().address;
    told_ = {std::bit_cast<uint64_t>(window_data),
             window.remote_key(),
             pair_->number(),
             pair_->first_psn(),
             port.lid,
             static_cast<uint8_t>(port.mtu),
             port.has_gid,
             port.gid,
             port.mac,
             adapter->capabilities().is_ethernet,
             Told::kVersion};
  }
  ~AdapterPair() override {
    adapter_->stopper().remove(&stop_);
    end();
  }
  AdapterPair(const AdapterPair&) = delete;
  AdapterPair& operator=(const AdapterPair&) = delete;

  // One of them takes the doorbell of the queue, with a word that is 0 now.
  mep_result_t be_rung_by(std::span<Doorbells* const> doorbells, uint64_t* word, Queue* queue) {
    if (doorbells.empty()) return MEP_SUCCESS;
    word_ = word;
    mep_result_t added = MEP_SUCCESS;
    for (Doorbells* each : doorbells) {
      added = each->add(word, pair_->doorbell(), &queue->doorbell);
      if (added != MEP_SUCCESS) continue;
      doorbells_ = each;
      // finish() is a thread of the host, which may not reach what the posters store to.
      if (queue->doorbell == word) queue_.doorbell = word;
      break;
    }
    return added;
  }

  std::vector<std::byte> address() const override {
    const auto bytes = std::as_bytes(std::span(&told_, 1));
    return {bytes.begin(), bytes.end()};
  }

  mep_result_t connect(const PeerEnd& peer, Queue* queue) override {
    Told told{};
    if (peer.address.size() == sizeof told) std::memcpy(&told, peer.address.data(), sizeof told);
    if (told.version != Told::kVersion) {
      return mep::fail(MEP_ERR_DENIED, "rank %u gave no address of a queue pair", peer.slot);
    }
    if (told.is_ethernet != told_.is_ethernet) {
      return mep::fail(MEP_ERR_MISMATCH,
                       "rank %u has its queues on %s, this rank on %s: choose ports of one network",
                       peer.slot, name_of_link(told), name_of_link(told_));
    }
    const QueueAddress address{told.queue_pair,   told.first_psn, told.mtu, told.lid,
                               told.has_gid != 0, told.gid,       told.mac};
    mep_result_t connected = MEP_SUCCESS;
    {
      const std::lock_guard lock(adapter_->mutex());
      // The stopper locks after fail() has set this: it finds the pair connected, or this is found set.
      if (SystemMemory::load_abort(&has_failed_) != 0) return MEP_SUCCESS;
      is_connected_ = true;
      connected = pair_->connect(address, adapter_->port().path);
    }
    if (connected != MEP_SUCCESS) {
      set_failed();
      end();  // it may receive already
      return named(adapter_->name(), connected);
    }
    queue->window_base = told.window_base;
    queue->window_key = told.window_key;
    return MEP_SUCCESS;
  }

  // Posts an empty request behind those of the posters and waits for its completion. The posters' counts may lie on a GPU:
  // record and completion entry say the same.
  void finish() override {
    if (SystemMemory::load_abort(&has_failed_) != 0) return;
    constexpr uint64_t kLap = 0x10000;
    const uint64_t told = kLap + SystemMemory::load_completion(&queue_.record->send).value();
    const Big32 word = SystemMemory::load_completion(&queue_.completion->counter_opcode);
    const bool has_completed = opcode_of(word) == CompletionOpcode::kRequest;
    const uint64_t first_open = has_completed ? uint64_t{counter_of(word)} + 1 : 0;
    queue_.reserved = queue_.rung = told;
    queue_.done = told - static_cast<uint16_t>(told - first_open);
    if (queue_.done == told) return;
    const Patience patience{SystemMemory::nanoseconds() + finish_ns_, &has_failed_, 1};
    const Status status = SendQueue<>(&queue_, patience).flush();
    if (status == Status::kTimedOut) {
      log(LogLevel::kWarn, "an adapter did not complete the requests of queue pair %u in time",
          queue_.queue_pair);
    }
  }

  mep_result_t fail(const Deadline& deadline) override {
    set_failed();
    const mep_result_t failed = adapter_->stopper().run(&stop_, deadline);
    if (failed == MEP_SUCCESS) return MEP_SUCCESS;
    return mep::fail(MEP_ERR_SYSTEM, "HCA %s %s queue pair %u", adapter_->name().c_str(),
                     failed == MEP_ERR_TIMEOUT ? "has not yet stopped" : "refused to stop",
                     queue_.queue_pair);
  }

 private:
  // It says everything itself; locks order it before what connect() reads.
  void set_failed() { __atomic_store_n(&has_failed_, 1, __ATOMIC_RELAXED); }
  // The stopper's thread.
  mep_result_t stop() {
    const std::lock_guard lock(adapter_->mutex());
    if (pair_ == nullptr || !is_connected_) return MEP_SUCCESS;
    const mep_result_t stopped = guarded([&] { return pair_->fail(); });
    if (stopped != MEP_SUCCESS) {
      log(LogLevel::kError, "queue pair %u cannot be stopped: %s", queue_.queue_pair,
          last_error_text());
    }
    return stopped;
  }
  void end() {
    if (doorbells_ != nullptr) std::exchange(doorbells_, nullptr)->remove(word_);
    const std::lock_guard lock(adapter_->mutex());
    pair_.reset();
  }
  static const char* name_of_link(const Told& told) {
    return told.is_ethernet != 0 ? "Ethernet" : "InfiniBand";
  }

  Adapter* const adapter_;
  const uint64_t finish_ns_;        // the adapter has given up by then
  Doorbells* doorbells_ = nullptr;  // null: there are none
  uint64_t* word_ = nullptr;
  PairStopper::Stop stop_{[this] { return stop(); }};
  std::unique_ptr<SendQueuePair> pair_;  // this and the next change under the adapter's mutex
  bool is_connected_ = false;            // or partly
  Told told_;
  Queue queue_;                  // for finish()
  std::vector<uint64_t> ready_;  // its own
  uint64_t has_failed_ = 0;
};

}  // namespace

mep_result_t Adapter::open(Device& device, const std::string& name, std::unique_ptr<Adapter>* out) {
  return guarded([&]() -> mep_result_t {
    std::unique_ptr<Adapter> made(new Adapter(device, name));
    MEP_TRY(read_capabilities(device, &made->capabilities_));
    MEP_TRY(device.find_port(&made->port_));
    MEP_TRY(made->stopper_.start());
    *out = std::move(made);
    return MEP_SUCCESS;
  });
}

AdapterPairs::~AdapterPairs() {
  const std::lock_guard lock(adapter_->mutex());
  source_.reset();
  window_.reset();
}

mep_result_t AdapterPairs::use_window(const MemoryRange& window) {
  window_data_ = static_cast<std::byte*>(window.address);
  return named(adapter_->name(), register_memory(window, &window_));
}

mep_result_t AdapterPairs::use_source(const MemoryRange& source) {
  return named(adapter_->name(), register_memory(source, &source_));
}

// A driver that takes no dmabuf may know addresses of GPUs (nvidia_peermem).
mep_result_t AdapterPairs::register_memory(const MemoryRange& range,
                                           std::unique_ptr<RegisteredMemory>* out) {
  const std::lock_guard lock(adapter_->mutex());
  Device& device = adapter_->device();
  const mep_result_t registered = device.register_memory(range, out);
  if (registered == MEP_SUCCESS || range.dmabuf < 0) return registered;
  const std::string why = last_error_text();
  const mep_result_t found = device.register_memory({range.address, range.bytes}, out);
  return found == MEP_SUCCESS ? MEP_SUCCESS : add_context(found, "%s; by its address", why.c_str());
}

mep_result_t AdapterPairs::create(const Ring& ring, uint32_t ack_timeout,
                                  std::unique_ptr<SendQueuePair>* out) {
  SendQueuePair::Options options;
  options.entries = ring.entries;
  options.mtu = adapter_->port().address.mtu;
  options.ack_timeout = ack_timeout;
  options.memory = {ring.memory, QueueLayout(ring.entries).bytes, -1};
  MEP_TRY(random_psn(&options.first_psn));
  const std::lock_guard lock(adapter_->mutex());
  return SendQueuePair::create(adapter_->device(), adapter_->capabilities(), options, out);
}

mep_result_t AdapterPairs::make(const Ring& ring, Queue* queue, std::unique_ptr<NicPair>* out) {
  const QueueLayout layout(ring.entries);
  queue->ring = reinterpret_cast<Request*>(ring.memory);
  queue->record = reinterpret_cast<DoorbellRecord*>(ring.memory + layout.record);
  queue->ready = ring.ready;
  queue->entries = ring.entries;
  queue->source_key = source_->local_key();
  make_empty(queue, reinterpret_cast<CompletionEntry*>(ring.memory + layout.completion), 0);
  std::unique_ptr<SendQueuePair> pair;
  const uint32_t ack_timeout = ack_timeout_for(ring.suspect_ms);
  MEP_TRY(named(adapter_->name(), create(ring, ack_timeout, &pair)));
  queue->queue_pair = pair->number();
  queue->doorbell = pair->doorbell();
  return guarded([&] {
    auto made = std::make_unique<AdapterPair>(adapter_, std::move(pair), *queue, *window_,
                                              window_data_, ack_timeout);
    auto* const word = reinterpret_cast<uint64_t*>(ring.memory + layout.record + kWordInRecordPage);
    MEP_TRY(made->be_rung_by(doorbells_, word, queue));
    *out = std::move(made);
    return mep_result_t{MEP_SUCCESS};
  });
}

}  // namespace mep::gpu_queue::mlx5
