#!/usr/bin/env python3
"""Compiles and runs the complete programs of README.md and docs/guide as they stand on the page: guide_blocks_test.py BUILD
CC [FC].

Complete is a block in C with main(), one in Fortran with `program`, and one in Python that imports something and uses no name
that it does not make. They run on two ranks under mep_run. A program whose headers or modules are absent here is skipped by
name. It alone finds a page whose code does not compile any more.
"""
import ast
import builtins
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, CC = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
FC = sys.argv[3] if len(sys.argv) > 3 else None
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.S | re.M)
LIMIT_S = 120
FLAGS = [f"-I{ROOT / 'include'}", "-Wall", "-Wextra", "-Werror", "-O1"]
LINK = [f"-L{BUILD / 'lib'}", "-lmep", f"-Wl,-rpath,{BUILD / 'lib'}"]


def is_complete(text):
    """A Python program that makes or imports each name that it uses."""
    if "\n..." in text or re.search(r"\.\.\.\s*(#.*)?$", text, flags=re.M):
        return False
    tree = ast.parse(text)
    made, used = set(dir(builtins)) | {"__name__", "__file__"}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            made.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
    return any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in tree.body) and used <= made


def programs():
    """(page, line, language, text) of each complete program."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            language, body = block[1], block[2]
            if (language == "c" and re.search(r"\bmain\(", body) or language == "fortran" and "end program" in body
                    or language == "python" and is_complete(body)):
                yield page.relative_to(ROOT), text.count("\n", 0, block.start()) + 2, language, body


def said(*words, **options):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, timeout=LIMIT_S, **options)
    return done.returncode, done.stdout


def has_headers(text):
    """Whether the compiler finds what the program includes besides MEP."""
    includes = "".join(line + "\n" for line in re.findall(r"^#include <.*>", text, flags=re.M))
    return said(CC, *FLAGS, "-x", "c", "-fsyntax-only", "-", input=includes)[0] == 0


def run(program, **environment):
    return said(BUILD / "bin/mep_run", "-n", 2, *program, env={**os.environ, **environment})


def try_compiled(folder, language, text):
    """The compiler's or the program's words if it does not work, else ""; None: it cannot be tried here."""
    source, program = folder / ("program.c" if language == "c" else "program.f90"), folder / "program"
    source.write_text(text)
    if language == "c":
        if not has_headers(text):
            return None
        if "#include <cuda" in text:  # no GPU is needed to compile it
            return said(CC, *FLAGS, "-c", source, "-o", program)[1]
        status, words = said(CC, *FLAGS, source, *LINK, "-o", program)
    elif FC is None:
        return None
    else:
        modules = BUILD / "fortran"
        library = next(BUILD.rglob("libmep_fortran.a"))
        status, words = said(FC, f"-I{modules}", f"-J{folder}", "-Wall", "-Werror", source, library, *LINK, "-o", program)
    if status == 0:
        status, words = run([program])
    return "" if status == 0 else words


def try_python(folder, text):
    names = {name for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))
             for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])}
    environment = {"MEP_LIBRARY": str(BUILD / "lib/libmep.so"), "PYTHONPATH": str(ROOT / "bindings/python"),
                   "PYTHONDONTWRITEBYTECODE": "1"}
    for name in sorted(names):
        if said(sys.executable, "-c", f"import {name}", env={**os.environ, **environment})[0] != 0:
            return None
    source = folder / "program.py"
    source.write_text(text)
    status, words = run([sys.executable, source], **environment)
    return "" if status == 0 else words


def main():
    tried, skipped, wrong = 0, [], []
    for page, line, language, text in programs():
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            problem = try_python(folder, text) if language == "python" else try_compiled(folder, language, text)
        if problem is None:
            skipped.append(f"{page}:{line}")
        elif problem:
            wrong.append(f"{page}:{line}: the program on the page does not work\n{problem}")
        else:
            tried += 1
    print(f"{tried} programs ran; not here: {' '.join(skipped) or 'none'}")
    for each in wrong:
        print(each)
    sys.exit(1 if wrong or tried == 0 else 0)


main()
