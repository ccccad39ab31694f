#!/usr/bin/env python3
"""Writes the pictures of this folder: make_pictures.py [--check].

Each picture is a light card with dark text, so that it reads on light and dark pages alike, and narrow, so that it reads on a phone.
"""
import html
import math
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
WIDTH = 480
INK, LINE, CARD = "#1d2733", "#5b6b7c", "#f6f8fa"
FILLS = {"white": "#ffffff", "blue": "#d9e8fb", "green": "#d8f0dd", "amber": "#fde9c4", "red": "#fbd9d5", "gray": "#e4e9ee", "violet": "#e6defa"}


class Picture:
    def __init__(self, name, height, title):
        self.name, self.height, self.parts = name, height, []
        self.title = title

    def box(self, x, y, width, height, fill, *lines, dashed=False, size=14):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{FILLS[fill]}" stroke="{LINE}"{dash}/>')
        first = y + height / 2 - (len(lines) - 1) * (size + 3) / 2 + size * 0.35
        for at, line in enumerate(lines):
            self.text(x + width / 2, first + at * (size + 3), line, "middle", size=size if at == 0 else size - 2, bold=at == 0 and len(lines) > 1)

    def text(self, x, y, line, anchor="start", size=13, bold=False, fill=INK):
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"{weight}>{html.escape(line)}</text>')

    def arrow(self, x1, y1, x2, y2, dashed=False, both=False):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        start = ' marker-start="url(#tip)"' if both else ""
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{LINE}" stroke-width="1.6" marker-end="url(#tip)"{start}{dash}/>')

    def line(self, x1, y1, x2, y2, dashed=False, color=LINE, width=1.6):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="{width}"{dash}/>')

    def svg(self):
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}" role="img" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">',
            f"<title>{html.escape(self.title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>',
            f'<rect x="1" y="1" width="{WIDTH - 2}" height="{self.height - 2}" rx="10" fill="{CARD}" stroke="#c9d3dd"/>',
            *self.parts, "</svg>", ""])


def layers():
    p = Picture("layers", 520, "Layers of the library: a call enters at the top and leaves through a transport")
    p.box(20, 18, 440, 36, "white", "program in C, C++, Fortran, Python")
    p.arrow(170, 54, 170, 76)
    p.box(20, 78, 300, 46, "blue", "C ABI", "include/mep.h, core/api")
    p.arrow(95, 124, 95, 146)
    p.arrow(245, 124, 245, 146)
    p.box(20, 148, 144, 62, "green", "core/ep", "dispatch,", "combine")
    p.box(176, 148, 144, 62, "green", "core/comm", "collectives,", "messages")
    p.arrow(95, 210, 95, 234)
    p.arrow(245, 210, 245, 234)
    p.box(20, 236, 300, 46, "green", "core/operation", "numbers operations on channels")
    p.arrow(170, 282, 170, 304)
    p.box(20, 306, 300, 46, "green", "core/world", "peers' windows, puts and signals, waiting")
    p.arrow(170, 352, 170, 374)
    p.box(20, 376, 300, 50, "amber", "transport", "inproc, shm, verbs, tcp, cuda")
    p.box(20, 444, 440, 56, "gray", "base, kernels, protocol", "log, environment, clock; arithmetic on one rank")
    p.box(346, 148, 114, 62, "violet", "membership", "who is in")
    p.box(346, 236, 114, 116, "violet", "control thread", "watches the", "members, changes", "the view", size=13)
    p.arrow(403, 236, 403, 212, both=True)
    p.arrow(346, 259, 322, 259)
    p.box(346, 376, 114, 50, "amber", "control links", "and pidfds")
    p.arrow(403, 352, 403, 374, both=True)
    p.text(403, 100, "each rank has one", "middle", 12)
    p.text(403, 116, "control thread", "middle", 12)
    return p


def row():
    p = Picture("row", 560, "The way of a row: dispatch to its expert, and combine back")
    p.text(110, 30, "rank of the token", "middle", 15, True)
    p.text(370, 30, "rank of the expert", "middle", 15, True)
    p.text(240, 62, "dispatch", "middle", 14, True)
    p.box(20, 48, 180, 44, "blue", "x", "[tokens, hidden]")
    p.box(20, 112, 180, 44, "white", "count rows", "for each expert")
    p.arrow(110, 92, 110, 110)
    p.arrow(200, 134, 278, 134, both=True)
    p.text(240, 125, "counts", "middle", 12)
    p.box(280, 112, 180, 44, "white", "counts of all ranks")
    p.box(20, 176, 180, 44, "white", "place of the row", "lower sources + own index")
    p.arrow(110, 156, 110, 174)
    p.arrow(200, 198, 278, 198)
    p.text(240, 189, "row", "middle", 12)
    p.box(280, 176, 180, 44, "green", "recv_x", "[experts here, rows]")
    p.box(20, 240, 180, 32, "white", "rows ready")
    p.arrow(110, 220, 110, 238)
    p.arrow(200, 256, 278, 256)
    p.text(240, 247, "signal", "middle", 12)
    p.box(280, 240, 180, 32, "white", "all have come")
    p.arrow(370, 220, 370, 238)
    p.line(20, 290, 460, 290, dashed=True)
    p.text(240, 322, "combine", "middle", 14, True)
    p.arrow(370, 272, 370, 306)
    p.box(280, 308, 180, 44, "amber", "the expert", "reads recv_x in place")
    p.arrow(370, 352, 370, 370)
    p.box(280, 372, 180, 44, "green", "combine_input", "the outputs, y")
    p.arrow(278, 394, 202, 394)
    p.text(240, 385, "read", "middle", 12)
    p.box(20, 372, 180, 44, "white", "terms of each token", "weight times y")
    p.arrow(110, 416, 110, 434)
    p.box(20, 436, 180, 44, "blue", "out", "[tokens, hidden]")
    p.text(240, 455, "summed in float32, in the", size=12)
    p.text(240, 471, "order of k, rounded once", size=12)
    p.text(20, 512, "A row is written once, to the place where the expert reads it. Where", size=12)
    p.text(20, 528, "ranks do not map each other's memory, a put carries each row there, and", size=12)
    p.text(20, 544, "another one brings the output back.", size=12)
    return p


def buffer():
    p = Picture("buffer", 442, "The rows of one expert in recv_x: packed and slotted")
    p.text(20, 32, "recv_x of a rank: one part for each of its experts", size=15, bold=True)
    for at, (name, fill) in enumerate((("expert 0", "green"), ("expert 1", "green"), ("...", "gray"), ("expert E_local-1", "green"))):
        widths = (110, 110, 60, 160)
        p.box(20 + sum(widths[:at]), 46, widths[at], 36, fill, name)
    p.line(130, 84, 20, 122, dashed=True)
    p.line(240, 84, 460, 122, dashed=True)
    p.text(20, 146, "packed: counts first, then rows without gaps", size=14, bold=True)
    x = 20
    for name, width, fill in (("source 0", 100, "blue"), ("source 1", 76, "amber"), ("source 2", 120, "violet"), ("free", 144, "gray")):
        p.box(x, 156, width, 40, fill, name, size=13)
        x += width
    p.arrow(196, 222, 196, 199)
    p.text(196, 238, "source 2 begins behind the rows of 0 and 1:", "middle", 12)
    p.text(196, 254, "it knows their counts", "middle", 12)
    p.text(20, 292, "slotted: no counts first; source s begins at s * M", size=14, bold=True)
    x = 20
    for name, rows, fill in (("source 0", 100, "blue"), ("source 1", 60, "amber"), ("source 2", 130, "violet")):
        p.box(x, 302, 146, 40, "gray", dashed=True)
        p.box(x, 302, rows, 40, fill, *(("src 1",) if rows < 80 else (name,)), size=13)
        x += 147
    for at, label in enumerate(("0", "M", "2M")):
        p.arrow(21 + at * 147, 366, 21 + at * 147, 345)
        p.text(21 + at * 147 + (0 if at else 0), 382, label, "middle" if at else "start", 13)
    p.text(20, 408, "M is max_tokens_per_rank. Sources are in rank order,", size=12)
    p.text(20, 424, "and their rows in token order.", size=12)
    return p


def death():
    p = Picture("death", 640, "A rank dies, the others go on, a replacement comes")
    lanes = {"rank 0": 96, "rank 1": 216, "rank 2": 336}
    for name, x in lanes.items():
        p.box(x - 46, 16, 92, 32, "blue", name)
    p.text(432, 36, "epoch", "middle", 13, True)
    for name in ("rank 0", "rank 2"):
        p.line(lanes[name], 48, lanes[name], 532, color="#3b7dd8", width=3)
    p.line(216, 48, 216, 172, color="#3b7dd8", width=3)

    def call(y, text, fill, names=("rank 0", "rank 1", "rank 2")):
        for name in names:
            p.box(lanes[name] - 46, y, 92, 40, fill, *text, size=12)
    call(66, ("allreduce 8", "success"), "green")
    call(126, ("allreduce 9", "waits"), "white", ("rank 0", "rank 2"))
    p.box(170, 126, 92, 40, "red", "dies", size=14)
    p.text(432, 92, "1", "middle", 16, True)
    p.line(398, 186, 466, 186, dashed=True)
    p.text(216, 192, "the system tells of its end", "middle", 12)
    p.text(216, 208, "at once: no timeout", "middle", 12)
    call(222, ("allreduce 9", "PEER_FAILED"), "red", ("rank 0", "rank 2"))
    p.text(432, 248, "2", "middle", 16, True)
    call(282, ("allreduce 10", "sum of 0 and 2"), "green", ("rank 0", "rank 2"))
    p.box(170, 300, 92, 42, "violet", "new process", "mep_comm_join", size=12)
    p.line(216, 342, 216, 392, color="#8a6fd6", width=3, dashed=True)
    call(352, ("members call", "recover_ranks"), "amber", ("rank 0", "rank 2"))
    p.arrow(142, 372, 168, 372)
    p.arrow(290, 372, 264, 372)
    p.box(170, 352, 92, 40, "violet", "is rank 1", size=13)
    p.line(398, 412, 466, 412, dashed=True)
    p.text(432, 436, "3", "middle", 16, True)
    p.line(216, 392, 216, 532, color="#3b7dd8", width=3)
    call(422, ("broadcast", "of the state"), "green")
    p.arrow(142, 442, 168, 442)
    call(482, ("allreduce", "success"), "green")
    p.box(20, 546, 440, 64, "gray", "Numbers of ranks stay", "All survivors get the same result of the same call,", "so all of them can do the same next.")
    return p


def recovery():
    """The medians of docs/measurements/two-core-epyc-failures.md: to the error, and on to the next success."""
    page = (FOLDER.parent / "measurements/two-core-epyc-failures.md").read_text()
    stages = (("notice", "to the error", "red"), ("resume", "to the next success", "green"))
    values = {name: [float(v) for v in re.search(rf"^\| {name} \|(.*)\|$", page, re.M)[1].split("|")] for name, _, _ in stages}
    kills = re.search(r"--kills (\d+)", page)[1]
    p = Picture("recovery", 286, "Milliseconds from the death of a rank to the next success of the others")
    p.text(20, 30, "From the death of a rank to the next success", size=15, bold=True)
    p.text(20, 50, f"median of {kills} kills (60 with 8 ranks), milliseconds, 16 cores of one host", size=12)
    last = math.ceil(values["resume"][6])
    scale = 320 / last
    for row, ranks in enumerate((2, 4, 8)):
        y, x = 68 + row * 50, 20.0
        for name, _, fill in stages:
            end = 20 + values[name][3 * row] * scale
            p.parts.append(f'<rect x="{x:.1f}" y="{y}" width="{end - x:.1f}" height="30" fill="{FILLS[fill]}" stroke="{LINE}" stroke-width="0.8"/>')
            x = end
        p.text(x + 8, y + 20, f"{ranks} ranks: {values['resume'][3 * row]:g}", size=13, bold=True)
    for tick in range(last + 1):
        x = 20 + tick * scale
        p.line(round(x, 1), 216, round(x, 1), 221, width=1)
        p.text(round(x, 1), 235, str(tick), "middle", 12)
    p.line(20, 216, 340, 216, width=1)
    x = 20
    for _, text, fill in stages:
        p.parts.append(f'<rect x="{x}" y="254" width="14" height="14" fill="{FILLS[fill]}" stroke="{LINE}" stroke-width="0.8"/>')
        p.text(x + 20, 266, text, size=13)
        x += 120
    return p


def main():
    stale = []
    for picture in (layers(), row(), buffer(), death(), recovery()):
        file = FOLDER / f"{picture.name}.svg"
        if "--check" not in sys.argv[1:]:
            file.write_text(picture.svg())
        elif not file.exists() or file.read_text() != picture.svg():
            stale.append(file.name)
    if stale:
        raise SystemExit(f"docs/pictures: {', '.join(stale)} is not what make_pictures.py writes; run it")


if __name__ == "__main__":
    main()
