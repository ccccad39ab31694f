#!/usr/bin/env python3
"""Runs clang-tidy over the project's sources, skipping those that it has already found clean.

A source is clean for as long as the same bytes reach clang-tidy: the file, every project header that
it includes directly or not, its compile command, the checks, and clang-tidy's version. Stamps of clean sources
lie in ~/.cache/mep/clang_tidy and hold no path, so that one clone's answer for another.

Sources that are not known to be clean are looked at in units of several (tidy_units.py); the sources of a unit with a
finding are looked at again, each alone. --alone does so at once.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

import tidy_units

FOLDERS = ("src", "perf", "tests", "examples")
PRECOMPILED = re.compile(r" -Winvalid-pch| -include \S+/cmake_pch\.hxx")
STAMP_DAYS = 60
# It takes as long as all other checks together, so only `./dev soak` runs it.
ANALYZER = ",".join(("-*", "clang-analyzer-*",
                     "-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling",
                     "-clang-analyzer-optin.performance.Padding", "-clang-analyzer-valist.Uninitialized"))
INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def include_folders(entry):
    words = shlex.split(entry["command"])
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


def stamp_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(cache, "mep/clang_tidy")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def forget_old(stamps):
    limit = time.time() - STAMP_DAYS * 86400
    for stamp in stamps.iterdir():
        if stamp.stat().st_mtime < limit:
            stamp.unlink(missing_ok=True)


def fingerprint(source, entry, root, what):
    """`what`: clang-tidy's version and the checks of the command line."""
    digest = hashlib.sha256(what)
    digest.update(entry["command"].replace(str(root), ".").encode())
    files = inputs_of(source, include_folders(entry), root) + configurations(source, root)
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def changed_files(root, commit):
    """The files that differ from a commit, those that git does not know yet included."""
    names = []
    for words in (["diff", "--name-only", commit], ["ls-files", "--others", "--exclude-standard"]):
        names += subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True,
                                check=True).stdout.splitlines()
    return {(root / name).resolve() for name in names}


def of_single_files(entry, units):
    """A unit (mep_unite in cmake/MepSources.cmake) as the sources that it includes, each by its own command."""
    unit = pathlib.Path(entry["directory"], entry["file"])
    if unit.parent != units:
        return [entry]
    found = []
    for name in INCLUDE.findall(unit.read_bytes()):
        source = next(path for folder in include_folders(entry) if (path := folder / name.decode()).is_file())
        # Stamps do not depend on the sources beside this one.
        command = tidy_units.OUTPUT.sub(f" -o {source.name}.o", entry["command"].replace(entry["file"], str(source)))
        found.append({**entry, "command": command, "file": str(source), "output": f"{source.name}.o",
                      "unit": unit.name})
    return found


def commands_for_clang(build, folder):
    """The compile commands of single files without GCC's precompiled headers, written to a folder for clang-tidy."""
    commands = json.loads((build / "compile_commands.json").read_text())
    commands = [single for entry in commands for single in of_single_files(entry, build / "units")]
    for entry in commands:
        entry["command"] = PRECOMPILED.sub("", entry["command"])
    folder.mkdir(exist_ok=True)
    tidy_units.write_commands(folder, commands)
    return commands


def tidy(source, commands, checks):
    # The compile commands may be GCC's: clang does not know all of its options for warnings, and has others.
    options = ["-quiet", "-extra-arg=-Wno-unknown-warning-option", "-extra-arg=-Wno-error", "-p", str(commands)]
    if checks:
        options.append(f"-checks={checks}")
    command = ["clang-tidy", *options, str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.returncode, run.stdout + (run.stderr if run.returncode else "")


def parse_arguments(root):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=root / "build/release")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--changed-since", metavar="COMMIT",
                        help="only sources that reach a file which differs from this commit")
    parser.add_argument("--analyzer", action="store_true",
                        help="clang's static analyzer in place of the checks of .clang-tidy")
    parser.add_argument("--alone", action="store_true", help="each source in a run of its own")
    return parser.parse_args()


def sources_of(build, commands, root, commit):
    """The sources with their compile commands; with a commit those that reach a file which differs from it."""
    entries = {}
    for entry in commands_for_clang(build, commands):
        source = pathlib.Path(entry["directory"], entry["file"]).resolve()
        # A source may have several commands: the one that counts is the one that it shares with others of a unit.
        known = "unit" in entries.get(source, {})
        if any(root / folder in source.parents for folder in FOLDERS) and source.suffix in (".c", ".cpp") and not known:
            entries[source] = entry
    if commit:
        changed = changed_files(root, commit)
        entries = {source: entry for source, entry in entries.items()
                   if changed.intersection(inputs_of(source, include_folders(entry), root))}
    return entries


def not_known_clean(entries, root, what):
    """The sources to look at, each with the stamp that will say that it is clean."""
    stamps = stamp_folder()
    forget_old(stamps)
    todo = {}
    for source, entry in sorted(entries.items()):
        stamp = stamps / fingerprint(source, entry, root, what)
        if stamp.exists():
            stamp.touch()
        else:
            todo[source] = stamp
    print(f"    {len(entries) - len(todo)} of {len(entries)} sources are clean already", flush=True)
    return todo


def look_at(units, todo, look, jobs, root):
    """Runs clang-tidy over units. The answer: the sources of those with findings, and what was printed of each."""
    findings = []
    total = sum(len(sources) for _, sources in units)
    done = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = {pool.submit(look, file): sources for file, sources in units}
        for run in concurrent.futures.as_completed(runs):
            sources = runs[run]
            status, output = run.result()
            done += len(sources)
            names = " ".join(str(source.relative_to(root)) for source in sources)
            print(f"    [{done}/{total}] {names}{' FAILED' if status else ''}", flush=True)
            if status:
                findings.append((sources, output))
            else:
                for source in sources:
                    todo[source].touch()
    return findings


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    arguments = parse_arguments(root)
    build = arguments.build.resolve()
    checks = ANALYZER if arguments.analyzer else ""
    alone = arguments.alone or arguments.analyzer
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    commands = build / "clang_tidy"
    entries = sources_of(build, commands, root, arguments.changed_since)
    todo = not_known_clean(entries, root, version + checks.encode() + (b"alone" if arguments.alone else b""))

    def look(file):
        return tidy(file, commands, checks)

    singles = [(source, [source]) for source in todo]
    findings = []
    if not alone:
        groups = tidy_units.groups_of(todo, entries, lambda source: configurations(source, root))
        units = tidy_units.write_units(list(groups), entries, commands, root,
                                       lambda source: configurations(source, root))
        units.sort(key=lambda unit: -len(unit[1]))  # the longest first, so that none is left for the end
        found = look_at(units, todo, look, arguments.jobs, root)
        findings = [(sources, output) for sources, output in found if len(sources) == 1]
        singles = [(source, [source]) for sources, _ in found if len(sources) > 1 for source in sources]
    findings += look_at(singles, todo, look, arguments.jobs, root)
    for _, output in findings:
        print(output, flush=True)
    if findings:
        print(f"    {len(findings)} of {len(entries)} sources have findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
