#!/usr/bin/env python3
"""A rebalanced MoE layer end to end, by mep_run -n 4 --allow-failures 1: statistics, plan, moves, map; then without rank 1, which
kills itself. Results are compared with NumPy's and, bit by bit, with those of before."""
import os
import signal
import sys

import mep
import numpy as np
from mep import eplb

RANKS, SLOTS, EXPERTS, TOP_K, TOKENS, HIDDEN = 4, 3, 8, 2, 96, 32
LOST = 1


def routing(rank):
    """Two experts for each token, the first ones far more often."""
    random = np.random.default_rng([1, rank])
    often = 1 / np.arange(1, EXPERTS + 1) ** 1.5
    experts = np.array([random.choice(EXPERTS, TOP_K, False, often / often.sum()) for _ in range(TOKENS)])
    return experts, random.random((TOKENS, TOP_K), np.float32), random.standard_normal((TOKENS, HIDDEN), np.float32)


def expert_weights(expert):
    return np.random.default_rng([2, expert]).standard_normal(HIDDEN).astype(np.float32)


class Job:
    def __init__(self, comm):
        self.comm = comm
        self.now = eplb.unmapped(EXPERTS, RANKS, SLOTS)
        self.weights = np.zeros((SLOTS, HIDDEN), np.float32)
        self.fill(enumerate(self.now.physical_to_logical.reshape(RANKS, SLOTS)[comm.rank]))
        self.experts, self.gates, self.x = routing(comm.rank)
        self.ep = mep.Ep(comm, hidden=HIDDEN, top_k=TOP_K, num_experts=EXPERTS, experts_per_rank=SLOTS, max_replicas=RANKS,
                         max_tokens_per_rank=TOKENS, input_type="float32")
        self.handle = self.ep.handle()
        self.rows = np.zeros(SLOTS, np.int64)
        self.reference = sum(self.gates[:, k:k + 1] * self.x * np.array([expert_weights(each) for each in self.experts[:, k]])
                             for k in range(TOP_K))

    def fill(self, found):
        for slot, expert in found:
            if expert >= 0:
                self.weights[slot] = expert_weights(expert)

    def layer(self):
        """The layer's result, the rows of each slot of all ranks, and who was there."""
        self.rows[:] = 0
        got = self.handle.dispatch(self.x, self.experts, self.gates, statistics=self.rows)
        y = self.ep.combine_input()
        for slot in range(SLOTS):
            y[slot, :got.count[slot]] = got.rows(slot) * self.weights[slot]
        out = self.handle.combine()
        np.testing.assert_allclose(out, self.reference, rtol=1e-4, atol=1e-5)
        rows = self.comm.allgather(self.rows).reshape(RANKS, SLOTS)
        return out, rows, np.isin(np.arange(RANKS), self.comm.last_op().contributors)

    def check_rows(self, rows, there):
        """Replica (token + source rank) mod replicas has each row."""
        wanted = np.zeros(RANKS * SLOTS, np.int64)
        for rank in np.flatnonzero(there):
            for token, chosen in enumerate(routing(rank)[0]):
                for expert in chosen:
                    places = [place for place in self.now.expert_map[expert] if place >= 0]
                    wanted[places[(token + rank) % len(places)]] += 1
        np.testing.assert_array_equal(rows.reshape(-1), wanted)

    def rebalance(self, rows, there):
        before, self.now = self.now, eplb.plan(self.now.expert_load(rows), RANKS, SLOTS, active=there, previous=self.now)
        moves = self.now.moves(before)
        eplb.move_weights(self.comm, [move for move in moves if move.source is not None], self.weights)
        gone = [move for move in moves if move.source is None]
        self.fill((move.target[1], move.expert) for move in gone if move.target[0] == self.comm.rank)
        self.ep.set_expert_map(self.now.expert_map)
        own = self.now.physical_to_logical.reshape(RANKS, SLOTS)[self.comm.rank]
        for slot, expert in enumerate(own):
            if expert >= 0:
                np.testing.assert_array_equal(self.weights[slot], expert_weights(expert))
        return moves


def imbalance(rows, there):
    loads = rows.sum(axis=1)[there]
    return loads.max() / loads.mean()


def main():
    with mep.init() as comm:
        job = Job(comm)
        before, rows, there = job.layer()
        job.check_rows(rows, there)
        uneven = imbalance(rows, there)
        assert uneven > 2, uneven
        for expected in (True, False):
            moves = job.rebalance(rows, there)
            assert bool(moves) == expected, moves  # from the same loads nothing moves
            after, rows, there = job.layer()
            np.testing.assert_array_equal(after, before)
            job.check_rows(rows, there)
            even = imbalance(rows, there)
            assert even < 1.2 and abs(even - job.now.imbalance) < 0.05, (even, job.now.imbalance)

        assert (job.now.replicas > 1).any()
        if comm.rank == LOST:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                comm.barrier()
        except mep.PeerFailedError as problem:
            assert problem.info.failed == [LOST], problem.info
        there[LOST] = False
        rows = rows * there[:, None]
        job.rebalance(rows, there)
        assert (job.now.physical_to_logical.reshape(RANKS, SLOTS)[LOST] == -1).all()
        after, rows, present = job.layer()
        np.testing.assert_array_equal(present, there)
        np.testing.assert_array_equal(after, before)
        job.check_rows(rows, there)
        sys.stdout.write(f"rank {comm.rank}: imbalance {uneven:.2f}, then {even:.2f}, of three ranks "
                         f"{imbalance(rows, there):.2f}\n")


if __name__ == "__main__":
    main()
