#!/usr/bin/env python3
"""check_types.py [CACHE_FOLDER]: mypy --strict and pyright on the Python package, the examples and the Python of the
guides.

A block of a guide is checked as a file of its own; a name that it does not define is no error. Where there is no mypy the exit
status is 77. pyright is left out where it is missing, and so are the files that import PyTorch where that is.
"""

import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "bindings/python/README.md", "docs/guide/*.md")
SOURCES = ("bindings/python/mep/**/*.py", "examples/*.py")
SKIPPED = 77
UNDEFINED = "# pyright: reportUndefinedVariable=false"


def blocks(text):
    """(line, code) of each Python block of a page; `line` is that of its fence."""
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M):
        yield text.count("\n", 0, match.start()) + 1, match[1]


def write_blocks(root, folder):
    """Writes each block with as many empty lines before it as its page has. Returns {file: page}."""
    pages = {}
    for pattern in PAGES:
        for page in sorted(root.glob(pattern)):
            for line, code in blocks(page.read_text(encoding="utf-8")):
                name = re.sub(r"\W", "_", str(page.relative_to(root).with_suffix("")))
                file = folder / f"{name}_{line}.py"
                file.write_text("\n" * line + code, encoding="utf-8")
                pages[str(file)] = str(page.relative_to(root))
    return pages


def mypy(root, cache, *arguments):
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", root / "pyproject.toml", "--cache-dir", cache,
                           "--no-error-summary", *arguments], cwd=root, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout or ("" if done.returncode == 0 else f"mypy: exit status {done.returncode}\n")


def pyright(root, pages):
    """The errors in the files that can be checked here, those of {file of a block: page} too."""
    has_torch = importlib.util.find_spec("torch") is not None
    files = [path for pattern in SOURCES for path in sorted(root.glob(pattern))]
    for block in map(pathlib.Path, sorted(pages)):
        text = block.read_text(encoding="utf-8")
        block.write_text(UNDEFINED + text, encoding="utf-8")  # in the first line, which is empty
        files.append(block)
    if not has_torch:
        files = [path for path in files if not re.search(r"^\s*(import|from) torch\b", path.read_text(encoding="utf-8"), re.M)]
    done = subprocess.run(["pyright", "--pythonpath", sys.executable, "--outputjson", *files], cwd=root, text=True,
                          check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        found = json.loads(done.stdout)["generalDiagnostics"]
    except (ValueError, KeyError):  # it did not start: its own installation wants the network
        print(f"pyright is left out: {done.stdout.strip()[-200:]}")
        return ""
    return "".join(f"{pages.get(each['file']) or pathlib.Path(each['file']).relative_to(root)}:"
                   f"{each['range']['start']['line'] + 1}: {each['message']}\n" for each in found if each["severity"] == "error")


def check(root, cache, with_pyright=True):
    """The failures, as text."""
    text = mypy(root, cache)
    with tempfile.TemporaryDirectory() as folder:
        pages = write_blocks(root, pathlib.Path(folder))
        said = mypy(root, cache, "--disable-error-code=name-defined", *sorted(pages))
        for file, page in pages.items():
            said = said.replace(str(pathlib.Path(file).relative_to(root) if file.startswith(str(root)) else file), page)
        text = "".join(dict.fromkeys((text + said).splitlines(keepends=True)))  # both look into the package
        if with_pyright and shutil.which("pyright"):
            text += pyright(root, pages)
    return text


def main():
    if importlib.util.find_spec("mypy") is None or importlib.util.find_spec("numpy") is None:
        print(f"{sys.executable} has no mypy, or no NumPy: types are not checked (pip install mypy numpy)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        text = check(ROOT, sys.argv[1] if len(sys.argv) > 1 else folder)
    sys.stdout.write(text or "types are in order\n")
    return 1 if text else 0


if __name__ == "__main__":
    sys.exit(main())
