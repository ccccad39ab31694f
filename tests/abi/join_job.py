#!/usr/bin/env python3
"""A job of three ranks in another language: join_job.py COMMAND... Rank 1 is killed and replaced, and the
world grows by one. COMMAND gets its part as last argument: member, joiner or grown. A member writes a line
when it has returned from a first barrier; rank 1 is killed when all have."""
import os
import signal
import subprocess
import sys

LIMIT = 110


def main():
    job = f"join-job-{os.getpid()}"

    def start(role, output=None, **variables):
        environment = dict(os.environ, MEP_JOB=job, **variables)
        return subprocess.Popen(sys.argv[1:] + [role], env=environment, stdout=output)

    ranks = {f"rank {rank}": start("member", subprocess.PIPE, MEP_RANK=str(rank), MEP_SIZE="3")
             for rank in range(3)}
    wrong = []

    def end_of(name):
        try:
            return ranks[name].wait(LIMIT)
        except subprocess.TimeoutExpired:
            return "none: it hangs"

    # Before that, its end would be told by the barrier itself to who is still inside. A member that ends
    # closes its output; one that hangs is ended by CTest's limit.
    for name in ranks:
        if not ranks[name].stdout.readline():
            wrong.append(f"{name} did not return from its first barrier")
    ranks["rank 1"].kill()
    status = end_of("rank 1")
    if status != -signal.SIGKILL:
        wrong.append(f"rank 1 ended with {status}, it was to be killed")
    del ranks["rank 1"]
    ranks["the joiner"] = start("joiner")
    ranks["the grown one"] = start("grown")
    for name in ranks:
        status = end_of(name)
        if status != 0:
            text = ranks[name].stdout.read().decode() if ranks[name].stdout else ""
            wrong.append(f"{name} ended with {status}\n{text}")
    for process in ranks.values():
        if process.poll() is None:
            process.kill()
            process.wait()
    print("\n".join(wrong) or "all ranks ended in order")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
