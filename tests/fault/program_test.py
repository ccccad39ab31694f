#!/usr/bin/env python3
"""Random programs under faults, in each way that ranks reach each other:
program_test.py PATH_OF_MEP_CHAOS MODE.. [--soak].

MODE is one of mep_chaos's, or MODE-joins, where a rank is stopped while a replacement of another one joins, or
"oracle": ranks that lie must be found. A fixed slice of each; with
MEP_TEST_SOAK=1 (--soak) 10000 programs a mode. MEP_TEST_SEED begins at another seed.
"""
import os
import re
import subprocess
import sys
import tempfile

SLICE = {"shm": 50, "tcp": 25, "mixed": 25, "put": 25, "threads": 40, "shm-joins": 16, "tcp-joins": 8}
SOAK = 10000
# Programs without faults; the lie is told by rank 1 in a step in which it gives something.
LIES = ("data", "skip", "verdict", "crash")


def run(program, folder, *arguments):
    command = [program, "--findings", folder, *arguments]
    print("+", *command, flush=True)
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def step_that_gives(program, folder, seed):
    """A step of the program with this seed in which rank 1 gives bytes that all receive, or None."""
    text = run(program, folder, "--seed", str(seed), "--programs", "1", "--mode", "shm", "--no-faults",
               "--print").stdout
    for line in text.splitlines():
        found = re.match(r" *(\d+) call: all(gather|reduce) c0 (\d+) (u?int\d+)( sum| xor|)(?: |$)", line)
        if found and int(found[3]) > 0 and (found[2] == "gather" or found[5]):
            return int(found[1])
    return None


def lies_are_found(program, folder):
    failed = 0
    seeds = (seed for seed in range(1, 1000) if step_that_gives(program, folder, seed) is not None)
    for lie, seed in zip(LIES, seeds):
        step = step_that_gives(program, folder, seed)
        outcome = run(program, folder, "--seed", str(seed), "--programs", "1", "--mode", "shm",
                      "--no-faults", "--steps", str(step + 2), "--sabotage", f"{lie}:1:{step}")
        if outcome.returncode == 1:
            continue
        failed += 1
        print(f"FAILED  the lie \"{lie}\" of seed {seed} was not found\n{outcome.stdout}")
    return failed


def main():
    arguments = [a for a in sys.argv[1:] if a != "--soak"]
    soak = "--soak" in sys.argv or os.environ.get("MEP_TEST_SOAK") == "1"
    seed = os.environ.get("MEP_TEST_SEED", "1")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for mode in arguments[1:]:
            if mode == "oracle":
                failed += lies_are_found(arguments[0], folder)
                continue
            count = SOAK if soak else SLICE[mode]
            transport, _, joins = mode.partition("-")
            # Ranks that are stopped, and those that wait for them, take no time.
            more = ["--joins", "--jobs", "4"] if joins else []
            outcome = run(arguments[0], os.path.join(os.getcwd(), "program_findings"), "--mode", transport,
                          "--seed", seed, "--programs", str(count), *more)
            print(outcome.stdout, flush=True)
            failed += outcome.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
