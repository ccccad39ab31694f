#!/usr/bin/env python3
"""./dev: what it asks CMake for, by a cmake that only writes down how it was called; stages beside others; the units
of clang-tidy."""

import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stdout
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/dev"))

import suites  # noqa: E402
import tidy_units  # noqa: E402
import trees  # noqa: E402


class Install(unittest.TestCase):
    def dev(self, *words):
        """The exit status, what was said, and the calls of cmake."""
        with tempfile.TemporaryDirectory() as folder:
            calls = pathlib.Path(folder) / "calls"
            calls.touch()
            cmake = pathlib.Path(folder) / "cmake"
            cmake.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
            cmake.chmod(0o755)
            done = subprocess.run([ROOT / "dev", *words], text=True, check=False, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, env={
                                      **os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "MEP_DEV_NO_INSTALL": "1"})
            return done.returncode, done.stdout, calls.read_text().splitlines()

    def test_builds_and_installs(self):
        status, said, calls = self.dev("install", "/tmp/some where")
        self.assertEqual(status, 0, said)
        tree = ROOT / "build/release"
        self.assertTrue(calls[-2].startswith(f"--build {tree}") and calls[-2].endswith("--target mep_programs"), calls)
        self.assertEqual(calls[-1], f"--install {tree} --prefix /tmp/some where")
        # A set variable stays; an unset one leaves no empty entry, which would mean the current folder.
        lines = "".join(re.findall(r"export .*\n", said))
        values = subprocess.run(["sh", "-c", f'{lines}echo "$LD_LIBRARY_PATH;$PYTHONPATH"'], text=True, check=True,
                                stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/kept"}).stdout
        self.assertRegex(values, "^/tmp/some where/lib[^:;]*:/kept;/tmp/some where/share/mep/python$")

    def test_wants_a_folder(self):
        for words in ((), ("--prefix",), ("a", "b")):
            status, said, calls = self.dev("install", *words)
            self.assertEqual((status, calls), (1, []))
            self.assertIn("./dev install $HOME/mep", said)


class Configure(unittest.TestCase):
    """How a tree is configured: with warnings as errors in the gate only, which sets MEP_DEV_WERROR."""

    LAUNCHERS = [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX", "CUDA")]

    def words(self, preset, cuda, strict, cache=None):
        """The arguments of cmake, or None where it is not called; `cache` is that of a tree that is there."""
        calls = []
        env = {"MEP_DEV_WERROR": "1"} if strict else {}
        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(
                trees, ROOT=pathlib.Path(folder), has=lambda _: True, gpu_architecture=lambda: None,
                step=lambda _: None, run=lambda *words: calls.append(list(words)) or 0), \
                mock.patch.dict(os.environ, env, clear=True):
            if cache is not None:
                tree = trees.tree_of(preset)
                tree.mkdir(parents=True)
                (tree / "build.ninja").touch()
                (tree / "CMakeCache.txt").write_text("".join(f"{name}:BOOL={value}\n" for name, value in cache.items()))
            self.assertEqual(trees.configure(preset, cuda), 0)
        self.assertLessEqual(len(calls), 1)
        return calls[0] if calls else None

    def test_the_gate_has_errors(self):
        quick = ["-DMEP_CUDA=AUTO", "-DMEP_CUDA_QUICK=ON"]
        for preset, cuda in (("release", quick), ("asan", ["-DMEP_CUDA=OFF"]), ("tsan", ["-DMEP_CUDA=OFF"])):
            # Word for word: ccache answers for objects of the same command lines.
            self.assertEqual(self.words(preset, trees.ONE_GPU, True),
                             ["cmake", "--preset", preset, *self.LAUNCHERS, "-G", "Ninja", "-DMEP_WERROR=ON", *cuda])

    def test_a_first_build_has_warnings(self):
        self.assertEqual(self.words("release", trees.NO_CUDA, False),
                         ["cmake", "--preset", "release", *self.LAUNCHERS, "-G", "Ninja", "-DMEP_CUDA=OFF"])

    def test_a_tree_keeps_its_setting(self):
        for setting in ("ON", "OFF"):
            cache = {"MEP_WERROR": setting, "MEP_CUDA": "OFF"}
            self.assertIsNone(self.words("release", trees.NO_CUDA, False, cache))
            self.assertEqual(self.words("release", trees.ONE_GPU, False, cache),
                             ["cmake", "--preset", "release", "-DMEP_CUDA=AUTO", "-DMEP_CUDA_QUICK=ON"])

    def test_the_gate_turns_errors_on(self):
        self.assertEqual(self.words("release", trees.NO_CUDA, True, {"MEP_WERROR": "OFF", "MEP_CUDA": "AUTO"}),
                         ["cmake", "--preset", "release", "-DMEP_WERROR=ON"])
        self.assertIsNone(self.words("tsan", trees.ONE_GPU, True, {"MEP_WERROR": "ON", "MEP_CUDA": "OFF"}))


class Progress(unittest.TestCase):
    def test_an_old_ninja_is_not_asked_for_the_time_left(self):
        for version, left in (("1.11.1", False), ("1.12.0", True), ("1.13.0.git", True), (None, False)):
            with mock.patch.object(trees, "output_of", lambda *_, version=version: version), \
                    mock.patch.dict(os.environ, {}, clear=True):
                trees.show_progress()
                self.assertEqual("%W" in os.environ["NINJA_STATUS"], left, version)


class Gate(unittest.TestCase):
    def test_sets_the_variable(self):
        """./dev test --full configures a tree of its own so that warnings are errors; ./dev test does not."""
        for words, errors in ((["--full"], True), ([], False)):
            with tempfile.TemporaryDirectory() as folder:
                clone, bin_folder = pathlib.Path(folder) / "clone", pathlib.Path(folder) / "bin"
                bin_folder.mkdir()
                for part in ("tools/dev", "tests/lint"):
                    shutil.copytree(ROOT / part, clone / part)
                calls = pathlib.Path(folder) / "calls"
                cmake = bin_folder / "cmake"
                # The configure run fails, so that nothing follows it.
                cmake.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n[ "$1" != --preset ]\n')
                cmake.chmod(0o755)
                env = {key: value for key, value in os.environ.items() if key != "MEP_DEV_WERROR"}
                done = subprocess.run(
                    [sys.executable, "-B", "tools/dev", "test", *words], cwd=clone, text=True, check=False,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    env={**env, "PATH": f"{bin_folder}:{env['PATH']}", "MEP_DEV_NO_INSTALL": "1"})
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertEqual(" -DMEP_WERROR=ON " in calls.read_text(), errors, done.stdout)


class Beside(unittest.TestCase):
    def stages(self, *parts):
        """The stages that took over those of a process beside them, and what was printed."""
        stages = suites.Stages()
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            beside = suites.Beside(pathlib.Path(folder) / "beside.log", 1, *parts)
            with redirect_stdout(said):
                beside.join(stages)
        return stages, said.getvalue()

    def test_results_are_taken_over(self):
        def tests(own):
            own.unsteady.append("name")
            own.times.append((1.5, "slow"))
            return True, "closed"

        stages, said = self.stages(("one", tests), ("two", lambda _: (subprocess.call(["echo", "its output"]) == 0, "")))
        self.assertFalse(stages.failed)
        self.assertEqual(stages.results, ["passed  one (0 s): closed", "passed  two (0 s)"])
        self.assertEqual((stages.unsteady, stages.times), (["name"], [(1.5, "slow")]))
        self.assertIn("its output", said)

    def test_failures_are_taken_over(self):
        stages, _ = self.stages(("one", lambda _: (False, "")), ("two", lambda _: (True, "")))
        self.assertTrue(stages.failed)
        self.assertEqual(stages.results, ["FAILED  one (0 s)", "passed  two (0 s)"])
        stages, said = self.stages(("one", lambda _: 1 // 0))
        self.assertTrue(stages.failed)
        self.assertRegex(stages.results[0], "^FAILED ")
        self.assertIn("ZeroDivisionError", said)


class Units(unittest.TestCase):
    def test_sources_that_can_share_a_run(self):
        texts = {"a.cpp": '#include "x.hpp"\nnamespace {\n}\nint main() {}\n', "b.cpp": "#include <map>\nint main() {}\n",
                 "macro.cpp": "#define A 1\n", "named.cpp": "namespace mep {\n}\n", "list.cpp": '#include "a.def"\n',
                 "u.cpp": "", "v.cpp": "", "main.cpp": "int main() {}\n", "other.cpp": ""}
        with tempfile.TemporaryDirectory() as folder:
            entries = {}
            for name, text in texts.items():
                path = pathlib.Path(folder) / name
                path.write_text(text)
                flags = "-O0" if name == "other.cpp" else "-O2"
                entries[path] = {"command": f"c++ {flags} -o {name}.o -c {path}",
                                 **({"unit": "u_1"} if name in ("u.cpp", "v.cpp", "main.cpp") else {})}
            groups = list(tidy_units.groups_of(entries, entries, lambda _: []))
            text = tidy_units.text_of([path for path in entries if path.name in ("a.cpp", "b.cpp")], True)
        names = sorted(sorted(path.name for path in sources) for _, sources in groups)
        self.assertEqual(names, [["a.cpp", "b.cpp"], ["list.cpp"], ["macro.cpp"], ["main.cpp"], ["named.cpp"],
                                 ["other.cpp"], ["u.cpp", "v.cpp"]])
        self.assertRegex(text, r'(?s)^#include "x.hpp"\n#include <map>\nnamespace tidy_0 \{\n#include "[^"]*a.cpp".*\n\}\n')


if __name__ == "__main__":
    unittest.main()
