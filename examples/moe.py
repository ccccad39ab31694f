#!/usr/bin/env python3
"""One MoE layer: tokens go to their experts and come back combined. Expert e multiplies by e + 1.

    mep_run -n 4 python3 moe.py            (or mpirun -n 4 ..., or alone)
"""
import sys

import mep
import numpy as np

TOKENS, HIDDEN, TOP_K, EXPERTS_PER_RANK = 32, 64, 2, 2


def route(rank: int, num_experts: int) -> np.ndarray:
    """Stands in for a router: two different experts for each token."""
    t = np.arange(TOKENS)
    first = (rank + t) % num_experts
    second = (first + 1 + t % (num_experts - 1)) % num_experts
    return np.stack([first, second], axis=1)


def main() -> int:
    with mep.init() as comm:
        num_experts = EXPERTS_PER_RANK * comm.size
        experts = route(comm.rank, num_experts)
        weights = np.tile(np.array([0.75, 0.25], np.float32), (TOKENS, 1))
        x = np.random.default_rng(comm.rank).random((TOKENS, HIDDEN), np.float32)

        ep = mep.Ep(comm, hidden=HIDDEN, top_k=TOP_K, num_experts=num_experts,
                    max_tokens_per_rank=TOKENS, input_type="float32")
        handle, y = ep.handle(), ep.combine_input()

        received = handle.dispatch(x, experts, weights)
        for e in range(EXPERTS_PER_RANK):
            rows = received.rows(e)  # the library's memory, no copy
            y[e, : len(rows)] = rows * (comm.rank * EXPERTS_PER_RANK + e + 1)
        rows = received.total
        out = handle.combine()

        factor = (weights * (experts + 1)).sum(axis=1, keepdims=True)
        right = np.allclose(out, factor * x, rtol=1e-5)
        sys.stdout.write(f"rank {comm.rank} of {comm.size}: {rows} rows came to its experts, "
                         f"the combined tokens are {'right' if right else 'WRONG'}\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
