#!/usr/bin/env python3
"""Uses of a group of MEP that clients make and PyTorch's own suite does not: callbacks that wait, outputs of inference mode,
a tensor twice in a list, sparse tensors, wrong arguments on one rank, a Buffer after a recovery. 60 s."""
import datetime
import os
import pathlib
import signal
import sys
import unittest

import launch
from backend_test import begin, expect
from launch import refused


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


def rank_sparse():
    """Sums of sparse tensors: no coordinates on a rank, the same twice, dense dimensions; async; and DDP."""
    import torch
    dist, rank, world = begin()
    for dense in ((), (4,), (2, 3)):
        for name, count_of in (("a rank's number", int), ("none", lambda _: 0), ("three", lambda _: 3)):
            count = count_of(rank)
            values = torch.arange(1.0, count * max(1, torch.Size(dense).numel()) + 1).view(count, *dense)
            indices = torch.tensor([[(rank + each) % 5 for each in range(count)], [0] * count], dtype=torch.long)
            tensor = torch.sparse_coo_tensor(indices, values, (5, 2, *dense))
            wanted = torch.zeros(5, 2, *dense)
            for of in range(world):
                theirs = count_of(of)
                part = torch.arange(1.0, theirs * max(1, torch.Size(dense).numel()) + 1).view(theirs, *dense)
                for each in range(theirs):
                    wanted[(of + each) % 5, 0] += part[each]
            if name == "three":
                dist.all_reduce(tensor, async_op=True).wait()
            else:
                dist.all_reduce(tensor)
            expect(tensor.to_dense(), wanted, "sparse", dense, name)
    one = torch.arange(2.0)[::2]  # contiguous, with a stride of 2
    gathered = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(gathered, one if rank == 0 else torch.full((2,), float(rank))[::2])
    expect(torch.cat(gathered), torch.arange(float(world)), "one element with a stride")
    twice = torch.sparse_coo_tensor([[1, 1]], [2.0, 3.0], (4,))
    dist.all_reduce(twice)
    expect(twice.to_dense(), torch.tensor([0, 5.0 * world, 0, 0]), "a coordinate twice")
    refused(ValueError, "SUM alone", dist.all_reduce, twice, dist.ReduceOp.MAX)
    other = torch.sparse_coo_tensor([[1]], [2.0], (4 + (rank == 0),))
    refused(ValueError, "differ in shape", dist.all_reduce, other)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(10, 4, sparse=True))
    model(torch.tensor([rank, 9])).sum().backward()
    wanted = torch.zeros(10, 4)
    wanted[:world], wanted[9] = 1.0 / world, 1.0
    expect(model.module.weight.grad.to_dense(), wanted, "gradients of an embedding")
    dist.destroy_process_group()


def rank_wrong_arguments():
    """Rank 0's arguments are wrong: ValueError there, a mismatch elsewhere at once, and all go on with the next call."""
    import torch
    dist, rank, world = begin()
    x = torch.arange(2.0 * world)

    def wrong(call, text):
        kind, said = (ValueError, text) if rank == 0 else (dist.DistBackendError, "MISMATCH")
        refused(kind, said, call)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        expect(tensor, torch.full((3,), float(world)), "after", text)
    for async_op in (False, True):
        def at(call, *arguments, **options):
            return lambda: (call(*arguments, **options, async_op=True).wait() if async_op else call(*arguments, **options))
        wrong(at(dist.all_to_all_single, torch.empty(2 * world + (rank == 0)), x), "cannot share evenly")
        wrong(at(dist.all_to_all_single, torch.empty(2 * world), x, [2] * world, [2] * (world - 1) + [2 - (rank == 0)]), "add up")
        wrong(at(dist.all_gather_into_tensor, torch.empty(2 * world * world + (rank == 0)), x), "output needs")
        wrong(at(dist.reduce_scatter_tensor, torch.empty(2 + (rank == 0)), x), "input needs")
        wrong(at(dist.all_gather, [torch.empty(2 * world)] * (world - (rank == 0)), x), "output tensors")
    # All are wrong: nobody waits.
    refused(ValueError, "cannot share evenly", dist.all_to_all_single, torch.empty(2 * world + 1), x)
    sizes = [1] * world
    sizes[0] += rank == 0
    refused(dist.DistBackendError, "MISMATCH", dist.all_to_all_single, torch.empty(world), torch.ones(sum(sizes)), [1] * world, sizes)
    dist.barrier()
    dist.destroy_process_group()


def rank_types_differ():
    """Rank 0 has another type of as many bytes: each rank learns both, in the call or, where its root waited for nobody, in the
    barrier after it."""
    import torch
    dist, rank, world = begin()
    kind = torch.int32 if rank == 0 else torch.float32

    def learn(call, *arguments):
        told = 0
        for each in (lambda: call(*arguments), dist.barrier):
            try:
                each()
            except dist.DistBackendError as problem:
                told += "MISMATCH" in str(problem) and "int32" in str(problem) and "float32" in str(problem)
                if not told:
                    raise
        if not told:
            raise AssertionError(f"{call.__name__} told rank {rank} nothing")
        dist.barrier()
    for count in (5, 50_000):
        x, whole = torch.ones(count, dtype=kind), torch.ones(world * count, dtype=kind)
        blocks = [torch.ones(count, dtype=kind) for _ in range(world)]
        learn(dist.all_gather_into_tensor, whole, x)
        learn(dist.reduce_scatter_tensor, x, whole)
        learn(dist.all_to_all_single, torch.empty_like(whole), whole)
        learn(dist.broadcast, x, 1)
        learn(dist.all_gather, blocks, x)
        learn(dist.all_to_all, blocks, [block.clone() for block in blocks])
        for root in (0, 1):
            learn(dist.gather, x, blocks if rank == root else None, root)
            learn(dist.scatter, x, blocks if rank == root else None, root)
    dist.destroy_process_group()


def rank_buffer_after_recovery():
    """Buffers over a group that has taken in a replacement, which has made fewer of them: one that the others keep and
    update, in both modes, and a new one."""
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
        kept = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True, enable_shrink=True)
        layers_after_recovery(kept, rank, world)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        launch.wait_until(lambda: 1 not in mep.torch.living(), "rank 1 lives")
        refused(RuntimeError, "mep.torch.recover([1])", kept.update_ep_member)
        mep.torch.recover([1], timeout=60)  # with no call before it that raises
        buffer.destroy()
        refused(RuntimeError, "was destroyed", buffer.update_ep_member)
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor)
    expect(tensor, torch.tensor([world * (world + 1) / 2]), "the first call after the recovery")
    if mep.torch.is_replacement():
        kept = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True, enable_shrink=True)
    else:
        kept.update_ep_member()
    new = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True, enable_shrink=True)
    for buffer in (kept, new, kept):
        layers_after_recovery(buffer, rank, world)
    for buffer in (new, kept):
        buffer.destroy()
    dist.destroy_process_group()


def layers_after_recovery(buffer, rank, world):
    """One in low-latency mode, one in normal mode; experts return what they get."""
    import torch
    mask = torch.ones(world, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(mask)
    expect(mask, torch.zeros(world, dtype=torch.int32), "all ranks are there")
    x, index = torch.full((4, 128), 1.0 + rank, dtype=torch.bfloat16), torch.arange(8).view(4, 2) % (2 * world)
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, index, 8, 2 * world, use_fp8=False)
    sums, _, _ = buffer.low_latency_combine(rows.clone(), index, torch.ones(4, 2), handle)
    expect(sums, x * 2, "a layer in low-latency mode")
    _, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(index, 2 * world)
    rows, _, _, _, handle, _ = buffer.dispatch(x, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
                                               topk_idx=index, topk_weights=torch.ones(4, 2))
    sums, _, _ = buffer.combine(rows, handle)
    expect(sums, x * in_rank.sum(1, keepdim=True), "a layer in normal mode")


def rank_loss_between_layers():
    """With enable_shrink no call raises. Terms of living ranks lack in one layer at most, whose mask shows the loss."""
    import torch
    import mep.deep_ep as deep_ep
    dist, rank, world = begin()
    buffer = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True, enable_shrink=True)
    mask = torch.zeros(world, dtype=torch.int32)
    incomplete = 0
    for step in range(40):
        if rank == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        generator = torch.Generator().manual_seed(100 * step + rank)
        rows = 1 + step % 5
        x = torch.randint(1, 9, (rows, 64), generator=generator).bfloat16()
        index = torch.stack([torch.randperm(4 * world, generator=generator)[:2] for _ in range(rows)])
        received, _, handle, _, _ = buffer.low_latency_dispatch(x, index, 8, 4 * world, use_fp8=False)
        sums, _, _ = buffer.low_latency_combine(received, index, torch.ones(rows, 2), handle)
        buffer.low_latency_query_mask_buffer(mask)
        terms = (index // 4 != 1).sum(1, keepdim=True) if mask[1] else torch.full((rows, 1), 2)
        if not torch.equal(sums, x * terms):
            incomplete += 1
            present = sums / x
            assert mask.tolist() == [0, 1, 0] and torch.equal(present, present[:, :1].expand(rows, 64)), (step, present)
            assert bool(((present[:, :1] >= 0) & (present[:, :1] <= 2)).all()), (step, present)
    assert incomplete <= 1 and mask.tolist() == [0, 1, 0], (incomplete, mask)
    folder = pathlib.Path(os.environ["TEST_FOLDER"])
    (folder / f"done.{rank}").touch()
    launch.wait_for(folder / f"done.{2 - rank}")  # the end of a rank would be another loss
    os._exit(0)


def rank_places_of_the_lost():
    """After a loss each form of a call leaves the place of the lost rank as it was."""
    import torch
    dist, rank, world = begin()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    lost = False
    while not lost:
        try:
            dist.all_reduce(torch.ones(1))
        except dist.DistBackendError:
            lost = True

    def rows(count):
        return [torch.full((count,), -1.0) for _ in range(world)]

    def strided(count):
        return torch.full((world * count, 2), -1.0)[:, 0]
    for count in (5, 50000):
        mine = torch.full((count,), float(rank))
        junk = [torch.full((world * count,), 7.25) for _ in range(16)]  # what new memory is made of
        del junk
        outputs = {"flat": torch.full((world * count,), -1.0), "strided": strided(count), "list": rows(count), "gather": rows(count),
                   "strided list": [each[:, 0] for each in torch.full((world, count, 2), -1.0)],
                   "all_to_all": rows(count), "all_to_all_single": strided(count)}
        dist.all_gather_into_tensor(outputs["flat"], mine)
        dist.all_gather_into_tensor(outputs["strided"], mine)
        dist.all_gather(outputs["list"], mine)
        dist.all_gather(outputs["strided list"], mine)
        dist.gather(mine, outputs["gather"] if rank == 0 else None)
        dist.all_to_all(outputs["all_to_all"], [mine] * world)
        dist.all_to_all_single(outputs["all_to_all_single"], mine.repeat(world))
        if rank != 0:
            del outputs["gather"]
        for name, output in outputs.items():
            blocks = torch.stack(output) if isinstance(output, list) else output.view(world, count)
            expect(blocks, torch.tensor([0.0, -1.0, 2.0]).unsqueeze(1).expand(world, count), name, count)
    folder = pathlib.Path(os.environ["TEST_FOLDER"])
    (folder / f"done.{rank}").touch()
    launch.wait_for(folder / f"done.{2 - rank}")  # the end of a rank would be another loss
    os._exit(0)


def rank_communicator():
    """A communicator of MEP from groups of MEP and of gloo, and an EP object whose memory is shown as tensors."""
    import torch
    import mep
    import mep.torch
    dist, rank, world = begin()
    groups = [None, dist.new_group([1, 0], backend="gloo")]
    comms = [mep.torch.comm(group, timeout_ms=20000) for group in groups]
    assert [comm.rank for comm in comms] == [rank, dist.get_rank(groups[1])] and comms[1].size == 2
    tensor = comms[1].allreduce(torch.tensor([10.0 ** rank]))
    expect(tensor, torch.tensor([11.0]), "over another communicator")
    refused(TypeError, "process group", mep.torch.comm, "world")
    options = dict(hidden=128, top_k=1, num_experts=world, max_tokens_per_rank=4)
    refused(ValueError, "numpy or torch", lambda: mep.Ep(comms[0], arrays="cupy", **options))
    chosen = torch.full((4, 1), (rank + 1) % world)
    for layout in ("low_latency", "high_throughput"):
        for kind in (torch.bfloat16, torch.float8_e4m3fn):
            x = (torch.randn(4, 128, generator=torch.Generator().manual_seed(rank)) * 3).to(kind)
            source = (rank - 1) % world
            sent = (torch.randn(4, 128, generator=torch.Generator().manual_seed(source)) * 3).to(kind)
            scales = torch.ones(4, 1) if kind != torch.bfloat16 else None
            ep = mep.Ep(comms[0], arrays="torch", layout=layout, input_type=kind, **options)
            handle = ep.handle()
            received = handle.dispatch(x, chosen, torch.ones(4, 1), x_scales=scales)
            rows = received.x[:received.total] if ep.high_throughput else received.rows(0)
            assert rows.dtype == kind and torch.equal(rows.view(torch.uint8), sent.view(torch.uint8)), (layout, kind)
            assert received.count.dtype == torch.int32 and received.count.tolist() == [4]
            place = ep.combine_input()
            assert place.dtype == torch.bfloat16
            (place if ep.high_throughput else place[0])[:4] = rows.float() * 2
            expect(handle.combine(), (x.float() * 2).to(torch.bfloat16), "what came back")
            comms[0].barrier()  # no rank reads it any more
            ep.close()
            place.fill_(3)  # the tensor keeps the memory
            assert float(place.flatten()[0]) == 3
    for comm in comms:
        comm.close()
    dist.destroy_process_group()


def rank_complex():
    """Reductions of complex numbers are those of pairs of real ones."""
    import torch
    dist, rank, world = begin()
    for count in (2, 9000):
        values = torch.complex(torch.arange(float(count)), torch.full((count,), 3.0))
        total, mine = values * (world * (world + 1) // 2), values * (rank + 1)
        for op, wanted in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, total / world)):
            tensor = mine.clone()
            dist.reduce(tensor, 1, op)
            expect(tensor, wanted if rank == 1 else tensor, "reduce", count)
            output = torch.empty(count, 2, dtype=torch.complex64)[:, 0]
            dist.reduce_scatter(output, [mine] * world, op)
            expect(output, wanted, "reduce_scatter", count)
            output = torch.empty_like(mine)
            dist.reduce_scatter_tensor(output, mine.conj().repeat(world), op)
            expect(output, wanted.conj().resolve_conj(), "reduce_scatter_tensor", count)
    refused(NotImplementedError, "PRODUCT", dist.reduce, torch.ones(2, dtype=torch.complex64), 0, dist.ReduceOp.PRODUCT)
    dist.destroy_process_group()


class Clients(unittest.TestCase):
    def test_places_of_the_lost(self):
        launch.run(__file__, "places_of_the_lost", 3, expected=[0, -signal.SIGKILL, 0])

    def test_communicator_of_a_group(self):
        launch.run(__file__, "communicator", 2)

    def test_complex_reductions(self):
        launch.run(__file__, "complex", 2)

    def test_callbacks_that_wait(self):
        launch.run(__file__, "waiting_callbacks", 2)

    def test_outputs_of_inference_mode(self):
        launch.run(__file__, "inference_mode", 2)

    def test_buffer_after_a_recovery(self):
        launch.run_with_replacement(__file__, "buffer_after_recovery", 3, 1, MEP_JOIN="1")

    def test_sums_of_sparse_tensors(self):
        launch.run(__file__, "sparse", 3)

    def test_arguments_wrong_on_one_rank(self):
        launch.run(__file__, "wrong_arguments", 3)

    def test_types_that_differ(self):
        launch.run(__file__, "types_differ", 3)

    def test_loss_between_layers(self):
        launch.run(__file__, "loss_between_layers", 3, expected=[0, -signal.SIGKILL, 0])

    def test_tensor_twice_in_a_list(self):
        launch.run(__file__, "tensor_twice", 3)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
