#!/usr/bin/env python3
"""perf/collectivex_mep.py: what arrives and what the combine sums, as CollectiveX's oracle looks at them. 10 s. A stand-in takes the
place of CollectiveX's base class."""
import pathlib
import sys
import types
import unittest

import launch
from backend_test import begin, expect

PERF = pathlib.Path(__file__).resolve().parents[2] / "perf"
EXPERTS, TOP_K, HIDDEN, TOKENS = 8, 3, 256, (1, 5, 32)


class EPBackend:
    def __init__(self, args, rank, world_size, local_rank, device):
        self.args, self.rank, self.world_size, self.mode, self.precision = args, rank, world_size, args.mode, args.precision

    def fused_quantize(self, eager):
        return eager

    def assert_quantize_identity(self, eager, fused, x):
        assert fused is eager and eager(x)[0].shape == x.shape

    def finalize(self, rc):
        return rc


def problem_of(rank, tokens):
    """One rank's tokens. The first values of a row say whose it is, in every precision."""
    import torch
    generator = torch.Generator().manual_seed(100 * tokens + rank)
    x = torch.randint(-64, 65, (tokens, HIDDEN), generator=generator).bfloat16() / 64
    number = rank * tokens + torch.arange(tokens)
    x[:, :16] = ((number.unsqueeze(1) >> torch.arange(16) & 1) * 2 - 1).bfloat16()
    topk_idx = torch.rand(tokens, EXPERTS, generator=generator).argsort(dim=1)[:, :TOP_K].contiguous()
    return types.SimpleNamespace(T=tokens, dispatch_x=x, topk_idx=topk_idx,
                                 topk_weights=torch.rand(tokens, TOP_K, generator=generator))


def factor_of(expert):
    """An expert's answer is its row times this."""
    return (expert + 1) / 8


def check(backend, rank, world, tokens):
    import torch
    all_problems = [problem_of(each, tokens) for each in range(world)]
    problem = all_problems[rank]
    backend._validate_quantizer(problem.dispatch_x)
    sent = backend.semantic_payload(torch.cat([each.dispatch_x for each in all_problems]))
    experts = torch.cat([each.topk_idx for each in all_problems])
    weights = torch.cat([each.topk_weights for each in all_problems])
    is_here = experts // (EXPERTS // world) == rank

    handle = backend.dispatch(problem)
    view = backend.inspect_dispatch(problem, handle)
    number = ((view.payload[:, :16] > 0) * (1 << torch.arange(16))).sum(dim=1)
    expect(view.payload, sent[number], "rows")
    expect(view.local_expert_counts, torch.bincount(experts[is_here], minlength=EXPERTS)[
        rank * EXPERTS // world:(rank + 1) * EXPERTS // world], "counts")
    assert backend.recv_tokens(handle) == len(number)
    if backend.receive_layout == "token-expert":
        pairs = sorted(zip(number.tolist(), view.expert_ids.tolist()))
        assert pairs == sorted((token, int(experts[token, slot])) for token, slot in is_here.nonzero().tolist()), pairs
        answers = view.payload.float() * factor_of(view.expert_ids).unsqueeze(1)
    else:
        assert sorted(number.tolist()) == is_here.any(dim=1).nonzero().flatten().tolist()
        expect(view.expert_ids, torch.where(is_here, experts, -1)[number], "experts")
        is_valid = view.expert_ids >= 0
        expect(view.weights[is_valid], weights[number][is_valid], "weights")
        gates = (view.weights * factor_of(view.expert_ids)).masked_fill(~is_valid, 0).sum(dim=1, keepdim=True)
        answers = view.payload.float() * gates
    sums = backend.combine_transformed(problem, handle, answers.bfloat16())
    gates = (problem.topk_weights * factor_of(problem.topk_idx)).sum(dim=1, keepdim=True)
    torch.testing.assert_close(sums.float(), backend.semantic_payload(problem.dispatch_x).float() * gates, rtol=2e-2, atol=2e-2)

    handle = backend.dispatch(problem)
    backend.stage(problem, handle)
    first = backend.combine(problem, handle).clone()
    assert first.shape == problem.dispatch_x.shape
    if not backend.requires_fresh_pair:
        expect(backend.combine(problem, handle), first, "a second combine of the handle")


def rank_sweep():
    import torch
    sys.path.append(str(PERF))
    sys.modules["ep_backend"] = types.ModuleType("ep_backend")
    sys.modules["ep_backend"].EPBackend = EPBackend
    dist, rank, world = begin()
    from collectivex_mep import MEPBackend
    for mode in MEPBackend.SUPPORTED_MODES:
        for precision in MEPBackend.SUPPORTED_PRECISIONS:
            args = types.SimpleNamespace(mode=mode, precision=precision, experts=EXPERTS, hidden=HIDDEN)
            backend = MEPBackend(args, rank, world, rank, torch.device("cpu"))
            backend.create_buffer(types.SimpleNamespace(max_tokens_per_rank=max(TOKENS)))
            for tokens in TOKENS:
                check(backend, rank, world, tokens)
            assert backend.finalize(7) == 7
    dist.destroy_process_group()


class CollectiveX(unittest.TestCase):
    def test_modes_and_precisions(self):
        launch.run(__file__, "sweep", 2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
