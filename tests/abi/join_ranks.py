#!/usr/bin/env python3
"""A rank of a Python job: join_ranks.py member | joiner | grown. join_job.py says what happens to it."""
import signal
import sys
import threading

import mep
import numpy as np

role = sys.argv[1]
PATIENCE = 100


def expect(condition, text):
    if not condition:
        sys.exit(f"{role}: {text}")


def total(comm):
    """Names who took part."""
    return int(comm.allreduce(np.full(1, 10 ** comm.rank, np.int64))[0])


def survive(comm):
    changed = threading.Event()
    comm.set_view_callback(lambda view: changed.set())
    comm.barrier()
    print("all are there", flush=True)
    if comm.rank == 1:
        signal.pause()  # join_job.py kills it
    comm.wait_view(1, PATIENCE)
    expect(comm.live == 2, "the dead rank is still in the view")
    expect(comm.peer_state(1) == mep.PeerState.DEAD, "its state is not DEAD")
    expect(changed.wait(PATIENCE), "no view was told")
    try:
        comm.barrier()
        sys.exit("the failure was not told")
    except mep.PeerFailedError:
        pass
    try:
        admitted = comm.recover_ranks([1], timeout=0)  # it has hardly started
    except mep.TimeoutError as error:
        expect(error.admitted == 0, "the error does not say that nobody came")
        admitted = comm.recover_ranks([1], timeout=PATIENCE)
    expect(admitted == 1, "nobody came")
    comm.set_view_callback(None)


if role == "member":
    world = mep.init(max_size=4, timeout_ms=100_000)
    survive(world)
else:
    world = mep.join(rank=1 if role == "joiner" else 3, timeout_ms=100_000, init_timeout_ms=100_000)
with world:
    if role == "grown":
        expect(world.rank == 3 and total(world) == 1111, "not all ranks are in the grown world")
    else:
        expect(total(world) == 111, "not all ranks are in the world")
        grown = world.grow(1, timeout=PATIENCE)
        expect(total(grown) == 1111, "not all ranks are in the grown world")
        expect(total(world) == 111, "the first world does not go on")
        try:
            grown.grow(1)
            sys.exit("it grew beyond max_size")
        except mep.InvalidArgumentError:
            pass
