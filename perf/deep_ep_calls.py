#!/usr/bin/env python3
"""Times of DeepEP's calls on GPUs, of mep.deep_ep and, where it is installed, of deep_ep, in turns in one run:

    torchrun --nproc-per-node 2 perf/deep_ep_calls.py [--tokens 4096] [--sms 24 96] [--rounds 5]

DeepSeek-V3's shape. Normal mode: a first dispatch (layout, dispatch and the host's wait for counts), a dispatch by a
handle, a combine; low latency: a dispatch and combine of up to 128 tokens. Microseconds between events of the current
stream: the median, then the worst, of the rounds; a round is the mean of 20 calls on the slowest rank.
"""
import argparse
import importlib
import os
import statistics

import torch
import torch.distributed as dist

HIDDEN, EXPERTS, TOP_K, CALLS = 7168, 256, 8, 20


def timed(call):
    """Microseconds of a call on the slowest rank."""
    dist.barrier()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call()
    torch.cuda.synchronize()
    dist.barrier()
    begin.record()
    for _ in range(CALLS):
        call()
    end.record()
    torch.cuda.synchronize()
    each = torch.tensor(begin.elapsed_time(end) * 1000 / CALLS)
    dist.all_reduce(each, op=dist.ReduceOp.MAX)
    return float(each)


def draw(tokens, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    scores = torch.rand(tokens, EXPERTS, generator=generator, device="cuda")
    x = torch.randn(tokens, HIDDEN, generator=generator, device="cuda").to(torch.bfloat16)
    return x, scores.topk(TOP_K, dim=1).indices, torch.rand(tokens, TOP_K, generator=generator, device="cuda")


def as_fp8(x):
    groups = x.float().view(len(x), HIDDEN // 128, 128)
    scales = groups.abs().amax(-1).clamp(min=1e-4) / 448
    return (groups / scales.unsqueeze(-1)).view(x.shape).to(torch.float8_e4m3fn), scales


class Normal:
    """Calls of normal mode by one library, with so many SMs."""

    def __init__(self, module, sms, tokens):
        module.Buffer.set_num_sms(sms)
        self.buffer = module.Buffer(dist.group.WORLD, int(2e9), 0)
        self.x, self.index, self.weights = draw(tokens, dist.get_rank())
        self.config = {"config": module.Config(sms, 6, 256)} if hasattr(module, "Config") else {}

    def first(self, x):
        per_rank, _, per_expert, in_rank, _ = self.buffer.get_dispatch_layout(self.index, EXPERTS)
        return self.buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
                                    num_tokens_per_expert=per_expert, topk_idx=self.index, topk_weights=self.weights,
                                    **self.config)

    def times(self):
        found = {}
        for name, x in (("bf16", self.x), ("fp8", as_fp8(self.x))):
            handle = self.first(x)[4]
            found[f"first dispatch {name}"] = timed(lambda x=x: self.first(x))
            found[f"dispatch {name}"] = timed(lambda x=x, handle=handle: self.buffer.dispatch(x, handle=handle,
                                                                                              **self.config))
        received, _, _, _, handle, _ = self.first(self.x)

        def pair():
            self.buffer.dispatch(self.x, handle=handle, **self.config)
            self.buffer.combine(received, handle, **self.config)
        found["combine bf16"] = timed(pair) - found["dispatch bf16"]
        return found


class LowLatency:
    """Pairs of low latency."""

    def __init__(self, module, tokens):
        size = module.Buffer.get_low_latency_rdma_size_hint(128, HIDDEN, dist.get_world_size(), EXPERTS)
        self.buffer = module.Buffer(dist.group.WORLD, 0, size, low_latency_mode=True, num_qps_per_rank=8)
        self.x, self.index, self.weights = draw(tokens, dist.get_rank())
        self.out = torch.empty_like(self.x)

    def times(self):
        def dispatch():
            return self.buffer.low_latency_dispatch(self.x, self.index, 128, EXPERTS)

        def pair():
            handle = dispatch()[2]
            place = self.buffer.get_next_low_latency_combine_buffer(handle)
            self.buffer.low_latency_combine(place, self.index, self.weights, handle, zero_copy=True, out=self.out)
        graph = torch.cuda.CUDAGraph()
        pair()
        torch.cuda.synchronize()
        dist.barrier()
        with torch.cuda.graph(graph):
            for _ in range(10):
                pair()
        return {"pair fp8, graph": timed(graph.replay) / 10}


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, default=4096, help="of a rank, in normal mode")
    options.add_argument("--sms", type=int, nargs="+", default=[24, 96])
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("gloo")
    modules = {}
    for name in ("mep.deep_ep", "deep_ep"):
        try:
            modules[name] = importlib.import_module(name)
        except ImportError:
            if dist.get_rank() == 0:
                print(f"{name} is not installed: left out")
    results = {}
    for _ in range(chosen.rounds):
        for name, module in modules.items():
            kinds = [(f"{sms} SMs", lambda sms=sms: Normal(module, sms, chosen.tokens)) for sms in chosen.sms]
            kinds += [(f"{tokens} tokens", lambda tokens=tokens: LowLatency(module, tokens)) for tokens in (1, 16, 128)]
            for kind, make in kinds:
                calls = make()
                for call, time in calls.times().items():
                    results.setdefault((call, kind, name), []).append(time)
                torch.cuda.synchronize()
                dist.barrier()
                calls.buffer.destroy()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, {torch.cuda.get_device_name()}, hidden {HIDDEN}, top-{TOP_K} of {EXPERTS}, "
              f"{chosen.tokens} tokens in normal mode; us, median (worst) of {chosen.rounds}")
        for (call, kind, name), times in sorted(results.items()):
            print(f"{call:<22} {kind:>10} {name:<12} {statistics.median(times):9.1f} ({max(times):.1f})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
