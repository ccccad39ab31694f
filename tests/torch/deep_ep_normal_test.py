#!/usr/bin/env python3
"""Normal mode of mep.deep_ep: DeepEP's own checks and the calls of vLLM, SGLang and Megatron, against a reference in
PyTorch."""
import gc
import os
import pathlib
import signal
import sys
import threading
import unittest

import launch
from launch import refused as expect
from deep_ep_normal_cases import (LOCAL, Case, cases, check_layout, check_rows, check_topk, output, plain, same, summed,
                                  uneven)
from deep_ep_test import HIDDEN, TOP_K, Case as LowLatencyCase, begin, make_buffer, quantised, sglang_layer

KINDS = ("bf16", "fp8")


# --- The calls, as the programs make them ------------------------------------------------------------------------

def layout_of(buffer, case, rank):
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(case.topk_idx[rank], case.experts)
    return {"num_tokens_per_rank": per_rank, "num_tokens_per_expert": per_expert, "is_token_in_rank": in_rank}


def dispatched(buffer, case, rank, kind="bf16", **options):
    """A dispatch with top-k, checked: (received, handle)."""
    index = case.topk_idx[rank].clone()
    received, local, weights, counts, handle, _ = buffer.dispatch(
        case.given(rank, kind), topk_idx=index, topk_weights=case.weights[rank], **layout_of(buffer, case, rank),
        **options)
    index.fill_(-1)  # is the caller's again
    worst = options.get("num_worst_tokens", 0)
    check_rows(case, rank, kind, received, worst=worst)
    check_topk(case, rank, local, weights, counts, options.get("expert_alignment", 1), worst)
    return received, handle


def combined(buffer, case, rank, received, handle, kind="bf16", x=None):
    sums, weights, _ = buffer.combine(output(plain(received), rank), handle)
    assert weights is None
    same(sums, summed(case, rank, kind, x))


def vllm_layer(deep_ep, buffer, case, rank, kind, asynchronous=False):
    """deepep_ht.py: everything by name; alignment 1."""
    found = buffer.get_dispatch_layout(topk_idx=case.topk_idx[rank], num_experts=case.experts, previous_event=None,
                                       async_finish=False, allocate_on_comm_stream=False)
    check_layout(case, rank, found)
    per_rank, per_rdma_rank, per_expert, in_rank, event = found
    received, local, weights, counts, handle, event = buffer.dispatch(
        x=case.given(rank, kind), handle=None, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_rdma_rank,
        is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=case.topk_idx[rank],
        topk_weights=case.weights[rank], expert_alignment=1, config=deep_ep.Buffer.get_dispatch_config(case.ranks),
        previous_event=None, async_finish=asynchronous, allocate_on_comm_stream=False)
    assert (event.event is not None) == asynchronous
    event.current_stream_wait()
    check_rows(case, rank, kind, received)
    check_topk(case, rank, local, weights, counts)
    sums, nothing, event = buffer.combine(
        x=output(plain(received), rank), handle=handle, topk_weights=None,
        config=deep_ep.Buffer.get_combine_config(case.ranks), previous_event=None, async_finish=asynchronous,
        allocate_on_comm_stream=False)
    assert nothing is None and (event.event is not None) == asynchronous
    same(sums, summed(case, rank, kind))


def sglang_normal_layer(deep_ep, buffer, case, rank, kind):
    """deepep.py: alignment 128, all on the stream of communication."""
    before = deep_ep.Buffer.capture()
    per_rank, per_rdma_rank, per_expert, in_rank, before = buffer.get_dispatch_layout(
        case.topk_idx[rank], case.experts, previous_event=before, async_finish=True, allocate_on_comm_stream=True)
    received, local, weights, counts, handle, event = buffer.dispatch(
        case.given(rank, kind), topk_idx=case.topk_idx[rank], topk_weights=case.weights[rank],
        num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_rdma_rank, is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert, previous_event=before, async_finish=True, allocate_on_comm_stream=True,
        expert_alignment=128, config=deep_ep.Config(num_sms=24))
    event.current_stream_wait()
    check_rows(case, rank, kind, received)
    check_topk(case, rank, local, weights, counts, alignment=128)
    sums, _, event = buffer.combine(output(plain(received), rank), handle, async_finish=True,
                                    previous_event=deep_ep.Buffer.capture(), allocate_on_comm_stream=True,
                                    config=deep_ep.Config(num_sms=24))
    event.current_stream_wait()
    same(sums, summed(case, rank, kind))


# --- In the ranks ------------------------------------------------------------------------------------------------

def normal_buffer(deep_ep, group):
    """A Buffer as vLLM's all2all.py makes it."""
    return deep_ep.Buffer(group=group, num_nvl_bytes=1 << 30, num_rdma_bytes=0, low_latency_mode=False,
                          num_qps_per_rank=1, explicitly_destroy=True)


def rank_intranode():
    """The checks of DeepEP's test_intranode.py, for uneven tokens as well."""
    import torch
    deep_ep, dist, rank, ranks = begin()
    buffer = deep_ep.Buffer(dist.group.WORLD, int(1e9), 0)
    config = deep_ep.Config(24, 8, 256)
    for number, case in enumerate(cases(ranks, 1000)):
        given = buffer.get_dispatch_layout(case.topk_idx[rank], case.experts)
        check_layout(case, rank, given)
        per_rank, _, per_expert, in_rank, _ = given
        constant = [torch.full_like(each, source + 1) for source, each in enumerate(case.x)]
        for kind, x in (("bf16", case.x), ("bf16", constant), ("fp8", constant), ("fp8", case.x)):
            for with_topk in (False, True):
                arguments = {"x": case.given(rank, kind, x[rank]), "num_tokens_per_rank": per_rank, "config": config,
                             "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}
                intranode_step(buffer, case, rank, kind, x, with_topk, arguments, asynchronous=number % 2 == 0)
    dist.barrier()  # and no destroy()
    dist.destroy_process_group()


def intranode_step(buffer, case, rank, kind, x, with_topk, arguments, asynchronous):
    import torch
    options = {"config": arguments["config"], "async_finish": asynchronous}
    if asynchronous:
        options["previous_event"] = buffer.capture()
    if with_topk:
        arguments.update(topk_idx=case.topk_idx[rank], topk_weights=case.weights[rank])
    received, local, weights, counts, handle, event = buffer.dispatch(**{**arguments, **options})
    event.current_stream_wait()
    check_rows(case, rank, kind, received, x)
    assert counts == case.counts(rank)
    assert len(handle) == 6
    ends = [sum(source <= each for source, _ in case.rows(rank)) for each in range(case.ranks)]
    assert [int(handle[0][source][rank]) for source in range(case.ranks)] == ends, (handle[0], ends)
    assert handle[3].tolist() == [token for _, token in case.rows(rank)]
    if with_topk:
        check_topk(case, rank, local, weights, counts)
    else:
        assert local is None and weights is None
        cached = buffer.dispatch(x=arguments["x"], handle=handle, **options)
        assert cached[1:5] == (None, None, None, None)
        check_rows(case, rank, kind, cached[0], x)
    sums, back, event = buffer.combine(x=output(plain(received), rank), handle=handle, topk_weights=weights, **options)
    event.current_stream_wait()
    same(sums, summed(case, rank, kind, x))
    if with_topk:
        same(back, case.weights[rank] * (case.topk_idx[rank] >= 0))
        # Values of all K columns go back, also where the row has no expert.
        mine = torch.full_like(weights, rank + 1.0)
        _, back, _ = buffer.combine(output(plain(received), rank), handle, topk_weights=mine)
        wanted = [sum((owner + 1.0 for owner in case.ranks_of(rank, token)), 0.0) for token in range(len(back))]
        same(back, torch.tensor(wanted).view(-1, 1).repeat(1, TOP_K))


def rank_engines():
    """vLLM's and SGLang's dispatchers; low latency on the same buffer, as SGLang's `auto` has it."""
    deep_ep, dist, rank, ranks = begin(os.environ.get("BACKEND", "gloo"))
    buffer = normal_buffer(deep_ep, dist.group.WORLD)
    both = make_buffer(deep_ep, dist.group.WORLD, ranks)
    for number, kind in enumerate(KINDS):
        for each, case in enumerate(cases(ranks, 2000 + 100 * number)):
            vllm_layer(deep_ep, buffer, case, rank, kind, asynchronous=each % 2 == 1)
            sglang_normal_layer(deep_ep, both, case, rank, kind)
            both.clean_low_latency_buffer(6, HIDDEN, 2 * ranks)
            sglang_layer(both, LowLatencyCase(ranks, each), rank, kind)
    worst_tokens(buffer, rank, ranks)
    biases(buffer, rank, ranks)
    both.destroy()
    buffer.destroy()
    dist.destroy_process_group()


def worst_tokens(buffer, rank, ranks):
    for kind in KINDS:
        for case in cases(ranks, 2500):
            worst = ranks * 8
            received, handle = dispatched(buffer, case, rank, kind, num_worst_tokens=worst)
            cached, *_ = buffer.dispatch(case.given(rank, kind), handle=handle)
            check_rows(case, rank, kind, cached, worst=worst)
            combined(buffer, case, rank, received, handle, kind)


def biases(buffer, rank, ranks):
    """One or two biases are the first terms of the sums."""
    case = Case(ranks, 2600, [4] * ranks)
    received, handle = dispatched(buffer, case, rank)
    bias = (case.x[rank] * 5 + 1, case.x[rank] - 7)
    for given in (bias[0], bias):
        sums, _, _ = buffer.combine(output(received, rank), handle, bias=given)
        same(sums, summed(case, rank, biases=given if isinstance(given, tuple) else (given,)))


def rank_handles():
    """Handles after other dispatches: in the order of training and in any other one; more tokens than ever before."""
    import mep
    deep_ep, dist, rank, ranks = begin()
    buffer = normal_buffer(deep_ep, dist.group.WORLD)
    # All dispatches come before all combines, more than the buffers of an EP object; then cached, backwards.
    layers = [Case(ranks, 3000 + each, [(each + 2 * source) % 7 for source in range(ranks)]) for each in range(6)]
    kept = [dispatched(buffer, case, rank, KINDS[number % 2]) for number, case in enumerate(layers)]
    for number in (4, 0, 5, 2, 2, 3, 1):  # one is combined twice
        combined(buffer, layers[number], rank, *kept[number], KINDS[number % 2])
    for number in reversed(range(len(layers))):
        # A gradient is bfloat16, whatever the dispatch was.
        case, handle = layers[number], kept[number][1]
        gradients = [each * 3 - 1 for each in case.x]
        received, *_ = buffer.dispatch(gradients[rank], handle=handle)
        check_rows(case, rank, "bf16", received, gradients)
        combined(buffer, case, rank, received, handle, x=gradients)
    for number, (case, (received, _)) in enumerate(zip(layers, kept)):
        check_rows(case, rank, KINDS[number % 2], received)  # is the caller's own
    # More tokens on one rank than there is room for; the old handles stay.
    large = Case(ranks, 3100, [3] * (ranks - 1) + [200])
    received, handle = dispatched(buffer, large, rank)
    combined(buffer, layers[0], rank, *kept[0])
    combined(buffer, large, rank, received, handle)
    dispatched(buffer, layers[1], rank)
    combined(buffer, large, rank, received, handle)
    # Rows of another width by the same handle.
    half = [each[:, :HIDDEN // 2].contiguous() for each in large.x]
    received, *_ = buffer.dispatch(half[rank], handle=handle)
    check_rows(large, rank, "bf16", received, half)
    combined(buffer, large, rank, received, handle, x=half)
    # Fewer tokens make no other EP object, and handles of the library are taken again.
    before = living(mep.Ep)
    for each in range(20):
        case = Case(ranks, 3200 + each, [100 if each == 1 else each] * ranks)
        combined(buffer, case, rank, *dispatched(buffer, case, rank))
        if each == 2:
            handles = living(mep.ep.Handle)
    assert living(mep.Ep) == before and living(mep.ep.Handle) == handles
    buffer.destroy()
    dist.destroy_process_group()


# Scales of SGLang's prefill on Blackwell, of its blocks of 32, of vLLM's MXFP8, and of a row as a whole: type, columns,
# and whether they lie column by column.
FORMS = (("int32", HIDDEN // 512 + 1, True), ("float32", HIDDEN // 32, False), ("int32", HIDDEN // 128, False),
         ("float32", 1, True))


class FormedCase(Case):
    """fp8 rows with scales of which MEP knows nothing."""

    def __init__(self, ranks, seed, counts, form):
        import torch
        super().__init__(ranks, seed, counts)
        kind, columns, by_column = form
        draw = torch.Generator().manual_seed(seed)
        self.scales = []
        for tokens in counts:
            bits = torch.randint(-2**31, 2**31, (tokens, columns), generator=draw).to(torch.int32)
            scales = bits.view(getattr(torch, kind))
            self.scales.append(scales.t().contiguous().t() if by_column else scales)

    def given(self, rank, kind, x=None):
        return quantised(self.x[rank] if x is None else x, kind)[0], self.scales[rank]


def rank_scales():
    """Scales of any form arrive as they are."""
    import torch
    deep_ep, dist, rank, ranks = begin()
    buffer = normal_buffer(deep_ep, dist.group.WORLD)
    for form in FORMS:
        for number, counts in enumerate(uneven(ranks)):
            case = FormedCase(ranks, 6000 + number, counts, form)
            received, handle = dispatched(buffer, case, rank, "fp8")
            assert received[1].stride() == (form[1], 1) or len(received[1]) < 2, received[1].stride()
            values = case.given(rank, "fp8")[0].float()
            owners = torch.tensor([len(case.ranks_of(rank, token)) for token in range(len(values))]).view(-1, 1)
            for _ in range(2):  # the second time by a dispatch of zeros
                sums, _, _ = buffer.combine(received[0].to(torch.bfloat16), handle)
                same(sums, (values * owners + 0.0).to(torch.bfloat16))
            cached, *_ = buffer.dispatch(case.given(rank, "fp8"), handle=handle)
            check_rows(case, rank, "fp8", cached)
            worst, *_ = dispatched(buffer, case, rank, "fp8", num_worst_tokens=9 * ranks)
            assert (worst[1][len(received[1]):].view(torch.int32) == 0).all()
    for number, kind in enumerate(KINDS):
        vllm_layer(deep_ep, buffer, Case(ranks, 6100 + number, [3] * ranks), rank, kind)
    buffer.destroy()
    dist.destroy_process_group()


def living(kind):
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


def rank_training():
    """Two layers forward and backward by autograd, as Megatron's fused_a2a.py calls them, with gradients of weights."""
    import torch
    deep_ep, dist, rank, ranks = begin()
    buffer = normal_buffer(deep_ep, dist.group.WORLD)

    class Dispatch(torch.autograd.Function):
        @staticmethod
        def forward(context, x, topk_idx, weights, experts):
            before = deep_ep.EventOverlap(deep_ep.EventHandle())
            per_rank, per_rdma_rank, per_expert, in_rank, event = buffer.get_dispatch_layout(
                topk_idx, experts, previous_event=before, async_finish=False, allocate_on_comm_stream=False)
            received, local, own_weights, counts, handle, _ = buffer.dispatch(
                x, topk_idx=topk_idx, topk_weights=weights, num_tokens_per_rank=per_rank,
                num_tokens_per_rdma_rank=per_rdma_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
                previous_event=event, async_finish=False, allocate_on_comm_stream=False)
            context.handle = handle
            return received, local, own_weights, torch.tensor(counts), handle

        @staticmethod
        def backward(context, gradient, _, weights_gradient, *rest):
            x_gradient, weights_gradient, _ = buffer.combine(
                gradient.contiguous(), context.handle, topk_weights=weights_gradient.float(), previous_event=None,
                async_finish=False, allocate_on_comm_stream=False)
            return x_gradient, None, weights_gradient, None

    class Combine(torch.autograd.Function):
        @staticmethod
        def forward(context, x, handle):
            sums, _, _ = buffer.combine(x, handle=handle, async_finish=False, previous_event=None,
                                        allocate_on_comm_stream=False)
            context.handle = handle
            return sums

        @staticmethod
        def backward(context, gradient):
            received, _, _, _, _, _ = buffer.dispatch(gradient.contiguous(), handle=context.handle, previous_event=None,
                                                      async_finish=False, allocate_on_comm_stream=False)
            return received, None

    def layer(x, case, weights):
        received, local, own_weights, _, handle = Dispatch.apply(x, case.topk_idx[rank], weights, case.experts)
        factors = factors_of(own_weights, local + rank * LOCAL, local >= 0)
        return Combine.apply((received.float() * factors).to(torch.bfloat16), handle)

    for step in range(2):
        counts = [(3 * source + step) % 5 for source in range(ranks)]
        both = [Case(ranks, 4000 + 10 * step + each, counts) for each in range(2)]
        x = both[0].x[rank].clone().requires_grad_()
        weights = [case.weights[rank].clone().requires_grad_() for case in both]
        y = layer(layer(x, both[0], weights[0]), both[1], weights[1])
        (y.float() * both[1].x[rank].float()).sum().backward()
        # Without ranks: a token's terms are those of its ranks, each rounded to bfloat16.
        own_x = both[0].x[rank].clone().requires_grad_()
        own_weights = [case.weights[rank].clone().requires_grad_() for case in both]
        between = own_x
        for case, each in zip(both, own_weights):
            index = case.topk_idx[rank]
            terms = [between.float() * factors_of(each, index, index // LOCAL == owner) for owner in range(ranks)]
            between = sum(term.to(torch.bfloat16).float() for term in terms).to(torch.bfloat16)
        (between.float() * both[1].x[rank].float()).sum().backward()
        same(y.detach(), between.detach())
        torch.testing.assert_close(x.grad, own_x.grad, rtol=3e-2, atol=0.5)
        for found, wanted in zip(weights, own_weights):
            torch.testing.assert_close(found.grad, wanted.grad, rtol=3e-2, atol=0.5)
    buffer.destroy()
    dist.destroy_process_group()


def factors_of(weights, experts, chosen):
    """Factor of a row: over its experts here, the weight by a number of the expert, added up in the order of K."""
    import torch
    total = torch.zeros(len(weights), 1)
    for k in range(TOP_K):
        term = weights[:, k] * (1 + experts[:, k].float() / 8)
        total = total + torch.where(chosen[:, k], term, torch.zeros_like(term)).unsqueeze(1)
    return total


def rank_refused():
    """Wrong arguments change nothing: the buffer works afterwards."""
    import torch
    deep_ep, dist, rank, ranks = begin()
    buffer, other = normal_buffer(deep_ep, dist.group.WORLD), normal_buffer(deep_ep, dist.group.WORLD)
    case = Case(ranks, 5000, [3] * ranks)
    x, index, weights = case.x[rank], case.topk_idx[rank], case.weights[rank]
    received, handle = dispatched(buffer, case, rank)
    given = {**layout_of(buffer, case, rank), "topk_idx": index, "topk_weights": weights}
    twice, large, small = index.clone(), index.clone(), index.clone()
    twice[1, :2], large[2, 0], small[0, 1] = 1, case.experts, -2

    def dispatch(x=x, **options):
        return lambda: buffer.dispatch(x, **{**given, **options})

    def combine(x=received, handle=handle, **options):
        return lambda: buffer.combine(x, handle, **options)
    wrong = x.float()
    for kind, text, call in (
            (ValueError, "names expert 1 twice", dispatch(topk_idx=twice)),
            (ValueError, f"token 2 names expert {case.experts}; experts", dispatch(topk_idx=large)),
            (ValueError, "names expert -2", lambda: buffer.get_dispatch_layout(small, case.experts)),
            (ValueError, "must be int64", lambda: buffer.get_dispatch_layout(index.int(), case.experts)),
            (ValueError, "cannot be dealt", lambda: buffer.get_dispatch_layout(index, case.experts + 1)),
            (ValueError, "not what topk_idx says", dispatch(is_token_in_rank=~given["is_token_in_rank"])),
            (ValueError, "is_token_in_rank is", dispatch(is_token_in_rank=given["is_token_in_rank"][1:])),
            (ValueError, "get_dispatch_layout() gives them", lambda: buffer.dispatch(x, topk_idx=index)),
            (ValueError, "num_tokens_per_expert is", dispatch(num_tokens_per_expert=torch.zeros(1))),
            (ValueError, "topk_idx has 2 rows", dispatch(topk_idx=index[:2])),
            (ValueError, "topk_weights: ", dispatch(topk_weights=weights.double())),
            (ValueError, "topk_weights: ", dispatch(topk_weights=weights[:1])),
            (ValueError, "topk_weights need topk_idx", dispatch(topk_idx=None)),
            (ValueError, "num_worst_tokens needs topk_idx", dispatch(topk_idx=None, num_worst_tokens=9)),
            (ValueError, "expert_alignment is 0", dispatch(expert_alignment=0)),
            (ValueError, "num_worst_tokens -1", dispatch(num_worst_tokens=-1)),
            (ValueError, "x: torch.float32", dispatch(wrong)),
            (ValueError, "must be [tokens, hidden]", dispatch(x[0])),
            (ValueError, "the scales of x", dispatch((x.to(torch.float8_e4m3fn), wrong[:2]))),
            (ValueError, "the scales of x", dispatch((x.to(torch.float8_e4m3fn), wrong.double()))),
            (NotImplementedError, "on the CPU", dispatch(x.to("meta"))),
            (ValueError, "neither topk_idx", lambda: buffer.dispatch(x, handle=handle, topk_idx=index)),
            (ValueError, "x has 2 rows", lambda: buffer.dispatch(x[:2], handle=handle)),
            (TypeError, "that a dispatch returned", combine(handle=tuple(handle))),
            (ValueError, "another Buffer", lambda: other.combine(received, handle)),
            (ValueError, "a row for each of the dispatch", combine(torch.cat((received, received[:1], received)))),
            (ValueError, "must be bfloat16", combine(received.float())),
            (ValueError, "topk_weights: ", combine(topk_weights=torch.zeros(len(received), TOP_K + 1))),
            (ValueError, "bias: ", combine(bias=x[:1])),
            (ValueError, "bias: ", combine(bias=(x, x.float())))):
        expect(kind, text, call)
    combined(buffer, case, rank, received, handle)
    # All ranks are told, and none waits, where their calls do not fit together.
    shorter = index[:, :TOP_K - rank % 2].contiguous()
    expect(ValueError, "the ranks' dispatches differ", lambda: dispatch(
        topk_idx=shorter, topk_weights=None, is_token_in_rank=buffer.get_dispatch_layout(shorter, case.experts)[3])())
    many = Case(ranks, 5001, [5] * ranks, to_rank=0)
    told = (lambda: dispatched(buffer, many, rank, num_worst_tokens=2))
    expect(ValueError, "num_worst_tokens is 2", told) if rank == 0 else told()
    without = buffer.dispatch(x, **{**given, "topk_idx": None, "topk_weights": None})
    expect(ValueError, "only by the handle", combine(without[0], without[4], topk_weights=weights))
    vllm_layer(deep_ep, buffer, case, rank, "fp8")
    dist.barrier()
    buffer.destroy()
    expect(RuntimeError, "was destroyed", dispatch())
    expect(RuntimeError, "was destroyed", combine())
    other.destroy()
    dist.destroy_process_group()


def rank_lost():
    """A rank dies: the others are told by the call that meets it, and do not wait."""
    import mep
    deep_ep, dist, rank, ranks = begin()
    buffer = normal_buffer(deep_ep, dist.group.WORLD)
    case = Case(ranks, 6000, [3] * ranks)
    received, handle = dispatched(buffer, case, rank)
    combined(buffer, case, rank, received, handle)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    expect(mep.PeerFailedError, "", lambda: vllm_layer(deep_ep, buffer, case, rank, "bf16"))
    expect(mep.InvalidArgumentError, "the membership has changed", lambda: buffer.dispatch(case.x[rank], handle=handle))
    folder = pathlib.Path(os.environ["TEST_FOLDER"])
    (folder / f"told.{rank}").touch()
    for other in (0, 2):  # a rank that leaves first would be another error
        launch.wait_for(folder / f"told.{other}")
    buffer.destroy()


def rank_shrunk():
    """With enable_shrink the others go on without the rank; a handle of before is refused."""
    import mep
    deep_ep, dist, rank, ranks = begin()
    buffer = make_buffer(deep_ep, dist.group.WORLD, ranks, enable_shrink=True)
    case = Case(ranks, 6100, [3] * ranks)
    received, handle = dispatched(buffer, case, rank)
    combined(buffer, case, rank, received, handle)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for number in range(4):
        case = Case(ranks, 6101 + number, [number + source for source in range(ranks)])
        case.absent = {1}
        received, later = dispatched(buffer, case, rank)
        combined(buffer, case, rank, received, later)
    cached, *_ = buffer.dispatch(case.x[rank], handle=later)
    check_rows(case, rank, "bf16", cached)
    expect(mep.InvalidArgumentError, "the membership has changed",
           lambda: buffer.dispatch(case.x[rank][:1].expand(3, HIDDEN), handle=handle))
    buffer.destroy()


def rank_threads():
    """Ranks that are threads, with communicators that the program has made."""
    import mep
    import mep.deep_ep
    problems = []

    def layers(comm):
        try:
            for _ in range(2):
                buffer = mep.deep_ep.Buffer(comm)
                for case in cases(3, 7000):
                    vllm_layer(mep.deep_ep, buffer, case, comm.rank, "bf16")
                buffer.destroy()
                comm.barrier()
        except BaseException as problem:
            problems.append(problem)
        comm.close()
    threads = [threading.Thread(target=layers, args=(comm,)) for comm in mep.init_all(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


# --- The tests ---------------------------------------------------------------------------------------------------

class DeepEpNormalTest(unittest.TestCase):
    def test_intranode_on_2_ranks(self):
        launch.run(__file__, "intranode", 2)

    def test_intranode_on_4_ranks(self):
        launch.run(__file__, "intranode", 4)

    def test_engines_on_2_ranks(self):
        launch.run(__file__, "engines", 2)

    def test_engines_on_4_ranks(self):
        launch.run(__file__, "engines", 4)

    def test_group_of_mep(self):
        launch.run(__file__, "engines", 2, BACKEND="mep")

    def test_handles(self):
        for ranks in (2, 4):
            launch.run(__file__, "handles", ranks)

    def test_scales(self):
        launch.run(__file__, "scales", 2)

    def test_training(self):
        for ranks in (2, 4):
            launch.run(__file__, "training", ranks)

    def test_refused(self):
        launch.run(__file__, "refused", 2)

    def test_lost_rank(self):
        launch.run(__file__, "lost", 3, expected=[0, -signal.SIGKILL, 0])

    def test_loss_goes_on(self):
        launch.run(__file__, "shrunk", 3, expected=[0, -signal.SIGKILL, 0])

    def test_threads(self):
        launch.run(__file__, "threads", 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
