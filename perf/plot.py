#!/usr/bin/env python3
"""Draws time and ratio over size from the JSON files of mep_perf.

Usage: plot.py FILE.json... [-o PICTURE]

Files of mep_perf suite have several runs of each cell: the medians of their ratios are drawn, with a panel
for each number of ranks.

With matplotlib the picture may be PNG, SVG or PDF (default mep_perf.png). Without it a plain SVG is
written (default mep_perf.svg).
"""

import argparse
import html
import json
import math
import os
import statistics
import sys

COLORS = ["#1f6fb4", "#d1495b", "#2f8f5b", "#8a5fbf", "#c77d0a", "#4a4a4a", "#12a5a5", "#e07bb5", "#7d9b1a",
          "#7a4a21", "#8fb7e0", "#111111"]  # fmt: skip
NEEDED = ("op", "ranks", "bytes")


def read_rows(path):
    """The rows of one file; a file that is none of mep_perf's is refused by name."""
    try:
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)
    except (OSError, ValueError) as error:
        sys.exit(f"plot.py: {path}: {error}")
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and all(key in row for key in NEEDED) for row in rows
    ):
        sys.exit(f"plot.py: {path} is no JSON file of mep_perf")
    return rows


class Panel:
    """Curves {label: [(bytes, value)]} over one axis."""

    def __init__(self, title, curves, is_log=False):
        self.title, self.curves, self.is_log = title, curves, is_log


def collect_panels(paths):
    files = [(os.path.basename(path) + ": " if len(paths) > 1 else "", read_rows(path)) for path in paths]
    of_suite = any("run" in row for _, rows in files for row in rows)
    panels = panels_of_suite(files) if of_suite else panels_of_rows(files)
    if not panels:
        sys.exit("plot.py: there are no rows to draw")
    return panels


def panels_of_suite(files):
    runs = {}  # {ranks: {label: {bytes: [ratio of each run]}}}
    for prefix, rows in files:
        for row in rows:
            if "ratio" in row:
                name = f"{prefix}{row['op']}" + (f" {row['dtype']}" if row["op"] == "moe" else "")
                points = runs.setdefault(row["ranks"], {}).setdefault(name, {})
                points.setdefault(row["bytes"], []).append(row["ratio"])
    return [
        Panel(f"ratio MEP / MPI, {ranks} ranks",
              {name: [(size, statistics.median(ratios)) for size, ratios in points.items()]
               for name, points in curves.items()}, is_log=True)
        for ranks, curves in sorted(runs.items())
    ]  # fmt: skip


def panels_of_rows(files):
    """Times in microseconds, and ratios where there are some."""
    times, ratios = {}, {}
    for prefix, rows in files:
        for row in rows:
            name = f"{prefix}{row['op']} {row.get('dtype', '')}, {row['ranks']} ranks"
            size = row["bytes"]
            for key, side in (("mep_us_p50", "MEP"), ("mpi_us_p50", "MPI"), ("nccl_us_p50", "NCCL")):
                if key in row:
                    times.setdefault(f"{name}, {side}", []).append((size, row[key]))
            if "ratio" in row:
                ratios.setdefault(name, []).append((size, row["ratio"]))
    panels = [Panel("time, p50 (µs)", times, True), Panel("ratio MEP / MPI", ratios)]
    return [panel for panel in panels if panel.curves]


def colors_of(panels):
    """{label: color}, the same in all panels."""
    labels = dict.fromkeys(label for panel in panels for label in panel.curves)
    return {label: COLORS[index % len(COLORS)] for index, label in enumerate(labels)}


def draw_with_matplotlib(panels, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(panels), 1, sharex=True, squeeze=False, figsize=(9.5, 3.6 * len(panels) + 0.8)
    )
    colors = colors_of(panels)
    for axis, panel in zip(axes[:, 0], panels):
        for label, points in panel.curves.items():
            points = sorted(points)
            axis.plot([p[0] for p in points], [p[1] for p in points], marker="o", label=label, color=colors[label])
        axis.set_ylabel(panel.title)
        axis.set_xscale("symlog", base=2, linthresh=1)
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
        if panel.title.startswith("ratio"):
            axis.axhline(1, color="gray", linewidth=1)
        if panel.is_log:
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
    axes[-1, 0].set_xlabel("bytes")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def size_text(size):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.4g} {unit}"
        size /= 1024
    return ""


def scale(values, low, high, is_log):
    """A function from values to [low, high] and round numbers for the axis."""
    if is_log:
        first = math.floor(math.log10(min(v for v in values if v > 0)))
        last = max(first + 1, math.ceil(math.log10(max(values))))
        marks = [10.0**power for power in range(first, last + 1)]

        def place(value):
            position = (math.log10(max(value, 10.0**first)) - first) / (last - first)
            return low + (high - low) * position

        return place, marks
    top = max(1.2, 1.1 * max(values))
    step = 10 ** math.floor(math.log10(top))
    step = step / 4 if top / step < 3 else step
    marks = [i * step for i in range(int(top / step) + 1)]
    return (lambda value: low + (high - low) * value / top), marks


def svg_panel(panel, colors, top):
    curves = list(panel.curves.items())
    width, height, left, right = 760, 250, 70, 40
    sizes = sorted({size for _, points in curves for size, _ in points})
    values = [value for _, points in curves for _, value in points]
    place_y, marks = scale(values, top + height, top, panel.is_log)

    def place_x(size):
        low, high = (math.log2(max(s, 1)) for s in (sizes[0], sizes[-1]))
        part = (math.log2(max(size, 1)) - low) / (high - low) if high > low else 0.5
        return left + part * (width - left - right)

    parts = [f'<text x="{left}" y="{top - 8}">{panel.title}</text>']
    for mark in marks:
        y = place_y(mark)
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{mark:.4g}</text>')
    free = 0  # from here on no label stands
    for size in sizes:
        if place_x(size) < free:
            continue
        free = place_x(size) + 75
        parts.append(
            f'<text x="{place_x(size):.1f}" y="{top + height + 16}" '
            f'text-anchor="middle">{size_text(size)}</text>'
        )
    for index, (label, points) in enumerate(curves):
        color = colors[label]
        path = " ".join(f"{place_x(s):.1f},{place_y(v):.1f}" for s, v in sorted(points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for point in path.split():
            x, y = point.split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{color}"/>')
        y = top + height + 34 + 16 * index
        parts.append(f'<rect x="{left}" y="{y - 9}" width="12" height="10" fill="{color}"/>')
        parts.append(f'<text x="{left + 18}" y="{y}">{html.escape(label)}</text>')
    return parts, top + height + 34 + 16 * len(curves) + 30


def draw_svg(panels, path):
    parts, bottom = [], 30
    for panel in panels:
        more, bottom = svg_panel(panel, colors_of(panels), bottom)
        parts += more
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{bottom}" '
            'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" '
            'fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
        )


def main():
    parser = argparse.ArgumentParser(description="Draws the JSON files of mep_perf.")
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("-o", "--output", help="picture to write")
    arguments = parser.parse_args()
    panels = collect_panels(arguments.files)
    try:
        import matplotlib  # noqa: F401

        path = arguments.output or "mep_perf.png"
        draw_with_matplotlib(panels, path)
    except ImportError:
        path = arguments.output or "mep_perf.svg"
        if not path.endswith(".svg"):
            sys.exit("plot.py: without matplotlib only SVG can be written: -o NAME.svg")
        draw_svg(panels, path)
    print(path)


if __name__ == "__main__":
    main()
