#!/usr/bin/env python3
"""A MoE layer whose tokens prefer a few experts, and its rebalancing: popular experts get replicas on other ranks.

    mep_run -n 4 python3 ep_rebalance.py            (or alone)

Expert e multiplies by e + 1. A job does each EVERY steps what this one does once; a layer needs an EP object of its own.
"""
import sys

import mep
import numpy as np
from mep import eplb

TOKENS, HIDDEN, TOP_K, STEPS, EVERY = 256, 64, 2, 8, 4


def route(random: np.random.Generator, num_experts: int) -> np.ndarray:
    """Stands in for a router: two different experts for each token, the last ones most often."""
    chance = 1 / np.arange(num_experts, 0, -1) ** 1.5
    return np.array([random.choice(num_experts, TOP_K, False, chance / chance.sum()) for _ in range(TOKENS)])


def main() -> int:
    with mep.init() as comm:
        num_experts, slots = 2 * comm.size, 3  # of each rank; one in three is for replicas
        now = eplb.plan(np.ones(num_experts), comm.size, slots)  # nothing is known yet: any loads
        own = now.physical_to_logical.reshape(comm.size, slots)[comm.rank]
        weights = np.repeat(own[:, None] + 1, HIDDEN, axis=1).astype(np.float32)

        ep = mep.Ep(comm, hidden=HIDDEN, top_k=TOP_K, num_experts=num_experts, experts_per_rank=slots,
                    max_replicas=now.expert_map.shape[-1], max_tokens_per_rank=TOKENS, input_type="float32")
        ep.set_expert_map(now.expert_map)
        handle, y = ep.handle(), ep.combine_input()

        random = np.random.default_rng(comm.rank)
        rows, right, uneven = np.zeros(slots, np.int64), True, []
        for step in range(1, STEPS + 1):
            experts = route(random, num_experts)
            gates = np.tile(np.array([0.75, 0.25], np.float32), (TOKENS, 1))
            x = random.random((TOKENS, HIDDEN), np.float32)

            received = handle.dispatch(x, experts, gates, statistics=rows)  # adds to rows
            for slot in range(slots):
                y[slot, : received.count[slot]] = received.rows(slot) * weights[slot]
            out = handle.combine()
            right &= np.allclose(out, (gates * (experts + 1)).sum(axis=1, keepdims=True) * x, rtol=1e-5)

            if step % EVERY == 0:
                every = comm.allgather(rows).reshape(comm.size, slots)
                uneven.append(every.sum(axis=1).max() / every.sum(axis=1).mean())
                before, now = now, eplb.plan(now.expert_load(every), comm.size, slots, previous=now)
                eplb.move_weights(comm, now.moves(before), weights)
                ep.set_expert_map(now.expert_map)
                rows[:] = 0
        right &= uneven[-1] <= uneven[0]
        sys.stdout.write(f"rank {comm.rank} of {comm.size}: the busiest rank had {uneven[0]:.2f} times the mean before, "
                         f"{uneven[-1]:.2f} after; this is {'right' if right else 'WRONG'}\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
