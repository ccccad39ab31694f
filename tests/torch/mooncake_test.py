#!/usr/bin/env python3
"""mep.mooncake.pg: what a server written for Mooncake's process group does when ranks die and come back."""
import os
import pathlib
import signal
import sys
import unittest

import launch

GROUPS = {"tp": [0, 1, 2], "pair": [0, 1], "other": [1, 2]}


# --- In the ranks -------------------------------------------------------------------------------------

def begin(is_extension=False, backend="mooncake-cpu"):
    """The default group and the groups of GROUPS, as a server makes them; for each its mirror of the active ranks."""
    import torch
    import torch.distributed as dist
    from mep.mooncake import pg
    folder, rank = pathlib.Path(os.environ["TEST_FOLDER"]), int(os.environ["RANK"])
    world = int(os.environ["WORLD_SIZE"])
    mirrors = {"world": torch.full((world,), 7, dtype=torch.int32)}
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=world,
                            pg_options=pg.MooncakeBackendOptions(mirrors["world"], is_extension))
    groups = {"world": (dist.group.WORLD, list(range(world)))}
    for name, ranks in GROUPS.items():
        mirrors[name] = torch.full((len(ranks),), 7, dtype=torch.int32)
        group = dist.new_group(ranks, backend=backend,
                               pg_options=pg.MooncakeBackendOptions(mirrors[name], is_extension))
        if rank in ranks:
            groups[name] = (group, ranks)
    return dist, pg, rank, groups, mirrors


def summed(dist, group, value):
    """The sum over the group, and its work."""
    import torch
    tensor = torch.tensor([value])
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    return int(tensor), work


def check_sums(dist, pg, rank, groups, absent=()):
    for name, (group, ranks) in groups.items():
        total, work = summed(dist, group, 10 ** rank)
        assert pg.get_local_success(work), name
        assert total == sum(10 ** each for each in ranks if each not in absent), (name, total)


def check_loss(dist, pg, rank, groups, mirrors, victim):
    """Each group that had the victim tells of it by one work, and goes on without it."""
    for name, (group, ranks) in groups.items():
        if victim not in ranks:
            continue
        assert mirrors[name].tolist() == [1] * len(ranks), (name, mirrors[name])
        total, work = summed(dist, group, 10 ** rank)
        wanted = [int(each == victim) for each in ranks]
        assert not pg.get_local_success(work), name
        assert pg.get_failed_ranks_hint(work).tolist() == wanted, (name, pg.get_failed_ranks_hint(work))
        assert mirrors[name].tolist() == [1 - each for each in wanted], (name, mirrors[name])
        assert pg.get_active_ranks(group).data_ptr() == mirrors[name].data_ptr()
        assert pg.get_num_synced_ranks(group) == len(ranks) - 1
    check_sums(dist, pg, rank, groups, absent=(victim,))


def rank_lost():
    """Rank 1 is killed: no call raises, all survivors are told of it by the same work, and go on."""
    import torch
    dist, pg, rank, groups, mirrors = begin()
    check_sums(dist, pg, rank, groups)
    assert all(mirrors[name].tolist() == [1] * len(ranks) for name, (_, ranks) in groups.items()), mirrors
    epochs = {name: pg.get_current_epoch(group) for name, (group, _) in groups.items()}
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    check_loss(dist, pg, rank, groups, mirrors, 1)
    assert pg.get_current_epoch(None) > epochs["world"]
    # A message of the rank that is gone, alone and in a batch.
    for work in (dist.irecv(torch.zeros(1), 1),
                 *dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.zeros(1), 1), dist.P2POp(dist.irecv, torch.zeros(1), 1)])):
        work.wait()
        assert pg.get_failed_ranks_hint(work).tolist() == [0, 1, 0], pg.get_failed_ranks_hint(work)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert pg.get_num_synced_ranks(backend) == 2
    # What has nothing to do with a dead rank is an error.
    try:
        dist.all_reduce(torch.zeros(2), op=dist.ReduceOp.BAND)
        raise AssertionError("no error")
    except NotImplementedError as error:
        assert "no reduction BAND" in str(error), error
    dist.destroy_process_group()


def rank_options():
    """What MooncakeBackendOptions takes and refuses."""
    import torch
    import torch.distributed as dist
    from mep.mooncake import pg
    ranks = torch.ones(2, dtype=torch.int32)
    options = pg.MooncakeBackendOptions(ranks, True, 2)
    assert options.active_ranks is ranks and options.is_extension and options.max_group_size == 2
    options = pg.MooncakeBackendOptions(4, False, False, False)
    assert options.active_ranks is None and options.max_group_size == 4 and not options.auto_sync_on_failure
    for arguments, named in (((), {}), ((ranks, True, 2, True), {}), ((ranks,), {"active_ranks": ranks}), ((4,), {"size": 3})):
        try:
            pg.MooncakeBackendOptions(*arguments, **named)
            raise AssertionError((arguments, named))
        except TypeError:
            pass
    store = dist.FileStore(os.environ["TEST_FOLDER"] + "/store", 1)
    for wrong in (torch.ones(1), torch.ones(0, dtype=torch.int32), torch.ones(2, 2, dtype=torch.int32).T):
        try:
            dist.init_process_group("mooncake-cpu", store=store, rank=0, world_size=1,
                                    pg_options=pg.MooncakeBackendOptions(wrong))
            raise AssertionError(wrong)
        except ValueError as error:
            assert "active_ranks" in str(error), error
    # One made without options has a tensor of its own; room for more ranks than there are stays empty.
    dist.init_process_group("mooncake-cpu", store=store, rank=0, world_size=1, pg_options=pg.MooncakeBackendOptions(3))
    assert pg.get_active_ranks(dist.group.WORLD).tolist() == [1, 0, 0]
    alone = dist.new_group([0])
    assert pg.get_active_ranks(alone).tolist() == [1]
    for name, value in (("MEP_HCA", "mlx5_0,mlx5_1"), ("MEP_SUSPECT_MS", "1500")):
        pg.set_device_filter(["mlx5_0", "mlx5_1"])
        pg.set_collective_timeout_us(1_500_000)
        assert os.environ[name] == value, os.environ[name]
    dist.destroy_process_group()


# --- The tests ----------------------------------------------------------------------------------------

class MooncakeTest(unittest.TestCase):
    def test_options(self):
        launch.run(__file__, "options", 1)

    def test_lost_rank(self):
        launch.run(__file__, "lost", 3, expected=[0, -signal.SIGKILL, 0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
