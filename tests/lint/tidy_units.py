"""Sources that clang-tidy looks at together, since most of its time goes into the headers of each run.

A unit includes up to LARGEST sources with the same compile command and the same checks. Sources that the build joins
in one unit (mep_unite in cmake/MepSources.cmake) stay together; other sources, tests among them, are each put into a
namespace of their own, below the headers of all of them. A source whose text could not live there is a unit of its own,
and so is a program's main, which may let through what functions of other files throw.
"""

import collections
import json
import re

LARGEST = 16
OUTPUT = re.compile(r" -o \S+")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|(<[^>]+>)).*$', re.MULTILINE)
# Text that means something else in a namespace, or that two sources of a unit could both define.
OUTSIDE_ONLY = re.compile(r'^\s*#\s*(if|define|undef|pragma)|^namespace \w|^(extern "C"|asm\b)|^template <>', re.MULTILINE)
MAIN = re.compile(r"^int main\(", re.MULTILINE)
ALLOW_SOURCE = "  // NOLINT(bugprone-suspicious-include)"


def can_be_enclosed(source):
    text = source.read_text()
    listed = any(not quoted.endswith((".hpp", ".h")) for quoted, _ in INCLUDE.findall(text) if quoted)
    return source.suffix == ".cpp" and not OUTSIDE_ONLY.search(text) and not listed


def headers_beside(source):
    return sorted(quoted for quoted, _ in INCLUDE.findall(source.read_text()) if quoted and (source.parent / quoted).is_file())


def groups_of(todo, entries, configurations):
    """Lists of sources that one run of clang-tidy can look at, in a fixed order."""
    found = collections.defaultdict(list)
    for source in todo:
        entry = entries[source]
        command = OUTPUT.sub("", entry["command"]).replace(str(source), "")
        if "unit" in entry and not MAIN.search(source.read_text()):
            key = ("unit", entry["unit"])
        elif "unit" not in entry and can_be_enclosed(source):
            # Headers in the folder of a source may define what others define too.
            key = ("enclosed", command, *headers_beside(source))
        else:
            key = ("alone", str(source))
        found[key + tuple(map(str, configurations(source)))].append(source)
    for key, sources in sorted(found.items()):
        count = -(-len(sources) // LARGEST)
        for number in range(count):
            part = sources[len(sources) * number // count:len(sources) * (number + 1) // count]
            yield key[0] == "enclosed", part


def text_of(sources, enclosed):
    if not enclosed:
        return "".join(f'#include "{source}"{ALLOW_SOURCE}\n' for source in sources)
    headers = {}
    for source in sources:
        for quoted, angled in INCLUDE.findall(source.read_text()):
            beside = source.parent / quoted
            headers[angled or f'"{beside if beside.is_file() else quoted}"'] = None
    lines = [f"#include {header}\n" for header in headers]
    for number, source in enumerate(sources):
        lines.append(f'namespace tidy_{number} {{\n#include "{source}"{ALLOW_SOURCE}\n}}\n')
    return "".join(lines)


def write_commands(folder, commands):
    """clang-tidy refuses a file of commands with keys that it does not know."""
    known = ("directory", "command", "file", "output")
    text = json.dumps([{key: entry[key] for key in known if key in entry} for entry in commands])
    (folder / "compile_commands.json").write_text(text)


def write_units(groups, entries, folder, root, configurations):
    """Each group as the file that clang-tidy is given: a source that is alone, or a unit in a folder with the checks
    of its sources. The compile commands of units are added to those in `folder`."""
    commands = json.loads((folder / "compile_commands.json").read_text())
    units = []
    for number, (enclosed, sources) in enumerate(groups):
        if len(sources) == 1:
            units.append((sources[0], sources))
            continue
        place = folder
        for configuration in configurations(sources[0]):
            if configuration.parent != root:
                copy = folder / configuration.relative_to(root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(configuration.read_bytes())
                place = max(place, copy.parent, key=lambda path: len(path.parts))
        unit = place / f"tidy_unit_{number}.cpp"
        unit.write_text(text_of(sources, enclosed))
        entry = entries[sources[0]]
        command = OUTPUT.sub(f" -o {unit.name}.o", entry["command"].replace(str(sources[0]), str(unit)))
        commands.append({"directory": entry["directory"], "command": command, "file": str(unit)})
        units.append((unit, sources))
    write_commands(folder, commands)
    return units
