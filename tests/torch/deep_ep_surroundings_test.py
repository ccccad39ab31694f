#!/usr/bin/env python3
"""mep.deep_ep in programs with other defaults of PyTorch, under the names of DeepEP's modules, and when a Buffer is gone."""
import functools
import gc
import os
import signal
import sys
import unittest

import deep_ep_elastic_test as elastic
import deep_ep_test as low_latency
import launch


def under_other_defaults(kind, names):
    """The class with calls that are made under other defaults of PyTorch than the program's; their hooks are not."""
    import torch

    def wrapped(call):
        @functools.wraps(call)
        def with_defaults(*given, **named):
            torch.set_default_dtype(torch.bfloat16)
            torch.set_default_device("meta")
            torch.use_deterministic_algorithms(True)
            try:
                with torch.inference_mode():
                    return call(*given, **named)
            finally:
                torch.use_deterministic_algorithms(False)
                torch.set_default_device(None)
                torch.set_default_dtype(torch.float32)
        return with_defaults
    return type(kind.__name__, (kind,), {name: wrapped(getattr(kind, name)) for name in names})


# --- In the ranks ------------------------------------------------------------------------------------------------

def rank_low_latency():
    import torch
    deep_ep, dist, rank, ranks = low_latency.begin()
    deep_ep.Buffer = under_other_defaults(deep_ep.Buffer, ("low_latency_dispatch", "low_latency_combine"))
    buffer = low_latency.make_buffer(deep_ep, dist.group.WORLD, ranks)
    for number, kind in enumerate(low_latency.FORMS):
        for case in low_latency.cases(ranks, 200 + 10 * number):
            low_latency.vllm_layer(buffer, case, rank, kind)
            low_latency.sglang_layer(buffer, case, rank, kind, statistics=torch.zeros(2, dtype=torch.int32))
    buffer.destroy()
    dist.destroy_process_group()


def rank_mooncake():
    import torch
    from mep.mooncake.ep import Buffer
    _, dist, rank, ranks = low_latency.begin()
    buffer = under_other_defaults(Buffer, ("dispatch", "combine"))(dist.group.WORLD)
    active_ranks = torch.ones(ranks, dtype=torch.int32)
    for number, kind in enumerate(("fp8", "bf16")):
        case = low_latency.Case(ranks, 250 + number)
        low_latency.mooncake_layer(buffer, case, rank, kind, active_ranks, hooked=number == 1)
    dist.barrier()
    dist.destroy_process_group()


def rank_lost_in_meeting():
    """A rank of mep.mooncake dies in its first dispatch, after the ranks have agreed to meet."""
    import torch
    import torch.distributed as dist
    from mep.mooncake import pg
    from mep.mooncake.ep import Buffer
    from mep.torch._meeting import Place
    rank, ranks = int(os.environ["RANK"]), 3
    dist.init_process_group("mooncake-cpu", init_method=f"file://{os.environ['TEST_FOLDER']}/store", rank=rank,
                            world_size=ranks, pg_options=pg.MooncakeBackendOptions(ranks))
    if rank == 1:
        Place.meet = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    buffer, active_ranks = Buffer(dist.group.WORLD), torch.ones(ranks, dtype=torch.int32)
    for number in range(2):
        low_latency.mooncake_layer(buffer, low_latency.Case(ranks, 260 + number), rank, "fp8", active_ranks, absent={1})
    dist.barrier()
    dist.destroy_process_group()


def rank_elastic():
    """Normal mode too, which it stands on."""
    import mep.deep_ep
    mep.deep_ep.ElasticBuffer = under_other_defaults(mep.deep_ep.ElasticBuffer, ("dispatch", "combine"))
    elastic.rank_layers()


def rank_combined_again():
    """Each combine of a handle has its own rows and weights, as DeepEP's test has them."""
    deep_ep, dist, rank, ranks = low_latency.begin()
    buffer = low_latency.make_buffer(deep_ep, dist.group.WORLD, ranks)
    case = low_latency.Case(ranks, 520)
    for kind in ("bf16", "fp8"):
        found, count, handle, *_ = buffer.low_latency_dispatch(case.x[rank], case.topk_idx[rank], low_latency.MOST, case.experts,
                                                               use_fp8=kind != "bf16")
        results = low_latency.outputs(case, rank, low_latency.check_received(case, rank, kind, found, count, handle))
        weights = case.weights[rank]
        for zero_copy, hooked in ((False, False), (True, False), (True, True), (False, True)):
            if zero_copy:
                buffer.get_next_low_latency_combine_buffer(handle).copy_(results)
            sums, _, hook = buffer.low_latency_combine(results, case.topk_idx[rank], weights, handle,
                                                       zero_copy=zero_copy, return_recv_hook=hooked)
            hook() if hooked else None
            low_latency.check_sums(case, rank, kind, sums, ())
            results, weights = results * 2, weights / 2
    buffer.destroy()
    dist.destroy_process_group()


def rank_names():
    """Megatron and others import these; where one is missing they believe that DeepEP is."""
    import mep.deep_ep
    mep.deep_ep.install()
    import deep_ep
    import deep_ep.utils.event
    from deep_ep import Buffer
    from deep_ep.buffer import Buffer as same
    from deep_ep.utils import EventHandle, EventOverlap
    assert Buffer is same is mep.deep_ep.Buffer
    for names in (mep.deep_ep, deep_ep.utils.event):
        assert names.EventHandle is EventHandle and names.EventOverlap is EventOverlap
    mep.deep_ep.install()  # once more


def rank_gone():
    """The handle of a buffer that was destroyed is refused; tensors over the memory of one that was destroyed or dropped
    keep it."""
    import mep
    import torch
    deep_ep, dist, rank, ranks = low_latency.begin()
    case = low_latency.Case(ranks, 300, [3] * ranks)
    first, second = (low_latency.make_buffer(deep_ep, dist.group.WORLD, ranks) for _ in range(2))

    def dispatched(buffer):
        return buffer.low_latency_dispatch(case.x[rank], case.topk_idx[rank], low_latency.MOST, case.experts,
                                           use_fp8=False)
    kept, _, handle = dispatched(first)[:3]
    place = first.get_next_low_latency_combine_buffer(handle)
    expected = kept.clone()
    outputs = torch.zeros(2, ranks * low_latency.MOST, low_latency.HIDDEN, dtype=torch.bfloat16)
    dist.barrier()
    first.destroy()
    place.fill_(1)
    assert torch.equal(kept, expected)
    for call in (lambda: second.get_next_low_latency_combine_buffer(handle),
                 lambda: second.low_latency_combine(outputs, case.topk_idx[rank], case.weights[rank], handle)):
        low_latency.expect(mep.InvalidArgumentError, "closed", call)
    found, count = dispatched(second)[:2]
    second = handle = None
    gc.collect()
    for expert in range(2):
        rows = [case.x[source][token] for source, token in case.rows(rank, expert, ())]
        assert len(rows) == int(count[expert])
        assert all(torch.equal(got, row) for got, row in zip(found[expert], rows))
    dist.barrier()


# --- The tests ---------------------------------------------------------------------------------------------------

class SurroundingsTest(unittest.TestCase):
    def test_low_latency_under_other_defaults(self):
        launch.run(__file__, "low_latency", 2)

    def test_mooncake_under_other_defaults(self):
        launch.run(__file__, "mooncake", 2)

    def test_lost_in_meeting(self):
        launch.run(__file__, "lost_in_meeting", 3, [0, -signal.SIGKILL, 0], MEP_INIT_TIMEOUT_MS="3000")

    def test_elastic_under_other_defaults(self):
        launch.run(__file__, "elastic", 2)

    def test_combines_of_one_handle(self):
        launch.run(__file__, "combined_again", 2)

    def test_gone_buffers(self):
        launch.run(__file__, "gone", 2)

    def test_names_of_modules(self):
        launch.run(__file__, "names", 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
