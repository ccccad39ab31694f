#!/usr/bin/env python3
"""Programs as users start them: examples/torch_training.py by torchrun, and one that does not import mep.torch."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 400
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
