#!/usr/bin/env python3
"""mep.mooncake.pg: what a server written for Mooncake's process group does when ranks go, come back, or are new."""
import os
import pathlib
import signal
import sys
import unittest

import launch

VICTIMS = (1, 0)
GROUPS = {"tp": [0, 1, 2], "pair": [0, 1], "other": [1, 2]}


# --- In the ranks -------------------------------------------------------------------------------------

def begin(is_extension=False):
    """The default group and the groups of GROUPS, as a server makes them; for each its mirror of the active ranks."""
    backend = os.environ.get("DEFAULT_BACKEND", "mooncake-cpu")
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
        group = dist.new_group(ranks, backend="mooncake-cpu",
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
                 *dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.zeros(1), 1) for _ in range(2)])):
        work.wait()
        assert pg.get_failed_ranks_hint(work).tolist() == [0, 1, 0], pg.get_failed_ranks_hint(work)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert pg.get_num_synced_ranks(backend) == 2
    # An error that has nothing to do with a dead rank is raised.
    try:
        dist.all_reduce(torch.zeros(2), op=dist.ReduceOp.BAND)
        raise AssertionError("no error")
    except NotImplementedError as error:
        assert "no reduction BAND" in str(error), error
    dist.destroy_process_group()


def rank_recovered():
    """A rank is killed, twice. Each time the others go on without it, see its replacement wait, and take it in: in the
    default group, and then in each other group. The first replacement is one of the others then."""
    life = int(os.environ.get("LIFE", "0"))
    dist, pg, rank, groups, mirrors = begin(is_extension=life > 0)
    # A default group for GPUs is there for its members, also without any.
    speaking = {name: each for name, each in groups.items()
                if name != "world" or dist.get_backend() == "mooncake-cpu"}
    first = next(iter(speaking))
    if life > 0:
        check_alone(dist, pg, rank, speaking, mirrors)
        launch.wait_for(pathlib.Path(os.environ["TEST_FOLDER"]) / f"alone.{life}")
        for group, _ in groups.values():
            pg.join_group(group)
    for death in range(life, 3):
        check_sums(dist, pg, rank, speaking)
        for name, (group, ranks) in groups.items():
            assert mirrors[name].tolist() == [1] * len(ranks), (name, mirrors[name])
            assert pg.get_peer_state(group, range(len(ranks))) == [True] * len(ranks)
        dist.barrier(group=speaking[first][0])
        if death == 2:
            break
        victim = VICTIMS[death]
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        # The first time all groups are used between the death and the recovery, the second time one.
        used = speaking if death == 0 else {first: speaking[first]}
        check_loss(dist, pg, rank, used, mirrors, victim)
        response = pg.deactivate_ranks(dist.group.WORLD, [victim])
        assert response.status is pg.ProposalStatus.Applied and not response.dropped_ranks
        assert pg.sync_after_failure(dist.group.WORLD).status is pg.SyncAfterFailureStatus.NoPending
        recover(dist, pg, rank, groups, used, victim, death + 1)
    # A group made after all that.
    late = dist.new_group([0, 1, 2], backend="mooncake-cpu", pg_options=pg.MooncakeBackendOptions(3))
    check_sums(dist, pg, rank, {"late": (late, [0, 1, 2])})
    dist.destroy_process_group()


def check_alone(dist, pg, rank, groups, mirrors):
    """A replacement that has not joined has its own part in what it calls."""
    import torch
    for name, (group, ranks) in groups.items():
        own = ranks.index(rank)
        assert mirrors[name].tolist() == [int(each == rank) for each in ranks], (name, mirrors[name])
        total, work = summed(dist, group, 5)
        assert total == 5 and pg.get_local_success(work)
        gathered = [torch.zeros(2) for _ in ranks]
        dist.all_gather(gathered, torch.full((2,), 3.0), group=group)
        whole = torch.zeros(2 * len(ranks))
        dist.all_gather_into_tensor(whole, torch.full((2,), 3.0), group=group)
        wanted = [[3.0 * (each == own)] * 2 for each in range(len(ranks))]
        assert [each.tolist() for each in gathered] == wanted and whole.view(-1, 2).tolist() == wanted
        output = torch.zeros(2)
        dist.reduce_scatter_tensor(output, torch.arange(2.0 * len(ranks)), group=group)
        assert output.tolist() == [2.0 * own, 2.0 * own + 1], output
        dist.broadcast(output, ranks[0], group=group)
        dist.barrier(group=group)
        assert output.tolist() == [2.0 * own, 2.0 * own + 1], output
    assert pg.get_current_epoch(dist.group.WORLD) == 0
    try:
        dist.recv(torch.zeros(1), 2, group=groups["tp"][0])
        raise AssertionError("a message before join_group")
    except dist.DistBackendError as error:
        assert "join_group" in str(error), error
    try:
        pg.join_group(groups["tp"][0])
        raise AssertionError("the default group comes first")
    except RuntimeError as error:
        assert "default group comes first" in str(error), error


def recover(dist, pg, rank, groups, used, victim, life):
    """A server's work with every step, until the replacement is in."""
    folder, world = pathlib.Path(os.environ["TEST_FOLDER"]), dist.group.WORLD
    # It is not there, or does not wait yet: the same on all, and work goes on.
    assert pg.get_peer_state(world, [0, 1, 2]) == [each != victim for each in range(3)]
    for name, (group, ranks) in groups.items():
        if victim in ranks:
            assert pg.get_peer_state(group, [ranks.index(victim)]) == [False], name
            if name != "world":
                try:
                    pg.recover_ranks(group, [ranks.index(victim)])
                    raise AssertionError("a group before the default group")
                except RuntimeError as error:
                    assert "recover it in the default group first" in str(error), error
    check_sums(dist, pg, rank, used, absent=(victim,))
    (folder / f"alone.{life}").touch()
    steps = 0
    while not all(pg.get_peer_state(world, [victim])):
        check_sums(dist, pg, rank, used, absent=(victim,))
        steps += 1
        assert steps < 100_000
    for group, ranks in groups.values():
        if victim in ranks:
            local = [ranks.index(victim)]
            while not all(pg.get_peer_state(group, local)):
                pass
            response = pg.recover_ranks(group, local)
            assert response.status is pg.ProposalStatus.Applied, response
            assert response.new_epoch == pg.get_current_epoch(group) and response.reject_reason == ""


def check_told(dist, pg, rank, groups, mirrors, victim):
    """Each group that has the victim tells of it by one work, on the victim too."""
    for name, (group, ranks) in groups.items():
        if victim in ranks:
            wanted = [int(each == victim) for each in ranks]
            work = summed(dist, group, 1)[1]
            assert not pg.get_local_success(work) and pg.get_failed_ranks_hint(work).tolist() == wanted, name
            assert mirrors[name].tolist() == [1 - each for each in wanted], (name, mirrors[name])


def take_back(dist, pg, rank, groups, mirrors, victim):
    """A rank that lives joins again, in all its groups."""
    if rank == victim:
        for group, _ in groups.values():
            pg.join_group(group)
    else:
        while not all(pg.get_peer_state(None, [victim])):
            check_sums(dist, pg, rank, groups, absent=(victim,))
        for group, ranks in groups.values():
            if victim in ranks:
                assert pg.recover_ranks(group, [ranks.index(victim)]).status is pg.ProposalStatus.Applied
    assert all(mirrors[name].tolist()[:len(ranks)] == [1] * len(ranks) for name, (_, ranks) in groups.items()), mirrors
    check_sums(dist, pg, rank, groups)


def rank_deactivated():
    """Ranks that live are left out, one by another and one by itself, and join again: with collectives and messages."""
    import torch
    dist, pg, rank, groups, mirrors = begin()
    for victim, caller in ((1, 0), (2, 2), (1, 2)):
        check_sums(dist, pg, rank, groups)
        before = pg.get_current_epoch(None)
        dist.barrier()
        if rank == caller:
            response = pg.deactivate_ranks(None, [victim])
            assert response.status is pg.ProposalStatus.Applied, response
            assert victim == rank or mirrors["world"].tolist() == [int(each != victim) for each in range(3)], mirrors
        if rank == victim == caller:
            # It is alone, as a replacement that has not joined.
            assert pg.get_current_epoch(None) == 0 and pg.get_num_synced_ranks(None) == 1
            for name, (group, ranks) in groups.items():
                assert pg.get_active_ranks(group).tolist() == [int(each == rank) for each in ranks], name
            check_alone(dist, pg, rank, groups, mirrors)
        elif rank == victim:
            check_told(dist, pg, rank, groups, mirrors, victim)
            check_told(dist, pg, rank, groups, mirrors, victim)
        else:
            check_told(dist, pg, rank, groups, mirrors, victim)
            assert pg.get_active_ranks(None).tolist() == [int(each != victim) for each in range(3)]
            check_sums(dist, pg, rank, groups, absent=(victim,))
        take_back(dist, pg, rank, groups, mirrors, victim)
        assert pg.get_current_epoch(None) > before
        message = torch.full((3,), rank)
        if rank == victim:
            dist.send(message, 0)
        elif rank == 0:
            dist.recv(message, victim)
            assert message.tolist() == [victim] * 3, message
    dist.destroy_process_group()


def rank_grown():
    """Two ranks become three and then four, in the default group and in others; then one leaves and comes back."""
    import torch
    folder, rank = pathlib.Path(os.environ["TEST_FOLDER"]), int(os.environ["RANK"])
    size = int(os.environ["WORLD_SIZE"])
    import torch.distributed as dist
    from mep.mooncake import pg
    options = lambda: pg.MooncakeBackendOptions(4, rank >= 2)  # noqa: E731
    if rank >= 2:
        launch.wait_for(folder / f"enter.{rank}")
    dist.init_process_group("mooncake-cpu", init_method=f"file://{folder}/store", rank=rank, world_size=size,
                            pg_options=options())
    whole = dist.new_group(list(range(size)), pg_options=options())
    side = [1] if size < 4 else [1, 3]
    apart = dist.new_group(side, pg_options=options())
    groups = {"world": (dist.group.WORLD, list(range(size))), "whole": (whole, list(range(size)))}
    if rank in side:
        groups["apart"] = (apart, side)
    if rank >= 2:
        assert summed(dist, None, 5)[0] == 5 and pg.get_current_epoch(None) == 0
        for group, _ in groups.values():
            pg.join_group(group)
    elif rank == 0:
        launch.refused(ValueError, "by rank 2", pg.recover_ranks, None, [3])
    for size in range(max(size, 2), 5):
        check_sums(dist, pg, rank, groups)
        check_grown(torch, dist, pg, rank, groups)
        if size == 4:
            break
        assert pg.get_peer_state(None, [0, size]) == [True, False]
        assert pg.recover_ranks(None, [size], timeout=0.2).status is pg.ProposalStatus.Rejected
        check_sums(dist, pg, rank, groups)
        (folder / f"enter.{size}").touch()
        for name, (group, ranks) in groups.items():
            if name == "apart" and size < 3:
                continue
            while not all(pg.get_peer_state(group, [len(ranks)])):
                pass
            response = pg.recover_ranks(group, [len(ranks)])
            assert response.status is pg.ProposalStatus.Applied, response
            ranks.append(size)
    dist.barrier()
    mirrors = {name: pg.get_active_ranks(group) for name, (group, _) in groups.items()}
    if rank == 0:
        pg.deactivate_ranks(None, [3])
    for name, (group, ranks) in groups.items():
        if 3 in ranks:
            assert not pg.get_local_success(summed(dist, group, 1)[1]), name
    take_back(dist, pg, rank, groups, mirrors, 3)
    dist.destroy_process_group()


def check_grown(torch, dist, pg, rank, groups):
    """After each growth: its size, its ranks, and operations that reach the newest."""
    for name, (group, ranks) in groups.items():
        assert dist.get_world_size(group) == len(ranks) and dist.get_process_group_ranks(group) == ranks, name
        assert pg.get_active_ranks(group).tolist() == [1] * len(ranks) + [0] * (4 - len(ranks)), name
        gathered = torch.zeros(len(ranks), dtype=torch.int64)
        dist.all_gather_into_tensor(gathered, torch.tensor([rank]), group=group)
        assert gathered.tolist() == ranks, (name, gathered)
        last = torch.tensor([rank])
        dist.broadcast(last, ranks[-1], group=group)
        assert int(last) == ranks[-1], name
        if len(ranks) > 1 and rank == ranks[0]:
            dist.send(torch.tensor([7]), ranks[-1], group=group)
        elif len(ranks) > 1 and rank == ranks[-1]:
            dist.recv(last, ranks[0], group=group)
            assert int(last) == 7, name


def rank_buffers():
    """EP buffers, made as SGLang does, in the first dispatch: two at a time, over the loss of a rank, its replacement,
    growth, and another loss; then of new groups, over the same store and a new one."""
    import deep_ep_test as low_latency
    import torch
    import torch.distributed as dist
    from mep.mooncake import pg
    from mep.mooncake.ep import Buffer
    folder, rank = pathlib.Path(os.environ["TEST_FOLDER"]), int(os.environ["RANK"])
    stage = int(os.environ.get("STAGE", "0"))  # at which this process comes
    mirror, active_ranks = torch.zeros(4, dtype=torch.int32), torch.ones(4, dtype=torch.int32)

    def begin(backend, place, size, store):
        options = pg.MooncakeBackendOptions(mirror, stage > 0, 4) if backend != "gloo" else None
        dist.init_process_group(backend, init_method=f"file://{folder}/{store}", rank=place, world_size=size,
                                pg_options=options)

    def layers(seed, *buffers, absent=()):
        active_ranks.fill_(1)
        for number, buffer in enumerate(buffers):
            for kind in ("fp8", "bf16"):
                low_latency.mooncake_layer(buffer, low_latency.Case(dist.get_world_size(), seed + number, [3] * 3),
                                           dist.get_rank(), kind, active_ranks, absent=absent)
        dist.barrier()  # before one drops a buffer; it tells the group of a loss

    def lose(victim, buffer):
        layers(1, buffer)
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        launch.wait_until(lambda: victim in buffer._joined().absent(), "the victim lives")
        layers(2, buffer, absent={victim})
        assert mirror[victim] == 0, mirror

    def admit(new, *buffers):
        """Members; a process that comes has joined. All use the group before the buffers."""
        if stage < size - 1:
            launch.wait_until(lambda: all(pg.get_peer_state(None, [new])), "nobody comes")
            assert pg.recover_ranks(None, [new]).status is pg.ProposalStatus.Applied
            for buffer in buffers:
                buffer.update_ep_member()
        dist.broadcast(torch.zeros(1), new)

    size = int(os.environ["WORLD_SIZE"])
    if stage > 0:
        launch.wait_for(folder / f"enter.{stage}")
    begin("mooncake-cpu", rank, size, "store")
    if stage == 0:
        first, second = Buffer(dist.group.WORLD), Buffer(dist.group.WORLD)
        layers(10, second, first, second, Buffer(dist.group.WORLD))
        lose(1, first)
    else:
        pg.join_group(None)
    if size == 2:
        kept = (first, second) if stage == 0 else ()
        admit(1, *kept)
        first, second = kept or (Buffer(dist.group.WORLD), Buffer(dist.group.WORLD))
        layers(20, first, second, first)
        (folder / "enter.2").touch()
    size = 3
    admit(2, *((first,) if stage < 2 else ()))
    if stage == 2:
        first = Buffer(dist.group.WORLD)
    assert first.group_size == 3
    second = Buffer(dist.group.WORLD)
    layers(30, first, second, first)
    lose(1, second)
    layers(40, first, Buffer(dist.group.WORLD), absent={1})
    dist.destroy_process_group()
    stage = 0
    for number, (backend, store) in enumerate((("mooncake-cpu", "store"), ("gloo", "other"), ("mooncake-cpu", "third"))):
        begin(backend, rank // 2, 2, store)
        buffers = Buffer(dist.group.WORLD), Buffer(dist.group.WORLD)
        layers(50 + number, *buffers, buffers[0])
        dist.destroy_process_group()


def rank_waiting():
    """A replacement is killed while it waits: recover_ranks says that none came, and takes the next one in."""
    folder = pathlib.Path(os.environ["TEST_FOLDER"])
    dist, pg, rank, groups, mirrors = begin(is_extension="LIFE" in os.environ)
    if "LIFE" in os.environ:
        for group, _ in groups.values():
            pg.join_group(group)
    else:
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        check_loss(dist, pg, rank, {"world": groups["world"]}, mirrors, 1)
        while not all(pg.get_peer_state(None, [1])):
            pass
        (folder / f"seen.{rank}").touch()
        launch.wait_for(folder / "ended")
        response = pg.recover_ranks(None, [1], timeout=1)
        assert response.status is pg.ProposalStatus.Rejected, response
        (folder / f"rejected.{rank}").touch()
        while pg.recover_ranks(None, [1], timeout=1).status is not pg.ProposalStatus.Applied:
            pass
        for name, (group, ranks) in groups.items():
            if name != "world" and 1 in ranks:
                assert pg.recover_ranks(group, [ranks.index(1)]).status is pg.ProposalStatus.Applied
    check_sums(dist, pg, rank, groups)
    dist.destroy_process_group()


def rank_absent():
    """No replacement comes: recover_ranks says so, and the group goes on. A call that MEP lacks is an error."""
    import torch
    dist, pg, rank, groups, mirrors = begin()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    assert not pg.get_local_success(dist.barrier(async_op=True))
    response = pg.recover_ranks(dist.group.WORLD, [1], timeout=0.2)
    assert response.status is pg.ProposalStatus.Rejected and response.dropped_ranks == [1], response
    assert "[1]" in response.reject_reason and mirrors["world"].tolist() == [1, 0, 1], (response, mirrors["world"])
    total, work = summed(dist, None, 10 ** rank)
    assert total == 101 and pg.get_local_success(work)
    for call, kind, text in (
            (lambda: pg.deactivate_ranks(groups["tp"][0], [0]), NotImplementedError, "in the default group"),
            (lambda: pg.recover_ranks(dist.group.WORLD, [3]), ValueError, "max_group_size"),
            (lambda: pg.get_peer_state(dist.group.WORLD, [-1]), ValueError, "no rank"),
            (lambda: pg.join_group(dist.group.WORLD), RuntimeError, "this rank is in the group"),
            (lambda: pg.get_active_ranks(torch), TypeError, "no process group"),
    ):
        try:
            call()
            raise AssertionError(text)
        except kind as error:
            assert text in str(error), error
    dist.destroy_process_group()


def rank_installed():
    """The imports of servers that know Mooncake alone; other modules of an installed Mooncake stay."""
    import types
    sys.modules["mooncake"] = types.ModuleType("mooncake")
    sys.modules["mooncake.engine"] = engine = types.ModuleType("mooncake.engine")
    import mep.mooncake
    mep.mooncake.install()
    mep.mooncake.install()
    import mooncake.pg
    from mooncake import pg
    from mooncake.ep import MooncakeBackendOptions, get_active_ranks  # noqa: F401
    from mooncake.pg import deactivate_ranks, get_peer_state, join_group, recover_ranks  # noqa: F401
    assert pg is mooncake.pg is mep.mooncake.pg and MooncakeBackendOptions is pg.MooncakeBackendOptions
    assert sys.modules["mooncake.engine"] is engine
    sys.modules["mooncake.pg"] = types.ModuleType("mooncake.pg")
    try:
        mep.mooncake.install()
        raise AssertionError("another mooncake.pg is there")
    except ImportError as error:
        assert "before mooncake.pg" in str(error), error


def rank_options():
    """MooncakeBackendOptions: values that it takes and refuses."""
    import torch
    import torch.distributed as dist
    from mep.mooncake import pg
    ranks = torch.ones(2, dtype=torch.int32)
    options = pg.MooncakeBackendOptions(ranks, True, 2)
    assert options.active_ranks is ranks and options.is_extension and options.max_group_size == 2
    options = pg.MooncakeBackendOptions(4, False, False, False)
    assert options.active_ranks is None and options.max_group_size == 4 and not options.auto_sync_on_failure
    for arguments, named in (((), {}), ((ranks, True, 2, True), {}), ((ranks,), {"active_ranks": ranks}),
                             ((4,), {"size": 3})):
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
    # A replacement that never joins leaves without anybody.
    dist.init_process_group("mooncake-cpu", store=dist.FileStore(os.environ["TEST_FOLDER"] + "/other", 2), rank=1,
                            world_size=2, pg_options=pg.MooncakeBackendOptions(2, True))
    assert summed(dist, None, 4)[0] == 4
    dist.destroy_process_group()


# --- The tests ----------------------------------------------------------------------------------------

class MooncakeTest(unittest.TestCase):
    def test_options(self):
        launch.run(__file__, "options", 1)

    def test_lost_rank(self):
        launch.run(__file__, "lost", 3, expected=[0, -signal.SIGKILL, 0])

    def test_no_replacement(self):
        launch.run(__file__, "absent", 3, expected=[0, -signal.SIGKILL, 0])

    def test_deactivated_ranks_join_again(self):
        launch.run(__file__, "deactivated", 3)

    def test_growth(self):
        processes, folder = launch.start(__file__, "grown", 2)
        processes += [launch.start_one(__file__, "grown", rank, rank + 1, folder) for rank in (2, 3)]
        launch.finish(processes, folder)

    def test_buffers(self):
        processes, folder = launch.start(__file__, "buffers", 2)
        processes.append(launch.start_one(__file__, "buffers", 2, 3, folder, STAGE="2"))
        self.assertEqual(processes[1].wait(launch.LIMIT_S), -signal.SIGKILL, (folder / "output.1").read_text())
        processes[1] = launch.start_one(__file__, "buffers", 1, 2, folder, STAGE="1")
        (folder / "enter.1").touch()
        launch.finish(processes, folder, [0, -signal.SIGKILL, 0])

    def test_replacement_killed_as_it_waits(self):
        processes, folder = launch.start(__file__, "waiting", 3)
        processes.pop(1).wait(launch.LIMIT_S)
        first = launch.start_one(__file__, "waiting", 1, 3, folder, LIFE="1")
        for rank in (0, 2):
            launch.wait_for(folder / f"seen.{rank}")
        first.kill()
        first.wait()
        (folder / "ended").touch()
        for rank in (0, 2):
            launch.wait_for(folder / f"rejected.{rank}")
        processes.insert(1, launch.start_one(__file__, "waiting", 1, 3, folder, LIFE="2"))
        launch.finish(processes, folder)

    def test_installed_as_mooncake(self):
        launch.run(__file__, "installed", 1)

    def replace_twice(self, **variables):
        processes, folder = launch.start(__file__, "recovered", 3, **variables)
        for life, victim in enumerate(VICTIMS, 1):
            dead = processes.pop(victim)
            if dead.wait(launch.LIMIT_S) != -signal.SIGKILL:
                for process in processes:
                    process.kill()
                processes.insert(victim, dead)
                launch.finish(processes, folder, [-signal.SIGKILL] * 3)
            processes.insert(victim, launch.start_one(__file__, "recovered", victim, 3, folder, LIFE=str(life),
                                                      **variables))
        launch.finish(processes, folder)

    def test_replaced_twice(self):
        self.replace_twice()

    def test_replaced_twice_in_a_default_group_for_gpus(self):
        self.replace_twice(DEFAULT_BACKEND="mooncake")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
