#!/usr/bin/env python3
"""Tells whether a low-latency dispatch has one speed where ranks are late now and then:

    mep_run -n 2 python3 perf/dispatch_speeds.py [--graphs 80] [--calls 50] [--late-us 100]

A rank a GPU, hidden 7168, top-8 of 256. A graph of so many dispatches is replayed; before every second replay each rank is late
by a random time of at most --late-us. Prints the least, the median and the largest time of a dispatch over the graphs, and how many
graphs took 1.3 times the least.
"""
import argparse
import os
import random
import statistics
import sys
import pathlib
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bindings" / "python"))

import torch

import mep

HIDDEN, EXPERTS, TOP_K, MOST = 7168, 256, 8, 128


def be_late(us):
    until = time.perf_counter() + us * 1e-6
    while time.perf_counter() < until:
        pass


def measure(comm, chosen, layout, wire, tokens):
    """Microseconds of a dispatch, one number a graph."""
    generator = torch.Generator(device="cuda").manual_seed(comm.rank)
    x = torch.randn(tokens, HIDDEN, generator=generator, device="cuda").to(torch.bfloat16)
    index = torch.rand(tokens, EXPERTS, generator=generator, device="cuda").topk(TOP_K, dim=1).indices
    delays, times, stream = random.Random(comm.rank), [], torch.cuda.Stream()
    with mep.Ep(comm, max_tokens_per_rank=MOST, hidden=HIDDEN, top_k=TOP_K, num_experts=EXPERTS, num_buffers=1,
                layout=layout, wire_type=wire) as ep:
        handle = ep.handle(0)
        torch.cuda.synchronize()
        handle.dispatch(x, index, stream=stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(chosen.calls):
                handle.dispatch(x, index, stream=stream)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for each in range(chosen.graphs):
            comm.barrier(stream=stream)
            torch.cuda.synchronize()
            be_late(delays.random() * chosen.late_us if each % 2 else 0)
            with torch.cuda.stream(stream):
                begin.record()
                graph.replay()
                end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / chosen.calls)
        comm.barrier(stream=stream)
        torch.cuda.synchronize()
        del graph
    return times


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--graphs", type=int, default=80)
    options.add_argument("--calls", type=int, default=50, help="dispatches of a graph")
    options.add_argument("--late-us", type=float, default=100)
    chosen = options.parse_args()
    rank = int(os.environ["MEP_RANK"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    with mep.init(device=torch.cuda.current_device()) as comm:
        for layout in ("low_latency", "slotted"):
            for wire in ("float8_e4m3", "bfloat16"):
                for tokens in (1, 16, 128):
                    times = measure(comm, chosen, layout, wire, tokens)
                    slow = sum(each > 1.3 * min(times) for each in times)
                    if rank == 0:
                        print(f"{layout:<12} {wire:<12} {tokens:4} tokens: {min(times):6.1f} {statistics.median(times):6.1f} "
                              f"{max(times):6.1f} us, {slow} of {len(times)} slow", flush=True)


if __name__ == "__main__":
    main()
