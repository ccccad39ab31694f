// Expert parallelism of a player.
#pragma once

#include "player.hpp"

namespace mep::programs {

class EpPlayer {
 public:
  explicit EpPlayer(Player* player) : player_(*player) {}
  void create(const Step&) {}
  void layers(const Step&) {}
  void free(uint32_t) {}
  void free_all() {}

 private:
  Player& player_;
};

}  // namespace mep::programs
