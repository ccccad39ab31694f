"""The verbs of ./dev. Each is a few lines here over a module of this folder."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Callable

import fuzz_lab
import gpu
import lint
import ranks
from console import ROOT, die, jobs, note, step
from packages import ensure_cuda_compiler, ensure_packages
from suites import Stages, ctest, sanitizer_tests, soak
from trees import build, build_or_stop

HELP = """\
./dev run [ARGS]     install what is missing, build, and run a MoE layer's communication on 4 ranks,
                     checked and timed beside MPI; ARGS go to mep_perf in place of the default ones
./dev test           the same up to tests of every part: tree checks, formatting, clang-tidy of what the
                     branch changes, small and medium tests of the release build
./dev test --full    everything: the whole lint, all tests, kernels for all GPUs, TSan and ASan runs
./dev test ARGS      only the release build's tests, with these arguments for ctest (-R NAME, ...)
./dev build [PRESET] configure and build (release, debug, asan, tsan); default release
./dev lint           layering, formatting and clang-tidy of what changed since the last clean run
./dev format         let clang-format rewrite the sources
./dev bench          mep_perf over collectives and the MoE layer beside MPI; JSON in build/bench/
./dev chaos [ARGS]   random programs, then a checked job, while ranks are killed, stopped and replaced, for
                     some seconds; ARGS go to mep_chaos in place of the default ones. `./dev chaos figures`
                     measures what docs/measurements/two-core-epyc-failures.md shows, on 4 and 8 ranks
./dev asan [ARGS]    tests under AddressSanitizer and UndefinedBehaviorSanitizer (ctest ARGS)
./dev tsan [ARGS]    tests under ThreadSanitizer (ctest ARGS)
./dev fuzz [NAME] [SECONDS]
                     build the parsers' fuzz targets with clang and run one, or all, for so long (60);
                     what they find is written to build/fuzz/found/
./dev lab netns [ARGS]
                     hosts as network namespaces (root): starts, cuts, freezes, deaths, joiners
./dev lab rdma [COMMAND...]
                     boots a guest with two soft-RoCE devices (QEMU) and runs the verbs tests in it, or
                     the command, with this machine's files
./dev gpu-test [PART...]
                     everything that wants a GPU, or the parts kernels, library, perf, sanitizers; one table
                     at the end. Needs only this tree, nvcc, cmake, python3 and a GPU; `--quick` leaves
                     benchmarks and sanitizers out. library and perf run what build/release has
./dev soak [ARGS]    all tests in their full length, hours (ctest ARGS)
./dev clean          remove build/
Environment: CC and CXX choose the compiler of a first configure run; MEP_TEST_SEED replays random
tests; MEP_DEV_NO_INSTALL=1 installs nothing."""

# The tests of the short run; cmake/MepTests.cmake says what the sizes mean.
SHORT = ["-L", "^(small|medium)$"]


def test(arguments: list[str]) -> int:
    full = arguments == ["--full"]
    if "--full" in arguments and not full:
        die("--full takes no further arguments")
    stages = Stages()
    ensure_packages(test=True)
    ensure_cuda_compiler()
    if not stages.run("build", lambda: (build("release", quick=not full), "")):
        return stages.finish()
    if arguments and not full:
        step(f"Tests of build/release: ctest {' '.join(arguments)}")
        stages.run("release tests (lint and sanitizers left out)",
                   lambda: ctest("release", arguments, jobs()))
        return stages.finish()
    stages.run("lint" if full else "lint, clang-tidy of changes only", lambda: lint.lint(not full))
    step("Tests of build/release" + ("" if full else ", small and medium ones"))
    stages.run("release tests" if full else "release tests, small and medium",
               lambda: ctest("release", [] if full else SHORT, jobs()))
    sanitizers = {"tsan": "ThreadSanitizer", "asan": "AddressSanitizer"}
    if full:
        for preset, name in sanitizers.items():
            stages.run(f"{name} tests", lambda preset=preset: sanitizer_tests(preset, [], jobs()))
    else:
        stages.left_out("large tests, clang-tidy of all files, TSan, ASan, programs for GPUs: "
                        "./dev test --full")
    return stages.finish()


def stage(name: str, command: Callable[[], tuple[bool, str]]) -> int:
    """A verb that is one stage of tests."""
    stages = Stages()
    ensure_packages(test=True)
    stages.run(name, command)
    return stages.finish()


def build_verb(arguments: list[str]) -> int:
    ensure_packages(test=True)
    return 0 if build((arguments + ["release"])[0]) else 1


def run_verb(arguments: list[str]) -> int:
    ensure_packages()
    build_or_stop("release", "mep_programs", quick=True)
    return ranks.run_job(arguments)


def bench_verb(_: list[str]) -> int:
    ensure_packages()
    build_or_stop("release", "mep_programs", quick=True)
    return ranks.bench()


def chaos_verb(arguments: list[str]) -> int:
    ensure_packages()
    build_or_stop("release", "mep_programs", quick=True)
    return ranks.chaos(arguments)


def lint_verb(_: list[str]) -> int:
    return 0 if lint.lint()[0] else 1


def clean(_: list[str]) -> int:
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    return 0


def usage(_: list[str]) -> int:
    print(HELP)
    return 0


VERBS: dict[str, Callable[[list[str]], int]] = {
    "run": run_verb,
    "test": test,
    "build": build_verb,
    "lint": lint_verb,
    "format": lambda _: lint.rewrite(),
    "bench": bench_verb,
    "chaos": chaos_verb,
    "asan": lambda words: stage("asan tests", lambda: sanitizer_tests("asan", words, jobs())),
    "tsan": lambda words: stage("tsan tests", lambda: sanitizer_tests("tsan", words, jobs())),
    "fuzz": lambda words: stage("fuzz", lambda: fuzz_lab.fuzz(words)),
    "lab": fuzz_lab.lab,
    "gpu-test": gpu.gpu_test,
    "soak": lambda words: stage("soak", lambda: soak(words, jobs())),
    "clean": clean,
    "help": usage,
    "-h": usage,
    "--help": usage,
}


def main() -> int:
    os.chdir(ROOT)
    verb = sys.argv[1] if len(sys.argv) > 1 else "help"
    if verb not in VERBS:
        print(HELP, file=sys.stderr)
        die(f"unknown verb '{verb}'")
    try:
        return VERBS[verb](sys.argv[2:])
    except KeyboardInterrupt:
        note("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
