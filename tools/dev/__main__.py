"""The verbs of ./dev. Each is a few lines here over a module of this folder."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from typing import Callable

import fuzz_lab
import gpu
import lint
import ranks
from bench_build import bench_build
from console import ROOT, die, jobs, note, run, step
from docs_site import docs
from packages import ensure_cuda_compiler, ensure_packages, ensure_wheel_builder
from reach import reached
from soak import soak
from suites import Beside, Stages, sanitizer_tests
from torch_tests import torch_tests
from torch_wheel import torch_wheel
from trees import NO_CUDA, ONE_GPU, SHORT_TESTS, build, build_or_stop, cache_value, cuda_of_a_short_run, tree_of

HELP = """\
./dev run [ARGS]     install what is missing, build, and run a MoE layer's
                     communication on 4 ranks, checked and timed beside MPI;
                     ARGS go to mep_perf in place of the default ones
./dev test           a joiner's run: tree checks, formatting, clang-tidy of what
                     the branch changes, and short tests of every part
./dev test --full    the gate: the whole lint, every test with one outcome, a
                     slice of each under TSan and ASan
./dev test PATH      what a folder or file reaches, by the table of folders:
                     src/core/ep, tests/unit/x_test.cpp
./dev test ARGS      only the release build's tests, with these arguments for
                     ctest (-R NAME, ...)
./dev build [PRESET] configure and build (release, debug, asan, tsan); default
                     release
./dev install PREFIX build what is installed, no tests, and install it: library,
                     headers, tools, bindings, pages
./dev lint           layering, formatting and clang-tidy of what changed since
                     the last clean run
./dev format         let clang-format rewrite the sources
./dev bench          mep_perf over collectives and the MoE layer beside MPI;
                     JSON in build/bench/
./dev bench-build    times first builds and writes the table of CONTRIBUTING.md
./dev chaos [ARGS]   random programs while ranks are killed, stopped and
                     replaced, for some seconds; ARGS go to mep_chaos in place
                     of the default ones
./dev asan [ARGS]    tests under AddressSanitizer and UndefinedBehaviorSanitizer
                     (ctest ARGS)
./dev tsan [ARGS]    tests under ThreadSanitizer (ctest ARGS)
./dev fuzz [NAME] [SECONDS]
                     build the parsers' fuzz targets with clang and run one, or
                     all, for so long (60); what they find is written to
                     build/fuzz/found/
./dev lab netns [ARGS]
                     hosts as network namespaces (root): starts, cuts, freezes,
                     deaths, joiners
./dev lab newcomer [SUITE] [--as user] [--run-only]
                     makes a bare Debian or Ubuntu (trixie; root, debootstrap)
                     and types ./dev run and ./dev test there
./dev lab rdma [COMMAND...]
                     boots a guest with two soft-RoCE devices (QEMU) and runs
                     the verbs tests in it, or the command, with this machine's
                     files
./dev torch-wheel [VERSION...]
                     a wheel with the binding of mep.torch compiled, for the
                     three newest versions of PyTorch or those given; each
                     needs 6 GB in build/torch-wheel
./dev torch [--upstream]
                     tests of mep.torch with PyTorch from PyPI, which goes into
                     build/torch; with --upstream also the cases of PyTorch's
                     distributed_test.py that apply
./dev gpu-test [PART...]
                     everything that wants a GPU, or the parts kernels, library,
                     perf, sanitizers; one table at the end. Needs only this
                     tree, nvcc, cmake, python3 and a GPU; `--quick` leaves
                     benchmarks and sanitizers out. library and perf run what
                     build/release has
./dev soak [SUITE] [--minutes N]
                     what explores, and every test under TSan and ASan: whatever
                     fits into N minutes (60), with new seeds each time; goes on
                     next time where it stopped. `./dev soak --list`: the suites
./dev docs [--serve] build the documentation as a site, in build/site, with
                     MkDocs from PyPI, which goes into build/docs; with --serve
                     show it at 127.0.0.1:8000, and changes as they are made
./dev clean          remove build/
Environment: CC and CXX choose the compiler of a first configure run;
MEP_TEST_SEED replays random tests; MEP_DEV_NO_INSTALL=1 installs nothing;
MEP_DEV_WERROR=1 makes compiler warnings errors, as `./dev test --full` does; a
tree that has them so keeps it."""

# Which tests each run has: cmake/MepTests.cmake says what the labels mean.
SHORT = ["-L", "^quick$"]
GATE = ["-L", "^(quick|gate)$"]
# Lower by so much, a process has a tenth of a core that tests want too.
BESIDE_TESTS = 10
SANITIZER_GATE = "mep_sanitizer_gate"
SANITIZERS = {"tsan": ("ThreadSanitizer", "^tsan$"), "asan": ("AddressSanitizer", "^(asan|fuzz)$")}


def test(arguments: list[str]) -> int:
    full = arguments == ["--full"]
    if "--full" in arguments and not full:
        die("--full takes no further arguments")
    if full:
        os.environ["MEP_DEV_WERROR"] = "1"
    stages = Stages()
    ensure_packages(test=True)
    cuda = ONE_GPU if full else cuda_of_a_short_run()
    if cuda != NO_CUDA:
        ensure_cuda_compiler()
    if full:
        ensure_wheel_builder()
    target = "all" if arguments else SHORT_TESTS
    if not stages.run("build", lambda: (build("release", target, cuda), "")):
        return stages.finish()
    if len(arguments) == 1 and not arguments[0].startswith("-"):
        names = reached(arguments[0])
        if not names:
            die(f"no test is known for {arguments[0]}; tests/lint/folders.py has the table")
        stages.run("lint, clang-tidy of changes only", lambda: lint.lint(True))
        step(f"Tests that {arguments[0]} reaches")
        stages.run("release tests", lambda: stages.ctest("release", ["-R", f"^({'|'.join(names)})$"], jobs()))
        return stages.finish()
    if arguments and not full:
        step(f"Tests of build/release: ctest {' '.join(arguments)}")
        stages.run("release tests (lint and sanitizers left out)",
                   lambda: stages.ctest("release", arguments, jobs()))
        return stages.finish()
    if full:
        gate(stages)
    else:
        stages.run("lint, clang-tidy of changes only", lambda: lint.lint(True))
        step("Tests of build/release")
        stages.run("release tests", lambda: stages.ctest("release", SHORT, jobs()))
        stages.left_out("longer tests, clang-tidy of all files, TSan, ASan: ./dev test --full")
    stages.left_out("what explores: ./dev soak")
    return stages.finish()


def gate(stages: Stages) -> None:
    """Beside the release tests run those of them that only wait, and at low priority the lint and the builds of
    sanitizers."""
    tree = tree_of("release")
    beside = [Beside(tree / "waits.log", 0, ("release tests that wait, beside the others", lambda own: own.ctest(
                  "release", [*GATE, "-L", "^waits$"], jobs(), "ctest_waits"))),
              Beside(tree / "beside.log", BESIDE_TESTS, ("lint, beside release tests", lambda _: lint.lint()),
                     *((f"build of {preset}, beside release tests",
                        lambda _, preset=preset: (build(preset, SANITIZER_GATE), "")) for preset in SANITIZERS))]
    try:
        step("Tests of build/release; beside them tests that wait, the lint, and builds of sanitizers")
        stages.run("release tests", lambda: stages.ctest("release", [*GATE, "-LE", "^waits$"], jobs()))
        for each in beside:
            step("What ran beside the tests")
            each.join(stages)
    finally:
        for each in beside:
            each.stop()
    for preset, (name, labels) in SANITIZERS.items():
        stages.run(f"{name} tests", lambda preset=preset, labels=labels: sanitizer_tests(
            stages, preset, ["-L", labels], jobs(), SANITIZER_GATE))


def stage(name: str, command: Callable[[Stages], tuple[bool, str]]) -> int:
    """A verb that is one stage of tests."""
    stages = Stages()
    ensure_packages(test=True)
    stages.run(name, lambda: command(stages))
    return stages.finish()


def build_verb(arguments: list[str]) -> int:
    ensure_packages(test=True)
    return 0 if build((arguments + ["release"])[0]) else 1


def install_verb(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        die("./dev install takes one word, the folder to install into: ./dev install $HOME/mep")
    prefix = pathlib.Path(arguments[0]).expanduser().absolute()
    ensure_packages()
    build_or_stop("release", "mep_programs")
    step(f"Installing into {prefix}")
    if run("cmake", "--install", tree_of("release"), "--prefix", prefix) != 0:
        return 1
    library = prefix / (cache_value("release", "CMAKE_INSTALL_LIBDIR") or "lib")
    step("To use it")
    for variable, folder in (("PATH", prefix / "bin"), ("LD_LIBRARY_PATH", library),
                             ("PKG_CONFIG_PATH", library / "pkgconfig"),
                             ("PYTHONPATH", prefix / "share/mep/python")):
        note(f'export {variable}="{folder}${{{variable}:+:${variable}}}"')
    return 0


def run_verb(arguments: list[str]) -> int:
    ensure_packages()
    build_or_stop("release", ranks.RUN + (" mep_perf_queue" if arguments[:1] == ["queue"] else ""), cuda=cuda_of_a_short_run())
    return ranks.run_job(arguments)


def bench_verb(_: list[str]) -> int:
    ensure_packages()
    build_or_stop("release", ranks.RUN, cuda=cuda_of_a_short_run())
    return ranks.bench()


def chaos_verb(arguments: list[str]) -> int:
    ensure_packages()
    build_or_stop("release", "mep_chaos", cuda=cuda_of_a_short_run())
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
    "install": install_verb,
    "test": test,
    "build": build_verb,
    "lint": lint_verb,
    "format": lambda _: lint.rewrite(),
    "bench": bench_verb,
    "bench-build": bench_build,
    "chaos": chaos_verb,
    "asan": lambda words: stage("asan tests", lambda stages: sanitizer_tests(stages, "asan", words, jobs())),
    "tsan": lambda words: stage("tsan tests", lambda stages: sanitizer_tests(stages, "tsan", words, jobs())),
    "fuzz": lambda words: stage("fuzz", lambda _: fuzz_lab.fuzz(words)),
    "lab": fuzz_lab.lab,
    "gpu-test": gpu.gpu_test,
    "soak": soak,
    "torch": torch_tests,
    "torch-wheel": torch_wheel,
    "docs": docs,
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
