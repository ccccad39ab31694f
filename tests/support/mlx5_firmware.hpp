// A model of the firmware of an mlx5 NIC of a fabric: it reads each command, refuses what a NIC would refuse, and lets a
// software NIC execute the queues of pairs that are ready. Nothing here knows how the library builds commands; the layouts
// are those of mlx5_commands.hpp.
//
// A bit that the model does not know has to be 0.
#pragma once

#include <sys/mman.h>

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "support/mlx5_fabric.hpp"
#include "transport/gpu_queue/mlx5_queue.hpp"

namespace mep::test {

namespace m = mep::gpu_queue::mlx5;

class Firmware final : public m::Device {
 public:
  static constexpr uint32_t kDomain = 0x1a2b;
  static constexpr uint32_t kEvents = 5;

  // Its numbers begin with the NIC's own.
  Firmware(ModelFabric* fabric, const ModelPort& port, uint32_t first_number)
      : fabric_(fabric), port_(port), number_(first_number), next_number_(first_number) {
    capabilities.log_max_entries = 15;
    capabilities.log_max_completions = 22;
    capabilities.log_max_message = 30;
    capabilities.completion_version = 1;
    capabilities.ignores_overrun = capabilities.adds_words = true;
    capabilities.is_ethernet = capabilities.has_roce = port.is_ethernet;
  }
  ~Firmware() override {
    for (uint64_t* page : pages_) (void)munmap(page, kPageBytes);
  }
  Firmware(const Firmware&) = delete;
  Firmware& operator=(const Firmware&) = delete;

  uint32_t number() const { return number_; }

  // For tests.
  m::Capabilities capabilities;
  uint32_t refuse_at = UINT32_MAX;  // the step with this number
  uint32_t steps = 0;
  std::string why;       // the last refusal, or what was destroyed too early
  bool in_order = true;  // nothing was destroyed before what uses it
  size_t live = 0;       // objects, shares and pages
  std::vector<gpu_queue::LocalRegion> local;
  std::vector<gpu_queue::RemoteRegion> remote;
  // Changes a command before it is read.
  std::function<void(m::Mailbox*)> alter;

  mep_result_t query(const m::Mailbox& in, m::Mailbox* out) override {
    *out = m::Mailbox(m::kCapabilityAnswerBytes);
    if (!begin_step()) return refuse(in, out, "a fault");
    if (in.size() != m::kShortBytes) return refuse(in, out, "length of a query");
    const uint64_t kind = in.get(m::kOpMod);
    const auto set = [&](m::Field field, uint64_t value) {
      out->set(m::within(m::kCapabilityAt, field), value);
    };
    if (kind == m::op_mod_of(m::CapabilityKind::kGeneral)) {
      set(m::general::kLogMaxQueueEntries, capabilities.log_max_entries);
      set(m::general::kLogMaxCompletionEntries, capabilities.log_max_completions);
      set(m::general::kLogMaxMessage, capabilities.log_max_message);
      set(m::general::kCompletionVersion, capabilities.completion_version);
      set(m::general::kIgnoresOverrun, capabilities.ignores_overrun);
      set(m::general::kPortType, capabilities.is_ethernet);
      set(m::general::kRoce, capabilities.has_roce);
      set(m::general::kAtomic, capabilities.adds_words);
      return MEP_SUCCESS;
    }
    if (kind != m::op_mod_of(m::CapabilityKind::kAtomic)) return refuse(in, out, "op_mod");
    set(m::atomic::kOperations, 0xf);
    set(m::atomic::kSizes, 0xc);
    return MEP_SUCCESS;
  }

  mep_result_t create(const m::Mailbox& given, m::Mailbox* out,
                      std::unique_ptr<m::Object>* object) override;
  mep_result_t share(const gpu_queue::MemoryRange& range,
                     std::unique_ptr<m::SharedMemory>* memory) override;
  mep_result_t doorbells(std::unique_ptr<m::DoorbellPage>* page) override;
  mep_result_t event_queue(uint32_t* number) override {
    *number = kEvents;
    return begin_step() ? MEP_SUCCESS : fail(MEP_ERR_SYSTEM, "a fault");
  }
  uint32_t protection_domain() const override { return kDomain; }
  mep_result_t register_memory(const gpu_queue::MemoryRange& range,
                               std::unique_ptr<m::RegisteredMemory>* memory) override;
  mep_result_t find_port(m::Port* out) override {
    if (!begin_step()) return fail(MEP_ERR_SYSTEM, "a fault");
    const bool has_header = port_.is_ethernet || port_.needs_global_header;
    out->address = address_of_port();
    out->path.gid_index = has_header ? 3 : 0;
    out->path.traffic_class = has_header ? 0x68 : 0;
    out->path.needs_global_header = port_.needs_global_header;
    out->description = "model";
    return MEP_SUCCESS;
  }

  // The NIC stops: all its pairs are in error.
  void stop() {
    for (auto& [number, qp] : qps_) {
      {
        const std::lock_guard lock(fabric_->mutex);
        fabric_->pairs.find(number)->state = PairState::kError;
      }
      if (qp.is_served) (void)fabric_->nic.remove_queue(number);
      qp.is_served = false;
    }
  }

  m::QueueAddress address_of(const m::SendQueuePair& pair, uint32_t mtu) const {
    m::QueueAddress address = address_of_port();
    address.queue_pair = pair.number();
    address.first_psn = pair.first_psn();
    address.mtu = mtu;
    return address;
  }

 private:
  m::QueueAddress address_of_port() const {
    m::QueueAddress address;
    address.mtu = 5;
    address.lid = port_.lid;
    address.gid = port_.gid;
    address.mac = port_.mac;
    address.has_gid = true;
    return address;
  }

  friend class ModelObject;
  struct Range {
    std::byte* base;
    size_t bytes;
  };
  struct Place {  // of a queue
    std::byte* at = nullptr;
    uint32_t umem = 0;
  };
  struct Cq {
    Place entry;
    uint32_t uar, record_umem;
  };
  struct Qp {
    Place ring, record;
    uint32_t entries, uar, cq;
    bool is_served = false;
  };

  bool begin_step() { return steps++ != refuse_at; }
  // The answer of a NIC: bad parameter, and a syndrome that is the model's own.
  mep_result_t refuse(const m::Mailbox& in, m::Mailbox* out, const std::string& reason) {
    why = reason;
    out->set(m::kStatus, 3);
    out->set(m::kSyndrome, 0x5e7);
    return m::check_answer(in, *out);
  }
  bool place(uint64_t umem, uint64_t offset, uint64_t bytes, uint64_t alignment, Place* out) {
    const auto found = ranges_.find(static_cast<uint32_t>(umem));
    if (found == ranges_.end() || offset % alignment != 0 || bytes > found->second.bytes ||
        offset > found->second.bytes - bytes) {
      return false;
    }
    *out = {found->second.base + offset, static_cast<uint32_t>(umem)};
    return true;
  }
  std::string read_cq(m::Mailbox* in, Cq* out);
  std::string read_qp(m::Mailbox* in, Qp* out);
  mep_result_t change(uint32_t number, const m::Mailbox& in, m::Mailbox* out);
  std::string change_state(uint32_t number, m::Mailbox* in);
  std::string to_receives(m::Mailbox* in, ModelPair* pair);
  std::string serve(uint32_t number);
  void end_cq(uint32_t number);
  void end_qp(uint32_t number);
  void check_end(bool used, const char* what) {
    if (!used) return;
    in_order = false;
    why = what;
  }

  ModelFabric* fabric_;
  ModelPort port_;
  const uint32_t number_;
  uint32_t next_number_;
  const void* refused_ = nullptr;  // memory of a GPU whose dmabuf was not taken
  std::map<uint32_t, Range> ranges_;
  static constexpr size_t kPageBytes = 4096;
  std::map<uint32_t, uint64_t*> doorbells_;  // by the number of their page; many share one
  std::vector<uint64_t*> free_doorbells_, pages_;
  std::map<uint32_t, Cq> cqs_;
  std::map<uint32_t, Qp> qps_;
};

// Takes a field out of a mailbox: what is left in the end must be 0.
inline uint64_t taken(m::Mailbox* in, m::Field field) {
  const uint64_t value = in->get(field);
  in->set(field, 0);
  return value;
}
inline bool is_empty(const m::Mailbox& in) {
  for (size_t i = 0; i < in.size(); ++i) {
    if (in.data()[i] != 0) return false;
  }
  return true;
}

class ModelObject final : public m::Object {
 public:
  ModelObject(Firmware* firmware, uint32_t number, bool is_pair)
      : firmware_(firmware), number_(number), is_pair_(is_pair) {
    ++firmware->live;
  }
  ~ModelObject() override {
    --firmware_->live;
    if (is_pair_) firmware_->end_qp(number_);
    if (!is_pair_) firmware_->end_cq(number_);
  }
  mep_result_t modify(const m::Mailbox& in, m::Mailbox* out) override {
    return firmware_->change(number_, in, out);
  }

 private:
  Firmware* firmware_;
  uint32_t number_;
  bool is_pair_;
};

inline mep_result_t Firmware::share(const gpu_queue::MemoryRange& range,
                                    std::unique_ptr<m::SharedMemory>* memory) {
  class Shared final : public m::SharedMemory {
   public:
    Shared(Firmware* firmware, uint32_t id) : firmware_(firmware), id_(id) { ++firmware->live; }
    ~Shared() override {
      --firmware_->live;
      bool used = false;
      for (const auto& [number, cq] : firmware_->cqs_) used |= cq.entry.umem == id_;
      for (const auto& [number, qp] : firmware_->qps_) used |= qp.ring.umem == id_;
      firmware_->check_end(used, "memory ends before its queue");
      firmware_->ranges_.erase(id_);
    }
    uint32_t id() const override { return id_; }

   private:
    Firmware* firmware_;
    uint32_t id_;
  };
  if (!begin_step()) return fail(MEP_ERR_SYSTEM, "a fault");
  if (reinterpret_cast<uintptr_t>(range.address) % 4096 != 0) {
    return fail(MEP_ERR_SYSTEM, "memory off its page");
  }
  const uint32_t id = next_number_++;
  ranges_[id] = {static_cast<std::byte*>(range.address), range.bytes};
  *memory = std::make_unique<Shared>(this, id);
  return MEP_SUCCESS;
}

inline mep_result_t Firmware::register_memory(const gpu_queue::MemoryRange& range,
                                              std::unique_ptr<m::RegisteredMemory>* memory) {
  class Registered final : public m::RegisteredMemory {
   public:
    Registered(Firmware* firmware, uint32_t key, void* pages, size_t bytes, UniqueFd file)
        : firmware_(firmware), key_(key), pages_(pages), bytes_(bytes), file_(std::move(file)) {
      ++firmware->live;
    }
    ~Registered() override {
      --firmware_->live;
      firmware_->check_end(!firmware_->qps_.empty(), "memory of requests ends before queue pairs");
      std::erase_if(firmware_->local, [&](const auto& region) { return region.key == key_; });
      const std::lock_guard lock(firmware_->fabric_->mutex);
      firmware_->fabric_->regions.remove(key_ + 1);
      if (pages_ != MAP_FAILED) (void)munmap(pages_, bytes_);
    }
    uint32_t local_key() const override { return key_; }
    uint32_t remote_key() const override { return key_ + 1; }

   private:
    Firmware* firmware_;
    uint32_t key_;
    void* pages_;
    size_t bytes_;
    UniqueFd file_;
  };
  if (!begin_step() || !fabric_->takes(range, &refused_)) return fail(MEP_ERR_SYSTEM, "a fault");
  void* const address = range.address;
  const size_t bytes = range.bytes;
  // The NIC writes to the pages that are there now, whatever the address has later. Private memory keeps them.
  void* const pages =
      range.dmabuf < 0 ? mremap(address, 0, bytes, MREMAP_MAYMOVE)
                       : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, range.dmabuf, 0);
  if (range.dmabuf >= 0 && pages == MAP_FAILED) return fail(MEP_ERR_SYSTEM, "no dmabuf");
  const uint32_t key = next_number_;
  next_number_ += 2;
  const auto place = reinterpret_cast<uint64_t>(address);
  local.push_back({key, place, bytes, static_cast<std::byte*>(address), true});
  SharedFile shared = SharedFile::of(address, bytes);
  {
    const std::lock_guard lock(fabric_->mutex);
    const auto at = pages == MAP_FAILED ? place : reinterpret_cast<uint64_t>(pages);
    fabric_->regions.add({key + 1,
                          getpid(),
                          number_,
                          {key + 1, place, bytes, at, true, true},
                          shared.fd.get(),
                          shared.offset});
  }
  *memory = std::make_unique<Registered>(this, key, pages, bytes, std::move(shared.fd));
  return MEP_SUCCESS;
}

inline mep_result_t Firmware::doorbells(std::unique_ptr<m::DoorbellPage>* page) {
  class Page final : public m::DoorbellPage {
   public:
    Page(Firmware* firmware, uint32_t id) : firmware_(firmware), id_(id) { ++firmware->live; }
    ~Page() override {
      --firmware_->live;
      bool used = false;
      for (const auto& [number, cq] : firmware_->cqs_) used |= cq.uar == id_;
      for (const auto& [number, qp] : firmware_->qps_) used |= qp.uar == id_;
      firmware_->check_end(used, "doorbells end before their queue");
      firmware_->free_doorbells_.push_back(address());
      firmware_->doorbells_.erase(id_);
    }
    uint32_t id() const override { return id_; }
    uint64_t* address() const override { return firmware_->doorbells_.at(id_); }

   private:
    Firmware* firmware_;
    uint32_t id_;
  };
  if (!begin_step()) return fail(MEP_ERR_SYSTEM, "a fault");
  const uint32_t id = next_number_++;
  if (free_doorbells_.empty()) {
    auto* const words = static_cast<uint64_t*>(
        mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (words == MAP_FAILED) return fail(MEP_ERR_NO_MEMORY, "a page");
    pages_.push_back(words);
    for (size_t i = kPageBytes / sizeof *words; i-- > 0;) free_doorbells_.push_back(words + i);
  }
  doorbells_[id] = free_doorbells_.back();
  free_doorbells_.pop_back();
  *doorbells_[id] = 0;
  *page = std::make_unique<Page>(this, id);
  return MEP_SUCCESS;
}

inline std::string Firmware::read_cq(m::Mailbox* in, Cq* out) {
  const auto take = [&](m::Field field) { return taken(in, m::within(m::kCqContextAt, field)); };
  if (take(m::cq::kEntrySize) != 0) return "size of entries";
  if (take(m::cq::kCollapsed) != 1) return "a queue that is not collapsed has to be given back";
  if (take(m::cq::kIgnoresOverrun) != 1 || !capabilities.ignores_overrun) return "overruns";
  const uint64_t log_size = take(m::cq::kLogSize);
  if (log_size > capabilities.log_max_completions) return "size of the completion queue";
  out->uar = static_cast<uint32_t>(take(m::cq::kUar));
  if (!doorbells_.contains(out->uar)) return "page of doorbells";
  if (take(m::cq::kEventQueue) != kEvents) return "event queue";
  if (take(m::cq::kLogPageSize) != 0) return "size of pages";
  if (take(m::cq::kRecordUmemValid) != 1) return "record without memory";
  Place record;
  const uint64_t record_umem = take(m::cq::kRecordUmem);
  out->record_umem = static_cast<uint32_t>(record_umem);
  if (!place(record_umem, take(m::cq::kRecordAddress), 8, 8, &record)) return "record";
  if (taken(in, m::kCqUmemValid) != 1) return "entries without memory";
  const uint64_t umem = taken(in, m::kCqUmem);
  if (!place(umem, taken(in, m::kCqUmemOffset), 64u << log_size, 4096, &out->entry)) {
    return "entries";
  }
  if (record.at == out->entry.at) return "record in the entries";
  for (int i = 0; i < 64; ++i) {
    if (out->entry.at[i] != std::byte{0xff}) return "entries that are not invalid";
  }
  return "";
}

inline std::string Firmware::read_qp(m::Mailbox* in, Qp* out) {
  const auto take = [&](m::Field field) { return taken(in, m::in_qp(field)); };
  if (take(m::qp::kService) != 0) return "service";
  if (take(m::qp::kPathMigration) != 3) return "path migration";
  if (take(m::qp::kProtectionDomain) != kDomain) return "protection domain";
  if (take(m::qp::kReceiveQueueType) != 3) return "receive queue";
  if (take(m::qp::kTimestamps) > 2) return "timestamps";
  if (take(m::qp::kRequestsInCompletions) != 0 || take(m::qp::kResponsesInCompletions) != 0) {
    return "results in completions";
  }
  const uint64_t log_size = take(m::qp::kLogSendQueue);
  if (log_size > capabilities.log_max_entries) return "size of the send queue";
  out->entries = 1u << log_size;
  out->uar = static_cast<uint32_t>(take(m::qp::kUar));
  if (!doorbells_.contains(out->uar)) return "page of doorbells";
  out->cq = static_cast<uint32_t>(take(m::qp::kSendCq));
  if (!cqs_.contains(out->cq)) return "completion queue";
  if (take(m::qp::kLogPageSize) != 0) return "size of pages";
  if (take(m::qp::kRecordUmemValid) != 1) return "record without memory";
  const uint64_t record_umem = take(m::qp::kRecordUmem);
  if (!place(record_umem, take(m::qp::kRecordAddress), 8, 8, &out->record)) return "record";
  if (taken(in, m::kQpUmemValid) != 1) return "ring without memory";
  const uint64_t umem = taken(in, m::kQpUmem);
  if (!place(umem, taken(in, m::kQpUmemOffset), uint64_t{out->entries} * 64, 4096, &out->ring)) {
    return "ring";
  }
  // A NIC would execute such a queue wrongly.
  const std::byte* end = out->ring.at + uint64_t{out->entries} * 64;
  const std::byte* entry = cqs_.at(out->cq).entry.at;
  if ((entry >= out->ring.at && entry < end) ||
      (out->record.at >= out->ring.at && out->record.at < end) || out->record.at == entry) {
    return "places that overlap";
  }
  return "";
}

inline mep_result_t Firmware::create(const m::Mailbox& given, m::Mailbox* out,
                                     std::unique_ptr<m::Object>* object) {
  m::Mailbox in = given;
  *out = m::Mailbox(m::kShortBytes);
  if (alter) alter(&in);
  if (!begin_step()) return refuse(in, out, "a fault");
  if (in.size() != m::kLongBytes) return refuse(in, out, "length");
  const uint64_t opcode = taken(&in, m::kOpcode);
  const bool is_pair = opcode == static_cast<uint64_t>(m::Command::kCreateQp);
  if (!is_pair && opcode != static_cast<uint64_t>(m::Command::kCreateCq)) {
    return refuse(given, out, "opcode");
  }
  Cq cq{};
  Qp qp{};
  const std::string wrong = is_pair ? read_qp(&in, &qp) : read_cq(&in, &cq);
  if (!wrong.empty()) return refuse(given, out, wrong);
  if (!is_empty(in)) return refuse(given, out, "bits that mean nothing");
  const uint32_t number = next_number_++;
  if (is_pair) {
    qps_[number] = qp;
    const std::lock_guard lock(fabric_->mutex);
    ModelPair pair;
    pair.number = number;
    pair.process = getpid();
    pair.nic = number_;
    pair.port = port_;
    fabric_->pairs.add(pair);
  } else {
    cqs_[number] = cq;
  }
  out->set(m::kNumber, number);
  *object = std::make_unique<ModelObject>(this, number, is_pair);
  return MEP_SUCCESS;
}

inline mep_result_t Firmware::change(uint32_t number, const m::Mailbox& given, m::Mailbox* out) {
  m::Mailbox in = given;
  *out = m::Mailbox(m::kShortBytes);
  if (alter) alter(&in);
  if (!begin_step()) return refuse(given, out, "a fault");
  if (taken(&in, m::kNumber) != number) return refuse(given, out, "number of the pair");
  const std::string wrong = change_state(number, &in);
  if (!wrong.empty()) return refuse(given, out, wrong);
  return MEP_SUCCESS;
}

inline std::string Firmware::to_receives(m::Mailbox* in, ModelPair* pair) {
  const auto take = [&](m::Field field) { return taken(in, m::in_qp(field)); };
  const auto take_path = [&](m::Field field) { return taken(in, m::in_path(field)); };
  const auto take_bytes = [&](uint32_t at, auto* to) {
    for (size_t i = 0; i < to->size(); ++i) {
      (*to)[i] = static_cast<uint8_t>(take_path({at + static_cast<uint32_t>(8 * i), 8}));
    }
  };
  if (take(m::qp::kPathMigration) != 3) return "path migration";
  pair->mtu = static_cast<uint32_t>(take(m::qp::kMtu));
  if (pair->mtu < 1 || pair->mtu > 5) return "MTU";
  if (take(m::qp::kLogMaxMessage) > capabilities.log_max_message) return "longest message";
  pair->remote_number = static_cast<uint32_t>(take(m::qp::kRemoteNumber));
  if (pair->remote_number == 0) return "number of the peer";
  pair->receive_psn = static_cast<uint32_t>(take(m::qp::kNextReceivePsn));
  (void)take(m::qp::kNotReadyTimer);
  if (take_path(m::path::kPort) != 1) return "port";
  if (take_path(m::path::kKeyIndex) != 0) return "key index";
  take_bytes(m::path::kGidAt, &pair->to_gid);
  const uint64_t hops = take_path(m::path::kHopLimit);
  const uint64_t gid_index = take_path(m::path::kSourceAddress);
  const uint64_t traffic_class = take_path(m::path::kTrafficClass);
  const bool has_header = take_path(m::path::kGlobalHeader) != 0;
  const bool names_gid = pair->to_gid != std::array<uint8_t, 16>{};
  if (port_.is_ethernet) {
    take_bytes(m::path::kMacAt, &pair->to_mac);
    (void)take_path(m::path::kPriority);
    if (has_header) return "a header of InfiniBand";
    if (!names_gid || hops == 0 || gid_index > 3) return "address of RoCE";
    if (take_path(m::path::kUdpPort) < 0xc000) return "UDP port";
    if (take_path(m::path::kDscp) != traffic_class >> 2) return "DSCP";
    return "";
  }
  pair->to_lid = static_cast<uint16_t>(take_path(m::path::kLid));
  if (pair->to_lid == 0) return "LID";
  (void)take_path(m::path::kServiceLevel);
  if (has_header != port_.needs_global_header || names_gid != has_header) return "global header";
  if (has_header && (hops == 0 || gid_index > 3)) return "address in the global header";
  if (!has_header && (hops | gid_index | traffic_class) != 0) return "bits of no header";
  return "";
}

inline std::string Firmware::change_state(uint32_t number, m::Mailbox* in) {
  const auto command = static_cast<m::Command>(taken(in, m::kOpcode));
  const auto take = [&](m::Field field) { return taken(in, m::in_qp(field)); };
  if (in->size() != (command == m::Command::kToError ? m::kShortBytes : m::kLongBytes)) {
    return "length";
  }
  std::unique_lock lock(fabric_->mutex);
  ModelPair next = *fabric_->pairs.find(number);
  std::string wrong;
  if (command == m::Command::kReset2Init && next.state == PairState::kReset) {
    next.state = PairState::kInit;
    next.allows_write = take(m::qp::kAllowsWrite) != 0;
    next.allows_atomic = take(m::qp::kAllowsAtomic) != 0;
    (void)take(m::qp::kAllowsRead);
    const uint64_t mode = take(m::qp::kAtomicMode);
    if (mode != 1 && mode != 3) wrong = "mode of atomics";
    if (take(m::qp::kPathMigration) != 3) wrong = "path migration";
    if (taken(in, m::in_path(m::path::kPort)) != 1) wrong = "port";
    if (taken(in, m::in_path(m::path::kKeyIndex)) != 0) wrong = "key index";
  } else if (command == m::Command::kInit2Rtr && next.state == PairState::kInit) {
    next.state = PairState::kReceives;
    wrong = to_receives(in, &next);
  } else if (command == m::Command::kRtr2Rts && next.state == PairState::kReceives) {
    next.state = PairState::kSends;
    next.send_psn = static_cast<uint32_t>(take(m::qp::kNextSendPsn));
    (void)take(m::qp::kRetries);
    (void)take(m::qp::kNotReadyRetries);
    (void)taken(in, m::in_path(m::path::kAckTimeout));
    if (take(m::qp::kPathMigration) != 3) wrong = "path migration";
  } else if (command == m::Command::kToError && next.state != PairState::kReset) {
    next.state = PairState::kError;
  } else {
    return "a change from another state";
  }
  if (!wrong.empty()) return wrong;
  if (!is_empty(*in)) return "bits that mean nothing";
  fabric_->pairs.add(next);
  lock.unlock();
  Qp& qp = qps_.at(number);
  if (next.state == PairState::kSends) return serve(number);
  if (next.state == PairState::kError && qp.is_served) {
    qp.is_served = false;
    (void)fabric_->nic.remove_queue(number);
  }
  return "";
}

inline std::string Firmware::serve(uint32_t number) {
  Qp& qp = qps_.at(number);
  gpu_queue::QueueWiring wiring;
  wiring.ring = reinterpret_cast<const gpu_queue::Request*>(qp.ring.at);
  wiring.entries = qp.entries;
  wiring.completions = reinterpret_cast<gpu_queue::CompletionEntry*>(cqs_.at(qp.cq).entry.at);
  wiring.record = reinterpret_cast<const gpu_queue::DoorbellRecord*>(qp.record.at);
  wiring.doorbell = doorbells_.at(qp.uar);
  wiring.queue_pair = number;
  wiring.local = local;
  wiring.remote = remote;
  std::vector<ModelRegion> regions;
  {
    const std::lock_guard lock(fabric_->mutex);
    const ModelPair* peer = fabric_->pairs.find(fabric_->pairs.find(number)->remote_number);
    for (const ModelRegion& region : fabric_->regions) {
      if (region.number != 0 && peer != nullptr && peer->nic == region.nic) {
        regions.push_back(region);
      }
    }
  }
  for (const ModelRegion& region : regions) wiring.remote.push_back(region.memory);
  auto wire = std::make_unique<ModelWire>(fabric_, number, regions);
  if (fabric_->serve(wiring, std::move(wire)) != MEP_SUCCESS) {
    return "the software NIC does not take the queue";
  }
  qp.is_served = true;
  return "";
}

inline void Firmware::end_cq(uint32_t number) {
  bool used = false;
  for (const auto& [pair, qp] : qps_) used |= qp.cq == number;
  check_end(used, "the completion queue ends before its queue pair");
  cqs_.erase(number);
}

inline void Firmware::end_qp(uint32_t number) {
  if (qps_.at(number).is_served) (void)fabric_->nic.remove_queue(number);
  qps_.erase(number);
  const std::lock_guard lock(fabric_->mutex);
  fabric_->pairs.remove(number);
}

}  // namespace mep::test
