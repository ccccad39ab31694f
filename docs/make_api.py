#!/usr/bin/env python3
"""Writes docs/reference/api.md from include/mep.h: make_api.py [--check | --pages FOLDER | --man FOLDER].

--check writes nothing and fails when docs/reference/api.md is not what would be written. --pages writes the same in
pages by task, with an index, as `./dev docs` shows it (tools/site/api_pages.py). --man writes man pages of section 3, one a
function, as they are installed (tools/site/function_pages.py). The reader of mep.h
below is also what the ABI tests use. It understands the C that mep.h is written in, not all of C.
"""
import importlib
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
            if re.fullmatch(r"(0x)?[0-9a-f]+u?", value)
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
        elif kind == "define":
            names.append(text.split()[1])
    return ", ".join(f"`{name}`" for name in names)


def sets_up(kind, text):
    return kind == "inline" and re.search(r"\bmep_(\w+)_defaults\(.*\bmep_struct_init\(", text, flags=re.S) is not None


def code_of(declarations):
    """The C of declarations; inline functions that only set a struct up are not shown."""
    shown = [t for kind, t in declarations if not sets_up(kind, t)]
    return "\n".join(re.sub(r"\n {8}", "\n", t[8:]) if t.startswith("MEP_API ") else t for t in shown)


def helpers_of(declarations):
    """The names of the inline functions that only set a struct up."""
    inline = [re.sub(r"^static inline \w+ ", "static inline ", t) for kind, t in declarations if sets_up(kind, t)]
    return [re.search(r"mep_\w+", t[14:])[0] for t in inline]


def blocks(text):
    """(section, declarations, comment) in the order of the file. A section has a name and no declarations; prose
    that belongs to no declaration has only a comment."""
    group, comment = [], None
    for kind, part in chunks(text):
        if kind == "comment" and comment_text(part) == "MEP_H":
            continue
        # A blank line ends a group; one after a comment only ends that comment's paragraph.
        if kind in ("comment", "blank") and (group or comment):
            yield None, group, comment
            group, comment = [], None
        if kind == "comment" and re.match(r"/\* -{20}", part):
            head, _, rest = comment_text(re.sub(r"-{20,}", "", part)).partition("\n")
            yield head.lstrip("* "), [], rest.strip() or None
        elif kind == "comment":
            comment = comment_text(part)
        elif kind in ("struct", "enum", "declaration", "inline"):
            group.append((kind, part))
        elif kind == "cpp" and comment and re.match(r"#define MEP_(?!H$|API|VERSION)", part):
            group.append(("define", part.rstrip()))
    if group or comment:
        yield None, group, comment


def render(text):
    out = ["# The C ABI of MEP", "",
           "Written from `include/mep.h` by `docs/make_api.py`; change the header, not this page.", ""]
    for section, group, comment in blocks(text):
        if section:
            out.extend([f"## {section}", ""])
        if group:
            out.extend([f"### {title(group)}", ""])
            if code_of(group):
                out.extend(["```c", code_of(group), "```", ""])
            if helpers_of(group):
                names = ", ".join(f"`{name}`" for name in helpers_of(group))
                out.extend([f"{names} (inline) does this with `sizeof`.", ""])
        if comment:
            out.extend([prose(comment), ""])
    return "\n".join(out).rstrip() + "\n"


def main():
    text = (ROOT / "include/mep.h").read_text()
    page = ROOT / "docs/reference/api.md"
    rendered = render(text)
    missing = [n for n in Header(text).functions if f"`{n}()`" not in rendered]
    if missing:
        raise SystemExit(f"make_api.py: not rendered: {missing}")
    if sys.argv[1:2] in (["--pages"], ["--man"]):
        sys.path.insert(0, str(ROOT / "tools/site"))
        maker = importlib.import_module("api_pages" if sys.argv[1] == "--pages" else "function_pages")
        for name, content in maker.pages(text).items():
            file = Path(sys.argv[2]) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
    elif "--check" in sys.argv[1:]:
        if not page.exists() or page.read_text() != rendered:
            raise SystemExit("docs/reference/api.md is not what docs/make_api.py writes from mep.h; run it")
    else:
        page.write_text(rendered)


if __name__ == "__main__":
    main()
