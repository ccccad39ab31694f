"""./dev gpu-test: rows of a table, "result  name  seconds", and one log of everything. It needs this tree,
nvcc, CMake, Python and a GPU, and no package of MEP's."""

from __future__ import annotations

import os
import re
import subprocess
import time

from console import ROOT, die, has, jobs, note, output_of, read_lines, run_logged, step
from trees import gpu_architecture, strictness

TREE = ROOT / "build/gpu-test"
LOG = TREE / "log"
BIN = ROOT / "build/release/bin"
PROGRAMS = ROOT / "build/release/gpu-tests"
SKIPPED = 77
LIMIT_SECONDS = 300
TEST_ROW = re.compile(r"^ *\d+/\d+ Test +#\d+: (\S+) .*?(\d+)\.\d+ sec")
# The probe's answers, benchmarks, what tests say they did, and what failed.
FINDING = re.compile(
    r"^(bench|table|GPU|atomics|streams|cudaMemcpyPeer|one-way|beside|MEP_TEST_SEED|python:|signals:|"
    r"noticed|NOT)|cases +[0-9]+ failed|^  [0-9, ]+ (ranks|processes)|^  what|FAILED")
FIGURES = ["allreduce -b 1K -e 64M -f 256 --dtype bfloat16", "dispatch --tokens 128,512 --wire fp8",
           "combine --tokens 128,512", "moe --tokens 128,512 --wire fp8"]


class Table:
    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.rows: list[str] = []
        self.failed = False

    def row(self, name: str, seconds: float, status: int) -> None:
        result = {0: "passed", SKIPPED: "skipped"}.get(status, "FAILED")
        self.failed = self.failed or result == "FAILED"
        self.rows.append(f"{result:<8} {name:<34} {seconds:5.0f} s")

    def run(self, name: str, *command: object, env: dict[str, str] | None = None) -> None:
        """One program, at most five minutes, shown and kept in the log."""
        step(name)
        start = time.monotonic()
        status = run_logged(LOG, "timeout", "-k", 5, LIMIT_SECONDS, *command, env=env, append=True)
        self.row(name, time.monotonic() - start, status)


def logged_to(name: str, *command: object) -> int:
    with open(TREE / name, "w", encoding="utf-8") as log:
        return subprocess.run([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT,
                              check=False).returncode


def build_kernels(table: Table) -> bool:
    """tests/gpu alone, for the GPU of this machine, the builds that lack one thing included."""
    if not has("cmake"):
        die("cmake is missing")
    architecture = gpu_architecture() or "90"
    step(f"Building the GPU tests for sm_{architecture}")
    start = time.monotonic()
    generator = ["-G", "Ninja"] if has("ninja") else []
    if logged_to("configure.log", "cmake", *generator, *strictness(), "-S", "tests/gpu", "-B", TREE,
                 f"-DMEP_CUDA_ARCHITECTURES={architecture}-real",
                 f"-DMEP_GPU_TEST_ARCHITECTURES={architecture}-real") != 0:
        print(*read_lines(TREE / "configure.log"), sep="\n")
        table.row("configuring tests/gpu", time.monotonic() - start, 1)
        return False
    status = logged_to("build.log", "cmake", "--build", TREE, "-j", jobs())
    table.row("building tests/gpu", time.monotonic() - start, status)
    if status != 0:
        print(*read_lines(TREE / "build.log")[-40:], sep="\n")
    return status == 0


def kernels(table: Table) -> None:
    """Kernels by themselves, and benchmarks unless --quick is given."""
    if not build_kernels(table):
        return
    step("GPU tests")
    exclude = ["-E", "bench"] if table.quick else []
    seen = 0
    with open(LOG, "a", encoding="utf-8", errors="replace") as log, subprocess.Popen(
            ["ctest", "--test-dir", str(TREE), "-V", "--no-tests=error", *exclude],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            # "3/9 Test #3: gpu_coll_test ...   Passed   12.34 sec"
            match = TEST_ROW.match(line)
            if match:
                print(line, end="", flush=True)
                seen += 1
                status = 0 if " Passed " in line else SKIPPED if "***Skipped" in line else 1
                table.row(match.group(1), int(match.group(2)), status)
    if seen == 0:
        table.row("ctest in build/gpu-test", 0, 1)


def library(table: Table) -> None:
    """Tests of a whole library that was built with CUDA: tests through the C ABI and Python."""
    names = ("gpu_comm", "gpu_device_process", "gpu_ep_device", "gpu_ep_process")
    if not PROGRAMS.is_dir():
        note("build/release has no programs of tests/gpu: `./dev build` makes them; left out")
    for name in names:
        program = PROGRAMS / name
        if not os.access(program, os.X_OK):
            continue
        table.run(name, program)
        for reach in ("host", "queues"):
            table.run(f"{name}_{reach}", program, env={"MEP_CUDA_REACH": reach})
        if name.endswith("_process"):
            table.run(f"{name}_two_hosts", program, env={"GPU_TEST_HOSTS": "2", "MEP_TRANSPORTS": "tcp"})
    if (ROOT / "build/release/lib/libmep.so").exists():
        table.run("gpu_python", "python3", "tests/gpu/python_gpu_test.py",
                  env={"MEP_LIBRARY": "build/release/lib/libmep.so"})
    else:
        note("build/release has no libmep.so: the tests through the C ABI and mep_perf are left out")


def perf(table: Table) -> None:
    """mep_perf of such a build: its test, then figures unless --quick is given."""
    if not os.access(BIN / "mep_perf", os.X_OK) or "\n  GPU 0 " not in (output_of(BIN / "mep_info") or ""):
        return
    test = ["python3", "tests/gpu/perf_gpu_test.py", BIN]
    table.run("gpu_perf", *test, *(["--quick"] if table.quick else []))
    if table.quick:
        return
    for words in FIGURES:
        operation, *rest = words.split()
        table.run(f"mep_perf {operation}", BIN / "mep_perf", operation, *rest,
                  "--device", "cuda", "--threads", "8", "-i", "450")


def sanitizers(table: Table) -> None:
    """compute-sanitizer's three tools side by side: most of their time is the host's."""
    if table.quick:
        return
    program = TREE / "gpu-tests/gpu_coll_test"
    if not has("compute-sanitizer") or not os.access(program, os.X_OK):
        note("compute-sanitizer or gpu_coll_test is missing: left out")
        return
    tools = ("memcheck", "synccheck", "racecheck")
    step(f"compute-sanitizer: {' '.join(tools)}")
    start = time.monotonic()
    running = []
    for tool in tools:
        with open(TREE / f"{tool}.log", "w", encoding="utf-8") as log:
            running.append((tool, subprocess.Popen(
                ["timeout", "-k", "5", "150", "compute-sanitizer", "--tool", tool, "--error-exitcode", "9",
                 str(program), "--slice"], stdout=log, stderr=subprocess.STDOUT)))
    for tool, process in running:
        status = process.wait()
        table.row(tool, time.monotonic() - start, status)
        lines = [f"{tool}: {line}" for line in read_lines(TREE / f"{tool}.log")[-3:]]
        print(*lines, sep="\n", flush=True)
        with open(LOG, "a", encoding="utf-8") as log:
            print(*lines, sep="\n", file=log)


PARTS = {"kernels": kernels, "library": library, "perf": perf, "sanitizers": sanitizers}


def gpu_test(arguments: list[str]) -> int:
    """Everything, or the parts that are named."""
    parts = [word for word in arguments if word != "--quick"]
    if not set(parts) <= PARTS.keys():
        die(f"parts of gpu-test: {', '.join(PARTS)}")
    TREE.mkdir(parents=True, exist_ok=True)
    LOG.write_text("")
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    table = Table("--quick" in arguments)
    for part in parts or PARTS:
        PARTS[part](table)
    step(f"Findings and figures (everything is in {LOG.relative_to(ROOT)})")
    for line in read_lines(LOG):
        line = re.sub(r"^[0-9]+: ", "", line)
        if FINDING.search(line):
            print(line)
    step("Table")
    if has("nvidia-smi"):
        for line in (output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
                     or "").splitlines():
            print(f"GPU: {line}")
    print(*table.rows, sep="\n")
    return 1 if table.failed else 0
