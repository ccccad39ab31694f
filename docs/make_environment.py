#!/usr/bin/env python3
"""Writes docs/reference/environment.md from the table in src/base/env.cpp: make_environment.py [--check]."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

HEAD = """# Environment variables

Written from the table in `src/base/env.cpp` by `docs/make_environment.py`; change the table, not this
page. `mep_info` prints those in force.

A variable that is unset or empty takes its default. A value that is malformed or out of range is an
error of `mep_comm_init` and `mep_comm_join` (`MEP_ERR_INVALID_ARGUMENT`), and the text names variable,
value and what is allowed. Fields of `mep_comm_config_t` that are set win over variables. A name that begins with `MEP_` and stands neither here nor below is warned of
once. In set-uid programs all of them are ignored.
"""

TAIL = """
Outside the library: the Python package loads the library that `MEP_LIBRARY` names, `MEP_DEEP_EP=1` makes `deep_ep` of vLLM's
processes MEP's ([guide](../guide/deep-ep.md#start-an-engine-with-it)), `MEP_NIXL_EP=1` does it with `nixl_ep`
([guide](../guide/nixl-ep.md#start-an-engine-with-it)), `MEP_SGLANG=1` serves SGLang's `customized` back-end
([guide](../guide/engines.md#sglangs-customized)), and the tests take their seed from `MEP_TEST_SEED`.
"""

ENTRY = re.compile(
    r'//\s*(?P<group>[^\n]+)\n'
    r'|\{\s*"(?P<name>MEP_\w+)",\s*"(?P<default>(?:[^"\\]|\\.)*)",\s*(?P<help>(?:"(?:[^"\\]|\\.)*"\s*)+)\}'
)


def joined(literals):
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')


def render(source):
    table = re.search(r"EnvVariable kTable\[\] = \{\n(.*?)\n\};", source, flags=re.S)
    if not table:
        raise SystemExit("env.cpp: the table was not found")
    out, groups = [HEAD], 0
    for match in ENTRY.finditer(table[1]):
        if match["group"]:
            out += [f"\n## {match['group'].strip().rstrip('.')}\n\n"
                    "| variable | default | meaning |\n|---|---|---|\n"]
            groups += 1
            continue
        if not groups:
            out += ["\n| variable | default | meaning |\n|---|---|---|\n"]
            groups = 1
        default = f"`{match['default']}`" if match["default"] else ""
        out.append(f"| `{match['name']}` | {default} | {joined(match['help']).replace('|', chr(92) + '|')} |\n")
    page = "".join(out) + TAIL
    missing = [n for n in re.findall(r'\{\s*"(MEP_\w+)"', table[1]) if f"`{n}`" not in page]
    if missing:
        raise SystemExit(f"env.cpp: not understood: {missing}")
    return page


def main():
    rendered = render((ROOT / "src/base/env.cpp").read_text())
    page = ROOT / "docs/reference/environment.md"
    if "--check" in sys.argv[1:]:
        if not page.exists() or page.read_text() != rendered:
            raise SystemExit("docs/reference/environment.md is not what docs/make_environment.py writes; run it")
    else:
        page.write_text(rendered)


if __name__ == "__main__":
    main()
