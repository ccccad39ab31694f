#include "npy.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "error.hpp"

namespace mep::perf {
namespace {

// The parts of a zip file that np.savez writes: the directory's end, its entries, what stands before an entry's data.
constexpr std::string_view kEndSignature = "PK\5\6";
constexpr std::string_view kEntrySignature = "PK\1\2";
constexpr std::string_view kLocalSignature = "PK\3\4";
constexpr size_t kEndBytes = 22;
constexpr size_t kEntryBytes = 46;
constexpr size_t kLocalBytes = 30;
constexpr size_t kMaxCommentBytes = 0xffff;

std::string_view piece(std::string_view bytes, uint64_t at, uint64_t count) {
  if (at > bytes.size() || count > bytes.size() - at) throw PerfError("it is cut off or damaged");
  return bytes.substr(at, count);
}

std::string_view signed_piece(std::string_view bytes, uint64_t at, uint64_t count,
                              std::string_view signature) {
  const std::string_view found = piece(bytes, at, count);
  if (!found.starts_with(signature)) throw PerfError("it is no .npz, or is damaged");
  return found;
}

std::string_view find_end(std::string_view archive) {
  for (size_t comment = 0; comment <= kMaxCommentBytes; ++comment) {
    if (archive.size() < kEndBytes + comment) break;
    const std::string_view end = archive.substr(archive.size() - kEndBytes - comment);
    if (end.starts_with(kEndSignature) && read_little_endian(end, 20, 2) == comment) return end;
  }
  throw PerfError("it is no .npz, or is cut off");
}

constexpr std::array<uint32_t, 256> kCrcOfByte = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320u : 0);
    table[byte] = crc;
  }
  return table;
}();

uint32_t crc_of(std::string_view bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) {
    crc = crc >> 8 ^ kCrcOfByte[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  }
  return ~crc;
}

std::string_view read_entry(std::string_view archive, std::string_view entry,
                            const std::string& name) {
  const bool is_encrypted = (read_little_endian(entry, 8, 2) & 1) != 0;
  const bool is_stored = read_little_endian(entry, 10, 2) == 0;
  if (is_encrypted || !is_stored) {
    throw PerfError(name + (is_encrypted ? " is encrypted" : " is compressed") +
                    "; write the file by np.savez, not by np.savez_compressed");
  }
  const uint64_t at = read_little_endian(entry, 42, 4);
  const std::string_view local = signed_piece(archive, at, kLocalBytes, kLocalSignature);
  const uint64_t names = read_little_endian(local, 26, 2) + read_little_endian(local, 28, 2);
  const uint64_t stored = read_little_endian(entry, 20, 4);
  const std::string_view data = piece(archive, at + kLocalBytes + names, stored);
  if (stored != read_little_endian(entry, 24, 4) ||
      crc_of(data) != read_little_endian(entry, 16, 4)) {
    throw PerfError(name + " is damaged: its checksum does not fit");
  }
  return data;
}

// The header of a .npy is a Python literal. NumPy writes a plain array's in this form alone.
class Literal {
 public:
  explicit Literal(std::string_view text) : rest_(text) {}

  bool take(std::string_view word) {
    skip_blanks();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) refuse();
  }
  std::string_view text() {
    expect("'");
    const size_t end = rest_.find('\'');
    if (end == std::string_view::npos) refuse();
    const std::string_view found = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return found;
  }
  bool flag() {
    const bool is_true = take("True");
    if (!is_true) expect("False");
    return is_true;
  }
  std::vector<uint64_t> tuple() {
    std::vector<uint64_t> numbers;
    expect("(");
    while (!take(")")) {
      numbers.push_back(number());
      if (take(",")) continue;
      expect(")");
      break;
    }
    return numbers;
  }
  bool is_done() {
    skip_blanks();
    return rest_.empty();
  }
  [[noreturn]] static void refuse() { throw PerfError("its header is not that of a plain array"); }

 private:
  void skip_blanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n"), rest_.size()));
  }
  uint64_t number() {
    skip_blanks();
    const size_t digits = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    if (digits == 0 || digits > 18) refuse();
    uint64_t value = 0;
    for (const char digit : rest_.substr(0, digits)) {
      value = value * 10 + static_cast<uint64_t>(digit - '0');
    }
    rest_.remove_prefix(digits);
    return value;
  }

  std::string_view rest_;
};

struct Header {
  std::optional<std::string_view> type;
  std::optional<bool> is_fortran_order;
  std::optional<std::vector<uint64_t>> shape;
};

Header read_header(std::string_view text) {
  Header header;
  Literal literal(text);
  literal.expect("{");
  while (!literal.take("}")) {
    const std::string_view key = literal.text();
    literal.expect(":");
    if (key == "descr") {
      header.type = literal.text();
    } else if (key == "fortran_order") {
      header.is_fortran_order = literal.flag();
    } else if (key == "shape") {
      header.shape = literal.tuple();
    } else {
      Literal::refuse();
    }
    if (literal.take(",")) continue;
    literal.expect("}");
    break;
  }
  if (!literal.is_done() || !header.type || !header.is_fortran_order || !header.shape) {
    Literal::refuse();
  }
  return header;
}

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text = "(";
  for (const uint64_t length : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(length);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace

uint64_t read_little_endian(std::string_view bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = count; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

std::optional<std::string_view> find_in_npz(std::string_view archive, std::string_view name) {
  const std::string_view end = find_end(archive);
  const uint64_t entries = read_little_endian(end, 10, 2);
  uint64_t at = read_little_endian(end, 16, 4);
  for (uint64_t i = 0; i < entries; ++i) {
    const std::string_view entry = signed_piece(archive, at, kEntryBytes, kEntrySignature);
    const uint64_t name_bytes = read_little_endian(entry, 28, 2);
    if (piece(archive, at + kEntryBytes, name_bytes) == name) {
      return read_entry(archive, entry, std::string(name));
    }
    at += kEntryBytes + name_bytes + read_little_endian(entry, 30, 2) +
          read_little_endian(entry, 32, 2);
  }
  return std::nullopt;
}

NpyRows read_npy(std::string_view bytes, const std::string& name,
                 std::initializer_list<NpyType> types, uint64_t columns) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  constexpr size_t kPrefix = 8;  // the magic and two bytes of version
  if (!bytes.starts_with(kMagic)) throw PerfError(name + " is no array of NumPy");
  // The length of the header has two bytes, from version 2 on four.
  const size_t width = piece(bytes, 0, kPrefix)[6] == 1 ? 2 : 4;
  const uint64_t header_bytes = read_little_endian(piece(bytes, kPrefix, width), 0, width);
  const Header header = read_header(piece(bytes, kPrefix + width, header_bytes));
  const auto* const type = std::find_if(types.begin(), types.end(), [&header](const NpyType& each) {
    return each.name == *header.type;
  });
  if (type == types.end()) {
    std::string wanted;
    for (const NpyType& each : types) {
      wanted += (wanted.empty() ? "" : " or ") + std::string(each.name);
    }
    throw PerfError(name + " has the type " + std::string(*header.type) + " where " + wanted +
                    " is wanted");
  }
  if (*header.is_fortran_order) {
    throw PerfError(name + " is in Fortran order; write np.ascontiguousarray(" + name + ")");
  }
  const std::vector<uint64_t>& shape = *header.shape;
  if (shape.size() != 2 || shape[1] != columns) {
    throw PerfError(name + " has the shape " + shape_text(shape) + " where --topk wants (tokens, " +
                    std::to_string(columns) + ")");
  }
  const std::string_view data = bytes.substr(kPrefix + width + header_bytes);
  const uint64_t row_bytes = columns * type->width;
  if (data.size() % row_bytes != 0 || data.size() / row_bytes != shape[0]) {
    throw PerfError(name + " is cut off or damaged: there are " + std::to_string(data.size()) +
                    " bytes for the shape " + shape_text(shape));
  }
  return {*type, shape[0], data};
}

}  // namespace mep::perf
