#!/usr/bin/env python3
"""Times collectives of torch.distributed over MEP and over Gloo, in turns in one run.

    torchrun --nproc-per-node 2 perf/torch_calls.py

A number behind it divides the calls of a round.
Prints a line for each call and size: microseconds of a call, of the rank that needed longest, the median and the worst
of five rounds, and the quotient of the medians. `async` is an allreduce with async_op=True and a wait. Sizes are those
of a rank's block.
"""
import statistics
import sys
import time

import torch
import torch.distributed as dist

import mep.torch

ROUNDS = 5
SIZES = {8: 2000, 1024: 2000, 64 * 1024: 400, 1024 * 1024: 60, 16 * 1024 * 1024: 6}  # bytes: calls a round


def cases(size, world):
    block, whole, other = torch.ones(size // 4), torch.ones(size // 4 * world), torch.ones(size // 4 * world)
    yield "allreduce", lambda group: dist.all_reduce(block, dist.ReduceOp.MAX, group=group)
    yield "async", lambda group: dist.all_reduce(block, dist.ReduceOp.MAX, group=group, async_op=True).wait()
    yield "allgather", lambda group: dist.all_gather_into_tensor(whole, block, group=group)
    yield "reduce_scatter", lambda group: dist.reduce_scatter_tensor(block, whole, dist.ReduceOp.MAX, group=group)
    yield "alltoall", lambda group: dist.all_to_all_single(other, whole, group=group)


def round_us(call, group, calls):
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(calls):
        call(group)
    needed = torch.tensor([(time.perf_counter() - begun) / calls * 1e6])
    dist.all_reduce(needed, dist.ReduceOp.MAX)
    return needed.item()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("mep")
    gloo = dist.new_group(backend="gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    divisor = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    if rank == 0:
        print(f"PyTorch {torch.__version__}, {world} ranks")
        print(f"{'call':<16}{'bytes':>10}{'MEP':>10}{'worst':>10}{'Gloo':>10}{'worst':>10}{'MEP/Gloo':>10}")
    for size, all_calls in SIZES.items():
        calls = max(3, all_calls // divisor)
        for name, call in cases(size, world):
            times = {None: [], gloo: []}
            for group in times:
                call(group)
            for _ in range(ROUNDS):
                for group in times:
                    times[group].append(round_us(call, group, calls))
            ours, theirs = times[None], times[gloo]
            if rank == 0:
                medians = statistics.median(ours), statistics.median(theirs)
                print(f"{name:<16}{size:>10}{medians[0]:>10.1f}{max(ours):>10.1f}{medians[1]:>10.1f}"
                      f"{max(theirs):>10.1f}{medians[0] / medians[1]:>10.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
