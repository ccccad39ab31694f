#!/usr/bin/env python3
"""Times calls from Python on two ranks: MEP, or mpi4py beside it. Prints one JSON object a line.

    mep_run -n 2 python3 python_calls.py mep
    mpirun -n 2 python3 python_calls.py mpi4py

A number behind it divides the calls of a round.
A row is one call on one size: `us` has the time of a call in each of the rounds, of the rank that needed longest.
"""
import json
import statistics
import sys
import time

import numpy as np

ROUNDS = 5
SIZES = {8: 20000, 1024: 20000, 64 * 1024: 2000, 1024 * 1024: 200}  # bytes: calls a round


class Mep:
    """Ranks of mep_run; `largest` is the maximum over them."""

    def __init__(self):
        import mep
        self.comm = mep.init()
        self.rank, self.barrier, self.close = self.comm.rank, self.comm.barrier, self.comm.close

    def largest(self, values):
        return self.comm.allreduce(np.asarray(values), op="max")

    def cases(self):
        """(name, bytes, calls a round, one call)."""
        import mep
        for size, calls in SIZES.items():
            x = np.zeros(size // 4, np.float32)
            yield "allreduce", size, calls, lambda: self.comm.allreduce(x)
        for size, calls in SIZES.items():
            x = np.zeros(size, np.uint8)
            yield "broadcast", size, calls, lambda: self.comm.broadcast(x)
        tokens, hidden, top_k = 4, 64, 2
        with mep.Ep(self.comm, hidden=hidden, top_k=top_k, num_experts=4, max_tokens_per_rank=tokens) as ep:
            with ep.handle() as handle:
                x, out = np.zeros((tokens, hidden), np.uint16), np.zeros((tokens, hidden), np.uint16)
                chosen = np.arange(tokens * top_k).reshape(tokens, top_k) % 4

                def layer():
                    handle.dispatch(x, chosen)
                    handle.combine(out)
                yield "dispatch+combine", x.nbytes, 5000, layer


class Mpi4py:
    """Ranks of mpirun."""

    def __init__(self):
        from mpi4py import MPI
        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.barrier, self.close = self.comm.rank, self.comm.Barrier, lambda: None

    def largest(self, values):
        values = np.asarray(values)
        self.comm.Allreduce(self.mpi.IN_PLACE, values, self.mpi.MAX)
        return values

    def cases(self):
        place = self.mpi.IN_PLACE
        for size, calls in SIZES.items():
            x = np.zeros(size // 4, np.float32)
            yield "allreduce", size, calls, lambda: self.comm.Allreduce(place, x)
        for size, calls in SIZES.items():
            x = np.zeros(size, np.uint8)
            yield "broadcast", size, calls, lambda: self.comm.Bcast(x)


def times(side, calls, call):
    """Microseconds a call, one figure a round."""
    for _ in range(calls // 10):
        call()
    found = []
    for _ in range(ROUNDS):
        side.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - begin) / calls * 1e6)
    return found


def main():
    side = {"mep": Mep, "mpi4py": Mpi4py}[sys.argv[1]]()
    part = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for name, size, calls, call in side.cases():
        found = [round(float(each), 2) for each in side.largest(times(side, max(calls // part, 1), call))]
        if side.rank == 0:
            print(json.dumps({"side": sys.argv[1], "call": name, "bytes": size, "us": found,
                              "median": statistics.median(found), "worst": max(found)}), flush=True)
    side.close()


main()
