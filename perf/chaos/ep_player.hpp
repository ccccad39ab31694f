// Expert parallelism of a player: EP objects, and layers of dispatch, expert and combine on all their
// buffers.
//
// Dispatch and combine are personal: after a failure each rank may have come as far as it happened to.
// A rank that meets trouble stops; all ranks of the comm then meet in an allreduce, and if one had trouble the
// object is made anew. With MEP_EP_LOSS_UNIFORM all have the same results, so all stop at the same place.
//
// On GPUs each call goes on the rank's stream, and is waited for at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ep_data.hpp"
#include "player.hpp"

namespace mep::programs {

// An array of this rank, and its place on the GPU where the rank has one.
template <typename Value>
struct EpArray {
  std::vector<Value> here;
  Value* there = nullptr;

  Value* get() { return there != nullptr ? there : here.data(); }
  void put_on(Device* device) {
    there = static_cast<Value*>(device->take(here.size() * sizeof(Value)));
    upload(device);
  }
  void upload(Device* device) { device->upload(there, here.data(), here.size() * sizeof(Value)); }
  void fetch(Device* device, const Value* from) {
    device->download(here.data(), from, here.size() * sizeof(Value));
  }
};

class EpPlayer {
 public:
  explicit EpPlayer(Player* player);
  ~EpPlayer();
  void create(const Step& step);
  void layers(const Step& step);
  // After layers() with trouble, where no rank of this process has work on a GPU: a new object.
  void renew(const Step& step);
  void free(uint32_t number);
  void free_all();
  // After an admission: joiners are in none of the objects, so there are new ones.
  void renew_all(uint32_t before_step);
  // A collective of that comm has reported the end of these ranks.
  void note_reported(uint32_t comm, uint64_t ranks);

 private:
  enum class Sent { kNothing, kDispatch, kCombine };
  struct Status {
    mep_op_status_t head;
    uint64_t failed;  // ranks
  };
  struct Buffer {
    mep_ep_handle_t handle = nullptr;
    mep_ep_view_t view{};
    mep_ep_view_t seen{};  // what the last dispatch gave, where this process can read it
    std::unique_ptr<EpRound> data;
    EpArray<uint8_t> x, y, out, recv_x;
    EpArray<int32_t> recv_count, src_info, topk_idx;
    EpArray<mep_range_t> layout_range;
    EpArray<int64_t> routing;
    EpArray<float> weights, topk_weights;
    EpArray<int64_t> total;      // rows of its last dispatch, in high throughput
    EpArray<Status> status;      // on GPUs
    Sent sent = Sent::kNothing;  // and not received yet
    uint64_t missing = 0;        // ranks, from its last operation
  };
  struct Object {
    mep_ep_t handle = nullptr;
    uint64_t live = 0;               // ranks to whose experts rows go
    uint64_t reported = 0;           // ranks whose end a collective has reported since it was made
    bool had_trouble = false;        // on any rank
    mep_result_t why = MEP_SUCCESS;  // on GPUs: of the view change that has ended its operations
    std::vector<std::unique_ptr<Buffer>> buffers;
  };

  bool make(uint32_t number, uint32_t first_serial);
  // False: trouble.
  bool round(const Step& step, Object* object, uint32_t iteration);
  enum class Halves { kBoth, kSend, kReceive };  // of an operation, that one call does
  bool dispatch(const Step& step, Object* object, uint32_t index, Halves halves);
  bool combine(const Step& step, Object* object, uint32_t index, Halves halves);
  void drain(const Step& step, Object* object);
  bool is_uniform() const;
  struct Ranks {
    uint64_t failed = 0;   // that the record names
    uint64_t lacking = 0;  // whose part is not in the result
  };
  mep_op_info_t last_op(const Object& object, uint32_t index, Ranks* ranks) const;
  // Whether an operation has ended; else the call told news and did nothing else. Into *result how it ended.
  bool note(What what, const Step& step, Object* object, uint32_t index, uint32_t part,
            mep_result_t* result, const mep_op_info_t& before, Ranks* ranks);
  mep_stream_t stream() const;
  template <class Receive>
  static void give_status(Buffer* buffer, Receive* receive);
  // On GPUs: waits for what a call has enqueued. Into *result how an operation that was received ended.
  void finish_on_stream(mep_comm_t comm, Object* object, Buffer* buffer, bool receives,
                        mep_result_t* result) const;

  // ep_checks.cpp. Texts say what is wrong, or are empty.
  void fill(const EpShape& shape, Buffer* buffer);
  void put_on_device(const EpShape& shape, Buffer* buffer) const;
  void take_rows(const EpShape& shape, Buffer* buffer) const;
  size_t first_row(const EpShape& shape, const Buffer& buffer, uint32_t local, uint32_t rank) const;
  std::string check_rows(const EpShape& shape, const Buffer& buffer, bool complete) const;
  std::string check_tokens(const EpShape& shape, const Buffer& buffer) const;
  std::string check_row(const Buffer& buffer, size_t place, const Arrival& row) const;
  void run_experts(const EpShape& shape, Buffer* buffer) const;
  std::string check_out(const EpShape& shape, const Buffer& buffer) const;

  Player& player_;
  std::map<uint32_t, Object> objects_;
  uint32_t iteration_ = 0;
};

}  // namespace mep::programs
