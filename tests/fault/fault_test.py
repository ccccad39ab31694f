#!/usr/bin/env python3
"""Jobs of real processes under faults:
fault_test.py PATH_OF_MEP_CHAOS [--soak] [--slice] [-k WORD] [--exact NAME] [--list] [--starter PROGRAM].

Each case is one plan for mep_chaos, which checks all bytes on all survivors, the uniform verdict, that
every error names a failed rank, that nothing hangs and that nothing is left over. Environment:
MEP_TEST_SOAK=1 is --soak; MEP_TEST_SEED changes the seeds. PROGRAM becomes each rank, see mep_chaos; the
ranks then meet in a directory, so that it can put them on several hosts.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

MEMBER_POINTS = ["enter", "eager post", "put", "put half", "signal", "eager collect", "large publish",
                 "large reduce", "large copy", "large finish", "complete"]
VIEW_POINTS = ["freeze", "frozen", "prepare", "commit", "install", "adopt"]
# Passed only now and then: a plan that does not meet one goes on without.
RARE_POINTS = ["doorbell", "fence", "catch-up", "catch-up receive"]
EP_POINTS = ["ep counts", "ep token", "ep rows ready", "ep combine ready", "ep sum"]
JOIN_POINTS = ["join begin", "join connected", "join welcomed", "join ready"]
QUICK_SUSPICION = ["--suspect-ms", "400", "--heartbeat-ms", "50"]


class Case:
    def __init__(self, name, ranks, plan, *options, soak=False, limit=120, **expect):
        self.name, self.ranks, self.plan, self.options = name, ranks, plan, list(options)
        self.soak, self.limit, self.expect = soak, limit, expect


def at_points(step, points, nths=(1,)):
    return "; ".join(f"{step} at {point}:{nth}; rejoin" for point in points for nth in nths)


def cases(seed):
    first = [
        Case("killed at points of an operation", 4, at_points("kill 2", MEMBER_POINTS, (1, 7))),
        Case("killed while the view changes", 5, at_points("kill 2", VIEW_POINTS)),
        Case("rank 0 killed while the view changes", 5, at_points("kill 0", VIEW_POINTS)),
        Case("stopped 0.1 s at points", 4,
             "; ".join(f"stop 1 0.1 at {p}:3" for p in MEMBER_POINTS) + "; " +
             "; ".join(f"stop 3 0.1 at {p}; rejoin" for p in VIEW_POINTS), evictions=0),
        Case("stopped 1 s", 4, "stop 0 1; stop 2 1 at put half:9; stop 1 1 at install; rejoin",
             evictions=0),
        Case("stopped 10 s", 4, "stop 2 10", evictions=1),
        Case("all first ranks are replaced, rank 0 first", 4,
             "; ".join(f"kill {r}; rejoin" for r in range(4)) + "; kill 0; rejoin"),
        Case("two at once", 5, "kill 1,3; rejoin; kill 0,1; rejoin; kill 4,0; rejoin"),
        Case("the donor dies in the catch-up", 5,
             "arm 0 catch-up=kill; kill 2 at put:3; rejoin; arm 0 catch-up=kill; kill 3 at put:6; rejoin"),
        Case("the receiver dies in the catch-up", 5,
             "arm 1 catch-up receive=kill; kill 2 at put:3; rejoin"),
        Case("the joiner dies", 4,
             "; ".join(f"kill 1; rejoin {point}=kill" for point in JOIN_POINTS)),
        Case("a member dies while one joins", 4, "kill 1; arm 3 joiner connect=kill; rejoin; rejoin"),
        Case("8 to 1", 8, "; ".join(f"kill {rank}" for rank in (3, 0, 7, 1, 5, 6, 2))),
        # A leak of two pages a cycle shows in half of the cycles.
        Case("150 cycles without a leak", 4, "kill 1; rejoin; " * 150, "--leak-pages", "96",
             joins=150),
        Case("zombies", 4,
             "; ".join(f"stop {r} 1 at {p}" for r, p in
                       [(1, "put half:2"), (2, "put half:40"), (3, "large publish:3"),
                        (0, "large reduce:2"), (1, "signal:5")]),
             *QUICK_SUSPICION, evictions=5),
        Case("slowed 20-fold", 4, "slow 3 20 3; slow 0 20 2", evictions=0),
        Case("seeded", 4, "", "--faults", "60", "--mix", "kill,two,point", "--seed", str(seed)),
        Case("seeded, 8 ranks", 8, "", "--faults", "25", "--mix", "kill,two,point", "--seed",
             str(seed + 1)),
    ]
    first += [
        Case("moe, seeded", 4, "", "--faults", "40", "--mix", "kill,two,point", "--workload", "moe",
             "--seed", str(seed + 2)),
        Case("moe in high throughput, seeded", 4, "", "--faults", "10", "--mix", "kill,two,point", "--workload",
             "moe-throughput", "--seed", str(seed + 3)),
        Case("two ranks, the lowest stopped", 2, "stop 0 7", "--suspect-ms", "500", evictions=0),
        Case("grown, then killed", 3, "grow 1; kill 3; kill 1; rejoin; wait 100"),
    ]
    every = MEMBER_POINTS + VIEW_POINTS
    # The points of a join: tests/unit/membership_processes_test.cpp.
    soak = [
        Case(f"stopped {seconds} s at every point, rank {rank}{', moe' if workload else ''}", 4,
             "; ".join(f"stop {rank} {seconds} at {p}; rejoin" for p in points), *workload,
             soak=True, limit=1800)
        for seconds in (0.1, 1, 10) for rank in (0, 2)
        for points, workload in ((every + RARE_POINTS, []), (EP_POINTS, ["--workload", "moe"]))
    ] + [
        Case(f"killed at every point, rank {rank}", 4, at_points(f"kill {rank}", every, (1, 2, 5, 11)),
             soak=True, limit=900) for rank in range(4)
    ] + [
        Case("1000 cycles without a leak", 4, "kill 1; rejoin; " * 1000, "--leak-pages", "96",
             soak=True, limit=3000, joins=1000),
    ] + [
        Case(f"seed + {i}, {ranks} ranks", ranks, "", "--faults", "500", "--mix",
             "kill,two,point,stop", "--seed", str(seed + i), soak=True, limit=3000)
        for i, ranks in enumerate((3, 4, 5, 8) * 3)
    ]
    return first, soak


# A few that end soon, for the short run of all tests.
SLICE = ("8 to 1", "two ranks, the lowest stopped", "grown, then killed")


def run_case(program, case, starter=None):
    """A list of what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        report_path = pathlib.Path(folder, "report.json")
        environment = dict(os.environ)
        command = [program, "-n", str(case.ranks), "--hang-ms", "40000", "--json", str(report_path)]
        if case.plan:
            command += ["--plan", case.plan]
        command += case.options
        if starter:
            command += ["--starter", starter]
            environment["MEP_RENDEZVOUS"] = folder
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env=environment, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=case.limit)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            return ["did not end in %d s" % case.limit, output, " ".join(command)]
        if process.returncode != 0:
            return [f"exit status {process.returncode}", output, " ".join(command)]
        report = json.loads(report_path.read_text())
    wrong = [f"{name} is {report[name]}, not {value}" for name, value in case.expect.items()
             if report[name] != value]
    if report["compared"] == 0 and case.ranks > 1:
        wrong.append("nothing was compared")
    return wrong + ([output] if wrong else [])


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


def nothing_outlives_the_director(program):
    """A job whose starter is killed leaves no process."""
    process = subprocess.Popen([program, "-n", "4", "--plan", "wait 100000000"],
                               stdout=subprocess.DEVNULL, start_new_session=True)
    limit = time.monotonic() + 30
    while len(members_of(process.pid)) < 5 and time.monotonic() < limit:
        time.sleep(0.02)
    started = len(members_of(process.pid))
    process.send_signal(signal.SIGKILL)
    process.wait()
    while members_of(process.pid) and time.monotonic() < limit:
        time.sleep(0.02)
    left = members_of(process.pid)
    wrong = [] if started == 5 else [f"only {started} processes were started"]
    return wrong + ([f"left over: {left}"] if left else [])


def main():
    arguments = sys.argv[1:]
    soak = "--soak" in arguments or os.environ.get("MEP_TEST_SOAK") == "1"
    word = arguments[arguments.index("-k") + 1] if "-k" in arguments else ""
    exact = arguments[arguments.index("--exact") + 1] if "--exact" in arguments else ""
    starter = arguments[arguments.index("--starter") + 1] if "--starter" in arguments else None
    seed = int(os.environ.get("MEP_TEST_SEED", "1"))
    first, rest = cases(seed)
    chosen = [case for case in first + (rest if soak else [])
              if word in case.name and exact in ("", case.name)]
    if "--slice" in arguments:
        chosen = [case for case in chosen if case.name in SLICE]
    if "--list" in arguments:
        print("\n".join(case.name for case in chosen))
        return 0
    failed = 0
    for case in chosen:
        begin = time.monotonic()
        wrong = run_case(arguments[0], case, starter)
        failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'passed'}  {case.name} ({time.monotonic() - begin:.1f} s)",
              *wrong, sep="\n    " if wrong else "", flush=True)
    if not word and not exact:
        wrong = nothing_outlives_the_director(arguments[0])
        failed += bool(wrong)
        print("FAILED" if wrong else "passed", " nothing outlives the director", *wrong)
    print(f"seed {seed}: {failed} of {len(chosen)} cases failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
