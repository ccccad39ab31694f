#!/usr/bin/env python3
"""Starts again: groups of other ranks, processes and orders over a store that is kept and over new ones, and restarts by
torchrun. 60 s."""
import datetime
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import launch
from backend_test import expect

# Processes in the order of their ranks, start by start. Processes 3 and 4 are new when they come.
STARTS = {
    "first": [0, 1, 2],
    "the same ranks": [0, 1, 2],
    "fewer": [0, 2],
    "more": [0, 1, 2],
    "one new process": [0, 3, 2],
    "another order": [2, 0, 3],
    "one new process as rank 0": [4, 2, 0],
}
# Rank 0 of the start before these is still in its world while the other ranks start.
LEAVES_LATE = ("fewer", "more", "another order")


def last_one(folder, name, rank, members, process):
    """Rank 0 comes when all others are about to start, so that they find the record of the start before."""
    if rank > 0:
        (folder / f"{name}.{process}").touch()
        return
    for other in members[1:]:
        launch.wait_for(folder / f"{name}.{other}")


def rank_starts():
    import torch
    import torch.distributed as dist
    import mep.torch
    process, folder = int(os.environ["RANK"]), pathlib.Path(os.environ["TEST_FOLDER"])
    kept = dist.FileStore(str(folder / "kept"))
    names = list(STARTS)
    for number, (name, members) in enumerate(STARTS.items()):
        if number > 0:
            launch.wait_for(folder / f"{names[number - 1]}.begun")  # two starts at one time are one with too many ranks
        if process in members:
            rank, size = members.index(process), len(members)
            last_one(folder, name, rank, members, process)
            where = {"store": kept} if os.environ["STORE"] == "kept" else {"init_method": f"file://{folder}/{number}"}
            dist.init_process_group("mep", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60), **where)
            tensor = torch.tensor([10.0 ** process])
            dist.all_reduce(tensor)
            expect(tensor, torch.tensor([sum(10.0 ** member for member in members)]), name)
            if rank == 0:
                (folder / f"{name}.begun").touch()
                for later in names[number + 1:number + 2]:
                    for other in set(STARTS[later][1:]) - {process} if later in LEAVES_LATE else ():
                        launch.wait_for(folder / f"{later}.{other}")
            dist.destroy_process_group()


def rank_replaced_late():
    """Process 2 waits in vain to replace rank 1 of the first start. Nobody does in the second, which process 3 leaves."""
    import torch
    import torch.distributed as dist
    import mep.torch
    process, folder = int(os.environ["RANK"]), pathlib.Path(os.environ["TEST_FOLDER"])
    kept = dist.FileStore(str(folder / "kept"))
    starts = (1, 3)

    def begin(rank):
        dist.init_process_group("mep", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60), store=kept)

    if process == 2:
        launch.wait_for(folder / "lost.1")
        os.environ["MEP_JOIN"] = "1"
        threading.Thread(target=lambda: (launch.wait_for(folder / "begins.3"), os._exit(0)), daemon=True).start()
        begin(1)
        raise AssertionError("nobody has called recover()")
    if process in starts:
        launch.wait_for(folder / f"begins.{process}")
        begin(1)
        dist.barrier()
        os._exit(0)
    for other in starts:
        (folder / f"begins.{other}").touch()
        begin(0)
        dist.barrier()
        try:
            dist.barrier()
            raise AssertionError("a barrier without rank 1")
        except dist.DistBackendError:
            (folder / f"lost.{other}").touch()
        backend = mep.torch.backend_of(dist.group.WORLD)
        if other == 1:
            while not backend.peers_are_ready([1])[0]:
                time.sleep(0.01)
        else:
            expect(torch.tensor(backend.peers_are_ready([1])), torch.tensor([False]), "the second start")
        dist.destroy_process_group()


def rank_under_torchrun():
    """Rank 1 ends in the first attempt's world, rank 2 before the second one's start; the third succeeds."""
    import torch
    import torch.distributed as dist
    import mep.torch
    rank, world, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
    if attempt == 1 and rank == 2:
        sys.exit(4)
    members = list(range(2 if attempt == 1 else world))
    last_one(pathlib.Path(os.environ["TEST_FOLDER"]), f"attempt{attempt}", rank, members, rank)
    dist.init_process_group("mep", timeout=datetime.timedelta(seconds=60))
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor)
    expect(tensor, torch.tensor([world * (world + 1) / 2]), "attempt", attempt)
    if attempt == 0:
        os._exit(3 if rank == 1 else 0)
    dist.destroy_process_group()
    print(f"attempt {attempt} of rank {rank} succeeded", flush=True)


class Restarts(unittest.TestCase):
    def starts(self, store):
        launch.run(__file__, "starts", 1 + max(max(members) for members in STARTS.values()), STORE=store)

    def test_starts_over_one_store(self):
        self.starts("kept")

    def test_starts_over_new_stores(self):
        self.starts("new")

    def test_a_replacement_of_an_earlier_start(self):
        launch.run(__file__, "replaced_late", 4)

    def torchrun(self, *options):
        with tempfile.TemporaryDirectory(prefix="mep_torch_") as folder:
            done = subprocess.run([sys.executable, "-B", "-m", "torch.distributed.run", *options, "--nproc-per-node=3", "--max-restarts=2",
                                   "--monitor-interval=0.1", __file__, "rank", "under_torchrun"],
                                  env={**os.environ, "OMP_NUM_THREADS": "1", "TEST_FOLDER": folder},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=launch.LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:])
        for rank in range(3):
            self.assertIn(f"attempt 2 of rank {rank} succeeded", done.stdout)

    def test_torchrun_static(self):
        self.torchrun("--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={launch.free_port()}")

    def test_torchrun_c10d(self):
        self.torchrun("--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{launch.free_port()}", "--rdzv-id=restarts")

    def test_torchrun_standalone(self):
        self.torchrun("--standalone")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
