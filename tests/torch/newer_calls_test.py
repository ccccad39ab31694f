#!/usr/bin/env python3
"""Calls that PyTorch's process groups have since 2.14: shrink_group, abort hooks, ephemeral timeouts; and the ends of operations
in the flight recorder of 2.15. 30 s; skips what the PyTorch that runs it lacks."""
import datetime
import json
import os
import pathlib
import signal
import sys
import time
import unittest

import launch
from backend_test import begin, expect
from launch import refused

FOLDER = pathlib.Path(os.environ.get("TEST_FOLDER", "."))


# --- In the ranks -------------------------------------------------------------------------------------

def check(dist, rank, size, group=None):
    """Collectives and messages of a group whose ranks are those of the default group."""
    import torch
    assert (dist.get_rank(group), dist.get_world_size(group)) == (rank, size), (dist.get_rank(group), size)
    tensor = torch.tensor([rank + 1])
    dist.all_reduce(tensor, group=group)
    expect(tensor, torch.tensor([size * (size + 1) // 2]), "sum of", size)
    if size > 1 and group is None:
        work = dist.isend(torch.tensor([rank]), (rank + 1) % size)
        came = torch.tensor([-1])
        dist.recv(came, (rank - 1) % size)
        work.wait()
        expect(came, torch.tensor([(rank - 1) % size]), "from the rank before")


def set_timeout(dist, **time):
    (getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout)(datetime.timedelta(**time))


def rank_dead():
    """Rank 1 of three is killed, then rank 1 of what is left; groups are made in between."""
    dist, rank, world = begin()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    refused(dist.DistBackendError, "rank 1", dist.barrier)
    dist.shrink_group([1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    rank //= 2
    check(dist, rank, 2)
    check(dist, rank, 2, dist.new_group([0, 1]))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    refused(dist.DistBackendError, "rank 1", dist.barrier)
    dist.shrink_group([1])
    check(dist, 0, 1)
    dist.destroy_process_group()


def rank_living():
    """The rank that is left out lives. The others call too late for the first try of one of them."""
    import torch
    dist, rank, world = begin()
    trio = dist.new_group([2, 1, 0])
    if rank == 2:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        refused(ValueError, "only ranks that stay", backend.shrink, [rank])
        for each in range(2):
            launch.wait_for(FOLDER / f"shrunk.{each}")
        refused(dist.DistBackendError, "mep", dist.all_reduce, torch.ones(1))
        dist.destroy_process_group()
        return
    # The default group stays as it is.
    pair = dist.shrink_group([2], group=trio)
    tensor = torch.tensor([rank + 1])
    pair.allreduce([tensor]).wait()
    expect(tensor, torch.tensor([3]), "a smaller group of the default group's ranks")
    assert (dist.get_world_size(), pair.rank(), pair.size()) == (3, rank, 2)
    if rank == 1:
        launch.wait_for(FOLDER / "failed")
    else:
        set_timeout(dist, milliseconds=300)
        refused(dist.DistBackendError, "mep", dist.shrink_group, [2])
        (FOLDER / "failed").touch()
        set_timeout(dist, seconds=60)
    dist.shrink_group([2])
    check(dist, rank, 2)
    dist.destroy_process_group()
    (FOLDER / f"shrunk.{rank}").touch()


def recorded(name=None):
    """The states of operations in the flight recorder, the oldest first."""
    from torch._C._distributed_c10d import _dump_fr_trace_json
    entries = json.loads(_dump_fr_trace_json(includeCollectives=True, onlyActive=False, backend="mep"))["entries"]
    return [(each["state"], each["retired"]) for each in entries if name is None or name in each["profiling_name"]]


def rank_recorder():
    """Ends of blocking and other operations, of messages, of those that nobody waits for, and of one that fails."""
    import torch
    dist, rank, world = begin()
    done = ("completed", True)
    for _ in range(3):
        dist.all_reduce(torch.ones(5))
    assert recorded("all_reduce") == 3 * [done], recorded()
    dist.all_reduce(torch.ones(5), async_op=True).wait()
    dist.barrier()
    assert recorded() == 5 * [done], recorded()
    # Rank 1 comes later; rank 0 leaves its work alone.
    if rank == 1:
        launch.wait_for(FOLDER / "begun")
    work = dist.all_reduce(torch.ones(5), async_op=True)
    if rank == 0:
        assert recorded("all_reduce")[-1] == ("scheduled", False), recorded()
        (FOLDER / "begun").touch()
    launch.wait_until(lambda: recorded("all_reduce")[-1] == done, "its end was not recorded")
    del work
    tensor = torch.zeros(1)
    dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    assert recorded("send" if rank == 0 else "recv") == [done], recorded()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    refused(dist.DistBackendError, "rank 1", dist.all_reduce, torch.ones(5))
    assert recorded("all_reduce")[-1] == ("scheduled", False), recorded()


def rank_abort_hook():
    """Told of a timeout, whose trace is in a file then, but not of a loss."""
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(FOLDER / "trace.")
    import torch
    dist, rank, world = begin()
    told = []
    dist.group.WORLD.register_abort_hook(1, lambda: told.append("first"))
    dist.group.WORLD.register_abort_hook(2, lambda: told.append("second"))
    dist.group.WORLD.unregister_abort_hook(2)
    dist.barrier()
    if rank == 1:
        launch.wait_for(FOLDER / "timed_out")
        os.kill(os.getpid(), signal.SIGKILL)
    set_timeout(dist, milliseconds=300)
    refused(dist.DistBackendError, "Timed out", dist.all_reduce, torch.ones(1))
    assert told == ["first"], told
    assert not has("FlightRecorderHook") or (FOLDER / "trace.0").is_file()
    (FOLDER / "timed_out").touch()
    set_timeout(dist, seconds=60)
    refused(dist.DistBackendError, "rank 1", dist.all_reduce, torch.ones(1))
    assert told == ["first"], told


def rank_ephemeral():
    """Extensions add up, and each is over with the first operation that it was for."""
    import torch
    dist, rank, world = begin()

    def add(**time):
        dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(datetime.timedelta(**time))

    def begun():
        return dist.all_reduce(torch.ones(1), async_op=True)

    def expect_timeout(work, seconds):
        # Works say it since PyTorch 2.15.
        assert not hasattr(work, "timeout") or work.timeout == datetime.timedelta(seconds=seconds), work.timeout

    if rank == 1:
        for step in range(3):
            launch.wait_for(FOLDER / f"step.{step}")
            for _ in range(2):
                dist.all_reduce(torch.ones(1))
        time.sleep(1)
        dist.all_reduce(torch.ones(1))
        return
    set_timeout(dist, seconds=100)
    works = [begun()]
    add(seconds=7)
    works.append(begun())
    add(seconds=5)
    works += [begun(), begun()]
    for work, seconds in zip(works, (100, 107, 112, 112)):
        expect_timeout(work, seconds)
    (FOLDER / "step.0").touch()
    works[1].wait()
    works.append(begun())
    expect_timeout(works[-1], 105)
    (FOLDER / "step.1").touch()
    works[2].wait()
    works.append(begun())
    expect_timeout(works[-1], 100)
    (FOLDER / "step.2").touch()
    for work in works:
        work.wait()
    set_timeout(dist, milliseconds=300)
    add(seconds=60)
    dist.all_reduce(torch.ones(1))  # rank 1 comes after a second
    work = begun()
    expect_timeout(work, 0.3)
    refused(dist.DistBackendError, "mep", work.wait)


# --- The tests ----------------------------------------------------------------------------------------

def has(name):
    import torch.distributed as dist
    return hasattr(dist.distributed_c10d, name) or hasattr(dist.ProcessGroup, name)


class NewerCalls(unittest.TestCase):
    @unittest.skipUnless(has("shrink_group"), "this PyTorch has no shrink_group")
    def test_shrink_without_dead_ranks(self):
        launch.run(__file__, "dead", 3, expected=[0, -signal.SIGKILL, -signal.SIGKILL])

    @unittest.skipUnless(has("shrink_group"), "this PyTorch has no shrink_group")
    def test_shrink_without_a_living_rank(self):
        launch.run(__file__, "living", 3)

    @unittest.skipUnless(has("FlightRecorderHook"), "this PyTorch does not attach its flight recorder")
    def test_flight_recorder(self):
        launch.run(__file__, "recorder", 2, expected=[0, -signal.SIGKILL])

    @unittest.skipUnless(has("register_abort_hook"), "this PyTorch has no abort hooks")
    def test_abort_hook(self):
        launch.run(__file__, "abort_hook", 2, expected=[0, -signal.SIGKILL])

    @unittest.skipUnless(has("_add_ephemeral_timeout"), "this PyTorch has no ephemeral timeouts")
    def test_ephemeral_timeout(self):
        launch.run(__file__, "ephemeral", 2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
