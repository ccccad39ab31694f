#!/usr/bin/env python3
"""Shows that check_tools.py can fail: a small tree whose pages are right, and one fault in each."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from made_tree import made_tree  # noqa: E402
import check_tools  # noqa: E402

HELPS = {
    "mep_run": "usage: mep_run -n N [OPTION]... [--] COMMAND\n\n  -n N            ranks\n  --respawn       again\n"
               "  --allow-failures N\n                  exit with 0, as with --nothing\n",
    "mep_info": "Usage: mep_info [--version | --topology]\n\n  --topology    the machine\n",
    "mep_perf": "Usage: mpirun -n N mep_perf OP [OPTION..]\n\n  -b MIN            smallest size\n"
                "  --tokens T[,T..]  tokens\n  --check           compare\n  --version, --help\n",
    "mep_perf suite": "usage: mep_perf suite [-h] [--ranks RANKS]\n                      [--vs {mpi}]\n\noptions:\n"
                      "  -h, --help            show\n  --vs {mpi}            with what\n  --ranks RANKS         numbers\n",
    "mep_chaos": "usage: mep_chaos [OPTION]...\n\n  --seed S  of the first\n  --suspect-ms T, --heartbeat-ms T   thresholds\n",
}


def man(*items):
    return ".TH X 1\n.SH OPTIONS\n" + "".join(item if item.startswith(".SH") else f".TP\n{item}\nWhat {item} does.\n" for item in items)


GOOD = {
    "README.md": "# X\n\n`mep_perf suite --ranks 2`, `--anything`\n\n```sh\nmep_run -n 2 --respawn mep_perf moe --tokens 1,2 --check | tee --append x\n"
                 "mep_run --allow-failures 1 -- python x.py --mine\n./dev test\n```\n",
    "CONTRIBUTING.md": "| `MEP_CUDA` | x | y |\n| `MEP_MPI`, `MEP_FUZZ` | x | y |\n| `MEP_KIND` | x | y |\n",
    "docs/guide/install.md": "| `bin/` | `mep_run`, `mep_perf_plot` |\n",
    "docs/measurements/" "old.md": "`mep_perf moe --gone`\n",
    "docs/man/mep_run.1": man('.BI \\-n " N"', ".B \\-\\-respawn", '.BI \\-\\-allow\\-failures " N"'),
    "docs/man/mep_info.1": man(".B \\-\\-topology"),
    "docs/man/mep_perf.1": man('.BI \\-b " MIN"', '.BI \\-\\-tokens " T\\fR[,\\fIT\\fR..]"', ".B \\-\\-check", ".SH SUITE\n",
                               ".B \\-\\-vs mpi", '.BI \\-\\-ranks " N"')
                           + ".SH EXAMPLES\n.nf\nmpirun \\-\\-oversubscribe mep_perf moe \\-\\-check\n.fi\n",
    "docs/man/mep_chaos.1": man('.BI \\-\\-seed " S"',
                                '.BI \\-\\-suspect\\-ms " T\\fR, \\fP" \\-\\-heartbeat\\-ms " T"'),
    "tools/dev/__main__.py": 'VERBS = {\n    "test": test,\n    "gpu-test": test,\n}\n',
    "cmake/Options.cmake": 'foreach(feature IN ITEMS CUDA MPI)\n  set(MEP_${feature} AUTO CACHE STRING "x")\nendforeach()\n'
                           'option(MEP_FUZZ "x" OFF)\nset(MEP_KIND "" CACHE STRING "x")\nset(MEP_HIDDEN "" CACHE INTERNAL "x")\n',
    "src/core/CMakeLists.txt": "  mep_add_tool(mep_run SOURCES x)\n",
    "perf/CMakeLists.txt": "foreach(script IN ITEMS plot)\n  install(PROGRAMS x)\nendforeach()\n",
}


class Tools(unittest.TestCase):
    def findings(self, changes, helps=None):
        helps = {name: check_tools.options_of_help(text) for name, text in {**HELPS, **(helps or {})}.items()}
        with made_tree({**GOOD, **changes}) as root:
            return [f"{name}: {text}" for name, text in (
                *check_tools.check_man(root, helps), *check_tools.check_pages(root, helps, check_tools.verbs_of(root)),
                *check_tools.check_cmake(root), *check_tools.check_installed(root))]

    def expect(self, page, old, new, finding):
        self.assertIn(old, GOOD[page])
        findings = self.findings({page: GOOD[page].replace(old, new)})
        self.assertEqual(len(findings), 1, findings)
        self.assertIn(finding, findings[0])

    def test_good_tree_has_no_finding(self):
        self.assertEqual(self.findings({}), [])

    def test_help_lacks_an_option_of_the_man_page(self):
        self.expect("docs/man/mep_info.1", ".TP\n", ".TP\n.B \\-\\-gone\nx\n.TP\n", "mep_info --help does not have --gone")

    def test_man_page_lacks_an_option(self):
        for program, line, option in (("mep_perf", "  --new N  x\n", "--new"), ("mep_perf suite", "  --new N  x\n", "--new"),
                                      ("mep_chaos", "  --a-ms T, --seed S  x\n", "--a-ms")):
            findings = self.findings({}, {program: HELPS[program] + line})
            self.assertIn(f"{option} of {program} --help is not described", findings[0])

    def test_sections_are_kept_apart(self):
        self.expect("docs/man/mep_perf.1", ".B \\-\\-check", ".B \\-\\-check\nx\n.TP\n.B \\-\\-ranks", "mep_perf --help does not have --ranks")

    def test_command_has_an_unknown_option(self):
        for old, new, finding in (("--check |", "--chekc |", "mep_perf has no --chekc"), ("--respawn", "--restart", "mep_run has no --restart"),
                                  ("suite --ranks", "suite --check", "mep_perf has no --check")):
            self.expect("README.md", old, new, finding)
        self.expect("docs/man/mep_perf.1", "moe \\-\\-check", "moe \\-\\-gone", "mep_perf has no --gone")

    def test_verb_is_unknown(self):
        self.expect("README.md", "./dev test", "./dev tests", "./dev has no tests")

    def test_option_of_cmake(self):
        self.expect("cmake/Options.cmake", "option(", 'option(MEP_NEW "x" ON)\noption(', "the option MEP_NEW of CMake is missing")
        self.expect("CONTRIBUTING.md", "`MEP_MPI`, ", "", "the option MEP_MPI of CMake is missing")
        self.expect("CONTRIBUTING.md", "`MEP_KIND`", "`MEP_KIND`, `MEP_GONE`", "CMake has no option MEP_GONE")

    def test_installed_programs(self):
        self.expect("perf/CMakeLists.txt", "plot", "plot suite", "mep_perf_suite is installed into bin/ and missing there")
        self.expect("docs/guide/install.md", "`mep_run`", "`mep_run`, `mep_gone`", "bin/ has no mep_gone")

    def test_wide_help(self):
        self.assertEqual(list(check_tools.check_widths({"mep_info": "x" * 80 + "\n"})), [])
        (finding,) = check_tools.check_widths({"mep_info": "a\n" + "x" * 81 + "\n"})
        self.assertIn("81 columns", finding[1])


if __name__ == "__main__":
    unittest.main()
