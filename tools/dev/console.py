"""Prints for ./dev, and starts other programs."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from typing import Mapping, NoReturn, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]


def step(text: str) -> None:
    print(f"\n==> {text}", flush=True)


def note(text: str) -> None:
    print(f"    {text}", flush=True)


def die(text: str) -> NoReturn:
    print(f"./dev: {text}", file=sys.stderr, flush=True)
    sys.exit(1)


def jobs() -> int:
    """The cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def has(program: str) -> bool:
    return shutil.which(program) is not None


def environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, **(extra or {})}


def run(*command: object, env: Mapping[str, str] | None = None) -> int:
    """The exit status of a program that has the terminal."""
    return subprocess.run([str(word) for word in command], env=environment(env), check=False).returncode


def output_of(*command: object) -> str | None:
    """A program's output, or None where it is missing or fails."""
    try:
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def run_logged(log: pathlib.Path, *command: object, env: Mapping[str, str] | None = None,
               append: bool = False) -> int:
    """Shows what a program prints and keeps it in a file; the exit status."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a" if append else "w", encoding="utf-8", errors="replace") as file:
        with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace",
                              env=environment(env)) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                file.write(line)
            return process.wait()


def as_root(*command: str) -> int:
    """Runs a command as root where that is possible without asking a question that nobody answers."""
    if os.getuid() == 0:
        return run(*command)
    if not has("sudo"):
        return 1
    return run("sudo", *([] if sys.stdin.isatty() else ["-n"]), *command)


def read_lines(path: pathlib.Path) -> Sequence[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
