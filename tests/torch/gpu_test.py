#!/usr/bin/env python3
"""The backend "mep" on tensors of GPUs: a GPU for each rank, as many ranks as there are GPUs, at most four.

It alone finds what streams, events, graphs and the allocator make of MEP's calls. Expected values are made on the CPU.
"""
import datetime
import itertools
import os
import pathlib
import signal
import sys
import time
import unittest

import launch
from backend_test import expect, folded, value, values
from launch import refused

SIZES = (1, 7, 4096, 70_001, 3_000_000)


def gpu():
    import torch
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())


def see(got, wanted, *what):
    assert got.is_cuda, what
    expect(got.cpu(), wanted, *what)


def delay():
    """Keeps the current stream busy for some ms."""
    import torch
    torch.cuda._sleep(20_000_000)


# --- In the ranks -------------------------------------------------------------------------------------

def reductions(dist, rank, world):
    import torch
    ops = dist.ReduceOp
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64, torch.uint8,
                  torch.bool):
        for op, count in itertools.product((ops.SUM, ops.MAX, ops.MIN, ops.PRODUCT), SIZES):
            inputs = values(world, count, dtype)
            wanted = folded(op, inputs)
            tensor = inputs[rank].to(gpu())
            dist.all_reduce(tensor, op=op)
            see(tensor, wanted, "all_reduce", dtype, op, count)
            tensor = inputs[rank].to(gpu())
            dist.reduce(tensor, world - 1, op=op)
            see(tensor, wanted if rank == world - 1 else inputs[rank], "reduce", dtype, op, count)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        inputs = values(world, 64, dtype)
        tensor = inputs[rank].to(gpu())
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(2.0))
        see(tensor, folded(ops.SUM, inputs) * 2, "premul_sum", dtype)
        tensor = torch.full((8,), float(world * (rank + 1)), dtype=dtype, device=gpu())
        dist.all_reduce(tensor, op=ops.AVG)
        see(tensor, torch.full((8,), world * (world + 1) / 2, dtype=dtype), "avg", dtype)
    tensor = torch.full((8,), rank, dtype=torch.int32, device=gpu())
    dist.all_reduce(tensor, op=ops.AVG)
    see(tensor, torch.full((8,), sum(range(world)) // world, dtype=torch.int32), "avg of integers")
    several = [value(rank, count, torch.float32, 2).to(gpu()) for count in (3, 9000)]
    dist.all_reduce_coalesced(several)
    for tensor, count in zip(several, (3, 9000)):
        see(tensor, folded(ops.SUM, values(world, count, torch.float32, 2)), "all_reduce_coalesced", count)
    # No element lies on a boundary that a vector load wants.
    for offset in (1, 3):
        inputs = values(world, 5000, torch.bfloat16, 3)
        memory = torch.zeros(5008, dtype=torch.bfloat16, device=gpu())
        memory[offset:offset + 5000].copy_(inputs[rank])
        dist.all_reduce(memory[offset:offset + 5000])
        see(memory[offset:offset + 5000], folded(ops.SUM, inputs), "all_reduce of unaligned memory")
        see(memory[offset + 5000:], torch.zeros(8 - offset, dtype=torch.bfloat16), "what lies behind")
    transposed = value(rank, 12, torch.float32, 3).reshape(3, 4).to(gpu()).t()
    dist.all_reduce(transposed)
    see(transposed, folded(ops.SUM, values(world, 12, torch.float32, 3)).reshape(3, 4).t(), "a transposed tensor")
    empty = torch.empty(0, device=gpu())
    dist.all_reduce(empty)


def movements(dist, rank, world):
    import torch
    for dtype, count in itertools.product((torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64), SIZES):
        inputs = values(world, count, dtype, 5)
        own = inputs[rank].to(gpu())
        for root in range(world):
            tensor = own.clone()
            dist.broadcast(tensor, root)
            see(tensor, inputs[root], "broadcast", dtype, count)
        outputs = [torch.empty_like(own) for _ in range(world)]
        dist.all_gather(outputs, own)
        for index, output in enumerate(outputs):
            see(output, inputs[index], "all_gather", dtype, count)
        output = torch.empty(world * count, dtype=dtype, device=gpu())
        dist.all_gather_into_tensor(output, own)
        see(output, torch.cat(inputs), "all_gather_into_tensor", dtype, count)
        output.zero_()
        place = output[rank * count:(rank + 1) * count]
        place.copy_(own)
        dist.all_gather_into_tensor(output, place)
        see(output, torch.cat(inputs), "all_gather in place", dtype, count)
        outputs = [torch.empty_like(own) for _ in range(world)] if rank == world - 1 else None
        dist.gather(own, outputs, dst=world - 1)
        for index, output in enumerate(outputs or []):
            see(output, inputs[index], "gather", dtype, count)
        output = torch.empty_like(own)
        dist.scatter(output, [t.to(gpu()) for t in inputs] if rank == 0 else None, src=0)
        see(output, inputs[rank], "scatter", dtype, count)
        blocks = [values(world, count, dtype, 20 + r) for r in range(world)]
        wanted = [blocks[r][rank] for r in range(world)]
        output = torch.empty(world * count, dtype=dtype, device=gpu())
        dist.all_to_all_single(output, torch.cat(blocks[rank]).to(gpu()))
        see(output, torch.cat(wanted), "all_to_all_single", dtype, count)
        outputs = [torch.empty_like(own) for _ in range(world)]
        dist.all_to_all(outputs, [t.to(gpu()) for t in blocks[rank]])
        for index, output in enumerate(outputs):
            see(output, wanted[index], "all_to_all", dtype, count)
    for count in SIZES:
        blocks = [values(world, count, torch.float32, 30 + r) for r in range(world)]
        wanted = folded(dist.ReduceOp.SUM, [blocks[r][rank] for r in range(world)])
        output = torch.empty(count, device=gpu())
        dist.reduce_scatter(output, [t.to(gpu()) for t in blocks[rank]])
        see(output, wanted, "reduce_scatter", count)
        whole = torch.cat(blocks[rank]).to(gpu())
        dist.reduce_scatter_tensor(output.zero_(), whole)
        see(output, wanted, "reduce_scatter_tensor", count)
        place = whole[rank * count:(rank + 1) * count]
        dist.reduce_scatter_tensor(place, whole)
        see(place, wanted, "reduce_scatter in place", count)


def streams(dist, rank, world):
    """The current stream waits for an operation, and an operation for the stream, with nothing but wait()."""
    import torch
    side = torch.cuda.Stream()
    for round_ in range(20):
        tensor = torch.zeros(100_000, device=gpu())
        if rank == round_ % world:
            delay()
        tensor.fill_(rank + round_)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        result = tensor + 0
        see(result, torch.full((100_000,), float(sum(range(world)) + world * round_)), "async", round_)
    # Another stream makes this tensor, and it is the current stream of the call.
    with torch.cuda.stream(side):
        delay()
        tensor = torch.full((5000,), float(rank), device=gpu())
        dist.all_reduce(tensor)
        result = tensor * 2
    side.synchronize()
    see(result, torch.full((5000,), 2.0 * sum(range(world))), "on a side stream")
    # Streams in turns, no wait between: the operations keep their order.
    chain = torch.ones(2000, device=gpu())
    works = []
    for round_ in range(12):
        if rank == round_ % world:
            delay()  # the others are inside of the first operation when they come to the second
        works.append(dist.all_reduce(chain, op=dist.ReduceOp.MAX, async_op=True))
        other = torch.full((2000,), float(rank), device=gpu())
        dist.all_reduce(other)
        see(other, torch.full((2000,), float(sum(range(world)))), "sync behind async")
    for work in works:
        work.wait()
    see(chain, torch.ones(2000), "async in turns with sync")
    # The input's memory is free for the allocator once it is dropped, and must not be given away too early.
    for round_ in range(10):
        output = torch.zeros(world * 400_000, device=gpu())
        given = torch.full((400_000,), float(rank + round_), device=gpu())
        if rank == 0:
            delay()
            given.add_(0)
        work = dist.all_gather_into_tensor(output, given, async_op=True)
        del given
        garbage = [torch.full((400_000,), -1.0, device=gpu()) for _ in range(4)]
        work.wait()
        del garbage
        see(output, torch.cat([torch.full((400_000,), float(r + round_)) for r in range(world)]), "dropped input")
    # Nobody waits for the work: a barrier of the group does.
    tensor = torch.full((9,), float(rank), device=gpu())
    delay()
    dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    see(tensor, torch.full((9,), float(sum(range(world)))), "behind a barrier")
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait(datetime.timedelta(seconds=60))
    assert work.is_completed() and work.is_success()
    with dist._coalescing_manager(async_ops=True) as manager:
        first, second = torch.ones(5, device=gpu()), torch.ones(7, device=gpu())
        dist.all_reduce(first)
        dist.all_reduce(second)
    manager.wait()
    see(first, torch.full((5,), float(world)), "coalesced")
    see(second, torch.full((7,), float(world)), "coalesced")
    tensor = torch.full((1000,), float(rank), device=gpu())
    delay()
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).wait()
    see(doubled, torch.full((1000,), 2.0 * sum(range(world))), "a future's callback")


def graphs(dist, rank, world):
    import torch
    tensor = torch.zeros(10_000, device=gpu())
    gathered = torch.zeros(world * 10_000, device=gpu())
    dist.all_reduce(tensor)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor)
        work = dist.all_gather_into_tensor(gathered, tensor, async_op=True)
        work.wait()
        gathered.add_(1)
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second):
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    for round_ in range(20):
        tensor.fill_(rank + round_)
        graph.replay()
        total = float(sum(range(world)) + world * round_)
        see(tensor, torch.full((10_000,), total), "replay", round_)
        see(gathered, torch.full((world * 10_000,), total + 1), "async in a graph", round_)
        tensor.fill_(rank)
        second.replay()
        see(tensor, torch.full((10_000,), float(world - 1)), "a second graph", round_)
        dist.all_reduce(tensor)
        see(tensor, torch.full((10_000,), float(world * (world - 1))), "between replays", round_)


def training(dist, rank, world):
    """DDP and FSDP2 steps against one process on the CPU. Values are small whole numbers, so sums are exact."""
    import torch
    from torch.distributed.fsdp import fully_shard

    def model():
        torch.manual_seed(1)
        layers = torch.nn.Sequential(torch.nn.Linear(16, 32, dtype=torch.float64),
                                     torch.nn.Linear(32, 8, dtype=torch.float64))
        with torch.no_grad():
            for parameter in layers.parameters():
                parameter.copy_(torch.randint(-2, 3, parameter.shape))
        return layers

    batches = [torch.randint(-2, 3, (4, 16), generator=torch.Generator().manual_seed(r)).double() for r in range(world)]
    alone = model()
    for batch in batches:
        alone(batch).sum().div(world).backward()
    parallel = torch.nn.parallel.DistributedDataParallel(model().to(gpu()), device_ids=[gpu().index])
    parallel(batches[rank].to(gpu())).sum().backward()
    for mine, wanted in zip(parallel.parameters(), alone.parameters()):
        assert torch.allclose(mine.grad.cpu(), wanted.grad, rtol=1e-12), "DDP"
    sharded = model().to(gpu())
    for layer in sharded:
        fully_shard(layer)
    fully_shard(sharded)
    sharded(batches[rank].to(gpu())).sum().backward()
    for mine, wanted in zip(sharded.parameters(), alone.parameters()):
        assert torch.allclose(mine.grad.full_tensor().cpu(), wanted.grad, rtol=1e-12), "FSDP2"


def sizes(dist, rank, world):
    """Split sizes and lists of tensors that differ in size, beside the same on the CPU."""
    import torch

    def both(call):
        on_host, on_gpu = call("cpu"), call(gpu())
        for host, device in zip(on_host, on_gpu):
            see(device, host, "sizes that differ")

    def split(device):
        sent = [3 * rank + 5 * to for to in range(world)]
        received = [3 * source + 5 * rank for source in range(world)]
        given = torch.arange(sum(sent) * 2, dtype=torch.float64).reshape(-1, 2).to(device) + 1000 * rank
        out = torch.zeros(sum(received), 2, dtype=torch.float64, device=device)
        dist.all_to_all_single(out, given, received, sent)
        return [out]

    def lists(device):
        given = [torch.full((to + 1,), 10 * rank + to, device=device) for to in range(world)]
        out = [torch.zeros(rank + 1, dtype=torch.int64, device=device) for _ in range(world)]
        dist.all_to_all(out, given)
        gathered = [torch.zeros(source, 3, device=device) for source in range(world)]
        dist.all_gather(gathered, torch.full((rank, 3), float(rank), device=device))
        return out + gathered

    both(split)
    both(lists)


def messages(dist, rank, world):
    """send, recv and batches of them: sizes, strides, both ways at a time, in a graph."""
    import torch
    dist.all_reduce(torch.zeros(1, device=gpu()))  # connects
    after, before = (rank + 1) % world, (rank - 1) % world

    def given(source, count):
        return torch.arange(count, dtype=torch.float32) + 1000 * source

    for count in SIZES:
        if rank % 2 == 0:
            dist.send(given(rank, count).to(gpu()), after, tag=count % 7)
        if rank % 2 == 1 or world % 2 == 1 and rank == 0:
            place = torch.zeros(count, device=gpu())
            dist.recv(place, before, tag=count % 7)
            see(place, given(before, count), "recv", count)
    for count in SIZES:
        place = torch.zeros(count, 2, device=gpu())[:, 1]
        back = torch.zeros(count, device=gpu())
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, given(rank, count).to(gpu()), after),
            dist.P2POp(dist.irecv, place, before),
            dist.P2POp(dist.isend, given(rank, count).to(gpu()) + 1, before),
            dist.P2POp(dist.irecv, back, after)])
        for work in works:
            work.wait()
        see(place, given(before, count), "batch", count)
        see(back, given(after, count) + 1, "batch, backwards", count)
    tensor, place = given(rank, 5000).to(gpu()), torch.zeros(5000, device=gpu())
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        works = [dist.isend(tensor, after), dist.irecv(place, before)]
        for work in works:
            work.wait()
    for step in range(3):
        tensor += step
        graph.replay()
        torch.cuda.synchronize()
        see(place, given(before, 5000) + sum(range(step + 1)), "replayed")


def mixed(dist, rank, world):
    """Both kinds of tensors on one group, subgroups, and what is refused."""
    import torch
    host, device = torch.full((10,), float(rank)), torch.full((10,), float(rank), device=gpu())
    dist.all_reduce(host)
    dist.all_reduce(device)
    see(device, host, "host and GPU on one group")
    found = [None] * world
    dist.all_gather_object(found, rank)
    assert found == list(range(world))
    alone = dist.new_group([rank], use_local_synchronization=True)
    everybody = dist.new_group(list(range(world)))
    for group, wanted in ((alone, 1.0), (everybody, float(world))):
        tensor = torch.ones(1000, device=gpu())
        dist.all_reduce(tensor, group=group)
        see(tensor, torch.full((1000,), wanted), "of a group")

    part = torch.zeros(10 + rank, device=gpu())
    dist.reduce_scatter(part, [torch.full((10 + r,), 1.0 + rank, device=gpu()) for r in range(world)])
    see(part, torch.full((10 + rank,), world * (world + 1) / 2), "reduce_scatter of different sizes")
    if world > 1:
        refused(NotImplementedError, "any source", lambda: dist.recv(device))
    refused(ValueError, "tensors on", lambda: dist.all_gather_into_tensor(torch.zeros(10 * world), device))
    group = dist.new_group(list(range(world)))
    graph = torch.cuda.CUDAGraph()

    def capture():
        with torch.cuda.graph(graph):
            dist.all_reduce(device, group=group)

    refused(RuntimeError, "cannot be captured", capture)
    torch.cuda.synchronize()
    dist.all_reduce(device, group=group)


def new_model(device):
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8))
    model = model.double().to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(model, step, part):
    """The part of a step's data that falls to a rank."""
    import torch
    generator = torch.Generator().manual_seed(1000 * step + part)
    inputs = torch.randn(16, 64, generator=generator, dtype=torch.float64)
    inputs = inputs.to(next(model.parameters()).device)
    return torch.nn.functional.mse_loss(model(inputs), inputs[:, :8].sin())


def resources():
    """Descriptors and mappings of this process, MiB in use on its GPU."""
    import torch
    free, total = torch.cuda.mem_get_info()
    maps = pathlib.Path("/proc/self/maps").read_text(encoding="ascii").count("\n")
    return len(os.listdir("/proc/self/fd")), maps, (total - free) >> 20


def replacements(dist, rank, world):
    """Rank 1 dies in each third step of a training with DistributedDataParallel and is replaced."""
    import torch
    import mep.torch
    folder, cycles = pathlib.Path(os.environ["TEST_FOLDER"]), int(os.environ["TEST_CYCLES"])
    model, optimizer = new_model(gpu())
    last, seen = 3 * (cycles + 1), []

    def resume(step):
        now = torch.tensor([step], device=gpu())
        dist.broadcast(now, 0)
        # The constructor gives every rank the parameters of rank 0.
        return torch.nn.parallel.DistributedDataParallel(model), int(now)
    parallel, step = resume(0)
    while step < last:
        if rank == 1 and step % 3 == 2 and step // 3 == int(os.environ["TEST_LIFE"]) < cycles:
            torch.cuda.synchronize()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        try:
            loss_of(parallel, step, rank).backward()
            dist.barrier()
            torch.cuda.synchronize()
        except dist.DistBackendError as error:
            assert "rank 1" in str(error), error
            try:
                dist.barrier()
            except dist.DistBackendError:
                pass  # the other of the two communicators, host and GPU
            launch.wait_for(folder / f"comes.{step // 3 + 1}")
            begin = time.perf_counter()
            mep.torch.recover([1], timeout=120)
            called = time.perf_counter()
            parallel, step = resume(step)
            ended = time.perf_counter()
            seen.append((1e3 * (called - begin), 1e3 * (ended - begin), *resources()))
            continue
        optimizer.step()
        step += 1
    alone, optimizer = new_model("cpu")
    for step in range(last):
        optimizer.zero_grad()
        sum(loss_of(alone, step, part) for part in range(world)).div(world).backward()
        optimizer.step()
    for one, other in zip(alone.parameters(), model.parameters()):
        torch.testing.assert_close(one, other.cpu(), rtol=1e-7, atol=1e-10)
    if rank != 0:
        return
    rows = ["  recovered in ms, all work after ms, descriptors, mappings, MiB of the GPU"]
    rows += [f"  {a:8.1f} {b:8.1f} {fds:5d} {maps:5d} {mib:7d}" for a, b, fds, maps, mib in seen]
    (folder / "table").write_text("\n".join(rows) + "\n", encoding="ascii")
    # The first recovery loads what later ones use.
    assert all(each[2] <= seen[0][2] + 2 and each[3] <= seen[0][3] + 24 for each in seen), rows


def configurations(dist, rank, world):
    """The members change by reconfigure(), also behind an operation that cannot end; each time the GPUs meet anew."""
    import torch
    store = dist.FileStore(os.environ["TEST_FOLDER"] + "/handles", -1)
    store.set(str(rank), dist._get_reconfigure_handle())
    handles = [store.get(str(each)).decode() for each in range(world)]
    limit = datetime.timedelta(seconds=120)

    def check(place, size):
        assert (dist.get_rank(), dist.get_world_size()) == (place, size)
        tensor = torch.full((70_001,), place + 1.0, device=gpu())
        dist.all_reduce(tensor)
        see(tensor, torch.full((70_001,), size * (size + 1) / 2), "sum of", size)
    dist._reconfigure(rank, [handles[rank]], timeout=limit).wait()
    check(0, 1)
    for uuid, members in ((100, handles), (101, handles[::-1]), (102, handles)):
        dist._reconfigure(uuid, members, timeout=limit).wait()
        check(members.index(handles[rank]), world)
    if rank != 0:
        dist.all_reduce(torch.ones(5, device=gpu()), async_op=True)
        dist.get_backend_impl(dist.group.WORLD, gpu()).abort()
    dist._reconfigure(103, handles, timeout=limit).wait()
    check(rank, world)


RANKS = {function.__name__: function
         for function in (reductions, movements, streams, graphs, training, sizes, messages, mixed, replacements,
                          configurations)}


def be_a_rank(name):
    import torch
    import torch.distributed as dist
    import mep.torch  # noqa: F401, registers the backend
    torch.cuda.set_device(gpu())
    if os.environ.get("MEP_JOIN"):
        # Its own start ends here, with PyTorch's kernels loaded.
        loss_of(new_model(gpu())[0], 0, 0).backward()
        torch.cuda.synchronize()
        (pathlib.Path(os.environ["TEST_FOLDER"]) / f"comes.{os.environ['TEST_LIFE']}").touch()
    dist.init_process_group("mep", init_method=os.environ.get("TEST_INIT"), rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]), timeout=datetime.timedelta(seconds=120),
                            **({"enable_reconfigure": True} if name == "configurations" else {}))
    RANKS[name](dist, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


# --- The tests ----------------------------------------------------------------------------------------

def ranks():
    """One for each GPU, from 2 to 4; 0 without a GPU."""
    import torch
    return min(max(torch.cuda.device_count(), 2), 4) if torch.cuda.is_available() else 0


class GpuTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if ranks() == 0:
            raise unittest.SkipTest("no GPU")

    def run_ranks(self, name):
        launch.run(__file__, name, ranks())

    def test_reductions(self):
        self.run_ranks("reductions")

    def test_movements(self):
        self.run_ranks("movements")

    def test_streams(self):
        self.run_ranks("streams")

    def test_graphs(self):
        self.run_ranks("graphs")

    def test_training(self):
        self.run_ranks("training")

    def test_sizes(self):
        self.run_ranks("sizes")

    def test_messages(self):
        self.run_ranks("messages")

    def test_mixed(self):
        self.run_ranks("mixed")

    def test_configurations(self):
        import torch
        if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
            self.skipTest("needs PyTorch 2.14")
        self.run_ranks("configurations")

    def test_replacements(self):
        """MEP_TEST_CYCLES: so many deaths. One GPU is enough: processes share it."""
        import tempfile
        folder = pathlib.Path(tempfile.mkdtemp(prefix="mep_torch_"))
        size, cycles = max(ranks(), 3), int(os.environ.get("MEP_TEST_CYCLES", "2"))
        given = {"TEST_INIT": f"file://{folder}/store", "TEST_CYCLES": str(cycles)}
        processes = [launch.start_one(__file__, "replacements", rank, size, folder, TEST_LIFE="0", **given)
                     for rank in range(size)]
        for life in range(1, cycles + 1):
            self.assertEqual(processes[1].wait(launch.LIMIT_S), -signal.SIGKILL)
            processes[1] = launch.start_one(__file__, "replacements", 1, size, folder, MEP_JOIN="1",
                                            TEST_LIFE=str(life), **given)
        launch.finish(processes, folder)
        print((folder / "table").read_text(encoding="ascii"), end="", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "rank":
        be_a_rank(sys.argv[2])
    else:
        unittest.main()
