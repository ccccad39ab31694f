// Expert parallelism of a player: EP objects, and layers of dispatch, expert and combine on all their
// buffers.
//
// Dispatch and combine are personal: after a failure each rank may have come as far as it happened to.
// A rank that meets trouble stops; all ranks of the comm then meet in an allreduce, and if one had trouble the
// object is made anew. With MEP_COMM_UNIFORM all have the same results, so all stop at the same place.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ep_data.hpp"
#include "player.hpp"

namespace mep::programs {

class EpPlayer {
 public:
  explicit EpPlayer(Player* player);
  ~EpPlayer();
  void create(const Step& step);
  void layers(const Step& step);
  void free(uint32_t number);
  void free_all();
  // After an admission: joiners are in none of the objects, so there are new ones.
  void renew_all(uint32_t before_step);
  // A collective of that comm has reported the end of these ranks.
  void note_reported(uint32_t comm, uint64_t ranks);

 private:
  enum class Sent { kNothing, kDispatch, kCombine };
  struct Buffer {
    mep_ep_handle_t handle = nullptr;
    mep_ep_view_t view{};
    std::unique_ptr<EpRound> data;
    std::vector<uint8_t> x, y, out, recv_x;
    std::vector<int32_t> recv_count, src_info;
    std::vector<mep_range_t> layout_range;
    std::vector<int64_t> routing;
    std::vector<float> weights;
    Sent sent = Sent::kNothing;  // and not received yet
    uint64_t missing = 0;        // ranks, from its last operation
    int64_t total = 0;           // rows of its last dispatch, in high throughput
  };
  struct Object {
    mep_ep_t handle = nullptr;
    uint64_t live = 0;      // ranks to whose experts rows go
    uint64_t reported = 0;  // ranks whose end a collective has reported since it was made
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
  static mep_op_info_t last_op(const Object& object, uint32_t index, Ranks* ranks);
  bool note(What what, const Step& step, const Object& object, uint32_t index, uint32_t part,
            mep_result_t result, const mep_op_info_t& before, Ranks* ranks);

  // ep_checks.cpp. Texts say what is wrong, or are empty.
  void fill(const EpShape& shape, Buffer* buffer);
  size_t first_row(const EpShape& shape, const Buffer& buffer, uint32_t local, uint32_t rank) const;
  std::string check_rows(const EpShape& shape, const Buffer& buffer, bool complete) const;
  std::string check_tokens(const EpShape& shape, const Buffer& buffer) const;
  std::string check_row(const EpShape& shape, const Buffer& buffer, size_t place,
                        const Arrival& row) const;
  void run_experts(const EpShape& shape, Buffer* buffer) const;
  std::string check_out(const EpShape& shape, const Buffer& buffer) const;

  Player& player_;
  std::map<uint32_t, Object> objects_;
  uint32_t iteration_ = 0;
};

}  // namespace mep::programs
