#!/usr/bin/env python3
"""TORCH_DISTRIBUTED_DEBUG=DETAIL, where PyTorch checks each call over a group of gloo: a loss ends, and a replacement is
refused at once."""
import datetime
import os
import signal
import sys
import time
import unittest

import launch


def expect_refusal(call):
    try:
        call()
    except RuntimeError as error:
        assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in str(error) and "INFO" in str(error), error
    else:
        raise AssertionError("not refused")


def rank_refused_replacement():
    """With PyTorch's own checks a replacement could not start: it would wait for all ranks over gloo."""
    import torch.distributed as dist
    import mep.torch  # noqa: F401
    store = dist.FileStore(os.environ["TEST_FOLDER"] + "/store", 3)
    expect_refusal(lambda: dist.init_process_group("mep", store=store, rank=1, world_size=3,
                                                   timeout=datetime.timedelta(hours=1)))


def rank_checked_by_gloo():
    """With PyTorch's own checks a loss ends the others' calls, nobody can come back, and the rest can go on."""
    import torch
    import mep.torch
    import torch.distributed as dist
    dist.init_process_group("mep", timeout=datetime.timedelta(seconds=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    expect_refusal(lambda: mep.torch.recover([1], timeout=3600))
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(torch.ones(1))
    except RuntimeError:  # gloo's, or MEP's
        pass
    while 1 in mep.torch.living():
        time.sleep(0.01)
    group = mep.torch.shrink(datetime.timedelta(seconds=60))
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    assert total.item() == world - 1, total


class DebugLevelTest(unittest.TestCase):
    def test_replacement(self):
        launch.run(__file__, "refused_replacement", 1, TORCH_DISTRIBUTED_DEBUG="DETAIL", MEP_JOIN="1")

    def test_loss(self):
        launch.run(__file__, "checked_by_gloo", 3, expected=[0, -signal.SIGKILL, 0], TORCH_DISTRIBUTED_DEBUG="DETAIL")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
