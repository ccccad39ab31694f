#!/usr/bin/env python3
"""Times messages between two GPUs in CUDA graphs, over MEP or over NCCL by torch.distributed.

    mep_run -n 2 python3 perf/gpu_messages.py [--nccl PORT]

`one way`: rank 0 sends and rank 1 receives. `both ways`: each sends and receives at one time. Prints a line for each size:
microseconds of a message, the median and the worst of five replays of a graph of 50 messages, or 10 from 16 MiB on.
"""
import argparse
import os
import statistics
import time

import torch

SIZES = [8, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
REPLAYS = 5


def over_mep(rank, stream):
    import mep
    comm = mep.init(device="by_rank")

    def one_way(x, y):
        comm.send(x, 1, stream=stream) if rank == 0 else comm.recv(y, 0, stream=stream)

    def both_ways(x, y):
        comm.sendrecv(x, 1 - rank, y, 1 - rank, stream=stream)

    return one_way, both_ways, lambda: comm.barrier(stream=stream)


def over_nccl(rank, stream, port):
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    flag = torch.zeros(1, device="cuda")

    def one_way(x, y):
        dist.send(x, 1) if rank == 0 else dist.recv(y, 0)

    def both_ways(x, y):
        calls = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()

    return one_way, both_ways, lambda: dist.all_reduce(flag)


def time_graph(call, meet, stream, size):
    count = 50 if size < 16 << 20 else 10
    call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            call()
    times = []
    for _ in range(REPLAYS + 1):  # the first is not counted
        meet()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / count * 1e6)
    return f"{statistics.median(times[1:]):8.1f} {max(times[1:]):8.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nccl", type=int, metavar="PORT", help="NCCL, whose ranks meet at this port")
    options = parser.parse_args()
    rank = int(os.environ["MEP_RANK"])
    torch.cuda.set_device(rank)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        one_way, both_ways, meet = over_mep(rank, stream) if options.nccl is None else over_nccl(rank, stream, options.nccl)
        if rank == 0:
            print("bytes       one way, us median worst    both ways")
        for size in SIZES:
            x, y = (torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2))
            lines = [time_graph(lambda: call(x, y), meet, stream, size) for call in (one_way, both_ways)]
            if rank == 0:
                print(f"{size:10} {lines[0]}    {lines[1]}", flush=True)
    os._exit(0)  # graphs of NCCL must not outlive its communicator


if __name__ == "__main__":
    main()
