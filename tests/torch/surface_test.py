#!/usr/bin/env python3
"""The calls of released engines (engine_calls.txt), bound to the signatures of mep.deep_ep, mep.mooncake and mep.nixl_ep, the names
that engines read, and what is refused by a text. Alone finds: a keyword or a name that an engine uses and MEP lacks. 3 s."""
import inspect
import pathlib
import sys
import unittest

import torch

import mep
import mep.deep_ep
import mep.mooncake
import mep.nixl_ep

NAMES = {
    "deep_ep": "Buffer Config ElasticBuffer EPHandle EventOverlap HybridEPBuffer topk_idx_t",
    "deep_ep.utils": "EventHandle EventOverlap",
    "deep_ep.hybrid_ep_buffer": "indices_to_map",
    "deep_ep.Buffer": "num_sms",
    "deep_ep.EventOverlap": "current_stream_wait",
    "nixl_ep": "Buffer topk_idx_t",
    "mooncake.pg": "MooncakeBackendOptions get_peer_state recover_ranks join_group",
}


def find(path):
    parts = path.split(".")
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    name = next(each for each in names if each in sys.modules)
    found = sys.modules[name]
    for part in parts[name.count(".") + 1:]:
        found = getattr(found, part)
    return found


def calls():
    for line in pathlib.Path(__file__).with_name("engine_calls.txt").read_text().splitlines():
        if not line.startswith("#"):
            path, positional, keywords, engines = (field.strip() for field in line.split("|"))
            yield path, int(positional), keywords.split(), engines


class SurfaceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        mep.deep_ep.install()
        mep.mooncake.install()
        mep.nixl_ep.install()
        import deep_ep.hybrid_ep_buffer  # noqa: F401
        import deep_ep.utils  # noqa: F401
        import mooncake.mooncake_ep_buffer  # noqa: F401
        import mooncake.pg  # noqa: F401

    def test_calls(self):
        for path, positional, keywords, engines in calls():
            with self.subTest(path=path, engines=engines, keywords=keywords):
                function = find(path)
                owner = find(path.rpartition(".")[0])
                is_static = inspect.isclass(owner) and isinstance(
                    inspect.getattr_static(owner, path.rpartition(".")[2]), staticmethod)
                count = positional + (inspect.isclass(owner) and not is_static)
                inspect.signature(function).bind(*[None] * count, **dict.fromkeys(keywords))

    def test_names(self):
        for path, names in NAMES.items():
            for name in names.split():
                with self.subTest(path=path, name=name):
                    getattr(find(path), name)

    def test_refusals(self):
        x, index, weights = torch.ones(2, 256), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)
        comm = mep.init_all(1)[0]
        buffer = mep.deep_ep.Buffer(comm=comm, low_latency_mode=True, use_fabric=True)
        rows = x.to(torch.bfloat16)
        received, _, handle, _, _ = buffer.low_latency_dispatch(rows, index, 2, 1, use_fp8=False, use_nvfp4=False,
                                                                x_global_scale=torch.ones(1))
        with self.assertRaisesRegex(NotImplementedError, "use_nvfp4 is not served; send e4m3 rows"):
            buffer.low_latency_dispatch(rows, index, 2, 1, use_nvfp4=True, x_global_scale=torch.ones(1))
        overlapped = dict(packed_recv_count=None, comp_signal=None, block_m=64, threshold=4, num_sms=8)
        with self.assertRaisesRegex(NotImplementedError, "overlap is not served; turn single-batch overlap off"):
            buffer.low_latency_combine(received, index, weights, handle, overlap=True, **overlapped)
        sums, _, _ = buffer.low_latency_combine(received, index, weights, handle, overlap=False, **overlapped)
        self.assertTrue(torch.equal(sums, rows))
        buffer.destroy()
        comm.close()

    def test_size_hints(self):
        comm = mep.init_all(1)[0]
        hint = mep.deep_ep.ElasticBuffer.get_buffer_size_hint
        base = dict(num_max_tokens_per_rank=64, hidden=512, num_topk=4)
        least = hint(comm, **base)
        for name, value in base.items():
            self.assertGreater(hint(comm, **{**base, name: 2 * value}), least, name)
        for wire in ("bfloat16", "float8_e4m3"):
            size = mep.Ep.buffer_size(comm, max_tokens_per_rank=64, hidden=512, top_k=4, num_experts=8, input_type=wire,
                                      num_buffers=2, layout="high_throughput")
            self.assertGreaterEqual(least, size.window_bytes + size.private_bytes, wire)
        buffer = mep.deep_ep.ElasticBuffer(comm, **base)
        self.assertEqual(buffer.num_bytes, least)
        self.assertEqual(mep.deep_ep.ElasticBuffer(comm, num_bytes=5, **base).num_bytes, 5)
        buffer.destroy()
        comm.close()


if __name__ == "__main__":
    unittest.main()
