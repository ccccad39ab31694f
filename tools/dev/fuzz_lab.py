"""./dev fuzz and ./dev lab."""

from __future__ import annotations

import os

from console import ROOT, die, has, run, step
from packages import ensure_packages
from trees import build, build_or_stop


def fuzz(arguments: list[str]) -> tuple[bool, str]:
    """fuzz [NAME] [SECONDS]: one parser's target, or all, for so long."""
    seconds = next((word for word in arguments[-1:] if word.isdigit()), "60")
    names = [word for word in arguments[:1] if not word.isdigit()]
    if not has("clang++"):
        die("fuzzing needs clang")
    os.environ.update(CC="clang", CXX="clang++")
    if not build("fuzz"):
        return False, "the build failed"
    if not names:
        names = sorted(path.name.removesuffix("_fuzz.cpp")
                       for path in (ROOT / "tests/fuzz").glob("*_fuzz.cpp"))
    passed = True
    for name in names:
        target = ROOT / f"build/fuzz/tests/{name}_fuzz"
        if not os.access(target, os.X_OK):
            die(f"there is no fuzz target '{name}'")
        corpus, found = ROOT / f"build/fuzz/work/{name}", ROOT / f"build/fuzz/found/{name}"
        corpus.mkdir(parents=True, exist_ok=True)
        found.mkdir(parents=True, exist_ok=True)
        step(f"Fuzzing {name} for {seconds} s")
        passed &= run(target, f"-max_total_time={seconds}", "-max_len=8192", "-print_final_stats=1",
                      f"-artifact_prefix={found}/", corpus, f"tests/fuzz/corpus/{name}") == 0
    return passed, ""


def lab(arguments: list[str]) -> int:
    """lab netns [ARGS], lab rdma [COMMAND...] or lab newcomer [ARGS]."""
    name, rest = (arguments + [""])[0], arguments[1:]
    if name == "netns":
        ensure_packages(test=True)
        build_or_stop("release")
        return run("python3", "tests/lab/netns/netns_lab.py", "--bin", "build/release/bin",
                   "--rank", "build/release/tests/lab_rank", *rest)
    if name == "rdma":
        build_or_stop("release")
        if rest:
            return run("python3", "tests/lab/rdma/rdma_lab.py", *rest)
        return run("tests/lab/rdma/run_lab.sh", "all", "build/release")
    if name == "newcomer":
        return run("python3", "tests/lab/newcomer/newcomer.py", *rest)
    die("labs: netns, rdma, newcomer")
