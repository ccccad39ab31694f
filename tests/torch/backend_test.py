#!/usr/bin/env python3
"""The backend "mep" of torch.distributed: each operation against what plain PyTorch makes of all ranks' inputs.

Every rank makes the inputs of all ranks, from their seeds, so the expected values need no communication.
"""
import datetime
import itertools
import os
import pathlib
import signal
import sys
import threading
import unittest

import launch

SIZES = (0, 1, 7, 4096, 70_001)


# --- In the ranks -------------------------------------------------------------------------------------

def value(rank, count, dtype, seed):
    import torch
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    # Small whole numbers: every sum and product of them is exact in each type, in any order.
    return torch.randint(1, 3, (count,), generator=generator).to(dtype)


def values(world, count, dtype, seed=0):
    return [value(rank, count, dtype, seed) for rank in range(world)]


def expect(got, wanted, *what):
    import torch
    if got.dtype != wanted.dtype or got.shape != wanted.shape or not torch.equal(got, wanted):
        raise AssertionError(f"{what}: {got.flatten()[:8]} of {tuple(got.shape)}, not {wanted.flatten()[:8]}")


def folded(op, tensors):
    import torch
    import torch.distributed as dist
    if tensors[0].dtype == torch.bool:
        table = {dist.ReduceOp.SUM: torch.logical_or, dist.ReduceOp.MAX: torch.logical_or,
                 dist.ReduceOp.BOR: torch.logical_or, dist.ReduceOp.PRODUCT: torch.logical_and,
                 dist.ReduceOp.MIN: torch.logical_and, dist.ReduceOp.BAND: torch.logical_and,
                 dist.ReduceOp.BXOR: torch.logical_xor}
    else:
        table = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.PRODUCT: torch.mul, dist.ReduceOp.MIN: torch.minimum,
                 dist.ReduceOp.MAX: torch.maximum, dist.ReduceOp.BAND: torch.bitwise_and,
                 dist.ReduceOp.BOR: torch.bitwise_or, dist.ReduceOp.BXOR: torch.bitwise_xor}
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result = table[op](result, tensor)
    return result


def reductions(dist, rank, world):
    import torch
    ops = dist.ReduceOp
    whole = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
    real = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for dtype in whole + real:
        of_type = [ops.SUM, ops.PRODUCT, ops.MIN, ops.MAX]
        if dtype in whole:
            of_type += [ops.BAND, ops.BOR, ops.BXOR]
        for op, count in itertools.product(of_type, SIZES):
            inputs = values(world, count, dtype)
            wanted = folded(op, inputs)
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, op=op)
            expect(tensor, wanted, "all_reduce", dtype, op, count)
            tensor = inputs[rank].clone()
            dist.reduce(tensor, world - 1, op=op)
            expect(tensor, wanted if rank == world - 1 else inputs[rank], "reduce", dtype, op, count)
    for dtype in real:
        inputs = values(world, 64, dtype)
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(2.0))
        expect(tensor, folded(ops.SUM, inputs) * 2, "premul_sum", dtype)
        tensor = torch.full((8,), float(world * (rank + 1)), dtype=dtype)
        dist.all_reduce(tensor, op=ops.AVG)
        expect(tensor, torch.full((8,), world * (world + 1) / 2, dtype=dtype), "avg", dtype)
    tensor = torch.full((8,), rank, dtype=torch.int32)
    dist.all_reduce(tensor, op=ops.AVG)
    expect(tensor, torch.full((8,), sum(range(world)) // world, dtype=torch.int32), "avg of integers")
    inputs = [value(r, 12, torch.float32, 1).to(torch.complex64) * 1j for r in range(world)]
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor)
    expect(tensor, sum(inputs[1:], inputs[0]), "all_reduce of complex numbers")
    several = [value(rank, count, torch.float32, 2) for count in (3, 0, 9000)]
    dist.all_reduce_coalesced(several)
    for tensor, count in zip(several, (3, 0, 9000)):
        expect(tensor, folded(ops.SUM, values(world, count, torch.float32, 2)), "all_reduce_coalesced", count)


def layouts(dist, rank, world):
    """Tensors that are not contiguous, without dimensions, and lists that lie in one memory or interleaved."""
    import torch
    matrices = [value(r, 12, torch.float32, 3).reshape(3, 4) for r in range(world)]
    tensor = matrices[rank].t().contiguous().t()
    dist.all_reduce(tensor)
    expect(tensor, sum(matrices[1:], matrices[0]), "all_reduce of a transposed tensor")
    store = torch.zeros(3, 8)
    view = store[:, ::2]
    view.copy_(matrices[rank])
    dist.broadcast(view, 1)
    expect(view, matrices[1], "broadcast to a strided view")
    expect(store[:, 1::2], torch.zeros(3, 4), "what lies between a view's elements")
    scalar = torch.tensor(float(rank + 1))
    dist.all_reduce(scalar)
    expect(scalar, torch.tensor(world * (world + 1) / 2), "all_reduce without dimensions")
    for count in (5, 40_000):
        inputs = values(world, count, torch.float64, 4)
        # The input lies between the outputs, as part of one memory.
        memory = torch.zeros(world + 1, count, dtype=torch.float64)
        memory[1].copy_(inputs[rank])
        places = [memory[0], *(memory[2 + index] for index in range(world - 1))]
        dist.all_gather(places, memory[1])
        for index, place in enumerate(places):
            expect(place, inputs[index], "all_gather around its input", count)
        whole = torch.cat(inputs)
        output = torch.zeros_like(whole)
        own = output[rank * count:(rank + 1) * count]
        own.copy_(inputs[rank])
        dist.all_gather_into_tensor(output, own)
        expect(output, whole, "all_gather in place", count)
        output = torch.zeros_like(whole)
        shifted = output[(rank + 1) % world * count:][:count]
        shifted.copy_(inputs[rank])
        dist.all_gather_into_tensor(output, shifted)
        expect(output, whole, "all_gather from another rank's place", count)
        blocks = [values(world, count, torch.float64, 10 + r) for r in range(world)]  # of rank r, to each
        source = torch.cat(blocks[rank])
        own = source[rank * count:(rank + 1) * count]
        wanted = sum((blocks[r][rank] for r in range(1, world)), blocks[0][rank].clone())
        dist.reduce_scatter_tensor(own, source)
        expect(own, wanted, "reduce_scatter in place", count)
        columns = [torch.zeros(count, 2, dtype=torch.float64)[:, 0] for _ in range(world)]
        dist.all_gather(columns, inputs[rank])
        for index, column in enumerate(columns):
            expect(column, inputs[index], "all_gather to columns", count)


def movements(dist, rank, world):
    import torch
    types = (torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex128)
    for dtype, count in itertools.product(types, SIZES):
        inputs = [t if not dtype.is_complex else t * 1j for t in values(world, count, dtype, 5)]
        own = inputs[rank]
        for root in range(world):
            tensor = own.clone()
            dist.broadcast(tensor, root)
            expect(tensor, inputs[root], "broadcast", dtype, count)
        outputs = [torch.empty_like(own) for _ in range(world)]
        dist.all_gather(outputs, own)
        for index, output in enumerate(outputs):
            expect(output, inputs[index], "all_gather", dtype, count)
        output = torch.empty(world * count, dtype=dtype)
        dist.all_gather_into_tensor(output, own)
        expect(output, torch.cat(inputs), "all_gather_into_tensor", dtype, count)
        outputs = [torch.empty_like(own) for _ in range(world)] if rank == 1 else None
        dist.gather(own, outputs, dst=1)
        for index, output in enumerate(outputs or []):
            expect(output, inputs[index], "gather", dtype, count)
        output = torch.empty_like(own)
        dist.scatter(output, [t + t for t in inputs] if rank == 0 else None, src=0)
        expect(output, inputs[rank] + inputs[rank], "scatter", dtype, count)
        blocks = [[t if not dtype.is_complex else t * 1j for t in values(world, count, dtype, 20 + r)]
                  for r in range(world)]
        output = torch.empty(world * count, dtype=dtype)
        dist.all_to_all_single(output, torch.cat(blocks[rank]))
        expect(output, torch.cat([blocks[r][rank] for r in range(world)]), "all_to_all_single", dtype, count)
        # From r to s go r + 2s + count elements; to rank 0 from rank 1 nothing.
        length = [[0 if (r, s) == (1, 0) else r + 2 * s + count for s in range(world)] for r in range(world)]
        pieces = [[value(7 * r + s, length[r][s], dtype, 6) for s in range(world)] for r in range(world)]
        wanted = [pieces[r][rank] for r in range(world)]
        outputs = [torch.empty_like(piece) for piece in wanted]
        dist.all_to_all(outputs, pieces[rank])
        for index, output in enumerate(outputs):
            expect(output, wanted[index], "all_to_all", dtype, count)
        output = torch.empty(sum(len(piece) for piece in wanted), dtype=dtype)
        dist.all_to_all_single(output, torch.cat(pieces[rank]), [len(piece) for piece in wanted], length[rank])
        expect(output, torch.cat(wanted), "all_to_all_single with splits", dtype, count)
    for count in SIZES:
        blocks = [values(world, count, torch.float32, 30 + r) for r in range(world)]
        wanted = folded(dist.ReduceOp.SUM, [blocks[r][rank] for r in range(world)])
        output = torch.empty(count)
        dist.reduce_scatter(output, blocks[rank])
        expect(output, wanted, "reduce_scatter", count)
        output = torch.empty(count)
        dist.reduce_scatter_tensor(output, torch.cat(blocks[rank]))
        expect(output, wanted, "reduce_scatter_tensor", count)
        uneven = [[value(r, count + 3 * s, torch.float32, 40 + s) for s in range(world)] for r in range(world)]
        output = torch.empty(count + 3 * rank)
        dist.reduce_scatter(output, uneven[rank])
        expect(output, folded(dist.ReduceOp.SUM, [uneven[r][rank] for r in range(world)]), "uneven reduce_scatter")
        outputs = [torch.empty(count + 3 * r) for r in range(world)]
        dist.all_gather(outputs, uneven[rank][rank])
        for index, output in enumerate(outputs):
            expect(output, uneven[index][index], "uneven all_gather", count)
    rows = torch.arange(float(world * 4)).reshape(world * 2, 2) + 100 * rank
    output = torch.empty(2 * world, 2)
    dist.all_to_all_single(output, rows)
    wanted = [torch.arange(float(world * 4)).reshape(world * 2, 2)[2 * rank:2 * rank + 2] + 100 * r
              for r in range(world)]
    expect(output, torch.cat(wanted), "all_to_all_single of rows")


def objects(dist, rank, world):
    found = [None] * world
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
    assert found == [{"rank": r, "text": "x" * r} for r in range(world)], found
    given = [f"from {rank}", rank]
    dist.broadcast_object_list(given, 1)
    assert given == ["from 1", 1], given
    got = [None]
    dist.scatter_object_list(got, [f"to {r}" for r in range(world)] if rank == 0 else None, 0)
    assert got == [f"to {rank}"], got


def messages(dist, rank, world):
    import torch
    for count in SIZES:
        mine, theirs = value(rank, count, torch.float32, 7), value((rank - 1) % world, count, torch.float32, 7)
        got = torch.empty(count)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, (rank + 1) % world),
                                        dist.P2POp(dist.irecv, got, (rank - 1) % world)])
        for work in works:
            work.wait()
        expect(got, theirs, "a ring of messages", count)
    # Tags, not the order of the calls, say which is which; a strided view receives.
    if rank == 0:
        dist.send(torch.full((3,), 1.0), 1, tag=1)
        dist.send(torch.full((3,), 2.0), 1, tag=2)
    elif rank == 1:
        second, first = torch.zeros(6)[::2], torch.zeros(3)
        dist.recv(second, 0, tag=2)
        dist.recv(first, 0, tag=1)
        expect(second.clone(), torch.full((3,), 2.0), "tag 2")
        expect(first, torch.full((3,), 1.0), "tag 1")
    dist.barrier()
    if rank == 0:
        seen = set()
        for _ in range(world - 1):
            got = torch.zeros(1, dtype=torch.int64)
            source = dist.recv(got)
            assert source == int(got), (source, got)
            seen.add(source)
        assert seen == set(range(1, world)), seen
    else:
        dist.send(torch.tensor([rank]), 0)


def asynchronous(dist, rank, world):
    import torch
    tensors = [value(rank, count, torch.float32, 8) for count in (1, 1000, 300_000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future() for work in works]
    seen = []
    chained = futures[2].then(lambda future: seen.append(future.value()[0].data_ptr()))
    chained.wait()
    assert seen == [tensors[2].data_ptr()], seen
    for work, tensor, count in zip(works, tensors, (1, 1000, 300_000)):
        work.wait()
        assert work.is_completed() and work.is_success()
        expect(tensor, folded(dist.ReduceOp.SUM, values(world, count, torch.float32, 8)), "async", count)
    # Nobody waits for these; a later call follows them in order.
    dropped = [value(rank, 9, torch.float32, 9) for _ in range(50)]
    for tensor in dropped:
        dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    for tensor in dropped:
        expect(tensor, folded(dist.ReduceOp.SUM, values(world, 9, torch.float32, 9)), "dropped works")
    # A future ends while this thread is in no call of the backend.
    tensor = torch.ones(2_000_000)
    done = threading.Event()
    dist.all_reduce(tensor, async_op=True).get_future().then(lambda _: done.set())
    assert done.wait(60)
    expect(tensor, torch.full((2_000_000,), float(world)), "a future without a wait")
    with dist._coalescing_manager(async_ops=True) as manager:
        first, second = torch.ones(5), torch.ones(7)
        dist.all_reduce(first)
        dist.all_reduce(second)
    manager.wait()
    expect(first, torch.full((5,), float(world)), "coalesced")
    expect(second, torch.full((7,), float(world)), "coalesced")


def threads(dist, rank, world):
    """A message that another thread sends while this one is in a barrier lets the others enter it."""
    import torch
    if rank == 0:
        sender = threading.Timer(0.2, lambda: [dist.send(torch.tensor([5]), peer) for peer in range(1, world)])
        sender.start()
        dist.barrier()
        sender.join()
    else:
        got = torch.zeros(1, dtype=torch.int64)
        dist.recv(got, 0)
        dist.barrier()
    groups = [dist.new_group() for _ in range(3)]
    failed = []

    def use(group, seed):
        try:
            for round_ in range(50):
                tensor = value(rank, 100, torch.float32, seed + round_)
                dist.all_reduce(tensor, group=group)
                expect(tensor, folded(dist.ReduceOp.SUM, values(world, 100, torch.float32, seed + round_)), seed)
        except Exception as error:  # of another thread: told by the main one
            failed.append(error)

    workers = [threading.Thread(target=use, args=(group, 100 * index)) for index, group in enumerate(groups)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        raise failed[0]


def groups(dist, rank, world):
    import torch
    even = dist.new_group(list(range(0, world, 2)))
    backwards = dist.new_group(list(range(world)))
    if rank % 2 == 0:
        tensor = torch.tensor([rank])
        dist.all_reduce(tensor, group=even)
        expect(tensor, torch.tensor([sum(range(0, world, 2))]), "a group of the even ranks")
    tensor = torch.tensor([rank])
    dist.broadcast(tensor, world - 1, group=backwards)
    expect(tensor, torch.tensor([world - 1]), "a second group of all")
    dist.destroy_process_group(backwards)
    if torch.__version__ < "2.12":
        return  # splits groups of GPUs only
    lists = [list(range(world - 1)), [world - 1]]
    part = dist.split_group(split_ranks=lists)
    mine = lists[rank == world - 1]
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor, group=part)
    expect(tensor, torch.tensor([sum(mine)]), "a part of a group")
    alone = dist.split_group(part, [[index] for index in range(len(mine))])
    dist.all_reduce(tensor, group=alone)
    expect(tensor, torch.tensor([sum(mine)]), "a part of a part")


def refusals(dist, rank, world):
    import torch
    for text, call in (
            ("no reduction BAND on tensors of Float", lambda: dist.all_reduce(torch.zeros(2), op=dist.ReduceOp.BAND)),
            ("as large as the input", lambda: dist.all_gather([torch.zeros(3)] * world, torch.zeros(2))),
            ("cannot share evenly", lambda: dist.all_to_all_single(torch.zeros(world + 1), torch.zeros(world + 1))),
            ("add up to", lambda: dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [1] * world, [9] * world)),
    ):
        launch.refused((RuntimeError, ValueError), text, call)
    # Nothing of these was sent.
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    expect(tensor, torch.full((3,), float(world)), "after refused calls")


def training(dist, rank, world):
    """DistributedDataParallel with the parts of a batch is one process with all of it."""
    import torch

    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1)).double()

    def data(step):
        generator = torch.Generator().manual_seed(step)
        return torch.randn(4 * world, 20, dtype=torch.float64, generator=generator)

    alone, parallel = model(), torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.001)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (alone, parallel)]
    for step in range(5):
        batch = data(step)
        for module, optimizer, part in zip((alone, parallel), optimizers, (batch, batch[4 * rank:4 * rank + 4])):
            optimizer.zero_grad()
            module(part).square().mean().backward()
            optimizer.step()
    for one, other in zip(alone.parameters(), parallel.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


ALL = (reductions, layouts, movements, objects, messages, asynchronous, threads, groups, refusals, training)


def begin(**options):
    import torch.distributed as dist
    import mep.torch  # noqa: F401
    dist.init_process_group("mep", **options)
    return dist, dist.get_rank(), dist.get_world_size()


def rank_everything():
    dist, rank, world = begin()
    for case in ALL:
        case(dist, rank, world)
        print(f"{case.__name__}: right", flush=True)
    dist.destroy_process_group()


def rank_pair():
    """A group that only its members make. A job of its own: PyTorch names such groups by how many a rank has made."""
    import torch
    dist, rank, world = begin()
    if rank != 1:
        pair = dist.new_group([0, 2], use_local_synchronization=True)
        tensor = torch.tensor([rank + 1])
        dist.all_reduce(tensor, group=pair)
        expect(tensor, torch.tensor([4]), "a group that only its members make")
    dist.destroy_process_group()


def rank_twice():
    """A group after the end of another, and an end of the program without destroy_process_group."""
    import torch
    dist, rank, world = begin()
    dist.destroy_process_group()
    dist.init_process_group("mep", store=dist.FileStore(os.environ["TEST_FOLDER"] + "/store", world), rank=rank,
                            world_size=world)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    expect(tensor, torch.full((1,), float(world)), "the second group")


def rank_killed():
    """Rank 1 is killed in the middle: the others get an error that names it, in the same operation."""
    import torch
    dist, rank, world = begin()
    folder = pathlib.Path(os.environ["TEST_FOLDER"])
    for step in itertools.count():
        if rank == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_reduce(torch.ones(1000))
        except dist.DistBackendError as error:
            assert "rank 1" in str(error) and step == 20, (step, error)
            break
    try:
        dist.recv(torch.zeros(1), 1)
        raise AssertionError("a message of the rank that is gone")
    except dist.DistBackendError as error:
        assert "rank 1" in str(error), error
    (folder / f"survived.{rank}").touch()
    dist.destroy_process_group()


def rank_replaced():
    """Rank 1 is killed three times in a job that sums steps; each time a replacement takes its place, and the groups go
    on with their size and ranks."""
    import torch
    import torch.distributed as dist
    import mep.torch
    folder = pathlib.Path(os.environ["TEST_FOLDER"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("mep", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    pair = dist.new_group([0, 1])
    is_new = mep.torch.is_replacement()
    life = int(os.environ.get("LIFE", "0"))
    state = torch.zeros(2, dtype=torch.int64)  # steps done, and the sum of what they gave
    while state[0] < 40:
        try:
            if is_new:
                dist.broadcast(state, 0)
                is_new = False
            if rank == 1 and life < 3 and state[0] == 10 * (life + 1):
                os.kill(os.getpid(), signal.SIGKILL)
            step = torch.tensor([rank + 1])
            dist.all_reduce(step)
            in_pair = torch.tensor([rank + 1])
            if rank < 2:
                dist.all_reduce(in_pair, group=pair)
            state += torch.tensor([1, int(step)])
        except dist.DistBackendError as error:
            assert "rank 1" in str(error).lower(), error
            if len(mep.torch.living()) == world:
                continue  # the group of two tells of the death too; the replacement is there
            assert mep.torch.recover([1], timeout=60) == 1
            assert mep.torch.living() == list(range(world))
            dist.broadcast(state, 0)
            if rank == 0:
                try:
                    dist.all_reduce(torch.zeros(1), group=pair)
                except dist.DistBackendError:
                    pass
                else:
                    raise AssertionError("the group of two did not tell of the death")
    assert state.tolist() == [40, 40 * world * (world + 1) // 2], state
    dist.destroy_process_group()


def rank_shrunk():
    """Rank 1 of three is killed; the others make a group of themselves and train on."""
    import torch
    import mep.torch
    dist, rank, world = begin()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.barrier()
        raise AssertionError("a barrier without rank 1")
    except dist.DistBackendError:
        pass
    smaller = mep.torch.shrink()
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor, group=smaller)
    expect(tensor, torch.tensor([2]), "a smaller group")
    assert dist.get_world_size(smaller) == 2


def rank_late():
    """A barrier whose time is over names the rank that did not come."""
    dist, rank, world = begin()
    folder = pathlib.Path(os.environ["TEST_FOLDER"])
    if rank == 1:
        for other in {0, 2} & set(range(world)):
            launch.wait_for(folder / f"told.{other}")
        return
    try:
        dist.group.WORLD._get_backend(__import__("torch").device("cpu")).monitored_barrier(
            timeout=datetime.timedelta(milliseconds=300))
        raise AssertionError("a barrier without rank 1")
    except dist.DistBackendError as error:
        assert "Rank 1 failed to pass monitoredBarrier in 300 ms" in str(error), error
    (folder / f"told.{rank}").touch()


def rank_aborted():
    """abort() in one thread ends what another waits for."""
    import torch
    dist, rank, world = begin()
    folder = pathlib.Path(os.environ["TEST_FOLDER"])
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if rank == 1:
        launch.wait_for(folder / "aborted")
        return
    threading.Timer(0.3, backend.abort).start()
    try:
        dist.barrier()
        raise AssertionError("a barrier without rank 1")
    except dist.DistBackendError as error:
        assert "ABORTED" in str(error), error
    (folder / "aborted").touch()


# --- The tests ----------------------------------------------------------------------------------------

class BackendTest(unittest.TestCase):
    def test_two_ranks(self):
        launch.run(__file__, "everything", 2)

    def test_three_ranks(self):
        launch.run(__file__, "everything", 3)

    def test_debug_level_detail(self):
        launch.run(__file__, "twice", 2, TORCH_DISTRIBUTED_DEBUG="DETAIL")

    def test_group_of_its_members(self):
        launch.run(__file__, "pair", 3)

    def test_groups_one_after_the_other(self):
        launch.run(__file__, "twice", 2)

    def test_killed_rank(self):
        launch.run(__file__, "killed", 3, expected=[0, -signal.SIGKILL, 0])

    def test_replaced_rank(self):
        processes, folder = launch.start(__file__, "replaced", 3)
        # The second life and those after it are replacements.
        for life in range(1, 4):
            dead = processes.pop(1)
            self.assertEqual(dead.wait(launch.LIMIT_S), -signal.SIGKILL)
            processes.insert(1, launch.start_one(__file__, "replaced", 1, 3, folder, MEP_JOIN="1", LIFE=str(life)))
        launch.finish(processes, folder)

    def test_shrunk_group(self):
        launch.run(__file__, "shrunk", 3, expected=[0, -signal.SIGKILL, 0])

    def test_late_rank(self):
        launch.run(__file__, "late", 3)

    def test_abort(self):
        launch.run(__file__, "aborted", 2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
