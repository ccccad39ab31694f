// Traces of mep_perf: what NumPy wrote is read as it is, and whatever else a file holds is refused in words.
#include "trace.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <set>

#include "error.hpp"
#include "support/cmocka_cpp.hpp"

using mep::perf::parse_trace;
using mep::perf::PerfError;
using mep::perf::Trace;

namespace {

constexpr uint32_t kExperts = 16;
constexpr uint32_t kTopK = 3;
std::string traces;  // the folder

// In memory of just its size, so that a sanitizer sees a byte too many being read.
using Bytes = std::vector<char>;

Bytes bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

Bytes sample(const std::string& name) {
  std::ifstream file(traces + "/" + name, std::ios::binary);
  Bytes bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  assert_true(bytes.size() > 100);
  return bytes;
}

Trace parse(const std::string& path, const Bytes& bytes) {
  return parse_trace(path, {bytes.data(), bytes.size()}, kExperts, kTopK);
}

// Empty: the bytes were taken.
std::string refusal(const std::string& path, const Bytes& bytes) {
  try {
    (void)parse(path, bytes);
  } catch (const PerfError& error) {
    return error.what();
  }
  return "";
}

void expect_refusal(const std::string& path, const Bytes& bytes, const std::string& text) {
  const std::string found = refusal(path, bytes);
  if (found.find(text) == std::string::npos) {
    fail_msg("'%s' is not in '%s'", text.c_str(), found.c_str());
  }
  assert_true(found.find(path) != std::string::npos);
}

Bytes npy(const std::string& type, const std::string& order, const std::string& shape,
          const std::string& data) {
  std::string header =
      "{'descr': " + type + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  header.resize(118, ' ');
  header.back() = '\n';
  return bytes_of(std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + data);
}

std::string int32s(const std::vector<int32_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int32_t)};
}

std::string float32s(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string little_endian(uint64_t value, size_t count) {
  return {reinterpret_cast<const char*>(&value), count};
}

// A zip of two stored files, with right checksums.
Bytes npz(const Bytes& idx, const Bytes& weights) {
  std::string files;
  std::string directory;
  for (const auto& [name, content] :
       {std::pair<std::string, Bytes>("topk_idx.npy", idx), {"topk_weights.npy", weights}}) {
    uint32_t crc = 0xffffffffu;
    for (size_t bit = 0; bit < content.size() * 8; ++bit) {
      const bool carry = ((crc ^ static_cast<uint8_t>(content[bit / 8]) >> bit % 8) & 1) != 0;
      crc = crc >> 1 ^ (carry ? 0xedb88320u : 0);
    }
    const std::string facts = little_endian(~crc, 4) + little_endian(content.size(), 4) +
                              little_endian(content.size(), 4) + little_endian(name.size(), 2);
    directory += "PK\1\2" + std::string(12, '\0') + facts + std::string(12, '\0') +
                 little_endian(files.size(), 4) + name;
    files += "PK\3\4" + std::string(10, '\0') + facts + std::string(2, '\0') + name +
             std::string(content.begin(), content.end());
  }
  return bytes_of(files + directory + "PK\5\6" + std::string(4, '\0') + little_endian(2, 2) +
                  little_endian(2, 2) + little_endian(directory.size(), 4) +
                  little_endian(files.size(), 4) + std::string(2, '\0'));
}

const std::vector<int64_t> kIdx = {1, 12, 7, 0, 13, 7, 10, -1, 8, -1, -1, -1, 12, 13, 9};

void what_numpy_wrote_is_read(void**) {
  for (const char* name : {"savez.npz", "int64.npy"}) {
    assert_true(parse(name, sample(name)).experts == kIdx);
  }
  assert_true(parse("int64.npy", sample("int64.npy")).weights.empty());
  const std::vector<float> weights = parse("savez.npz", sample("savez.npz")).weights;
  assert_int_equal(weights.size(), kIdx.size());
  assert_true(weights[0] == 0x1.04dca4p-1f && weights[3] == 0x1.f63df0p-1f);
  assert_true(weights[7] == 0 && weights[9] == 0);  // no expert is there
  assert_true(weights[14] == 0x1.886e18p-3f);
  const Trace text = parse("t.txt", bytes_of("# three\n1 12 7\n\n0 13 7 # more\n10 -1 8\n"));
  assert_true(text.experts == std::vector<int64_t>(kIdx.begin(), kIdx.begin() + 9));
}

void versions_of_npy(void**) {
  Bytes bytes = npy("'<i4'", "False", "(1, 3)", int32s({4, 5, 6}));
  assert_true(parse("a.npy", bytes).experts == std::vector<int64_t>({4, 5, 6}));
  bytes[6] = 2;  // the length has four bytes
  bytes.insert(bytes.begin() + 10, 2, '\0');
  assert_true(parse("a.npy", bytes).experts == std::vector<int64_t>({4, 5, 6}));
}

void wrong_arrays_are_refused(void**) {
  const std::string six = int32s({4, 5, 6, 7, 8, 9});
  const struct {
    const char* type;
    const char* order;
    const char* shape;
    std::string data;
    const char* text;
  } cases[] = {
      {"'<f4'", "False", "(2, 3)", six, "has the type <f4 where <i4 or <i8 is wanted"},
      {"'>i4'", "False", "(2, 3)", six, "has the type >i4"},
      {"'|O'", "False", "(2, 3)", six, "has the type |O"},
      {"[('a', '<i4')]", "False", "(2, 3)", six, "not that of a plain array"},
      {"'<i4'", "True", "(2, 3)", six, "Fortran order; write np.ascontiguousarray(topk_idx)"},
      {"'<i4'", "Maybe", "(2, 3)", six, "not that of a plain array"},
      {"'<i4'", "False", "(3, 2)", six, "the shape (3, 2) where --topk wants (tokens, 3)"},
      {"'<i4'", "False", "(6,)", six, "the shape (6,)"},
      {"'<i4'", "False", "(1, 2, 3)", six, "the shape (1, 2, 3)"},
      {"'<i4'", "False", "()", six, "the shape ()"},
      {"'<i4'", "False", "(0, 3)", "", "has no row"},
      {"'<i4'", "False", "(2, 3)", six.substr(1), "23 bytes for the shape (2, 3)"},
      {"'<i4'", "False", "(2, 3)", six + "x", "25 bytes for the shape (2, 3)"},
      {"'<i8'", "False", "(2, 3)", six, "24 bytes for the shape (2, 3)"},
      // rows * 12 is 24 in 64 bits
      {"'<i4'", "False", "(4611686018427387906, 3)", six, "not that of a plain array"},
      {"'<i4'", "False", "(461168601842738790, 3)", six, "cut off or damaged"},
      {"'<i4'", "False", "(2, 3)", int32s({1, 2, 3, 4, 16, 6}),
       "topk_idx, row 1: expert 16 is outside -1 to 15"},
      {"'<i4'", "False", "(2, 3)", int32s({1, -2, 3, 4, 5, 6}),
       "topk_idx, row 0: expert -2 is outside -1 to 15"},
      {"'<i4'", "False", "(2, 3)", int32s({1, 2, 3, 4, 5, 4}), "topk_idx, row 1: expert 4 twice"},
      {"'<i8'", "False", "(1, 3)", int32s({1, 1, 2, 0, 3, 0}), "expert 4294967297 is outside"},
  };
  for (const auto& each : cases) {
    expect_refusal("a.npy", npy(each.type, each.order, each.shape, each.data), each.text);
  }
  expect_refusal("a.npy", bytes_of("1 2 3\n"), "topk_idx is no array of NumPy");
  expect_refusal("a.txt", bytes_of("1 2 3\n1 2\n"), "line 2: 2 experts where --topk says 3");
  expect_refusal("a.txt", bytes_of("1 2 x\n"), "line 1: not a list of whole numbers");
  expect_refusal("a.txt", bytes_of("# nothing\n"), "no line with experts");
}

// Puts `text` over the first, or every, place of the other text.
Bytes with(Bytes bytes, const std::string& old, const std::string& text, bool everywhere) {
  assert_int_equal(old.size(), text.size());
  auto at = std::search(bytes.begin(), bytes.end(), old.begin(), old.end());
  assert_true(at != bytes.end());
  while (at != bytes.end()) {
    std::copy(text.begin(), text.end(), at);
    at = everywhere ? std::search(at, bytes.end(), old.begin(), old.end()) : bytes.end();
  }
  return bytes;
}

void wrong_archives_are_refused(void**) {
  const Bytes good = sample("savez.npz");
  expect_refusal("a.npz", sample("compressed.npz"),
                 "topk_idx.npy is compressed; write the file by np.savez, not by");
  expect_refusal("a.npz", with(good, "topk_idx", "topk_abc", true), "there is no array topk_idx");
  expect_refusal("a.npz", with(good, "'<i4'", "'<i8'", false), "topk_idx.npy is damaged");
  expect_refusal("a.npz", sample("int64.npy"), "it is no .npz");
  assert_true(parse("a.npz", with(good, "topk_weights", "something_el", true)).weights.empty());
  // A comment behind the archive, of which the end tells.
  Bytes commented = good;
  commented[commented.size() - 2] = 5;
  commented.insert(commented.end(), 5, 'c');
  assert_true(parse("a.npz", commented).experts == kIdx);
}

void wrong_weights_are_refused(void**) {
  const Bytes idx = npy("'<i4'", "False", "(2, 3)", int32s({4, 5, 6, 7, -1, 9}));
  const std::string six =
      float32s({1, 2, 3, 4, NAN, 6});  // the one that is no number is of no expert
  const auto weights = [&](const char* type, const char* shape, const std::string& data) {
    return npz(idx, npy(type, "False", shape, data));
  };
  const Trace trace = parse("a.npz", weights("'<f4'", "(2, 3)", six));
  assert_true(trace.experts == std::vector<int64_t>({4, 5, 6, 7, -1, 9}));
  assert_true(trace.weights == std::vector<float>({1, 2, 3, 4, 0, 6}));
  expect_refusal("a.npz", weights("'<f8'", "(1, 3)", six), "topk_weights has the type <f8");
  expect_refusal("a.npz", weights("'<f4'", "(3, 2)", six), "topk_weights has the shape (3, 2)");
  expect_refusal("a.npz", weights("'<f4'", "(1, 3)", six.substr(0, 12)),
                 "topk_weights has 1 rows where topk_idx has 2");
  expect_refusal("a.npz", weights("'<f4'", "(2, 3)", float32s({1, 2, 3, 4, 5, INFINITY})),
                 "topk_weights, row 1: a weight is no number");
}

void files_are_read(void**) {
  const Trace trace = mep::perf::read_trace(traces + "/savez.npz", kExperts, kTopK);
  assert_true(trace.experts == kIdx);
  for (const std::string& path : {traces, traces + "/none.npz"}) {
    try {
      (void)mep::perf::read_trace(path, kExperts, kTopK);
      fail_msg("%s was read", path.c_str());
    } catch (const PerfError& error) {
      assert_true(std::string(error.what()).find("cannot be read") != std::string::npos);
    }
  }
}

void files_that_end_early_are_refused(void**) {
  for (const char* name : {"savez.npz", "int64.npy", "compressed.npz"}) {
    const Bytes good = sample(name);
    for (size_t size = 0; size < good.size(); ++size) {
      const Bytes part(good.begin(), good.begin() + static_cast<ptrdiff_t>(size));
      if (refusal(name, part).empty()) fail_msg("%s was taken with %zu bytes", name, size);
    }
  }
}

// A trace that was taken holds what the rest of the tool relies on.
void check_taken(const Trace& trace) {
  assert_true(!trace.experts.empty() && trace.experts.size() % kTopK == 0);
  assert_true(trace.weights.empty() || trace.weights.size() == trace.experts.size());
  for (const float weight : trace.weights) assert_true(std::isfinite(weight));
  for (size_t first = 0; first < trace.experts.size(); first += kTopK) {
    std::set<int64_t> seen;
    for (size_t at = first; at < first + kTopK; ++at) {
      const int64_t expert = trace.experts[at];
      assert_true(expert >= -1 && expert < kExperts);
      assert_true(expert < 0 || seen.insert(expert).second);
    }
  }
}

Bytes altered(Bytes bytes, std::mt19937_64* random) {
  constexpr char kLimits[] = {'\0', '\x7f', '\x80', '\xff'};
  for (uint64_t left = (*random)() % 4 + 1; left > 0; --left) {
    char& byte = bytes[(*random)() % bytes.size()];
    byte = (*random)() % 2 == 0 ? static_cast<char>(byte ^ (1 << (*random)() % 8))
                                : kLimits[(*random)() % std::size(kLimits)];
  }
  return bytes;
}

void altered_files_do_no_harm(void**) {
  constexpr int kRuns = 20000;
  std::mt19937_64 random(1);
  const Bytes text = bytes_of("1 12 7\n0 13 7\n10 -1 8\n# four\n");
  const Bytes npz_file = sample("savez.npz");
  const Bytes idx = sample("int64.npy");
  const Bytes weights =
      npy("'<f4'", "False", "(5, 3)", float32s(std::vector<float>(kIdx.size(), 0.5f)));
  // The last ones are altered in a file of the archive, before its checksum is made.
  const std::pair<std::string, std::function<Bytes()>> cases[] = {
      {"a.txt", [&] { return altered(text, &random); }},
      {"a.npy", [&] { return altered(idx, &random); }},
      {"a.npz", [&] { return altered(npz_file, &random); }},
      {"a.npz", [&] { return npz(altered(idx, &random), weights); }},
      {"a.npz", [&] { return npz(idx, altered(weights, &random)); }},
  };
  for (const auto& [name, make] : cases) {
    int taken = 0;
    for (int run = 0; run < kRuns; ++run) {
      try {
        check_taken(parse(name, make()));
        ++taken;
      } catch (const PerfError& error) {
        assert_true(std::string(error.what()).find(name) != std::string::npos);
      }
    }
    // Both ways were gone.
    assert_true(taken > 0 && taken < kRuns);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  traces = argv[1];
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_numpy_wrote_is_read),
      cmocka_unit_test(versions_of_npy),
      cmocka_unit_test(wrong_arrays_are_refused),
      cmocka_unit_test(wrong_archives_are_refused),
      cmocka_unit_test(wrong_weights_are_refused),
      cmocka_unit_test(files_are_read),
      cmocka_unit_test(files_that_end_early_are_refused),
      cmocka_unit_test(altered_files_do_no_harm),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
