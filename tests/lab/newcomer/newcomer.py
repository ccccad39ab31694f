#!/usr/bin/env python3
"""A bare system, and the two commands of the README as they stand: newcomer.py [SUITE] [--as root|user] [--run-only].

debootstrap makes SUITE (trixie, bookworm, noble) in build/newcomer, once; each run works on a copy of it with a clone of
this tree. The commands install what they want for root. They tell a user without sudo what to type; root types it, and
they go on. Needs root, debootstrap and a mirror, else it exits with 77.
"""
from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = ROOT / "build/newcomer"
MIRRORS = {"noble": "http://archive.ubuntu.com/ubuntu"}
SKIPPED = 77
MOUNTS = (("proc", "proc"), ("sysfs", "sys"), ("devtmpfs", "dev"), ("tmpfs", "dev/shm"))
# A user's machine has these.
TOOLS = ["git", "ca-certificates", "python3"]


def skip(why: str) -> None:
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def base(suite: str) -> pathlib.Path:
    """The bare system, which nothing changes."""
    folder = FOLDER / f"{suite}-base"
    if (folder / "made").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    mirror = MIRRORS.get(suite, "http://deb.debian.org/debian")
    print(f"==> Making {suite} from {mirror}", flush=True)
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(TOOLS)}"]
    if suite in MIRRORS:
        command.append("--components=main,universe")
    if subprocess.run([*command, suite, str(folder), mirror], stdout=subprocess.DEVNULL).returncode != 0:
        skip(f"debootstrap could not make {suite}")
    (folder / "made").touch()
    return folder


class Machine:
    """A copy of the bare system, with the tree in /home/newcomer/mep."""

    def __init__(self, suite: str):
        self.root = FOLDER / suite
        self.leave()
        shutil.rmtree(self.root, ignore_errors=True)
        subprocess.run(["cp", "-a", str(base(suite)), str(self.root)], check=True)
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
        for kind, place in MOUNTS:
            (self.root / place).mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", kind, kind, str(self.root / place)], check=True)
        subprocess.run(["chroot", str(self.root), "useradd", "-m", "-s", "/bin/bash", "newcomer"], check=True)
        home = self.root / "home/newcomer/mep"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(home)], check=True)
        subprocess.run(["chroot", str(self.root), "chown", "-R", "newcomer:", "/home/newcomer/mep"], check=True)

    def leave(self) -> None:
        for _, place in reversed(MOUNTS):
            subprocess.run(["umount", "-l", str(self.root / place)], stderr=subprocess.DEVNULL)

    def type(self, user: str, command: str) -> "tuple[int, str]":
        """Types a command in the tree's folder. Returns (status, output)."""
        print(f"==> {user}$ {command}", flush=True)
        begin = time.monotonic()
        words = ["chroot", str(self.root), "su", "-", user, "-c",
                 f"cd /home/newcomer/mep && git config --global safe.directory '*' && {command}"]
        lines = []
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace") as process:
            for line in process.stdout or ():
                lines.append(line)
                sys.stdout.write("    " + line)
        print(f"==> {time.monotonic() - begin:.0f} s, exit {process.returncode}", flush=True)
        return process.returncode, "".join(lines)


def advised(output: str) -> str:
    """The command that a user is told to have typed as root."""
    found = re.search(r"^\s*(apt-get install .*)$", output, re.MULTILINE)
    return found.group(1).replace("apt-get install", "apt-get update -q && apt-get install -y -q") if found else ""


def visit(machine: Machine, user: str, run_only: bool) -> "list[str]":
    """Finds out what does not work."""
    wrong = []
    for command in ["./dev run"] if run_only else ["./dev run", "./dev test"]:
        status, output = machine.type(user, command)
        if status != 0 and user != "root":
            told = advised(output)
            if not told:
                wrong.append(f"{command}, which failed as a user, says no command to type")
                continue
            if machine.type("root", told)[0] != 0:
                wrong.append(f"what it says to type: {told}")
            status, _ = machine.type(user, command)
        if status != 0:
            wrong.append(f"{command} as {user}: exit {status}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", nargs="?", default="trixie")
    parser.add_argument("--as", dest="user", choices=("root", "user"), default="root")
    parser.add_argument("--run-only", action="store_true", help="./dev run alone")
    given = parser.parse_args()
    if os.geteuid() != 0:
        skip("making a system needs root")
    if shutil.which("debootstrap") is None:
        skip("debootstrap is not installed")
    FOLDER.mkdir(parents=True, exist_ok=True)
    machine = Machine(given.suite)
    try:
        wrong = visit(machine, "root" if given.user == "root" else "newcomer", given.run_only)
    finally:
        machine.leave()
    for each in wrong:
        print(f"wrong: {each}")
    print("the newcomer came through" if not wrong else f"{len(wrong)} things did not work")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
