"""Draws the copy rates of docs/performance.md: `python -m benchmarks.chart FILE.md FILE.svg`.

The figures are read from the page's tables, so that the picture shows nothing else. Its colours
follow the reader's light or dark mode.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.sax.saxutils import escape

# A row of the table: what the picture calls it.
ROWS = {
    "plain NumPy array to device, 1-2 GiB: 1 GiB": "NumPy array to the GPU, 1 GiB",
    "device to plain NumPy array, 1-2 GiB: 1 GiB": "GPU to a NumPy array, 1 GiB",
    "`a.T` of a plain 512 MiB array into a C-ordered device array": "a.T to the GPU, 512 MiB",
    "`a[:, ::2]` to the device, 256 MiB of data": "a[:, ::2] to the GPU, 256 MiB",
    "`NHWC -> NCHW` of 256 uint8 images of 512 x 512 x 3 (192 MiB) to the device": (
        "256 images, NHWC to NCHW"
    ),
}
COLUMNS = ["cudriver", "PyTorch", "CuPy", "driver"]
# Paper, because a page's own switch between light and dark does not reach a picture.
STYLE = """
.paper { fill: #ffffff; }
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; }
.soft { fill: #59636e; }
.figure { font-size: 11px; }
.cudriver { fill: #4f8f00; } .PyTorch { fill: #de6b48; }
.CuPy { fill: #2f81c4; } .driver { fill: #8c959f; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #161b22; } text { fill: #e6edf3; } .soft { fill: #9198a1; }
}
"""
LEFT, WIDTH, BAR, GAP, TOP = 236, 760, 14, 16, 66  # pixels


def rates(page: str) -> dict[str, dict[str, float]]:
    """The figures in GB/s of each row that is drawn; a cell without one is left out."""
    lines = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    table: dict[str, dict[str, str]] = {}
    for line in cells:
        if line[:2] == ["work", "unit"]:
            head = line
        elif line[1:2] == ["GB/s"]:
            table.setdefault(line[0], dict(zip(head, line, strict=False)))
    found = {}
    for work, row in ROWS.items():
        figures = {name: re.match(r"[\d.]+", table[work].get(name, "")) for name in COLUMNS}
        found[row] = {name: float(match[0]) for name, match in figures.items() if match}
    return found


def svg(figures: dict[str, dict[str, float]], machine: str) -> str:
    """The picture: a group of bars for each row."""
    most = max(value for row in figures.values() for value in row.values())
    scale = (WIDTH - LEFT - 60) / most
    parts, y = [], TOP
    for row, values in figures.items():
        middle = y + len(values) * BAR / 2 + 4
        parts.append(f'<text x="{LEFT - 10}" y="{middle:g}" text-anchor="end">{escape(row)}</text>')
        for name, value in values.items():
            end = LEFT + value * scale
            parts.append(
                f'<rect class="{name}" x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="12"/>'
                f'<text class="figure" x="{end + 5:.1f}" y="{y + 10}">{value:g}</text>'
            )
            y += BAR
        y += GAP
    legend = "".join(
        f'<rect class="{name}" x="{LEFT + 100 * at}" y="38" width="12" height="12"/>'
        f'<text x="{LEFT + 100 * at + 18}" y="49">{name}</text>'
        for at, name in enumerate(COLUMNS)
    )
    height = y + 22
    title = "Copies of ordinary (pageable) NumPy arrays, GB/s"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>\n'
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>\n{legend}\n'
        + "\n".join(parts)
        + f'\n<text class="soft" x="{LEFT}" y="{height - 12}">{escape(machine)}</text>\n</svg>\n'
    )


def main(source: str, target: str) -> None:
    """Reads the page, writes the picture."""
    page = Path(source).read_text(encoding="utf-8")
    machine = r"<!-- bench:begin -->\n(?:\d+ x )?(.*?);.*?CUDA ([\d.]+)"  # one GPU is measured
    ((gpu, version),) = re.findall(machine, page)
    Path(target).write_text(svg(rates(page), f"{gpu}, CUDA {version}"), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
