#include "core/world/offer.hpp"

#include "core/bootstrap/byte_codec.hpp"

namespace mep {
namespace {

constexpr size_t kMaxOfferBlobBytes = 1024;
constexpr size_t kMaxTransports = 16;
constexpr size_t kMaxTransportNameBytes = 32;

}  // namespace

uint64_t Offer::sharing(const PeerIdentity& identity) const {
  if (shares == Shares::kHost) return 1;
  return shares == Shares::kProcess ? identity.process_token | 2 : 0;
}

std::vector<std::byte> encode_offer(const Offer& offer) {
  ByteWriter writer;
  writer.number(static_cast<uint16_t>(offer.affinity.size()));
  for (const uint64_t word : offer.affinity) writer.number(word);
  writer.number(offer.quota);
  writer.number(static_cast<uint16_t>(offer.transports.size()));
  for (const Offer::Entry& entry : offer.transports) {
    writer.text(entry.name);
    writer.block(entry.blob);
  }
  writer.number(static_cast<uint8_t>(offer.shares));
  writer.number(offer.word_at);
  writer.number(offer.word);
  return writer.take();
}

bool decode_offer(std::span<const std::byte> bytes, Offer* out) {
  ByteReader reader(bytes);
  const auto words = reader.number<uint16_t>();
  for (uint16_t i = 0; i < words && reader.valid(); ++i) {
    out->affinity.push_back(reader.number<uint64_t>());
  }
  out->quota = reader.number<uint32_t>();
  const auto transports = reader.number<uint16_t>();
  if (transports > kMaxTransports) return false;
  for (uint16_t i = 0; i < transports && reader.valid(); ++i) {
    Offer::Entry entry;
    entry.name = reader.text(kMaxTransportNameBytes);
    entry.blob = reader.block(kMaxOfferBlobBytes);
    out->transports.push_back(std::move(entry));
  }
  const auto shares = reader.number<uint8_t>();
  if (shares > static_cast<uint8_t>(Shares::kHost)) return false;
  out->shares = static_cast<Shares>(shares);
  out->word_at = reader.number<uint64_t>();
  out->word = reader.number<uint64_t>();
  return reader.complete();
}

}  // namespace mep
