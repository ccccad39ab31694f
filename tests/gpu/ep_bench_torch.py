#!/usr/bin/env python3
"""One rank's dispatch and combine as a plain gather and weighted sum in PyTorch, for comparison.

Same shapes as ep_gpu_bench with one rank: hidden 7168, top-8, bf16. 50 operations in a CUDA graph,
inputs rotated beyond the L2. Prints microseconds per operation.
"""

import torch

HIDDEN, TOP_K, EXPERTS, OPERATIONS = 7168, 8, 256, 50


def time_graph(operation, sets):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(sets):
            operation(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(OPERATIONS):
            operation(i % sets)
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / OPERATIONS)
    return sorted(times)[2]


def main():
    print(f"{'T':>5} {'index_select':>13} {'sum of terms':>13}")
    for tokens in (1, 128, 512, 1024):
        sets = min(32, (256 << 20) // (tokens * HIDDEN * 2) + 2)
        device = torch.device("cuda")
        x = torch.randn(sets, tokens, HIDDEN, device=device).to(torch.bfloat16)
        y = torch.randn(tokens * TOP_K, HIDDEN, device=device).to(torch.bfloat16)
        weights = torch.rand(tokens, TOP_K, 1, device=device)
        experts = torch.stack([torch.randperm(EXPERTS, device=device)[:TOP_K] for _ in range(tokens)])
        order = experts.flatten().argsort(stable=True)
        token_of_row = order // TOP_K
        row_of_entry = order.argsort()
        received = torch.empty(tokens * TOP_K, HIDDEN, dtype=torch.bfloat16, device=device)
        out = torch.empty(sets, tokens, HIDDEN, dtype=torch.bfloat16, device=device)

        def dispatch(i):
            torch.index_select(x[i], 0, token_of_row, out=received)

        def combine(i):
            terms = y.index_select(0, row_of_entry).view(tokens, TOP_K, HIDDEN)
            out[i] = (terms * weights).sum(1)

        print(f"{tokens:5d} {time_graph(dispatch, sets):13.1f} {time_graph(combine, sets):13.1f}")


if __name__ == "__main__":
    main()
