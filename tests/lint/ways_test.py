#!/usr/bin/env python3
"""Shows that the check of the ways can fail: a small tree with two ways, one fault in each."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from made_tree import made_tree  # noqa: E402
import ways  # noqa: E402

ALLREDUCE, DISPATCH = ways.LIMITS
PAGE = """# X

| file | defines | calls |
|---|---|---|
| `include/mep.h` | `mep_allreduce` | |
| `src/api.cpp` | `mep_allreduce` | `Comm::run` |
| `src/comm.cpp` | `Comm::run` | `step`, `Remote::put` |
| `src/remote.hpp` | `Remote::put` | `memcpy` |
"""
GOOD = {
    ALLREDUCE: PAGE,
    DISPATCH: "| file | defines | calls |\n|---|---|---|\n| `include/mep.h` | `mep_dispatch` | |\n| `src/api.cpp` | `mep_dispatch` | |\n",
    "include/mep.h": "int mep_allreduce(int x);\nint mep_dispatch(int x);\n/* mep_allreduce mep_dispatch */\n",
    "src/api.cpp": "int mep_allreduce(int x) {\n  return comm->run(x);\n}\nint mep_dispatch(int) { return 0; }\n",
    "src/comm.cpp": "int Comm::run(int x) const {\n  // gone()\n  if (step(x)) return fail(\"lost()\");\n  return remote.put(x);\n}\n",
    "src/remote.hpp": "struct Remote {\n  int put(int x) const { std::memcpy(a, b, x); return later(x); }\n  int kept(int x);\n};\n",
}


class Ways(unittest.TestCase):
    def findings(self, changes):
        with made_tree({**GOOD, **changes}) as root:
            return ways.check_ways(root)

    def expect(self, changes, part):
        findings = self.findings(changes)
        self.assertTrue(any(part in text for _, _, text in findings), findings)

    def page(self, old, new):
        self.assertIn(old, PAGE)
        return {ALLREDUCE: PAGE.replace(old, new)}

    def test_good_tree_has_no_finding(self):
        self.assertEqual(self.findings({}), [])

    def test_header_does_not_declare(self):
        self.expect({"include/mep.h": "int mep_dispatch(int x);\n"}, "mep_allreduce is not defined in include/mep.h")

    def test_file_is_gone(self):
        self.expect({"src/remote.hpp": None}, "src/remote.hpp does not exist")

    def test_function_is_gone(self):
        self.expect({"src/comm.cpp": "int Comm::walk(int x) { step(x); remote.put(x); }\n"}, "Comm::run is not defined in src/comm.cpp")

    def test_function_of_another_class(self):
        self.expect({"src/comm.cpp": GOOD["src/comm.cpp"].replace("Comm::", "World::")}, "Comm::run is not defined")

    def test_a_call_is_no_definition(self):
        self.expect({"src/comm.cpp": "int Comm::walk(int x) { if (Comm::run(x)) { step(x); remote.put(x); } }\n"}, "Comm::run is not defined")

    def test_a_declaration_in_a_source_is_no_definition(self):
        self.expect(self.page("`Remote::put` |", "`Remote::kept` |"), "Remote::kept is not defined")

    def test_a_declaration_is_no_call(self):
        self.expect(self.page("`memcpy` |", "`kept` |"), "kept is not called")

    def test_call_is_gone(self):
        self.expect({"src/api.cpp": GOOD["src/api.cpp"].replace("comm->run(x)", "0")}, "Comm::run is not called in src/api.cpp")

    def test_comments_and_literals_do_not_call(self):
        for name in ("gone", "lost"):
            self.expect(self.page("`step`, `Remote::put`", f"`{name}`, `Remote::put`"), f"{name} is not called")

    def test_broken_chain(self):
        self.expect(self.page("`step`, `Remote::put`", "`step`, `put`"), "nothing of Remote::put is what src/comm.cpp calls")

    def test_row_without_a_function(self):
        self.expect(self.page("| `Comm::run` | `step`, `Remote::put` |", "| | `step`, `Remote::put` |"), "names no function")

    def test_too_many_files(self):
        row = "| `src/remote.hpp` | `Remote::put` | `memcpy` |\n"
        loop = "| `src/comm.cpp` | `Comm::run` | `Remote::put` |\n"
        self.expect(self.page(row, row + (loop + row) * 4), "takes 12 files; at most 11")

    def test_missing_way(self):
        self.expect({DISPATCH: "# X\n"}, "the way of mep_dispatch is missing")
        self.expect({DISPATCH: PAGE}, "the way of mep_dispatch is missing")
        self.expect({DISPATCH: None}, "is missing")

    def test_ways_of_other_documents(self):
        page = "| file | defines | calls |\n|---|---|---|\n| `src/gone.cpp` | `x` | |\n"
        self.expect({"docs/" + "x.md": page}, "src/gone.cpp does not exist")


if __name__ == "__main__":
    unittest.main()
