"""./dev test PATH: which tests a folder or file reaches, by the table of folders (tests/lint/folders.py)."""

from __future__ import annotations

import pathlib
import re
import sys

from console import ROOT, die, output_of

sys.path.insert(0, str(ROOT / "tests/lint"))
from folders import ALLOWED, TESTS  # noqa: E402


def users_of(folder: str) -> set[str]:
    """The folders that include this one, directly or not."""
    found: set[str] = set()
    waiting = [folder]
    while waiting:
        target = waiting.pop()
        for source, targets in ALLOWED.items():
            if target in targets and source not in found:
                found.add(source)
                waiting.append(source)
    return found


def tests_of_tree(labels: str, tree: pathlib.Path) -> set[str]:
    listing = output_of("ctest", "--test-dir", tree, "-N", "-L", labels) or ""
    return set(re.findall(r"Test +#\d+: (\S+)", listing))


def matching(patterns: list[str], names: set[str]) -> set[str]:
    return {name for name in names if any(re.search(pattern, name) for pattern in patterns)}


def rows_of(name: str) -> list[str]:
    """The rows of TESTS for a path: the longest that holds it, and those that lie below it."""
    if name == "src":
        return list(ALLOWED)
    name = name.removeprefix("src/")
    above = [row for row in TESTS if name == row or name.startswith(row + "/")]
    return sorted(above, key=len)[-1:] + [row for row in TESTS if row.startswith(name + "/")]


def own_and_others(word: str, tree: pathlib.Path = ROOT / "build/release") -> tuple[list[str], list[str]]:
    """Names of tests: those of the path itself, and the quick ones of the folders that include it."""
    path = pathlib.Path(word).resolve()
    if not path.is_relative_to(ROOT):
        die(f"{word} is not in this tree")
    name = path.relative_to(ROOT).as_posix()
    quick, gate = tests_of_tree("^quick$", tree), tests_of_tree("^(quick|gate)$", tree)
    if not quick:
        die(f"{tree} has no tests: is it built?")
    single = re.fullmatch(r"tests/(?:.+/)?(\w+)_(test|fuzz)\.\w+", name)
    if single:
        return sorted(matching([f"^{single[1]}_"], gate)), []
    rows = rows_of(name)
    users = {user for row in rows if row in ALLOWED for user in users_of(row)}
    own = matching([TESTS[row] for row in rows], gate)
    return sorted(own), sorted(matching([TESTS[user] for user in users], quick) - own)


def reached(word: str) -> list[str]:
    own, others = own_and_others(word)
    return own + others
