#include "transport/verbs/hca.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "base/env.hpp"
#include "base/fork_hold.hpp"
#include "base/log.hpp"
#include "base/status.hpp"
#include "base/system_error.hpp"

namespace mep::verbs {
namespace {

constexpr int kMostGids = 256;
constexpr size_t kReceivedBytes = Hca::kReceives * sizeof(SignalDefinition);

using DeviceList = std::unique_ptr<ibv_device*[], decltype(&ibv_free_device_list)>;

DeviceList list_devices(int* count) {
  *count = 0;
  // libibverbs has a lock of its own in there.
  const ForkHold hold;
  return {ibv_get_device_list(count), ibv_free_device_list};
}

// Megabits a second from verbs' codes; 0: not known.
uint32_t speed_of(const ibv_port_attr& port) {
  const uint32_t lanes = port.active_width == 1    ? 1
                         : port.active_width == 2  ? 4
                         : port.active_width == 4  ? 8
                         : port.active_width == 8  ? 12
                         : port.active_width == 16 ? 2
                                                   : 0;
  switch (port.active_speed) {
    case 1:
      return lanes * 2500;
    case 2:
      return lanes * 5000;
    case 4:
    case 8:
      return lanes * 10000;
    case 16:
      return lanes * 14000;
    case 32:
      return lanes * 25000;
    case 64:
      return lanes * 50000;
    case 128:
      return lanes * 100000;
    default:
      return 0;
  }
}

bool make_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace

std::vector<GidEntry> read_gids(ibv_context* context, uint8_t port) {
  std::vector<GidEntry> gids;
  for (uint32_t index = 0; index < kMostGids; ++index) {
    ibv_gid_entry entry{};
    const int error = ibv_query_gid_ex(context, port, index, &entry, 0);
    if (error == ENODATA) continue;
    if (error != 0) break;
    GidEntry gid;
    gid.index = index;
    gid.interface = entry.ndev_ifindex;
    gid.type = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? GidType::kRoceV2
               : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidType::kRoceV1
                                                        : GidType::kInfiniband;
    std::memcpy(gid.gid.data(), entry.gid.raw, gid.gid.size());
    gids.push_back(gid);
  }
  return gids;
}

mep_result_t find_active_port(ibv_context* context, const std::string& name, int wanted,
                              uint8_t* port, ibv_port_attr* attributes) {
  ibv_device_attr device{};
  if (ibv_query_device(context, &device) != 0) {
    return fail(result_of_errno(errno), "HCA %s does not answer: %m", name.c_str());
  }
  for (int number = 1; number <= device.phys_port_cnt; ++number) {
    if (wanted != 0 && number != wanted) continue;
    if (ibv_query_port(context, static_cast<uint8_t>(number), attributes) != 0) continue;
    if (attributes->state != IBV_PORT_ACTIVE) continue;
    *port = static_cast<uint8_t>(number);
    return MEP_SUCCESS;
  }
  return fail(MEP_ERR_NOT_FOUND, "HCA %s has no port that is active%s", name.c_str(),
              wanted != 0 ? (" (asked for port " + std::to_string(wanted) + ")").c_str() : "");
}

mep_result_t read_settings(Settings* out) {
  uint64_t value = 0;
  bool given = false;
  MEP_TRY(env_number("MEP_IB_GID_INDEX", &value, &given));
  if (given) out->gid_index = static_cast<int>(value);
  MEP_TRY(env_number("MEP_IB_SL", &value, &given));
  if (given) out->service_level = static_cast<uint8_t>(value);
  MEP_TRY(env_number("MEP_IB_TC", &value, &given));
  if (given) out->traffic_class = static_cast<uint8_t>(value);
  MEP_TRY(env_number("MEP_IB_TIMEOUT", &value, &given));
  if (given) out->timeout = static_cast<uint8_t>(value);
  MEP_TRY(env_number("MEP_IB_CACHE_MIB", &value, &given));
  if (given) out->cache_bytes = static_cast<size_t>(value) << 20;
  return MEP_SUCCESS;
}

mep_result_t Hca::open(const PortName& name, const Settings& settings, std::unique_ptr<Hca>* out) {
  int count = 0;
  const DeviceList devices = list_devices(&count);
  ibv_device* device = nullptr;
  for (int i = 0; i < count; ++i) {
    if (name.device == ibv_get_device_name(devices[static_cast<size_t>(i)])) {
      device = devices[static_cast<size_t>(i)];
    }
  }
  if (device == nullptr) {
    return fail(MEP_ERR_NOT_FOUND, "this machine has no HCA \"%s\"", name.device.c_str());
  }
  std::unique_ptr<Hca> hca(new Hca());
  hca->name_ = name.device;
  hca->context_ = ibv_open_device(device);
  if (hca->context_ == nullptr) {
    return fail(result_of_errno(errno),
                "HCA %s cannot be opened (may this user read /dev/infiniband?): %m",
                name.device.c_str());
  }
  ibv_port_attr port{};
  MEP_TRY(hca->find_port(name.port, &port));
  MEP_TRY(hca->describe_port(port, settings));
  MEP_TRY(hca->make_receive_side());
  *out = std::move(hca);
  return MEP_SUCCESS;
}

mep_result_t Hca::find_port(int wanted, ibv_port_attr* attributes) {
  MEP_TRY(find_active_port(context_, name_, wanted, &port_, attributes));
  name_ += ":" + std::to_string(port_);
  return MEP_SUCCESS;
}

mep_result_t Hca::describe_port(const ibv_port_attr& attributes, const Settings& settings) {
  address_.is_infiniband = attributes.link_layer != IBV_LINK_LAYER_ETHERNET;
  address_.mtu = std::clamp<uint32_t>(attributes.active_mtu, 1, kLargestMtu);
  address_.lid = attributes.lid;
  address_.speed_mbps = speed_of(attributes);
  max_message_bytes_ = std::clamp<uint32_t>(attributes.max_msg_sz, 4096, 1u << 30);
  const std::vector<GidEntry> gids = read_gids(context_, port_);
  const int index = choose_gid(gids, address_.is_infiniband, settings.gid_index);
  if (index < 0 && (!address_.is_infiniband || settings.gid_index >= 0)) {
    return fail(MEP_ERR_NOT_FOUND,
                "HCA %s has no address (GID) to use%s: has its interface an IP address?",
                name_.c_str(), settings.gid_index >= 0 ? " at MEP_IB_GID_INDEX" : "");
  }
  for (const GidEntry& gid : gids) {
    if (static_cast<int>(gid.index) == index) address_.gid = gid.gid;
  }
  gid_index_ = static_cast<uint8_t>(std::max(index, 0));
  log(LogLevel::kInfo, "HCA %s: %s, GID %u, MTU %u", name_.c_str(),
      address_.is_infiniband ? "InfiniBand" : "RoCE", static_cast<unsigned>(gid_index_),
      128u << address_.mtu);
  return MEP_SUCCESS;
}

mep_result_t Hca::make_receive_side() {
  protection_domain_ = ibv_alloc_pd(context_);
  channel_ = protection_domain_ != nullptr ? ibv_create_comp_channel(context_) : nullptr;
  if (channel_ != nullptr) {
    receive_completions_ = ibv_create_cq(context_, kReceives + 1, nullptr, channel_, 0);
  }
  if (receive_completions_ == nullptr) {
    return fail(MEP_ERR_NO_MEMORY, "HCA %s gives no completion queue (ulimit -l?): %m",
                name_.c_str());
  }
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = kReceives;
  attributes.attr.max_sge = 1;
  receive_queue_ = ibv_create_srq(protection_domain_, &attributes);
  if (receive_queue_ == nullptr) {
    return fail(MEP_ERR_NO_MEMORY, "HCA %s gives no shared receive queue (ulimit -l?): %m",
                name_.c_str());
  }
  // Shared, so that a fork leaves the pages with this process.
  void* memory =
      mmap(nullptr, kReceivedBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return fail(MEP_ERR_NO_MEMORY, "no memory to receive signals in: %m");
  received_ = static_cast<SignalDefinition*>(memory);
  // An int: the macro combines it with a value of another enumeration, which clang warns of.
  constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE;
  received_region_ = ibv_reg_mr(protection_domain_, memory, kReceivedBytes, kAccess);
  if (received_region_ == nullptr) {
    return fail(MEP_ERR_NO_MEMORY, "HCA %s cannot register %zu bytes (ulimit -l?): %m",
                name_.c_str(), kReceivedBytes);
  }
  for (uint32_t i = 0; i < kReceives; ++i) spent_.push_back(i);
  if (!make_nonblocking(channel_->fd) || !make_nonblocking(context_->async_fd) ||
      !post_receives() || ibv_req_notify_cq(receive_completions_, 0) != 0) {
    return fail(MEP_ERR_SYSTEM, "HCA %s: its receive queue cannot be prepared: %m", name_.c_str());
  }
  watch_low();
  return MEP_SUCCESS;
}

Hca::~Hca() {
  if (receive_queue_ != nullptr) ibv_destroy_srq(receive_queue_);
  if (receive_completions_ != nullptr) ibv_destroy_cq(receive_completions_);
  if (channel_ != nullptr) ibv_destroy_comp_channel(channel_);
  if (received_region_ != nullptr) ibv_dereg_mr(received_region_);
  if (received_ != nullptr) munmap(received_, kReceivedBytes);
  if (protection_domain_ != nullptr) ibv_dealloc_pd(protection_domain_);
  if (context_ != nullptr) ibv_close_device(context_);
}

bool Hca::post_receives() {
  // Only signals that are sent whole use the buffer.
  std::array<ibv_recv_wr, 64> requests{};
  std::array<ibv_sge, 64> pieces{};
  while (!spent_.empty()) {
    const size_t batch = std::min(spent_.size(), requests.size());
    for (size_t i = 0; i < batch; ++i) {
      const uint32_t index = spent_[spent_.size() - 1 - i];
      pieces[i] = {reinterpret_cast<uintptr_t>(received_ + index), sizeof(SignalDefinition),
                   received_region_->lkey};
      requests[i].wr_id = index;
      requests[i].sg_list = &pieces[i];
      requests[i].num_sge = 1;
      requests[i].next = i + 1 < batch ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* refused = nullptr;
    if (ibv_post_srq_recv(receive_queue_, requests.data(), &refused) != 0) return false;
    spent_.resize(spent_.size() - batch);
  }
  return true;
}

void Hca::watch_low() {
  ibv_srq_attr attributes{};
  attributes.srq_limit = kReceives / 4;
  // Without it a target that computes for long lets its peers' signals wait until it calls again.
  (void)ibv_modify_srq(receive_queue_, &attributes, IBV_SRQ_LIMIT);
}

void Hca::attach(uint32_t queue_pair, std::shared_ptr<ArrivedSignals> signals) {
  const std::lock_guard lock(receive_mutex_);
  attached_[queue_pair] = std::move(signals);
}

void Hca::detach(uint32_t queue_pair) {
  const std::lock_guard lock(receive_mutex_);
  attached_.erase(queue_pair);
}

Hca::Drained Hca::drain() {
  const std::lock_guard lock(receive_mutex_);
  const Drained early = std::exchange(drained_early_, {});
  const Drained now = drain_locked();
  return {early.any || now.any, early.marks || now.marks};
}

void Hca::drain_before_destroying() {
  const std::lock_guard lock(receive_mutex_);
  const Drained now = drain_locked();
  drained_early_ = {drained_early_.any || now.any, drained_early_.marks || now.marks};
}

Hca::Drained Hca::drain_locked() {
  Drained drained;
  if (is_lost()) return drained;
  std::array<ibv_wc, 32> completions;
  for (;;) {
    const int count =
        ibv_poll_cq(receive_completions_, static_cast<int>(completions.size()), completions.data());
    if (count <= 0) break;
    drained.any = true;
    for (int i = 0; i < count; ++i) {
      const ibv_wc& wc = completions[static_cast<size_t>(i)];
      if (wc.wr_id >= kReceives) continue;
      const auto index = static_cast<uint32_t>(wc.wr_id);
      spent_.push_back(index);
      if (wc.status != IBV_WC_SUCCESS) continue;
      const auto attached = attached_.find(wc.qp_num);
      if (attached == attached_.end()) continue;
      if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0) {
        drained.marks = attached->second->take_code(ntohl(wc.imm_data)) || drained.marks;
      } else if (wc.opcode == IBV_WC_RECV) {
        attached->second->take_definition(
            std::as_bytes(std::span(received_ + index, 1))
                .first(std::min<size_t>(wc.byte_len, sizeof(SignalDefinition))));
      }
    }
    if (spent_.size() >= kReceives / 8) (void)post_receives();
    if (count < static_cast<int>(completions.size())) break;
  }
  return drained;
}

void Hca::arm() {
  const std::lock_guard lock(event_mutex_);
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  unsigned events = 0;
  while (ibv_get_cq_event(channel_, &queue, &context) == 0) ++events;
  if (events > 0) ibv_ack_cq_events(receive_completions_, events);
  if (!is_lost()) (void)ibv_req_notify_cq(receive_completions_, 0);
}

bool Hca::take_events(const std::function<void(uint32_t, const char*)>& queue_pair_failed,
                      std::string* text) {
  const std::lock_guard lock(event_mutex_);
  bool failed = false;
  ibv_async_event event{};
  while (ibv_get_async_event(context_, &event) == 0) {
    const char* what = ibv_event_type_str(event.event_type);
    switch (event.event_type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        queue_pair_failed(event.element.qp->qp_num, what);
        break;
      case IBV_EVENT_DEVICE_FATAL:
      case IBV_EVENT_CQ_ERR:
      case IBV_EVENT_SRQ_ERR:
        failed = true;
        *text = "HCA " + name_ + ": " + what;
        break;
      case IBV_EVENT_SRQ_LIMIT_REACHED:
        runs_low_.store(true, std::memory_order_relaxed);
        break;
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_PORT_ACTIVE:
        // A link that is down for a moment costs repeated packets; one that stays down, its peers.
        if (event.element.port_num == port_) {
          log(LogLevel::kWarn, "HCA %s: %s", name_.c_str(), what);
        }
        break;
      default:
        log(LogLevel::kDebug, "HCA %s: %s", name_.c_str(), what);
        break;
    }
    ibv_ack_async_event(&event);
  }
  if (failed) lost_.store(true, std::memory_order_relaxed);
  return failed;
}

std::vector<PortName> active_ports() {
  std::vector<PortName> ports;
  int count = 0;
  const DeviceList devices = list_devices(&count);
  for (int i = 0; i < count; ++i) {
    ibv_context* context = ibv_open_device(devices[static_cast<size_t>(i)]);
    if (context == nullptr) continue;
    ibv_device_attr device{};
    const int last = ibv_query_device(context, &device) == 0 ? device.phys_port_cnt : 0;
    for (int port = 1; port <= last; ++port) {
      ibv_port_attr attributes{};
      if (ibv_query_port(context, static_cast<uint8_t>(port), &attributes) == 0 &&
          attributes.state == IBV_PORT_ACTIVE) {
        ports.push_back({ibv_get_device_name(devices[static_cast<size_t>(i)]), port});
      }
    }
    ibv_close_device(context);
  }
  return ports;
}

std::string describe_ports() {
  std::string text;
  int count = 0;
  const DeviceList devices = list_devices(&count);
  for (int i = 0; i < count; ++i) {
    ibv_context* context = ibv_open_device(devices[static_cast<size_t>(i)]);
    const std::string name = ibv_get_device_name(devices[static_cast<size_t>(i)]);
    if (!text.empty()) text += ", ";
    if (context == nullptr) {
      text += name + " (cannot be opened)";
      continue;
    }
    ibv_device_attr device{};
    const int last = ibv_query_device(context, &device) == 0 ? device.phys_port_cnt : 0;
    for (int port = 1; port <= last; ++port) {
      ibv_port_attr attributes{};
      if (ibv_query_port(context, static_cast<uint8_t>(port), &attributes) != 0) continue;
      text += name + ":" + std::to_string(port) + " (" + ibv_port_state_str(attributes.state) + ")";
    }
    ibv_close_device(context);
  }
  return text;
}

}  // namespace mep::verbs
