// Runs a fuzz target without a fuzzer: every file of a corpus, and from each of them a fixed number of
// altered ones, always the same.
//   NAME_fuzz [--runs N] DIRECTORY...      replay
//   NAME_fuzz --write DIRECTORY            write the seeds
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "fuzz/fuzz_target.hpp"

namespace {

using Bytes = std::vector<uint8_t>;

int write_seeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  int status = 0;
  fuzz::seeds([&](const std::string& name, std::span<const std::byte> bytes) {
    std::ofstream file(folder / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    if (!file) status = 1;
  });
  return status;
}

Bytes altered(const Bytes& seed, std::mt19937_64* random) {
  Bytes bytes = seed;
  for (uint64_t i = (*random)() % 4 + 1; i > 0; --i) {
    const uint64_t at = bytes.empty() ? 0 : (*random)() % bytes.size();
    switch ((*random)() % 5) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<uint8_t>((*random)());
        break;
      case 1:
        if (!bytes.empty()) bytes[at] ^= static_cast<uint8_t>(1u << ((*random)() % 8));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at),
                     static_cast<uint8_t>((*random)() % 2 == 0 ? 0xff : 0));
        break;
      default: {
        // The limits of numbers.
        const uint64_t value =
            (*random)() % 2 == 0 ? UINT64_MAX : UINT64_C(1) << ((*random)() % 64);
        const size_t count = std::min<size_t>(bytes.size() - at, size_t{1} << ((*random)() % 4));
        if (!bytes.empty()) std::memcpy(bytes.data() + at, &value, count);
        break;
      }
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--write") == 0) return write_seeds(argv[2]);
  long runs = 1000;
  int first = 1;
  if (argc > 2 && std::strcmp(argv[1], "--runs") == 0) {
    runs = std::strtol(argv[2], nullptr, 10);
    first = 3;
  }
  std::vector<Bytes> corpus;
  for (int i = first; i < argc; ++i) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const auto& path : files) {
      std::ifstream file(path, std::ios::binary);
      corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "no corpus\n");
    return 1;
  }
  std::mt19937_64 random(1);
  long done = 0;
  for (const Bytes& seed : corpus) {
    LLVMFuzzerTestOneInput(seed.data(), seed.size());
    for (long i = 0; i < runs; ++i, ++done) {
      const Bytes bytes = altered(seed, &random);
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
  }
  std::printf("%zu files and %ld altered ones\n", corpus.size(), done);
  return 0;
}
