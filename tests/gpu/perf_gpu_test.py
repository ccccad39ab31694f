#!/usr/bin/env python3
"""mep_perf --device cuda on a GPU: every operation as threads and as processes, --check and the JSON rows.

No time is judged, but a few are printed. Exits with 77 where mep_perf was built without CUDA or no GPU can
be used, and with 1 where a check fails.

Usage: perf_gpu_test.py BIN_DIR [--quick]
"""

import json
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
BIN = sys.argv[1]
QUICK = "--quick" in sys.argv
SIZES = ["-b", "4", "-e", "4M", "-f", "1024"]
LAYER = ["--tokens", "0,1,33", "--hidden", "1040", "--experts", "16", "--topk", "3"]
ONE_BLOCK = ["-i", "1"]
COLLECTIVES = [
    "broadcast", "allgather", "allreduce", "reduce", "gather", "scatter", "reduce_scatter", "alltoall",
]  # fmt: skip
FIELDS = {
    "op", "ranks", "bytes", "dtype", "mep_us_p50", "mep_us_p99", "algbw_gbps", "busbw_gbps", "errors",
}  # fmt: skip
LAYER_FIELDS = {"mode", "routing", "preset", "tokens", "hidden", "experts", "topk", "imbalance"}


def run(words, launcher=()):
    command = [*launcher, os.path.join(BIN, "mep_perf"), *words, "--device", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def checked(words, ranks, rows, launcher=(), floor=True):
    """Runs with --check; the number of rows and their fields must be as said."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        status, output, errors = run(
            [*words, *ONE_BLOCK, "--check", "--json", path], launcher
        )
        where = f"{' '.join(words)}, {ranks} ranks\n{output}{errors}"
        assert status == 0, f"exit status {status}: {where}"
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    assert len(found) == rows, where
    for row in found:
        layer = LAYER_FIELDS if row["op"] in ("dispatch", "combine", "moe") else set()
        fields = FIELDS | layer | ({"floor_us"} if row.get("floor_us") else set())
        assert set(row) == fields and row["ranks"] == ranks and row["errors"] == 0, (row, where)
        assert not floor or row["bytes"] == 0 or row["floor_us"] > 0, (row, where)
        assert row["mep_us_p50"] > 0, (row, where)


def threads(words, ranks, rows):
    with_floor = ranks == 8
    words = [*words, "--threads", str(ranks), *([] if with_floor else ["--no-machine"])]
    checked(words, ranks, rows, floor=with_floor)


def processes(words, ranks, rows):
    launcher = [os.path.join(BIN, "mep_run"), "-n", str(ranks)]
    checked([*words, "--no-machine"], ranks, rows, launcher, floor=False)


def every_operation(run_them, ranks, sizes, layer):
    run_them(["barrier"], ranks, 1)
    for op in COLLECTIVES:
        run_them([op, *sizes], ranks, 3)
    for op in ("dispatch", "combine", "moe"):
        run_them([op, *layer, "--wire", "fp8"], ranks, 3)


def main():
    status, _, errors = run(["barrier", "--threads", "1", *ONE_BLOCK])
    if status != 0:
        reason = errors.strip()
        skipped = "without CUDA" in reason or "no usable GPU" in reason
        print(f"{'skipped' if skipped else 'FAILED'}: {reason}")
        return SKIPPED if skipped else 1
    every_operation(threads, 8, SIZES, LAYER)
    threads(["moe", *LAYER, "--slotted", "--buffers", "2"], 4, 3)
    for op in ("dispatch", "combine", "moe"):
        threads([op, *LAYER, "--mode", "ht", "--wire", "fp8" if op == "moe" else "bf16"], 8, 3)
    # Several blocks read the routing.
    threads(["moe", "--tokens", "1500", "--hidden", "512", "--experts", "64", "--topk", "8", "--mode", "ht"], 2, 1)
    threads(["allreduce", *SIZES, "--dtype", "e4m3", "--reduce", "max"], 4, 3)
    if QUICK:
        print("  4, 8 ranks as threads: every operation of mep_perf --device cuda, 0 errors")
    else:
        every_operation(threads, 1, SIZES, LAYER)
        every_operation(threads, 2, SIZES, LAYER)
        for op in ("dispatch", "combine", "moe"):
            threads([op, *LAYER], 8, 3)
        print("  1, 2, 4, 8 ranks as threads: every operation of mep_perf --device cuda, 0 errors")
    small = [*LAYER[2:], "--tokens", "33", "--wire", "fp8"]
    processes(["allreduce", "-b", "4", "-e", "4K", "-f", "1024"], 2, 2)
    processes(["moe", *small], 2, 1)
    if QUICK:
        print("  2 processes under mep_run: allreduce and moe, 0 errors")
        return 0
    for op in COLLECTIVES:
        processes([op, "-b", "4", "-e", "4K", "-f", "1024"], 2, 2)
    for op in ("dispatch", "combine"):
        processes([op, *small], 2, 1)
    processes(["moe", *small], 4, 1)
    print("  2, 4 processes under mep_run: every operation, 0 errors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
