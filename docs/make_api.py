#!/usr/bin/env python3
"""Writes docs/reference/api.md from include/mep.h: make_api.py [--check].

--check writes nothing and fails when docs/reference/api.md is not what would be written. The reader of mep.h
below is also what the ABI tests use. It understands the C that mep.h is written in, not all of C.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Header:
    """mep.h in parts: functions, structs and constants by name, in the order of the file."""

    def __init__(self, text):
        bare = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        self.defines = {
            name: value
            for name, value in re.findall(r"^#define +(MEP_\w+) +(\S.*?) *$", bare, flags=re.M)
            if not value.startswith("__")
        }
        bare = re.sub(r"^#.*$", "", bare, flags=re.M)
        self.functions = {}  # name -> (result type, [(type, name)])
        for result, name, params in re.findall(
            r"MEP_API\s+([\w ]+?[\s*]+)(mep_\w+)\s*\(([^;]*)\)\s*;", bare
        ):
            self.functions[name] = (normal(result), split_parameters(params))
        self.constants = {}  # name -> value
        for body in re.findall(r"\benum\s*\{(.*?)\}", bare, flags=re.S):
            for name, value in re.findall(r"(MEP_\w+)\s*=\s*([^,]+)", body):
                self.constants[name] = number(value)
        self.structs = {}  # name -> [(type, name, array length or 0)]
        for body, name in re.findall(
            r"typedef\s+struct\s+\w+\s*\{(.*?)\}\s*(\w+)\s*;", bare, flags=re.S
        ):
            self.structs[name] = [field(f) for f in body.split(";") if f.strip()]
        self.handles = re.findall(r"typedef\s+struct\s+\w+\s*\*\s*(\w+)\s*;", bare)


def normal(c_type):
    return re.sub(r"\s*\*", "*", " ".join(c_type.split()))


def number(text):
    shift = re.fullmatch(r"\s*(\w+?)u?\s*<<\s*(\w+)\s*", text)
    if shift:
        return int(shift[1], 0) << int(shift[2], 0)
    return int(text.strip().rstrip("u"), 0)


def field(text):
    pointer = re.search(r"\(\*(\w+)\)", text)
    if pointer:
        return ("function pointer", pointer[1], 0)
    match = re.fullmatch(r"(.*?[\s*])(\w+)(?:\[(\d+)\])?", " ".join(text.split()))
    return (normal(match[1]), match[2], int(match[3] or 0))


def split_parameters(text):
    text = " ".join(text.split())
    if text in ("", "void"):
        return []
    return [(normal(p[: -len(n)]), n) for p in text.split(",") for n in [re.search(r"\w+$", p)[0]]]


# ---- rendering ----------------------------------------------------------------------------------

CHUNK = re.compile(
    r"(?P<comment>/\*.*?\*/)"
    r"|(?P<cpp>^\#[^\n]*(?:\\\n[^\n]*)*\n)"
    r"|(?P<inline>^static inline [^{;]*\{[^}]*\})"
    r"|(?P<struct>^typedef struct \w+ \{.*?^\}[^;\n]*;)"
    r"|(?P<enum>^enum\s*\{.*?\};[^\n]*)"
    r"|(?P<linkage>^extern \"C\" \{|^\}$)"
    r"|(?P<declaration>^\w[^;{}]*;)"
    r"|(?P<blank>\n[ \t]*\n)",
    flags=re.S | re.M,
)


def comment_text(comment):
    lines = comment[2:-2].strip().splitlines()
    return "\n".join(re.sub(r"^ \* ?", "", line).rstrip() for line in lines).strip()


def prose(text):
    """Comment text as Markdown: indented blocks of the file's first comment become a list."""
    text = text.replace("<", "&lt;").replace("*", "\\*")
    text = re.sub(r"^  (\w+)  +", r"- **\1**: ", text, flags=re.M)
    text = re.sub(r"\n {4,}", "\n  ", text)
    return re.sub(r"\b((?:mep|MEP)_\w+(?:\(\))?)", r"`\1`", text)


def chunks(text):
    """(kind, text) for all of the file; gaps between the chunks must be white space."""
    position = 0
    for match in CHUNK.finditer(text):
        gap = text[position : match.start()]
        if gap.strip():
            raise SystemExit(f"mep.h: not understood: {gap.strip()[:80]!r}")
        position = match.end()
        yield match.lastgroup, match[0]


def title(declarations):
    names = []
    for kind, text in declarations:
        bare = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        if kind == "struct":
            names.append(re.search(r"(\w+)\s*;\s*$", bare)[1])
        elif kind == "enum":
            first = re.findall(r"MEP_\w+", bare)
            names.append(first[0] if len(first) == 1 else f"{first[0]}, ..")
        elif kind == "declaration" and bare.startswith("MEP_API"):
            names.append(re.search(r"(mep_\w+)\s*\(", bare)[1] + "()")
        elif kind == "declaration":
            pointer = re.search(r"\(\*(\w+)\)", bare)
            names.append(pointer[1] if pointer else re.search(r"(\w+)\s*;", bare)[1])
        elif kind == "inline":
            names.append(re.search(r"(mep_\w+)\s*\(", bare)[1] + "()")
    return ", ".join(f"`{name}`" for name in names)


def sets_up(kind, text):
    return kind == "inline" and re.search(r"\bmep_(\w+)_defaults\(.*\bmep_\1_init\(", text, flags=re.S) is not None


def render(text):
    out = ["# The C ABI of MEP", "",
           "Written from `include/mep.h` by `docs/make_api.py`; change the header, not this page.", ""]
    group, comment = [], None

    def flush():
        nonlocal group, comment
        if group:
            out.extend([f"### {title(group)}", ""])
            # Inline functions that only set a struct up are named, others shown whole.
            code = "\n".join(t.replace("MEP_API ", "") for kind, t in group if not sets_up(kind, t))
            if code:
                out.extend(["```c", code, "```", ""])
            helpers = [t for kind, t in group if sets_up(kind, t)]
            if helpers:
                names = ", ".join("`%s`" % re.search(r"mep_\w+", t[14:])[0] for t in
                                  (re.sub(r"^static inline \w+ ", "static inline ", h) for h in helpers))
                out.extend([f"{names} (inline) does this with `sizeof`.", ""])
        if comment:
            out.extend([prose(comment), ""])
        group, comment = [], None

    for kind, part in chunks(text):
        if kind == "comment" and re.match(r"/\* -{20}", part):
            flush()
            head, _, rest = comment_text(re.sub(r"-{20,}", "", part)).partition("\n")
            out.extend([f"## {head.lstrip('* ')}", ""])
            comment = rest.strip() or None
            flush()
        elif kind == "comment" and comment_text(part) == "MEP_H":
            continue
        elif kind == "comment":
            flush()
            comment = comment_text(part)
        elif kind == "blank":
            # A blank line ends a group; one after a comment only ends that comment's paragraph.
            if group or comment:
                flush()
        elif kind in ("struct", "enum", "declaration", "inline"):
            group.append((kind, part))
    flush()
    return "\n".join(out).rstrip() + "\n"


def main():
    text = (ROOT / "include/mep.h").read_text()
    page = ROOT / "docs/reference/api.md"
    rendered = render(text)
    missing = [n for n in Header(text).functions if f"`{n}()`" not in rendered]
    if missing:
        raise SystemExit(f"make_api.py: not rendered: {missing}")
    if "--check" in sys.argv[1:]:
        if not page.exists() or page.read_text() != rendered:
            raise SystemExit("docs/reference/api.md is not what docs/make_api.py writes from mep.h; run it")
    else:
        page.write_text(rendered)


if __name__ == "__main__":
    main()
