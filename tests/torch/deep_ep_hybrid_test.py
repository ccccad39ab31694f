#!/usr/bin/env python3
"""mep.deep_ep.HybridEPBuffer: the calls of Megatron-core, torchtitan and DeepEP's test of it, against a reference in
PyTorch. It alone finds wrong conversions of routing maps and wrong rows where some are dropped."""
import inspect
import sys
import unittest

import launch
from deep_ep_surroundings_test import under_other_defaults
from deep_ep_test import begin

HIDDEN, LOCAL = 256, 3  # LOCAL: experts of a rank


# --- The reference: it has the tokens of all ranks and calls nothing of MEP --------------------------------------

class Layer:
    """For each rank its tokens, their experts and probs; those of other experts are NaN. widest: experts of a token, any
    number up to it, also none."""

    def __init__(self, counts, seed, widest, exact=False):
        import torch
        draw = torch.Generator().manual_seed(seed)
        self.ranks, self.experts = len(counts), LOCAL * len(counts)
        self.x, self.maps, self.probs, self.grads = [], [], [], []
        for tokens in counts:
            ranking = torch.rand(tokens, self.experts, generator=draw).argsort(1).argsort(1)
            number = torch.randint(0, widest + 1, (tokens, 1), generator=draw)
            self.maps.append(ranking < (widest if exact else number))
            self.probs.append(torch.rand(tokens, self.experts, generator=draw).where(self.maps[-1], float("nan")))
            for into in (self.x, self.grads):
                into.append((torch.randn(tokens, HIDDEN, generator=draw) * 3).to(torch.bfloat16))

    def entries(self, rank, pad):
        """[(source, token, expert), or None for padding] of the grouped rows at the rank."""
        found = []
        for expert in range(rank * LOCAL, (rank + 1) * LOCAL):
            found += [(source, token, expert) for source in range(self.ranks)
                      for token in self.maps[source][:, expert].nonzero().flatten().tolist()]
            found += [None] * (-len(found) % pad)
        return found

    def counts(self, rank, pad):
        return [-(-sum(int(each[:, rank * LOCAL + expert].sum()) for each in self.maps) // pad) * pad
                for expert in range(LOCAL)]

    def grouped(self, rank, pad, values, rows=None):
        """Grouped rows of the sources' values; rows: as many of them, or zeros behind."""
        import torch
        entries = self.entries(rank, pad)
        rows = len(entries) if rows is None else rows
        made = torch.zeros(rows, *values[0].shape[1:], dtype=values[0].dtype)
        for row, entry in enumerate(entries[:rows]):
            if entry is not None:
                made[row] = values[entry[0]][entry[1]]
        return made

    def grouped_probs(self, rank, pad, rows=None):
        import torch
        entries = self.entries(rank, pad)
        made = [0.0 if each is None else float(self.probs[each[0]][each[1], each[2]]) for each in entries]
        return torch.tensor((made + [0.0] * (rows or 0))[:len(made) if rows is None else rows])

    def came(self, source, token, expert, pad, rows):
        """Whether the row is among the first of its rank."""
        return rows is None or self.entries(expert // LOCAL, pad).index((source, token, expert)) < rows

    def summed(self, rank, output, pad=1, rows=None):
        """Sums of the rank's tokens where an expert gives output(token, expert): those of a rank in float32, rounded,
        then over ranks, rounded."""
        import torch
        sums = torch.zeros(self.x[rank].shape)
        for token in range(len(sums)):
            for owner in range(self.ranks):
                here = torch.zeros(HIDDEN)
                for expert in range(owner * LOCAL, (owner + 1) * LOCAL):
                    if self.maps[rank][token, expert] and self.came(rank, token, expert, pad, rows):
                        here = here + output(token, expert).float()
                sums[token] = sums[token] + here.to(torch.bfloat16).float()
        return sums.to(torch.bfloat16)

    def routed_probs(self, rank, pad=1, rows=None):
        import torch
        kept = torch.zeros(self.maps[rank].shape, dtype=torch.bool)
        for token, expert in self.maps[rank].nonzero().tolist():
            kept[token, expert] = self.came(rank, token, expert, pad, rows)
        return self.probs[rank].where(kept, 0.0)


def same(found, wanted):
    import torch
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (found, wanted)
    if found.dtype.itemsize == 1:
        found, wanted = found.view(torch.uint8), wanted.view(torch.uint8)
    assert torch.equal(found, wanted), (found, wanted)


def factor(expert):
    return 1 + expert / 4


# --- The clients --------------------------------------------------------------------------------------------------

def megatron(buffer):
    """HybridEPDispatch and HybridEPCombine of fused_a2a.py."""
    import torch

    class Dispatch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, routing_map, probs, num_permuted_tokens, pad_multiple):
            found = buffer.dispatch_with_permute(
                hidden=x, routing_map=routing_map, probs=probs, scaling_factor=None, num_of_experts_per_rank=LOCAL,
                pad_multiple=pad_multiple, num_permuted_tokens=num_permuted_tokens,
                non_blocking=num_permuted_tokens is not None)
            ctx.handle, ctx.pad_multiple = found[-1], pad_multiple
            return found

        @staticmethod
        def backward(ctx, grad_x, grad_probs, *_):
            sums, probs = buffer.combine_with_unpermute(hidden=grad_x, probs=grad_probs, handle=ctx.handle,
                                                        pad_multiple=ctx.pad_multiple)
            return sums, None, probs, None, None

    class Combine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, handle, num_permuted_tokens, pad_multiple):
            ctx.handle, ctx.rest = handle, dict(num_permuted_tokens=num_permuted_tokens, pad_multiple=pad_multiple)
            return buffer.combine_with_unpermute(hidden=x, handle=handle, pad_multiple=pad_multiple)[0]

        @staticmethod
        def backward(ctx, grad):
            return buffer.dispatch_with_permute(hidden=grad, scaling_factor=None, handle=ctx.handle,
                                                **ctx.rest)[0], None, None, None

    return Dispatch, Combine


def trained(buffer, layer, rank, pad, rows):
    """A layer forward and backward. rows: num_permuted_tokens, or None: exact ones, with a wait."""
    import torch
    dispatch, combine = megatron(buffer)
    x, probs = layer.x[rank].clone().requires_grad_(), layer.probs[rank].clone().requires_grad_()
    found, got, scales, counts, handle = dispatch.apply(x, layer.maps[rank], probs, rows, pad or None)
    assert scales is None and counts.dtype == torch.int64 and counts.tolist() == layer.counts(rank, pad)
    same(found.detach(), layer.grouped(rank, pad, layer.x, rows))
    same(got.detach(), layer.grouped_probs(rank, pad, rows))
    came = len(layer.entries(rank, pad))
    assert handle[-1].tolist() == [int(rows is not None and rows < came)] and handle[8] == len(x)
    assert int(handle[3]) == sum(int(each[:, rank * LOCAL:(rank + 1) * LOCAL].any(1).sum()) for each in layer.maps)
    found, got = found.clone(), got.clone()  # autograd saves no tensors of inference mode
    places = [entry[2] if entry else 0 for entry in layer.entries(rank, pad)] + [0] * (rows or 0)
    factors = torch.tensor([factor(each) for each in places[:len(found)]]).unsqueeze(1)
    out = combine.apply((found.float() * factors * got.unsqueeze(1)).to(torch.bfloat16), handle,
                        counts.sum() if rows is None else rows, pad or None)
    p = layer.routed_probs(rank)
    same(out.detach(), layer.summed(rank, lambda token, expert: (
        layer.x[rank][token].float() * factor(expert) * p[token, expert]).to(torch.bfloat16), pad, rows))
    out.backward(layer.grads[rank])
    grad = layer.grads[rank]
    same(x.grad, layer.summed(rank, lambda token, expert: (
        grad[token].float() * p[token, expert] * factor(expert)).to(torch.bfloat16), pad, rows))
    scale = torch.tensor([factor(each) for each in range(layer.experts)])
    wanted = (grad.float() * layer.x[rank].float()).sum(1, keepdim=True) * scale
    came = layer.routed_probs(rank, pad, rows) != 0
    torch.testing.assert_close(probs.grad, wanted.where(came, 0.0), rtol=1e-4, atol=1e-2)


def given_indices(buffer, layer, rank, pad):
    """topk_idx with -1, of widths that differ between ranks; probs come back as they went."""
    import torch
    width = min(int(max(each.sum(1).max() if len(each) else 0 for each in layer.maps)) + rank % 2, layer.experts)
    order = torch.arange(layer.experts).where(layer.maps[rank], layer.experts).sort(1).values[:, :width]
    index = order.where(order < layer.experts, -1)
    p = layer.routed_probs(rank)
    for named in (dict(topk_weights=p.gather(1, index.clamp(min=0))), dict(probs=p), {}):
        found, got, _, counts, handle = buffer.dispatch_with_permute(
            hidden=layer.x[rank], topk_idx=index, num_of_experts=layer.experts, pad_multiple=pad, **named)
        same(found, layer.grouped(rank, pad, layer.x))
        assert counts.tolist() == layer.counts(rank, pad)
        if not named:
            assert got is None and buffer.combine_with_unpermute(hidden=found, handle=handle)[1] is None
            continue
        same(got, layer.grouped_probs(rank, pad))
        sums, back = buffer.combine_with_unpermute(hidden=found, probs=got, handle=handle)
        same(back, p)
        same(sums, layer.summed(rank, lambda token, expert: layer.x[rank][token]))


def given_bytes(buffer, layer, rank, pad, kind):
    """Rows of fp8 and their scales, by a map and then by the handle with probs."""
    import torch
    rows = [each.view(torch.uint8)[:, :HIDDEN].contiguous().view(kind) for each in layer.x]
    scales = [each[:, ::128].float().contiguous() for each in layer.x]
    wanted = len(layer.entries(rank, pad))
    named = dict(hidden=rows[rank], scaling_factor=scales[rank], pad_multiple=pad, routing_map=layer.maps[rank])
    found, got, factors, counts, handle = buffer.dispatch_with_permute(use_fp8=True, **named)
    assert got is None
    for again in (False, True):
        if again:
            found, got, factors, counts, same_handle = buffer.dispatch_with_permute(
                probs=layer.probs[rank], handle=handle, num_permuted_tokens=wanted + pad, **named)
            assert same_handle is handle
            same(got, layer.grouped_probs(rank, pad, wanted + pad))
        same(found, layer.grouped(rank, pad, rows, len(found)))
        same(factors, layer.grouped(rank, pad, scales, len(found)))
        assert counts.tolist() == layer.counts(rank, pad) and len(found) == wanted + pad * again


def not_grouped(buffer, layer, rank):
    import torch
    first, behind = rank * LOCAL, (rank + 1) * LOCAL
    here = [each[:, first:behind].any(1) for each in layer.maps]
    for probs in (layer.probs[rank], None):
        found, got, scales, handle = buffer.dispatch(layer.x[rank], routing_map=layer.maps[rank], probs=probs)
        same(found, torch.cat([x[each] for x, each in zip(layer.x, here)]))
        local = torch.cat([each[rows, first:behind] for each, rows in zip(layer.maps, here)])
        same(handle[4], local)
        assert scales is None and int(handle[3]) == len(found) == len(handle[4])
        if probs is not None:
            wanted = torch.zeros(len(found), layer.experts)
            wanted[:, first:behind] = torch.cat([layer.routed_probs(source)[rows, first:behind]
                                                 for source, rows in enumerate(here)])
            same(got, wanted)
        sums, back = buffer.combine((found.float() * local.sum(1, keepdim=True)).to(torch.bfloat16), got, handle)
        same(sums, layer.summed(rank, lambda token, expert: layer.x[rank][token]))
        assert back is None if probs is None else torch.equal(back, layer.routed_probs(rank))
    again, got, *_ = buffer.dispatch(layer.grads[rank], probs=layer.probs[rank], handle=handle)
    same(again, torch.cat([x[each] for x, each in zip(layer.grads, here)]))
    same(got, wanted)


def too_narrow(buffer, layer, rank):
    """On GPUs a dispatch that does not wait may meet a token with more experts than any before: here with more than 1."""
    import torch
    named = dict(hidden=layer.x[rank], routing_map=layer.maps[rank], non_blocking=True, num_permuted_tokens=99)
    buffer._agreed = lambda *_: 1
    found, _, _, counts, handle = buffer.dispatch_with_permute(**named)
    del buffer._agreed
    assert handle[-1].tolist() == [int((layer.maps[rank].sum(1) > 1).any())]
    layer.maps = [each & (each.cumsum(1) == 1) for each in layer.maps]
    same(found, layer.grouped(rank, 1, layer.x, 99))
    assert counts.tolist() == layer.counts(rank, 1)
    same(buffer.combine_with_unpermute(hidden=found, handle=handle)[0],
         layer.summed(rank, lambda token, expert: layer.x[rank][token]))
    assert torch.equal(handle[7], counts.to(torch.int32))


# --- In the ranks ------------------------------------------------------------------------------------------------

def make(deep_ep, group, most=2):
    """Made and looked at in the way of Megatron and torchtitan."""
    buffer = deep_ep.HybridEPBuffer(
        group=group, hidden_dim=HIDDEN, max_num_of_tokens_per_rank=most, num_local_experts=LOCAL, use_fp8=False,
        num_sms_dispatch_api=24, num_sms_combine_api=24, load_cached_kernels=True, enable_custom_allgather=True)
    for sizes in (buffer.config, buffer.configurer.buffer_config):
        assert (sizes.hidden_dim, sizes.max_num_of_tokens_per_rank) == (HIDDEN, most)
        assert sizes.num_of_experts_per_rank == LOCAL
    assert buffer.group is group and buffer.runtime is not None
    assert "fuse_permute_dispatch" in inspect.signature(deep_ep.HybridEPBuffer.dispatch_with_permute).parameters
    return buffer


def rank_layers():
    import torch
    deep_ep, dist, rank, ranks = begin()
    buffer = make(deep_ep, dist.group.WORLD)
    counts = [[0] * ranks, [1] * ranks, list(range(ranks)), [5] * ranks, [9] + [0] * (ranks - 1), [4] * ranks]
    for number, each in enumerate(counts):
        layer = Layer(each, 100 + number, widest=(1, 3)[number % 2], exact=number == 3)
        pad = (1, 16, 128)[number % 3]
        worst = sum(each) * LOCAL + LOCAL * pad
        for rows in (None, -(-worst // pad) * pad, pad):
            trained(buffer, layer, rank, pad, rows)
        given_indices(buffer, layer, rank, pad)
        given_bytes(buffer, layer, rank, pad, (torch.uint8, torch.float8_e4m3fn)[number % 2])
        not_grouped(buffer, layer, rank)
    assert buffer.config.max_num_of_tokens_per_rank == 9
    too_narrow(buffer, Layer([6] * ranks, 800, widest=3), rank)
    refusals(buffer, Layer([3] * ranks, 900, widest=2), rank)
    maps(deep_ep)
    buffer.empty_jit_cache()
    buffer.destroy()
    dist.destroy_process_group()


def rank_defaults():
    """Under other defaults of PyTorch than the program's."""
    import mep.deep_ep
    mep.deep_ep.HybridEPBuffer = under_other_defaults(
        mep.deep_ep.HybridEPBuffer, ("dispatch", "combine", "dispatch_with_permute", "combine_with_unpermute"))
    rank_layers()


def maps(deep_ep):
    import torch
    from deep_ep.hybrid_ep_buffer import indices_to_map
    found, probs = indices_to_map(torch.tensor([[2, 0], [-1, 1]]), torch.tensor([[.5, .25], [9., .75]]), 2, 3)
    assert found.tolist() == [[True, False, True], [False, True, False]]
    assert probs.tolist() == [[.25, 0, .5], [0, .75, 0]]
    assert indices_to_map(torch.tensor([[1]]), None, 1, 2)[1] is None


def refusals(buffer, layer, rank):
    """Calls that are wrong on all ranks alike; nothing is sent."""
    x, route = layer.x[rank], dict(routing_map=layer.maps[rank])
    *_, handle = buffer.dispatch_with_permute(hidden=x, pad_multiple=4, **route)
    *_, flat = buffer.dispatch(x, **route)
    y = x.new_zeros(len(layer.entries(rank, 4)), HIDDEN)
    wrong = (
        (ValueError, "needs routing_map or topk_idx", lambda: buffer.dispatch_with_permute(hidden=x)),
        (ValueError, "routing_map: torch.float32", lambda: buffer.dispatch(x, routing_map=route["routing_map"].float())),
        (ValueError, "there are 1 experts", lambda: buffer.dispatch(x, routing_map=route["routing_map"][:, :1])),
        (ValueError, "routing_map: ", lambda: buffer.dispatch(x[:-1], **route)),
        (ValueError, "a token has 66 experts", lambda: buffer.dispatch_with_permute(
            hidden=x, routing_map=x.new_ones(3, 66 * layer.ranks).cumsum(1) <= 66, num_of_experts_per_rank=66)),
        (ValueError, "topk_idx: ", lambda: buffer.dispatch(x, topk_idx=x.new_zeros(3, 99).long())),
        (ValueError, "probs: ", lambda: buffer.dispatch(x, probs=x.new_zeros(3, 1), **route)),
        (ValueError, "needs a multiple of pad_multiple, 4", lambda: buffer.dispatch_with_permute(
            hidden=x, non_blocking=True, num_permuted_tokens=6, pad_multiple=4, **route)),
        (ValueError, "num_permuted_tokens is None", lambda: buffer.dispatch_with_permute(
            hidden=x, non_blocking=True, **route)),
        (ValueError, "hidden is of torch.float32", lambda: buffer.dispatch(x.float(), **route)),
        (ValueError, "needs scaling_factor", lambda: buffer.dispatch(x.byte(), **route)),
        (ValueError, "pad_multiple is 8", lambda: buffer.dispatch_with_permute(hidden=x, handle=handle, pad_multiple=8)),
        (ValueError, "hidden has 2 rows", lambda: buffer.dispatch_with_permute(hidden=x[:2], handle=handle)),
        (ValueError, "without permute", lambda: buffer.combine_with_unpermute(hidden=y, handle=flat)),
        (ValueError, "with permute", lambda: buffer.combine(y, None, handle)),
        (ValueError, "the handle's dispatch gave", lambda: buffer.combine_with_unpermute(
            hidden=y.new_zeros(len(y) + 1, HIDDEN), handle=handle)),
        (TypeError, "handle is a tuple", lambda: buffer.combine(y, handle=tuple(handle))),
        (TypeError, "handle is a NoneType", lambda: buffer.combine_with_unpermute(hidden=y)),
    )
    for kind, text, call in wrong:
        launch.refused(kind, text, call)
    buffer.combine_with_unpermute(hidden=y, handle=handle)


class HybridTest(unittest.TestCase):
    def test_layers(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                launch.run(__file__, "layers", ranks)

    def test_other_defaults(self):
        launch.run(__file__, "defaults", 2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
