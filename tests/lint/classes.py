"""Counts the data members of the classes of src/.

A class with private data (members whose names end in an underscore) has at most MAX_FIELDS data members, so that one
can say what it owns. LARGE lists those that have more, with their number: it falls with the class, and never grows.
"""

import re

MAX_FIELDS = 20
# (file, class): its data members.
LARGE = {
    ("src/core/coll/eager_ring.hpp", "EagerRing"): 27,
    ("src/core/coll/pipeline.hpp", "Pipeline"): 21,
    ("src/core/ep/cuda/gpu_buffers.hpp", "GpuBuffers"): 24,
    ("src/core/membership/membership.hpp", "Membership"): 43,
    ("src/transport/tcp/peer.hpp", "TcpPeer"): 23,
    ("src/transport/verbs/peer.hpp", "Peer"): 23,
    ("src/transport/verbs/verbs_transport.hpp", "VerbsTransport"): 24,
}

HEAD = re.compile(r"\b(?:class|struct|union)\s+(?:\[\[[^\]]*\]\]\s*|alignas\s*\([^()]*\)\s*)*([\w:]+)(?:\s+final)?\s*"
                  r"(?::[^;{}()]*)?\{")
ACCESS = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
NO_DATA = re.compile(r"\s*(?:using|friend|static|typedef|template|enum|class|struct|union|constexpr|explicit|virtual)\b")


def blanked(text):
    """Code without literals and preprocessor lines; the lines stay."""
    text = re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', "0", text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: "\n" * match.group(0).count("\n"), text, flags=re.M)


def closing(text, opening):
    """Where the brace at `opening` is closed."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, opening):
        depth += 1 if match.group(0) == "{" else -1
        if depth == 0:
            return match.start()
    return len(text)


def without(text, opening, closing_one):
    """Text without what such brackets hold, and the brackets, from the inside out."""
    pattern = re.compile(rf"{re.escape(opening)}[^{re.escape(opening + closing_one)}]*{re.escape(closing_one)}")
    while (shorter := pattern.sub(" ", text)) != text:
        text = shorter
    return text


def statements(body):
    """The statements of a class itself: what braces hold is "{}", and ends the statement of a function."""
    kept, at = [], 0
    while (opening := body.find("{", at)) >= 0:
        end = closing(body, opening)
        kept.append(body[at:opening] + "{}")
        at = end + 1
    text = ACCESS.sub(";", "".join(kept) + body[at:])
    start = 0
    for match in re.finditer(r";|\{\}(?!\s*[;,{=])", text):
        if match.group(0) == ";" or is_body(text[start:match.start()]):
            yield text[start:match.end()]
            start = match.end()


def is_body(before):
    """Whether braces behind this are the body of a function, not a part of an initializer."""
    head = without(re.sub(r"\boperator\s*[^\s\w(]+", "operator ", before), "<", ">")
    return "(" in head.split("=")[0]


def fields_of_statement(text):
    """Names of the data members that one statement of a class declares."""
    if not text.endswith(";") or NO_DATA.match(text) or re.search(r"\boperator\b", text):
        return []
    text = re.sub(r"\[\[[^\]]*\]\]|\balignas\s*\([^()]*\)", " ", text[:-1])
    text = re.sub(r"(\(\s*)\*\s*(\w+)\s*(\))\s*\([^()]*\)", r" \2", without(text, "<", ">"))
    names = []
    for part in re.sub(r"=[^,]*\([^()]*\)", "", without(text, "[", "]")).split(","):
        declarator = re.split(r"[={:](?!:)", re.sub(r"\w*\s*::\s*", "", part))[0].strip()
        if "(" in declarator:
            return []
        match = re.search(r"(\w+)$", declarator)
        if match:
            names.append(match.group(1))
    return names


def classes_of(text):
    """(line, name, names of data members) of each class that is defined in code without comments."""
    text = blanked(text)
    for head in HEAD.finditer(text):
        if re.search(r"\benum\s*$", text[:head.start()]):
            continue
        body = text[head.end():closing(text, head.end() - 1)]
        yield text.count("\n", 0, head.start()) + 1, head.group(1), [
            name for statement in statements(body) for name in fields_of_statement(statement)]


def check_classes(code, large=None):
    """Findings (file, line, text) of classes with too many data members, and of entries that are not true."""
    large = dict(LARGE if large is None else large)
    for file, text in code.items():
        if not file.startswith("src/"):
            continue
        for number, name, fields in classes_of(text):
            listed = large.pop((file, name), None)
            count = len(fields)
            has_private = any(field.endswith("_") for field in fields)
            if listed is None:
                if has_private and count > MAX_FIELDS:
                    yield file, number, f"{name} has {count} data members, at most {MAX_FIELDS}; give some to a class of their own"
            elif count > listed:
                yield file, number, f"{name} has {count} data members, {listed} at most; it only shrinks"
            elif not has_private or count <= MAX_FIELDS:
                yield file, number, f"{name} has {count} data members; take it out of LARGE in tests/lint/classes.py"
            elif count < listed:
                yield file, number, f"{name} has {count} data members; lower its {listed} in LARGE in tests/lint/classes.py"
    for file, name in large:
        yield "tests/lint/classes.py", 1, f"{file} defines no {name}; take it out of LARGE"
