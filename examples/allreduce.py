#!/usr/bin/env python3
"""The mean of a vector over all ranks, and two sums that run at once under asyncio.

    mep_run -n 4 python3 allreduce.py      (or mpirun -n 4 ..., or alone)
"""
import asyncio
import sys

import mep
import numpy as np


async def two_sums(comm: mep.Comm) -> tuple[np.ndarray, np.ndarray]:
    """Operations of one communicator run in order; awaiting them leaves the loop free."""
    first = np.full(10, comm.rank, np.int64)
    second = np.full(100000, 1.0)
    await asyncio.gather(comm.iallreduce(first), comm.iallreduce(second))
    return first, second


def main() -> int:
    with mep.init() as comm:  # rank and size from the launcher
        x = np.arange(1000, dtype=np.float32) + comm.rank
        mean = comm.allreduce(x, np.empty_like(x), op="avg")
        right = np.array_equal(mean, np.arange(1000) + (comm.size - 1) / 2)

        first, second = asyncio.run(two_sums(comm))
        right &= (first == sum(range(comm.size))).all() and (second == comm.size).all()

        line = f"rank {comm.rank} of {comm.size}: mean[0] = {mean[0]:g}, "
        sys.stdout.write(line + ("right\n" if right else "WRONG\n"))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
