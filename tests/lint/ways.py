"""Checks the ways that documents show: tables that follow a call from file to file.

A way is a table whose head is "| file | defines | calls |". Each row names a file, the functions that are
defined there (declared, in a header of include/), and those that it calls next. A file that does not exist, a
function that is not defined there, a call that is not made there, and a row whose functions the row before does not
call by the same full names are findings. The pages of LIMITS must have their ways, each in that many files at most.
"""

import re

HEAD = re.compile(r"^\|\s*file\s*\|\s*defines\s*\|\s*calls\s*\|\s*$")
ROW = re.compile(r"^\|(.*)\|(.*)\|(.*)\|\s*$")
NAME = re.compile(r"`([\w:~]+)`")
# A page: the function with which one of its ways begins in include/mep.h, and how many files such a way may take.
LIMITS = {"docs/design/way-of-an-allreduce.md": ("mep_allreduce", 11), "docs/design/way-of-a-dispatch.md": ("mep_dispatch", 8)}
DOCUMENTS = ("README.md", "docs/**/*.md")


def bare(text):
    """Code without comments, literals and preprocessor lines."""
    text = re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', " ", text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", " ", text, flags=re.M)


def after_arguments(text, opening):
    """The text behind the parenthesis that matches the one at `opening`."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[at + 1:]
    return ""


def uses(text, name):
    """(is a definition, is a declaration) of each place in bare code that names the function."""
    last = name.rpartition("::")[2]
    for match in re.finditer(rf"\b{re.escape(last)}\b", text):
        behind = text[match.end():]
        opening = re.match(r"\s*\(", behind)
        before = re.sub(r"(?:\w+\s*::\s*)+$", "", text[:match.start()]).rstrip()
        if not opening:
            yield False, False
            continue
        rest = after_arguments(text, match.end() + opening.end() - 1)
        rest = re.sub(r"^(?:\s*(?:const|noexcept|override|final)\b)*\s*(?:->\s*[\w:<>*& ]+)?\s*", "", rest, count=1)
        # In a declaration a type stands before the name; in a call an operator or the end of a statement.
        follows_type = bool(re.search(r"[\w>*&\])]$", before))
        follows_type &= not re.search(r"(?:->|&&|\|\||\b(?:return|case|else|co_return|throw))$", before)
        follows_type &= not before.endswith(")") or "__launch_bounds__" in before[-120:]
        yield follows_type and rest.startswith("{"), follows_type and rest.startswith(";")


def defines(text, name, is_public):
    scope = name.rpartition("::")[0]
    own = re.compile(rf"\b{re.escape(scope)}::{re.escape(name.rpartition('::')[2])}\b") if scope else None
    if scope and not own.search(text) and not re.search(rf"\b(?:class|struct)\s+{re.escape(scope)}\b", text):
        return False
    return any(definition or (declaration and is_public) for definition, declaration in uses(text, name))


def calls(text, name):
    return any(not definition and not declaration for definition, declaration in uses(text, name))


def ways_of(text):
    """The ways of a page: lists of (line, file, defined, called)."""
    found, rows = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if HEAD.match(line):
            rows = []
            found.append(rows)
        elif rows is not None and (match := ROW.match(line)):
            if not set(line) <= set("|-: "):
                file, defined, called = match.groups()
                rows.append((number, file.strip(" `"), NAME.findall(defined), NAME.findall(called)))
        else:
            rows = None
    return found


def check_row(root, row):
    """Findings (line, text) about one row by itself."""
    number, file, defined, called = row
    path = root / file
    if not path.is_file():
        yield number, f"{file} does not exist"
        return
    text = bare(path.read_text(encoding="utf-8", errors="replace"))
    if not defined:
        yield number, f"the row of {file} names no function that is defined there"
    for name in defined:
        if not defines(text, name, file.startswith("include/")):
            yield number, f"{name} is not defined in {file}"
    for name in called:
        if not calls(text, name):
            yield number, f"{name} is not called in {file}"


def check_way(root, rows):
    for row in rows:
        yield from check_row(root, row)
    for (_, file, declared, called), (number, _, defined, _) in zip(rows, rows[1:]):
        # A header only declares what the next file defines.
        leads_to = declared if file.startswith("include/") else called
        if not set(defined) & set(leads_to):
            yield number, f"nothing of {', '.join(defined)} is what {file} calls"


def check_limits(ways, begin, limit):
    own = [rows for rows in ways if rows and rows[0][1].startswith("include/") and begin in rows[0][2]]
    if not own:
        yield 1, f"the way of {begin} is missing"
    for rows in own:
        if len(rows) > limit:
            yield rows[0][0], f"the way of {begin} takes {len(rows)} files; at most {limit}"


def check_ways(root):
    """All findings as (file, line, text)."""
    findings = []
    for pattern in DOCUMENTS:
        for path in sorted(root.glob(pattern)):
            name = path.relative_to(root).as_posix()
            ways = ways_of(path.read_text(encoding="utf-8"))
            for rows in ways:
                findings += [(name, number, text) for number, text in check_way(root, rows)]
            if name in LIMITS:
                findings += [(name, number, text) for number, text in check_limits(ways, *LIMITS[name])]
    findings += [(name, 1, "is missing") for name in LIMITS if not (root / name).is_file()]
    return findings
