#!/usr/bin/env python3
"""Times of DeepEP's calls on GPUs, of mep.deep_ep and, where it is installed, of deep_ep, in turns in one run:

    torchrun --nproc-per-node 2 perf/deep_ep_calls.py [--tokens 4096] [--sms 24 96] [--rounds 5]

DeepSeek-V3's shape, calls as an engine makes them, eagerly but for the graphs of low latency. Low latency: pairs of
dispatch (fp8) and combine, one call after the other, with hooks, with the rows to combine where they are sent from, and
in a CUDA graph, and pairs whose handle is combined twice more. Normal mode: the layout, a first dispatch with its wait for counts, one with
num_worst_tokens, one by a handle, a handle combined again, and what a layer of training sends forward and backward. Microseconds
of a call, the median, then the worst, of the rounds; a round is the mean of 100 pairs, or 20 calls of normal mode, on
the slowest rank. `host` is the time until the calls have returned. In normal mode DeepEP's dispatches and combines have
the chunks of CHUNKS that were fastest in a trial before, its own default among them; the last lines name them.
"""
import argparse
import importlib
import os
import statistics
import time

import torch
import torch.distributed as dist

HIDDEN, EXPERTS, TOP_K, MOST = 7168, 256, 8, 512
CHUNKS = (4, 6, 8, 12, 16, 24, 32)  # tokens that DeepEP sends at once over NVLink


def timed(call, count):
    """Microseconds of a call on the slowest rank: until it has run, and until it has returned."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call()
    torch.cuda.synchronize()
    dist.barrier()
    called = time.perf_counter()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    each = torch.tensor([begin.elapsed_time(end) * 1e3, (returned - called) * 1e6]) / count
    dist.all_reduce(each, op=dist.ReduceOp.MAX)
    return each.tolist()


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

    count = 20  # of a round

    def __init__(self, module, sms, tokens):
        self.module, self.sms, self.most = module, sms, tokens * dist.get_world_size()
        module.Buffer.set_num_sms(sms)
        self.buffer = module.Buffer(dist.group.WORLD, int(2e9), 0, explicitly_destroy=True)
        self.x, self.index, self.weights = draw(tokens, dist.get_rank())
        self.configs = {"dispatch": {}, "combine": {}}  # without one: the library's default
        self.inputs = {"bf16": self.x, "fp8": as_fp8(self.x)}
        self.handles = {name: self.first(x)[4] for name, x in self.inputs.items()}
        self.received = self.first(self.x)[0]
        self.chosen = self.tune() if module.__name__ == "deep_ep" else ""

    def tune(self):
        """Takes the configuration of each call that is fastest by its median of three."""
        handle, chosen = self.handles["bf16"], []
        for name, call in (("dispatch", lambda: self.again(self.x, handle)), ("combine", lambda: self.combine(handle))):
            best = None
            for chunk in (None, *CHUNKS):
                self.configs[name] = {} if chunk is None else {"config": self.module.Config(self.sms, chunk, 256)}
                us = statistics.median(timed(call, self.count)[0] for _ in range(3))
                if best is None or us < best[0]:
                    best = us, chunk, self.configs[name]
            self.configs[name] = best[2]
            chosen.append(f"{name} {'default' if best[1] is None else f'chunks of {best[1]}'}")
        return ", ".join(chosen)

    def layout(self):
        return self.buffer.get_dispatch_layout(self.index, EXPERTS)

    def first(self, x, **more):
        per_rank, _, per_expert, in_rank, _ = self.layout()
        return self.buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
                                    num_tokens_per_expert=per_expert, topk_idx=self.index, topk_weights=self.weights,
                                    **self.configs["dispatch"], **more)

    def again(self, x, handle):
        self.buffer.dispatch(x, handle=handle, **self.configs["dispatch"])

    def combine(self, handle):
        self.buffer.combine(self.received, handle, **self.configs["combine"])

    def layer(self):
        handle = self.first(self.x)[4]
        self.combine(handle)
        self.again(self.x, handle)
        self.combine(handle)

    def calls(self):
        found = {"layout": self.layout, "layer of training": self.layer}
        for name, x in self.inputs.items():
            handle = self.handles[name]
            found[f"first dispatch {name}"] = lambda x=x: self.first(x)
            found[f"dispatch by handle {name}"] = lambda x=x, handle=handle: self.again(x, handle)
        found["combine again"] = lambda: self.combine(self.handles["bf16"])
        found["first dispatch, worst"] = lambda: self.first(self.x, num_worst_tokens=self.most)

        def pair():
            self.again(self.x, self.handles["bf16"])
            self.combine(self.handles["bf16"])
        found["dispatch and combine"] = pair
        return found


class LowLatency:
    """Pairs of low latency by one library."""

    count = 100

    def __init__(self, module, _):
        ranks = dist.get_world_size()
        size = module.Buffer.get_low_latency_rdma_size_hint(MOST, HIDDEN, ranks, EXPERTS)
        self.buffer = module.Buffer(dist.group.WORLD, 0, size, low_latency_mode=True,
                                    num_qps_per_rank=EXPERTS // ranks, explicitly_destroy=True)
        self.y = torch.randn(EXPERTS // ranks, ranks * MOST, HIDDEN, device="cuda").to(torch.bfloat16)
        self.graphs = []

    def calls(self):
        found = {}
        for tokens in (1, 16, 128, 512):
            x, index, weights = draw(tokens, dist.get_rank())
            out = torch.empty_like(x)

            def pair(hooked=False, in_place=False, x=x, index=index, weights=weights, out=out):
                _, _, handle, _, hook = self.buffer.low_latency_dispatch(x, index, MOST, EXPERTS,
                                                                         return_recv_hook=hooked)
                if hooked:
                    hook()
                if in_place:
                    self.buffer.get_next_low_latency_combine_buffer(handle)
                _, _, hook = self.buffer.low_latency_combine(self.y, index, weights, handle, return_recv_hook=hooked,
                                                             zero_copy=in_place, out=out)
                if hooked:
                    hook()
                return handle

            pair()
            torch.cuda.synchronize()
            dist.barrier()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                pair()
            self.graphs.append(graph)
            found[f"pair, {tokens} tokens"] = pair
            found[f"pair, {tokens} tokens, hooks"] = lambda pair=pair: pair(True)
            found[f"pair, {tokens} tokens, zero copy"] = lambda pair=pair: pair(in_place=True)
            found[f"pair, {tokens} tokens, graph"] = graph.replay


            # Two combines more: DeepEP takes its two buffers in turn, and its graphs want the turn of their capture.
            def combined_again(pair=pair, index=index, weights=weights, out=out):
                handle = pair()
                for _ in range(2):
                    self.buffer.low_latency_combine(self.y, index, weights, handle, out=out)
            found[f"pair, {tokens} tokens, 2 combines more"] = combined_again
        return found


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, default=4096, help="of a rank, in normal mode")
    options.add_argument("--sms", type=int, nargs="+", default=[24, 96])
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0
    modules = {}
    for name in ("mep.deep_ep", "deep_ep"):
        try:
            modules[name] = importlib.import_module(name)
        except ImportError:
            if is_first:
                print(f"{name} is not installed: left out")
    kinds = {"low latency": LowLatency}
    for sms in chosen.sms:
        kinds[f"{sms} SMs"] = lambda module, tokens, sms=sms: Normal(module, sms, tokens)
    results, tuned = {}, []
    for kind, make in kinds.items():
        libraries = {name: make(module, chosen.tokens) for name, module in modules.items()}
        tuned += [f"{kind}, {name}: {library.chosen}" for name, library in libraries.items()
                  if getattr(library, "chosen", "")]
        calls = {name: library.calls() for name, library in libraries.items()}
        for call in next(iter(calls.values())):
            for _ in range(chosen.rounds):
                for name in libraries:
                    results.setdefault((kind, call), {}).setdefault(name, []).append(timed(calls[name][call], libraries[name].count))
        torch.cuda.synchronize()
        dist.barrier()
        calls.clear()
        for library in libraries.values():
            getattr(library, "graphs", []).clear()
            library.buffer.destroy()
    if is_first:
        print(f"{dist.get_world_size()} ranks, {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, hidden "
              f"{HIDDEN}, top-{TOP_K} of {EXPERTS}, {chosen.tokens} tokens in normal mode; us, median (worst) of "
              f"{chosen.rounds}")
        print(f"{'':<12} {'call':<34}" + "".join(f" {name:>19} {'host':>8}" for name in modules) + "  ratio")
        for (kind, call), by_name in results.items():
            line, medians = f"{kind:<12} {call:<34}", []
            for name in modules:
                totals, hosts = zip(*by_name[name])
                medians.append(statistics.median(totals))
                line += f" {medians[-1]:9.1f} ({max(totals):7.1f}) {statistics.median(hosts):8.1f}"
            print(line + (f" {medians[0] / medians[1]:6.2f}" if len(medians) == 2 else ""))
        print(*tuned, sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
