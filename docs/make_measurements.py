#!/usr/bin/env python3
"""Writes the tables of docs/measurements/*.md that come from JSON files of mep_perf: make_measurements.py [--check].

A page marks the place of a table by two comments, `<!-- table: NAME -->` and `<!-- end -->`; TABLES says what it has.
--check writes nothing and fails when a page is not what would be written.
"""
import json
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "measurements"
TOKENS = (1, 16, 128, 512, 1024, 4096)

# Page: {table: (first column, [(head, file, field)])}. Fields: p50, p99, share (of the floor).
TABLES = {
    "four-h200": {
        **{op: (f"{op}, bytes", [(f"{head}{mark}", f"{op}-{ranks}", field)
                                 for head, ranks in columns for mark, field in ((", p50", "p50"), (", p99", "p99"))])
           for op, columns in {
               "allreduce": (("4 processes", "4p"), ("4 threads", "4t"), ("8 threads", "8t")),
               "allgather": (("4 processes", "4p"), ("4 threads", "4t")),
               "broadcast": (("4 processes", "4p"), ("4 threads", "4t")),
           }.items()},
        "dispatch-combine": ("tokens a rank", [
            ("dispatch bf16", "dispatch-bf16-4p", "p50"), ("share of the floor", "dispatch-bf16-4p", "share"),
            ("dispatch fp8", "dispatch-fp8-4p", "p50"), ("share", "dispatch-fp8-4p", "share"),
            ("dispatch bf16, slotted", "slotted-bf16-4p", "p50"), ("combine", "combine-4p", "p50"),
            ("moe bf16", "moe-bf16-4p", "p50"), ("moe fp8", "moe-fp8-4p", "p50")]),
        "dispatch-combine-8t": ("tokens a rank", [
            ("dispatch bf16", "dispatch-bf16-8t", "p50"), ("combine", "combine-8t", "p50")]),
    },
}
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.S)


def number(value):
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def cell(row, field):
    if row.get("errors") != 0:
        raise SystemExit(f"a row has wrong values: {row}")
    if field == "share":
        return f"{100 * row['floor_us'] / row['mep_us_p50']:.0f} %"
    return number(row[f"mep_us_{field}"])


def table(folder, first, columns):
    files = {name: json.loads((folder / f"{name}.json").read_text()) for _, name, _ in columns}
    lengths = {len(rows) for rows in files.values()}
    if len(lengths) != 1:
        raise SystemExit(f"{folder}: the files of one table have different lengths: {sorted(files)}")
    any_rows = next(iter(files.values()))
    if first.startswith("tokens"):
        keys = TOKENS[:len(any_rows)]
    else:
        keys = [row["bytes"] for row in any_rows]
        if any([row["bytes"] for row in rows] != keys for rows in files.values()):
            raise SystemExit(f"{folder}: the files of one table have different sizes: {sorted(files)}")
    lines = [f"| {' | '.join([first, *(head for head, _, _ in columns)])} |", "|---" * (len(columns) + 1) + "|"]
    for at, key in enumerate(keys):
        cells = [cell(files[name][at], field) for _, name, field in columns]
        lines.append(f"| {' | '.join([str(key), *cells])} |")
    return "\n".join(lines) + "\n"


def render(page, text):
    seen = []

    def fill(match):
        if match[2] not in TABLES[page]:
            raise SystemExit(f"{page}: no table is called {match[2]}")
        seen.append(match[2])
        return match[1] + table(FOLDER / page, *TABLES[page][match[2]]) + match[3]

    text = BLOCK.sub(fill, text)
    if sorted(seen) != sorted(TABLES[page]):
        raise SystemExit(f"{page}: these tables have no place: {sorted(TABLES[page].keys() - set(seen))}")
    return text


def main():
    for page in TABLES:
        path = FOLDER / f"{page}.md"
        text = path.read_text()
        rendered = render(page, text)
        if "--check" in sys.argv[1:]:
            if rendered != text:
                raise SystemExit(f"{path.name} is not what docs/make_measurements.py writes; run it")
        else:
            path.write_text(rendered)


if __name__ == "__main__":
    main()
