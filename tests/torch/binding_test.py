#!/usr/bin/env python3
"""The cached binding of mep.torch: cut short, half written by a builder that was killed, on a full disk, and wanted by several
processes at once. The compiler is played by a copy of the whole binding. 40 s."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

# WHOLE: what the linker writes; HOW: how far it comes. Each run of it is a line of the file BUILDS.
PROGRAM = """
import errno, os, pathlib, signal, sys
from torch.utils import cpp_extension
def load(name, build_directory, **options):
    with open(os.environ["BUILDS"], "a") as builds:
        builds.write("one\\n")
    whole, target = pathlib.Path(os.environ["WHOLE"]).read_bytes(), pathlib.Path(build_directory) / f"{name}.so"
    if os.environ["HOW"] == "whole":
        target.write_bytes(whole)
    elif os.environ["HOW"] == "killed":
        target.write_bytes(whole[:len(whole) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    elif os.environ["HOW"] == "linker":
        raise RuntimeError("ld: final link failed: No space left on device")
    else:
        raise OSError(errno.ENOSPC, "No space left on device")
cpp_extension.load = load
import mep.torch
"""


class Binding(unittest.TestCase):
    def setUp(self):
        import mep.torch  # makes the whole one
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mep_torch_"))
        self.addCleanup(shutil.rmtree, self.folder)
        whole = pathlib.Path(mep.torch._binding.__file__)
        self.whole, self.content = whole, whole.read_bytes()
        shutil.copytree(whole.parent, self.folder / "mep" / "torch" / whole.parent.name)
        self.cached = self.folder / "mep" / "torch" / whole.parent.name / whole.name

    def start(self, how="whole"):
        return subprocess.Popen([sys.executable, "-B", "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "XDG_CACHE_HOME": str(self.folder), "WHOLE": str(self.whole), "HOW": how,
                                     "BUILDS": str(self.folder / "builds")})

    def builds(self):
        file = self.folder / "builds"
        count = len(file.read_text().splitlines()) if file.exists() else 0
        file.unlink(missing_ok=True)
        return count

    def expect_start(self, builds):
        process = self.start()
        text = process.communicate()[0]
        self.assertEqual((process.returncode, self.builds()), (0, builds), text)
        self.assertEqual(self.cached.read_bytes(), self.content)

    def test_cut_short(self):
        self.expect_start(0)
        for kept in (4096, len(self.content) // 2, 0):
            self.cached.write_bytes(self.content[:kept])
            self.expect_start(1)
        self.cached.write_bytes(self.content[:-1] + bytes([self.content[-1] ^ 1]))
        self.expect_start(1)
        self.cached.unlink()
        self.expect_start(1)
        self.expect_start(0)

    def test_builder_killed(self):
        self.cached.unlink()
        process = self.start("killed")
        process.communicate()
        self.assertEqual((process.returncode, self.builds()), (-signal.SIGKILL, 1))
        self.expect_start(1)

    def test_full_disk(self):
        for how in ("linker", "disk"):
            self.cached.write_bytes(b"")
            process = self.start(how)
            text = process.communicate()[0]
            self.assertEqual((process.returncode, self.builds()), (1, 1), text)
            self.assertIn(f"the disk of {self.cached.parent} is full", text)
        self.expect_start(1)

    def test_several_at_once(self):
        self.cached.write_bytes(self.content[:4096])
        processes = [self.start() for _ in range(3)]
        texts = [process.communicate()[0] for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0, 0], texts)
        self.assertEqual(self.builds(), 1)


if __name__ == "__main__":
    unittest.main()
