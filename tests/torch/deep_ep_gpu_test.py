#!/usr/bin/env python3
"""mep.deep_ep and mep.nixl_ep on tensors of GPUs: the layers of the tests on hosts, whose tensors are copied to the GPU
and back; and what only a GPU has: streams, events, graphs. Ranks share GPUs where there are fewer.
"""
import os
import signal
import sys
import unittest

import deep_ep_elastic_test as elastic
import deep_ep_normal_cases as normal_cases
import deep_ep_normal_test as normal
import deep_ep_test as low_latency
import launch
import nixl_ep_test as nixl
from deep_ep_test import HIDDEN, MOST, TOP_K, begin, make_buffer


def use_gpu():
    import torch
    device = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(device)
    low_latency.COLUMN = 4  # 16 bytes
    return torch.device("cuda", device)


def on_gpu(value):
    import torch
    if isinstance(value, torch.Tensor):
        return value.cuda() if value.device.type == "cpu" else value
    if type(value) is tuple:
        return tuple(on_gpu(each) for each in value)
    return value


class Copies:
    """Tensors of the host in the places of a call's results, filled when those are there."""

    def __init__(self):
        self.pairs = []

    def of(self, value):
        import torch
        if isinstance(value, torch.Tensor):
            mine = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            self.pairs.append((mine, value))
            return mine
        if isinstance(value, tuple):
            made = tuple(self.of(each) for each in value)
            if hasattr(value, "_use"):
                made = HostHandle(made)
                made.real = value
            return made
        return value

    def fill(self):
        """On the current stream, behind what it waits for."""
        for mine, value in self.pairs:
            mine.copy_(value)


class HostHandle(tuple):
    pass


def real(handle):
    return getattr(handle, "real", handle)


class LowLatencyOnGpu:
    """Calls of low latency with tensors of the host, made with the GPU's."""

    def _answer(self, results, event, hook=None):
        copies = Copies()
        made = copies.of(results)
        if hook is None:
            event.current_stream_wait()
            copies.fill()
            return made, None

        def hooked():
            hook()
            copies.fill()
        return made, hooked

    def _dispatch_low(self, call, x, topk_idx, *more, cumulative_local_expert_recv_stats=None, **named):
        statistics = on_gpu(cumulative_local_expert_recv_stats)
        found, count, handle, event, hook = call(
            on_gpu(x), on_gpu(topk_idx), *more, cumulative_local_expert_recv_stats=statistics, **named)
        (found, count, handle), waits = self._answer((found, count, handle), event, hook)

        def receive():
            if waits is not None:
                waits()
            if statistics is not None:
                cumulative_local_expert_recv_stats.copy_(statistics)
        if hook is None:
            receive()
        return found, count, handle, event, None if hook is None else receive

    def _combine_low(self, call, x, topk_idx, topk_weights, handle, *, out=None, **named):
        sums, event, hook = call(
            on_gpu(x), on_gpu(topk_idx), on_gpu(topk_weights), real(handle), out=on_gpu(out), **named)
        made, waits = self._answer(sums, event, hook)

        def receive():
            if waits is not None:
                waits()
            if out is not None:
                out.copy_(made)
        if hook is None:
            receive()
        return made if out is None else out, event, None if hook is None else receive


def gpu_buffer():
    """A class like deep_ep.Buffer that takes and gives tensors of the host and works on the GPU's."""
    import mep.deep_ep

    class GpuBuffer(LowLatencyOnGpu, mep.deep_ep.Buffer):
        def low_latency_dispatch(self, *given, **named):
            return self._dispatch_low(super().low_latency_dispatch, *given, **named)

        def low_latency_combine(self, *given, **named):
            return self._combine_low(super().low_latency_combine, *given, **named)

        def get_next_low_latency_combine_buffer(self, handle):
            return super().get_next_low_latency_combine_buffer(real(handle))

        def get_dispatch_layout(self, topk_idx, *more, **named):
            *found, event = super().get_dispatch_layout(on_gpu(topk_idx), *more, **named)
            return (*self._answer(tuple(found), event)[0], event)

        def dispatch(self, x, handle=None, **named):
            named = {name: on_gpu(value) for name, value in named.items()}
            *found, event = super().dispatch(on_gpu(x), real(handle), **named)
            return (*self._answer(tuple(found), event)[0], event)

        def combine(self, x, handle, **named):
            named = {name: on_gpu(value) for name, value in named.items()}
            sums, weights, event = super().combine(on_gpu(x), real(handle), **named)
            return (*self._answer((sums, weights), event)[0], event)
    return GpuBuffer


def take_gpu_buffer():
    import mep.deep_ep
    use_gpu()
    mep.deep_ep.Buffer = gpu_buffer()


def take_gpu_elastic():
    """ElasticBuffer, the same way; its handles stay the GPU's."""
    import mep.deep_ep
    import torch
    use_gpu()

    def on_host(results):
        torch.cuda.synchronize()
        copies = Copies()
        made = copies.of(results)
        copies.fill()
        return made

    class GpuElastic(mep.deep_ep.ElasticBuffer):
        def dispatch(self, x, cumulative_local_expert_recv_stats=None, **named):
            statistics = on_gpu(cumulative_local_expert_recv_stats)
            named = {name: on_gpu(value) for name, value in named.items()}
            received, local, weights, handle, event = super().dispatch(
                on_gpu(x), cumulative_local_expert_recv_stats=statistics, **named)
            event.current_stream_wait()
            if statistics is not None:
                cumulative_local_expert_recv_stats.copy_(statistics)
            return (*on_host((received, local, weights)), handle, event)

        def combine(self, x, handle, **named):
            named = {name: on_gpu(value) for name, value in named.items()}
            sums, weights, event = super().combine(on_gpu(x), handle, **named)
            return (*on_host((sums, weights)), event)

    mep.deep_ep.ElasticBuffer = GpuElastic


# --- In the ranks ------------------------------------------------------------------------------------------------

def rank_low_latency():
    take_gpu_buffer()
    low_latency.refused = lambda *arguments: None  # on hosts, where values are looked at
    low_latency.rank_calls(measures=False)  # kernels do not


def rank_intranode():
    take_gpu_buffer()
    normal.rank_intranode()


def rank_engines():
    take_gpu_buffer()
    normal.rank_engines()


def rank_elastic():
    take_gpu_elastic()
    elastic.rank_layers()


def rank_handles():
    take_gpu_buffer()
    normal.rank_handles()


def mooncake_buffer():
    from mep.mooncake.ep import Buffer

    class OnGpu(Buffer):
        def _host(self, results, hook, event):
            copies = Copies()
            made = copies.of(results)
            if hook is None:
                event.current_stream_wait()
                copies.fill()
                return made, None
            return made, lambda: (hook(), copies.fill())

        def dispatch(self, x, topk_idx, *more, **named):
            found, count, handle, event, hook = super().dispatch(on_gpu(x), on_gpu(topk_idx), *more, **named)
            made, hook = self._host((found, count, handle), hook, event)
            return (*made, event, hook)

        def combine(self, x, topk_idx, weights, active_ranks, timeout_us, handle, **named):
            sums, event, hook = super().combine(on_gpu(x), on_gpu(topk_idx), on_gpu(weights), active_ranks, timeout_us,
                                                real(handle), **named)
            made, hook = self._host(sums, hook, event)
            return made, event, hook
    return OnGpu


def rank_mooncake():
    """mep.mooncake.ep on GPUs, each form of a call."""
    import torch
    device = use_gpu()
    _, dist, rank, ranks = begin()
    buffer = mooncake_buffer()(dist.group.WORLD)
    active_ranks = torch.ones(ranks, dtype=torch.int32, device=device)
    for number, kind in enumerate(("fp8", "bf16")):
        for case in low_latency.cases(ranks, 60 + 10 * number):
            for hooked in (False, True):
                low_latency.mooncake_layer(buffer, case, rank, kind, active_ranks, hooked=hooked)
    low_latency.expect(ValueError, "active_ranks is on cpu", lambda: buffer.dispatch(
        case.x[rank], case.topk_idx[rank], active_ranks.cpu(), MOST, case.experts, -1))
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


def rank_replaced():
    """A GPU's rank dies and is replaced, in Mooncake's calls."""
    import torch
    import torch.distributed as dist
    import mep.mooncake
    device = use_gpu()
    from mep.mooncake import pg
    life, rank, ranks = int(os.environ.get("LIFE", "0")), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    active_ranks = torch.ones(ranks, dtype=torch.int32, device=device)
    mirror = torch.ones(ranks, dtype=torch.int32)
    dist.init_process_group("mooncake-cpu", init_method=f"file://{os.environ['TEST_FOLDER']}/store", rank=rank,
                            world_size=ranks, pg_options=pg.MooncakeBackendOptions(mirror, life > 0))
    world = dist.group.WORLD
    buffer = mooncake_buffer()(world)
    victim = ranks - 1

    def layers(first, absent=()):
        for number, kind in enumerate(("fp8", "bf16", "fp8")):
            low_latency.mooncake_layer(buffer, low_latency.Case(ranks, first + number, [3] * ranks), rank, kind,
                                       active_ranks, absent=absent, hooked=number % 2 == 0)
    if life == 0:
        layers(20)
        dist.barrier()
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        launch.wait_until(lambda: victim in buffer._joined().absent(), "the victim lives")
        layers(30, absent={victim})
        dist.barrier()  # tells the group of it
        launch.wait_until(lambda: all(pg.get_peer_state(world, [victim])), "nobody comes")
        assert pg.recover_ranks(world, [victim]).status is pg.ProposalStatus.Applied
    else:
        pg.join_group(world)
    buffer.update_ep_member()
    active_ranks.fill_(1)
    layers(40)
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


def delay():
    """Keeps the current stream busy for some ms."""
    import torch
    torch.cuda._sleep(20_000_000)


def rank_streams():
    """Operations run behind what the current stream has, or behind an event, and the stream waits for them."""
    import torch
    device = use_gpu()
    deep_ep, dist, rank, ranks = begin()
    buffer = make_buffer(deep_ep, dist.group.WORLD, ranks)
    side = torch.cuda.Stream()
    for round_ in range(20):
        case = normal_cases.Case(ranks, 8000 + round_, [5] * ranks)
        index, weights, wanted = on_gpu(case.topk_idx[rank]), on_gpu(case.weights[rank]), on_gpu(case.x[rank])
        x = torch.zeros_like(wanted)
        torch.cuda.synchronize()
        stream = side if round_ % 2 else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            if round_ % ranks == rank:
                delay()
            x.copy_(wanted)
            asynchronous = round_ % 4 > 1
            before = deep_ep.Buffer.capture() if asynchronous else None
            per_rank, _, per_expert, in_rank, event = buffer.get_dispatch_layout(
                index, case.experts, previous_event=before, async_finish=asynchronous)
            received, local, _, _, handle, event = buffer.dispatch(
                x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
                topk_idx=index, topk_weights=weights, previous_event=event if asynchronous else None,
                async_finish=asynchronous)
            event.current_stream_wait()
            x.fill_(float("nan"))  # behind the event it is the caller's again
            results = (received.float() * (1 + rank / 4) + rank).to(torch.bfloat16)
            del received
            sums, _, event = buffer.combine(results, handle, async_finish=asynchronous)
            event.current_stream_wait()
            results.fill_(float("nan"))
            del results, handle
            copied = sums.clone()
        stream.synchronize()
        normal_cases.same(copied.cpu(), normal_cases.summed(case, rank))
        assert copied.device == device
    assert buffer.get_comm_stream() not in (side, torch.cuda.current_stream())
    buffer.destroy()
    dist.destroy_process_group()


def rank_orders():
    """Layers of low latency and normal mode by turns, on streams that the program does not order: x comes late on the
    stream of its call alone."""
    import torch
    use_gpu()
    deep_ep, dist, rank, ranks = begin()
    buffer = make_buffer(deep_ep, dist.group.WORLD, ranks)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    for round_ in range(24):
        case = normal_cases.Case(ranks, 8500 + round_, [5] * ranks)
        index, weights, wanted = on_gpu(case.topk_idx[rank]), on_gpu(case.weights[rank]), on_gpu(case.x[rank])
        statistics = torch.zeros(3, dtype=torch.int32, device="cuda")
        x = torch.zeros_like(wanted)
        torch.cuda.synchronize()
        form = ("plain", "hooked", "async", "normal")[round_ % 4]
        stream, later = streams[round_ % 3], streams[(round_ + round_ // 3) % 3]
        with torch.cuda.stream(stream):
            if round_ % ranks == rank:
                delay()
            x.copy_(wanted)
            if form == "normal":
                per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(index, case.experts)
                received, _, _, _, handle, _ = buffer.dispatch(
                    x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
                    topk_idx=index, topk_weights=weights)
                results = (received.float() * (1 + rank / 4) + rank).to(torch.bfloat16)
                sums, _, event = buffer.combine(results, handle, async_finish=round_ % 8 == 7)
                event.current_stream_wait()
            else:
                options = {"async_finish": form == "async", "return_recv_hook": form == "hooked"}
                found, count, handle, event, hook = buffer.low_latency_dispatch(
                    x, index, MOST, case.experts, statistics, use_fp8=False, **options)
                event.current_stream_wait()
                x.fill_(float("nan"))  # is the caller's again
        if form != "normal":
            later.wait_stream(stream)
            stream = later
            with torch.cuda.stream(stream):
                if hook is not None:
                    hook()
                numbers = torch.arange(3, device="cuda").view(3, 1, 1) + rank * 3
                results = (found.float() * (1 + numbers / 4) + numbers).to(torch.bfloat16)
                sums, event, hook = buffer.low_latency_combine(results, index, weights, handle, **options)
                event.current_stream_wait()
                if hook is not None:
                    hook()
                assert count.tolist() == statistics.tolist() == case.counts(rank)
        stream.synchronize()
        expected = normal_cases.summed(case, rank) if form == "normal" else low_latency_sums(case, rank)
        normal_cases.same(sums.cpu(), expected)
    buffer.destroy()
    dist.destroy_process_group()


def rank_graphs():
    """Both modes in CUDA graphs, with other tokens in each replay."""
    import torch
    use_gpu()
    deep_ep, dist, rank, ranks = begin()
    buffer = make_buffer(deep_ep, dist.group.WORLD, ranks)
    tokens, experts = 5, 3 * ranks
    x = torch.empty(tokens, HIDDEN, dtype=torch.bfloat16, device="cuda")
    index = torch.empty(tokens, TOP_K, dtype=torch.int64, device="cuda")
    weights = torch.empty(tokens, TOP_K, device="cuda")

    def normal_layer():
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(index, experts)
        received, local, own, counts, handle, _ = buffer.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
            topk_idx=index, topk_weights=weights, num_worst_tokens=ranks * 8)
        assert counts == []
        sums, back, _ = buffer.combine((received.float() * (1 + rank / 4) + rank).to(torch.bfloat16), handle,
                                       topk_weights=own)
        return sums, back, local

    def low_latency_layer():
        found, count, handle, _, hook = buffer.low_latency_dispatch(x, index, MOST, experts, use_fp8=False,
                                                                    return_recv_hook=True)
        hook()
        numbers = torch.arange(3, device="cuda").view(3, 1, 1) + rank * 3
        results = (found.float() * (1 + numbers / 4) + numbers).to(torch.bfloat16)
        sums, _, _ = buffer.low_latency_combine(results, index, weights, handle)
        return sums, count

    def load(case):
        x.copy_(case.x[rank])
        index.copy_(case.topk_idx[rank])
        weights.copy_(case.weights[rank])
        torch.cuda.synchronize()
    load(normal_cases.Case(ranks, 9000, [tokens] * ranks))
    for layer in (normal_layer, low_latency_layer):
        layer()
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = layer()
        for round_ in range(10):
            case = normal_cases.Case(ranks, 9001 + round_, [tokens] * ranks)
            load(case)
            graph.replay()
            torch.cuda.synchronize()
            if layer is normal_layer:
                normal_cases.same(results[0].cpu(), normal_cases.summed(case, rank))
                normal_cases.same(results[1].cpu(), case.weights[rank] * (case.topk_idx[rank] >= 0))
                assert int((results[2] >= 0).any(1).sum()) == len(case.rows(rank))
            else:
                normal_cases.same(results[0].cpu(), low_latency_sums(case, rank))
                assert results[1].tolist() == case.counts(rank)
    torch.cuda.synchronize()
    dist.barrier()
    buffer.destroy()
    dist.destroy_process_group()


def low_latency_sums(case, rank):
    import torch
    rows = case.x[rank]
    sums = torch.zeros(rows.shape)
    for token in range(len(rows)):
        for k in range(TOP_K):
            expert = int(case.topk_idx[rank][token, k])
            if expert >= 0:
                term = low_latency.expert_output(rows[token], expert).float()
                sums[token] = sums[token] + case.weights[rank][token, k] * term
    return sums.to(torch.bfloat16)


# --- mep.nixl_ep --------------------------------------------------------------------------------------------------

def take_gpu_nixl():
    import mep.nixl_ep
    use_gpu()

    class GpuBuffer(LowLatencyOnGpu, mep.nixl_ep.Buffer):
        def dispatch(self, *given, **named):
            return self._dispatch_low(super().dispatch, *given, **named)

        def combine(self, *given, **named):
            return self._combine_low(super().combine, *given, **named)

        def get_next_combine_buffer(self, handle):
            return super().get_next_combine_buffer(real(handle))

    mep.nixl_ep.Buffer = GpuBuffer
    nixl.refused = lambda *arguments: None  # on hosts, where values are looked at


def rank_nixl_calls():
    take_gpu_nixl()
    nixl.rank_calls()


def rank_nixl_elastic():
    take_gpu_nixl()
    nixl.rank_elastic()


def rank_nixl_killed():
    take_gpu_nixl()
    nixl.rank_killed()


def rank_nixl_masked():
    take_gpu_nixl()
    nixl.rank_masked()


# --- The tests ---------------------------------------------------------------------------------------------------

def gpus():
    """Ranks of the tests: one for each GPU, from 2 to 4; 0 without a GPU."""
    try:
        import torch
    except ImportError:
        return 0
    return min(max(torch.cuda.device_count(), 2), 4) if torch.cuda.is_available() else 0


@unittest.skipIf(gpus() == 0, "no usable GPU")
class NixlEpGpuTest(nixl.NixlEpTest):
    def start(self, name, size):
        return launch.start(__file__, "nixl_" + name, size, STORE_PORT=str(self.store.port))

    def start_again(self, name, rank, size, folder, life):
        return launch.start_one(__file__, "nixl_" + name, rank, size, folder, LIFE=str(life),
                                STORE_PORT=str(self.store.port))


@unittest.skipIf(gpus() == 0, "no usable GPU")
class DeepEpGpuTest(unittest.TestCase):
    def test_low_latency(self):
        launch.run(__file__, "low_latency", gpus())

    def test_mooncake(self):
        launch.run(__file__, "mooncake", gpus())

    def test_replaced(self):
        processes, folder = launch.start(__file__, "replaced", gpus())
        assert processes.pop().wait(launch.LIMIT_S) == -signal.SIGKILL
        processes.append(launch.start_one(__file__, "replaced", gpus() - 1, gpus(), folder, LIFE="1"))
        launch.finish(processes, folder)

    def test_intranode(self):
        launch.run(__file__, "intranode", gpus())

    def test_engines(self):
        launch.run(__file__, "engines", gpus())

    def test_handles(self):
        launch.run(__file__, "handles", gpus())

    def test_elastic(self):
        launch.run(__file__, "elastic", gpus())

    def test_streams(self):
        launch.run(__file__, "streams", gpus())

    def test_orders(self):
        launch.run(__file__, "orders", gpus())

    def test_graphs(self):
        launch.run(__file__, "graphs", gpus())


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
