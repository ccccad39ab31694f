#!/usr/bin/env python3
"""Prints the memory of the GPU and the time that each step of mep.deep_ep takes, until the first layer is done:

    mep_run -n 2 python3 perf/deep_ep_memory.py [--low-latency]

A rank a GPU. The steps: PyTorch's context, the import, the Buffer, the first dispatch (normal mode: the first layout before it) and
the first combine, of hidden 7168 and top-8 of 256, 4096 tokens (low latency 128). The memory is that of the whole GPU, so contexts
of other ranks count; what PyTorch's allocator holds is told beside it.
"""
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bindings" / "python"))

import torch

HIDDEN, EXPERTS, TOP_K = 7168, 256, 8
RANK, RANKS = int(os.environ["MEP_RANK"]), int(os.environ["MEP_SIZE"])
BEFORE = [0.0]


def step(name, world, call):
    begin = time.perf_counter()
    result = call()
    torch.cuda.synchronize()
    ms = (time.perf_counter() - begin) * 1e3
    if world is not None:
        world.barrier()
    free, total = torch.cuda.mem_get_info()
    used = (total - free) / 2**20
    held = torch.cuda.memory_reserved() / 2**20
    if RANK == 0:
        print(f"{name:<16} {ms:8.1f} ms {used:8.0f} MiB, {used - BEFORE[0]:6.0f} more; PyTorch holds {held:.0f}", flush=True)
    BEFORE[0] = used
    if world is not None:
        world.barrier()
    return result


def main():
    low_latency = "--low-latency" in sys.argv
    torch.cuda.set_device(RANK % torch.cuda.device_count())
    step("context", None, lambda: torch.zeros(1, device="cuda"))
    deep_ep = step("import", None, lambda: __import__("mep.deep_ep").deep_ep)
    import mep
    import torch.distributed as dist
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29611")
    dist.init_process_group("gloo", rank=RANK, world_size=RANKS)
    world = mep.init()
    most = 128 if low_latency else 4096
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(most, HIDDEN, RANKS, EXPERTS) if low_latency else 0
    buffer = step("Buffer", world, lambda: deep_ep.Buffer(dist.group.WORLD, 0, size, low_latency_mode=low_latency))
    generator = torch.Generator(device="cuda").manual_seed(RANK)
    x = torch.randn(most, HIDDEN, generator=generator, device="cuda").to(torch.bfloat16)
    index = torch.rand(most, EXPERTS, generator=generator, device="cuda").topk(TOP_K, dim=1).indices
    weights = torch.rand(most, TOP_K, generator=generator, device="cuda")
    step("tensors", world, lambda: None)
    if low_latency:
        rows, _, handle, *_ = step("dispatch", world, lambda: buffer.low_latency_dispatch(x, index, most, EXPERTS, use_fp8=False))
        step("combine", world, lambda: buffer.low_latency_combine(rows, index, weights, handle))
    else:
        layout = step("layout", world, lambda: buffer.get_dispatch_layout(index, EXPERTS))
        found = step("dispatch", world, lambda: buffer.dispatch(
            x, num_tokens_per_rank=layout[0], num_tokens_per_expert=layout[2], is_token_in_rank=layout[3], topk_idx=index,
            topk_weights=weights))
        step("combine", world, lambda: buffer.combine(found[0], found[4], topk_weights=found[2]))
    world.barrier()
    buffer.destroy()
    dist.destroy_process_group()
    world.close()


if __name__ == "__main__":
    main()
