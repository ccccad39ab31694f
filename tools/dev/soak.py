"""./dev soak: everything that explores, piece by piece, for as long as it is given. Seeds are taken from the
clock, so that no two runs look at the same slice; the command of a finding names its seed."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import subprocess
import time
from typing import Callable, Iterator, NamedTuple

from console import ROOT, die, environment, jobs, note, output_of, read_lines, step
from packages import ensure_cuda_compiler, ensure_packages
from suites import no_randomisation
from trees import ALL_GPUS, ONE_GPU, build, tree_of

FOLDER = ROOT / "build/soak"
POSITION = FOLDER / "position.json"
CHAOS = "build/release/bin/mep_chaos"
SIMULATOR = "build/release/tests/sim_membership"
MODELS = ["python3", "tests/model/run_models.py"]
# How long one piece of a suite without an end of its own explores.
SHARE = 120
DEFAULT_MINUTES = 60


class Piece(NamedTuple):
    name: str
    command: list[str]
    seconds: int  # a piece that takes longer hangs
    env: dict[str, str] = {}


def seed() -> str:
    return str(int(time.time()))


def sim_mutants() -> Iterator[Piece]:
    for name in lines_of(SIMULATOR, "--mutants", "--list"):
        yield Piece(name, [SIMULATOR, "--mutants", "--only", name], 600)


def names_of_models(which: str) -> list[str]:
    return [line.partition(" | ")[0] for line in lines_of(*MODELS, which, "--list")]


def models() -> Iterator[Piece]:
    """Those that end within a minute or two, all wrong variants among them."""
    for name in names_of_models("--ci"):
        yield Piece(name, [*MODELS, "--exact", name], 600)


def long_models() -> Iterator[Piece]:
    short = set(names_of_models("--ci"))
    for name in names_of_models("--all"):
        if name not in short:
            yield Piece(name, [*MODELS, "--exact", name], 3000)


def schedules() -> Iterator[Piece]:
    for quorum in ("majority", "witness"):
        yield Piece(quorum, [SIMULATOR, "--seeds", "100000000", "--seconds", str(SHARE), "--first", seed() + "0000",
                             *([] if quorum == "majority" else ["--quorum", quorum])], SHARE * 2)


def programs() -> Iterator[Piece]:
    def piece(name: str, mode: str, *more: str) -> Piece:
        return Piece(name, [CHAOS, "--programs", "100000000", "--seconds", str(SHARE), "--mode", mode, *more,
                            "--seed", seed(), "--findings", str(FOLDER / "programs")], SHARE + 400)

    for mode in ("shm", "tcp", "mixed", "put", "threads"):
        yield piece(mode, mode)
    # Ranks that are stopped, and those that wait for them, take no time.
    for shape in ("joins", "points", "last", "grown", "cycles"):
        for mode in ("shm", "tcp", "mixed", "put"):
            yield piece(f"{mode}, {shape}", mode, "--shape", shape, "--jobs", "6")


def tests_of(preset: str, labels: str, env: dict[str, str] | None = None) -> Iterator[Piece]:
    """Each test of a tree whose labels match, by ctest."""
    prefix = no_randomisation() if preset == "tsan" else []
    listing = output_of("ctest", "--preset", preset, "-N", "-L", labels) or ""
    for name in re.findall(r"Test +#\d+: (\S+)", listing):
        yield Piece(name, [*prefix, "ctest", "--preset", preset, "-R", f"^{re.escape(name)}$"], 2000,
                    {"MEP_TEST_SEED": seed(), **(env or {})})


def whole() -> Iterator[Piece]:
    """The unit tests in full length, without the limits of ctest."""
    for path in sorted((tree_of("release") / "tests").glob("*_test")):
        yield Piece(path.name, [str(path.relative_to(ROOT))], 7200, {"MEP_TEST_SOAK": "1", "MEP_TEST_SEED": seed()})


def fuzz() -> Iterator[Piece]:
    for path in sorted((ROOT / "tests/fuzz").glob("*_fuzz.cpp")):
        name = path.name.removesuffix("_fuzz.cpp")
        yield Piece(name, ["./dev", "fuzz", name, str(SHARE // 2)], 1200)


def analyzer() -> Iterator[Piece]:
    yield Piece("clang", ["python3", "-B", "tests/lint/run_clang_tidy.py", "--build", str(tree_of("release")),
                          "--jobs", str(jobs()), "--analyzer"], 3000)
    yield Piece("checks of single files", ["python3", "-B", "tests/lint/run_clang_tidy.py", "--build",
                                           str(tree_of("release")), "--jobs", str(jobs()), "--alone"], 3000)


def mutants() -> Iterator[Piece]:
    for name in lines_of("python3", "-B", "tools/dev/mutants.py", "--list"):
        yield Piece(name, ["python3", "-B", "tools/dev/mutants.py", name], 3000)


def kernels() -> Iterator[Piece]:
    yield Piece("all GPU architectures", ["./dev", "build"], 3000)


def newcomers() -> Iterator[Piece]:
    for suite in ("trixie", "bookworm", "noble"):
        for user in ("root", "user"):
            yield Piece(f"{suite} as {user}", ["python3", "tests/lab/newcomer/newcomer.py", suite, "--as", user], 3000)


class Suite(NamedTuple):
    pieces: Callable[[], Iterator[Piece]]
    tree: tuple[str, str] = ("release", "all")


SUITES = {
    "sim-mutants": Suite(sim_mutants, ("release", "sim_membership")),
    "models": Suite(models, ("", "")),
    "schedules": Suite(schedules, ("release", "sim_membership")),
    "programs": Suite(programs, ("release", "mep_chaos")),
    "repeats": Suite(lambda: tests_of("release", "^soak$")),
    "tsan": Suite(lambda: tests_of("tsan", "^threads$"), ("tsan", "mep_sanitizer_tests")),
    "asan": Suite(lambda: tests_of("asan", "^(threads|addresses|fuzz)$"), ("asan", "mep_sanitizer_tests")),
    "whole": Suite(whole),
    "fuzz": Suite(fuzz, ("", "")),
    "analyzer": Suite(analyzer),
    "long-models": Suite(long_models, ("", "")),
    "kernels": Suite(kernels, ("", "")),
    "mutants": Suite(mutants),
    "newcomers": Suite(newcomers, ("", "")),
}


def lines_of(*command: str) -> list[str]:
    return (output_of(*command) or "").splitlines()


def log_of(suite: str, piece: Piece) -> pathlib.Path:
    return FOLDER / suite / (re.sub(r"[^\w.-]+", "_", piece.name).strip("_") + ".log")


def replay(piece: Piece) -> str:
    return " ".join([*(f"{key}={value}" for key, value in piece.env.items()), shlex.join(piece.command)])


def run_piece(log: pathlib.Path, piece: Piece, limit: float) -> str:
    """passed, cut (by the end of the run), skipped, or what is wrong."""
    log.parent.mkdir(parents=True, exist_ok=True)
    env = environment({"MEP_LOG": "error", **piece.env})
    with open(log, "w", encoding="utf-8") as file:
        file.write(f"{replay(piece)}\n")
        file.flush()
        # A session of its own, so that a piece that is ended takes its ranks with it.
        with subprocess.Popen(piece.command, stdout=file, stderr=subprocess.STDOUT, env=env,
                              start_new_session=True) as process:
            try:
                status = process.wait(min(piece.seconds, limit))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                return "cut" if limit < piece.seconds else f"did not end in {piece.seconds} s"
            except KeyboardInterrupt:
                os.killpg(process.pid, 9)
                raise
    return {0: "passed", 77: "skipped"}.get(status, f"exit status {status}")


class Position:
    """Which suite comes next, and in each the piece that does."""

    def __init__(self) -> None:
        known = json.loads(POSITION.read_text()) if POSITION.exists() else {}
        self.suite: str = known.get("suite", next(iter(SUITES)))
        self.pieces: dict[str, str] = known.get("pieces", {})

    def keep(self) -> None:
        POSITION.write_text(json.dumps({"suite": self.suite, "pieces": self.pieces}, indent=1))


def run_suite(name: str, position: Position, end: float) -> list[str] | None:
    """The findings of a suite from its position on, or None where its tree cannot be built."""
    suite = SUITES[name]
    preset, target = suite.tree
    if preset and not build(preset, target, ONE_GPU):
        return None
    step(f"Soak: {name}")
    pieces = list(suite.pieces())
    names = [piece.name for piece in pieces]
    start = names.index(position.pieces[name]) if position.pieces.get(name) in names else 0
    findings = []
    for index in range(start, len(pieces)):
        position.pieces[name] = names[index]
        position.keep()
        left = end - time.monotonic()
        if left <= 0:
            return findings
        piece, begin = pieces[index], time.monotonic()
        log = log_of(name, piece)
        result = run_piece(log, piece, left)
        note(f"{result:<8} {piece.name} ({time.monotonic() - begin:.0f} s)")
        if result not in ("passed", "cut", "skipped"):
            findings.append(f"{name}: {piece.name}: {result}; log {log.relative_to(ROOT)}; again with: {replay(piece)}")
            for line in read_lines(log):
                if "again" in line:
                    findings.append(line.strip())
    position.pieces.pop(name, None)
    return findings


def soak(arguments: list[str]) -> int:
    """soak [SUITE] [--minutes N]; --list names the suites."""
    words = list(arguments)
    if words == ["--list"]:
        print(*SUITES, sep="\n")
        return 0
    minutes = None
    if "--minutes" in words:
        at = words.index("--minutes")
        if at + 1 >= len(words) or not words[at + 1].isdigit():
            die("--minutes wants a number")
        minutes = int(words[at + 1])
        del words[at:at + 2]
    if len(words) > 1 or (words and words[0] not in SUITES):
        die(f"suites of soak: {', '.join(SUITES)}")
    ensure_packages(test=True)
    ensure_cuda_compiler()
    FOLDER.mkdir(parents=True, exist_ok=True)
    position = Position()
    if words:
        # A suite that is named runs from its beginning, and to its end where no time is given.
        position.pieces.pop(words[0], None)
        order = words
        end = time.monotonic() + 60 * minutes if minutes else float("inf")
    else:
        all_of = list(SUITES)
        at = all_of.index(position.suite) if position.suite in SUITES else 0
        order = all_of[at:] + all_of[:at]
        end = time.monotonic() + 60 * (minutes or DEFAULT_MINUTES)
    findings: list[str] = []
    for name in order:
        if time.monotonic() >= end:
            break
        if not words:
            position.suite = name
        found = run_suite(name, position, end)
        findings += [f"{name}: the build failed"] if found is None else found
    else:
        if not words:
            position.suite = next(iter(SUITES))
    position.keep()
    step("Findings" if findings else "No findings")
    for line in findings:
        note(line)
    return 1 if findings else 0
