#!/usr/bin/env python3
"""Shows that each check of check_tree.py can fail: made-up trees, one fault in each."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_tree  # noqa: E402
import classes  # noqa: E402
import documents  # noqa: E402
import folders  # noqa: E402
from made_tree import made_tree  # noqa: E402

ENV_CPP = 'static T t = {{"MEP_RANK", "", "rank"},\n  {"MEP_LOG", "warn", "level"}};\nsecure_getenv(n);\n'
# The folders of the made-up trees.
TABLE = {
    "base": [],
    "transport": ["base"],
    "transport/verbs": ["base", "transport"],
    "kernels": ["base", "transport/gpu_queue"],
    "core": ["base", "kernels", "transport"],
    "core/ep": ["base", "core"],
    "core/topo": ["base"],
}
GOOD = {
    "include/mep.h": "#include <stddef.h>\n#include <stdint.h>\n",
    "src/base/env.cpp": ENV_CPP,
    "src/base/a.hpp": "#pragma once\n#include <vector>\n#include \"mep.h\"\n",
    "src/transport/t.cpp": '#include "base/a.hpp"\n#include "transport/t.hpp"\n',
    "src/transport/t.hpp": "#pragma once\n",
    "src/kernels/k.cpp": '#include "base/a.hpp"\n#include "transport/gpu_queue/peer.hpp"\n',
    "src/core/c.cpp": '#include "kernels/k.hpp"\n#include "transport/t.hpp"\nenv_uint("MEP_RANK");\n',
    "src/core/topo/t.cpp": "#include <hwloc.h>\n",
    "src/transport/verbs/v.cpp": "#include <infiniband/verbs.h>\n",
    "src/core/bootstrap/mpi_init.cpp": "#include <mpi.h>\n",
    "src/kernels/cuda/k.cpp": "#include <cuda_runtime.h>\n",
    "src/transport/cuda_ipc/k.cpp": "#include <cuda.h>\n",
    "perf/p.cpp": "#include <mpi.h>\n",
    "examples/e.c": '#include "mep.h"\n',
    "docs/reference/environment.md": "| `MEP_RANK` | x |\n| `MEP_LOG` | x |\n",
}


def readmes_of(files):
    """A README.md for each folder of src/."""
    folders_of_src = {name.rpartition("/")[0] for name in files if name.startswith("src/")}
    return {f"{folder}/README.md": "# Folder\n" for folder in folders_of_src}


class CheckTree(unittest.TestCase):
    def findings(self, changes, table=None, large=None):
        files = {**GOOD, **changes}
        with made_tree({**readmes_of(files), **files}) as root:
            return check_tree.check_tree(root, lambda code: [
                *(folders.check_folders(list(check_tree.includes_of(code)), table, {}) if table else []),
                *folders.check_definitions(code, {}), *classes.check_classes(code, large or {})])

    def expect_one(self, changes, name, line, part, table=None, large=None):
        findings = self.findings(changes, table, large)
        self.assertEqual(len(findings), 1, findings)
        self.assertEqual(findings[0][:2], (name, line))
        self.assertIn(part, findings[0][2])

    def test_good_tree_has_no_finding(self):
        self.assertEqual(self.findings({}), [])

    def test_layers(self):
        wrong = [
            ("base", "transport"), ("base", "kernels"), ("base", "core"), ("transport", "kernels"),
            ("transport", "core"), ("kernels", "transport"), ("kernels", "core"),
        ]
        for layer, target in wrong:
            with self.subTest(layer=layer, target=target):
                name = f"src/{layer}/wrong.cpp"
                text = f'\n#include "{target}/x.hpp"\n'
                self.expect_one({name: text}, name, 2, f"{layer} must not include {target}")

    def test_device_header_is_for_kernels_only(self):
        name = "src/base/wrong.cpp"
        self.expect_one({name: '#include "transport/device_put.hpp"\n'}, name, 1, "must not include")
        name = "src/kernels/wrong.cpp"
        self.expect_one({name: '#include "transport/shm/peer.hpp"\n'}, name, 1, "must not include")

    def test_unknown_layer(self):
        name = "src/extra/x.cpp"
        self.expect_one({name: "#include <vector>\n"}, name, 1, "is no layer")

    def test_includes_are_written_from_src(self):
        name = "src/core/x.cpp"
        self.expect_one({name: '#include "../base/a.hpp"\n'}, name, 1, "written from src/")
        self.expect_one({name: '#include "neighbour.hpp"\n'}, name, 1, "does not start with a layer")

    def test_libraries(self):
        headers = {
            "hwloc": ["<hwloc.h>", "<hwloc/linux.h>"],
            "verbs": ["<infiniband/verbs.h>", "<rdma/rdma_cma.h>"],
            "MPI": ["<mpi.h>"],
            "CUDA": ["<cuda.h>", "<cuda_runtime.h>", "<cuda_runtime_api.h>"],
        }
        for library, texts in headers.items():
            for text in texts:
                for name in ("src/core/ep/x.cpp", "src/transport/shm/x.cpp", "src/base/x.cpp"):
                    with self.subTest(text=text, name=name):
                        self.expect_one({name: f"#include {text}\n"}, name, 1, library)
        self.expect_one({"perf/x.cpp": "#include <hwloc.h>\n"}, "perf/x.cpp", 1, "hwloc")
        name = "src/core/bootstrap/environment.cpp"
        self.expect_one({name: "#include <mpi.h>\n"}, name, 1, "MPI")

    def test_public_header(self):
        text = "#include <stdint.h>\n#include <stdbool.h>\n"
        self.expect_one({"include/mep.h": text}, "include/mep.h", 2, "mep.h includes only")

    def test_examples_use_public_headers(self):
        text = '#include "base/a.hpp"\n'
        self.expect_one({"examples/x.cpp": text}, "examples/x.cpp", 1, "public headers only")

    def test_comments_do_not_count(self):
        text = '// #include "core/x.hpp"\n/*\n#include "core/x.hpp"\n*/\n// getenv("X")\n'
        self.assertEqual(self.findings({"src/base/x.cpp": text}), [])

    def test_failpoints(self):
        table = 'constexpr const char* kPoints[] = {\n    "a",\n    "b c",\n};\n'
        uses = 'MEP_FAILPOINT("a");\nMEP_TEST_DELAY_POINT("b c");\n'
        name, user = "src/base/failpoint.cpp", "src/core/x.cpp"
        self.assertEqual(self.findings({name: table, user: uses, "tests/t.cpp": 'MEP_FAILPOINT("here");\n'}), [])
        self.expect_one({name: table, user: uses + 'MEP_FAILPOINT("d");\n'}, user, 3, '"d" is not in kPoints')
        self.expect_one({name: table, user: 'MEP_FAILPOINT("a");\n'}, name, 1, 'no point is named "b c"')
        self.expect_one({name: table.replace("b c", "Z"), user: uses.replace("b c", "Z")}, name, 1, "not a sorted list")

    def test_length(self):
        self.assertEqual(self.findings({"src/core/long.cpp": "\n" * 600}), [])
        self.expect_one({"src/core/long.cpp": "\n" * 601}, "src/core/long.cpp", 601, "601 lines")
        self.expect_one({"tests/x.py": "\n" * 600 + "x"}, "tests/x.py", 601, "601 lines")
        self.assertEqual(self.findings({"include/mep.h": "\n" * 900}), [])

    def test_folders(self):
        self.assertEqual(self.findings({}, TABLE), [])
        name = "src/core/topo/wrong.cpp"
        self.expect_one({name: '\n#include "core/ep/x.hpp"\n'}, name, 2, "core/topo must not include core/ep",
                        TABLE)
        name = "src/core/new/x.cpp"
        self.expect_one({name: '#include "base/a.hpp"\n'}, name, 1, "not in the table", TABLE)

    def test_table_has_no_cycle(self):
        self.assertIsNone(folders.cycle_of(folders.ALLOWED))
        table = {"a": ["b"], "b": ["c"], "c": ["a"]}
        findings = list(folders.check_folders([], table, {}))
        self.assertIn("a -> b -> c -> a", findings[0][2])

    def test_exception_that_is_not_needed(self):
        includes = [("src/a/x.cpp", 1, "b/y.hpp")]
        excuse = {("a", "b"): "why"}
        self.assertEqual(list(folders.check_folders(includes, {"a": []}, excuse)), [])
        self.assertEqual(len(list(folders.check_folders(includes, {"a": []}, {}))), 1)
        self.assertIn("not needed", next(iter(folders.check_folders([], {"a": []}, excuse)))[2])

    def test_definitions(self):
        header = """#pragma once
#define WORD(x) "{"
namespace mep {
class Thing {
 public:
  int method(int x) const;
};
template <class T> T from_text(const char* text = "(;");
int free_one(int value, int (*call)(int));
}  // namespace mep
"""
        changes = {"src/core/ep/thing.hpp": header}
        right = "namespace mep {\nint Thing::method(int x) const { return x; }\nint free_one(int v, int (*c)(int)) {\n}\n}\n"
        self.assertEqual(self.findings({**changes, "src/core/ep/thing.cpp": right}), [])
        name = "src/core/other.cpp"
        self.assertEqual(self.findings({**changes, name: "int main() { free_one(1, 2); }\n"
                                        "namespace { int free_one(int) { return 1; } }\n"}), [])
        for line, part in (("int Thing::method(int x) const {\n}", "Thing::method is declared in core/ep"),
                           ("int free_one(int v, int (*c)(int)) { return v; }", "free_one is declared in"),
                           ("mep::Thing::Thing() : x(1) {}", "Thing::Thing is declared in core/ep")):
            with self.subTest(line=line):
                self.expect_one({**changes, name: f"namespace mep {{\n\n{line}\n}}\n"}, name, 3, part)

    def test_add_test_is_for_one_file(self):
        name = "tests/x/CMakeLists.txt"
        self.expect_one({name: "\nadd_test(NAME x COMMAND y)\n"}, name, 2, "call mep_test")
        self.assertEqual(self.findings({name: "mep_add_test(x)\n", check_tree.TEST_FILE: "add_test(x)\n"}), [])

    def test_guard(self):
        self.expect_one({"src/base/x.hpp": "// x\n"}, "src/base/x.hpp", 1, "#pragma once")

    def test_fields(self):
        """Finds the data members of a class itself among all that looks like one."""
        text = """
template <class T> class Lots final : public Base<T>, Other {
 public:
  explicit Lots(int a) : a_(a), b_{a} { use(b_); }
  Lots& operator=(const Lots&) = delete;
  bool is_set() const { return c_; }
  std::vector<int> list(int number = 3) const;
  static constexpr int kMost = 4;
  static constexpr int kMask = int{1} << (int{kMost} + 1);
  static int count_;
  using Pair = std::pair<int, int>;
  enum class State : uint8_t { kNo, kYes };
  struct Part { int inner_ = 0; };
  friend class Other;
  union Word;
 private:
  alignas(64) std::atomic<bool> c_{false}; [[maybe_unused]] int first = 1, second_ = most(1, 2);
  std::function<void(int, char)> call_;
  void (*pointer_)(int);
  const std::map<int, std::array<int, 4>> map_ = {{1, {}}};
  uint32_t bits_ : 4;
  int part_ = Other{}.whole / 2;
  bool operator==(const Lots& other) const { return a_ == other.a_; }
  char bytes_[kMost] = {'{', "}"[0]};
  ::mep::Thing* thing_ = nullptr;
};
enum class Many { a_, b_ };
"""
        found = {name: fields for _, name, fields in classes.classes_of(text)}
        self.assertEqual(found, {
            "Lots": ["c_", "first", "second_", "call_", "pointer_", "map_", "bits_", "part_", "bytes_", "thing_"],
            "Part": ["inner_"],
        })

    def test_classes_own_little(self):
        def tree(count, last):
            return {name: "#pragma once\n\nclass Big {\n" + "  int a_ = 0;\n" * (count - 1) + f"  int {last};\n}};\n"}
        name = "src/core/big.hpp"
        listed = {(name, "Big"): 22}
        most = classes.MAX_FIELDS
        self.assertEqual(self.findings(tree(most, "b_")), [])
        self.expect_one(tree(most + 1, "b_"), name, 3, f"Big has {most + 1} data members, at most {most}")
        plain = {name: tree(most + 1, "b")[name].replace("a_", "a")}
        self.assertEqual(self.findings(plain), [])
        self.assertEqual(self.findings(tree(22, "b_"), large=listed), [])
        self.expect_one(tree(23, "b_"), name, 3, "only shrinks", large=listed)
        self.expect_one(tree(21, "b_"), name, 3, "lower its 22", large=listed)
        self.expect_one(tree(most, "b_"), name, 3, "out of LARGE", large=listed)
        self.expect_one({}, "tests/lint/classes.py", 1, f"{name} defines no Big", large=listed)

    def test_variable_that_is_not_in_the_table(self):
        name = "src/core/x.cpp"
        text = '\nMEP_TRY(env_bool(\n    "MEP_NEW", &value, &is_set));\n'
        self.expect_one({name: text}, name, 3, "MEP_NEW")
        self.expect_one({name: 'read_limit("MEP_NEW_MS", &x);\n'}, name, 1, "MEP_NEW_MS")
        self.expect_one({name: 'env_uint("OTHER_RANK", &x);\n'}, name, 1, "OTHER_RANK")

    def test_constants_of_the_header_are_no_variables(self):
        header = GOOD["include/mep.h"] + "#define MEP_SUM 0\n"
        changes = {"include/mep.h": header, "src/core/x.cpp": 'name = "MEP_SUM";\n'}
        self.assertEqual(self.findings(changes), [])

    def test_getenv_outside_the_table(self):
        name = "src/core/x.cpp"
        for call in ("std::getenv", "secure_getenv", "getenv"):
            self.expect_one({name: f'x = {call}("MEP_RANK");\n'}, name, 1, "env.cpp only")
        self.assertEqual(self.findings({check_tree.LAUNCHER_FILE: 'secure_getenv("PMIX_RANK");\n'}), [])

    def test_table_that_cannot_be_read(self):
        findings = self.findings({"src/base/env.cpp": "", "docs/reference/environment.md": None})
        self.assertIn("not recognised", findings[0][2])

    def test_document(self):
        name = "docs/reference/environment.md"
        self.expect_one({name: "| `MEP_RANK` | x |\nMEP_LOG\n"}, name, 1, "MEP_LOG")
        text = GOOD[name] + "| `MEP_GONE` | x |\n"
        self.expect_one({name: text}, name, 1, "MEP_GONE")
        self.assertEqual(self.findings({name: None}), [])

    def test_links(self):
        page = "docs/" + "page.md"
        good = ("# One `word`: two\n[self](#one-word-two) [api](reference/environment.md) [web](https://x.org/y.md)\n"
                "[up](../README.md#top) `[code](gone.md)`\n```\n[block](gone.md)\n```\n\n    [indented](gone.md)\n")
        tree = {"README.md": "# Top\n[page](docs/" "page.md)\n", page: good}
        self.assertEqual(self.findings(tree), [])
        for link, part in (("gone.md", "leads nowhere"), ("../gone/", "leads nowhere"), ("#gone", "heading"),
                           ("../README.md#gone", "heading"), ("../../..", "leaves the tree")):
            with self.subTest(link=link):
                self.expect_one({**tree, page: f"{good}\n[wrong]({link})\n"}, page, 10, part)
        self.expect_one({**tree, "README.md": "# Top\n\n![x](gone.png)\n"}, "README.md", 3, "gone.png")

    def test_readmes(self):
        name = "src/core/README.md"
        good = "# Core\n\n`c.cpp`, `core/topo/t.cpp`, `src/base/a.hpp`, `*.cpp`, `gone()`\n"
        self.assertEqual(self.findings({name: good}), [])
        self.expect_one({name: None}, name, 1, "is missing")
        self.expect_one({"src/core/ep/x.cu": "", "src/core/ep/README.md": None}, "src/core/ep/README.md", 1, "is missing")
        self.assertEqual(self.findings({"src/core/ep/x.hpp": "#pragma once\n", "src/core/ep/README.md": None}), [])
        for wrong in ("t.cpp", "topo/gone.hpp", "gone/c.cpp"):
            with self.subTest(wrong=wrong):
                self.expect_one({name: f"{good}`{wrong}`\n"}, name, 4, f"{wrong} does not exist")
        self.expect_one({"tests/unit/README.md": "`gone_test.cpp`\n"}, "tests/unit/README.md", 1, "gone_test.cpp does not exist")

    def test_quotes(self):
        page = "docs/" + "page.md"
        text = "# Page\n\n<!-- from examples/x.py -->\n```python\none()\ntwo()\n```\n"
        tree = {"examples/x.py": "zero()\none()\ntwo()\n", page: text}
        self.assertEqual(self.findings(tree), [])
        self.expect_one({**tree, page: text.replace("two", "three")}, page, 3, "not a part of examples/x.py")
        self.expect_one({**tree, page: text.replace("x.py", "y.py")}, page, 3, "examples/y.py does not exist")

    def test_mentions(self):
        gone = "docs/" + "gone.md"
        for name in ("src/core/x.cpp", "tests/x.py", "docs/" + "page.md"):
            with self.subTest(name=name):
                self.expect_one({name: f"\n# {gone} has more\n"}, name, 2, f"{gone} does not exist")
        self.assertEqual(self.findings({"tests/x.py": "# /usr/share/" + gone + " or docs/reference/environment.md\n"}), [])

    def test_results(self):
        header = GOOD["include/mep.h"] + "enum {\n  MEP_SUCCESS = 0,\n  MEP_ERR_TIMEOUT = -6, /* x */\n};\n"
        page = documents.ERRORS_PAGE
        rows = "| `MEP_SUCCESS` | 0 | done |\n| `MEP_ERR_TIMEOUT` | -6 | late |\n"
        self.assertEqual(self.findings({"include/mep.h": header, page: rows}), [])
        self.expect_one({"include/mep.h": header, page: rows.replace("-6", "-7")}, page, 1, "MEP_ERR_TIMEOUT = -6")
        self.expect_one({"include/mep.h": header, page: rows + "| `MEP_ERR_GONE` | -9 | x |\n"}, page, 1, "MEP_ERR_GONE")

    def test_site(self):
        site = "nav:\n  - A: reference/environment.md\n  - b.md\n"
        tree = {documents.SITE: site, "docs" "/b.md": "# B\n"}
        self.assertEqual(self.findings(tree), [])
        self.expect_one({**tree, "docs" "/c.md": "# C\n"}, documents.SITE, 1, "/c.md has no line in nav")


if __name__ == "__main__":
    unittest.main()
