#!/usr/bin/env python3
"""Random programs under faults, in each way that ranks reach each other:
program_test.py PATH_OF_MEP_CHAOS MODE.. [--device] [--soak].

MODE is one of mep_chaos's, or MODE-SHAPE, or "oracle": ranks that lie must be found, and a director that is killed
leaves nothing. With --device communicators are on GPUs. A fixed slice of each; with MEP_TEST_SOAK=1 (--soak) 10000
programs a mode, 1000 with --device. MEP_TEST_SEED begins at another seed.
"""
import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

SLICE = {"shm": 50, "tcp": 25, "mixed": 25, "put": 25, "threads": 40, "shm-joins": 16, "tcp-joins": 8,
         "shm-points": 8, "tcp-points": 4, "mixed-points": 4, "shm-last": 4, "mixed-last": 4, "shm-grown": 4,
         "tcp-grown": 4, "shm-cycles": 1}
DEVICE_SLICE = {"shm": 6, "threads": 10}  # some 10 s
SOAK = 10000
DEVICE_SOAK = 1000
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


def members_of(session):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


def nothing_outlives_the_director(program, folder):
    """The ranks end with the process that started them."""
    with subprocess.Popen([program, "--programs", "1", "--mode", "shm", "--shape", "cycles", "--findings", folder],
                          stdout=subprocess.DEVNULL, start_new_session=True) as process:
        limit = time.monotonic() + 30
        # The campaign, its program, and a rank or more.
        while len(members_of(process.pid)) < 4 and time.monotonic() < limit:
            time.sleep(0.02)
        started = len(members_of(process.pid))
        process.send_signal(signal.SIGKILL)
    while members_of(process.pid) and time.monotonic() < limit:
        time.sleep(0.02)
    left = members_of(process.pid)
    if started >= 4 and not left:
        return 0
    print(f"FAILED  of {started} processes {left} outlive the director")
    return 1


def campaign(program, mode, soak, device):
    """Whether something was wrong."""
    transport, _, shape = mode.partition("-")
    more = ["--shape", shape, "--jobs", "4"] if shape else []
    more += ["--device"] if device else []
    if soak:
        programs = DEVICE_SOAK if device else SOAK
    else:
        programs = (DEVICE_SLICE if device else SLICE)[mode]
    outcome = run(program, os.path.join(os.getcwd(), "program_findings"), "--mode", transport,
                  "--seed", os.environ.get("MEP_TEST_SEED", "1"), "--programs", str(programs), *more)
    print(outcome.stdout, flush=True)
    return outcome.returncode != 0


def main():
    arguments = [a for a in sys.argv[1:] if a not in ("--device", "--soak")]
    device = "--device" in sys.argv
    soak = "--soak" in sys.argv or os.environ.get("MEP_TEST_SOAK") == "1"
    program, modes = arguments[0], arguments[1:]
    failed = 0
    if "oracle" in modes:
        with tempfile.TemporaryDirectory() as folder:
            failed += lies_are_found(program, folder) + nothing_outlives_the_director(program, folder)
        modes.remove("oracle")
    failed += sum(campaign(program, mode, soak, device) for mode in modes if "-" not in mode)
    # Ranks that are stopped, and those that wait for them, take no time.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        failed += sum(pool.map(lambda mode: campaign(program, mode, soak, device), [mode for mode in modes if "-" in mode]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
