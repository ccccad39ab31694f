// The functions and numbers of NCCL's public header nccl.h, whose ABI is that of libnccl.so.2.
#include "device/nccl.hpp"

#include <dlfcn.h>

#include <cstring>
#include <string>

#include "error.hpp"
#include "types.hpp"

namespace mep::perf {
namespace {

constexpr int kNcclSuccess = 0;

// ncclDataType_t; -1: there is none.
int nccl_type(mep_dtype_t dtype) {
  switch (dtype) {
    case MEP_INT8:
      return 0;
    case MEP_UINT8:
      return 1;
    case MEP_INT32:
      return 2;
    case MEP_UINT32:
      return 3;
    case MEP_INT64:
      return 4;
    case MEP_UINT64:
      return 5;
    case MEP_FLOAT16:
      return 6;
    case MEP_FLOAT32:
      return 7;
    case MEP_FLOAT64:
      return 8;
    case MEP_BFLOAT16:
      return 9;
    default:
      return -1;
  }
}

// ncclRedOp_t; -1: there is none.
int nccl_operator(mep_op_t op) {
  switch (op) {
    case MEP_SUM:
      return 0;
    case MEP_PROD:
      return 1;
    case MEP_MAX:
      return 2;
    case MEP_MIN:
      return 3;
    case MEP_AVG:
      return 4;
    default:
      return -1;
  }
}

}  // namespace

class NcclLibrary {
 public:
  static const NcclLibrary& get() {
    static const NcclLibrary library;
    return library;
  }

  struct Id {
    char bytes[128];
  };
  int (*get_unique_id)(Id*) = nullptr;
  int (*comm_init_rank)(void**, int, Id, int) = nullptr;
  int (*comm_destroy)(void*) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void*, size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*receive)(void*, size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*all_reduce)(const void*, void*, size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*all_gather)(const void*, void*, size_t, int, void*, cudaStream_t) = nullptr;
  int (*reduce_scatter)(const void*, void*, size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*broadcast)(const void*, void*, size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*reduce)(const void*, void*, size_t, int, int, int, void*, cudaStream_t) = nullptr;

  void require(int result, const char* what) const {
    if (result == kNcclSuccess) return;
    throw PerfError(std::string(what) + ": NCCL says " + error_string_(result));
  }

 private:
  NcclLibrary() : handle_(dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      throw PerfError(
          "--vs nccl: libnccl.so.2 was not found; LD_LIBRARY_PATH may name its folder (PyTorch's "
          "is site-packages/nvidia/nccl/lib)");
    }
    find("ncclGetUniqueId", &get_unique_id);
    find("ncclCommInitRank", &comm_init_rank);
    find("ncclCommDestroy", &comm_destroy);
    find("ncclGroupStart", &group_start);
    find("ncclGroupEnd", &group_end);
    find("ncclSend", &send);
    find("ncclRecv", &receive);
    find("ncclAllReduce", &all_reduce);
    find("ncclAllGather", &all_gather);
    find("ncclReduceScatter", &reduce_scatter);
    find("ncclBroadcast", &broadcast);
    find("ncclReduce", &reduce);
    find("ncclGetErrorString", &error_string_);
  }

  template <class Function>
  void find(const char* name, Function* function) {
    void* found = dlsym(handle_, name);
    if (found == nullptr) throw PerfError(std::string("--vs nccl: libnccl.so.2 lacks ") + name);
    std::memcpy(function, &found, sizeof found);
  }

  void* handle_;
  const char* (*error_string_)(int) = nullptr;
};

NcclRank::NcclRank(DeviceContext& context) : context_(context), library_(NcclLibrary::get()) {
  int32_t rank = 0;
  int32_t size = 0;
  require(mep_comm_rank(context.comm(), &rank), "mep_comm_rank");
  require(mep_comm_size(context.comm(), &size), "mep_comm_size");
  context.use();
  auto* place = context.allocate<NcclLibrary::Id>(1);
  NcclLibrary::Id id{};
  if (rank == 0) library_.require(library_.get_unique_id(&id), "ncclGetUniqueId");
  context.upload(place, &id, sizeof id);
  require(mep_broadcast(place, place, sizeof id, MEP_UINT8, 0, context.comm(), context.stream()),
          "mep_broadcast");
  context.synchronize();
  context.download(&id, place, sizeof id);
  library_.require(library_.comm_init_rank(&comm_, size, id, rank),
                   "ncclCommInitRank, which wants a GPU for each rank");
}

NcclRank::~NcclRank() {
  (void)library_.comm_destroy(comm_);
}

void NcclRank::check(const CollectiveCall& call) const {
  if (nccl_type(call.dtype) < 0) {
    throw PerfError(std::string("--vs nccl: NCCL has no ") + dtype_name(call.dtype));
  }
  if (call.entry->has_reduction() && nccl_operator(call.reduction) < 0) {
    throw PerfError(std::string("--vs nccl: NCCL has no operator ") +
                    reduction_name(call.reduction));
  }
}

// NCCL's way of saying what has no function of its own: messages in a group.
void NcclRank::enqueue_blocks(const CollectiveCall& call, bool sends_all, bool receives_all) {
  const int type = nccl_type(call.dtype);
  const size_t block = call.count * mep_dtype_size(call.dtype);
  const auto* send = static_cast<const uint8_t*>(call.send);
  auto* receive = static_cast<uint8_t*>(call.recv);
  const bool is_root = call.rank == kRoot;
  library_.require(library_.group_start(), "ncclGroupStart");
  for (int peer = 0; peer < call.size; ++peer) {
    const size_t at = static_cast<size_t>(peer) * block;
    if (sends_all ? receives_all || is_root : peer == kRoot) {
      library_.require(library_.send(send + (sends_all ? at : 0), call.count, type, peer, comm_,
                                     context_.stream()),
                       "ncclSend");
    }
    if (receives_all ? sends_all || is_root : peer == kRoot) {
      library_.require(library_.receive(receive + (receives_all ? at : 0), call.count, type, peer,
                                        comm_, context_.stream()),
                       "ncclRecv");
    }
  }
  library_.require(library_.group_end(), "ncclGroupEnd");
}

void NcclRank::enqueue(const CollectiveCall& call) {
  const int type = nccl_type(call.dtype);
  const int op = nccl_operator(call.reduction);
  cudaStream_t stream = context_.stream();
  int result = kNcclSuccess;
  switch (call.entry->kind) {
    case Collective::k_allreduce:
      result = library_.all_reduce(call.send, call.recv, call.count, type, op, comm_, stream);
      break;
    case Collective::k_allgather:
      result = library_.all_gather(call.send, call.recv, call.count, type, comm_, stream);
      break;
    case Collective::k_reduce_scatter:
      result = library_.reduce_scatter(call.send, call.recv, call.count, type, op, comm_, stream);
      break;
    case Collective::k_broadcast:
      result = library_.broadcast(call.send, call.recv, call.count, type, kRoot, comm_, stream);
      break;
    case Collective::k_reduce:
      result = library_.reduce(call.send, call.recv, call.count, type, op, kRoot, comm_, stream);
      break;
    case Collective::k_alltoall:
      return enqueue_blocks(call, true, true);
    case Collective::k_gather:
      return enqueue_blocks(call, false, true);
    case Collective::k_scatter:
      return enqueue_blocks(call, true, false);
    default:
      throw PerfError(std::string("--vs nccl: NCCL has no ") + call.entry->name());
  }
  library_.require(result, call.entry->name());
}

}  // namespace mep::perf
