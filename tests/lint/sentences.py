"""Checks how sentences begin, in comments and in Markdown: with their subject, not with a clause that stands for it.

A sentence begins at the start of a line, item or cell, as far as its capital tells, and behind a full stop, colon or
semicolon.
Headings, head rows of tables, code and quoted text are not looked at.
"""

import re

import documents

OPENERS = "Who|Whoever|Of|What|As"
# Records of what was: they stay as they were written.
RECORDS = ("CHANGELOG.md", "docs/measurements/")
# Beginnings of paths that have such sentences still. A line goes when its files are done; none is added.
NOT_DONE = ("src/core/staged/", "src/kernels/cuda/coll/stage_")

C_SUFFIXES = {".c", ".h", ".cpp", ".hpp", ".cu", ".cuh", ".inc", ".def", ".pml", ".map"}
STRING = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
TOKENS = {
    "c": re.compile(r'R"(?P<mark>\w*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n]){1,4}\'|(?P<comment>//[^\n]*|/\*.*?\*/)',
                    re.S),
    # A string that begins a line is a docstring.
    "python": re.compile(r'(?P<comment>^[ \t]*r?(?P<quote>"""|\'\'\').*?(?P=quote)|#[^\n]*)|(?P<other>"""|\'\'\').*?(?P=other)|' + STRING,
                         re.S | re.M),
    "fortran": re.compile(r'"[^"\n]*"|\'[^\'\n]*\'|(?P<comment>![^\n]*)'),
    "shell": re.compile(r'"(?:\\.|[^"\\])*"|\'[^\'\n]*\'|(?P<comment>(?<!\S)#[^\n]*)'),
}
# The signs at the beginning and the end of a comment's lines.
MARK = re.compile(r"^[ \t]*(?://+<?|/\*+<?|\*+/?|#+|!+|r?\"\"\"|r?''')|(?:\*/|\"\"\"|''')[ \t]*$", re.M)
QUOTED = re.compile(r'"[^"\n]*"|`[^`\n]*`')
BEGINNING = re.compile(r"(?:^[ \t]*(?:(?:[-*]|\d+\.)[ \t]+)?|[.:;!?][\"')*]*\s+|\|[ \t]*)[*_(]*"
                       rf"(?P<opener>{OPENERS})\b(?!::|[-=/(])", re.M)


def language_of(name):
    """The name of a language in TOKENS; "markdown"; None: not looked at."""
    suffix = name[name.rfind("."):]
    if suffix == ".md":
        return "markdown"
    if suffix in C_SUFFIXES:
        return "c"
    if suffix in (".cmake", ".sh") or name.rpartition("/")[2] in ("CMakeLists.txt", "dev"):
        return "shell"
    return {".py": "python", ".f90": "fortran"}.get(suffix)


def prose_of(text):
    """Markdown without code, headings, quotations and head rows of tables, everything else in its place."""
    text = re.sub(r"^(?:#{1,6} |>)[^\n]*$", lambda m: documents.blank(m.group(0)), documents.without_code(text), flags=re.M)
    return re.sub(r"^\|[^\n]*\n(?=\|[ :|-]+$)", lambda m: documents.blank(m.group(0)), text, flags=re.M)


def openers_in(text):
    """(offset, opener) of the sentences that begin with one of OPENERS."""
    text = QUOTED.sub(lambda m: m.group(0)[0] + "_" * (len(m.group(0)) - 2) + m.group(0)[-1], text)
    return [(match.start("opener"), match.group("opener")) for match in BEGINNING.finditer(text)]


def check_text(name, text):
    """(line, text) of the findings in one file."""
    language = language_of(name)
    if language is None or name.startswith(RECORDS + NOT_DONE):
        return
    if language == "markdown":
        pieces = [(0, prose_of(text))]
    else:
        pieces = [(match.start(), MARK.sub(lambda m: documents.blank(m.group(0)), match.group("comment")))
                  for match in TOKENS[language].finditer(text) if match.group("comment")]
    for begin, piece in pieces:
        for offset, opener in openers_in(piece):
            yield text.count("\n", 0, begin + offset) + 1, f'the sentence begins with "{opener}"; begin with its subject'


def check_sentences(root):
    """All findings as (file, line, text)."""
    return [(name, number, finding) for name, path in documents.text_files(root)
            for number, finding in check_text(name, path.read_text(encoding="utf-8", errors="replace"))]
