#include "recorder_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/unique_fd.hpp"
#include "protocol/operations.hpp"

namespace mep {

using flight::Header;
using flight::Record;

namespace {

// False: no whole record that could be at that place.
bool read_record(const std::byte* bytes, size_t place, uint32_t records, Record* record) {
  std::array<uint64_t, flight::kWords> words;
  std::memcpy(words.data(), bytes, sizeof words);
  std::memcpy(record, bytes, sizeof *record);
  const auto kinds = static_cast<uint32_t>(flight::Kind::kCollectives) + kCollectiveCount;
  return words.back() == flight::check_of(words) && record->ticket != 0 &&
         (record->ticket - 1) % records == place && record->kind != flight::Kind::kNone &&
         static_cast<uint32_t>(record->kind) < kinds;
}

// Ends it, and keeps control characters from the terminal.
template <size_t kBytes>
void make_printable(char (&text)[kBytes]) {
  text[kBytes - 1] = '\0';
  for (char& each : text) {
    if (each != '\0' && (each < ' ' || each > '~')) each = '?';
  }
}

}  // namespace

bool parse_recorder(std::span<const std::byte> bytes, RecorderFile* file, std::string* problem) {
  if (bytes.size() >= sizeof file->header) {
    std::memcpy(&file->header, bytes.data(), sizeof file->header);
  }
  if (file->header.magic != flight::kMagic) {
    *problem = "is no file of MEP_FLIGHT_RECORDER";
    return false;
  }
  const uint32_t records = file->header.records;
  if (file->header.version != flight::kVersion ||
      (records != flight::kFileRecords && records != flight::kMemoryRecords)) {
    *problem = "is of another version of MEP; read it with the mep_info of that one";
    return false;
  }
  make_printable(file->header.job);
  make_printable(file->header.host);
  if (file->pid == 0) file->pid = file->header.pid;
  bytes = bytes.subspan(sizeof file->header);
  static constexpr std::array<std::byte, sizeof(Record)> kEmpty{};
  for (size_t place = 0; place < records && bytes.size() >= sizeof(Record); ++place) {
    Record record;
    if (read_record(bytes.data(), place, records, &record)) {
      make_printable(record.label.name);
      file->records.push_back(record);
    } else if (std::memcmp(bytes.data(), kEmpty.data(), sizeof(Record)) != 0) {
      ++file->torn;
    }
    bytes = bytes.subspan(sizeof(Record));
  }
  std::sort(file->records.begin(), file->records.end(),
            [](const Record& a, const Record& b) { return a.ticket < b.ticket; });
  return true;
}

bool read_recorder(const std::string& path, RecorderFile* file, std::string* problem) {
  file->path = path;
  const UniqueFd opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat about {};
  if (!opened.valid() || fstat(opened.get(), &about) != 0) {
    *problem = std::string("cannot be read: ") + std::strerror(errno);
    return false;
  }
  if (!S_ISREG(about.st_mode)) {
    *problem = "is no regular file";
    return false;
  }
  std::vector<std::byte> bytes(flight::bytes_of(flight::kFileRecords));
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got =
        pread(opened.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  struct flock lock {};
  lock.l_type = F_RDLCK;
  file->is_running = fcntl(opened.get(), F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  if (file->is_running && lock.l_pid > 0) file->pid = static_cast<uint32_t>(lock.l_pid);
  return parse_recorder(std::span(bytes).first(done), file, problem);
}

}  // namespace mep
