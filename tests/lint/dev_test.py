#!/usr/bin/env python3
"""./dev install: what it asks CMake for, by a cmake that only writes down how it was called."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


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


if __name__ == "__main__":
    unittest.main()
