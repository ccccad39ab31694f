#!/usr/bin/env python3
"""Programs as users start them: examples/torch_training.py by torchrun, examples/moe_generation.py by mep_run, and one that
does not import mep.torch."""
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 400
ASKS_FOR_GLOO = """
import sys
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(type(dist.group.WORLD._get_backend(__import__("torch").device("cpu"))).__name__, dist.get_backend(), sys.argv[1:], __name__)
dist.destroy_process_group()
"""
NO_IMPORT = """
import sys
import torch, torch.distributed as dist
assert "mep" not in sys.modules
dist.init_process_group("mep", store=dist.HashStore(), rank=0, world_size=1)
ones = torch.ones(3)
dist.all_reduce(ones)
print(type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__, ones.tolist())
dist.destroy_process_group()
"""


def output_of(*command, **variables):
    """The program's output; AssertionError with that if it does not end with 0."""
    done = subprocess.run([sys.executable, "-B", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, **variables}, timeout=LIMIT_S, check=False)
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}\n{text[-8000:]}")
    return text


def train(ranks, *arguments):
    return output_of("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks,
                     ROOT / "examples/torch_training.py", *arguments, OMP_NUM_THREADS="1")


class Training(unittest.TestCase):
    def test_four_ranks_and_their_checkpoint_on_two(self):
        with tempfile.TemporaryDirectory() as folder:
            text = train(4, folder)
            self.assertIn("a checkpoint of 4 ranks, loaded on 4 and on 2", text)
            self.assertIn("4 ranks, all parameters as in one process, bit by bit", text)
            text = train(2, folder)
            self.assertIn("a checkpoint of 4 ranks, loaded on 2 and on 1", text)
            self.assertIn("2 ranks, all parameters as in one process, bit by bit", text)

    def test_two_ranks(self):
        text = train(2)
        self.assertIn("a checkpoint of 2 ranks, loaded on 2 and on 1", text)


class Generation(unittest.TestCase):
    @unittest.skipIf(importlib.util.find_spec("transformers") is None, "needs transformers")
    def test_model_that_loses_a_rank(self):
        launcher = shutil.which("mep_run", path=os.pathsep.join(
            [str(pathlib.Path(os.environ["MEP_LIBRARY"]).parent.parent / "bin"), os.environ["PATH"]]))
        done = subprocess.run([launcher, "-n", "3", "--respawn", "--allow-failures", "1", sys.executable, "-B",
                               ROOT / "examples/moe_generation.py"], capture_output=True, text=True, timeout=LIMIT_S,
                              env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("24 tokens, the logits as before"), 3, done.stdout)


class OtherNames(unittest.TestCase):
    def test_program_that_asks_for_gloo(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "beside.py").write_text("")
            program = pathlib.Path(folder) / "asks.py"
            program.write_text("import beside\n" + ASKS_FOR_GLOO)
            self.assertIn("ProcessGroupGloo gloo ['a', '-b'] __main__", output_of(program, "a", "-b"))
            wanted = "ProcessGroupMep gloo ['a', '-b'] __main__"
            self.assertIn(wanted, output_of("-m", "mep.torch", program, "a", "-b"))
            path = os.pathsep.join([folder, os.environ["PYTHONPATH"]])
            self.assertIn(wanted, output_of("-m", "mep.torch", "-m", "asks", "a", "-b", PYTHONPATH=path))
            program.write_text(program.read_text().replace('"gloo"', '"other"'))
            self.assertIn("ProcessGroupMep other", output_of("-m", "mep.torch", "--as", "other", program))


class Package(unittest.TestCase):
    def test_binding_of_the_package_is_used(self):
        """Without a compiler and without the cache; one for other sources is left alone."""
        built = pathlib.Path(output_of("-m", "mep.torch").split()[-1])
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder) / "mep_torch"
            package.mkdir()
            (package / "__init__.py").write_text("")
            path = os.pathsep.join([folder, os.environ["PYTHONPATH"]])
            mine = package / f"{built.parent.name}.so"
            shutil.copy(built, mine)
            variables = {"PYTHONPATH": path, "PATH": "", "XDG_CACHE_HOME": folder}
            self.assertIn(str(mine), output_of("-m", "mep.torch", **variables))
            self.assertIn("ProcessGroupMep [1.0, 1.0, 1.0]", output_of("-c", "import mep.torch\n" + NO_IMPORT.replace(
                'assert "mep" not in sys.modules', ""), **variables))
            mine.rename(package / "0123456789abcdef.so")
            done = subprocess.run([sys.executable, "-B", "-m", "mep.torch"], capture_output=True, text=True,
                                  env={**os.environ, **variables}, timeout=LIMIT_S, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("it needs a C++20 compiler", done.stderr)


class EntryPoint(unittest.TestCase):
    @unittest.skipIf(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14), "PyTorch 2.14 asks entry points")
    def test_backend_without_import(self):
        # Writes what pip would write from pyproject.toml, without building a wheel.
        points = re.search(r'^\[project\.entry-points\."([\w.]+)"\]\n((?:\S.*\n)+)',
                           (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        with tempfile.TemporaryDirectory() as folder:
            metadata = pathlib.Path(folder) / "mep_comm-0.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mep-comm\nVersion: 0\n")
            (metadata / "entry_points.txt").write_text(f"[{points[1]}]\n" + points[2].replace('"', ""))
            path = os.pathsep.join([folder, os.environ["PYTHONPATH"]])
            self.assertIn("ProcessGroupMep [1.0, 1.0, 1.0]", output_of("-c", NO_IMPORT, PYTHONPATH=path))


if __name__ == "__main__":
    unittest.main()
