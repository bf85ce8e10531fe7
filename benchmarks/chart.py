"""Draws the copy rates of docs/performance.md: `python -m benchmarks.chart FILE.svg [zh]`.

The figures are those of the page, so that the picture shows nothing else. Its colours follow the
reader's light or dark mode.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks import page

# What the picture calls a row of the benchmark.
ROWS = {
    "any size, 4 KiB to 4 GiB, any path: plain up, 64 KiB": "NumPy array to the GPU, 64 KiB",
    "any size, 4 KiB to 4 GiB, any path: plain up, 1 MiB": "1 MiB",
    "the same, 16 MiB: up": "16 MiB",
    "the same, 256 MiB: up": "256 MiB",
    "plain NumPy array to device, 1-2 GiB: 1 GiB": "1 GiB",
    "device to plain NumPy array, 1-2 GiB: 1 GiB": "GPU to a NumPy array, 1 GiB",
    "`a.T` of a plain 512 MiB array into a C-ordered device array": "a.T to the GPU, 512 MiB",
    "`NHWC -> NCHW` of 256 uint8 images of 512 x 512 x 3 (192 MiB) to the device": (
        "256 images, NHWC to NCHW"
    ),
}
COLUMNS = ["cudriver", "PyTorch", "CuPy", "driver"]
CHINESE = {
    "NumPy array to the GPU, 64 KiB": "NumPy 数组到 GPU，64 KiB",
    "GPU to a NumPy array, 1 GiB": "GPU 到 NumPy 数组，1 GiB",
    "a.T to the GPU, 512 MiB": "a.T 到 GPU，512 MiB",
    "256 images, NHWC to NCHW": "256 幅图像，NHWC 转 NCHW",
    "driver": "驱动",
    "Copies of ordinary (pageable) NumPy arrays, GB/s": "复制普通（可分页）NumPy 数组，GB/s",
}
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


def rates() -> dict[str, dict[str, float]]:
    """The figures in GB/s of each row that is drawn: medians over the hosts."""
    runs, found = page.hosts(), {}
    for row, name in ROWS.items():
        figures = {who: page.middle(row, who, runs) for who in COLUMNS}
        found[name] = {who: float(text) for who, text in figures.items() if text}
    return found


def svg(figures: dict[str, dict[str, float]], machine: str, texts: dict[str, str]) -> str:
    """The picture: a group of bars for each row. texts: what is written in place of others."""
    most = max(value for row in figures.values() for value in row.values())
    scale = (WIDTH - LEFT - 60) / most
    parts, y = [], TOP
    for row, values in figures.items():
        middle = y + len(values) * BAR / 2 + 4
        parts.append(
            f'<text x="{LEFT - 10}" y="{middle:g}" text-anchor="end">'
            f"{escape(texts.get(row, row))}</text>"
        )
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
        f'<text x="{LEFT + 100 * at + 18}" y="49">{texts.get(name, name)}</text>'
        for at, name in enumerate(COLUMNS)
    )
    height = y + 22
    title = "Copies of ordinary (pageable) NumPy arrays, GB/s"
    title = texts.get(title, title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>\n'
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>\n{legend}\n'
        + "\n".join(parts)
        + f'\n<text class="soft" x="{LEFT}" y="{height - 12}">{escape(machine)}</text>\n</svg>\n'
    )


def main(target: str, language: str = "en") -> None:
    """Writes the picture."""
    machine = page.hosts()[-1]["machine"]
    gpu, version = re.findall(r"^(?:\d+ x )?(.*?)[;(].*?CUDA ([\d.]+)", machine)[0]
    texts = CHINESE if language == "zh" else {}
    drawn = svg(rates(), f"{gpu.strip()}, CUDA {version}", texts)
    Path(target).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
