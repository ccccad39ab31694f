#!/usr/bin/env python3
"""mep_perf suite: tables of rows that are written here, children that fail, hang or are interrupted by a
launcher that is written here, and one small run by the real one. No time is judged.

Usage: mep_perf_suite_test.py BIN_DIR [MPIRUN WORD..]
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

BIN = ""
MPIRUN = []

# A launcher that measures nothing: MEP takes as many microseconds as there are bytes or tokens, the peer twice
# that. At 64 bytes reduce fails, gather hangs, and scatter interrupts the suite. Words of each child go to LOG.
LAUNCHER = """#!/usr/bin/env python3
import json, os, signal, sys, time
words = sys.argv[1:]
if words == ["--version"]:
    print("mpirun (Open MPI) 9.9")
    sys.exit()
words = words[words.index("-n") + 1:]
with open(os.path.join(os.path.dirname(__file__), "log"), "a") as log:
    log.write(" ".join([words[0], *words[2:]]) + "\\n")
ranks, op = int(words[0]), words[2]
value = lambda name: words[words.index(name) + 1]
if "--json" not in words:
    print("mep_perf: rank 0: there is no shared memory" if os.path.exists(__file__ + ".broken") else "")
    sys.exit(os.path.exists(__file__ + ".broken"))
rows = []
def write(size, **more):
    rows.append({"op": op, "ranks": ranks, "bytes": size, "mep_us_p50": size + 1,
                 value("--vs") + "_us_p50": 2 * size + 2, "ratio": 0.5, **more})
    with open(value("--json"), "w") as file:
        json.dump(rows, file)
if op == "moe":
    for tokens in value("--tokens").split(","):
        write(int(tokens) * 1000, dtype=value("--wire"), tokens=int(tokens))
elif op == "barrier":
    write(0)
else:
    size = int(value("-b"))
    while size <= int(value("-e")):
        if size == 64 and op == "reduce":
            print("mep_perf: rank 1: broken on purpose")
            print("-----\\nmpirun: a rank has exited\\n-----")
            sys.exit(3)
        if size == 64 and op == "gather":
            time.sleep(1000)
        if size == 64 and op == "scatter":
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(1000)
        write(size)
        size *= int(value("-f"))
"""


def row(op, ranks, size, run, mep, mpi, **more):
    return {"run": run, "op": op, "ranks": ranks, "bytes": size, "dtype": "float32",
            "mep_us_p50": mep, "mpi_us_p50": mpi, "ratio": mep / mpi, **more}  # fmt: skip


CANNED = [
    row("barrier", 2, 0, 1, 1.0, 2.0),
    row("allreduce", 2, 8, 1, 1.0, 4.0),
    row("allreduce", 2, 2 << 20, 1, 300.0, 200.0),
    row("moe", 2, 99, 1, 10.0, 40.0, tokens=1) | {"dtype": "fp8"},
    row("barrier", 2, 0, 2, 1.004, 1.0),
    row("allreduce", 2, 8, 2, 3.0, 4.0),
    row("allreduce", 2, 2 << 20, 2, 100.0, 200.0),
    row("barrier", 2, 0, 3, 2.004, 2.0),
    row("allreduce", 2, 8, 3, 2.0, 4.0),
    row("allreduce", 2, 2 << 20, 3, 280.0, 200.0, mep_switches_voluntary=0.5, mep_switches_involuntary=2.0,
        mpi_switches_voluntary=0, mpi_switches_involuntary=120.0),
    row("allreduce", 8, 8, 1, 2.0, 4.0),
    {"run": 2, "op": "allreduce", "ranks": 8, "bytes": 8, "dtype": None, "failed": "exit status 1: no memory"},
]  # fmt: skip
TABLES = """### 2 ranks

| MEP / MPI | no data | 8 B | 2 MiB |
| --- | --- | --- | --- |
| barrier | **1.002 (1.004)** |  |  |
| allreduce |  | 0.50 (0.75) | **1.40 (1.50)** |

| MEP / MPI | 1 token |
| --- | --- |
| moe fp8 | 0.25 (0.25) |

### 8 ranks

| MEP / MPI | 8 B |
| --- | --- |
| allreduce | failed |

A cell is the ratio of the p50 times, the median of 3 runs (the worst); bold: MPI is faster.

### Above 1.0 in the median: 2 of 5 cells

| ranks | operation | size | MEP µs | MPI µs | ratio (worst) | MEP switches | MPI switches |
| --- | --- | --- | --- | --- | --- | --- | --- |
| 2 | barrier | no data | 2.00 | 2.00 | 1.002 (1.004) | - | - |
| 2 | allreduce | 2 MiB | 280 | 200 | 1.40 (1.50) | 0.50+2.00 | 0.00+120 |

Times and switches are those of the run whose ratio is the median; switches are voluntary + involuntary
context switches of a rank in one operation.

### Failed: 1 of 5 cells

- allreduce, 8 B, 8 ranks: run 2: exit status 1: no memory

"""


def run(words, status=0, environment=None, program="mep_perf_suite"):
    words = [os.path.join(BIN, program), *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False,
                          env={**os.environ, **(environment or {})})  # fmt: skip
    if done.returncode != status:
        raise AssertionError(f"{words}\nexit status {done.returncode}, not {status}\n{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


class SuiteTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.launcher = self.path("mpirun")
        self.write("mpirun", LAUNCHER)
        os.chmod(self.launcher, 0o755)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def suite(self, words, status=0, environment=None):
        return run([*words, "--launcher", self.launcher, "--json", self.path("rows.json")], status, environment)

    def test_tables(self):
        self.write("canned.json", json.dumps(CANNED))
        output, _ = run(["--from", self.path("canned.json"), "--output", self.path("out")], status=1)
        self.assertEqual(output.strip(), TABLES.strip())
        self.assertEqual(self.read("out/suite.md").strip(), TABLES.strip())
        self.assertEqual(json.loads(self.read("out/suite.json")), CANNED)
        picture = [name for name in os.listdir(self.path("out")) if name.startswith("mep_perf.")]
        self.assertEqual(len(picture), 1)
        if picture == ["mep_perf.svg"]:
            text = self.read("out/mep_perf.svg")
            for words in (">2 ranks<", ">8 ranks<", ">moe fp8<", ">barrier<"):
                self.assertEqual(text.count(words), 1)
            self.assertEqual(text.count(">time of MEP / time of MPI<"), 2)

    def test_plot_of_one_run(self):
        text = self.draw([{key: row[key] for key in row if key != "run"} for row in CANNED[:3]])
        for words in (">time, median (µs)<", ">time of MEP / time of MPI<", ">size (bytes of a rank)<"):
            self.assertIn(words, text)

    def draw(self, rows):
        self.write("rows.json", json.dumps(rows))
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plot.py")
        subprocess.run([sys.executable, script, "rows.json", "-o", "rows.svg"], cwd=self.folder, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        return self.read("rows.svg")

    def test_panels_of_a_plot(self):
        sizes = [0, 8, 1024, 64 << 10, 16 << 20]
        rows = [{"op": f"op{op}", "ranks": ranks, "bytes": size, "dtype": "int8", "mep_us_p50": 5.0, "mpi_us_p50": 7.0}
                for op in range(4) for ranks in (2, 4) for size in sizes if (op, ranks) != (1, 4)]  # fmt: skip
        text = self.draw(rows)
        # 8 curves of 2 ranks and 6 of 4 ranks, at most 6 in a panel.
        self.assertEqual([text.count(f">{ranks} ranks<") for ranks in (2, 4)], [2, 2])
        self.assertEqual(text.count("<polyline"), 14)
        for words in ("0 B", "8 B", "64 B", "512 B", "32 KiB", "16 MiB"):
            self.assertEqual(text.count(f">{words}<"), 4, words)
        # A curve has the same colour wherever it is drawn.
        colors = re.findall(r'height="10" fill="(#\w+)"/>\n<text [^>]*>(op\d, \w+)<', text)
        self.assertEqual((len(colors), len(set(colors))), (14, 8))
        # Types that differ are curves of their own.
        rows = [{**row, "dtype": dtype} for row in rows for dtype in ("int8", "bf16") if row["op"] == "op0"]
        self.assertIn(">op0 bf16, MPI<", self.draw(rows))

    def test_turns(self):
        words = ["--ranks", "2,3", "--ops", "barrier,allreduce,pingpong,moe", "-b", "8", "-e", "64", "-f", "8",
                 "--moe-tokens", "1,16", "--runs", "2"]  # fmt: skip
        output, errors = self.suite([*words, "--seconds", "0.5"])
        children = [line.split() for line in self.read("log").splitlines()]
        self.assertEqual(children[0][:2], ["2", "barrier"])  # whether two ranks start at all
        one_run = [["2", "barrier"], ["2", "allreduce"], ["2", "pingpong"], ["2", "moe"], ["2", "moe"],
                   ["3", "barrier"], ["3", "allreduce"], ["3", "moe"], ["3", "moe"]]  # fmt: skip
        self.assertEqual([child[:2] for child in children[1:]], 2 * one_run)
        for child in children[1:]:
            text = " ".join(child)
            self.assertIn("--vs mpi", text)
            self.assertIn("--seconds 0.5", text)
            if child[1] == "moe":
                self.assertIn("--no-expert --hidden 7168 --topk 8 --experts 256 --wire", text)
                self.assertIn("--tokens 1,16", text)
            elif child[1] != "barrier":
                self.assertIn("-b 8 -e 64 -f 8", text)
        self.assertIn("| 0.50 (0.50) |", output)
        self.assertIn("median of 2 runs", output)
        self.assertIn("Above 1.0 in the median: 0 of 16 cells", output)
        self.assertIn("32 cells in 18 children, about", errors)
        self.assertIn("run 2 of 2: moe fp8, 3 ranks; cells 31 to 32 of 32; about", errors)
        rows = json.loads(self.read("rows.json"))
        self.assertEqual([row["run"] for row in rows], 16 * [1] + 16 * [2])

    def test_nccl(self):
        words = ["--vs", "nccl", "--ops", "allreduce,alltoall", "-b", "8", "-e", "64", "--runs", "2"]
        gpus = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4"}
        output, errors = self.suite([*words, "--dtype", "bfloat16"], environment=gpus)
        children = self.read("log").splitlines()
        self.assertTrue(children[0].startswith("2 allreduce -b 8 -e 8 --device cuda --vs nccl "), children[0])
        self.assertEqual([child.split()[:2] for child in children[1:]],
                         2 * [["2", "allreduce"], ["2", "alltoall"], ["4", "allreduce"], ["4", "alltoall"]])  # fmt: skip
        for child in children[1:]:
            self.assertIn("--device cuda --vs nccl", child)
            self.assertIn("-b 8 -e 64 -f 8 --dtype bfloat16", child)
            self.assertNotIn("--switches", child)
        for words in ("## MEP compared with NCCL", "| MEP / NCCL | 8 B | 64 B |", "| alltoall | 0.50 (0.50) |",
                      "bold: NCCL is faster"):  # fmt: skip
            self.assertIn(words, output)
        self.assertIn("on GPUs that are free", errors)
        rows = json.loads(self.read("rows.json"))
        slow = [{**row, "nccl_us_p50": row["mep_us_p50"] / 2} for row in rows]
        self.write("slow.json", json.dumps(slow))
        output, _ = run(["--from", self.path("slow.json")])
        self.assertIn("| 4 | alltoall | 64 B | 65.0 | 32.5 | 2.00 (2.00) |\n", output)
        self.assertNotIn("switches", output)

    def test_nccl_without_gpus(self):
        for visible, text in (("0", "here is 1"), ("", "here are 0")):
            _, errors = self.suite(["--vs", "nccl"], 1, {"CUDA_VISIBLE_DEVICES": visible})
            self.assertIn(f"NCCL's ranks have a GPU each, and {text}", errors)

    def test_failures(self):
        words = ["--ranks", "2", "--ops", "reduce,gather,broadcast", "-e", "4K", "-f", "8", "--runs", "2",
                 "--limit", "15"]  # fmt: skip
        output, _ = self.suite(words, status=1)
        for op in ("reduce", "gather"):
            self.assertIn(f"| {op} | 0.50 (0.50) | failed | 0.50 (0.50) | 0.50 (0.50) |", output)
        self.assertIn("| broadcast | 0.50 (0.50) | 0.50 (0.50) | 0.50 (0.50) | 0.50 (0.50) |", output)
        self.assertIn("Failed: 2 of 12 cells", output)
        self.assertIn("- reduce, 64 B, 2 ranks: run 1: exit status 3: mep_perf: rank 1: broken on purpose", output)
        self.assertIn("- gather, 64 B, 2 ranks: run 1: no end within 15 s: it said nothing", output)
        # The size that failed is left out of the second run.
        children = [line.split(" --seconds")[0] for line in self.read("log").splitlines()]
        sizes = [child[child.index("-b"):] for child in children if child.startswith("2 reduce")]
        self.assertEqual(sizes, ["-b 8 -e 4096 -f 8", "-b 512 -e 4096 -f 8", "-b 8 -e 8 -f 8",
                                 "-b 512 -e 4096 -f 8"])  # fmt: skip

    def test_interrupted(self):
        output, errors = self.suite(["--ranks", "2", "--ops", "broadcast,scatter", "-e", "64", "-f", "8"], 130)
        self.assertIn("interrupted", errors)
        self.assertIn("| broadcast | 0.50 (0.50) | 0.50 (0.50) |", output)
        self.assertIn("| scatter | - | - |", output)
        self.assertEqual(len(json.loads(self.read("rows.json"))), 2)

    def test_ranks_do_not_start(self):
        self.write("mpirun.broken", "")
        _, errors = self.suite(["--ranks", "2"], status=1)
        self.assertIn("two ranks cannot be started: exit status 1: mep_perf: rank 0: there is no shared memory", errors)
        _, errors = run(["--mpirun", self.path("nowhere")], status=1)
        self.assertIn("nowhere is not found: install Open MPI", errors)

    def test_wrong_command_lines(self):
        for words, message in (
            (["--vs", "gloo"], "invalid choice: 'gloo'"),
            (["--vs", "nccl", "--ops", "barrier"], "unknown operation 'barrier'; there are broadcast"),
            (["--ops", "barrier,sort"], "unknown operation 'sort'; there are barrier broadcast"),
            (["--ranks", "1"], "'1' is no list of numbers from 2"),
            (["--ranks", "2,,4"], "'2,,4' is no list"),
            (["--moe-tokens", "0"], "'0' is no list"),
            (["-b", "7Q"], "'7Q' is no number of bytes"),
            (["-b", "6"], "-b is no multiple of 4"),
            (["-b", "64", "-e", "8"], "-b is larger than -e"),
            (["-e", "2G"], "-e is larger than 1G"),
            (["-f", "1"], "-f is smaller than 2"),
            (["--runs", "0"], "'0' is no number above 0"),
            (["--seconds", "nan"], "'nan' is no number above 0"),
        ):
            _, errors = run(words, status=2)
            self.assertIn(message, errors)
        for text in ("not JSON", "[1]", '{"op": 1}'):
            self.write("wrong.json", text)
            _, errors = run(["--from", self.path("wrong.json")], status=1)
            self.assertIn("wrong.json is no JSON file of mep_perf", errors)
        _, errors = run(["--mpirun", self.launcher, "--json", "/nowhere/x.json"], status=1)
        self.assertIn("/nowhere/x.json", errors)

    def test_by_mep_perf(self):
        if not MPIRUN:
            _, errors = run(["suite"], status=1, program="mep_perf")
            self.assertIn("built without MPI", errors)
            return
        _, errors = run(["suite"], status=1, program="mep_perf", environment={"MEP_RANK": "0"})
        self.assertIn("run it without mpirun and mep_run", errors)
        words = ["suite", "--vs", "mpi", "--ranks", "2", "--ops", "barrier,allreduce,moe", "-b", "8", "-e", "64",
                 "-f", "8", "--moe-tokens", "1", "--runs", "1", "--seconds", "0.01"]  # fmt: skip
        path = self.path("rows.json")
        output, _ = run([*words, "--mpirun", MPIRUN[0], "--json", path], program="mep_perf")
        self.assertIn("2 ranks", output)
        self.assertIn("of 5 cells", output)
        rows = json.loads(self.read("rows.json"))
        self.assertEqual([(row["op"], row["bytes"]) for row in rows[:3]],
                         [("barrier", 0), ("allreduce", 8), ("allreduce", 64)])  # fmt: skip
        for row in rows:
            self.assertGreater(row["mep_us_p50"], 0)
            self.assertGreater(row["mpi_us_p50"], 0)
            for side in ("mep", "mpi"):
                for kind in ("voluntary", "involuntary"):
                    self.assertGreaterEqual(row[f"{side}_switches_{kind}"], 0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    BIN = sys.argv[1]
    MPIRUN = sys.argv[2:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
