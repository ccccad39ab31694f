#!/usr/bin/env python3
"""Times training steps over MEP and over Gloo, or NCCL on GPUs, in turns in one run.

    torchrun --nproc-per-node 2 perf/torch_ddp.py [--device cuda] [--divide N]

On hosts DistributedDataParallel of a small network; on GPUs DistributedDataParallel and fully_shard (FSDP2) of a transformer.
--divide N makes a round's steps N times fewer.
Prints a line for each way and batch size of a rank: milliseconds of a step (forward, backward with the exchange of gradients,
SGD), of the rank that needed longest, the median and the worst of five rounds, the quotient of the medians, and which
share of a step each backend adds to the same step without communication (no_sync, which fully_shard does not have).
"""
import argparse
import contextlib
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mep.torch

ROUNDS = 5


class OnHosts:
    peer, bucket_mb, steps, ways, batches = "Gloo", 1, 60, ("DDP",), (8, 64, 256)
    what = "a network of 4 layers of 512"
    device = torch.device("cpu")

    @staticmethod
    def network():
        layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
        return torch.nn.Sequential(*layers)

    @staticmethod
    def inputs(batch, generator):
        return torch.randn(batch, 512, generator=generator)


class OnGpus:
    peer, bucket_mb, steps, ways, batches = "NCCL", 25, 20, ("DDP", "FSDP2"), (2, 8)
    what = "a transformer of 12 layers of 1024 in bfloat16 (autocast), sequences of 1024"

    def __init__(self):
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)

    @staticmethod
    def network():
        layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0, batch_first=True, norm_first=True)
        return torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)

    @staticmethod
    def inputs(batch, generator):
        return torch.randn(batch, 1024, 1024, generator=generator)


def new_model(case, way, group):
    torch.manual_seed(0)
    model = case.network().to(case.device)
    if way == "DDP":
        model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=case.bucket_mb)
    else:
        mesh = DeviceMesh.from_group(group or dist.group.WORLD, case.device.type)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def round_ms(case, model, optimizer, inputs, steps, alone):
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        on_gpu = case.device.type == "cuda"
        with model.no_sync() if alone else contextlib.nullcontext(), torch.autocast(case.device.type, torch.bfloat16, on_gpu):
            model(inputs).square().mean().backward()
        optimizer.step()
    if case.device.type == "cuda":
        torch.cuda.synchronize()
    needed = torch.tensor([(time.perf_counter() - begun) / steps * 1e3])
    dist.all_reduce(needed, dist.ReduceOp.MAX)
    return needed.item()


def print_line(case, way, batch, times):
    ours, theirs = statistics.median(times["MEP"]), statistics.median(times[case.peer])
    alone = statistics.median(times["alone"]) if times["alone"] else None
    line = f"{way:<6}{batch:>6}" + (f"{alone:>9.2f}" if alone else f"{'':>9}")
    for name, median in (("MEP", ours), (case.peer, theirs)):
        share = f"{1 - alone / median:>7.0%}" if alone else f"{'':>7}"
        line += f"{median:>9.2f}{max(times[name]):>9.2f}{share}"
    print(f"{line}{ours / theirs:>10.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--divide", type=int, default=1, metavar="N")
    options = parser.parse_args()
    torch.set_num_threads(1)
    case = OnGpus() if options.device == "cuda" else OnHosts()
    dist.init_process_group("mep")
    groups = {"MEP": None, case.peer: dist.new_group(backend=case.peer.lower())}
    rank, world = dist.get_rank(), dist.get_world_size()
    steps = max(3, case.steps // options.divide)
    if rank == 0:
        count = sum(one.numel() for one in case.network().parameters())
        print(f"PyTorch {torch.__version__}, {world} ranks, {case.what}, {count} parameters, DDP's buckets of "
              f"{case.bucket_mb} MiB, rounds of {steps} steps, load {os.getloadavg()[0]:.1f}")
        print(f"{'':<6}{'batch':>6}{'alone':>9}{'MEP':>9}{'worst':>9}{'share':>7}"
              f"{case.peer:>9}{'worst':>9}{'share':>7}{'MEP/' + case.peer:>10}")
    for way in case.ways:
        models = {name: new_model(case, way, group) for name, group in groups.items()}
        for batch in case.batches:
            inputs = case.inputs(batch, torch.Generator().manual_seed(rank)).to(case.device)
            times = {"alone": [], "MEP": [], case.peer: []}
            for number in range(ROUNDS + 1):
                for name, of_name in times.items():
                    if name == "alone" and way != "DDP":
                        continue
                    model = models["MEP" if name == "alone" else name]
                    needed = round_ms(case, *model, inputs, steps, name == "alone")
                    if number:  # the first rebuilds the buckets
                        of_name.append(needed)
            if rank == 0:
                print_line(case, way, batch, times)
        models.clear()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
