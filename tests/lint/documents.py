"""Checks of the documents: links lead somewhere, files that comments name exist, code from a file is as it
is there, every result has its row, every page of docs/ is in the navigation of the site, every folder of src/ has its
README.md.

Markdown is read as GitHub reads it, as far as links and headings go. Code blocks and inline code hold no links.
"""

import os
import re

# Where documents and mentions of documents are looked for, besides the files of the root.
FOLDERS = ("src", "include", "perf", "tests", "examples", "bindings", "cmake", "tools", "docs")
TEXT_SUFFIXES = {".c", ".h", ".cpp", ".hpp", ".cu", ".cuh", ".inc", ".def", ".py", ".f90", ".pml", ".cmake", ".sh",
                 ".md", ".txt", ".map", ".1"}
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
MENTION = re.compile(r"(?<![\w./-])docs/[\w./-]*\w\.(?:md|py|1)\b")
QUOTE = re.compile(r"^<!-- from (\S+) -->\n```\w*\n(.*?)^```$", re.M | re.S)
RESULT = re.compile(r"^\s*(MEP_SUCCESS|MEP_PARTIAL|MEP_IN_PROGRESS|MEP_ERR_\w+)\s*=\s*(-?\d+)", re.M)
RESULT_ROW = re.compile(r"^\|\s*`(MEP_\w+)`\s*\|\s*(-?\d+)\s*\|", re.M)
ERRORS_PAGE = "docs/reference/errors.md"
SITE = "mkdocs.yml"
NAMED_FILE = re.compile(r"`([\w./-]+\.(?:c|h|hpp|cpp|cu|cuh|def|map|md|pml|py|cmake|txt))`")


def blank(text):
    """The same lines and columns without a character of it."""
    return re.sub(r"[^\n]", " ", text)


def without_code(text):
    """Markdown without fenced blocks, indented blocks behind an empty line, and inline code."""
    text = re.sub(r"^(```|~~~).*?^\1[^\n]*$", lambda m: blank(m.group(0)), text, flags=re.M | re.S)
    text = re.sub(r"(?<=\n\n)(?: {4,}[^\n]*\n)+", lambda m: blank(m.group(0)), text)
    return re.sub(r"(`+)(?:(?!\1).)+?\1", lambda m: blank(m.group(0)), text)


def anchors_of(text):
    """The names that headings give to links."""
    found = {}
    text = re.sub(r"^(```|~~~).*?^\1[^\n]*$", lambda m: blank(m.group(0)), text, flags=re.M | re.S)
    for match in re.finditer(r"^#{1,6}\s+(.*?)\s*#*\s*$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1))
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        if count:
            found[f"{name}-{count}"] = 1
    return set(found)


def text_files(root):
    """(name, path) of the root's text files and of those in FOLDERS."""
    paths = [path for path in root.iterdir() if path.is_file() and (path.suffix in TEXT_SUFFIXES or path.name == "dev")]
    for folder in FOLDERS:
        paths += [path for path in (root / folder).rglob("*") if path.suffix in TEXT_SUFFIXES and path.is_file()]
    for path in sorted(paths):
        if "__pycache__" not in path.parts:
            yield path.relative_to(root).as_posix(), path


def check_links(root, name, text):
    """Findings about the relative links of one page."""
    for match in LINK.finditer(without_code(text)):
        target = match.group(1)
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        number = text.count("\n", 0, match.start()) + 1
        file, _, anchor = target.partition("#")
        path = root / name if not file else root / os.path.dirname(name) / file
        if not path.exists():
            yield name, number, f"the link {target} leads nowhere"
        elif root.resolve() not in [path.resolve(), *path.resolve().parents]:
            yield name, number, f"the link {target} leaves the tree"
        elif anchor and path.suffix == ".md" and anchor not in anchors_of(path.read_text(encoding="utf-8")):
            yield name, number, f"the link {target} names a heading that is not there"


def check_quotes(root, name, text):
    """Findings about code blocks that say which file they are from: `<!-- from FILE -->` on the line before."""
    for match in QUOTE.finditer(text):
        file = root / match.group(1)
        number = text.count("\n", 0, match.start()) + 1
        if not file.is_file():
            yield name, number, f"{match.group(1)} does not exist"
        elif match.group(2) not in file.read_text(encoding="utf-8"):
            yield name, number, f"the block is not a part of {match.group(1)}"


def check_mentions(root, name, text):
    """Findings about documents that a file names by their path from the root."""
    for match in MENTION.finditer(text):
        if not (root / match.group(0)).is_file():
            yield name, text.count("\n", 0, match.start()) + 1, f"{match.group(0)} does not exist"


def check_results(root):
    """The results of mep.h against the rows of their page."""
    header, page = root / "include/mep.h", root / ERRORS_PAGE
    if not page.is_file() or not header.is_file():
        return
    declared = dict(RESULT.findall(header.read_text(encoding="utf-8")))
    listed = dict(RESULT_ROW.findall(page.read_text(encoding="utf-8")))
    for result, number in declared.items():
        if listed.get(result) != number:
            yield ERRORS_PAGE, 1, f"{result} = {number} of include/mep.h has no row (| `{result}` | {number} | ...)"
    for result in sorted(listed.keys() - declared.keys()):
        yield ERRORS_PAGE, 1, f"{result} has a row but is not in include/mep.h"


def check_site(root):
    """The pages of docs/ against the navigation of the site."""
    site = root / SITE
    if not site.is_file():
        return
    named = set(re.findall(r"^ +- (?:[^:\n]+: )?([\w./-]+\.md)$", site.read_text(encoding="utf-8"), re.M))
    pages = {path.relative_to(root / "docs").as_posix() for path in (root / "docs").rglob("*.md")}
    for page in sorted(pages - named):
        yield SITE, 1, f"docs/{page} has no line in nav"


def check_readmes(root):
    """A README.md in each folder of src/ with code, and the files that those of src/ and tests/ name: beside the README.md,
    or by their path from src/ or from the root."""
    sources = [path for suffix in (".cpp", ".cu") for path in (root / "src").rglob("*" + suffix)]
    for folder in sorted({path.parent.relative_to(root).as_posix() + "/" for path in sources}):
        if not (root / folder / "README.md").is_file():
            yield folder + "README.md", 1, "is missing; say what the folder is for, what to read first and what must not break"
    for page in sorted(path for top in ("src", "tests") for path in (root / top).rglob("README.md")):
        name = page.relative_to(root).as_posix()
        text = page.read_text(encoding="utf-8", errors="replace")
        for match in NAMED_FILE.finditer(text):
            if not any((place / match.group(1)).is_file() for place in (page.parent, root / "src", root)):
                yield name, text.count("\n", 0, match.start()) + 1, f"{match.group(1)} does not exist"


def check_documents(root):
    """All findings as (file, line, text)."""
    findings = [*check_results(root), *check_site(root), *check_readmes(root)]
    for name, path in text_files(root):
        text = path.read_text(encoding="utf-8", errors="replace")
        findings += check_mentions(root, name, text)
        if path.suffix == ".md":
            findings += check_links(root, name, text)
            findings += check_quotes(root, name, text)
    return findings
