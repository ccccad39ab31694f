#!/usr/bin/env python3
"""Runs mep_perf and mep_info as people do: as threads, under mep_run, under mpirun, with wrong arguments.

It looks at the exit status, the fields of the JSON rows, that --check finds no error, and messages.
No time is judged.

Usage: mep_perf_test.py BIN_DIR [MPIRUN WORD..]   (the launcher's words up to its -n)
"""

import csv
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

BIN = ""
MPIRUN = []
FIELDS = {
    "op", "ranks", "bytes", "dtype", "mep_us_p50", "mep_us_p99", "algbw_gbps", "busbw_gbps", "errors", "version",
    "hosts",
}  # fmt: skip
LAYER_FIELDS = {"mode", "routing", "preset", "tokens", "hidden", "experts", "topk", "imbalance"}
LAYER_OPS = ("dispatch", "combine", "moe")
MPI_FIELDS = {"mpi_us_p50", "ratio"}
QUICK = ["-i", "40", "--no-machine"]
TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../src/protocol/operations.def")
with open(TABLE, encoding="utf-8") as table:
    WITH_DATA = re.findall(r"^MEP_OPERATION\((\w+), \w+, Data", table.read(), flags=re.M)
SMALL = ["-b", "4", "-e", "64K", "-f", "128"]
LAYER = ["--tokens", "0,1,19", "--hidden", "272", "--experts", "10", "--topk", "3"]


def run(words, launcher=(), status=0):
    """Returns (standard output, standard error); the exit status must be as given."""
    command = [*launcher, os.path.join(BIN, "mep_perf"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode != status:
        raise AssertionError(
            f"{' '.join(command)}\nexit status {done.returncode}, not {status}\n"
            f"{done.stdout}{done.stderr}"
        )
    return done.stdout, done.stderr


def rows_of(words, launcher=()):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        run([*words, *QUICK, "--check", "--json", path], launcher)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def npy(descr, code, rows):
    """A list of rows as np.save writes it."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({len(rows)}, {len(rows[0])}), }}"
    header = header.ljust(117).encode() + b"\n"
    values = [value for row in rows for value in row]
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
            + struct.pack(f"<{len(values)}{code}", *values))  # fmt: skip


class PerfTest(unittest.TestCase):
    def check_rows(self, rows, op, ranks, fields, count):
        self.assertEqual(len(rows), count)
        for row in rows:
            self.assertEqual(set(row), fields | (LAYER_FIELDS if op in LAYER_OPS else set()))
            self.assertEqual((row["op"], row["ranks"]), (op, ranks))
            self.assertEqual(row["errors"], 0)
            self.assertEqual(row["hosts"], [socket.gethostname()])
            self.assertRegex(row["version"], r"^\d+\.\d+\.\d+$")
            self.assertGreater(row["mep_us_p50"], 0)
            self.assertGreaterEqual(row["mep_us_p99"], row["mep_us_p50"])
            if "ratio" in fields:
                expected = row["mep_us_p50"] / row["mpi_us_p50"]
                self.assertAlmostEqual(row["ratio"], expected, delta=1e-4 * expected)

    def test_collectives_as_threads(self):
        for ranks in (1, 2, 3):
            threads = ["--threads", str(ranks)]
            self.check_rows(rows_of(["barrier", *threads]), "barrier", ranks, FIELDS, 1)
            for op in WITH_DATA:
                rows = rows_of([op, *threads, *SMALL])
                self.check_rows(rows, op, ranks, FIELDS, 3)
                self.assertEqual([row["bytes"] for row in rows], [4, 512, 65536])

    def test_messages(self):
        for op in ("pingpong", "stream", "exchange"):
            for ranks in (2, 3, 4):
                rows = rows_of([op, "--threads", str(ranks), *SMALL])
                self.check_rows(rows, op, ranks, FIELDS, 3)
            if MPIRUN:
                rows = rows_of([op, *SMALL, "--vs", "mpi"], [*MPIRUN, "2"])
                self.check_rows(rows, op, 2, FIELDS | MPI_FIELDS, 3)
        _, errors = run(["pingpong", "--threads", "1"], status=1)
        self.assertIn("two ranks", errors)
        _, errors = run(["stream", "--threads", "2", "--mep-memory"], status=2)
        self.assertIn("--mep-memory", errors)

    def test_types_and_reductions(self):
        for dtype in ("int8", "float16", "bf16", "float64", "e4m3"):
            for reduction in ("sum", "prod", "max"):
                rows = rows_of(
                    ["allreduce", "--threads", "3", "--dtype", dtype, "--reduce", reduction, *SMALL]
                )
                self.check_rows(rows, "allreduce", 3, FIELDS, 3)

    def test_buffers_of_the_library(self):
        rows = rows_of(["allreduce", "--threads", "2", "--mep-memory", *SMALL])
        self.check_rows(rows, "allreduce", 2, FIELDS, 3)

    def test_layer_as_threads(self):
        for ranks in (1, 3):
            for op in ("dispatch", "combine", "moe"):
                for more in ([], ["--wire", "fp8"], ["--slotted", "--buffers", "2"]):
                    rows = rows_of([op, "--threads", str(ranks), *LAYER, *more])
                    self.check_rows(rows, op, ranks, FIELDS, 3)
                    wire = "fp8" if "fp8" in more else "bf16"
                    self.assertEqual({row["dtype"] for row in rows}, {wire})

    def test_layer_of_high_throughput(self):
        for ranks in (1, 2, 5):
            for op in ("dispatch", "combine", "moe"):
                for more in ([], ["--wire", "fp8"], ["--buffers", "2"], ["--expanded", "--wire", "fp8"],
                             ["--expanded", "--buffers", "2"]):  # fmt: skip
                    words = [op, "--threads", str(ranks), *LAYER, "--mode", "ht", *more]
                    rows = rows_of(words)
                    self.check_rows(rows, op, ranks, FIELDS, 3)
                    self.assertEqual([(row["mode"], row["tokens"]) for row in rows],
                                     [("ht", 0), ("ht", 1), ("ht", 19)])  # fmt: skip

    def test_phases_of_high_throughput(self):
        words = ["moe", "--threads", "2", *LAYER, *QUICK, "--mode", "ht"]
        for more, phases in (([], "dispatch .* expert .* combine .* replay .* us"),
                             (["--no-expert"], "dispatch [^a-z]* us  combine .* replay .* us")):  # fmt: skip
            output, _ = run([*words, *more])
            self.assertEqual(len(re.findall(phases, output)), 3)
        output, _ = run(["moe", "--threads", "2", *LAYER, *QUICK, "--no-expert", "--check"])
        self.assertNotIn("expert ", output.split("\n", 1)[1])
        self.assertNotIn("replay", output)

    def test_bytes_of_a_layer(self):
        row = rows_of(["moe", "--threads", "2", "--tokens", "4", "--hidden", "256", "--topk", "2",
                       "--experts", "8", "--wire", "fp8"])[0]  # fmt: skip
        self.assertEqual(row["bytes"], 4 * 2 * (256 + 2 * 4 + 256 * 2))
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("0 1\n3 0\n")  # one row, two rows
            file.flush()
            words = ["moe", "--threads", "2", "--tokens", "4", "--hidden", "256", "--topk", "2",
                     "--experts", "4", "--routing", f"file:{file.name}"]  # fmt: skip
            high, low = rows_of([*words, "--mode", "ht"])[0], rows_of(words)[0]
        self.assertEqual(high["bytes"], (2 * 1 + 2 * 2) * (256 * 2 + 256 * 2))
        # Rows that rank 0 and rank 1 receive from a token: 1 and 0, 1 and 1; in ll 2 and 0, 1 and 1.
        self.assertAlmostEqual(high["imbalance"], 2 / 1.5, places=4)
        self.assertAlmostEqual(low["imbalance"], 3 / 2, places=4)
        self.assertEqual((high["mode"], low["mode"]), ("ht", "ll"))

    def test_presets(self):
        shapes = {"deepseek-v3": (7168, 256, 8), "qwen3-235b": (4096, 128, 8), "kimi-k2": (7168, 384, 8)}
        shape = ("hidden", "experts", "topk", "tokens", "mode")
        for name, numbers in shapes.items():
            row = rows_of(["dispatch", "--threads", "1", "--preset", name, "--tokens", "1"])[0]
            self.assertEqual(tuple(row[key] for key in shape), (*numbers, 1, "ll"))
            self.assertEqual(row["preset"], name)
        small = ["--hidden", "32", "--topk", "2"]
        phases = {"prefill": (4096, "ht"), "decode": (128, "ll")}
        for phase, (tokens, mode) in phases.items():
            preset = ["--preset", "qwen3-235b", "--phase", phase]
            # An option that is given wins, wherever it stands.
            for words in ([*preset, *small], [*small, *preset]):
                row = rows_of(["dispatch", "--threads", "1", *words])[0]
                self.assertEqual(tuple(row[key] for key in shape), (32, 128, 2, tokens, mode))
            for more in (["--mode", "ll", "--tokens", "3", *preset], [*preset, "--tokens", "3", "--mode", "ll"]):
                row = rows_of(["dispatch", "--threads", "1", *small, *more])[0]
                self.assertEqual((row["tokens"], row["mode"]), (3, "ll"))
        row = rows_of(["dispatch", "--threads", "1", *LAYER])[0]
        self.assertEqual((row["preset"], row["routing"], row["imbalance"]), (None, "uniform", None))
        output, _ = run(["moe", "--threads", "2", "--preset", "kimi-k2", *small, *QUICK])
        self.assertIn("moe of kimi-k2, hidden 32, 384 experts, top-2", output)
        self.assertIn("max/mean", output)

    def test_routing(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("# expert numbers\n0 3\n1 -1\n-1 -1\n")
            file.flush()
            for routing in ("zipf:1.2", f"file:{file.name}"):
                rows = rows_of(["moe", "--threads", "2", "--tokens", "7", "--hidden", "128",
                                "--experts", "4", "--topk", "2", "--routing", routing])  # fmt: skip
                self.check_rows(rows, "moe", 2, FIELDS, 1)
            file.write("2 2\n")
            file.flush()
            _, errors = run(["moe", "--threads", "1", "--experts", "4", "--topk", "2", "--routing",
                             f"file:{file.name}", *QUICK], status=1)  # fmt: skip
            self.assertIn("line 5: expert 2 twice", errors)

    def test_routing_of_deepseek_v3(self):
        for mode in ("ll", "ht"):
            words = ["moe", "--threads", "2", "--tokens", "9", "--hidden", "128", "--experts", "32", "--topk", "6"]
            rows = rows_of([*words, "--routing", "deepseek-v3", "--mode", mode])
            self.check_rows(rows, "moe", 2, FIELDS, 1)
            self.assertEqual(rows[0]["routing"], "deepseek-v3")
            self.assertGreaterEqual(rows[0]["imbalance"], 1)

    def test_traces_of_numpy(self):
        rows = [[0, 3], [1, -1], [-1, -1], [2, 0], [3, 2]]
        weights = [[0.25, 0.5], [1.5, 9], [9, 9], [2, 0.125], [0.75, 0.75]]
        indices = npy("<i8", "q", rows)
        layer = ["moe", "--tokens", "7", "--hidden", "128", "--experts", "4", "--topk", "2"]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'a "trace".npz')
            with zipfile.ZipFile(path, "w") as archive:
                for name, content in (("topk_idx", indices), ("topk_weights", npy("<f4", "f", weights))):
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                        file.write(content)
            for mode in ("ll", "ht"):
                words = [*layer, "--mode", mode, "--routing", f"file:{path}"]
                found = rows_of([*words, "--threads", "2"])
                self.check_rows(found, "moe", 2, FIELDS, 1)
                self.assertEqual(found[0]["routing"], f"file:{path}")
                if MPIRUN:
                    found = rows_of([*words, "--vs", "mpi"], [*MPIRUN, "2"])
                    self.check_rows(found, "moe", 2, FIELDS | MPI_FIELDS, 1)
            path = os.path.join(folder, "trace.npy")
            for content, status, text in ((indices, 0, "7"), (indices[:-1], 1, "cut off")):
                with open(path, "wb") as file:
                    file.write(content)
                done = run([*layer, "--threads", "2", "--routing", f"file:{path}", *QUICK], status=status)
                self.assertIn(text, done[status])

    def test_under_mep_run(self):
        launcher = [os.path.join(BIN, "mep_run"), "-n", "3"]
        if not os.path.exists(launcher[0]):
            self.skipTest("mep_run is not built")
        self.check_rows(rows_of(["allreduce", *SMALL], launcher), "allreduce", 3, FIELDS, 3)
        self.check_rows(rows_of(["moe", *LAYER], launcher), "moe", 3, FIELDS, 3)
        _, errors = run(["allreduce", "--vs", "mpi", *QUICK], launcher, status=self.vs_status())
        self.assertIn("MPI", errors)

    def vs_status(self):
        # Without MPI in the build the option itself is wrong.
        _, errors = run(["nothing"], status=2)
        self.assertIn("unknown operation", errors)
        help_text, _ = run(["--help"])
        for option in ("--vs L ", "--mode M", "--no-expert"):
            self.assertIn(option, help_text)
        return 1 if MPIRUN else 2

    def test_beside_mpi(self):
        if not MPIRUN:
            self.skipTest("built without MPI")
        launcher = [*MPIRUN, "3"]
        versus = ["--vs", "mpi"]
        both = FIELDS | MPI_FIELDS
        self.check_rows(rows_of(["barrier", *versus], launcher), "barrier", 3, both, 1)
        for op in WITH_DATA:
            self.check_rows(rows_of([op, *SMALL, *versus], launcher), op, 3, both, 3)
        for op in ("dispatch", "combine", "moe"):
            for wire in ("bf16", "fp8"):
                for mode in ("ll", "ht"):
                    rows = rows_of([op, *LAYER, "--wire", wire, "--mode", mode, *versus], launcher)
                    self.check_rows(rows, op, 3, both, 3)
        for mode in ("ll", "ht"):
            gate = ["--experts", "48", "--routing", "deepseek-v3", "--mode", mode]
            self.check_rows(rows_of(["moe", *LAYER, *gate, *versus], launcher), "moe", 3, both, 3)
        self.check_rows(rows_of(["allreduce", *SMALL], launcher), "allreduce", 3, FIELDS, 3)

    def test_table(self):
        output, _ = run(["allreduce", "--threads", "2", "-e", "64", "-i", "20"])
        self.assertRegex(output, r"# mep_perf \d+\.\d+\.\d+: allreduce sum of float32, 2 ranks")
        self.assertIn("# copy, GB/s on 1 core:", output)
        self.assertIn("copy %", output)
        self.assertNotIn("\r", output)  # progress is for terminals
        layer, _ = run(["moe", "--threads", "2", *LAYER, *QUICK])
        self.assertEqual(len(re.findall("dispatch .* expert .* combine .* us", layer)), 3)

    def test_switches(self):
        sides = [("mep", "mpi"), ("mep",)] if MPIRUN else [("mep",)]
        for names in sides:
            words = ["--vs", "mpi"] if len(names) == 2 else ["--threads", "2"]
            launcher = [*MPIRUN, "2"] if len(names) == 2 else ()
            fields = {f"{side}_switches_{kind}" for side in names for kind in ("voluntary", "involuntary")}
            rows = rows_of(["allreduce", *SMALL, *words, "--switches"], launcher)
            self.check_rows(rows, "allreduce", 2, FIELDS | fields | (MPI_FIELDS if launcher else set()), 3)
            for row in rows:
                self.assertGreaterEqual(min(row[field] for field in fields), 0)
        # 16 ranks on fewer cores than that give them away.
        if len(os.sched_getaffinity(0)) < 16:
            row = rows_of(["allreduce", "--threads", "16", "-e", "8", "--switches"])[0]
            self.assertGreater(row["mep_switches_voluntary"] + row["mep_switches_involuntary"], 0)
        output, _ = run(["barrier", "--threads", "2", "--switches", "--seconds", "0.01", "--no-machine"])
        self.assertRegex(output, r"switches\n.* [0-9.]+\+[0-9.]+\n")

    def test_errors_are_null_without_check(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            run(["barrier", "--threads", "2", *QUICK, "--json", path])
            with open(path, encoding="utf-8") as file:
                self.assertIsNone(json.load(file)[0]["errors"])

    def both_files(self, words, launcher=()):
        """(rows of --json, rows of --csv) of one run"""
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("rows.json", "rows.csv")]
            run([*words, "--json", paths[0], "--csv", paths[1]], launcher)
            with open(paths[0], encoding="utf-8") as file, open(paths[1], encoding="utf-8", newline="") as table:
                return json.load(file), list(csv.DictReader(table, strict=True))

    def test_csv_has_what_json_has(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, 'a "b", c.txt')
            with open(trace, "w", encoding="utf-8") as file:
                file.write("0 1\n")
            layer = ["moe", "--threads", "2", "--tokens", "0,2", "--hidden", "32", "--experts", "4", "--topk", "2",
                     "--routing", f"file:{trace}", *QUICK]  # fmt: skip
            queue = ["queue", "--warps", "1", "--size", "8", "-i", "40"]
            mep_run = [os.path.join(BIN, "mep_run"), "-n", "2"]
            cases = [(["allreduce", *SMALL, *QUICK, "--check"], mep_run), (layer, ()), (queue, ())]
            found = [self.both_files(*case) for case in cases]
        for (rows, lines), count in zip(found, (3, 2, 3)):
            self.assertEqual((len(rows), len(lines)), (count, count))
            for row, line in zip(rows, lines):
                self.assertLessEqual(set(row), set(line))
                for name, text in line.items():
                    value = row.get(name)
                    if isinstance(value, list):
                        self.assertEqual(value, text.split())
                    elif isinstance(value, (int, float)):
                        self.assertEqual(value, float(text), name)
                    else:
                        self.assertEqual(value or "", text)
        self.assertEqual(found[2][0][0]["hosts"], [socket.gethostname()])

    def test_wrong_command_lines(self):
        for words, message in (
            ([], "no operation"),
            (["allreduce", "moe"], "second operation"),
            (["allreduce", "--fast"], "unknown option"),
            (["allreduce", "-b"], "needs a value"),
            (["allreduce", "-b", "7Q"], "cannot be '7Q'"),
            (["allreduce", "-b", "64", "-e", "8"], "larger than -e"),
            (["allreduce", "-i", "0"], "cannot be '0'"),
            (["allreduce", "--seconds", "0"], "cannot be '0'"),
            (["allreduce", "--seconds", "1", "-i", "3"], "-i and --seconds exclude each other"),
            (["allreduce", "--dtype=f17"], "cannot be 'f17'"),
            (["allreduce", "--tokens", "3"], "for dispatch, combine and moe"),
            (["moe", "-b", "8"], "for collectives"),
            (["moe", "--topk", "9", "--experts", "8"], "larger than --experts"),
            (["moe", "--hidden", "12"], "multiple of 8"),
            (["moe", "--tokens", "3,,4"], "cannot be '3,,4'"),
            (["moe", "--routing", "zipf:"], "cannot be 'zipf:'"),
            (["moe", "--routing", "deepseek-v3", "--experts", "20"], "--experts 20 does not fit"),
            (["moe", "--routing", "deepseek-v3", "--experts", "8"], "--experts 8 does not fit"),
            (["moe", "--routing", "deepseek-v3", "--experts", "16", "--topk", "9"], "--topk is at most 8"),
            (["moe", "--preset", "gpt"], "cannot be 'gpt': deepseek-v3, qwen3-235b or kimi-k2"),
            (["moe", "--phase", "train"], "cannot be 'train': prefill"),
            (["barrier", "--preset", "kimi-k2"], "for dispatch, combine and moe"),
            (["moe", "--mode", "fast"], "cannot be 'fast'"),
            (["moe", "--mode", "ht", "--slotted"], "--slotted is for --mode ll"),
            (["moe", "--expanded"], "--expanded is for --mode ht"),
            (["moe", "--mode", "ht", "--expanded", "--vs", "mpi"], "--expanded has no --vs mpi"),
            (["moe", "--no-expert", "--device", "cuda"], "no --no-expert"),
            (["allreduce", "--vs", "nccl"], "needs --device cuda"),
            (["moe", "--vs", "nccl", "--device", "cuda"], "collectives with data"),
            (["allreduce", "--vs", "nccl", "--device", "cuda", "--threads", "2"], "processes here"),
            (["dispatch", "--no-expert"], "--no-expert is for moe"),
            (["allreduce", "--mode", "ht"], "for dispatch, combine and moe"),
            (["moe", "--check=yes"], "cannot be 'yes'"),
            (["moe", "--device", "cuda:x"], "cannot be 'cuda:x'"),
        ):
            _, errors = run(words, status=2)
            self.assertIn(message, errors)

    def test_device(self):
        self.check_rows(rows_of(["barrier", "--threads", "2", "--device", "host"]), "barrier", 2,
                        FIELDS, 1)  # fmt: skip
        info = subprocess.run([os.path.join(BIN, "mep_info")], capture_output=True, text=True,
                              timeout=60, check=True).stdout  # fmt: skip
        gpus = info[info.index("\nGPUs\n"):].split("\n\n")[0]
        words = ["allreduce", "--device", "cuda", "--threads", "2", *QUICK]
        if "built without CUDA" in gpus:
            _, errors = run(words, status=2)
            self.assertIn("built without CUDA", errors)
            return
        _, errors = run([*words, "--mep-memory"], status=2)
        self.assertIn("--device cuda has no", errors)
        if "GPU 0" in gpus:
            self.skipTest("there is a GPU: tests/gpu/perf_gpu_test.py is for those")
        self.assertIn("no usable GPU", gpus)
        _, errors = run(words, status=1)
        self.assertIn("no usable GPU", errors)

    def queue_rows(self, words):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            out, _ = run(["queue", *words, "--json", path])
            self.assertEqual(len(re.findall(r"^#", out, flags=re.M)), 1)
            with open(path, encoding="utf-8") as file:
                return json.load(file)

    def test_queue(self):
        # More threads than cores, and sizes that fit no word.
        rows = self.queue_rows(["--warps", "1,3,16", "--size", "3,1M,28,70001", "-i", "300"])
        kinds = [(row["kind"], row["warps"], row["bytes"]) for row in rows]
        self.assertEqual(kinds, [
            *(("requests", warps, 8) for warps in (1, 3, 16)), ("latency", 1, 8),
            *(("bandwidth", 1, size) for size in (3, 1 << 20, 28, 70001)),
        ])  # fmt: skip
        figures = {
            "requests": ("per_second", "mutex_per_second"), "latency": ("us",), "bandwidth": ("gbps",),
        }  # fmt: skip
        for row in rows:
            self.assertEqual((row["op"], row["nic"]), ("queue", "software"))
            for name in figures[row["kind"]]:
                better, worse = row[name], row[f"{name}_worst"]
                if row["kind"] == "latency":
                    better, worse = worse, better
                self.assertGreaterEqual(better, worse)
                self.assertGreater(worse, 0)
            if row["kind"] == "requests":
                expected = row["per_second"] / row["mutex_per_second"]
                self.assertAlmostEqual(row["ratio"], expected, delta=1e-4 * expected)
        for words, message in (
            (["queue", "--warps", "0"], "--warps cannot be '0'"),
            (["queue", "--warps", "1,,2"], "--warps cannot be '1,,2'"),
            (["queue", "--size", "0"], "--size cannot be '0'"),
            (["queue", "--size", "257M"], "at most 256M"),
            (["queue", "--threads", "2"], "queue takes --warps"),
            (["queue", "--tokens", "2"], "queue takes --warps"),
            (["queue", "-b", "2"], "queue takes --warps"),
            (["barrier", "--warps", "2"], "are for queue"),
            (["barrier", "--nic", "mlx5_0"], "are for queue"),
            (["queue", "--nic="], "--nic cannot be ''"),
            (["queue", "barrier"], "second operation"),
        ):
            _, errors = run(words, status=2)
            self.assertIn(message, errors)
        _, errors = run(["queue", "--json", "/nowhere/x.json"], status=1)
        self.assertIn("/nowhere/x.json", errors)

    def test_queue_without_the_adapter(self):
        out, errors = run(["queue", "--nic", "none_7"], status=1)
        self.assertEqual(out, "")
        self.assertRegex(errors, r"^mep_perf: --nic none_7: this (machine has no|build has no RDMA).*\n$")

    def test_queue_has_no_ranks(self):
        launchers = [[os.path.join(BIN, "mep_run"), "-n", "1"]]
        if MPIRUN:
            launchers.append([*MPIRUN, "1"])
        for launcher in launchers:
            _, errors = run(["queue"], launcher, status=1)
            self.assertIn("without mpirun and mep_run", errors)

    def test_unwritable_file(self):
        for option in ("--json", "--csv"):
            _, errors = run(["barrier", "--threads", "2", *QUICK, option, "/nowhere/x"], status=1)
            self.assertIn(f"{option}: /nowhere/x cannot be written", errors)

    def test_output_that_cannot_be_written(self):
        tools = {"mep_info": ([], ["--version"], ["--help"], ["--queues"], ["--topology"]),
                 "mep_perf": (["--help"], ["--version"], ["barrier", "--threads", "2", *QUICK], ["queue", "-i", "40"])}  # fmt: skip
        for tool, commands in tools.items():
            for words in commands:
                with self.subTest(tool, words=words), open("/dev/full", "w", encoding="utf-8") as full:
                    done = subprocess.run([os.path.join(BIN, tool), *words], stdout=full, stderr=subprocess.PIPE,
                                          text=True, timeout=60, check=False)  # fmt: skip
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(f"{tool}: standard output cannot be written", done.stderr)
        _, errors = run(["barrier", "--threads", "2", *QUICK, "--json", "/dev/full"], status=1)
        self.assertIn("/dev/full", errors)

    def test_info(self):
        environment = {**os.environ, "MEP_TIMEOUT_MS": "777", "MEP_TIMEUOT_MS": "1"}
        done = subprocess.run([os.path.join(BIN, "mep_info")], capture_output=True, text=True,
                              timeout=60, check=True, env=environment)  # fmt: skip
        for text in ("Build", "compiler", "Transports", "inproc", "shm", "Topology", "cores",
                     "locked memory", "open files"):  # fmt: skip
            self.assertIn(text, done.stdout)
        self.assertRegex(done.stdout, r"\* MEP_TIMEOUT_MS +777")
        wide = [line for line in done.stdout.splitlines() if len(line) > 80 and " " in line[25:]]
        self.assertEqual(wide, [])
        self.assertRegex(done.stdout, r"! MEP_TIMEUOT_MS is no variable of MEP; is MEP_TIMEOUT_MS meant\?")
        self.assertRegex(done.stdout, r"usable +[1-9]")

    def test_info_as_json(self):
        environment = {**os.environ, "MEP_TIMEOUT_MS": "777", "MEP_SECRET_FILE": 'a "\\b', "MEP_TIMEUOT_MS": "1"}
        environment.pop("MEP_RANK", None)
        text, found = (subprocess.run([os.path.join(BIN, "mep_info"), *words], capture_output=True, text=True,
                                      timeout=60, check=True, env=environment).stdout
                       for words in ([], ["--json"]))  # fmt: skip
        found = json.loads(found)
        self.assertEqual(list(found), ["version", "build", "transports", "topology", "gpus", "cores", "limits",
                                       "environment", "unknown_variables"])  # fmt: skip
        lines = [f"MEP {found['version']}", *(f"! {line}" for line in found["unknown_variables"])]
        for section in list(found)[1:-2]:
            lines += [f"{line['name']} {line['value']}" for line in found[section]]
        for line in found["environment"]:
            lines.append(f"{'* ' if line['set'] else ''}{line['name']} {line['value'] or '-'} {line['help']}")
        titles = ("Build", "Transports, ", "Topology", "GPUs", "Cores of", "Limits", "Environment variables, ")
        text = re.sub(r"\n {25}(?=\S)", " ", text)  # lines that are wrapped
        printed = [line for line in text.splitlines() if line and not line.startswith(titles)]
        self.assertEqual(*(sorted(" ".join(line.split()) for line in side) for side in (lines, printed)))


if __name__ == "__main__":
    BIN = sys.argv[1]
    MPIRUN = sys.argv[2:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
