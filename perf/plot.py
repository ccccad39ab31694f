#!/usr/bin/env python3
"""Draws time and ratio over size from the JSON files of mep_perf.

Usage: plot.py FILE.json... [-o PICTURE]

With matplotlib the picture may be PNG, SVG or PDF (default mep_perf.png). Without it a plain SVG is
written (default mep_perf.svg).
"""

import argparse
import html
import json
import math
import os
import sys

COLORS = ["#1f6fb4", "#d1495b", "#2f8f5b", "#8a5fbf", "#c77d0a", "#4a4a4a"]
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


def collect_curves(paths):
    """Two lists of (label, [(bytes, value)]): times in microseconds, and ratios."""
    times, ratios = {}, {}
    for path in paths:
        prefix = os.path.basename(path) + ": " if len(paths) > 1 else ""
        for row in read_rows(path):
            name = f"{prefix}{row['op']} {row.get('dtype', '')}, {row['ranks']} ranks"
            size = row["bytes"]
            for key, side in (("mep_us_p50", "MEP"), ("mpi_us_p50", "MPI"), ("nccl_us_p50", "NCCL")):
                if key in row:
                    times.setdefault(f"{name}, {side}", []).append((size, row[key]))
            if "ratio" in row:
                ratios.setdefault(name, []).append((size, row["ratio"]))
    if not times:
        sys.exit("plot.py: there are no rows to draw")
    return list(times.items()), list(ratios.items())


def draw_with_matplotlib(times, ratios, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = 2 if ratios else 1
    figure, axes = pyplot.subplots(
        panels, 1, sharex=True, squeeze=False, figsize=(8, 3.6 * panels + 0.8)
    )
    for axis, curves, title in zip(
        axes[:, 0], (times, ratios), ("time, p50 (µs)", "ratio MEP / MPI")
    ):
        for label, points in curves:
            points = sorted(points)
            axis.plot([p[0] for p in points], [p[1] for p in points], marker="o", label=label)
        axis.set_ylabel(title)
        axis.set_xscale("symlog", base=2, linthresh=1)
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize="small")
    axes[0, 0].set_yscale("log")
    if ratios:
        axes[1, 0].axhline(1, color="gray", linewidth=1)
        axes[1, 0].set_ylim(bottom=0)
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


def svg_panel(curves, title, top, is_log):
    width, height, left, right = 760, 250, 70, 40
    sizes = sorted({size for _, points in curves for size, _ in points})
    values = [value for _, points in curves for _, value in points]
    place_y, marks = scale(values, top + height, top, is_log)

    def place_x(size):
        low, high = (math.log2(max(s, 1)) for s in (sizes[0], sizes[-1]))
        part = (math.log2(max(size, 1)) - low) / (high - low) if high > low else 0.5
        return left + part * (width - left - right)

    parts = [f'<text x="{left}" y="{top - 8}">{title}</text>']
    for mark in marks:
        y = place_y(mark)
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{mark:.4g}</text>')
    step = max(1, len(sizes) // 8)
    for size in sizes[::step]:
        parts.append(
            f'<text x="{place_x(size):.1f}" y="{top + height + 16}" '
            f'text-anchor="middle">{size_text(size)}</text>'
        )
    for index, (label, points) in enumerate(curves):
        color = COLORS[index % len(COLORS)]
        path = " ".join(f"{place_x(s):.1f},{place_y(v):.1f}" for s, v in sorted(points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for point in path.split():
            x, y = point.split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{color}"/>')
        y = top + height + 34 + 16 * index
        parts.append(f'<rect x="{left}" y="{y - 9}" width="12" height="10" fill="{color}"/>')
        parts.append(f'<text x="{left + 18}" y="{y}">{html.escape(label)}</text>')
    return parts, top + height + 34 + 16 * len(curves) + 30


def draw_svg(times, ratios, path):
    parts, bottom = svg_panel(times, "time, p50 (µs)", 30, True)
    if ratios:
        more, bottom = svg_panel(ratios, "ratio MEP / MPI", bottom, False)
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
    times, ratios = collect_curves(arguments.files)
    try:
        import matplotlib  # noqa: F401

        path = arguments.output or "mep_perf.png"
        draw_with_matplotlib(times, ratios, path)
    except ImportError:
        path = arguments.output or "mep_perf.svg"
        if not path.endswith(".svg"):
            sys.exit("plot.py: without matplotlib only SVG can be written: -o NAME.svg")
        draw_svg(times, ratios, path)
    print(path)


if __name__ == "__main__":
    main()
