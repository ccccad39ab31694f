#!/usr/bin/env python3
"""Times collectives of torch.distributed over MEP and over Gloo, or NCCL on GPUs, in turns in one run.

    torchrun --nproc-per-node 2 perf/torch_calls.py [--device cuda] [--divide N]

--divide N makes a round's calls N times fewer. On GPUs a round ends when they have run all its calls.
Prints a line for each call and size: microseconds of a call, of the rank that needed longest, the median and the worst
of five rounds, and the quotient of the medians. `async` is an allreduce with async_op=True and a wait. Sizes are those
of a rank's block.
"""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist

import mep.torch

ROUNDS = 5
SIZES = {8: 2000, 1024: 2000, 64 * 1024: 400, 1024 * 1024: 60, 16 * 1024 * 1024: 6}  # bytes: calls a round


def cases(size, world, device):
    block = torch.ones(size // 4, device=device)
    whole, other = torch.ones(size // 4 * world, device=device), torch.ones(size // 4 * world, device=device)
    yield "allreduce", lambda group: dist.all_reduce(block, dist.ReduceOp.MAX, group=group)
    yield "async", lambda group: dist.all_reduce(block, dist.ReduceOp.MAX, group=group, async_op=True).wait()
    yield "allgather", lambda group: dist.all_gather_into_tensor(whole, block, group=group)
    yield "reduce_scatter", lambda group: dist.reduce_scatter_tensor(block, whole, dist.ReduceOp.MAX, group=group)
    yield "alltoall", lambda group: dist.all_to_all_single(other, whole, group=group)


def round_us(call, group, calls, device):
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(calls):
        call(group)
    if device.type == "cuda":
        torch.cuda.synchronize()
    needed = torch.tensor([(time.perf_counter() - begun) / calls * 1e6])
    dist.all_reduce(needed, dist.ReduceOp.MAX)
    return needed.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--divide", type=int, default=1, metavar="N")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device, peer_name = torch.device("cpu"), "Gloo"
    if options.device == "cuda":
        device, peer_name = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "NCCL"
        torch.cuda.set_device(device)
    dist.init_process_group("mep")
    peer = dist.new_group(backend=peer_name.lower())
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        print(f"PyTorch {torch.__version__}, {world} ranks on {options.device}")
        print(f"{'call':<16}{'bytes':>10}{'MEP':>10}{'worst':>10}{peer_name:>10}{'worst':>10}{'MEP/' + peer_name:>10}")
    for size, all_calls in SIZES.items():
        calls = max(3, all_calls // options.divide)
        for name, call in cases(size, world, device):
            times = {None: [], peer: []}
            for group in times:
                call(group)
            for _ in range(ROUNDS):
                for group in times:
                    times[group].append(round_us(call, group, calls, device))
            ours, theirs = times[None], times[peer]
            if rank == 0:
                medians = statistics.median(ours), statistics.median(theirs)
                print(f"{name:<16}{size:>10}{medians[0]:>10.1f}{max(ours):>10.1f}{medians[1]:>10.1f}"
                      f"{max(theirs):>10.1f}{medians[0] / medians[1]:>10.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
