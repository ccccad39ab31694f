#!/usr/bin/env python3
"""PyTorch's own distributed_test.py over MEP: upstream.py RANKS [CASE...].

The cases ask for backends by name, so MEP is registered as "gloo" there, and runs what applies to a backend of tensors
of the CPU. Each case is a process of its own, with a limit. MEP_TEST_REAL_GLOO=1 runs them with Gloo, for comparison.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 300
# Cases that a backend like Gloo is asked, and that MEP does not pass.
LEFT_OUT = {
    "test_ddp_logging_data_cpu": "DDP's log calls every backend that a program registers \"custom\"",
    "test_sparse_all_reduce_sum": "sparse tensors are refused",
}


def case_names():
    return [line for line in (HERE / "upstream_cases.txt").read_text().split("\n") if line and line[0] != "#"]


def start(ranks, name):
    folder = tempfile.mkdtemp(prefix="mep_upstream_")
    for part in ("barrier", "test_dir", "init_dir"):
        os.makedirs(os.path.join(folder, part))
    environment = {**os.environ, "BACKEND": "gloo", "WORLD_SIZE": ranks, "TEMP_DIR": folder,
                   "INIT_METHOD": f"file://{folder}/init_dir/store"}
    try:
        done = subprocess.run([sys.executable, "-B", HERE / "upstream_case.py", f"UpstreamTest.{name}"], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False)
        return done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        return "no end", (error.stdout or b"").decode(errors="replace")


def main():
    if len(sys.argv) < 2 or not sys.argv[1].isdigit():
        sys.exit("usage: upstream.py RANKS [CASE...]")
    ranks, cases = sys.argv[1], sys.argv[2:] or case_names()
    counts = {"passed": 0, "skipped": 0, "left out": 0, "failed": 0}
    for number, name in enumerate(cases, 1):
        if name in LEFT_OUT and len(sys.argv) < 3:
            outcome, why = "left out", LEFT_OUT[name]
        else:
            code, output = start(ranks, name)
            last = output.strip().rsplit("\n", 1)[-1]
            outcome = "failed" if code != 0 else "skipped" if "skipped" in last else "passed"
            why = "" if outcome == "passed" else last if code == 0 else f"{code}\n{output[-6000:]}"
        counts[outcome] += 1
        print(f"{number}/{len(cases)} {name}: {outcome} {why}".rstrip(), flush=True)
    print(f"{ranks} ranks: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return counts["failed"] != 0


if __name__ == "__main__":
    sys.exit(main())
