// Ranks as threads of one process: a socketpair for each pair of ranks.
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/fork_guard.hpp"
#include "base/status.hpp"
#include "core/bootstrap/bootstrap.hpp"
#include "core/bootstrap/handshake.hpp"

namespace mep {
namespace {

PeerLink make_peer(const SelfDescription& peer, UniqueFd socket, const PeerSession& session) {
  PeerLink link;
  link.identity = peer.identity;
  link.offer = peer.offer;
  link.session = session;
  link.link = std::make_unique<ControlLink>(std::move(socket));
  link.link->limit_payload(kMaxMessageBytes);
  return link;
}

}  // namespace

mep_result_t bootstrap_threads(const std::vector<SelfDescription>& ranks, std::vector<Mesh>* out) {
  out->clear();
  MEP_TRY(prepare_crypto());
  std::vector<Mesh> meshes(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    meshes[rank].self = ranks[rank];
    meshes[rank].size = static_cast<int32_t>(ranks.size());
    meshes[rank].max_size = meshes[rank].size;
  }
  // Row by row, so that every rank gets its peers by slot.
  for (size_t high = 1; high < ranks.size(); ++high) {
    for (size_t low = 0; low < high; ++low) {
      int sockets[2] = {-1, -1};
      const ForkGuard guard;
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) != 0) {
        return fail(MEP_ERR_NO_MEMORY, "no socket pair for ranks %zu and %zu: %s", low, high,
                    strerrordesc_np(errno));
      }
      guard.keep_back(sockets[0]);
      guard.keep_back(sockets[1]);
      UniqueFd low_end(sockets[0]);
      UniqueFd high_end(sockets[1]);
      PeerSession session;
      random_bytes(session.key.data(), session.key.size());
      meshes[low].peers.push_back(make_peer(ranks[high], std::move(low_end), session));
      meshes[high].peers.push_back(make_peer(ranks[low], std::move(high_end), session));
      wipe(session.key.data(), session.key.size());
    }
  }
  *out = std::move(meshes);
  return MEP_SUCCESS;
}

}  // namespace mep
