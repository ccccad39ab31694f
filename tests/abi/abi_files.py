"""Shared by the ABI's scripts: the reader of mep.h, and the literal table of layout_table.h and types.def."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "bindings")]

from make_api import Header, number  # noqa: E402,F401
from make_bindings import types  # noqa: E402


def header():
    return Header((ROOT / "include/mep.h").read_text())


class Table:
    """constants {name: value}; structs {name: (size, alignment)}; fields {(struct, field): (offset, size)}."""

    def __init__(self):
        text = re.sub(r"/\*.*?\*/", "", (ROOT / "tests/abi/layout_table.h").read_text(), flags=re.S)
        self.constants = {"MEP_" + row["constant"]: int(row["number"]) for row in types()}
        self.structs, self.fields = {}, {}
        for kind, arguments in re.findall(r"(?m)^(CONSTANT|STRUCT|FIELD)\(([^)]*)\)", text):
            words = [word.strip() for word in arguments.split(",")]
            if kind == "CONSTANT":
                self.constants[words[0]] = int(words[1])
            elif kind == "STRUCT":
                self.structs[words[0]] = (int(words[1]), int(words[2]))
            else:
                self.fields[words[0], words[1]] = (int(words[2]), int(words[3]))


class Findings:
    """Collects differences; end() prints them and leaves with 1 if there are any."""

    def __init__(self):
        self.lines = []

    def same(self, what, expected, found):
        if expected != found:
            self.lines.append(f"{what}: expected {expected}, found {found}")

    def same_names(self, what, expected, found):
        for name in sorted(set(expected) - set(found)):
            self.lines.append(f"{what}: {name} is missing")
        for name in sorted(set(found) - set(expected)):
            self.lines.append(f"{what}: {name} is too much")

    def end(self):
        for line in self.lines:
            print(line)
        sys.exit(1 if self.lines else 0)
