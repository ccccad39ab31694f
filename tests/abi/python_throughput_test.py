#!/usr/bin/env python3
"""High-throughput dispatch and combine from Python against NumPy, on worlds of threads. Needs NumPy and MEP_LIBRARY.

It alone finds what the package makes of the shapes of this mode. 1 s."""
import unittest

import mep
import numpy as np

from python_test import on_threads

HIDDEN, TOP_K, EXPERTS, MOST = 64, 3, 12, 20


def routing(rank, seed):
    random = np.random.default_rng([seed, rank])
    tokens = int(random.integers(0, MOST + 1))
    experts = np.array([random.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)], np.int64).reshape(tokens, TOP_K)
    experts[random.random(experts.shape) < 0.2] = -1
    return experts, random.random((tokens, TOP_K)).astype(np.float32)


def rows(rank, seed):
    tokens = len(routing(rank, seed)[0])
    return np.random.default_rng([seed, rank, 1]).standard_normal((tokens, HIDDEN)).astype(np.float32)


def work(comm, size, seed):
    per_rank = EXPERTS // size
    experts, weights = routing(comm.rank, seed)
    with mep.Ep(comm, hidden=HIDDEN, top_k=TOP_K, num_experts=EXPERTS, max_tokens_per_rank=MOST, input_type="float32",
                layout="high_throughput", expert_alignment=8) as ep, ep.handle() as handle:
        for replays in (False, True):
            scale = np.float32(2 if replays else 1)
            x = rows(comm.rank, seed) * scale
            got = handle.dispatch(x, replay=True) if replays else handle.dispatch(x, experts, weights)
            wanted_x, wanted_experts, wanted_weights, origin = [], [], [], []
            for source in range(size):
                theirs, their_weights = routing(source, seed)
                here = theirs // per_rank == comm.rank
                here &= theirs >= 0
                for token in np.flatnonzero(here.any(axis=1)):
                    wanted_x.append(rows(source, seed)[token] * scale)
                    wanted_experts.append(np.where(here[token], theirs[token] % per_rank, -1))
                    wanted_weights.append(np.where(here[token], their_weights[token], 0))
                    origin.append((source, token))
            total = len(origin)
            assert got.total == total, (got.total, total)
            if total:
                assert np.array_equal(got.x[:total], wanted_x)
                assert np.array_equal(got.topk_idx[:total], wanted_experts)
                assert np.array_equal(got.topk_weights[:total], np.array(wanted_weights, np.float32))
                assert np.array_equal(got.src_info[:total], [token for _, token in origin])
            counts = [sum(int(expert in each) for each in wanted_experts) for expert in range(per_rank)]
            assert np.array_equal(got.count, [(count + 7) // 8 * 8 for count in counts]), (got.count, counts)
            y = got.x[:total] * np.float32(comm.rank + 1)
            back = np.full(experts.shape, np.nan, np.float32)
            given = None if replays else got.topk_weights[:total] * np.float32(2)
            out = handle.combine(y=y, topk_weights=given, out_topk_weights=back)
            assert np.array_equal(back, np.where((experts >= 0) & (not replays), weights * np.float32(2), 0)), back
            expected = np.zeros_like(x)
            for token in range(len(x)):
                for owner in sorted({int(each) // per_rank for each in experts[token] if each >= 0}):
                    expected[token] += x[token] * np.float32(owner + 1)
            assert np.array_equal(out, expected)
            handle.dispatch(replay=True)  # the routing alone
            assert np.array_equal(handle.combine(y=y * np.float32(2)), expected * np.float32(2))


class ThroughputTest(unittest.TestCase):
    def test_random_problems(self):
        for size in (1, 2, 3, 4):
            for seed in range(3):
                on_threads(size, lambda comm: work(comm, size, seed))

    def test_refusals(self):
        comm, = mep.init_all(1)
        options = dict(hidden=HIDDEN, top_k=TOP_K, num_experts=EXPERTS, max_tokens_per_rank=MOST, input_type="float32")
        x = np.zeros((2, HIDDEN), np.float32)
        with mep.Ep(comm, layout="high_throughput", **options) as ep, ep.handle() as handle:
            with self.assertRaisesRegex(mep.InvalidArgumentError, "no dispatch of this handle"):
                handle.dispatch(x, replay=True)
            got = handle.dispatch(x, np.array([[0, 1, -1], [2, -1, -1]]))
            with self.assertRaisesRegex(ValueError, "the 2 rows that arrived need"):
                handle.combine(y=got.x[:1].copy())
            with self.assertRaisesRegex(mep.InvalidArgumentError, "weights belong to MEP_EP_LOW_LATENCY"):
                handle.combine(y=got.x[:2].copy(), weights=np.ones((2, TOP_K), np.float32))
            handle.combine(y=got.x[:2].copy())
            with self.assertRaisesRegex(mep.InvalidArgumentError, "num_tokens is 1"):
                handle.dispatch(x[:1], replay=True)
        with mep.Ep(comm, **options) as ep, ep.handle() as handle:
            with self.assertRaisesRegex(mep.InvalidArgumentError, "MEP_DISPATCH_REPLAY belongs"):
                handle.dispatch(x, replay=True)
        comm.close()


if __name__ == "__main__":
    unittest.main()
