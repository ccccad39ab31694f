#!/usr/bin/env python3
"""Jobs over verbs under faults, in the lab's guest: guest_faults.py BUILD_FOLDER [--slice] [-k WORD].

mep_chaos runs random programs whose ranks reach each other by verbs alone, or on two hosts within which shm is used.
Then the link between the two hosts goes down under a job. Needs the guest's root.
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
LIMIT_S = 900
# The guest is slow: a rank that waits for a CPU is not taken for stopped, and a joiner has 240 s.
PATIENCE = 6
# How many programs of each shape, of any and in the slice of all tests.
PROGRAMS = {"": 20, "points": 20, "recover": 5, "last": 2, "joins": 5}
SLICE = {"recover": 2}


def chaos(build, shape, count):
    command = [str(build / "bin/mep_chaos"), "--mode", "verbs", "--programs", str(count), "--jobs", "1",
               "--patience", str(PATIENCE), "--hang-ms", "600000", "--max-findings", "1"]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--findings", folder, *(["--shape", shape] if shape else [])]
        try:
            outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                     timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired as late:
            return [f"did not end in {LIMIT_S} s", str(late.stdout), " ".join(command)]
        stories = [path.read_text() for path in pathlib.Path(folder).glob("*.txt")]
    return [] if outcome.returncode == 0 else [outcome.stdout, *stories]


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
    for shape, count in (SLICE if is_slice else PROGRAMS).items():
        checks.append((f"random programs, shape {shape or 'any'}",
                       lambda shape=shape, count=count: chaos(build, shape, count)))
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
