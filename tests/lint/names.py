"""Checks that what comments of src/ and pages of docs/ name is there: FILE.cpp, Class::member and name().

A file is named by the end of its path. A member stands in a file that declares its class or a base of it. A function
stands in code, wherever that is. Records are not looked at, nor the files that guides name: they are the reader's.
"""

import re

import documents
import sentences

FILE = re.compile(r"(?<![\w./*<{$-])((?:[\w-]+/)*[a-z][\w-]*\.(?:cpp|hpp|cu|cuh|def|inc|pml|py|md|cmake|f90))\b(?![\w(/*-])")
MEMBER = re.compile(r"(?<![\w:.])((?:\w+::)*)(\w+)::(~?[A-Za-z_]\w+)\b(?!::)")
CALL = re.compile(r"(?<![\w:.>$])(?:\w+(?:::|\.|->))*([A-Za-z_]\w{2,})\(\)")
DECLARED = re.compile(r"\b(?:class|struct|union|enum(?:\s+class)?|namespace|using)\s+(?:MEP_\w+\s+)?((?:\w+::)*\w+)\b([^;{}()=]*)")
WORD = re.compile(r"[A-Za-z_]\w*")
FOREIGN = {"std", "cuda", "torch", "c10", "at"}  # namespaces of other libraries
GUIDES = ("docs/guide/", "docs/README.md")
CODE = {"c", "python", "fortran", "shell"}


def code_words(name, text):
    """Text of a file without its comments."""
    tokens = sentences.TOKENS[sentences.language_of(name)]
    return tokens.sub(lambda m: " " if m.groupdict().get("comment") else m.group(0), text)


class Tree:
    """All that can be named: paths, words of code, and by class the words of the files that declare it and its bases."""

    def __init__(self, root):
        self.files = {name: path.read_text(encoding="utf-8", errors="replace") for name, path in documents.text_files(root)}
        self.ends = {"/".join(parts[at:]) for parts in (name.split("/") for name in self.files) for at in range(len(parts))}
        self.words, self.members, self.bases = set(), {}, {}
        for name, text in self.files.items():
            if sentences.language_of(name) in CODE:
                code = code_words(name, text)
                words = set(WORD.findall(code))
                self.words |= words
                if not name.startswith(("src/", "include/")):
                    continue
                for scope, rest in DECLARED.findall(code):
                    for part in scope.split("::"):
                        self.members.setdefault(part, set()).update(words)
                        self.bases.setdefault(part, set()).update(WORD.findall(rest))

    def has_member(self, scope, member, seen=()):
        return member in (self.words if scope == "mep" else self.members.get(scope, ())) or any(
            self.has_member(base, member, (*seen, scope)) for base in self.bases.get(scope, ()) if base not in (*seen, scope))

    def findings_in(self, text, files=True):
        """(offset, text) of what a comment or page names and is not there."""
        for match in FILE.finditer(text) if files else ():
            if match.group(1) not in self.ends:
                yield match.start(), f"no file is named {match.group(1)}"
        for match in MEMBER.finditer(text):
            outer, scope, member = match.groups()
            if outer.split("::")[0] not in FOREIGN and scope not in FOREIGN and not self.has_member(scope, member.lstrip("~")):
                yield match.start(), f"{scope} has no {member}" if scope in self.members else f"there is no class {scope}"
        for match in CALL.finditer(text):
            if match.group(1) not in self.words:
                yield match.start(), f"there is no function {match.group(1)}()"


def check_names(root):
    """All findings as (file, line, text)."""
    findings, tree = [], Tree(root)
    for name, text in tree.files.items():
        if name.startswith("docs/") and name.endswith(".md") and not name.startswith(sentences.RECORDS):
            pieces = [(0, text)]
        elif name.startswith("src/") and sentences.language_of(name) == "c":
            pieces = [(match.start(), match.group()) for match in sentences.TOKENS["c"].finditer(text) if match.group("comment")]
        else:
            continue
        for begin, piece in pieces:
            findings += [(name, text.count("\n", 0, begin + at) + 1, finding) for at, finding in tree.findings_in(piece, not name.startswith(GUIDES))]
    return findings
