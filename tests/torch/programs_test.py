#!/usr/bin/env python3
"""Programs as users start them: examples/torch_training.py by torchrun."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 400


def output_of(*command, **variables):
    """What the program writes; AssertionError with that if it does not end with 0."""
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


if __name__ == "__main__":
    unittest.main()
