"""Hooks of MkDocs for mkdocs.yml: pages that are made, links that leave docs/, and calls that lead to their page."""

from __future__ import annotations

import os
import pathlib
import re
import sys
from typing import Any

from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools/site"), str(ROOT / "docs"), str(ROOT / "tests/lint")]
import api_pages  # noqa: E402
import documents  # noqa: E402
import man_pages  # noqa: E402
import python_pages  # noqa: E402

# Files outside docs/ that have a page although no page links them.
ALSO = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md",
        *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs/man").glob("*.1")))]
LANGUAGES = {".c": "c", ".h": "c", ".cpp": "cpp", ".hpp": "cpp", ".cu": "cuda", ".py": "python", ".f90": "fortran", ".cmake": "cmake",
             ".def": "c", ".sh": "sh", ".json": "json"}
FOREIGN_SCRIPT = "https://unpkg.com/iframe-worker/shim"
NOT_SEARCHED = ("reference/api.md", "files/CHANGELOG.md")
# How a page's hits are weighed: the first beginning of its path that fits.
WEIGHTS = [("guide/", 2), ("reference/c/collectives.md", 2), ("reference/environment.md", 3), ("reference/python/", 0.5), ("measurements/", 0.3), ("files/docs/", 0.7), ("files/", 0.3),
           ("design/", 0.5)]


def page_of(path: pathlib.Path) -> str:
    """The page for a file of the tree: its place in the site's sources."""
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("docs/") and not name.startswith("docs/man/") and path.is_file():
        return name[len("docs/"):]
    if path.is_dir():
        return f"files/{name}/index.md" if not (path / "README.md").exists() else page_of(path / "README.md")
    return f"files/{name}" if name.endswith(".md") else f"files/{name}.md"


def targets(source: pathlib.Path, text: str) -> "list[tuple[re.Match, pathlib.Path, str]]":
    """(match, file, anchor) of the links of a file's text that stay in the tree."""
    found = []
    for match in documents.LINK.finditer(documents.without_code(text)):
        target, _, anchor = match[1].partition("#")
        if target and not re.match(r"[a-z][a-z+.-]*:", target):
            path = pathlib.Path(os.path.normpath(source.parent / target))
            if path.exists() and ROOT in [path, *path.parents]:
                found.append((match, path, anchor))
    return found


def with_links(source: pathlib.Path, page: str, text: str) -> str:
    """A page's text, with links to files of the tree as links to their pages."""
    for match, path, anchor in reversed(targets(source, text)):
        to = page_of(path)
        if to == "reference/api.md" and page != "reference/c/index.md":
            to, anchor = places().get(anchor, ("reference/c/index.md", ""))
        target = os.path.relpath(to, os.path.dirname(page)) + (f"#{anchor}" if anchor else "")
        text = text[: match.start(1)] + target + text[match.end(1):]
    return text


def content_of(path: pathlib.Path, page: str) -> str:
    """The Markdown of a page for a file, or folder, outside of docs/."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        lines = [f"- `{child.name}`" for child in sorted(path.iterdir()) if child.name != "__pycache__"]
        return "\n".join([f"# {name}", "", *lines, ""])
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".md":
        return with_links(path, page, text)
    if path.suffix == ".1":
        return man_pages.markdown(f"{path.stem}(1)", text)
    fence = "`" * (3 + max([0, *(len(run) for run in re.findall(r"`{3,}", text))]))
    return f"# {name}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}{fence}\n"


def outside(docs: "list[pathlib.Path]") -> "list[pathlib.Path]":
    """All files outside of docs/ that pages link, those that such files link too."""
    waiting, seen = [*docs, *(ROOT / name for name in ALSO)], []
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.append(path)
        if path.suffix == ".md" and path.is_file():
            linked = [target for _, target, _ in targets(path, path.read_text(encoding="utf-8"))]
            waiting += [target / "README.md" if (target / "README.md").exists() else target for target in linked]
    return [path for path in seen if page_of(path).startswith("files/")]


def on_files(files: Any, config: Any) -> Any:
    made = {f"reference/c/{name}": text for name, text in api_pages.pages((ROOT / "include/mep.h").read_text(encoding="utf-8")).items()}
    made.update({f"reference/python/{name}": text for name, text in python_pages.PAGES.items()})
    docs = [pathlib.Path(file.abs_src_path) for file in files if file.src_uri.endswith(".md")]
    made.update({page_of(path): content_of(path, page_of(path)) for path in outside(docs)})
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def without_stray_links(markdown: str) -> str:
    """A bracket right behind a word is an index, as in recvbuf[size][count], and begins no link."""
    places = [match.start() for match in re.finditer(r"(?<=[\w\]])\[(?![^\]\n]*\]\([\w./#-]+\))", documents.without_code(markdown))]
    for at in reversed(places):
        markdown = markdown[:at] + "\\" + markdown[at:]
    return markdown


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    uri = page.file.src_uri
    if uri in NOT_SEARCHED:
        page.meta["search"] = {"exclude": True}
    else:
        page.meta["search"] = {"boost": next((weight for beginning, weight in WEIGHTS if uri.startswith(beginning)), 1)}
    if page.file.abs_src_path and pathlib.Path(page.file.abs_src_path).is_relative_to(ROOT / "docs"):
        markdown = with_links(pathlib.Path(page.file.abs_src_path), uri, markdown)
    markdown = without_stray_links(markdown)
    # Python-Markdown wants an empty line before a table, and four columns before a list in a list.
    markdown = re.sub(r"(-->)\n(?=\|)", r"\1\n\n", markdown)
    return re.sub(r"^ {2,3}(?=- )", "    ", markdown, flags=re.M)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Each call of mep.h that stands in code leads to its page."""
    if page.file.src_uri.startswith("reference/python/"):
        # Docstrings are no Markdown: __array_interface__ is a name.
        return re.sub(r"<strong>(\w+_\w+)</strong>", r"<code>__\1__</code>", html)

    def link(match: "re.Match") -> str:
        place = places().get(match[1])
        if place is None or place[0] == page.file.src_uri and match[1] not in html:
            return match[0]
        target = files.get_file_from_path(place[0])
        url = "" if place[0] == page.file.src_uri else get_relative_url(target.url, page.file.url)
        return f'<a class="call" href="{url}#{place[1]}">{match[0]}</a>'

    parts = re.split(r"(<a\b.*?</a>|<h\d\b.*?</h\d>|<pre\b.*?</pre>)", html, flags=re.S)
    return "".join(part if at % 2 else re.sub(r"<code>(mep_\w+)(?:\([^<]*\))?</code>", link, part) for at, part in enumerate(parts))


_PLACES: "dict[str, tuple[str, str]]" = {}


def places() -> "dict[str, tuple[str, str]]":
    """{name of mep.h or of a tool: (page, anchor)}"""
    if not _PLACES:
        for name, text in api_pages.pages((ROOT / "include/mep.h").read_text(encoding="utf-8")).items():
            for anchor in re.findall(r'\{#(mep_\w+)\}|<a id="(mep_\w+)">', text):
                word = anchor[0] or anchor[1]
                _PLACES[word] = (f"reference/c/{name}", word)
    return _PLACES


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The theme's plugin `offline` takes a script from another host, in place of which the site has one of its own."""
    return output.replace(FOREIGN_SCRIPT, get_relative_url("assets/worker.js", page.file.url))


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """The same on 404.html, whose links begin at the root."""
    return output_content.replace(FOREIGN_SCRIPT, "/assets/worker.js")
