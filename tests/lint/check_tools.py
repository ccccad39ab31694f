#!/usr/bin/env python3
"""check_tools.py BIN_FOLDER: compares pages with the programs that they describe.

An option that a man page describes is one of --help, and the other way round. A command in the code of a page has only
options and verbs that exist. CONTRIBUTING.md has each option of CMake, and the install page each program that is installed. Help texts fit 80 columns.
"""

import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# How a program is called for its help, the man page that has it, and the sections there; None: all that no other has.
HELPS = {
    "mep_run": (["mep_run", "--help"], "mep_run.1", None),
    "mep_info": (["mep_info", "--help"], "mep_info.1", None),
    "mep_perf": (["mep_perf", "--help"], "mep_perf.1", None),
    "mep_perf suite": (["mep_perf_suite", "--help"], "mep_perf.1", "SUITE"),
    "mep_chaos": (["mep_chaos", "--help"], "mep_chaos.1", None),
}
# Each program has them; a man page need not say so.
COMMON = {"-h", "--help", "--version"}
OPTION = r"(?<![\w-])--?[A-Za-z][\w-]*"
PAGES = ("README.md", "CONTRIBUTING.md", "bindings/python/README.md", "examples/README.md", "docs/**/*.md", "docs/man/*.1")
COLUMNS = 80  # of a terminal
# Records of what was run.
RECORDS = "docs/measurements/"


def said_by(command, folder):
    done = subprocess.run([folder / command[0], *command[1:]], text=True, check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def options_of_help(text):
    """{option: whether a value follows}, from the lines that begin with an option and from the usage."""
    options = {}
    for line in text.splitlines():
        if re.match(r"\s+-", line):
            names = re.split(r"\s{2,}", line.strip())[0]
        elif line.lower().startswith("usage:"):
            names = re.sub(r".*?mep_\w+", "", line, count=1)
        else:
            continue
        for match in re.finditer(rf"({OPTION})(\s+(?!or\b)[A-Z{{][\w.,\[\]{{}}:]*)?", names):
            options[match[1]] = options.get(match[1], False) or match[2] is not None
    return options


def without_roff(text):
    return re.sub(r"\\f[A-Z]|\\\||\"", "", text).replace("\\-", "-")


def sections_of_man(text):
    """{section: the options that its items describe}"""
    sections, name, heads = {}, "", False
    for line in text.splitlines():
        if line.startswith(".SH "):
            name = line[4:].strip('" ')
        if heads:
            sections.setdefault(name, set()).update(re.findall(OPTION, without_roff(line)))
        heads = line.startswith((".TP", ".TQ"))
    return sections


def check_man(root, helps):
    for program, (_, page, section) in HELPS.items():
        sections = sections_of_man((root / "docs/man" / page).read_text(encoding="utf-8"))
        if section is not None:
            described = sections.get(section, set())
        else:
            others = {other for _, its, other in HELPS.values() if its == page}
            described = set().union(*(options for name, options in sections.items() if name not in others))
        known = set(helps[program])
        for option in sorted(described - known - COMMON):
            yield f"docs/man/{page}", f"{program} --help does not have {option}"
        for option in sorted(known - described - COMMON):
            yield f"docs/man/{page}", f"{option} of {program} --help is not described"


def code_of(name, text):
    """The lines of code of a page."""
    if name.endswith(".1"):
        for block in re.findall(r"^\.nf\n(.*?)^\.fi", text, re.M | re.S):
            yield from without_roff(block).splitlines()
        return
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S):
        yield from block.replace("\\\n", " ").splitlines()
    yield from re.findall(r"^ {4}(.*)", text, re.M)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    yield from re.findall(r"`([^`\n]+)`", rest)


def commands_in(line):
    """(program, words behind it) of each program of MEP that a line of code calls."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    names = [word.rpartition("/")[2] for word in words]
    for at, name in enumerate(names):
        if name in ("mep_run", "mep_info", "mep_perf", "mep_chaos") or words[at] == "./dev":
            words_behind = []
            for word in words[at + 1:]:
                if word in ("|", ";", "&&", "||", "&", ">") or word.startswith("mep_"):
                    break
                words_behind.append(word)
            yield ("./dev" if words[at] == "./dev" else name), words_behind


def options_in(words, known, stops):
    """The options of a command; those of a program that it starts are not its own."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return
        if re.fullmatch(OPTION, word):
            yield word
            at += 1 if known.get(word) else 0
        elif stops:
            return
        at += 1


def check_pages(root, helps, verbs):
    for page in sorted({path for pattern in PAGES for path in root.glob(pattern)}):
        name = page.relative_to(root).as_posix()
        if name.startswith(RECORDS):
            continue
        for line in code_of(name, page.read_text(encoding="utf-8")):
            for program, words in commands_in(line):
                if program == "./dev":
                    if words and re.fullmatch(r"[a-z][\w-]*", words[0]) and words[0] not in verbs:
                        yield name, f"./dev has no {words[0]}: {line.strip()}"
                    continue
                known = dict(helps[program])
                if words[:1] == ["suite"]:
                    known = helps["mep_perf suite"]
                for option in options_in(words, known, program == "mep_run"):
                    if option not in known and option not in COMMON:
                        yield name, f"{program} has no {option}: {line.strip()}"


def check_widths(said):
    """Lines of help texts, {command: text}, that a terminal of 80 columns would break."""
    for command, text in said.items():
        for line in text.splitlines():
            if len(line) > COLUMNS:
                yield command, f"the line has {len(line)} columns, more than {COLUMNS}: {line.strip()}"


def verbs_of(root):
    return set(re.findall(r'^    "([\w-]+)": ', (root / "tools/dev/__main__.py").read_text(encoding="utf-8"), re.M))


def check_cmake(root):
    """Options of the build, in CONTRIBUTING.md."""
    options = set()
    for path in root.glob("cmake/*.cmake"):
        text = path.read_text(encoding="utf-8")
        options.update(re.findall(r"^ *option\((MEP_\w+)", text, re.M))
        options.update(re.findall(r"^ *set\((MEP_\w+) [^\n)]*CACHE (?!INTERNAL)", text, re.M))
        for names in re.findall(r"foreach\(feature IN ITEMS ([\w ]+)\)\n +set\(MEP_\$\{feature\} [^\n]*CACHE", text):
            options.update(f"MEP_{name}" for name in names.split())
    described = set()
    for row in re.findall(r"^\| `MEP_.*", (root / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M):
        described.update(re.findall(r"`(MEP_\w+)`", row))
    for option in sorted(options - described):
        yield "CONTRIBUTING.md", f"the option {option} of CMake is missing"
    for option in sorted(described - options):
        yield "CONTRIBUTING.md", f"CMake has no option {option}"


def check_installed(root):
    """Programs that are installed, in the table of the install page."""
    programs = set()
    for path in [*root.glob("src/**/CMakeLists.txt"), *root.glob("perf/**/CMakeLists.txt")]:
        text = path.read_text(encoding="utf-8")
        programs.update(re.findall(r"^ *mep_add_tool\((\w+)", text, re.M))
        for names in re.findall(r"foreach\(script IN ITEMS ([\w ]+)\)\n +install\(PROGRAMS", text):
            programs.update(f"mep_perf_{name}" for name in names.split())
    page = "docs/guide/install.md"
    row = re.search(r"^\| `bin/` \|.*", (root / page).read_text(encoding="utf-8"), re.M)
    described = set(re.findall(r"`(mep_\w+)`", row[0] if row else ""))
    for program in sorted(programs - described):
        yield page, f"{program} is installed into bin/ and missing there"
    for program in sorted(described - programs):
        yield page, f"bin/ has no {program}"


def main():
    folder = pathlib.Path(sys.argv[1])
    said = {program: said_by(command, folder) for program, (command, _, _) in HELPS.items()}
    helps = {program: options_of_help(text) for program, text in said.items()}
    said["./dev help"] = said_by(["dev", "help"], ROOT)
    findings = [*check_man(ROOT, helps), *check_pages(ROOT, helps, verbs_of(ROOT)), *check_cmake(ROOT), *check_installed(ROOT),
                *check_widths(said)]
    for name, text in findings:
        print(f"{name}: {text}")
    if findings:
        return 1
    print("the pages name options, verbs and programs that exist, and all of them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
