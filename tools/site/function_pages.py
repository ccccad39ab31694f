"""Man pages of section 3, one a function of mep.h, from what docs/make_api.py reads of it."""

from __future__ import annotations

import re
import textwrap

from api_pages import ROWS, TASKS, task_of
from make_api import Header, blocks, code_of

SINCE = re.compile(r"\s+(0\.\d(?:;[^.]*?0\.\d)*)$")
# Types whose values a page lists when a parameter or a field has the type; the value is the first of the family.
FUNCTIONS = set()  # those that have a page
TYPES = {"mep_dtype_t": "MEP_INT8", "mep_op_t": "MEP_SUM"}
TEXT_OF_DEFAULTS = ("Sets struct_size of the mep_{0}_t to its size and every other field to 0, which means the default. "
                    "Call it before you set fields.")


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text)


def marked(text):
    """Escaped text with names of functions and constants in bold, functions as their pages are called."""
    text = re.sub(r"\b(mep_[a-z_0-9]+)\(\)", r"\1", text)
    text = re.sub(r"`([^` ]+)`", r"\\fI\1\\fR", escaped(text))
    text = re.sub(r"\b(MEP_[A-Z0-9_]+)\b", r"\\fB\1\\fR", text)
    return re.sub(r"\b(mep_[a-z_0-9]+[a-z0-9])\b(?!_)",
                  lambda m: f"\\fB{m[1]}\\fR" + ("(3)" if m[1] in FUNCTIONS else ""), text)


def paragraphs(text):
    """Filled text of a comment; an empty line or an indented list of terms begins something new."""
    out = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if out and not re.match("  \\w", paragraph):
            out.append(".PP")
        for line in paragraph.splitlines():
            term = re.match(r"  (\w+)  +(\S.*)", line)
            if term:
                out += [".TP", f".B {escaped(term[1])}", *filled(term[2])]
            else:
                out += filled(line.strip())
    return out


def filled(text):
    """Lines of at most 76 characters before they are marked."""
    return [marked(line) for line in textwrap.wrap(text, 76, break_long_words=False, break_on_hyphens=False)]


def tidy(comment):
    text = " ".join(re.sub(r"^\s*\* ?", "", comment[2:-2], flags=re.M).split())
    return SINCE.sub(r" Since \1.", text)


def fields_of(struct):
    """(comment before it, declaration, comment behind it) of each field."""
    body = struct[struct.index("{") + 1: struct.rindex("}")]
    fields, before, own_line = [], "", True
    for token in re.finditer(r"/\*.*?\*/|\n|[^;/\n][^;/]*;", body, flags=re.S):
        if token[0] == "\n":
            own_line = True
        elif not token[0].startswith("/*"):
            if token[0].strip():
                fields.append([before, " ".join(token[0].split()), ""])
                before, own_line = "", False
        elif own_line or not fields:
            before = f"{before} {tidy(token[0])}".strip()
        else:
            fields[-1][2] = f"{fields[-1][2]} {tidy(token[0])}".strip()
    return fields


def item(head, text):
    return [".TP", f".B {escaped(head)}", *(filled(text) if text else ["\\&"])]


class Reader:
    """The parts of the header that pages take."""

    def __init__(self, text):
        self.header = Header(text)
        self.functions, self.structs, self.values, self.families = {}, {}, {}, []
        self.results, self.conventions, self.prose = {}, "", {}
        waiting = []
        for _, declarations, comment in blocks(text):
            if not declarations:
                if comment and not self.conventions:
                    self.conventions = comment
                elif comment:
                    waiting.append(comment)
                continue
            task = task_of(declarations)
            self.prose.setdefault(task, []).extend(waiting)
            waiting = []
            self.take(declarations, comment or "", task)
        self.version = ".".join(self.header.defines[f"MEP_VERSION_{part}"] for part in ("MAJOR", "MINOR", "PATCH"))

    def take(self, declarations, comment, task):
        names, callback = [], ""
        for kind, text in declarations:
            if kind == "struct":
                name = re.search(r"(\w+)\s*;\s*$", text)[1]
                self.structs[name] = (comment, fields_of(text))
            elif kind == "enum":
                self.take_values(text, comment)
            elif kind == "inline" or text.startswith("MEP_API"):
                names.append(re.search(r"\b(mep_\w+)\s*\(", text)[1])
                code = text[: text.index("{")].strip() + ";" if kind == "inline" else code_of([(kind, text)])
                code = callback + code
                self.functions[names[-1]] = [code, comment, task, names]

            elif "(*" in text:
                callback = f"{text}\n"

    def take_values(self, text, comment):
        body = text[text.index("{"): text.rindex("}")]
        behind = " ".join(tidy(c) for c in re.findall(r"/\*.*?\*/", text[text.rindex("}"):], flags=re.S))
        family = [name for name, _, _ in values_of(body)]
        self.families.append((family, SINCE.sub(r" Since \1.", " ".join(f"{comment} {behind}".split()))))
        for name, value, words in values_of(body):
            self.values[name] = (value, words)
            if name.startswith(("MEP_ERR_", "MEP_PARTIAL", "MEP_SUCCESS")):
                self.results[name] = words


def values_of(body):
    """(name, value, words) of each constant of an enum."""
    out = []
    for token in re.finditer(r"/\*.*?\*/|(MEP_\w+)\s*=\s*([^,/{}]+)", body, flags=re.S):
        if token[1]:
            out.append((token[1], " ".join(token[2].split()), ""))
        elif out:
            out[-1] = (*out[-1][:2], tidy(token[0]))
    return out


def signature(code):
    """The declaration, with the names of its parameters in italics."""
    marked_code = re.sub(r"(\w+)(?=[,)])(?!\))", r"\\fI\1\\fB", escaped(code))
    marked_code = re.sub(r"(\w+)(?=\);$)", lambda m: m[1] if m[1] == "void" else f"\\fI{m[1]}\\fB", marked_code)
    return [f"\\fB{line}\\fR" for line in marked_code.splitlines()]


def what_it_does(name):
    if name in ROWS:
        return ROWS[name]
    if name.replace("mep_i", "mep_", 1) in ROWS:
        return "nonblocking form of " + name.replace("mep_i", "mep_", 1)
    struct = re.fullmatch(r"mep_(\w+)_defaults", name)
    if not struct:
        raise SystemExit(f"tools/site/function_pages.py: say what {name} does, in DOES of api_pages.py")
    return f"set a mep_{struct[1]}_t to its defaults"


def description(reader, name):
    """The text of a page and the function's first version."""
    _, comment, task, group = reader.functions[name]
    setter = re.fullmatch(r"mep_(\w+)_defaults", name)
    if setter and f"mep_{setter[1]}_t" in reader.structs:
        return TEXT_OF_DEFAULTS.format(setter[1]), ""
    since = SINCE.search(comment)
    text = comment[: since.start()] if since else comment
    if len(group) > 3:
        blocking = name.replace("mep_i", "mep_", 1)
        text = f"{name}() begins what {blocking}() does. Its page says what holds for the operation.\n\n{text}"
    return "\n\n".join([text, *reader.prose.get(task, [])]), since[1] if since else ""


def results_of(reader, name, text):
    kind = re.match(rf"(?:static inline )?(.*?)\s*\b{name}\b", reader.functions[name][0], flags=re.S)[1]
    if kind == "void":
        return ["None."]
    if kind != "mep_result_t":
        return filled(f"{kind}, as described above.")
    out = filled("MEP_SUCCESS (0), or a negative number, an error; mep_result_string() names it, and mep_last_error() has its text. "
                 "MEP_ERR_INVALID_ARGUMENT and MEP_ERR_FORKED are possible in every call.")
    for result, words in reader.results.items():
        if re.search(rf"\b{result}\b", text):
            out += item(result, words)
    return out


def structs_of(reader, code):
    return [name for name in reader.structs if re.search(rf"\b{name}\b", code)]


def constants_of(reader, code, text):
    """(names, words) of the enums that a page needs: those of its types, and what its text names."""
    chosen = []
    for family, words in reader.families:
        starts = [start for start in re.findall(r"(MEP_[A-Z0-9_]+_)\*", text) if family[0].startswith(start)]
        named = [name for name in family if re.search(rf"\b{name}\b", text)]
        if family[0] in reader.results:
            continue
        if starts or len(named) == len(family) or any(kind in code and family[0] == first for kind, first in TYPES.items()):
            chosen.append((family, words))
        elif named and family[0] not in TYPES.values():
            chosen.append((named, ""))
    return chosen


def page(reader, name):
    code, _, task, group = reader.functions[name]
    text, since = description(reader, name)
    out = [f'.TH {name.upper()} 3 "2026" "MEP {reader.version}" "MEP"', ".SH NAME", f"{name} \\- {escaped(what_it_does(name))}",
           ".SH SYNOPSIS", ".nf", "\\fB#include <mep.h>\\fR", ".sp", *signature(code), ".fi", ".PP", "Link with \\fB\\-lmep\\fR.",
           ".SH DESCRIPTION", *paragraphs(text)]
    said = text
    for struct in structs_of(reader, code):
        comment, fields = reader.structs[struct]
        out += [f".SH FIELDS OF {struct}", *paragraphs(SINCE.sub(r" Since \1.", comment))]
        said += comment
        for before, declaration, behind in fields:
            if before and behind:
                out += [".PP", *filled(before)]
            out += item(declaration, behind or before)
            said += f" {before} {behind}"
    constants = constants_of(reader, code, said)
    if constants:
        out.append(".SH CONSTANTS")
    for at, (family, words) in enumerate(constants):
        out += ([".PP"] if at and (words or not reader.values[family[0]][1]) else []) + filled(words)
        bare = [f"\\fB{each} = {escaped(reader.values[each][0])}\\fR" for each in family if not reader.values[each][1]]
        out += [*([".sp"] if words else []), ".nf", *bare, ".fi"] if bare else []
        for each in family:
            value, meaning = reader.values[each]
            out += item(f"{each} = {value}", meaning) if meaning else []
    out += [".SH RETURN VALUE", *results_of(reader, name, text)]
    if since:
        out += [".SH HISTORY", f"Since MEP {escaped(since)}."]
    out += [".SH SEE ALSO", *also(reader, name, text, group)]
    return "\n".join(out) + "\n"


def also(reader, name, text, group):
    """The functions that the page names and that belong to it."""
    names = [*re.findall(r"\bmep_\w+", text), *(group if len(group) < 4 else []), f"mep_i{name[4:]}", f"mep_{name[5:]}"]
    names += [f"{struct[:-2]}_defaults" for struct in structs_of(reader, reader.functions[name][0])]
    known = [each for each in dict.fromkeys(names) if each in reader.functions and each != name]
    return [f".BR {each} (3)," for each in [*known, "mep"][:-1]] + [".BR mep (3)"]


def overview(reader):
    """mep(3): what holds for every function, and the functions by task."""
    lead, _, rest = reader.conventions.partition("\n\n")
    out = [f'.TH MEP 3 "2026" "MEP {reader.version}" "MEP"', ".SH NAME", f"mep \\- {escaped(lead.partition(': ')[2].rstrip('.'))}",
           ".SH SYNOPSIS", ".nf", "\\fB#include <mep.h>\\fR", ".fi", ".PP", "Link with \\fB\\-lmep\\fR.", ".SH DESCRIPTION",
           *conventions(rest), ".SH FUNCTIONS"]
    for task, heading, _, _ in TASKS:
        out.append(f".SS {escaped(heading)}")
        for name, (_, _, its, _) in reader.functions.items():
            if its == task:
                out += [".TP", f".BR {name} (3)", escaped(what_it_does(name))]
    programs = [f".BR {program} (1)" for program in ("mep_run", "mep_info", "mep_perf", "mep_chaos")]
    return "\n".join([*out, ".SH SEE ALSO", ",\n".join(programs)]) + "\n"


def conventions(text):
    """The list of terms of the header's first comment, each item filled."""
    return paragraphs(re.sub(r"\n {4,}", " ", text))


def pages(text):
    """{file name: page} of section 3"""
    reader = Reader(text)
    FUNCTIONS.update(reader.functions)
    made = {f"{name}.3": page(reader, name) for name in reader.functions}
    return {"mep.3": overview(reader), **made}
