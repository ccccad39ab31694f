#!/usr/bin/env python3
"""The reconfigure regime of PyTorch: groups whose members change by handles and uuids. 40 s; needs PyTorch 2.14."""
import datetime
import os
import signal
import sys
import time
import unittest

import launch
from backend_test import expect
from launch import refused

TIMEOUT_S = 60


class Ranks:
    """One process of the test: its group, and a store in which processes show each other their handles."""

    def __init__(self, size=None):
        import torch.distributed as dist
        import mep.torch  # noqa: F401
        self.dist, self.number, self.count = dist, int(os.environ["RANK"]), size or int(os.environ["WORLD_SIZE"])
        self.store = dist.FileStore(os.environ["TEST_FOLDER"] + "/store", -1)
        dist.init_process_group("mep", store=self.store, rank=self.number, world_size=self.count,
                                timeout=datetime.timedelta(seconds=TIMEOUT_S), enable_reconfigure=True)
        self.own = dist._get_reconfigure_handle()

    def handles(self, step, numbers=None):
        """The handles of these processes, each of which has come to the step."""
        self.store.set(f"{step}.{self.number}", self.own)
        return [self.store.get(f"{step}.{each}").decode() for each in numbers or range(self.count)]

    def configure(self, uuid, handles, timeout=TIMEOUT_S):
        self.dist._reconfigure(uuid, handles, timeout=datetime.timedelta(seconds=timeout)).wait()

    def check(self, rank, size):
        """All collectives that a group needs, by the ranks it has now."""
        import torch
        dist = self.dist
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size), (dist.get_rank(), dist.get_world_size())
        tensor = torch.full((5,), rank + 1.0)
        dist.all_reduce(tensor)
        expect(tensor, torch.full((5,), size * (size + 1) / 2), "sum of", size)
        gathered = [torch.zeros(1) for _ in range(size)]
        dist.all_gather(gathered, torch.tensor([float(rank)]))
        expect(torch.cat(gathered), torch.arange(float(size)), "ranks in order")
        if size > 1:
            work = dist.isend(torch.tensor([rank]), (rank + 1) % size)
            came = torch.tensor([-1])
            dist.recv(came, (rank - 1) % size)
            work.wait()
            expect(came, torch.tensor([(rank - 1) % size]), "from the rank before")


def rank_changes():
    """Alone, together, reversed, split, merged, without one, in a set; groups of its ranks in between."""
    import torch
    ranks = Ranks()
    dist, number, count = ranks.dist, ranks.number, ranks.count
    assert dist._supports_reconfigure()
    refused(dist.DistBackendError, "reconfigure()", dist.all_reduce, torch.ones(1))
    handles = ranks.handles("start")
    assert len(set(handles)) == count
    refused(ValueError, "this rank's own", ranks.configure, 1, [each for each in handles if each != ranks.own])
    refused(ValueError, "twice", ranks.configure, 1, handles + handles)
    ranks.configure(100 + number, [ranks.own])
    ranks.check(0, 1)
    ranks.configure(200, handles)
    ranks.check(number, count)
    ranks.configure(201, handles[::-1])
    ranks.check(count - 1 - number, count)
    pair = dist.new_group([0, 1], use_local_synchronization=True) if dist.get_rank() < 2 else None
    if pair is not None:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=pair)
        expect(tensor, torch.tensor([2.0]), "a group of a configuration")
    half = handles[:count // 2] if number < count // 2 else handles[count // 2:]
    ranks.configure(300 + (number < count // 2), half)
    if pair is not None:
        refused(dist.DistBackendError, "destroyed", dist.all_reduce, torch.ones(1), group=pair)
    ranks.check(half.index(ranks.own), len(half))
    ranks.configure(400, handles)
    ranks.check(number, count)
    if number != 1:
        rest = handles[:1] + handles[2:]
        ranks.configure(500, rest)
        ranks.check(rest.index(ranks.own), count - 1)
    ranks.configure(600, set(handles))
    ranks.check(sorted(handles).index(ranks.own), count)
    for again in range(10):
        ranks.configure(700 + again, handles)
    ranks.check(number, count)
    ranks.handles("end")
    dist.destroy_process_group()


def rank_uuids():
    """A uuid is used once: by the same rank, and by other ranks. A refusal leaves the group as it was."""
    ranks = Ranks()
    handles = ranks.handles("start")
    ranks.configure(1, handles)
    refused(ranks.dist.DistBackendError, "already used", ranks.configure, 1, handles)
    ranks.check(ranks.number, ranks.count)
    ranks.handles("before")
    refused(ranks.dist.DistBackendError, "already used", ranks.configure, 1, [ranks.own])
    ranks.check(ranks.number, ranks.count)
    if ranks.number == 0:
        ranks.configure(2, [ranks.own])
    ranks.handles("alone")
    if ranks.number == 1:
        refused(ranks.dist.DistBackendError, "other handles", ranks.configure, 2, [handles[0], ranks.own])
    ranks.handles("end")
    ranks.dist.destroy_process_group()


def rank_abort():
    """abort() in an operation that cannot end; the stale work has failed, and a member that never comes is waited for."""
    import torch
    ranks = Ranks()
    dist, number = ranks.dist, ranks.number
    handles = ranks.handles("start")
    ranks.configure(1, handles)
    backend = dist.get_backend_impl(dist.group.WORLD, torch.device("cpu"))
    works = [dist.all_reduce(torch.ones(3), async_op=True), dist.irecv(torch.ones(3), (number + 1) % ranks.count)] \
        if number else []
    ranks.handles("pending")
    if number == 1:
        backend.abort()
        assert backend.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
    began = time.monotonic()
    ranks.configure(2, handles)
    ranks.check(number, ranks.count)
    for work in works:
        refused(RuntimeError, "mep", work.wait)
    assert time.monotonic() - began < TIMEOUT_S / 2, time.monotonic() - began
    if number != 1:
        refused(dist.DistBackendError, "mep", ranks.configure, 3, handles, timeout=2)
        refused(dist.DistBackendError, "reconfigure()", dist.all_reduce, torch.ones(1))
    ranks.handles("late")
    ranks.configure(4, handles)
    ranks.check(number, ranks.count)
    ranks.handles("end")
    dist.destroy_process_group()


def rank_death():
    """One dies in an operation; the others go on without it, then take in a new process."""
    import torch
    ranks = Ranks()
    number, count = ranks.number, ranks.count
    if "IS_NEW" not in os.environ:
        handles = ranks.handles("start")
        ranks.configure(1, handles)
        ranks.check(number, count)
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        refused(ranks.dist.DistBackendError, "mep", ranks.dist.all_reduce, torch.ones(1))
        rest = handles[:1] + handles[2:]
        ranks.configure(2, rest)
        ranks.check(rest.index(ranks.own), count - 1)
    ranks.configure(3, ranks.handles("again"))
    ranks.check(number, count)
    ranks.handles("end")
    ranks.dist.destroy_process_group()


class Reconfigure(unittest.TestCase):
    def test_changes(self):
        launch.run(__file__, "changes", 4)

    def test_uuids(self):
        launch.run(__file__, "uuids", 3)

    def test_abort(self):
        launch.run(__file__, "abort", 3)

    def test_death(self):
        launch.run_with_replacement(__file__, "death", 3, 1, IS_NEW="1")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
