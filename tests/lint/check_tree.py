#!/usr/bin/env python3
"""Checks of the source tree that no compiler makes.

Include layering by layer and by folder, definitions outside the folder that declares them, who may include
hwloc, verbs, MPI and CUDA, the length of files, how much a class owns (classes.py), that the environment variables which are read, listed in env.cpp
and documented are the same ones, that failpoint.cpp lists the points, the documents: links, files that are named, a row for each result, a README.md
in each folder of src/, and the ways of calls that they show (ways.py), what comments and pages name (names.py), and how sentences begin (sentences.py). Prints one line a finding,
"file:line: text", and exits with 1 if there is one.
"""

import argparse
import pathlib
import re
import sys

import classes
import documents
import folders
import names
import sentences
import ways

MAX_LINES = 600
LAYERS = {
    "base": {"base"},
    "protocol": {"protocol"},
    "transport": {"base", "protocol", "transport"},
    "kernels": {"base", "protocol", "kernels"},
    "core": {"base", "protocol", "transport", "kernels", "core"},
}
PUBLIC_HEADERS = {"mep.h", "mep_mpi.h"}
# The part of transports that kernels may see: code that runs on the device.
DEVICE_HEADER = re.compile(r"transport/gpu_queue/(send_queue|peer)\.hpp$")
# Library: (its headers, the files of the tree that may include them).
LIBRARIES = {
    "hwloc": (re.compile(r"hwloc(\.h$|/)"), re.compile(r"src/core/topo/")),
    "verbs": (re.compile(r"(infiniband|rdma)/"), re.compile(r"src/transport/(verbs|gpu_queue)/")),
    "MPI": (
        re.compile(r"mpi\.h$"),
        re.compile(r"(src/core/bootstrap/mpi[^/]*$|include/mep_mpi\.h$|perf/|tests/|examples/)"),
    ),
    "CUDA": (
        re.compile(r"(cuda\.h|cuda_.*\.h|cuda/.*|nvml\.h|device_launch_parameters\.h)$"),
        re.compile(r"(src/kernels/cuda/|src/transport/(cuda|gpu_queue)\w*/|perf/|tests/|examples/)"),
    ),
}
CODE_SUFFIXES = {".c", ".h", ".cpp", ".hpp", ".cu", ".cuh", ".inc", ".def"}
COUNTED_SUFFIXES = CODE_SUFFIXES | {".py", ".f90", ".pml", ".cmake", ".sh"}
FOLDERS = ("src", "include", "perf", "tests", "examples", "bindings", "cmake", "tools")
# Tests are added by the functions of this file, which insist on a size.
TEST_FILE = "cmake/MepTests.cmake"
# The ABI is one header by intent, however long its comments are.
UNCOUNTED = {"include/mep.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
ENV_READ = re.compile(r'\benv_(?:string|uint|bool)\(\s*"([^"]*)"')
NAME_LITERAL = re.compile(r'"(MEP_[A-Z0-9_]+)"')
# Reads what launchers (mpirun, srun) set, which is not MEP's to list.
LAUNCHER_FILE = "src/core/bootstrap/launcher_environment.cpp"
# libmep_mpi.so has nothing but the public ABI.
MPI_FILE = "src/core/bootstrap/mpi.cpp"
POINT = re.compile(r'\bMEP_(?:FAILPOINT|TEST_DELAY_POINT)\(\s*"([^"]*)"')
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(")
TABLE_ENTRY = re.compile(r'\{\s*"([A-Z][A-Z0-9_]*)"\s*,')
DOC_ENTRY = re.compile(r"^\|\s*`([A-Z][A-Z0-9_]*)`", re.MULTILINE)


def strip_comments(text):
    """Blanks comments, keeps lines and string literals."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)

    def blank(match):
        token = match.group(0)
        return token if token.startswith('"') else re.sub(r"[^\n]", " ", token)

    return pattern.sub(blank, text)


def files_of(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and (path.suffix in COUNTED_SUFFIXES or path.name == "CMakeLists.txt") and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix(), path


def check_layer(name, form, included):
    """The finding about one #include of one file under src/, or None."""
    layer = name.split("/")[1]
    if layer not in LAYERS:
        return f"src/{layer} is no layer; the layers are {', '.join(LAYERS)}"
    if form == "<":
        return None
    if included.startswith("."):
        return f'includes are written from src/, not "{included}"'
    if included in PUBLIC_HEADERS:
        return None
    target = included.split("/")[0]
    if target not in LAYERS:
        return f'"{included}" does not start with a layer ({", ".join(LAYERS)})'
    if layer == "kernels" and DEVICE_HEADER.match(included):
        return None
    if target not in LAYERS[layer]:
        return f"{layer} must not include {target} ({included})"
    return None


def check_includes(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        form, included = match.groups()
        if name.startswith("src/"):
            finding = check_layer(name, form, included)
            if finding:
                yield number, finding
        if name == "include/mep.h" and included not in ("stdint.h", "stddef.h"):
            yield number, f"mep.h includes only <stdint.h> and <stddef.h>, not {included}"
        if name.startswith("examples/") and form == '"' and included.split("/")[0] in LAYERS:
            yield number, f"an example uses the public headers only, not {included}"
        for library, (headers, allowed) in LIBRARIES.items():
            if headers.match(included) and not allowed.match(name):
                yield number, f"{library} must not be included here ({included})"


def check_length(name, text):
    count = text.count("\n") + (not text.endswith("\n") and text != "")
    if count > MAX_LINES and name not in UNCOUNTED:
        yield count, f"{count} lines; at most {MAX_LINES}"


def check_test_entries(name, text):
    if pathlib.PurePosixPath(name).name != "CMakeLists.txt" and not name.endswith(".cmake") or name == TEST_FILE:
        return
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*add_test\s*\(", line):
            yield number, f"add_test is for {TEST_FILE} only; call mep_test, which wants a size"


def includes_of(code):
    """(file, line, included) of every quoted #include under src/."""
    for name, text in code.items():
        if name.startswith("src/"):
            for number, line in enumerate(text.splitlines(), 1):
                match = INCLUDE.match(line)
                if match and match.group(1) == '"':
                    yield name, number, match.group(2)


def check_guard(name, text):
    if name.endswith(".hpp") and not re.search(r"^#pragma once$", text, re.MULTILINE):
        yield 1, "#pragma once is missing"


def check_environment(root, code):
    """Variables read in src/ against the table in env.cpp against docs/reference/environment.md."""
    table_name = "src/base/env.cpp"
    if table_name not in code:
        return
    table = set(TABLE_ENTRY.findall(code[table_name]))
    if not table:
        yield table_name, 1, "the table of variables is not recognised"
    constants = set(re.findall(r"\bMEP_[A-Z0-9_]+", code.get("include/mep.h", "")))
    for name, text in code.items():
        if not name.startswith("src/"):
            continue
        for match in NAME_LITERAL.finditer(text):
            # Names also reach env_uint and its like, and setenv, through helpers.
            if match.group(1) not in table | constants:
                number = text.count("\n", 0, match.start()) + 1
                yield name, number, f"{match.group(1)} is in neither {table_name} nor mep.h"
        for match in ENV_READ.finditer(text):
            if match.group(1) not in table and not match.group(1).startswith("MEP_"):
                number = text.count("\n", 0, match.start()) + 1
                yield name, number, f"{match.group(1)} is read but not in the table of {table_name}"
        if name not in (table_name, LAUNCHER_FILE, MPI_FILE):
            for match in GETENV.finditer(text):
                number = text.count("\n", 0, match.start()) + 1
                yield name, number, "getenv is for env.cpp only; call env_string or its like"
    document = root / "docs" / "reference" / "environment.md"
    if not document.is_file():
        return
    documented = set(DOC_ENTRY.findall(document.read_text(encoding="utf-8")))
    for variable in sorted(table - documented):
        yield "docs/reference/environment.md", 1, f"{variable} of {table_name} has no row (| `{variable}` | ...)"
    for variable in sorted(documented - table):
        yield "docs/reference/environment.md", 1, f"{variable} has a row but is not in {table_name}"


def check_failpoints(code):
    """The points in src/ against the table in failpoint.cpp."""
    table_name = "src/base/failpoint.cpp"
    if table_name not in code:
        return
    table = re.search(r"\bkPoints\[\] = \{([^}]*)\}", code[table_name])
    names = re.findall(r'"([^"]*)"', table.group(1)) if table else []
    if names != sorted(set(names)) or not names:
        yield table_name, 1, "kPoints is not a sorted list of names"
    used = set()
    for name, text in code.items():
        if not name.startswith("src/"):
            continue
        for match in POINT.finditer(text):
            used.add(match.group(1))
            if match.group(1) not in names:
                yield name, text.count("\n", 0, match.start()) + 1, f'"{match.group(1)}" is not in kPoints of {table_name}'
    for point in sorted(set(names) - used):
        yield table_name, 1, f'no point is named "{point}"'


def code_of(root):
    """{file: text without comments} of everything that is compiled."""
    return {name: strip_comments(path.read_text(encoding="utf-8", errors="replace"))
            for name, path in files_of(root) if path.suffix in CODE_SUFFIXES}


def check_own_tables(code):
    yield from folders.check_folders(list(includes_of(code)))
    yield from folders.check_definitions(code)
    yield from classes.check_classes(code)


def check_tree(root, check_tables=check_own_tables):
    """All findings as (file, line, text)."""
    findings = []
    code = code_of(root)
    for name, path in files_of(root):
        text = path.read_text(encoding="utf-8", errors="replace")
        findings += [(name, number, finding) for number, finding in check_length(name, text)]
        findings += [(name, number, finding) for number, finding in check_test_entries(name, text)]
        if path.suffix in CODE_SUFFIXES:
            findings += [(name, number, f) for number, f in check_includes(name, code[name])]
            findings += [(name, number, f) for number, f in check_guard(name, text)]
    findings += check_environment(root, code)
    findings += check_failpoints(code)
    findings += check_tables(code)
    findings += documents.check_documents(root)
    findings += sentences.check_sentences(root)
    return findings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = pathlib.Path(__file__).resolve()
    parser.add_argument("--root", type=pathlib.Path, default=here.parents[2])
    parser.add_argument("--graph", action="store_true", help="print which folder of src/ includes which")
    arguments = parser.parse_args()
    if arguments.graph:
        print(folders.graph_text(includes_of(code_of(arguments.root))))
    findings = check_tree(arguments.root) + ways.check_ways(arguments.root) + names.check_names(arguments.root)
    for name, number, text in findings:
        print(f"{name}:{number}: {text}")
    if not findings:
        print("layering, folders, definitions, file lengths, sizes of classes, environment variables, documents, their ways, names and sentences are in order")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
