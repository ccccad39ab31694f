#!/usr/bin/env python3
"""Runs clang-tidy over the project's sources, skipping those that it has already found clean.

A source is clean for as long as the same bytes reach clang-tidy: the file, every project header that
it includes directly or not, its compile command, the .clang-tidy files and clang-tidy's version.
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import re
import shlex
import subprocess
import sys

FOLDERS = ("src", "perf", "tests", "examples")
INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def include_folders(entry):
    words = shlex.split(entry["command"]) if "command" in entry else entry["arguments"]
    folders = []
    for index, word in enumerate(words):
        if word in ("-I", "-isystem"):
            folders.append(words[index + 1])
        elif word.startswith("-I"):
            folders.append(word[2:])
    return [pathlib.Path(entry["directory"], folder) for folder in folders]


def inputs_of(source, folders, root):
    """The source and the project's headers that it reaches, in a fixed order."""
    found = []
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.append(path)
        for name in INCLUDE.findall(path.read_bytes()):
            for folder in [path.parent, *folders]:
                header = (folder / name.decode()).resolve()
                if header.is_file():
                    if root in header.parents:
                        waiting.append(header)
                    break
    return sorted(found)


def configurations(path, root):
    """The .clang-tidy files that speak for `path`."""
    return [folder / ".clang-tidy" for folder in path.parents
            if (folder == root or root in folder.parents) and (folder / ".clang-tidy").is_file()]


def fingerprint(source, entry, root, version):
    digest = hashlib.sha256(version)
    digest.update(str(entry.get("command", entry.get("arguments"))).encode())
    files = inputs_of(source, include_folders(entry), root) + configurations(source, root)
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def changed_files(root, commit):
    """What differs from a commit, files that git does not know yet included."""
    names = []
    for words in (["diff", "--name-only", commit], ["ls-files", "--others", "--exclude-standard"]):
        names += subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True,
                                check=True).stdout.splitlines()
    return {(root / name).resolve() for name in names}


def tidy(source, build):
    # The compile commands may be GCC's, whose warning options clang does not all know.
    command = ["clang-tidy", "-quiet", "-extra-arg=-Wno-unknown-warning-option", "-p", str(build),
               str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.returncode, run.stdout + (run.stderr if run.returncode else "")


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=root / "build/release")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--changed-since", metavar="COMMIT",
                        help="only sources that reach a file which differs from this commit")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    stamps = build / "clang_tidy_clean"
    stamps.mkdir(exist_ok=True)
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout

    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if any(root / folder in source.parents for folder in FOLDERS) and source.suffix in (".c", ".cpp"):
            entries[source] = entry
    if arguments.changed_since:
        changed = changed_files(root, arguments.changed_since)
        entries = {source: entry for source, entry in entries.items()
                   if changed.intersection(inputs_of(source, include_folders(entry), root))}
    todo = []
    for source, entry in sorted(entries.items()):
        stamp = stamps / fingerprint(source, entry, root, version)
        if not stamp.exists():
            todo.append((source, stamp))
    print(f"    {len(entries) - len(todo)} of {len(entries)} sources are clean already", flush=True)

    failures = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = {pool.submit(tidy, source, build): (source, stamp) for source, stamp in todo}
        for number, run in enumerate(concurrent.futures.as_completed(runs), 1):
            source, stamp = runs[run]
            status, output = run.result()
            name = source.relative_to(root)
            print(f"    [{number}/{len(todo)}] {name}{' FAILED' if status else ''}", flush=True)
            if status:
                failures += 1
                print(output, flush=True)
            else:
                stamp.touch()
    if failures:
        print(f"    {failures} of {len(entries)} sources have findings")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
