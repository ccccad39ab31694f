#!/usr/bin/env python3
"""Uses of a group of MEP that clients make and PyTorch's own suite does not: callbacks that wait, outputs of inference mode,
a tensor twice in a list, a Buffer after a recovery. 40 s."""
import datetime
import os
import signal
import sys
import unittest

import launch
from backend_test import begin, expect


def rank_waiting_callbacks():
    """Each callback of a future waits for another collective, and so does the callback of that one."""
    import torch
    dist, rank, world = begin()
    total = sum(range(world))

    def second(future):
        return dist.all_reduce(future.value()[0], async_op=True).get_future().then(third).wait()

    def third(future):
        return dist.all_reduce(future.value()[0] + 1, async_op=True).get_future().wait()[0]
    for count in (1, 1 << 16):
        for _ in range(20):
            first = dist.all_reduce(torch.full((count,), float(rank)), async_op=True).get_future()
            expect(first.then(second).wait(), torch.full((count,), float((total * world + 1) * world)), "three in a row")
    # Several at one time, each of which waits.
    futures = [dist.all_reduce(torch.full((3,), float(rank + each)), async_op=True).get_future() for each in range(8)]
    for each, future in enumerate(futures):
        expect(future.wait()[0], torch.full((3,), float(total + world * each)), "futures beside each other")
    dist.destroy_process_group()


def rank_inference_mode():
    """Outputs of inference mode are written wherever the operation ends."""
    import torch
    dist, rank, world = begin()

    def gathered(end):
        with torch.inference_mode():
            mine, outputs = torch.full((3,), float(rank)), [torch.zeros(3) for _ in range(world)]
            strided = torch.ones(4, 4).t()[::2]
            works = [dist.all_gather(outputs, mine, async_op=True), dist.all_reduce(strided, async_op=True)]
            for work in works if end == "inside" else ():
                work.wait()
            for work in works if end == "by a future" else ():
                work.get_future().wait()
        for work in works if end == "outside" else ():
            work.wait()
        expect(torch.stack(outputs), torch.arange(float(world)).unsqueeze(1).expand(world, 3), f"gathered, {end}")
        expect(strided, torch.full((2, 4), float(world)), f"strided, {end}")
    for _ in range(10):
        for end in ("inside", "by a future", "outside"):
            gathered(end)
    dist.destroy_process_group()


def rank_tensor_twice():
    import torch
    dist, rank, world = begin()
    tensor, other = torch.tensor([1.0 + rank, 2.0]), torch.tensor([3.0])
    dist.all_reduce_coalesced([tensor, other, tensor, tensor[:]])
    expect(tensor, torch.tensor([sum(range(world + 1)), 2.0 * world]), "a tensor that is there three times")
    expect(other, torch.tensor([3.0 * world]), "a tensor beside it")
    halves = torch.ones(4)
    dist.all_reduce_coalesced([halves[:2], halves[2:]])
    expect(halves, torch.full((4,), float(world)), "two halves of one tensor")
    dist.destroy_process_group()


def rank_buffer_after_recovery():
    """A new Buffer over a group that has taken in a replacement, which has made fewer of them."""
    import torch
    import torch.distributed as dist
    import mep.deep_ep as deep_ep
    import mep.torch
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("mep", init_method=f"file://{os.environ['TEST_FOLDER']}/store", rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=60))
    if not mep.torch.is_replacement():
        for _ in range(2):
            buffer = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True, enable_shrink=True)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.barrier()
        except dist.DistBackendError:
            mep.torch.recover([1], timeout=60)
        buffer.destroy()
    buffer = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True, enable_shrink=True)
    x, index = torch.full((4, 128), 1.0 + rank, dtype=torch.bfloat16), torch.arange(8).view(4, 2) % (2 * world)
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, index, 8, 2 * world, use_fp8=False)
    sums, _, _ = buffer.low_latency_combine(rows.clone(), index, torch.ones(4, 2), handle)
    expect(sums, x * 2, "a layer after the recovery")
    buffer.destroy()
    dist.destroy_process_group()


class Clients(unittest.TestCase):
    def test_callbacks_that_wait(self):
        launch.run(__file__, "waiting_callbacks", 2)

    def test_outputs_of_inference_mode(self):
        launch.run(__file__, "inference_mode", 2)

    def test_buffer_after_a_recovery(self):
        processes, folder = launch.start(__file__, "buffer_after_recovery", 3)
        self.assertEqual(processes.pop(1).wait(launch.LIMIT_S), -signal.SIGKILL)
        processes.insert(1, launch.start_one(__file__, "buffer_after_recovery", 1, 3, folder, MEP_JOIN="1"))
        launch.finish(processes, folder)

    def test_tensor_twice_in_a_list(self):
        launch.run(__file__, "tensor_twice", 3)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
