#include "transport/cuda/descriptor_exchange.hpp"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/status.hpp"
#include "base/system_error.hpp"

namespace mep {
namespace {

[[nodiscard]] mep_result_t system_failed(const char* what) {
  return fail(result_of_errno(errno), "%s: %s", what, strerrordesc_np(errno));
}

// Abstract: the path begins with a zero.
socklen_t fill_address(const std::array<char, 24>& name, sockaddr_un* address) {
  *address = sockaddr_un{};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// The rank goes with the descriptor.
[[nodiscard]] mep_result_t send_descriptor(int socket, uint32_t rank, int fd) {
  iovec part{&rank, sizeof rank};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof rank) return MEP_SUCCESS;
  return system_failed("sending a descriptor of device memory");
}

[[nodiscard]] mep_result_t receive_descriptor(int socket, uint32_t* rank, UniqueFd* fd) {
  iovec part{rank, sizeof *rank};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t bytes = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (bytes != sizeof *rank || header == nullptr || header->cmsg_level != SOL_SOCKET ||
      header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return fail(MEP_ERR_SYSTEM, "a peer sent no descriptor of its device memory");
  }
  int number = -1;
  std::memcpy(&number, CMSG_DATA(header), sizeof number);
  fd->reset(number);
  return MEP_SUCCESS;
}

}  // namespace

mep_result_t DescriptorExchange::open(uint32_t rank) {
  std::array<uint8_t, 24> random{};
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return system_failed("getrandom");
  }
  for (size_t i = 0; i < random.size(); ++i) {
    address_.name[i] = static_cast<char>('a' + random[i] % 26);
  }
  address_.pid = getpid();
  address_.rank = rank;
  listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  const socklen_t length = fill_address(address_.name, &name);
  if (!listener_.valid() ||
      bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0 ||
      listen(listener_.get(), SOMAXCONN) != 0) {
    return system_failed("a socket for descriptors of device memory");
  }
  return MEP_SUCCESS;
}

mep_result_t DescriptorExchange::send_to(const DescriptorAddress& peer, const UniqueFd& own) const {
  // The kernel takes the connection and the message on behalf of a peer that is not there yet.
  const UniqueFd connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  const socklen_t length = fill_address(peer.name, &name);
  if (!connection.valid() ||
      connect(connection.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    return fail(result_of_errno(errno), "rank %u cannot be reached to give it device memory: %s",
                peer.rank, strerrordesc_np(errno));
  }
  ucred other{};
  socklen_t size = sizeof other;
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) != 0 ||
      other.uid != geteuid()) {
    return fail(MEP_ERR_DENIED, "rank %u's socket belongs to another user", peer.rank);
  }
  return send_descriptor(connection.get(), address_.rank, own.get());
}

mep_result_t DescriptorExchange::receive_one(const std::vector<DescriptorAddress>& peers,
                                             const Deadline& deadline,
                                             std::vector<UniqueFd>* by_rank) const {
  pollfd readable{listener_.get(), POLLIN, 0};
  while (poll(&readable, 1, deadline.left_ms(1000)) <= 0) {
    if (deadline.expired()) {
      return fail(MEP_ERR_TIMEOUT, "not all ranks gave their device memory in time");
    }
  }
  const UniqueFd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!connection.valid()) return system_failed("accept");
  ucred other{};
  socklen_t size = sizeof other;
  const bool known = getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 &&
                     other.uid == geteuid() &&
                     std::any_of(peers.begin(), peers.end(), [&](const DescriptorAddress& peer) {
                       return peer.pid == other.pid;
                     });
  if (!known) return MEP_SUCCESS;  // a stranger: as if it had not come
  const timeval limit{5, 0};
  (void)setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  uint32_t rank = 0;
  UniqueFd fd;
  MEP_TRY(receive_descriptor(connection.get(), &rank, &fd));
  const bool fits = std::any_of(peers.begin(), peers.end(), [&](const DescriptorAddress& peer) {
    return peer.rank == rank && peer.pid == other.pid;
  });
  if (!fits || rank >= by_rank->size()) {
    return fail(MEP_ERR_DENIED, "process %d gave device memory as rank %u, which it is not",
                other.pid, rank);
  }
  (*by_rank)[rank] = std::move(fd);
  return MEP_SUCCESS;
}

mep_result_t DescriptorExchange::exchange(const UniqueFd& own,
                                          const std::vector<DescriptorAddress>& peers,
                                          const Deadline& deadline,
                                          std::vector<UniqueFd>* by_rank) {
  size_t wanted = 0;
  for (const DescriptorAddress& peer : peers) {
    if (peer.rank == address_.rank) continue;
    MEP_TRY(send_to(peer, own));
    ++wanted;
  }
  const auto count = [&] {
    return static_cast<size_t>(std::count_if(by_rank->begin(), by_rank->end(),
                                             [](const UniqueFd& fd) { return fd.valid(); }));
  };
  while (count() < wanted) MEP_TRY(receive_one(peers, deadline, by_rank));
  return MEP_SUCCESS;
}

}  // namespace mep
