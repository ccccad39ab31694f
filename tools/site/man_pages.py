"""A man page as Markdown: the requests and escapes that docs/man uses, no others."""

from __future__ import annotations

import re
import shlex

FONTS = {"B": "b", "I": "i", "BI": "bi", "BR": "br", "IB": "ib", "IR": "ir", "RB": "rb", "RI": "ri"}


def plain(text):
    """Text without escapes, with the signs of Markdown escaped."""
    text = re.sub(r"\\f([A-Z])", lambda m: "\x01" if m[1] in "BI" else "\x02", text)
    text = text.replace("\\-", "-").replace("\\&", "").replace("\\|", "").replace("\\(en", "–").replace("\\e", "\\\\")
    text = re.sub(r"\\(?=[ .'])", "", text)
    text = re.sub(r"([*_<\[\]`#|])", r"\\\1", text)
    return re.sub(r"\x01([^\x02]*)\x02?", r"**\1**", text)


def styled(request, arguments):
    """A font request's words; the fonts take turns."""
    try:
        words = shlex.split(arguments.replace("\\", "\\\\").replace("'", "\\'"))
    except ValueError:
        words = arguments.split()
    fonts = FONTS[request]
    if len(fonts) == 1:
        words = [" ".join(words)]
    out = ""
    for at, word in enumerate(words):
        font, text = fonts[at % len(fonts)], plain(word)
        mark = {"b": "**", "i": "*", "r": ""}[font]
        inner = text.strip()
        before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()):]
        out += before + (f"{mark}{inner}{mark}" if inner else "") + after
    # Two runs that touch would read as another mark.
    return re.sub(r"\*{4}|(?<=\w)\*{2}(?=\*\w)", lambda m: m[0][:2] + "\u200b" + m[0][2:], out)


def markdown(name, text):
    """The page `name`, such as mep_run(1)."""
    out, indent, paragraph, in_code, term = [f"# {name}", ""], "", [], False, False

    def flush():
        if paragraph:
            out.extend([indent + " ".join(paragraph), ""])
            paragraph.clear()

    for line in text.splitlines():
        request, _, rest = line.partition(" ")
        if in_code and request != ".fi":
            out.append(indent + plain_code(line))
        elif request == ".fi":
            out.extend([indent + "```", ""])
            in_code = False
        elif request == ".nf":
            flush()
            out.append(indent + "```")
            in_code = True
        elif request in (".SH", ".SS"):
            flush()
            indent = ""
            words = rest.strip('" ')
            out.extend([("## " if request == ".SH" else "### ") + plain(words.capitalize() if words.isupper() else words), ""])
        elif request == ".PP":
            flush()
            indent = ""
        elif request in (".TP", ".TQ"):
            flush()
            indent, term = "", True
        elif request in (".TH", ".RS", ".RE"):
            flush()
        elif request == ".br":
            paragraph.append("<br>")
        elif request[1:] in FONTS and line.startswith("."):
            paragraph.append(styled(request[1:], rest))
        elif line.startswith("."):
            raise SystemExit(f"tools/site/man_pages.py: {name}: the request {line!r} is not known")
        else:
            paragraph.append(plain(line))
        if term and paragraph:
            out.extend([f"{' '.join(paragraph)}", ""])
            out[-2] += "\n"
            paragraph.clear()
            term, indent = False, "    "
            head = out[-2].strip()
            out[-2:] = [head]
            out.append(":   \x03")
    flush()
    page = "\n".join(out)
    # A definition's first paragraph stands behind the colon.
    page = re.sub(r":   \x03\n {4}", ":   ", page).replace(":   \x03", ":   &nbsp;")
    return page.rstrip() + "\n"


def plain_code(line):
    return re.sub(r"\\f[A-Z]|\\[&|]", "", line).replace("\\-", "-").replace("\\e", "\\")
