"""./dev lint and ./dev format."""

from __future__ import annotations

import re

from console import ROOT, has, jobs, note, output_of, run, step
from trees import build, merge_base, tree_of

FOLDERS = ("include", "src", "perf", "tests", "examples", "bindings")
SUFFIXES = {".c", ".h", ".cpp", ".hpp", ".cu", ".cuh"}
FORMATTER = "14"  # the version of clang-format that the tree is written by


def sources() -> list[str]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")
             if path.suffix in SUFFIXES and path.is_file()]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def check_tree() -> bool:
    step("Lint: layering, file length, environment variables")
    return run("python3", "-B", "tests/lint/check_tree.py", "--graph") == 0


def check_format() -> bool:
    step("Lint: formatting")
    if not has("clang-format"):
        note("left out: clang-format is missing")
        return True
    found = re.search(r"version (\d+)", output_of("clang-format", "--version") or "")
    if found is None or found[1] != FORMATTER:
        note(f"left out: clang-format {FORMATTER} decides, others break lines otherwise")
        return True
    if run("clang-format", "--dry-run", "-Werror", *sources()) == 0:
        note("formatted")
        return True
    note("./dev format rewrites them")
    return False


def check_tidy(changed_only: bool) -> bool:
    step("Lint: clang-tidy" + (" of what this branch changes" if changed_only else ""))
    if not has("clang-tidy"):
        note("left out: clang-tidy is missing")
        return True
    if not (tree_of("release") / "compile_commands.json").exists() and not build("release"):
        return False
    options = []
    if changed_only:
        base = merge_base() if has("git") else None
        if base is None:
            note("left out: git names no branch to compare with; ./dev lint looks at all files")
            return True
        options = ["--changed-since", base]
    return run("python3", "-B", "tests/lint/run_clang_tidy.py", "--build", tree_of("release"),
               "--jobs", jobs(), *options) == 0


def lint(changed_only: bool = False) -> tuple[bool, str]:
    results = [check_tree(), check_format(), check_tidy(changed_only)]
    return all(results), ""


def rewrite() -> int:
    return run("clang-format", "-i", *sources())
