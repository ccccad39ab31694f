#!/usr/bin/env python3
"""Jobs over verbs under faults, in the lab's guest: guest_faults.py BUILD_FOLDER [--slice] [-k WORD].

Ranks are killed, stopped and replaced by mep_chaos, which checks every byte of every result on every
survivor: four ranks that reach each other by verbs alone, and two hosts of four ranks, within which shm
is used. Then the link between the two hosts goes down under a job. Needs the guest's root.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "fault"))
from fault_test import Case, at_points, run_case  # noqa: E402

LIMIT_S = 600
POINTS = ["enter", "put half", "signal", "eager collect", "complete"]
# Points of large operations: those over several hosts have algorithms of their own.
LARGE_POINTS = {False: ["large publish", "large copy"],
                True: ["hosts send", "hosts publish", "hosts read"]}
VIEW_POINTS = ["frozen", "prepare", "commit", "install"]
EP_POINTS = ["ep counts", "ep rows ready", "ep combine ready"]
# Patience with a slow machine: a rank that waits for a CPU is not taken for stopped.
SUSPICION = ["--suspect-ms", "2500", "--heartbeat-ms", "200"]


def cases(ranks, two_hosts):
    last = ranks - 1
    large = LARGE_POINTS[two_hosts]
    return [
        Case("killed at points", ranks, at_points(f"kill {last}", POINTS + large), not_reached=0),
        Case("rank 0 killed, and killed while the view changes", ranks,
             "kill 0; rejoin; " + at_points("kill 0", VIEW_POINTS)),
        Case("two at once", ranks, f"kill 1,{last}; rejoin; kill 0,2; rejoin"),
        Case("stopped 1 s", ranks, f"stop 0 1; stop {last} 1 at put half:9", evictions=0),
        Case("stopped 7 s, as zombies go on", ranks,
             f"stop {last} 7 at put half:5; stop 0 7 at signal:3; stop 1 7 at {large[0]}:2",
             *SUSPICION, evictions=3),
        Case("seeded", ranks, "", "--faults", "6", "--mix", "kill,two,point"),
        Case("dispatch and combine, killed at points", ranks,
             "kill 1; rejoin; " + at_points(f"kill {last}", EP_POINTS), "--workload", "moe"),
        Case("dispatch and combine, stopped 7 s", ranks, "stop 1 7 at ep rows ready", *SUSPICION,
             "--workload", "moe", evictions=1),
    ]


def slice_cases(ranks, _two_hosts):
    return [Case("killed and replaced", ranks, "kill 0; rejoin; kill 2 at put half; rejoin")]


def chaos(build, case, two_hosts):
    case.limit = LIMIT_S
    case.options += ["--hang-ms", "300000", "--timeout-ms", "60000"]
    os.environ["MEP_INIT_TIMEOUT_MS"] = "240000"  # of a joiner
    os.environ["MEP_TRANSPORTS"] = "shm,verbs" if two_hosts else "verbs"
    return run_case(str(build / "bin/mep_chaos"), case,
                    str(HERE / "two_hosts.sh") if two_hosts else None)


class Job:
    """Ranks of two hosts that sum up who is there (tests/lab/netns/lab_rank.c)."""

    def __init__(self, build, ranks):
        self.folder = tempfile.TemporaryDirectory()
        self.stop_file = pathlib.Path(self.folder.name, "stop")
        self.said = {}
        self.changed = threading.Condition()
        environment = dict(os.environ, MEP_TRANSPORTS="shm,verbs", MEP_SUSPECT_MS="2500",
                           MEP_HEARTBEAT_MS="200", MEP_IB_TIMEOUT="16",
                           LAB_STOP=str(self.stop_file), MEP_LOG="warn")
        self.process = subprocess.Popen(
            [build / "bin/mep_run", "-n", str(ranks), "--tag-output", HERE / "two_hosts.sh",
             build / "tests/lab_rank"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            match = re.match(r"\[(\d+)\] (.*)", line)
            with self.changed:
                self.said.setdefault(int(match[1]) if match else -1, []).append(
                    match[2] if match else line.rstrip())
                self.changed.notify_all()

    def wait_for(self, ranks, found, limit_s=120):
        """Until `found` holds for what each of `ranks` has said."""
        with self.changed:
            return self.changed.wait_for(
                lambda: all(found(self.said.get(rank, [])) for rank in ranks), limit_s)

    def sees(self, ranks, mask):
        def latest(lines):
            sums = [line for line in lines if line.startswith("sees ")]
            return bool(sums) and sums[-1] == f"sees {mask:x}"
        return self.wait_for(ranks, latest)

    def ended(self, ranks):
        return self.wait_for(ranks, lambda lines: any(line.startswith("ended ") for line in lines))

    def close(self):
        self.stop_file.touch()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.reader.join(20)
        self.folder.cleanup()

    def where_they_hang(self):
        """The kernel's side of every thread that is left of the ranks."""
        lines = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (process / "comm").read_text().strip() != "lab_rank":
                    continue
                for thread in sorted((process / "task").iterdir()):
                    stack = (thread / "stack").read_text().split("\n")
                    state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
                    calls = [line.split()[-1].partition("+")[0] for line in stack if line]
                    lines.append(f"{process.name}/{thread.name} {(thread / 'comm').read_text().strip()} "
                                 f"{state}: {' < '.join(calls[:10])}")
            except OSError:
                pass  # it has ended meanwhile
        return lines

    def report(self):
        return [f"[{rank}] {line}" for rank in sorted(self.said) for line in self.said[rank][-8:]]


def link_up():
    """Ends of a link that was down have forgotten their neighbours."""
    for side in 0, 1:
        subprocess.run(["ip", "link", "set", f"veth{side}", "up"], check=True)
    for side in 0, 1:
        subprocess.run(["ip", "neighbour", "replace", f"10.77.0.{2 - side}", "lladdr",
                        f"02:4d:45:50:00:0{2 - side}", "dev", f"veth{side}", "nud", "permanent"],
                       check=True)


def link_goes_down(build):
    """Control links stay, RDMA between the hosts does not: of each pair the higher rank goes."""
    job = Job(build, 8)
    wrong = []
    try:
        if not job.sees(range(8), 0xff):
            return ["the job did not start", *job.report()]
        subprocess.run(["ip", "link", "set", "veth1", "down"], check=True)
        if not job.sees(range(4), 0xf):
            wrong = ["the lower host does not go on alone", *job.where_they_hang()]
        elif not job.ended(range(4, 8)):
            wrong = ["the upper host does not end", *job.where_they_hang()]
    finally:
        link_up()
        job.close()
    if not wrong and not all("left" in job.said[rank] for rank in range(4)):
        wrong = ["the lower host does not leave in order"]
    return wrong + (job.report() if wrong else [])


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    is_slice = "--slice" in sys.argv
    word = sys.argv[sys.argv.index("-k") + 1] if "-k" in sys.argv else ""
    checks = []
    for ranks, two_hosts in ((4, False), (8, True)):
        where = "2 hosts of 4 ranks" if two_hosts else "4 ranks"
        for case in (slice_cases if is_slice else cases)(ranks, two_hosts):
            checks.append((f"{case.name}, {where}",
                           lambda case=case, two=two_hosts: chaos(build, case, two)))
    if not is_slice:
        checks.append(("the link between 2 hosts of 4 ranks goes down",
                       lambda: link_goes_down(build)))
    failed = 0
    for name, check in checks:
        if word not in name:
            continue
        begin = time.monotonic()
        wrong = check()
        failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'passed'}  {name} ({time.monotonic() - begin:.0f} s)", *wrong,
              sep="\n    " if wrong else "", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
