#!/usr/bin/env python3
"""Device arrays of PyTorch and CuPy through the Python binding, two ranks in one process.

The ranks are dealt to the GPUs that there are. Wants a GPU, PyTorch or CuPy, and MEP_LIBRARY; exits with 77 where one of these is missing.
"""
import os
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings" / "python"))
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

SKIPPED = 77
RANKS = 2


def with_blocks(torch, comms, streams, synchronize):
    """Calls that give the ranks different things: block b of rank r has the value 10 * r + b."""
    root = RANKS - 1
    sends, blocks, kinds = [], [], []
    for comm in comms:
        device = torch.device("cuda", comm.device)
        values = 10 * comm.rank + torch.arange(RANKS, dtype=torch.float32, device=device)
        sends.append(values.reshape(RANKS, 1).repeat(1, 500).contiguous())
        blocks.append([torch.zeros(500, device=device) for _ in range(3)])
        kinds.append([torch.zeros((RANKS, 500), device=device) for _ in range(2)])
    synchronize()
    for comm, send, one, each, stream in zip(comms, sends, blocks, kinds, streams):
        comm.reduce(send[0], root, one[0], stream=stream)
        comm.scatter(send, root, one[1], stream=stream)
        comm.reduce_scatter(send, one[2], stream=stream)
        comm.gather(send[1], root, each[0], stream=stream)
        comm.alltoall(send, each[1], stream=stream)
    synchronize()
    for comm, one, each in zip(comms, blocks, kinds):
        is_root = comm.rank == root
        firsts = sum(10 * rank for rank in range(RANKS))
        assert one[0].eq(firsts if is_root else 0).all().item(), ("reduce", one[0][:4])
        assert one[1].eq(10 * root + comm.rank).all().item(), ("scatter", one[1][:4])
        assert one[2].eq(firsts + RANKS * comm.rank).all().item(), ("reduce_scatter", one[2][:4])
        for rank in range(RANKS):
            gathered = 10 * rank + 1 if is_root else 0
            assert each[0][rank].eq(gathered).all().item(), ("gather", each[0][:, :4])
            assert each[1][rank].eq(10 * rank + comm.rank).all().item(), ("alltoall", each[1][:, :4])


def with_torch(mep, comms):
    import torch

    def synchronize():
        for comm in comms:
            torch.cuda.synchronize(comm.device)

    streams = [torch.cuda.Stream(comm.device) for comm in comms]
    sends, receives = [], []
    for comm in comms:
        options = {"dtype": torch.bfloat16, "device": torch.device("cuda", comm.device)}
        sends.append(torch.full((1000,), float(comm.rank + 1), **options))
        receives.append(torch.zeros(1000, **options))
    synchronize()
    for comm, send, receive, stream in zip(comms, sends, receives, streams):
        comm.allreduce(send, receive, stream=stream)
    synchronize()
    for receive in receives:
        assert receive.eq(3).all().item(), receive[:4]
    blocks = [torch.zeros((RANKS, 1000), dtype=torch.bfloat16, device=send.device) for send in sends]
    synchronize()
    for comm, send, block, stream in zip(comms, sends, blocks, streams):
        comm.allgather(send, block, stream=stream)
    synchronize()
    for block in blocks:
        assert block[0].eq(1).all().item() and block[1].eq(2).all().item()
    with_blocks(torch, comms, streams, synchronize)
    graphs = []
    for comm, send, receive, stream in zip(comms, sends, receives, streams):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(comm.device):
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                comm.allreduce(send, receive, "max", stream=stream)
        graphs.append(graph)
    for _ in range(10):
        for receive in receives:
            receive.zero_()
        synchronize()
        for graph, stream in zip(graphs, streams):
            with torch.cuda.stream(stream):
                graph.replay()
        synchronize()
        for receive in receives:
            assert receive.eq(2).all().item(), receive[:4]
    for comm in comms:
        comm.async_result()
    print("python: PyTorch tensors, eager and in graphs")


def messages_of_torch(mep, comms):
    """send and recv of tensors, both ways in a group, and around with sendrecv."""
    import torch
    streams = [torch.cuda.Stream(comm.device) for comm in comms]
    devices = [torch.device("cuda", comm.device) for comm in comms]
    for count in (1, 5000, 2_000_000):
        given = [torch.full((count,), 10.0 + comm.rank, device=device) for comm, device in zip(comms, devices)]
        taken = [torch.zeros(2, count, device=device) for device in devices]
        for device in devices:
            torch.cuda.synchronize(device)
        for comm, send, recv, stream in zip(comms, given, taken, streams):
            other = 1 - comm.rank
            with mep.group():
                comm.send(send, other, 3, stream=stream)
                comm.recv(recv[0], other, 3, stream=stream)
            assert comm.sendrecv(send, other, recv[1], other, stream=stream) is None
        for comm, recv, device in zip(comms, taken, devices):
            torch.cuda.synchronize(device)
            assert recv.eq(11.0 - comm.rank).all().item(), recv[:, :4]
            comm.async_result()
    print("python: messages of PyTorch tensors")


def registered_memory(mep, comms):
    """Tensors over memory of the library, which peers read where it lies."""
    import torch
    rows, columns = RANKS, 1 << 20
    memory = [comm.mem_alloc((rows, columns), "bfloat16") for comm in comms]
    tensors = [torch.from_dlpack(each) for each in memory]
    taken = [torch.zeros(rows, columns, dtype=torch.bfloat16, device=each.device) for each in tensors]
    for comm, tensor in zip(comms, tensors):
        for row in range(rows):
            tensor[row] = 10 * comm.rank + row
        torch.cuda.synchronize(comm.device)
    registered = {}
    on_threads(comms, lambda comm: registered.update({comm.rank: comm.register(memory[comm.rank])}))
    streams = [torch.cuda.Stream(comm.device) for comm in comms]
    for comm, tensor, recv, stream in zip(comms, tensors, taken, streams):
        comm.alltoall(tensor, recv, stream=stream)
    for comm, recv in zip(comms, taken):
        torch.cuda.synchronize(comm.device)
        comm.async_result()
        for row in range(rows):
            assert recv[row].eq(10 * row + comm.rank).all().item(), recv[:, :4]
    on_threads(comms, lambda comm: comm.deregister(registered[comm.rank]))
    for comm, each in zip(comms, memory):
        comm.mem_free(each)
    print("python: registered memory as PyTorch tensors")


def experts_of_torch(mep, comms):
    """Dispatch and combine on tensors: experts that give back what they get return each token times the sum of its
    weights. The library's own memory is seen through DLPack."""
    import torch
    tokens, hidden, top_k, experts = 24, 256, 2, 4
    results, expected, streams = [], [], [torch.cuda.Stream(comm.device) for comm in comms]
    made = on_threads(comms, lambda comm: mep.Ep(comm, hidden=hidden, top_k=top_k, num_experts=experts,
                                                 max_tokens_per_rank=tokens, input_type="bfloat16"))
    handles = [ep.handle(0) for ep in made]
    generator = torch.Generator().manual_seed(5)
    keep = []
    for comm, ep, handle, stream in zip(comms, made, handles, streams):
        device = torch.device("cuda", comm.device)
        x = torch.randint(-8, 8, (tokens, hidden), generator=generator).to(torch.bfloat16).to(device)
        chosen = torch.stack([torch.randperm(experts, generator=generator)[:top_k] for _ in range(tokens)]).to(device)
        weights = (torch.randint(1, 4, (tokens, top_k), generator=generator) / 4).float().to(device)
        out = torch.zeros((tokens, hidden), dtype=torch.bfloat16, device=device)
        keep.append((x, chosen, weights))
        results.append(out)
        expected.append((x.float() * weights.sum(1, keepdim=True)).to(torch.bfloat16))
        torch.cuda.synchronize(comm.device)
    for handle, (x, chosen, weights), stream in zip(handles, keep, streams):
        received = handle.dispatch(x, chosen, weights, stream=stream)
        assert received.total is None and "bfloat16" in repr(received.x), received.x
    for comm, ep, handle, stream, out in zip(comms, made, handles, streams, results):
        view = ep.view(0)
        with torch.cuda.stream(stream):
            arrived = torch.from_dlpack(view.x)
            torch.from_dlpack(ep.combine_input(0)).copy_(arrived)
            counts = torch.as_tensor(view.count, device=arrived.device)
        assert arrived.dtype == torch.bfloat16 and tuple(arrived.shape) == view.x.shape
        assert arrived.data_ptr() != 0 and counts.dtype == torch.int32
        try:
            handle.combine(stream=stream)
            raise AssertionError("combine without out was taken")
        except TypeError as error:
            assert "on a communicator with a GPU" in str(error), error
        handle.combine(out, stream=stream)
    for comm in comms:
        torch.cuda.synchronize(comm.device)
    for out, right in zip(results, expected):
        assert out.eq(right).all().item(), (out - right).abs().max()
    for index in (0, slice(None)):
        try:
            made[0].view(0).x[index]
            raise AssertionError("a device array was indexed")
        except TypeError as error:
            assert "from_dlpack" in str(error), error
    for ep in made:
        ep.close()
    print("python: dispatch and combine on PyTorch tensors")


def on_threads(comms, work):
    """work(comm) of all ranks at one time; what they return, in rank order."""
    results = [None] * len(comms)

    def run(index):
        results[index] = work(comms[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(comms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def with_cupy(mep, comms):
    import cupy

    def synchronize():
        for comm in comms:
            cupy.cuda.Device(comm.device).synchronize()

    streams, arrays = [], []
    for comm in comms:
        with cupy.cuda.Device(comm.device):
            streams.append(cupy.cuda.Stream(non_blocking=True))
            arrays.append(cupy.full(1000, comm.rank + 1, dtype=cupy.float32))
    synchronize()
    for comm, array, stream in zip(comms, arrays, streams):
        comm.allreduce(array, stream=stream)
    synchronize()
    for comm, array in zip(comms, arrays):
        with cupy.cuda.Device(comm.device):
            assert bool((array == 3).all()), array[:4]
    print("python: CuPy arrays, in place")


def main():
    try:
        import mep
    except (ImportError, OSError) as error:
        print(f"python: skipped: {error}")
        return SKIPPED
    try:
        comms = mep.init_all(RANKS, device="by_rank")
    except mep.UnsupportedError as error:
        print(f"python: skipped: {error}")
        return SKIPPED
    print(f"python: ranks are on GPUs {[comm.device for comm in comms]}")
    ran = 0
    for test in (with_torch, messages_of_torch, registered_memory, experts_of_torch, with_cupy):
        try:
            test(mep, comms)
            ran += 1
        except ImportError as error:
            print(f"python: {test.__name__} left out: {error}")
    for comm in comms:
        comm.close()
    return 0 if ran else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
