#!/usr/bin/env python3
"""Times how long survivors take to learn that a rank of their host was killed.

    python3 perf/kill_latency.py [--gb 2] [--torch | --gpu] [--ranks 3] [--kills 50]

Each kill is a job of its own: all ranks repeat an allreduce of 8 bytes, and rank 1, which like the others has filled so
many GB, is killed. Prints the time from the kill to the error on the last survivor: the median, the 90th percentile and
the worst. --torch: the memory is a tensor's, and processes have PyTorch's threads. --gpu: it lies on a GPU, one a rank, where the
allreduce runs, too.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMIT_S = 120


def rank_of_hosts(gb, with_torch):
    """A communicator, one reduction on it, and the memory to be kept."""
    items = int(gb * 2**28)
    if with_torch:
        import torch
        memory = torch.ones(items)
        memory[:1_000_000].sum()
    import numpy as np
    import mep
    if not with_torch:
        memory = np.ones(items, np.float32)
    comm = mep.init()
    value = np.ones(2, np.float32)
    return comm, lambda: comm.allreduce(value, op="max"), memory


def rank_of_gpus(gb):
    import torch
    import mep
    comm = mep.init(device="by_rank")
    device = torch.device("cuda", comm.device)
    torch.cuda.set_device(device)
    memory = torch.ones(max(1, int(gb * 2**28)), device=device)
    value = torch.ones(2, device=device)

    def reduce():
        comm.allreduce(value, op="max", stream=torch.cuda.current_stream())
        torch.cuda.synchronize()
        comm.async_result()

    return comm, reduce, memory


def be_a_rank(options, folder):
    comm, reduce, memory = rank_of_gpus(options.gb) if options.gpu else rank_of_hosts(options.gb, options.torch)
    import mep
    reduce()
    (folder / str(comm.rank)).touch()
    try:
        while True:
            reduce()
    except mep.PeerFailedError:
        print(time.monotonic(), flush=True)
    os._exit(0 if memory is not None else 1)  # the other survivor may have left


def kill_once(options, number):
    with tempfile.TemporaryDirectory() as folder:
        variables = {"MEP_JOB": f"kill-{os.getpid()}-{number}", "MEP_SIZE": str(options.ranks), "MEP_LOG": "error"}
        command = [sys.executable, "-B", __file__, "--rank", folder, "--gb", str(options.gb)] + ["--torch"] * options.torch + \
            ["--gpu"] * options.gpu
        ranks = [subprocess.Popen(command, env={**os.environ, **variables, "MEP_RANK": str(rank)}, stdout=subprocess.PIPE,
                                  text=True) for rank in range(options.ranks)]
        limit = time.monotonic() + LIMIT_S
        while len(os.listdir(folder)) < options.ranks:
            if time.monotonic() > limit or any(rank.poll() is not None for rank in ranks):
                sys.exit("the ranks did not start")
            time.sleep(0.01)
        time.sleep(0.4 + 0.037 * (number % 7))  # at different moments of a heartbeat
        killed = time.monotonic()
        ranks[1].kill()
        told = [float(rank.communicate(timeout=LIMIT_S)[0]) for index, rank in enumerate(ranks) if index != 1]
        ranks[1].communicate()
        return (max(told) - killed) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gb", type=float, default=0.0)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rank", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        be_a_rank(options, options.rank)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "bindings/python"), os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("MEP_LIBRARY", str(ROOT / "build/release/lib/libmep.so"))
    times = sorted(kill_once(options, number) for number in range(options.kills))
    where = " with PyTorch" if options.torch else " on GPUs" if options.gpu else ""
    print(f"{options.ranks} ranks of {options.gb:g} GB{where}, {len(times)} kills, load "
          f"{os.getloadavg()[0]:.1f}: {statistics.median(times):.2f} ms (p50), {times[int(0.9 * len(times))]:.2f} (p90), "
          f"{times[-1]:.2f} (worst)")


if __name__ == "__main__":
    main()
