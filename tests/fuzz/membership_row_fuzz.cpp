// Rows and views of the membership protocol. First byte: 0 a row, 1 a view; then the payload.
#include "core/membership/membership.hpp"
#include "fuzz/fuzz_target.hpp"

namespace fuzz {
namespace {

constexpr uint32_t kSlots = 16;

std::vector<std::byte> with_kind(unsigned char kind, const std::vector<uint8_t>& payload) {
  std::vector<std::byte> bytes{std::byte{kind}};
  for (const uint8_t byte : payload) bytes.push_back(std::byte{byte});
  return bytes;
}

}  // namespace

void one(std::span<const std::byte> input) {
  if (input.empty()) return;
  const auto payload = as_uint8(input.subspan(1));
  std::string error;
  if (static_cast<unsigned>(input[0]) % 2 == 0) {
    const mep::membership::RowPtr row = mep::membership::decode_row(payload, kSlots, &error);
    if (row == nullptr) return;
    require(row->slot < kSlots);
    row->suspected.each([](uint32_t slot) { require(slot < kSlots); });
    row->dead.each([](uint32_t slot) { require(slot < kSlots); });
    // An accepted row can be passed on and is accepted again.
    const std::vector<uint8_t> again = mep::membership::encode_row(*row);
    require(mep::membership::decode_row(again, kSlots, &error) != nullptr);
  } else {
    mep::membership::View view;
    if (!mep::membership::decode_view(payload, kSlots, &view, &error)) return;
    view.members.each(
        [&](uint32_t slot) { require(slot < kSlots && view.incarnation(slot) != 0); });
    mep::membership::View second;
    require(
        mep::membership::decode_view(mep::membership::encode_view(view), kSlots, &second, &error));
  }
}

void seeds(const Sink& sink) {
  mep::membership::View view;
  view.epoch = 5;
  for (uint32_t slot = 0; slot < 4; ++slot) view.put({slot, 100 + slot, slot / 2});
  sink("view", with_kind(1, mep::membership::encode_view(view)));
  mep::membership::Row row;
  row.slot = 2;
  row.incarnation = 102;
  row.epoch = 5;
  row.version = 9;
  row.suspected.add(1);
  row.dead.add(1);
  row.evict.add(3);
  sink("row", with_kind(0, mep::membership::encode_row(row)));
  mep::membership::Row plain;
  plain.slot = 1;
  plain.incarnation = 101;
  sink("row-plain", with_kind(0, mep::membership::encode_row(plain)));
}

}  // namespace fuzz
