#!/usr/bin/env python3
"""mep.nixl_ep: dispatches and combines of vLLM's and SGLang's dispatchers while ranks come, go, die and are masked. The rows and
sums are compared bit by bit with the reference of deep_ep_test.py, in which ranks that are not there are absent."""
import os
import signal
import sys
import unittest

import launch
from deep_ep_test import FORMS, HIDDEN, MOST, Case, cases, check_received, check_sums, outputs
from launch import refused as expect

EXPERTS = 2  # of a rank
PLACES = 3  # so many ranks there may be


# --- The calls, as the engines make them -------------------------------------------------------------------------

def vllm_layer(buffer, case, rank, kind, there, between=None, zero_copy=False):
    """prepare_finalize/nixl_ep.py: the experts of all places; always a hook; out= for the combine."""
    import torch
    absent = set(range(case.ranks)) - set(there)
    x, topk_idx = case.x[rank], case.topk_idx[rank]
    form = {"round_scale": False, "use_ue8m0": False, **FORMS[kind]}
    found, count, handle, _, hook = buffer.dispatch(x, topk_idx, MOST, case.experts, use_fp8=kind != "bf16", **form,
                                                    async_finish=False, return_recv_hook=True)
    hook()
    received = check_received(case, rank, kind, found, count, handle, absent)
    results = outputs(case, rank, received)
    if zero_copy:
        buffer.get_next_combine_buffer(handle).copy_(results)
    out = torch.full_like(x, float("nan"))
    _, _, hook = buffer.combine(results, topk_idx, case.weights[rank], handle, async_finish=False, zero_copy=zero_copy,
                                return_recv_hook=True, out=out)
    if between is not None:
        between()
    hook()
    check_sums(case, rank, kind, out, absent)


def sglang_layer(buffer, case, rank, kind, there):
    """token_dispatcher/nixl.py without a hook: keywords for the combine."""
    absent = set(range(case.ranks)) - set(there)
    found, count, handle, event, _ = buffer.dispatch(
        case.x[rank], case.topk_idx[rank], MOST, case.experts, use_fp8=kind != "bf16", async_finish=True,
        return_recv_hook=False, **{"round_scale": False, "use_ue8m0": False, **FORMS[kind]})
    event.current_stream_wait()
    received = check_received(case, rank, kind, found, count, handle, absent)
    sums, event, _ = buffer.combine(x=outputs(case, rank, received), topk_idx=case.topk_idx[rank],
                                    topk_weights=case.weights[rank], handle=handle, async_finish=True,
                                    return_recv_hook=False)
    event.current_stream_wait()
    check_sums(case, rank, kind, sums, absent)


def layers(buffer, rank, seed, there, count=4):
    for number in range(count):
        layer = vllm_layer if number % 2 == 0 else sglang_layer
        layer(buffer, Case(PLACES, seed + number), rank, list(FORMS)[number % len(FORMS)], there)


# --- In the ranks ------------------------------------------------------------------------------------------------

def store_of(name):
    """A store as vLLM's groups have them; that of all of them lives in the test's own process."""
    import torch.distributed as dist
    return dist.PrefixStore(name, dist.TCPStore("127.0.0.1", int(os.environ["STORE_PORT"])))


def begin():
    import mep.nixl_ep
    mep.nixl_ep.install()
    import nixl_ep
    assert nixl_ep is mep.nixl_ep
    return nixl_ep, int(os.environ["RANK"]), store_of("test")


def make_buffer(nixl_ep, rank, store, connected, places=PLACES):
    size = nixl_ep.Buffer.get_rdma_size_hint(num_max_dispatch_tokens_per_rank=MOST, hidden=HIDDEN, num_ranks=places,
                                             num_experts=EXPERTS * places)
    buffer = nixl_ep.Buffer(rank=rank, tcp_store_group=store)
    buffer.meeting_timeout_s = 60.0
    buffer.update_memory_buffers(num_ranks=places, num_experts_per_rank=EXPERTS, num_rdma_bytes=size)
    assert size > 0 and buffer.group_size == places and mask_of(buffer) == set(range(places)) - {rank}
    buffer.connect_ranks(list(connected))
    assert mask_of(buffer) == set(range(places)) - set(connected)
    return buffer


def mask_of(buffer):
    import torch
    mask = torch.full((buffer.group_size,), 7, dtype=torch.int32)
    buffer.query_mask_buffer(mask)
    assert set(mask.tolist()) <= {0, 1}, mask
    return set(mask.nonzero().flatten().tolist())


def tell(store, word):
    store.set(word, "said")


def hear(store, *words):
    launch.wait_until(lambda: store.check(list(words)), f"{words} was not said")


def together(store, word, rank, ranks):
    tell(store, f"{word}.{rank}")
    hear(store, *(f"{word}.{each}" for each in ranks))


def rank_calls():
    nixl_ep, rank, store = begin()
    ranks = int(os.environ["WORLD_SIZE"])
    buffer = make_buffer(nixl_ep, rank, store, range(ranks), ranks)
    everybody = range(ranks)
    for number, kind in enumerate(FORMS):
        for case in cases(ranks, 100 * number):
            vllm_layer(buffer, case, rank, kind, everybody)
            vllm_layer(buffer, case, rank, kind, everybody, zero_copy=True)
            sglang_layer(buffer, case, rank, kind, everybody)
    in_turn = [Case(ranks, 500), Case(ranks, 501)]
    sent = [buffer.dispatch(case.x[rank], case.topk_idx[rank], MOST, use_fp8=False, return_recv_hook=True)
            for case in in_turn]  # num_experts: those of all
    for case, result in zip(in_turn, sent):
        result[4]()
        rows = check_received(case, rank, "bf16", *result[:3])
        sums, _, _ = buffer.combine(outputs(case, rank, rows), case.topk_idx[rank], case.weights[rank], result[2])
        check_sums(case, rank, "bf16", sums, ())
    buffer.get_local_buffer_tensor(dtype=nixl_ep.topk_idx_t, use_rdma_buffer=True).zero_()
    refused(nixl_ep, buffer, rank, store, ranks)
    vllm_layer(buffer, Case(ranks, 510), rank, "bf16", everybody)
    together(store, "done", rank, everybody)
    buffer.destroy()
    buffer.destroy()
    expect(RuntimeError, "was destroyed", lambda: buffer.connect_ranks([0]))
    # Another start over the same store.
    buffer = make_buffer(nixl_ep, rank, store, range(ranks), ranks)
    vllm_layer(buffer, Case(ranks, 520), rank, "fp8", everybody)
    buffer.destroy()


def refused(nixl_ep, buffer, rank, store, ranks):
    import torch
    import mep
    other = (rank + 1) % ranks
    case = Case(ranks, 600)
    x, topk_idx = case.x[rank], case.topk_idx[rank]

    def made(**options):
        return lambda: nixl_ep.Buffer(rank=rank, **options)

    for kind, text, call in (
            (TypeError, "unexpected keyword", made(anything=1)),
            (NotImplementedError, "low_latency_mode", made(low_latency_mode=False)),
            (NotImplementedError, "mpi4py", made(comm=object())),
            (ValueError, "timeout_ms", made(timeout_ms=0)),
            (RuntimeError, "update_memory_buffers() comes first", lambda: made()().connect_ranks([0])),
            (RuntimeError, "was called before", lambda: buffer.update_memory_buffers(ranks, EXPERTS, 0)),
            (ValueError, "no rank", lambda: buffer.connect_ranks([ranks])),
            (ValueError, "this rank itself", lambda: buffer.disconnect_ranks([rank])),
            (ValueError, "this rank itself", lambda: buffer.update_mask_buffer(rank, mask=True)),
            (ValueError, "must be int32", lambda: buffer.query_mask_buffer(torch.zeros(ranks))),
            (ValueError, "multiple of 2", lambda: buffer.dispatch(x, topk_idx, MOST, 2 * ranks - 1)),
            (ValueError, "multiple of 2", lambda: buffer.dispatch(x, topk_idx, MOST, 2 * ranks + 2)),
            (TypeError, "that the dispatch returned", lambda: buffer.combine(x, topk_idx, case.weights[rank], (1, 2)))):
        expect(kind, text, call)
    alone = nixl_ep.Buffer(rank=rank)
    alone.update_memory_buffers(ranks, EXPERTS)
    expect(ValueError, "not connected", lambda: alone.update_mask_buffer(other, mask=False))
    expect(ValueError, "needs a store", lambda: alone.connect_ranks([other]))
    alone.set_tcp_store_group(store_of(f"nobody else {rank}"))
    alone.meeting_timeout_s = 0.2
    expect(mep.TimeoutError, f"ranks [{other}] did not connect", lambda: alone.connect_ranks([other]))
    # A dispatch that the others do not make.
    if ranks > 2 and rank == 0:
        buffer.update_mask_buffer(1, mask=True)
        buffer.meeting_timeout_s = 0.2
        expect(mep.TimeoutError, "did not come together", lambda: buffer.dispatch(x, topk_idx, MOST, case.experts))
        buffer.meeting_timeout_s = 60.0
        buffer.update_mask_buffer(1, mask=False)


def rank_elastic():
    """vLLM's elastic EP: 2 ranks, then 3, then 2, then 3 again."""
    nixl_ep, rank, store = begin()
    for turn in range(2):
        seed = 1000 * turn
        standby = store_of(f"standby.{turn}")
        if rank == 2:
            hear(store, f"grow.{turn}.0", f"grow.{turn}.1")
            buffer = make_buffer(nixl_ep, rank, standby, range(PLACES))
            for each in (0, 1):
                buffer.update_mask_buffer(each, mask=True)
            assert mask_of(buffer) == {0, 1}
            layers(buffer, rank, seed + 200, {2})  # warms up while the others serve
            for each in (0, 1):
                buffer.update_mask_buffer(each, mask=False)
        else:
            if turn == 0:
                buffer = make_buffer(nixl_ep, rank, store_of("first"), range(2))
            layers(buffer, rank, seed + 100, {0, 1})
            tell(store, f"grow.{turn}.{rank}")
            buffer.set_tcp_store_group(standby)
            buffer.connect_ranks([2], activate=False)
            assert mask_of(buffer) == {2}
            layers(buffer, rank, seed + 110, {0, 1})
        together(store, f"commit.{turn}", rank, range(PLACES))
        if rank != 2:
            buffer.set_tcp_store_group(standby)
            buffer.update_mask_buffer(2, mask=False)
            buffer.set_tcp_store_group(None)  # the manager of the old group ends
        assert mask_of(buffer) == set()
        layers(buffer, rank, seed + 300, range(PLACES), 6)
        assert mask_of(buffer) == set()

        # Rank 1 has not received the last sums when rank 0 has disconnected and rank 2 leaves.
        def wait_for_the_others():
            if rank == 1:
                hear(store, f"gone.{turn}.0", f"gone.{turn}.2")
        vllm_layer(buffer, Case(PLACES, seed + 400, [MOST] * PLACES), rank, "bf16", range(PLACES), wait_for_the_others)
        if rank != 2:
            buffer.set_tcp_store_group(store_of(f"smaller.{turn}"))
            buffer.disconnect_ranks([2])
            assert mask_of(buffer) == {2}
        tell(store, f"gone.{turn}.{rank}")
        if rank == 2:
            buffer.destroy()  # waits for rank 1
    if rank != 2:
        layers(buffer, rank, 3000, {0, 1}, 8)
        assert len(buffer._worlds) == 1 and not buffer._left, (buffer._worlds, buffer._left)
        buffer.destroy()


def rank_killed():
    """Rank 1 is killed between its dispatch and its combine, and a new process takes its place; twice."""
    nixl_ep, rank, store = begin()
    life = int(os.environ.get("LIFE", "0"))
    buffer = make_buffer(nixl_ep, rank, store, range(PLACES))
    for turn in range(life, 2):
        layers(buffer, rank, 10 + 100 * turn, range(PLACES))
        together(store, f"die.{turn}", rank, range(PLACES))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        launch.wait_until(lambda: mask_of(buffer) == {1}, "rank 1 lives")
        layers(buffer, rank, 20 + 100 * turn, {0, 2})
        buffer.clean_mask_buffer()
        assert mask_of(buffer) == {1}
        if turn == 1:  # both ways lead there
            buffer.disconnect_ranks([1])
            layers(buffer, rank, 30 + 100 * turn, {0, 2})
        together(store, f"again.{turn}", rank, (0, 2))
        buffer.connect_ranks([1])
        assert mask_of(buffer) == set()
    layers(buffer, rank, 400, range(PLACES), 6)
    assert mask_of(buffer) == set()
    together(store, "done", rank, range(PLACES))
    buffer.destroy()


def rank_masked():
    """Masks are a rank's own, and go back."""
    nixl_ep, rank, store = begin()
    buffer = make_buffer(nixl_ep, rank, store, range(PLACES))
    layers(buffer, rank, 10, range(PLACES))
    if rank == 2:  # the others do nothing and know nothing
        for each in (0, 1):
            buffer.update_mask_buffer(each, mask=True)
        layers(buffer, rank, 20, {2})
        assert mask_of(buffer) == {0, 1}
        for each in (0, 1):
            buffer.update_mask_buffer(each, mask=False)
    assert mask_of(buffer) == set()
    layers(buffer, rank, 30, range(PLACES))
    # The others without rank 2, and back by the other call.
    for each in (0, 1) if rank == 2 else (2,):
        buffer.update_mask_buffer(each, mask=True)
    layers(buffer, rank, 40, {2} if rank == 2 else {0, 1}, 6)
    buffer.clean_mask_buffer()
    assert mask_of(buffer) == set()
    layers(buffer, rank, 50, range(PLACES))
    buffer.destroy()


# --- The tests ---------------------------------------------------------------------------------------------------

class NixlEpTest(unittest.TestCase):
    def setUp(self):
        import torch.distributed as dist
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True)

    def start(self, name, size):
        return launch.start(__file__, name, size, STORE_PORT=str(self.store.port))

    def start_again(self, name, rank, size, folder, life):
        return launch.start_one(__file__, name, rank, size, folder, LIFE=str(life), STORE_PORT=str(self.store.port))

    def test_calls_on_2_ranks(self):
        launch.finish(*self.start("calls", 2))

    def test_calls_on_3_ranks(self):
        launch.finish(*self.start("calls", 3))

    def test_ranks_come_and_go(self):
        launch.finish(*self.start("elastic", PLACES))

    def test_rank_dies_and_returns(self):
        processes, folder = self.start("killed", PLACES)
        for life in (1, 2):
            self.assertEqual(processes[1].wait(launch.LIMIT_S), -signal.SIGKILL)
            processes[1] = self.start_again("killed", 1, PLACES, folder, life)
        launch.finish(processes, folder)

    def test_masks(self):
        launch.finish(*self.start("masked", PLACES))


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
