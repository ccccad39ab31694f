#!/usr/bin/env python3
"""A job that loses a rank, goes on without it, and takes in a replacement: recover.c in Python.

    mep_run -n 4 --respawn python3 recover.py             a replacement comes
    mep_run -n 4 --allow-failures 1 python3 recover.py    none comes: three ranks finish

The ranks minimise the mean of (w - target)^2 / 2 over all ranks' targets, each rank from its own one. Rank 1 kills
itself on the way. A step that was lost is done again, so all ranks end with the w of the ranks that are there.
"""
import os
import signal
import sys
import time

import mep
import numpy as np

STEPS, DEATH, POLLS, WAIT_S = 100, 30, 10, 10
ABSENT, JOINER, MEMBER = 0, 1, 2
IS_REPLACEMENT = "MEP_JOIN" in os.environ  # mep_run sets it in a replacement


class Job:
    def __init__(self, comm: mep.Comm) -> None:
        self.comm = comm
        # The state that a joiner has to learn: the step, how often the members have looked for joiners, w.
        self.now = np.array([0.0, 0.0, 100.0])
        self.is_joiner = IS_REPLACEMENT  # until it has the state
        self.must_meet = True  # somebody is gone or has come
        self.here: list[int] = []
        self.absent: list[int] = []

    def meet(self) -> None:
        """All ranks learn who is there, and joiners the state, from the highest rank that has it."""
        seen = np.zeros(self.comm.size, np.int32)
        seen[self.comm.rank] = JOINER if self.is_joiner else MEMBER
        self.comm.allreduce(seen, op="max")
        self.here = np.flatnonzero(seen != ABSENT).tolist()
        self.absent = np.flatnonzero(seen == ABSENT).tolist()
        self.comm.broadcast(self.now, int(np.flatnonzero(seen == MEMBER)[-1]))
        self.is_joiner = self.must_meet = False

    def admit(self) -> None:
        """While a place is free the members look once a step whether somebody wants it; after POLLS steps they wait, once."""
        if not self.absent or self.now[1] > POLLS:
            return
        waits = self.now[1] == POLLS
        self.now[1] += 1
        try:
            # No ranks, no time: whoever is ready. Nobody is: it returns 0.
            came = self.comm.recover_ranks(self.absent, WAIT_S) if waits else self.comm.recover_ranks(timeout=0)
        except mep.TimeoutError as error:
            came = error.admitted  # go on with those that are there
        if came > 0:
            self.must_meet, self.now[1] = True, 0

    def step(self) -> None:
        """A gradient, its mean over the ranks that are there, and a step against it."""
        if self.comm.rank == 1 and self.now[0] == DEATH and not IS_REPLACEMENT:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.005)  # the work
        mean = self.comm.allreduce(np.array([self.now[2] - self.comm.rank]), op="avg")
        self.now[2] -= 0.5 * mean[0]
        self.now[0] += 1

    def advance(self) -> None:
        """The step and w change after a call has succeeded, and on all ranks then: what failed is done again."""
        if self.must_meet:
            self.meet()
            return
        self.admit()
        if not self.must_meet:
            self.step()


def main() -> int:
    with (mep.join() if IS_REPLACEMENT else mep.init()) as comm:
        job = Job(comm)
        while job.now[0] < STEPS:
            try:
                job.advance()
            except (mep.PeerFailedError, mep.PeerLeftError):
                job.must_meet, job.now[1] = True, 0  # on every survivor, for the same call

        # The mean of the targets of those that are there; each step halves the distance to it.
        right = abs(job.now[2] - np.mean(job.here)) < 1e-6
        sys.stdout.write(f"rank {comm.rank} of {comm.size}: {len(job.absent)} places are free, w = {job.now[2]:g}, "
                         f"{'right' if right else 'WRONG'}\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
