// Encodes, decodes and checks hello.hpp's frames. All input is hostile until checked.
#include "core/bootstrap/hello.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/process_end.hpp"
#include "base/status.hpp"
#include "core/bootstrap/byte_codec.hpp"

namespace mep {
namespace {

constexpr uint32_t kLibraryVersion =
    MEP_VERSION_MAJOR * 10000 + MEP_VERSION_MINOR * 100 + MEP_VERSION_PATCH;

// A peer's text goes to terminals and logs, so it must hold no control characters.
void make_printable(std::string* text) {
  for (char& letter : *text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte < 0x20 || byte == 0x7f) letter = '?';
  }
}

std::string version_text(uint32_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// With the descriptor, unless it is -1 or the kernel's limit of those in flight of one user is reached.
mep_result_t send_with(ControlLink* link, uint16_t type, std::span<const std::byte> payload,
                       int fd) {
  if (fd >= 0) {
    const mep_result_t sent = link->send(type, payload, std::span<const int>(&fd, 1));
    if (sent != MEP_ERR_NO_MEMORY) return sent;
  }
  return link->send(type, payload);
}

}  // namespace

Hello make_hello(HelloKind kind, const ResolvedConfig& config, const SelfDescription& self) {
  Hello hello;
  hello.kind = kind;
  hello.size = kind == HelloKind::kJoin ? 0 : config.size;
  hello.max_size = kind == HelloKind::kJoin ? 0 : config.max_size;
  hello.library_version = kLibraryVersion;
  hello.job = config.job;
  hello.identity = self.identity;
  return hello;
}

std::vector<std::byte> encode_hello(const Hello& hello) {
  ByteWriter writer;
  writer.number(kProtocolVersion);
  writer.number(hello.library_version);
  writer.number(static_cast<uint8_t>(hello.kind));
  writer.number(static_cast<uint8_t>(hello.has_secret ? 1 : 0));
  writer.number(hello.identity.slot);
  writer.number(hello.size);
  writer.number(hello.max_size);
  writer.number(hello.identity.incarnation);
  writer.number(hello.identity.host);
  writer.number(hello.identity.process_token);
  writer.number(hello.identity.pid);
  writer.text(hello.job);
  writer.block(hello.key);
  return writer.take();
}

mep_result_t decode_hello(std::span<const std::byte> payload, Hello* hello) {
  ByteReader reader(payload);
  const auto protocol = reader.number<uint32_t>();
  hello->library_version = reader.number<uint32_t>();
  if (!reader.valid()) return fail(MEP_ERR_DENIED, "a hello of %zu bytes", payload.size());
  if (protocol != kProtocolVersion) {
    return fail(MEP_ERR_VERSION,
                "MEP %s there speaks protocol %u, MEP %s here speaks protocol %u: install the same "
                "version for all ranks",
                version_text(hello->library_version).c_str(), protocol,
                version_text(kLibraryVersion).c_str(), kProtocolVersion);
  }
  const auto kind = reader.number<uint8_t>();
  hello->kind = static_cast<HelloKind>(kind);
  const auto has_secret = reader.number<uint8_t>();
  hello->has_secret = has_secret != 0;
  hello->identity.slot = reader.number<uint32_t>();
  hello->size = reader.number<int32_t>();
  hello->max_size = reader.number<int32_t>();
  hello->identity.incarnation = reader.number<uint64_t>();
  hello->identity.host = reader.number<uint64_t>();
  hello->identity.process_token = reader.number<uint64_t>();
  hello->identity.pid = reader.number<int32_t>();
  hello->job = reader.text(kMaxJobBytes);
  const std::vector<std::byte> key = reader.block(kPublicKeyBytes);
  if (!reader.complete() || key.size() != kPublicKeyBytes || has_secret > 1) {
    return fail(MEP_ERR_DENIED, "a malformed hello");
  }
  std::copy(key.begin(), key.end(), hello->key.begin());
  if (kind < static_cast<uint8_t>(HelloKind::kInit) ||
      kind > static_cast<uint8_t>(HelloKind::kMeet)) {
    return fail(MEP_ERR_DENIED, "a hello of unknown kind %u", kind);
  }
  if (hello->identity.slot >= static_cast<uint32_t>(kMaxRanks) ||
      hello->identity.incarnation == 0 || hello->size < 0 || hello->max_size < hello->size ||
      hello->max_size > kMaxRanks) {
    return fail(MEP_ERR_DENIED, "a hello with impossible numbers (rank %u, size %d, max_size %d)",
                hello->identity.slot, hello->size, hello->max_size);
  }
  return MEP_SUCCESS;
}

mep_result_t send_hello(ControlLink* link, std::span<const std::byte> hello, bool is_remote) {
  const UniqueFd self = is_remote ? UniqueFd() : open_pidfd(getpid());
  // Without it the receiver opens a pidfd by pid.
  return send_with(link, kHelloFrame, hello, self.get());
}

mep_result_t send_details(ControlLink* link, const Details& details, bool is_remote) {
  const bool gives = !is_remote && details.death_page != nullptr;
  return send_with(link, kDetailsFrame, encode_details(details),
                   gives ? details.death_page->fd() : -1);
}

std::vector<std::byte> encode_details(const Details& details) {
  ByteWriter writer;
  write_addresses(details.addresses, &writer);
  writer.block(details.offer);
  return writer.take();
}

bool decode_details(std::span<const std::byte> payload, Details* details) {
  ByteReader reader(payload);
  if (!read_addresses(&reader, &details->addresses)) return false;
  details->offer = reader.block(kMaxOfferBytes);
  return reader.complete();
}

mep_result_t check_hello(const Hello& hello, const Hello& own, const std::string& who) {
  if (hello.job != own.job) {
    return fail(MEP_ERR_BOOTSTRAP, "%s belongs to job '%.64s', this one is job '%.64s'",
                who.c_str(), hello.job.c_str(), own.job.c_str());
  }
  if (hello.size != own.size && hello.size != 0 && own.size != 0) {
    return fail(MEP_ERR_BOOTSTRAP,
                "%s was started for a world of %d ranks, rank %u for a world of %d: all ranks need "
                "the same size",
                who.c_str(), hello.size, own.identity.slot, own.size);
  }
  if (hello.max_size != own.max_size && hello.max_size != 0 && own.max_size != 0) {
    return fail(MEP_ERR_BOOTSTRAP,
                "%s was started with max_size %d, rank %u with %d: all ranks need the same",
                who.c_str(), hello.max_size, own.identity.slot, own.max_size);
  }
  return MEP_SUCCESS;
}

UniqueFd adopt_pidfd(const Hello& hello, const SelfDescription& self, std::vector<UniqueFd>* fds,
                     const PeerCredentials& credentials) {
  if (hello.identity.process_token == self.identity.process_token) return {};
  if (credentials.is_remote()) return {};
  if (!fds->empty()) {
    UniqueFd given = std::move(fds->front());
    const long pid = pid_behind(given.get());
    // 0 matches credentials.pid 0: the peer lives in a pid namespace that is not visible here.
    if (pid >= 0 && pid == credentials.pid) return given;
  }
  if (credentials.pid <= 0) return {};
  return open_pidfd(credentials.pid);
}

std::vector<std::byte> encode_abort(const Abort& abort) {
  ByteWriter writer;
  writer.number(abort.code);
  writer.number(abort.sender);
  writer.number(abort.origin);
  writer.text(std::string_view(abort.text).substr(0, kMaxAbortTextBytes));
  return writer.take();
}

bool decode_abort(std::span<const std::byte> payload, Abort* abort) {
  ByteReader reader(payload);
  abort->code = reader.number<mep_result_t>();
  abort->sender = reader.number<int32_t>();
  abort->origin = reader.number<int32_t>();
  abort->text = reader.text(kMaxAbortTextBytes);
  if (!reader.complete()) return false;
  if (!is_error(abort->code)) abort->code = MEP_ERR_BOOTSTRAP;
  make_printable(&abort->text);
  return true;
}

std::string send_abort(ControlLink* link, mep_result_t code, int32_t rank) {
  const Abort abort{code, rank, rank, last_error_text()};
  (void)link->send(kAbortFrame, encode_abort(abort));
  set_last_error_text(abort.text.c_str());
  return abort.text;
}

std::vector<std::byte> encode_announcement(const Abort& abort, uint64_t target,
                                           const JobSecret& secret) {
  ByteWriter writer;
  writer.number(target);
  writer.block(encode_abort(abort));
  const std::array<std::byte, kProofBytes> seal = seal_with_secret(secret, writer.bytes());
  writer.block(seal);
  return writer.take();
}

bool decode_announcement(std::span<const std::byte> payload, uint64_t self, const JobSecret& secret,
                         Abort* abort) {
  constexpr size_t kSealBlockBytes = sizeof(uint16_t) + kProofBytes;
  if (payload.size() < kSealBlockBytes) return false;
  ByteReader reader(payload);
  const auto target = reader.number<uint64_t>();
  const std::vector<std::byte> inner = reader.block(UINT16_MAX);
  const std::vector<std::byte> seal = reader.block(kProofBytes);
  if (!reader.complete() || target != self) return false;
  const auto right = seal_with_secret(secret, payload.first(payload.size() - kSealBlockBytes));
  return equal_secrets(seal, right) && decode_abort(inner, abort);
}

std::string name_peer(int32_t rank, const PeerCredentials& credentials) {
  return "rank " + std::to_string(rank) + " (" + credentials.text() + ")";
}

}  // namespace mep
