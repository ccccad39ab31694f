#!/usr/bin/env python3
"""Times training steps of DistributedDataParallel over MEP and over Gloo, in turns in one run.

    torchrun --nproc-per-node 2 perf/torch_ddp.py

A number behind it divides the steps of a round.
Prints a line for each batch size of a rank: milliseconds of a step (forward, backward with the allreduce of gradients,
SGD), of the rank that needed longest, the median and the worst of five rounds, the quotient of the medians, and which
share of a step each backend adds to the same step without communication (no_sync).
"""
import contextlib
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import mep.torch

ROUNDS, STEPS, WIDTH, LAYERS, BUCKET_MB = 5, 60, 512, 4, 1
BATCHES = (8, 64, 256)


def new_model(group):
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group, bucket_cap_mb=BUCKET_MB)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def round_ms(model, optimizer, inputs, steps, alone):
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        with model.no_sync() if alone else contextlib.nullcontext():
            model(inputs).square().mean().backward()
        optimizer.step()
    needed = torch.tensor([(time.perf_counter() - begun) / steps * 1e3])
    dist.all_reduce(needed, dist.ReduceOp.MAX)
    return needed.item()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("mep")
    rank, world = dist.get_rank(), dist.get_world_size()
    steps = max(3, STEPS // (int(sys.argv[1]) if len(sys.argv) > 1 else 1))
    models = {"MEP": new_model(None), "Gloo": new_model(dist.new_group(backend="gloo"))}
    if rank == 0:
        count = sum(one.numel() for one in models["MEP"][0].parameters())
        print(f"PyTorch {torch.__version__}, {world} ranks, {count} float32 parameters in buckets of {BUCKET_MB} MiB, "
              f"rounds of {steps} steps, load {os.getloadavg()[0]:.1f}")
        print(f"{'batch':>6}{'alone':>9}{'MEP':>9}{'worst':>9}{'share':>7}"
              f"{'Gloo':>9}{'worst':>9}{'share':>7}{'MEP/Gloo':>10}")
    for batch in BATCHES:
        inputs = torch.randn(batch, WIDTH, generator=torch.Generator().manual_seed(rank))
        times = {"alone": [], "MEP": [], "Gloo": []}
        for number in range(ROUNDS + 1):
            for name, of_name in times.items():
                needed = round_ms(*models["MEP" if name == "alone" else name], inputs, steps, name == "alone")
                if number:  # the first rebuilds the buckets
                    of_name.append(needed)
        if rank == 0:
            alone, ours, theirs = (statistics.median(of_name) for of_name in times.values())
            print(f"{batch:>6}{alone:>9.2f}{ours:>9.2f}{max(times['MEP']):>9.2f}{1 - alone / ours:>7.0%}{theirs:>9.2f}"
                  f"{max(times['Gloo']):>9.2f}{1 - alone / theirs:>7.0%}{ours / theirs:>10.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
