"""Running tests: stages that each close with a line of CTest, and the summary of them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from typing import Callable

from console import note, read_lines, run, run_logged, step
from trees import build, tree_of

CLOSING = re.compile(r"% tests passed|No tests were found")


class Stages:
    """Steps that may fail without stopping the following ones, printed again at the end."""

    def __init__(self) -> None:
        self.results: list[str] = []
        self.failed = False

    def run(self, name: str, command: Callable[[], tuple[bool, str]]) -> bool:
        """A command answers whether it passed, and its closing line."""
        start = time.monotonic()
        passed, closing = command()
        result = "passed" if passed else "FAILED"
        self.results.append(f"{result}  {name} ({time.monotonic() - start:.0f} s)"
                            + (f": {closing}" if closing else ""))
        self.failed = self.failed or not passed
        return passed

    def left_out(self, name: str) -> None:
        self.results.append(f"not run {name}")

    def finish(self) -> int:
        step("Summary")
        for line in self.results:
            note(line)
        return 1 if self.failed else 0


def no_randomisation() -> list[str]:
    """ThreadSanitizer of older compilers cannot cope with much address randomisation."""
    prefix = ["setarch", platform.machine(), "-R"]
    try:
        works = subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        works = False
    return prefix if works else []


def ctest(preset: str, arguments: list[str], jobs: int, env: dict[str, str] | None = None
          ) -> tuple[bool, str]:
    """Runs ctest in a preset's tree; whether all passed, and its closing line."""
    log = tree_of(preset) / "ctest.log"
    # Tests provoke what the library warns of; it would hide what a failing one says.
    env = {"MEP_LOG": os.environ.get("MEP_LOG", "error"), **(env or {})}
    prefix = no_randomisation() if preset == "tsan" else []
    status = run_logged(log, *prefix, "ctest", "--preset", preset, "-j", jobs, "--no-tests=error",
                        *arguments, env=env)
    closing = [line for line in read_lines(log) if CLOSING.search(line)]
    return status == 0, closing[-1] if closing else ""


def sanitizer_tests(preset: str, arguments: list[str], jobs: int) -> tuple[bool, str]:
    if not build(preset, "mep_sanitizer_tests"):
        return False, "the build failed"
    step(f"Tests under {preset}")
    return ctest(preset, arguments, jobs)


def soak(arguments: list[str], jobs: int) -> tuple[bool, str]:
    if not build("release"):
        return False, "the build failed"
    step("Soak: every test in full length")
    if run("cmake", "--preset", "release", "-DMEP_TEST_SOAK=ON") != 0:
        return False, "configuring failed"
    try:
        return ctest("release", arguments, jobs, {"MEP_TEST_SOAK": "1"})
    finally:
        run("cmake", "--preset", "release", "-DMEP_TEST_SOAK=OFF")
