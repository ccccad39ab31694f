"""./dev bench-build: the table of build times in CONTRIBUTING.md."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile
import time

from console import ROOT, die, jobs, output_of, run, step
from ranks import RUN, machine
from trees import SHORT_TESTS

BEGIN, END = "<!-- build times, by ./dev bench-build -->\n", "<!-- end of build times -->\n"
PAGE = ROOT / "CONTRIBUTING.md"
BUILD = ("import sys; sys.path.insert(0, 'tools/dev'); import trees; "
         "trees.build_or_stop('release', {!r}, cuda=trees.NO_CUDA)")


def copy_tree(clone: pathlib.Path) -> None:
    names = (output_of("git", "ls-files", "-co", "--exclude-standard") or "").splitlines()
    if not names:
        die("bench-build needs git")
    for name in filter(os.path.isfile, names):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(name, clone / name)


def measure() -> list[tuple[str, float]]:
    """Each command and its seconds, one after the other in a fresh copy of the tree and without ccache."""
    with tempfile.TemporaryDirectory() as folder:
        clone = pathlib.Path(folder) / "mep"
        copy_tree(clone)
        commands = (("`./dev run`", [sys.executable, "-B", "-c", BUILD.format(RUN)]),
                    ("`./dev test` after it", [sys.executable, "-B", "-c", BUILD.format(SHORT_TESTS)]),
                    ("`pip install .`", [sys.executable, "-m", "pip", "install", "-v", "--no-deps", "--target",
                                         f"{folder}/site", "."]))
        times = []
        for name, command in commands:
            start = time.monotonic()
            if run("env", "-C", clone, *command, env={"CCACHE_DISABLE": "1"}) != 0:
                die(f"the build of {name} failed")
            times.append((name, time.monotonic() - start))
        return times


def bench_build(_: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        die(f"{PAGE.name} has no place for the table, between {BEGIN.strip()} and {END.strip()}")
    compiler = (output_of(os.environ.get("CXX", "c++"), "--version") or "?").splitlines()[0]
    rows = "".join(f"| {name} | {seconds // 60:.0f}:{seconds % 60:02.0f} |\n" for name, seconds in measure())
    table = f"| first build for | minutes |\n|---|---|\n{rows}\nMeasured on {machine()}; {compiler}; no ccache, no CUDA.\n"
    step(f"{jobs()} jobs at a time")
    print(table)
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table + END + rest.partition(END)[2], encoding="utf-8")
    return 0
