"""Running tests: stages that each close with a line of CTest, and the summary of them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import time
import traceback
from typing import Callable

from console import ROOT, note, read_lines, run_logged, step
from trees import build, tree_of

CLOSING = re.compile(r"% tests passed|No tests were found")
ENDED = re.compile(r"^ *\d+/\d+ Test +#\d+: (\S+) \.*(.*?) +([\d.]+) sec")
# More failures than this are a broken build: running them again would only take time.
MOST_RUN_AGAIN = 12
SLOWEST = 10


class Stages:
    """Steps that may fail without stopping the following ones, printed again at the end."""

    def __init__(self) -> None:
        self.results: list[str] = []
        self.failed = False
        self.unsteady: list[str] = []
        self.times: list[tuple[float, str]] = []

    def run(self, name: str, command: Callable[[], tuple[bool, str]]) -> bool:
        """A command answers whether it passed, and its closing line."""
        start = time.monotonic()
        passed, closing = command()
        result = "passed" if passed else "FAILED"
        self.results.append(f"{result}  {name} ({time.monotonic() - start:.0f} s)"
                            + (f": {closing}" if closing else ""))
        self.failed = self.failed or not passed
        return passed

    def ctest(self, preset: str, arguments: list[str], jobs: int, log_name: str = "ctest") -> tuple[bool, str]:
        """Runs ctest in a preset's tree. A test that fails runs once more, alone: if it passes then, it is
        listed as unsteady and fails nothing."""
        log = tree_of(preset) / f"{log_name}.log"
        status = run_ctest(preset, log, jobs, arguments)
        failed = []
        for line in read_lines(log):
            if ended := ENDED.match(line):
                self.times.append((float(ended[3]), f"{preset}: {ended[1]}"))
                if "***" in ended[2] and "Skipped" not in ended[2]:
                    failed.append(ended[1])
        if status != 0 and 0 < len(failed) <= MOST_RUN_AGAIN:
            step(f"Once more, alone: {' '.join(failed)}")
            again = tree_of(preset) / f"{log_name}_again.log"
            status = run_ctest(preset, again, 1, ["-R", f"^({'|'.join(map(re.escape, failed))})$"])
            gone = {ended[1] for line in read_lines(again)
                    if (ended := ENDED.match(line)) and "***" not in ended[2]}
            self.unsteady += [f"{name} ({preset}), log {log.relative_to(ROOT)}"
                              for name in failed if name in gone]
        closing = [line for line in read_lines(log) if CLOSING.search(line)]
        return status == 0, closing[-1] if closing else ""

    def left_out(self, name: str) -> None:
        self.results.append(f"not run {name}")

    def finish(self) -> int:
        if self.times:
            step("The slowest tests")
            for seconds, name in sorted(self.times, reverse=True)[:SLOWEST]:
                note(f"{seconds:6.1f} s  {name}")
        step("Summary")
        for line in self.results:
            note(line)
        for line in self.unsteady:
            note(f"unsteady: {line}")
        return 1 if self.failed else 0


class Beside:
    """Stages in a process of their own, for the time in which other stages wait and leave cores idle; `lower` is how
    much lower its priority is. Its output is shown at the end, since lines of two programs would mix."""

    def __init__(self, log: pathlib.Path, lower: int, *parts: tuple[str, Callable[[Stages], tuple[bool, str]]]) -> None:
        self.log = log
        self.answer = log.with_suffix(".json")
        self.answer.unlink(missing_ok=True)
        sys.stdout.flush()
        self.child = os.fork()
        if self.child == 0:
            os._exit(self._run(lower, parts))
        with contextlib.suppress(OSError):  # the child does so too, and may be the first
            os.setpgid(self.child, self.child)

    def _run(self, lower: int, parts: tuple[tuple[str, Callable[[Stages], tuple[bool, str]]], ...]) -> int:
        try:
            os.setpgid(0, 0)
            os.nice(lower)
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            stages = Stages()
            for name, command in parts:
                stages.run(name, lambda command=command: command(stages))
            sys.stdout.flush()
            self.answer.write_text(json.dumps(vars(stages)))
            return 0
        except BaseException:
            traceback.print_exc()
            return 1

    def join(self, stages: Stages) -> None:
        """Waits for them, and takes their results over."""
        with contextlib.suppress(OSError):  # only root may
            os.setpriority(os.PRIO_PGRP, self.child, 0)
        child, self.child = self.child, 0
        os.waitpid(child, 0)
        for line in read_lines(self.log):
            print(line)
        ended = {"failed": True, "results": [f"FAILED  what wrote {self.log}"], "unsteady": [], "times": []}
        if self.answer.exists():
            ended = json.loads(self.answer.read_text())
        stages.failed = stages.failed or ended["failed"]
        stages.results += ended["results"]
        stages.unsteady += ended["unsteady"]
        stages.times += [(seconds, name) for seconds, name in ended["times"]]

    def stop(self) -> None:
        if self.child > 0:
            os.killpg(self.child, signal.SIGTERM)


def no_randomisation() -> list[str]:
    """ThreadSanitizer of older compilers cannot cope with much address randomisation."""
    prefix = ["setarch", platform.machine(), "-R"]
    try:
        works = subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        works = False
    return prefix if works else []


def run_ctest(preset: str, log: os.PathLike[str], jobs: int, arguments: list[str]) -> int:
    # Tests provoke what the library warns of; it would hide what a failing one says.
    env = {"MEP_LOG": os.environ.get("MEP_LOG", "error")}
    prefix = no_randomisation() if preset == "tsan" else []
    return run_logged(log, *prefix, "ctest", "--preset", preset, "-j", jobs, "--no-tests=error", *arguments,
                      env=env)


def sanitizer_tests(stages: Stages, preset: str, arguments: list[str], jobs: int,
                    target: str = "mep_sanitizer_tests") -> tuple[bool, str]:
    if not build(preset, target):
        return False, "the build failed"
    step(f"Tests under {preset}")
    return stages.ctest(preset, arguments, jobs)
