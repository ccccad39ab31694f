#!/usr/bin/env python3
"""Messages from one rank to another: a token goes round all ranks, then rank 0 gathers what the others send it.

    mep_run -n 4 python3 messages.py       (or mpirun -n 4 ..., or alone)
"""
import sys

import mep
import numpy as np

TOKEN, SQUARES = 1, 2  # tags


def ring(comm: mep.Comm) -> np.ndarray:
    """Each rank sends off a token; every rank that it comes to adds its number. Returns the own one."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    token = np.array([comm.rank, 0])  # who sent it off, the sum
    for _ in range(comm.size):
        came = np.empty_like(token)
        with mep.group():  # both at one time; here they only begin, and the end of the block waits
            comm.send(token, right, TOKEN)
            comm.recv(came, left, TOKEN)
        token = came + [0, comm.rank]
    return token


def gather(comm: mep.Comm) -> dict[int, list[int]]:
    """Rank 0 takes the others' messages in the order in which they come. They have a length each."""
    if comm.rank != 0:
        comm.send(np.arange(comm.rank) ** 2, 0, SQUARES)
        return {}
    found: dict[int, list[int]] = {0: []}
    room = np.empty(comm.size, np.int64)
    for _ in range(comm.size - 1):
        message = comm.recv(room, mep.ANY_SOURCE, SQUARES)
        found[message.source] = room[:message.bytes // room.itemsize].tolist()
    return found


def main() -> int:
    with mep.init() as comm:
        token = ring(comm)
        right = token.tolist() == [comm.rank, sum(range(comm.size))]

        found = gather(comm)
        if comm.rank == 0:
            right &= found == {r: [i ** 2 for i in range(r)] for r in range(comm.size)}

        sys.stdout.write(f"rank {comm.rank} of {comm.size}: its token is back with the sum {token[1]}, "
                         f"{len(found)} ranks gathered, {'right' if right else 'WRONG'}\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
