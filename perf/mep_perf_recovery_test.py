#!/usr/bin/env python3
"""Runs mep_perf recovery: its figures are there, positive and ordered, and wrong command lines are refused.

Usage: mep_perf_recovery_test.py BIN_DIR
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

BIN = ""
FIGURES = ("notice", "resume", "join")
QUANTILES = ("p50", "p99", "worst")


def run(words, ranks=0, status=0):
    """Returns (standard output, standard error); the exit status must be as given. ranks: 0 without mep_run."""
    launcher = [os.path.join(BIN, "mep_run"), "-n", str(ranks)] if ranks else []
    command = [*launcher, os.path.join(BIN, "mep_perf"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode != status:
        raise AssertionError(f"{' '.join(command)}\nexit status {done.returncode}, not {status}\n{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


class RecoveryTest(unittest.TestCase):
    def recover(self, ranks, kills, *words):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "row.json")
            output, errors = run(["recovery", "--kills", str(kills), *words, "--json", path], ranks)
            with open(path, encoding="utf-8") as file:
                rows = json.load(file)
        self.assertEqual((errors, len(rows)), ("", 1))
        row = rows[0]
        fields = {f"{figure}_ms_{quantile}" for figure in FIGURES for quantile in QUANTILES}
        self.assertEqual(set(row), fields | {"op", "ranks", "bytes", "device", "kills", "memory_gib", "version", "hosts"})
        self.assertEqual((row["op"], row["ranks"], row["kills"], row["device"]), ("recovery", ranks, kills, "host"))
        self.assertEqual(row["hosts"], [socket.gethostname()])
        for figure in FIGURES:
            p50, p99, worst = (row[f"{figure}_ms_{quantile}"] for quantile in QUANTILES)
            self.assertLess(0, p50)
            self.assertLessEqual(p50, p99)
            self.assertLessEqual(p99, worst)
        for quantile in QUANTILES:
            self.assertLess(row[f"notice_ms_{quantile}"], row[f"resume_ms_{quantile}"])
        self.assertEqual(len(re.findall(r"^from .*(?: +[\d.]+){3}$", output, flags=re.M)), 3, output)
        return row

    def test_kills(self):
        row = self.recover(3, 2)
        self.assertEqual((row["bytes"], row["memory_gib"]), (8, 0))
        # Each rank is killed, rank 0 twice; one is left meanwhile.
        row = self.recover(2, 3, "--bytes", "4K", "--memory", "0.01")
        self.assertEqual((row["bytes"], row["memory_gib"]), (4096, 0.01))

    def test_ranks(self):
        _, errors = run(["recovery"], status=1)
        self.assertIn("mep_run -n 4 mep_perf recovery", errors)
        _, errors = run(["recovery"], ranks=1, status=1)
        self.assertIn("recovery needs two ranks", errors)

    def test_unwritable_file(self):
        _, errors = run(["recovery", "--json", "/nowhere/x.json"], ranks=2, status=1)
        self.assertIn("/nowhere/x.json cannot be written", errors)

    def test_wrong_command_lines(self):
        for words, message in (
            (["recovery", "--kills", "0"], "--kills cannot be '0'"),
            (["recovery", "--kills", "many"], "--kills cannot be 'many'"),
            (["recovery", "--memory", "-1"], "--memory cannot be '-1'"),
            (["recovery", "--memory", "nan"], "--memory cannot be 'nan'"),
            (["recovery", "--bytes", "0"], "--bytes cannot be '0'"),
            (["recovery", "--bytes", "2G"], "at most 1G"),
            (["recovery", "-b", "8"], "recovery takes --kills"),
            (["recovery", "-i", "8"], "recovery takes --kills"),
            (["recovery", "--threads", "2"], "recovery takes --kills"),
            (["recovery", "--warps", "2"], "recovery takes --kills"),
            (["allreduce", "--kills", "3"], "are for recovery"),
            (["queue", "--kills", "3"], "queue takes --warps"),
        ):  # fmt: skip
            _, errors = run(words, status=2)
            self.assertIn(message, errors)


if __name__ == "__main__":
    BIN = sys.argv[1]
    unittest.main(argv=sys.argv[:1], verbosity=2)
