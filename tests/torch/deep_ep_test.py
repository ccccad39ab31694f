#!/usr/bin/env python3
"""mep.deep_ep and mep.mooncake.ep: the calls of vLLM's and SGLang's dispatchers against a reference in PyTorch."""
import datetime
import os
import pathlib
import signal
import sys
import threading
import unittest

import launch
from launch import refused as expect

MOST, HIDDEN, TOP_K, COLUMN = 6, 512, 3, 1  # COLUMN: rows of float32 scales are rounded up to a multiple
LOST = 2  # of the ranks that are killed, the first


# --- The reference: it has the tokens of all ranks and calls nothing of MEP --------------------------------------

class Case:
    """A layer: for each rank its tokens, their experts and weights. counts: tokens of each rank, or None: any."""

    def __init__(self, ranks, seed, counts=None, one_expert=False):
        import torch
        draw = torch.Generator().manual_seed(seed)
        self.ranks, self.experts = ranks, 2 * ranks
        if counts is None:
            counts = torch.randint(0, MOST + 1, (ranks,), generator=draw).tolist()
        self.x, self.topk_idx, self.weights = [], [], []
        for tokens in counts:
            self.x.append((torch.randn(tokens, HIDDEN, generator=draw) * 3).to(torch.bfloat16))
            picks = [torch.randperm(self.experts, generator=draw)[:TOP_K] for _ in range(tokens)]
            index = torch.stack(picks) if picks else torch.empty(0, TOP_K, dtype=torch.int64)
            index[torch.rand(index.shape, generator=draw) < 0.15] = -1
            if one_expert:
                index[:] = torch.tensor([self.experts - 1, -1, -1])
            self.topk_idx.append(index)
            self.weights.append(torch.rand(tokens, TOP_K, generator=draw))

    def rows(self, rank, expert, absent):
        """[(source, token)] that the local expert gets: by source, then by token."""
        wanted = rank * (self.experts // self.ranks) + expert
        return [(source, token) for source in range(self.ranks) if source not in absent
                for token in range(len(self.x[source])) if wanted in self.topk_idx[source][token].tolist()]


def quantised(x, kind):
    """Values of e4m3 and their scales, 128 values to a scale."""
    import torch
    if kind == "bf16":
        return x, None
    groups = x.float().view(x.shape[0], HIDDEN // 128, 128)
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = largest * torch.tensor(1 / 448)
    factor = torch.tensor(448.0) / largest  # 448 / tensor is no division
    if kind != "fp8":
        exponent = torch.ceil(torch.log2(scale.double()))
        scale, factor = (2.0 ** exponent).float(), (2.0 ** -exponent).float()
    values = (groups * factor).clamp(-448, 448).to(torch.float8_e4m3fn)
    return values.view(x.shape), scale.squeeze(-1)


def plain(values, scales):
    """bfloat16 of what an expert received."""
    import torch
    if scales is None:
        return values
    groups = values.float().view(values.shape[0], HIDDEN // 128, 128) * scales.unsqueeze(-1)
    return groups.view(values.shape).to(torch.bfloat16)


def expert_output(rows, expert):
    import torch
    return (rows.float() * (1 + expert / 4) + expert).to(torch.bfloat16)


def summed(case, rank, kind, absent):
    """The sums of the rank's tokens: float32, in the order of topk_idx, each product and sum rounded."""
    import torch
    rows = plain(*quantised(case.x[rank], kind))
    sums = torch.zeros(rows.shape)
    for token in range(len(rows)):
        for k in range(TOP_K):
            expert = int(case.topk_idx[rank][token, k])
            if expert < 0 or expert // (case.experts // case.ranks) in absent:
                continue
            sums[token] = sums[token] + case.weights[rank][token, k] * expert_output(rows[token], expert).float()
    return sums.to(torch.bfloat16)


def check_received(case, rank, kind, found, count, handle, absent=()):
    """Rows, order, counts and places; returns the rows as their experts take them."""
    import torch
    local, rows = case.experts // case.ranks, case.ranks * MOST
    values, scales = found if kind != "bf16" else (found, None)
    assert values.shape == (local, rows, HIDDEN), values.shape
    assert values.dtype == (torch.bfloat16 if kind == "bf16" else torch.float8_e4m3fn), values.dtype
    if kind == "ue8m0":
        assert scales.shape == (local, rows, HIDDEN // 512) and scales.dtype == torch.int32, scales
        assert scales.stride() == (rows * HIDDEN // 512, 1, rows), scales.stride()
    elif kind != "bf16":
        assert scales.shape == (local, rows, HIDDEN // 128) and scales.dtype == torch.float32, scales
        assert scales.stride() == (scales.stride(2) * HIDDEN // 128, 1, rows + -rows % (COLUMN if kind == "fp8" else 1))
    src_info, layout_range, most, hidden, experts = handle
    assert (most, hidden, experts) == (MOST, HIDDEN, case.experts)
    assert count.dtype == torch.int32 and src_info.dtype == torch.int32 and layout_range.dtype == torch.int64
    received = torch.zeros(local, rows, HIDDEN, dtype=torch.bfloat16)
    for expert in range(local):
        wanted = case.rows(rank, expert, absent)
        assert int(count[expert]) == len(wanted), (expert, count, wanted)
        assert src_info[expert, :len(wanted)].tolist() == [token for _, token in wanted]
        begin = 0
        for source in range(case.ranks):
            number = sum(each == source for each, _ in wanted)
            place = int(layout_range[expert, source])
            assert place & 0xffffffff == number and (number == 0 or place >> 32 == begin), (place, begin, number)
            begin += number
        for row, (source, token) in enumerate(wanted):
            expected, factors = quantised(case.x[source][token:token + 1], kind)
            got = values[expert, row:row + 1]
            mine = None if scales is None else scales[expert, row:row + 1]
            if kind == "ue8m0":
                mine = torch.tensor([[2.0 ** (each - 127) for word in mine[0].tolist()
                                      for each in word.to_bytes(4, "little")]])
            assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8)), (expert, row)
            assert mine is None or torch.equal(mine, factors), (mine, factors)
            received[expert, row] = plain(got, mine)[0]
    return received


def outputs(case, rank, received):
    import torch
    local = case.experts // case.ranks
    return torch.stack([expert_output(received[each], rank * local + each) for each in range(local)])


# --- The calls, as the engines make them -------------------------------------------------------------------------

FORMS = {"bf16": {}, "fp8": {}, "round": {"round_scale": True}, "ue8m0": {"round_scale": True, "use_ue8m0": True}}


def vllm_layer(buffer, case, rank, kind, absent=(), zero_copy=False, between=None):
    """deepep_ll.py: always a hook for the dispatch; out= for the combine."""
    import torch
    x, topk_idx, weights = case.x[rank], case.topk_idx[rank], case.weights[rank]
    form = {"round_scale": False, "use_ue8m0": False, **FORMS[kind]}
    found, count, handle, _, hook = buffer.low_latency_dispatch(
        x, topk_idx, MOST, case.experts, use_fp8=kind != "bf16", **form, async_finish=False, return_recv_hook=True)
    x_is_taken = x.clone()
    hook()
    received = check_received(case, rank, kind, found, count, handle, absent)
    if between is not None:
        absent = between() or absent
    results = outputs(case, rank, received)
    if zero_copy:
        place = buffer.get_next_low_latency_combine_buffer(handle)
        assert place.shape == results.shape and place.dtype == torch.bfloat16
        place.copy_(results)
        results = torch.full_like(results, float("nan"))  # is not looked at
    out = torch.full_like(x_is_taken, float("nan"))
    sums, _, hook = buffer.low_latency_combine(results, topk_idx, weights, handle, async_finish=False,
                                               zero_copy=zero_copy, return_recv_hook=True, out=out)
    results.fill_(float("nan"))  # is the caller's again
    hook()
    assert sums.data_ptr() == out.data_ptr()
    check_sums(case, rank, kind, out, absent)


def sglang_layer(buffer, case, rank, kind, absent=(), return_recv_hook=False, statistics=None, waits=(None, None)):
    """deepep.py: async_finish = not return_recv_hook; keywords for the combine."""
    found, count, handle, event, hook = buffer.low_latency_dispatch(
        case.x[rank], case.topk_idx[rank], MOST, case.experts, use_fp8=kind != "bf16", **FORMS[kind],
        cumulative_local_expert_recv_stats=statistics, dispatch_wait_recv_cost_stats=waits[0],
        async_finish=not return_recv_hook, return_recv_hook=return_recv_hook)
    hook() if return_recv_hook else event.current_stream_wait()
    received = check_received(case, rank, kind, found, count, handle, absent)
    sums, event, hook = buffer.low_latency_combine(
        x=outputs(case, rank, received), topk_idx=case.topk_idx[rank], topk_weights=case.weights[rank], handle=handle,
        async_finish=not return_recv_hook, return_recv_hook=return_recv_hook, combine_wait_recv_cost_stats=waits[1])
    hook() if return_recv_hook else event.current_stream_wait()
    check_sums(case, rank, kind, sums, absent)


def mooncake_layer(buffer, case, rank, kind, active_ranks, timeout_us=100_000_000, absent=(), hooked=False,
                   between=None):
    """SGLang's mooncake.py: the timeout is -1 at first; async_finish = not return_recv_hook."""
    found, count, handle, event, hook = buffer.dispatch(
        case.x[rank], case.topk_idx[rank], active_ranks, MOST, case.experts, timeout_us, use_fp8=kind != "bf16",
        async_finish=not hooked, return_recv_hook=hooked)
    hook() if hooked else event.current_stream_wait()
    received = check_received(case, rank, kind, found, count, handle, absent)
    if between is not None:
        absent = between()
    sums, event, hook = buffer.combine(
        outputs(case, rank, received), case.topk_idx[rank], case.weights[rank], active_ranks, timeout_us, handle,
        async_finish=not hooked, return_recv_hook=hooked)
    hook() if hooked else event.current_stream_wait()
    check_sums(case, rank, kind, sums, absent)
    assert active_ranks[:case.ranks].tolist() == [int(each not in absent) for each in range(case.ranks)], active_ranks


def check_sums(case, rank, kind, sums, absent):
    import torch
    expected = summed(case, rank, kind, absent)
    assert sums.dtype == torch.bfloat16 and torch.equal(sums.view(torch.int16), expected.view(torch.int16)), \
        (sums, expected)


# --- In the ranks ------------------------------------------------------------------------------------------------

def begin(backend="gloo"):
    import torch.distributed as dist
    import mep.deep_ep
    mep.deep_ep.install()
    import deep_ep
    assert deep_ep is mep.deep_ep
    if backend != "gloo":
        import mep.torch  # noqa: F401
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, init_method=f"file://{os.environ['TEST_FOLDER']}/store", rank=rank,
                            world_size=ranks, timeout=datetime.timedelta(seconds=launch.LIMIT_S))
    return deep_ep, dist, rank, ranks


def make_buffer(deep_ep, group, ranks, **options):
    """A Buffer as vLLM's all2all.py makes it."""
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank=MOST, hidden=HIDDEN,
                                                         num_ranks=ranks, num_experts=2 * ranks)
    assert size > 0
    return deep_ep.Buffer(group=group, num_nvl_bytes=0, num_rdma_bytes=size, low_latency_mode=True,
                          num_qps_per_rank=2, allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False,
                          explicitly_destroy=True, **options)


def cases(ranks, seed):
    """Uneven tokens, one, none, none at all, as many as there may be, all to one expert."""
    counts = [None, None, [1] + [0] * (ranks - 1), [1] * ranks, [0] * ranks, [MOST] * ranks]
    made = [Case(ranks, seed + number, each) for number, each in enumerate(counts)]
    return made + [Case(ranks, seed + len(counts), [MOST] * ranks, one_expert=True)]


def rank_calls(measures=True):
    """measures: waits are asked for."""
    import torch
    deep_ep, dist, rank, ranks = begin(os.environ.get("BACKEND", "gloo"))
    buffer = make_buffer(deep_ep, dist.group.WORLD, ranks)
    assert (buffer.rank, buffer.group_size, buffer.low_latency_mode) == (rank, ranks, True)
    waits = torch.zeros(2, ranks, dtype=torch.int64) if measures else (None, None)
    for number, kind in enumerate(FORMS):
        statistics, rows = torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
        for case in cases(ranks, 100 * number):
            vllm_layer(buffer, case, rank, kind)
            vllm_layer(buffer, case, rank, kind, zero_copy=True)
            for hooked in (False, True):
                sglang_layer(buffer, case, rank, kind, return_recv_hook=hooked, statistics=statistics, waits=waits)
                rows += torch.tensor([len(case.rows(rank, expert, ())) for expert in range(2)])
        assert statistics.tolist() == rows.tolist(), (statistics, rows)
    if measures:
        assert waits.min() >= 0 and waits[:, rank].tolist() == [0, 0], waits
        dist.all_reduce(waits)  # in so many layers somebody has waited for somebody
        assert waits.sum(1).min() > 0, waits
    buffer.clean_low_latency_buffer(MOST, HIDDEN, 2 * ranks)
    in_turn(buffer, rank, ranks)
    refused(deep_ep, buffer, rank, ranks)
    # Another buffer of the same group, and one of a part of it.
    second = make_buffer(deep_ep, dist.group.WORLD, ranks)
    vllm_layer(second, Case(ranks, 7), rank, "fp8")
    vllm_layer(buffer, Case(ranks, 8), rank, "fp8")
    second.destroy()
    part = dist.new_group([0, ranks - 1])
    if rank in (0, ranks - 1):
        small = make_buffer(deep_ep, part, 2)
        vllm_layer(small, Case(2, 9), dist.get_rank(part), "bf16")
        small.destroy()
    mask = torch.full((ranks,), 7, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(mask)
    assert mask.tolist() == [0] * ranks, mask
    case = Case(ranks, 10)
    buffer.low_latency_dispatch(case.x[rank], case.topk_idx[rank], MOST, case.experts, return_recv_hook=True)
    dist.barrier()  # a buffer that is destroyed like this is lost to the others
    buffer.destroy()  # although the hook was not called
    buffer.destroy()
    expect(RuntimeError, "was destroyed", lambda: buffer.clean_low_latency_buffer(MOST, HIDDEN, 2 * ranks))
    dist.destroy_process_group()


def in_turn(buffer, rank, ranks):
    """Two layers at a time, as two micro-batches have them; of a third the first one's result is gone."""
    pair = [Case(ranks, 500), Case(ranks, 501)]

    def dispatched(case):
        return buffer.low_latency_dispatch(case.x[rank], case.topk_idx[rank], MOST, case.experts, use_fp8=False,
                                           return_recv_hook=True)
    for _ in range(3):
        sent = [dispatched(case) for case in pair]
        for result in sent:
            result[4]()
            result[4]()  # once is enough
        received = [check_received(case, rank, "bf16", *result[:3]) for case, result in zip(pair, sent)]
        combined = [buffer.low_latency_combine(outputs(case, rank, rows), case.topk_idx[rank], case.weights[rank],
                                               result[2], return_recv_hook=True)
                    for case, rows, result in zip(pair, received, sent)]
        for case, (sums, _, hook) in zip(pair, combined):
            hook()
            check_sums(case, rank, "bf16", sums, ())
    first = dispatched(pair[0])
    first[4]()
    for case in pair:
        dispatched(case)[4]()
    expect(RuntimeError, "older dispatch", lambda: buffer.low_latency_combine(
        outputs(pair[0], rank, first[0]), pair[0].topk_idx[rank], pair[0].weights[rank], first[2]))


def refused(deep_ep, buffer, rank, ranks):
    """Wrong arguments and what is not there; afterwards the buffer works as before."""
    import torch
    import mep
    case = Case(ranks, 600, [2] * ranks)
    x, topk_idx, weights = case.x[rank], case.topk_idx[rank].clamp(min=0), case.weights[rank]
    topk_idx[:] = torch.arange(TOP_K)
    found, _, handle, _, _ = buffer.low_latency_dispatch(x, topk_idx, MOST, case.experts, use_fp8=False)

    def dispatch(*given, **options):
        return lambda: buffer.low_latency_dispatch(*(given or (x, topk_idx)), MOST, case.experts, **options)

    def combine(x=found, topk_idx=topk_idx, handle=handle, **options):
        return lambda: buffer.low_latency_combine(x, topk_idx, weights, handle, **options)
    for kind, text, call in (
            (ValueError, "exclude each other", dispatch(async_finish=True, return_recv_hook=True)),
            (ValueError, "needs use_fp8", dispatch(use_ue8m0=True)),
            (ValueError, "dense, of torch.int64", dispatch(dispatch_wait_recv_cost_stats=torch.zeros(ranks))),
            (ValueError, "must be [", dispatch(dispatch_wait_recv_cost_stats=torch.zeros(1, ranks, dtype=torch.int64))),
            (ValueError, "or torch.int64", dispatch(cumulative_local_expert_recv_stats=torch.zeros(2))),
            (ValueError, "stats has shape", dispatch(cumulative_local_expert_recv_stats=torch.zeros(1, dtype=torch.int32))),
            (ValueError, "bfloat16", dispatch(x.float(), topk_idx, use_fp8=False)),
            (ValueError, "must be [tokens", dispatch(x[0], topk_idx)),
            (mep.InvalidArgumentError, "", dispatch(x, topk_idx + 100, use_fp8=False)),
            (NotImplementedError, "on the CPU", dispatch(x.to("meta"), topk_idx)),
            (NotImplementedError, "use_logfmt", combine(use_logfmt=True)),
            (ValueError, "combine_wait_recv", combine(combine_wait_recv_cost_stats=torch.zeros(ranks))),
            (TypeError, "that the dispatch returned", combine(handle=tuple(handle))),
            (ValueError, "not that of the dispatch", combine(topk_idx=topk_idx + 1)),
            (ValueError, "items", combine(x=found[:1])),
            (NotImplementedError, "internode_dispatch is not served", lambda: buffer.internode_dispatch(x)),
            (NotImplementedError, "internode_combine is not served", lambda: buffer.internode_combine(x, handle)),
            (ValueError, "no rank", lambda: buffer.low_latency_update_mask_buffer(ranks, True)),
            (ValueError, "group or a comm", lambda: deep_ep.Buffer(None)),
            (TypeError, "process group", lambda: deep_ep.Buffer("world"))):
        expect(kind, text, call)
    combine()()
    vllm_layer(buffer, Case(ranks, 601), rank, "bf16")
    # Arguments without a meaning on hosts are accepted.
    deep_ep.Buffer.set_num_sms(24)
    config = deep_ep.Buffer.get_dispatch_config(ranks)
    assert config.get_nvl_buffer_size_hint(2 * HIDDEN, ranks) == 0
    assert config.get_rdma_buffer_size_hint(2 * HIDDEN, ranks) == 0
    assert deep_ep.Config(num_sms=24).num_sms == deep_ep.Buffer.get_combine_config(ranks).num_sms == 24
    with deep_ep.Buffer.capture() as event:
        assert event.event is not None
    assert deep_ep.Buffer.is_sm90_compiled() and deep_ep.EventOverlap().event is None
    buffer.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True).zero_()


def mask_of(buffer, ranks):
    import torch
    mask = torch.zeros(ranks, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(mask)
    return mask.nonzero().flatten().tolist()


def rank_lost():
    """One rank is killed between a dispatch and its combine, another one before a dispatch."""
    deep_ep, dist, rank, ranks = begin()
    buffer = make_buffer(deep_ep, dist.group.WORLD, ranks, enable_shrink=True)

    # A dispatch or combine that meets a loss may lack anything (clients_test.py), so all are out of one, and know.
    def die(victim):
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        launch.wait_until(lambda: victim in mask_of(buffer, ranks), f"rank {victim} lives")
        return {victim}

    for number, kind in enumerate(("bf16", "fp8")):
        sglang_layer(buffer, Case(ranks, 700 + number), rank, kind)
    assert mask_of(buffer, ranks) == []
    vllm_layer(buffer, Case(ranks, 710, [3] * ranks), rank, "bf16", between=lambda: dist.barrier() or die(LOST))
    assert mask_of(buffer, ranks) == [LOST]
    buffer.low_latency_clean_mask_buffer()
    for number, kind in enumerate(("bf16", "fp8", "bf16", "fp8")):
        vllm_layer(buffer, Case(ranks, 720 + number), rank, kind, absent={LOST})
        assert mask_of(buffer, ranks) == []
    die(1)
    gone = {1, LOST}
    for number, kind in enumerate(("fp8", "bf16", "fp8")):
        layer = vllm_layer if number % 2 == 0 else sglang_layer
        layer(buffer, Case(ranks, 730 + number, [2] * ranks), rank, kind, absent=gone)
        assert mask_of(buffer, ranks) == [1]
    buffer.low_latency_update_mask_buffer(0, False)
    expect(NotImplementedError, "was left out", lambda: buffer.low_latency_update_mask_buffer(1, False))
    sglang_layer(buffer, Case(ranks, 740), rank, "ue8m0", absent=gone)  # makes an EP object
    buffer.destroy()


def rank_masked():
    """The ranks leave one out that lives."""
    import mep
    deep_ep, dist, rank, ranks = begin()
    buffer = make_buffer(deep_ep, dist.group.WORLD, ranks, enable_shrink=True)
    vllm_layer(buffer, Case(ranks, 800), rank, "bf16")
    dist.barrier()
    if rank == LOST:
        dist.barrier()
        expect(mep.EvictedError, "", lambda: vllm_layer(buffer, Case(ranks, 801), rank, "bf16"))
    else:
        buffer.low_latency_update_mask_buffer(LOST, mask=True)
        for number in range(4):
            vllm_layer(buffer, Case(ranks, 801 + number, [2] * ranks), rank, "bf16", absent={LOST})
        assert mask_of(buffer, ranks) == [LOST]
        buffer.low_latency_update_mask_buffer(LOST, mask=True)  # once more
        dist.barrier()  # is not touched by that
    buffer.update_ep_member()
    assert mask_of(buffer, ranks) == []
    vllm_layer(buffer, Case(ranks, 810), rank, "bf16")
    buffer.destroy()


def rank_strict():
    """Without enable_shrink the loss of a rank is an error."""
    import mep
    deep_ep, dist, rank, ranks = begin()
    buffer = make_buffer(deep_ep, dist.group.WORLD, ranks)
    vllm_layer(buffer, Case(ranks, 900), rank, "bf16")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    expect(mep.PeerFailedError, "", lambda: vllm_layer(buffer, Case(ranks, 901, [3] * ranks), rank, "bf16"))
    folder = pathlib.Path(os.environ["TEST_FOLDER"])
    (folder / f"told.{rank}").touch()
    for other in (0, 2):  # a rank that leaves first would be another error
        launch.wait_for(folder / f"told.{other}")
    buffer.destroy()


def rank_threads():
    """Ranks that are threads of this process, with communicators that the program has made."""
    import mep
    import mep.deep_ep
    problems = []

    def layers(comm):
        try:
            buffer = mep.deep_ep.Buffer(comm, low_latency_mode=True)
            for kind in FORMS:
                sglang_layer(buffer, Case(2, 42), comm.rank, kind, return_recv_hook=True)
            buffer.destroy()
            comm.barrier()
            buffer = mep.deep_ep.Buffer(comm=comm, low_latency_mode=True)
            sglang_layer(buffer, Case(2, 43), comm.rank, "fp8")
        except BaseException as problem:
            problems.append(problem)
        comm.close()
    comms = mep.init_all(2)
    threads = [threading.Thread(target=layers, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def rank_mooncake():
    """Rank 1 is killed between a dispatch and its combine; active_ranks shows it, a replacement comes; then rank 0 is
    left out by active_ranks, and comes back."""
    import torch
    import torch.distributed as dist
    import mep.mooncake
    mep.mooncake.install()
    from mooncake import pg
    from mooncake.mooncake_ep_buffer import Buffer
    life, rank, ranks = int(os.environ.get("LIFE", "0")), int(os.environ["RANK"]), 3
    active_ranks = torch.ones(ranks, dtype=torch.int32)
    mirror = torch.ones(ranks, dtype=torch.int32)
    dist.init_process_group("mooncake-cpu", init_method=f"file://{os.environ['TEST_FOLDER']}/store", rank=rank,
                            world_size=ranks, pg_options=pg.MooncakeBackendOptions(mirror, life > 0))
    world = dist.group.WORLD
    buffer = Buffer(world, Buffer.get_ep_buffer_size_hint(MOST, HIDDEN, ranks, 2 * ranks))
    assert buffer.group_size == ranks
    case = Case(ranks, 20, [3] * ranks)
    if life == 0:
        mooncake_layer(buffer, case, rank, "fp8", active_ranks, -1)
        mooncake_layer(buffer, case, rank, "bf16", active_ranks, hooked=True)
        mooncake_layer(buffer, case, rank, "bf16", torch.tensor([1] * ranks + [0], dtype=torch.int32))  # one may come
        for text, wrong in (("must be int32", (active_ranks.long(), 10)), ("must be int32", (active_ranks[:1], 10)),
                            ("timeout_us is 0", (active_ranks, 0))):
            expect(ValueError, text, lambda: buffer.dispatch(case.x[rank], case.topk_idx[rank], wrong[0], MOST, 6,
                                                             wrong[1]))

        def die():
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            launch.wait_until(lambda: 1 in buffer._joined().absent(), "rank 1 lives")
            return {1}
        mooncake_layer(buffer, case, rank, "fp8", active_ranks, between=die)
        for number in range(3):
            mooncake_layer(buffer, Case(ranks, 21 + number), rank, "fp8", active_ranks, absent={1},
                           hooked=number % 2 == 0)
        dist.barrier()  # tells the group of it
        while not all(pg.get_peer_state(world, [1])):
            pass
        assert pg.recover_ranks(world, [1]).status is pg.ProposalStatus.Applied
    else:
        for kind in ("bf16", "fp8"):  # alone
            mooncake_layer(buffer, case, rank, kind, active_ranks, absent={0, 2})
        pg.join_group(world)
    buffer.update_ep_member()
    active_ranks.copy_(mirror)
    for number, kind in enumerate(("fp8", "bf16", "fp8", "fp8", "bf16")):
        mooncake_layer(buffer, Case(ranks, 30 + number), rank, kind, active_ranks, hooked=number % 2 == 0)
    dist.barrier()
    if rank == 0:
        dist.barrier()
        expect(mep.EvictedError, "", lambda: mooncake_layer(buffer, Case(ranks, 40), rank, "bf16", active_ranks))
    else:
        active_ranks[0] = 0
        for number in range(3):
            mooncake_layer(buffer, Case(ranks, 40 + number), rank, "bf16", active_ranks, absent={0})
        dist.barrier()
    buffer.update_ep_member()
    active_ranks.fill_(1)
    for number, kind in enumerate(("bf16", "fp8", "bf16")):
        mooncake_layer(buffer, Case(ranks, 50 + number), rank, kind, active_ranks, hooked=number % 2 == 0)
    dist.barrier()
    dist.destroy_process_group()


def rank_late():
    """Rank 2 lives and does not call: the others are told, leave it out, and do the step again."""
    import torch
    import mep
    from mep.mooncake.ep import Buffer
    _, dist, rank, ranks = begin()
    buffer = Buffer(dist.group.WORLD)
    active_ranks = torch.ones(ranks, dtype=torch.int32)
    mooncake_layer(buffer, Case(ranks, 50), rank, "fp8", active_ranks, -1)
    dist.barrier()
    if rank != 2:
        case = Case(ranks, 51, [3] * ranks)
        try:
            mooncake_layer(buffer, case, rank, "fp8", active_ranks, 10_000_000)
            raise AssertionError("no error")
        except mep.TimeoutError as problem:
            assert problem.info.failed == [2], problem.info
        active_ranks[2] = 0
        for number in range(3):
            mooncake_layer(buffer, Case(ranks, 51 + number), rank, "fp8", active_ranks, absent={2})
    dist.barrier()
    dist.destroy_process_group()


# --- The tests ---------------------------------------------------------------------------------------------------

class DeepEpTest(unittest.TestCase):
    def test_calls_on_2_ranks(self):
        launch.run(__file__, "calls", 2)

    def test_calls_on_4_ranks(self):
        launch.run(__file__, "calls", 4)

    def test_group_of_mep(self):
        launch.run(__file__, "calls", 2, BACKEND="mep")

    def test_lost_ranks(self):
        launch.run(__file__, "lost", 4, expected=[0, -signal.SIGKILL, -signal.SIGKILL, 0])

    def test_masked_rank(self):
        launch.run(__file__, "masked", 4)

    def test_lost_rank_is_an_error(self):
        launch.run(__file__, "strict", 3, expected=[0, -signal.SIGKILL, 0])

    def test_mooncake(self):
        processes, folder = launch.start(__file__, "mooncake", 3)
        dead = processes.pop(1)
        assert dead.wait(launch.LIMIT_S) == -signal.SIGKILL
        processes.insert(1, launch.start_one(__file__, "mooncake", 1, 3, folder, LIFE="1"))
        launch.finish(processes, folder)

    def test_late_rank(self):
        launch.run(__file__, "late", 3)

    def test_threads(self):
        launch.run(__file__, "threads", 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
