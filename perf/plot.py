#!/usr/bin/env python3
"""Draws time and ratio over size from the JSON files of mep_perf.

Usage: plot.py FILE.json... [-o PICTURE]

There is a row of panels for each number of ranks, and no more than six curves in a panel. Files of mep_perf suite
have several runs of each cell: the medians of their ratios are drawn.

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

COLORS = ["#1f6fb4", "#d1495b", "#2f8f5b", "#8a5fbf", "#c77d0a", "#4a4a4a"]
MOST_CURVES = len(COLORS)  # of a panel
MOST_TICKS = 8
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
    """Curves {label: [(bytes, value)]} over one pair of axes."""

    def __init__(self, title, unit, curves, colors):
        self.title, self.unit, self.curves, self.colors = title, unit, curves, colors
        sizes = [size for points in curves.values() for size, _ in points]
        values = [value for points in curves.values() for _, value in points]
        self.is_ratio = unit == RATIO
        self.x = SizeAxis(sizes)
        self.y_marks = log_marks(values + [1] * self.is_ratio)


RATIO = "time of MEP / time of MPI"
TIME = "time, median (µs)"


def size_text(size):
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


class SizeAxis:
    """Places of sizes by their logarithm; 0 stands a step before the smallest other one."""

    def __init__(self, sizes):
        powers = [math.log2(size) for size in sizes if size > 0] or [0]
        low, high = math.floor(min(powers)), math.ceil(max(powers))
        step = max(1, math.ceil((high - low) / (MOST_TICKS - 1)))
        self.zero = low - step
        self.ticks = [(power, size_text(2**power)) for power in range(low, high + 1, step)]
        if 0 in sizes:
            self.ticks.insert(0, (self.zero, "0 B"))
        self.low, self.high = self.ticks[0][0] - 0.4, max(high, self.ticks[-1][0]) + 0.4

    def place(self, size):
        return math.log2(size) if size > 0 else self.zero


def log_marks(values):
    """Round numbers for a logarithmic axis; the first and the last enclose all values."""
    values = [value for value in values if value > 0] or [1]
    low, high = min(values), max(values)
    digits = (1, 2, 5) if high / low < 100 else (1,)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    marks = [digit * 10.0**power for power in powers for digit in digits]
    first = max(index for index, mark in enumerate(marks) if mark <= low * (1 + 1e-9))
    last = min(index for index, mark in enumerate(marks) if mark >= high * (1 - 1e-9))
    return marks[first : max(last, first + 1) + 1]


def name_of(row, rows):
    """The operation, and what tells its rows from each other; a layer's type always."""
    alike = [other for other in rows if other["op"] == row["op"]]
    keys = [key for key in ("dtype", "mode") if len({other.get(key) for other in alike}) > 1
            or (key == "dtype" and row["op"] in ("dispatch", "combine", "moe"))]  # fmt: skip
    return " ".join([row["op"], *(str(row[key]) for key in keys if key in row)])


def collect_panels(paths):
    """Rows of panels."""
    files = [(os.path.basename(path) + ": " if len(paths) > 1 else "", read_rows(path)) for path in paths]
    of_suite = any("run" in row for _, rows in files for row in rows)
    points = {}  # {unit: {ranks: {label: {bytes: [value of each run]}}}}
    for prefix, rows in files:
        for row in rows:
            name = prefix + name_of(row, rows)
            figures = [(RATIO, name, "ratio")]
            if not of_suite:
                figures += [(TIME, f"{name}, {side}", f"{side.lower()}_us_p50") for side in ("MEP", "MPI", "NCCL")]
            for unit, label, key in figures:
                unit = unit.replace("MPI", "NCCL") if "nccl_us_p50" in row else unit
                if key in row:
                    curves = points.setdefault(unit, {}).setdefault(row["ranks"], {})
                    curves.setdefault(label, {}).setdefault(row["bytes"], []).append(row[key])
    if not points:
        sys.exit("plot.py: there are no rows to draw")
    units = sorted(points, key=lambda unit: unit != TIME)
    every_rank_count = sorted({ranks for unit in units for ranks in points[unit]})
    return [[panel for unit in units for panel in panels_of(points[unit], unit, ranks)] for ranks in every_rank_count]


def panels_of(of_unit, unit, ranks):
    """The panels of one number of ranks; a curve is in the same column in each row."""
    labels = list(dict.fromkeys(label for curves in of_unit.values() for label in curves))
    curves = of_unit.get(ranks, {})
    title = f"{ranks} rank" + "s" * (ranks != 1)
    colors = {label: COLORS[index % MOST_CURVES] for index, label in enumerate(labels)}
    for first in range(0, len(labels), MOST_CURVES):
        chosen = [label for label in labels[first : first + MOST_CURVES] if label in curves]
        if chosen:
            yield Panel(title, unit, {label: sorted((size, statistics.median(values))
                                                    for size, values in curves[label].items())
                                      for label in chosen}, colors)  # fmt: skip


def draw_with_matplotlib(rows, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = max(map(len, rows))
    figure, axes = pyplot.subplots(
        len(rows), columns, squeeze=False, figsize=(7.5 * columns, 3.8 * len(rows)), layout="constrained"
    )
    for row, places in zip(rows, axes):
        for axis in places[len(row) :]:
            axis.axis("off")
        for axis, panel in zip(places, row):
            for label, points in panel.curves.items():
                axis.plot([panel.x.place(size) for size, _ in points], [value for _, value in points],
                          marker="o", markersize=4, label=label, color=panel.colors[label])  # fmt: skip
            if panel.is_ratio:
                axis.axhline(1, color="gray", linewidth=1)
            axis.set_yscale("log")
            axis.set_yticks(panel.y_marks, [f"{mark:g}" for mark in panel.y_marks])
            axis.minorticks_off()
            axis.set_ylim(panel.y_marks[0], panel.y_marks[-1])
            axis.set_xticks(*zip(*panel.x.ticks))
            axis.set_xlim(panel.x.low, panel.x.high)
            axis.set_title(panel.title)
            axis.set_xlabel("size (bytes of a rank)")
            axis.set_ylabel(panel.unit)
            axis.grid(True, alpha=0.3)
            axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)


# Pixels of the SVG: a cell has a panel, its axes and its legend.
CELL_WIDTH, CELL_HEIGHT = 780, 340
LEFT, TOP, WIDTH, HEIGHT = 75, 36, 520, 236


def svg_panel(panel, left, top):
    first, last = (math.log10(panel.y_marks[at]) for at in (0, -1))
    parts = []

    def text(x, y, words, more=""):
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(words)}</text>')

    def line(x1, y1, x2, y2, color):
        parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>')

    def x_of(place):
        return left + (place - panel.x.low) / (panel.x.high - panel.x.low) * WIDTH

    def y_of(value):
        part = (math.log10(max(value, panel.y_marks[0])) - first) / (last - first)
        return top + HEIGHT * (1 - part)

    text(left + WIDTH / 2, top - 12, panel.title, 'text-anchor="middle" font-weight="bold"')
    for mark in panel.y_marks:
        line(left, y_of(mark), left + WIDTH, y_of(mark), "#888" if panel.is_ratio and mark == 1 else "#ddd")
        text(left - 6, y_of(mark) + 4, f"{mark:g}", 'text-anchor="end"')
    for place, words in panel.x.ticks:
        line(x_of(place), top, x_of(place), top + HEIGHT, "#eee")
        text(x_of(place), top + HEIGHT + 16, words, 'text-anchor="middle"')
    text(left + WIDTH / 2, top + HEIGHT + 36, "size (bytes of a rank)", 'text-anchor="middle"')
    x, y = left - 52, top + HEIGHT / 2
    text(x, y, panel.unit, f'text-anchor="middle" transform="rotate(-90 {x:.1f} {y:.1f})"')
    for index, (label, points) in enumerate(panel.curves.items()):
        color = panel.colors[label]
        path = [(x_of(panel.x.place(size)), y_of(value)) for size, value in points]
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in path]
        y = top + 16 + 20 * index
        parts.append(f'<rect x="{left + WIDTH + 14}" y="{y - 9}" width="12" height="10" fill="{color}"/>')
        text(left + WIDTH + 32, y, label)
    return parts


def draw_svg(rows, path):
    parts = []
    for row_number, row in enumerate(rows):
        for column, panel in enumerate(row):
            parts += svg_panel(panel, LEFT + column * CELL_WIDTH, TOP + row_number * CELL_HEIGHT)
    width, height = CELL_WIDTH * max(map(len, rows)), CELL_HEIGHT * len(rows)
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" '
            'fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
        )


def main():
    parser = argparse.ArgumentParser(description="Draws the JSON files of mep_perf.")
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("-o", "--output", help="picture to write")
    arguments = parser.parse_args()
    rows = collect_panels(arguments.files)
    try:
        import matplotlib  # noqa: F401

        path = arguments.output or "mep_perf.png"
        draw_with_matplotlib(rows, path)
    except ImportError:
        path = arguments.output or "mep_perf.svg"
        if not path.endswith(".svg"):
            sys.exit("plot.py: without matplotlib only SVG can be written: -o NAME.svg")
        draw_svg(rows, path)
    print(path)


if __name__ == "__main__":
    main()
