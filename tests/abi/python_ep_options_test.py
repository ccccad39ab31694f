#!/usr/bin/env python3
"""Counters, waits and time limits of dispatch and combine from Python, on worlds of threads. Needs NumPy and
MEP_LIBRARY.

It alone finds what the package makes of these arguments. 1 s."""
import sys
import threading
import types
import unittest
from unittest import mock

import mep
import numpy as np

from python_test import on_threads

RANKS, TOKENS, HIDDEN = 2, 4, 64


def layer(comm):
    """An EP object of two experts, one on each rank, and rows that all go to the other rank."""
    ep = mep.Ep(comm, hidden=HIDDEN, top_k=1, num_experts=RANKS, max_tokens_per_rank=TOKENS, input_type="float32")
    x = np.ones((TOKENS, HIDDEN), np.float32)
    return ep.handle(), x, np.full((TOKENS, 1), 1 - comm.rank, np.int64)


class Options(unittest.TestCase):
    def test_statistics_of_either_width(self):
        def work(comm):
            handle, x, experts = layer(comm)
            for kind in (np.int32, np.int64):
                counters = np.array([-2, 77], kind)  # a carry would show beside it
                for _ in range(2):
                    handle.dispatch(x, experts, statistics=counters[:1])
                    handle.combine()
                self.assertEqual(counters.tolist(), [2 * TOKENS - 2, 77])
            with self.assertRaisesRegex(ValueError, "int64 or int32"):
                handle.dispatch(x, experts, statistics=np.zeros(1, np.float32))
        on_threads(RANKS, work)

    def test_limit_of_a_call(self):
        """Rank 1 does not call before rank 0 has given up; the communicator's own time is long."""
        given_up, meeting = threading.Event(), threading.Barrier(RANKS)

        def work(comm):
            handle, x, experts = layer(comm)
            for run in (lambda **more: handle.dispatch(x, experts, **more), lambda **more: handle.combine(**more)):
                waited = np.zeros(RANKS, np.int64)
                if comm.rank == 0:
                    with self.assertRaisesRegex(mep.TimeoutError, "timeout_ms of the call"):
                        run(timeout_ms=50, wait_ns=waited)
                    self.assertEqual(waited[0], 0)
                    self.assertGreater(waited[1], 0)
                    given_up.set()
                else:
                    self.assertTrue(given_up.wait(60))
                    self.assertRaises(mep.TimeoutError, run)
                meeting.wait(60)
                given_up.clear()
                meeting.wait(60)
                handle.dispatch(x, experts)
            handle.combine(wait_ns=waited)
            self.assertEqual(waited[comm.rank], 0)
        on_threads(RANKS, work, timeout_ms=60_000)

    def test_default_stream_of_a_gpu(self):
        """Stream 0 is a stream like others where the communicator has a GPU: what arrives is not told by the call."""
        def work(comm):
            handle, x, experts = layer(comm)
            calls = []

            def take(address, *arguments):
                calls.append(arguments)
                return 0

            comm.device, comm._on_gpu = 0, True  # played: the calls go nowhere
            try:
                library = mock.Mock(mep_dispatch=take, mep_combine=take)
                with mock.patch.object(sys.modules["mep.ep"], "lib", library):
                    for stream in (0, None, types.SimpleNamespace(cuda_stream=0), 5):
                        received = handle.dispatch(x, experts * 0, stream=stream)
                        self.assertIsNone(received.total)
                        self.assertFalse(calls[-1][-2].recv_total)
                        handle.combine(np.zeros_like(x), stream=stream)
                        self.assertEqual([call[-1] or 0 for call in calls[-2:]], [5 if stream == 5 else 0] * 2)
            finally:
                comm.device, comm._on_gpu = None, False
        on_threads(1, work)

    def test_refused(self):
        def work(comm):
            handle, x, experts = layer(comm)
            for text, options in (("belong to the phase", {"phase": "send", "timeout_ms": 1}),
                                  ("belong to the phase", {"phase": "send", "wait_ns": np.zeros(1, np.int64)}),
                                  ("timeout_ms is -1", {"timeout_ms": -1}),
                                  ("wait_ns has 2", {"wait_ns": np.zeros(2, np.int64)}),
                                  ("wait_ns holds", {"wait_ns": np.zeros(1, np.float64)})):
                with self.assertRaisesRegex(ValueError, text):
                    handle.dispatch(x, experts * 0, **options)
        on_threads(1, work)


if __name__ == "__main__":
    unittest.main()
