#include "transport/verbs/mlx5_device.hpp"

#include <dlfcn.h>
#include <infiniband/mlx5dv.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "transport/gpu_queue/mlx5_queue.hpp"
#include "transport/verbs/addresses.hpp"
#include "transport/verbs/hca.hpp"

namespace mep::verbs {
namespace {

namespace m = gpu_queue::mlx5;

// The functions of libmlx5 that are used.
struct Library {
  decltype(&mlx5dv_is_supported) is_supported = nullptr;
  decltype(&mlx5dv_open_device) open_device = nullptr;
  decltype(&mlx5dv_init_obj) init_obj = nullptr;
  decltype(&mlx5dv_devx_general_cmd) general = nullptr;
  decltype(&mlx5dv_devx_obj_create) create = nullptr;
  decltype(&mlx5dv_devx_obj_modify) modify = nullptr;
  decltype(&mlx5dv_devx_obj_destroy) destroy = nullptr;
  decltype(&mlx5dv_devx_umem_reg) share = nullptr;
  decltype(&mlx5dv_devx_umem_reg_ex) share_dmabuf = nullptr;
  decltype(&mlx5dv_devx_umem_dereg) unshare = nullptr;
  decltype(&mlx5dv_devx_alloc_uar) alloc_uar = nullptr;
  decltype(&mlx5dv_devx_free_uar) free_uar = nullptr;
  decltype(&mlx5dv_devx_query_eqn) query_eqn = nullptr;
  bool is_loaded = false;
  const char* missing = nullptr;  // a function that it has not
};

Library load_library() {
  Library library;
  void* handle = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return library;
  library.is_loaded = true;
  const auto find = [&](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle, name));
    if (*function == nullptr) library.missing = name;
  };
  find(&library.is_supported, "mlx5dv_is_supported");
  find(&library.open_device, "mlx5dv_open_device");
  find(&library.init_obj, "mlx5dv_init_obj");
  find(&library.general, "mlx5dv_devx_general_cmd");
  find(&library.create, "mlx5dv_devx_obj_create");
  find(&library.modify, "mlx5dv_devx_obj_modify");
  find(&library.destroy, "mlx5dv_devx_obj_destroy");
  find(&library.share, "mlx5dv_devx_umem_reg");
  find(&library.share_dmabuf, "mlx5dv_devx_umem_reg_ex");
  find(&library.unshare, "mlx5dv_devx_umem_dereg");
  find(&library.alloc_uar, "mlx5dv_devx_alloc_uar");
  find(&library.free_uar, "mlx5dv_devx_free_uar");
  find(&library.query_eqn, "mlx5dv_devx_query_eqn");
  return library;
}
const Library& mlx5_library() {
  static const Library library = load_library();
  return library;
}

// The answer tells more than the error number where the firmware has refused.
mep_result_t result_of(int error, const m::Mailbox& in, const m::Mailbox& out) {
  MEP_TRY(m::check_answer(in, out));
  if (error == 0) return MEP_SUCCESS;
  errno = error;
  return fail(MEP_ERR_SYSTEM, "a command of the adapter failed: %m");
}

class DevxObject final : public m::Object {
 public:
  explicit DevxObject(mlx5dv_devx_obj* object) : object_(object) {}
  ~DevxObject() override { (void)mlx5_library().destroy(object_); }
  mep_result_t modify(const m::Mailbox& in, m::Mailbox* out) override {
    const int error =
        mlx5_library().modify(object_, in.data(), in.size(), out->data(), out->size());
    return result_of(error, in, *out);
  }

 private:
  mlx5dv_devx_obj* object_;
};

class DevxMemory final : public m::SharedMemory {
 public:
  explicit DevxMemory(mlx5dv_devx_umem* memory) : memory_(memory) {}
  ~DevxMemory() override { (void)mlx5_library().unshare(memory_); }
  uint32_t id() const override { return memory_->umem_id; }

 private:
  mlx5dv_devx_umem* memory_;
};

class DevxPage final : public m::DoorbellPage {
 public:
  explicit DevxPage(mlx5dv_devx_uar* page) : page_(page) {}
  ~DevxPage() override { mlx5_library().free_uar(page_); }
  uint32_t id() const override { return page_->page_id; }
  uint64_t* address() const override { return static_cast<uint64_t*>(page_->reg_addr); }

 private:
  mlx5dv_devx_uar* page_;
};

class DevxRegistration final : public m::RegisteredMemory {
 public:
  explicit DevxRegistration(ibv_mr* region) : region_(region) {}
  ~DevxRegistration() override { (void)ibv_dereg_mr(region_); }
  uint32_t local_key() const override { return region_->lkey; }
  uint32_t remote_key() const override { return region_->rkey; }

 private:
  ibv_mr* region_;
};

// The address of a network interface of Ethernet.
mep_result_t read_mac(uint32_t interface, std::array<uint8_t, 6>* mac) {
  char name[IF_NAMESIZE] = {};
  if (if_indextoname(interface, name) == nullptr) {
    return fail(MEP_ERR_SYSTEM,
                "the network interface of its port, number %u, is not in this network namespace",
                interface);
  }
  const std::string path = std::string("/sys/class/net/") + name + "/address";
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  std::array<unsigned, 6> bytes{};
  if (std::sscanf(text.c_str(), "%2x:%2x:%2x:%2x:%2x:%2x", &bytes[0], &bytes[1], &bytes[2],
                  &bytes[3], &bytes[4], &bytes[5]) != 6) {
    return fail(MEP_ERR_SYSTEM, "%s has no address of Ethernet", path.c_str());
  }
  for (size_t i = 0; i < bytes.size(); ++i) (*mac)[i] = static_cast<uint8_t>(bytes[i]);
  return MEP_SUCCESS;
}

class DevxDevice final : public m::Device {
 public:
  ~DevxDevice() override {
    if (domain_ != nullptr) (void)ibv_dealloc_pd(domain_);
    if (context_ != nullptr) (void)ibv_close_device(context_);
  }

  mep_result_t open(ibv_device* device) {
    mlx5dv_context_attr attributes{};
    attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
    context_ = mlx5_library().open_device(device, &attributes);
    if (context_ == nullptr) {
      return fail(MEP_ERR_SYSTEM,
                  "it cannot be opened with DevX (the kernel's mlx5_ib has to allow it): %m");
    }
    domain_ = ibv_alloc_pd(context_);
    if (domain_ == nullptr) {
      return fail(MEP_ERR_SYSTEM, "it has no protection domain: %m");
    }
    mlx5dv_pd details{};
    mlx5dv_obj wanted{};
    wanted.pd.in = domain_;
    wanted.pd.out = &details;
    if (mlx5_library().init_obj(&wanted, MLX5DV_OBJ_PD) != 0) {
      return fail(MEP_ERR_SYSTEM, "its protection domain has no number");
    }
    domain_number_ = details.pdn;
    return MEP_SUCCESS;
  }

  mep_result_t query(const m::Mailbox& in, m::Mailbox* out) override {
    const int error =
        mlx5_library().general(context_, in.data(), in.size(), out->data(), out->size());
    return result_of(error, in, *out);
  }
  mep_result_t create(const m::Mailbox& in, m::Mailbox* out,
                      std::unique_ptr<m::Object>* object) override {
    mlx5dv_devx_obj* made =
        mlx5_library().create(context_, in.data(), in.size(), out->data(), out->size());
    if (made == nullptr) return result_of(errno, in, *out);
    return keep<DevxObject>(made, mlx5_library().destroy, object);
  }
  mep_result_t share(const gpu_queue::MemoryRange& range,
                     std::unique_ptr<m::SharedMemory>* memory) override {
    mlx5dv_devx_umem* made = nullptr;
    if (range.dmabuf < 0) {
      made = mlx5_library().share(context_, range.address, range.bytes, IBV_ACCESS_LOCAL_WRITE);
    } else {
      mlx5dv_devx_umem_in in{};
      in.size = range.bytes;
      in.access = IBV_ACCESS_LOCAL_WRITE;
      in.pgsz_bitmap = ~uint64_t{m::QueueLayout::kPage - 1};
      in.comp_mask = MLX5DV_UMEM_MASK_DMABUF;
      in.dmabuf_fd = range.dmabuf;
      made = mlx5_library().share_dmabuf(context_, &in);
    }
    if (made == nullptr) {
      return fail(MEP_ERR_SYSTEM, "the adapter does not take %zu bytes of %s: %m", range.bytes,
                  range.dmabuf < 0 ? "memory" : "a dmabuf");
    }
    return keep<DevxMemory>(made, mlx5_library().unshare, memory);
  }
  mep_result_t doorbells(std::unique_ptr<m::DoorbellPage>* page) override {
    mlx5dv_devx_uar* made = mlx5_library().alloc_uar(context_, MLX5DV_UAR_ALLOC_TYPE_NC);
    if (made == nullptr) {
      return fail(MEP_ERR_SYSTEM, "the adapter gives no page of doorbells: %m");
    }
    return keep<DevxPage>(made, mlx5_library().free_uar, page);
  }
  mep_result_t event_queue(uint32_t* number) override {
    const int error = mlx5_library().query_eqn(context_, 0, number);
    if (error == 0) return MEP_SUCCESS;
    errno = error;
    return fail(MEP_ERR_SYSTEM, "the adapter names no event queue: %m");
  }
  uint32_t protection_domain() const override { return domain_number_; }
  // Writes keep their order: a signal of a window arrives behind the data.
  mep_result_t register_memory(const gpu_queue::MemoryRange& range,
                               std::unique_ptr<m::RegisteredMemory>* memory) override {
    constexpr int kAccess =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    ibv_mr* made = nullptr;
    if (range.dmabuf < 0) {
      made = ibv_reg_mr(domain_, range.address, range.bytes, kAccess);
    } else {
      // Not in each libibverbs that this library can be loaded with.
      static const auto call =
          reinterpret_cast<decltype(&ibv_reg_dmabuf_mr)>(dlsym(RTLD_DEFAULT, "ibv_reg_dmabuf_mr"));
      if (call == nullptr) {
        return fail(MEP_ERR_UNSUPPORTED,
                    "libibverbs has no ibv_reg_dmabuf_mr; a newer rdma-core has it");
      }
      made = call(domain_, 0, range.bytes, std::bit_cast<uint64_t>(range.address), range.dmabuf,
                  kAccess);
    }
    if (made == nullptr) {
      return fail(MEP_ERR_SYSTEM, "the adapter does not register %zu bytes%s: %m", range.bytes,
                  range.dmabuf < 0 ? " (ulimit -l?)" : " of a dmabuf");
    }
    return keep<DevxRegistration>(made, ibv_dereg_mr, memory);
  }
  mep_result_t find_port(m::Port* out) override;

 private:
  template <typename Kind, typename Made, typename End, typename Base>
  static mep_result_t keep(Made* made, End end, std::unique_ptr<Base>* out) {
    out->reset(new (std::nothrow) Kind(made));
    if (*out != nullptr) return MEP_SUCCESS;
    (void)end(made);
    return fail(MEP_ERR_NO_MEMORY, "no memory for an object of the adapter");
  }

  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  uint32_t domain_number_ = 0;
};

mep_result_t DevxDevice::find_port(m::Port* out) {
  const std::string name = ibv_get_device_name(context_->device);
  m::Port found;
  ibv_port_attr port{};
  MEP_TRY(find_active_port(context_, name, 0, &found.path.port, &port));
  Settings settings;
  MEP_TRY(read_settings(&settings));
  const bool is_infiniband = port.link_layer != IBV_LINK_LAYER_ETHERNET;
  const std::vector<GidEntry> gids = read_gids(context_, found.path.port);
  const int chosen = choose_gid(gids, is_infiniband, settings.gid_index);
  const auto gid = std::find_if(gids.begin(), gids.end(), [&](const GidEntry& entry) {
    return static_cast<int>(entry.index) == chosen;
  });
  found.address.mtu = std::clamp<uint32_t>(port.active_mtu, 1, kLargestMtu);
  found.address.lid = port.lid;
  found.address.has_gid = gid != gids.end();
  found.path.service_level = settings.service_level;
  found.path.traffic_class = settings.traffic_class;
  found.path.needs_global_header = is_infiniband && (port.flags & IBV_QPF_GRH_REQUIRED) != 0;
  if (found.address.has_gid) {
    found.address.gid = gid->gid;
    found.path.gid_index = static_cast<uint8_t>(gid->index);
    found.path.is_roce_v2 = gid->type == GidType::kRoceV2;
  }
  if (!is_infiniband) {
    if (!found.address.has_gid) {
      return fail(MEP_ERR_NOT_FOUND,
                  "it has no address (GID) to use: has its interface an IP address?");
    }
    MEP_TRY(read_mac(gid->interface, &found.address.mac));
  }
  ibv_device_attr device{};
  const bool answers = ibv_query_device(context_, &device) == 0;
  found.description = "port " + std::to_string(found.path.port) + ", " +
                      (is_infiniband           ? "InfiniBand"
                       : found.path.is_roce_v2 ? "RoCE v2"
                                               : "RoCE v1") +
                      ", GID " + std::to_string(found.path.gid_index) + ", MTU " +
                      std::to_string(128u << found.address.mtu) + ", firmware " +
                      (answers ? device.fw_ver : "unknown");
  *out = found;
  return MEP_SUCCESS;
}

mep_result_t make_once(ibv_device* device, uint32_t entries) {
  std::unique_ptr<m::Device> opened;
  MEP_TRY(open_mlx5_device(device, &opened));
  m::Capabilities capabilities;
  MEP_TRY(m::read_capabilities(*opened, &capabilities));
  const std::string lack = m::what_lacks(capabilities, entries);
  if (!lack.empty()) return fail(MEP_ERR_UNSUPPORTED, "%s", lack.c_str());
  m::SendQueuePair::Options options;
  options.entries = entries;
  options.mtu = 5;
  options.memory.bytes = m::QueueLayout(entries).bytes;
  const std::unique_ptr<void, void (*)(void*)> memory(
      std::aligned_alloc(m::QueueLayout::kPage, options.memory.bytes), std::free);
  if (memory == nullptr) return fail(MEP_ERR_NO_MEMORY, "no memory for a queue");
  std::memset(memory.get(), 0xff, options.memory.bytes);
  options.memory.address = memory.get();
  std::unique_ptr<m::SendQueuePair> pair;
  return m::SendQueuePair::create(*opened, capabilities, options, &pair);
}

}  // namespace

mep_result_t open_mlx5_device(ibv_device* device, std::unique_ptr<m::Device>* out) {
  const Library& library = mlx5_library();
  if (!library.is_loaded) {
    return fail(MEP_ERR_UNSUPPORTED,
                "libmlx5.so.1 cannot be loaded (Debian: apt install ibverbs-providers)");
  }
  if (library.missing != nullptr) {
    return fail(MEP_ERR_UNSUPPORTED, "libmlx5.so.1 has no %s; a newer rdma-core has it",
                library.missing);
  }
  if (!library.is_supported(device)) {
    return fail(MEP_ERR_UNSUPPORTED, "its driver is not mlx5");
  }
  auto made = std::unique_ptr<DevxDevice>(new (std::nothrow) DevxDevice());
  if (made == nullptr) return fail(MEP_ERR_NO_MEMORY, "no memory for an adapter");
  MEP_TRY(made->open(device));
  *out = std::move(made);
  return MEP_SUCCESS;
}

mep_result_t open_mlx5_device(const std::string& name, std::unique_ptr<m::Device>* out) {
  int count = 0;
  const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> devices(ibv_get_device_list(&count),
                                                                     ibv_free_device_list);
  std::string others;
  for (int i = 0; devices != nullptr && i < count; ++i) {
    ibv_device* device = devices.get()[i];
    if (name == ibv_get_device_name(device)) return open_mlx5_device(device, out);
    others += (i == 0 ? "" : ", ") + std::string(ibv_get_device_name(device));
  }
  if (others.empty()) {
    return fail(
        MEP_ERR_NOT_FOUND,
        "this machine has no HCA (is its driver loaded? a container wants /dev/infiniband)");
  }
  return fail(MEP_ERR_NOT_FOUND, "this machine has no such HCA; it has %s", others.c_str());
}

int report_mlx5_queues(uint32_t entries, void (*report)(const char*, const std::string&)) {
  int count = 0;
  const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> devices(ibv_get_device_list(&count),
                                                                     ibv_free_device_list);
  if (devices == nullptr) return 0;
  for (int i = 0; i < count; ++i) {
    ibv_device* device = devices.get()[i];
    const bool is_made = make_once(device, entries) == MEP_SUCCESS;
    report(ibv_get_device_name(device), is_made ? "" : last_error_text());
  }
  return count;
}

}  // namespace mep::verbs
