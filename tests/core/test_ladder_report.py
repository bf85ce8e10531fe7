"""What `cudriver bench` prints and draws of a report, to the letter."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from cudriver.ladder import plot, report
from cudriver.ladder.result import Measured, add_ratios
from cudriver.ladder.rungs import BY_NAME, RUNGS
from cudriver.stack import say, text

pytestmark = pytest.mark.apart

MIB = 1 << 20


def row(rung: str, way: str, size: int, *rates: float, **more: Any) -> dict[str, Any]:
    """Timings of these rates, in GB/s."""
    seconds = [size / rate / 1e9 for rate in rates]
    return Measured(
        BY_NAME[rung], way, size, seconds=seconds, asked=size, **{"verified": True, **more}
    ).to_dict()


def made(*sizes: int, **more: Any) -> dict[str, Any]:
    rows = []
    for size in sizes:
        rows += [
            row("pageable", "to_device", size, 4, 5, 6),
            row("pageable", "from_device", size, 8),
            row("staged", "to_device", size, 20, notes=["a note"]),
            row("staged", "from_device", size, 16, 24, notes=["a note"]),
            row("page_locked", "to_device", size, 50),
            row("page_locked", "from_device", size, 40, verified=False),
            row("mapped", "read", size, 25),
            row("peer", "copy", size, 300, devices=(0, 1)),
            row("peer", "copy", size, 200, devices=(1, 0)),
            row("peer", "copy", size, 100, devices=(0, 2)),
            row("device", "copy", size, skipped="no memory", verified=None),
            row("global", "write", size, 1234.5),
        ]
    rows += [row("shared", "read", sizes[-1], 9000), row("shared", "write", sizes[-1], 8000)]
    add_ratios(rows)
    return {
        "simulated": False, "device": {"ordinal": 1, "name": "NVIDIA H200"}, "device_count": 3,
        "driver": {"cuda": "13.0", "path": "/usr/lib/libcuda.so.1"}, "sizes": list(sizes),
        "rounds": 3, "notes": ["No memory for 4 MiB."], "verified": False, "rungs": rows, **more,
    }  # fmt: skip


HEAD = """\
device  1, NVIDIA H200
driver  CUDA 13.0  /usr/lib/libcuda.so.1
arrays  1 MiB; the median of 3 rounds, ± half of what lies between the quartiles

"""
TAIL = """\
No memory for 4 MiB.

WRONG BYTES: see above
"""
WIDE = """\
                        to device       from device         against      against
GB/s                    or read         or write          one above  page-locked
────────────────────────────────────────────────────────────────────────────────
pageable, driver alone  5.00 ±10%       8.00 ±0%                           0.10x
pageable, cu.copy       20.0 ±0%        19.2 ±10%             4.00x        0.40x
page-locked             50.0 ±0%        40.0 ±0%              2.50x        1.00x
  WRONG BYTES arrived
page-locked, mapped     25.0 ±0%                              0.50x        0.50x
peer, GPU 0 ⇄ 1         300 ±0%         200 ±0%               12.0x        6.00x
peer, GPU 0 ⇄ 2         100 ±0%                               4.00x        2.00x
device to device        no memory
global, in a kernel                     1,234 ±0%             4.12x        30.9x
shared, in a kernel     9,000 ±0%       8,000 ±0%             30.0x         180x
"""
NARROW = """\
                        to device    from device     against
GB/s                    or read      or write         locked
------------------------------------------------------------
pageable, driver alone  5.00 +-10%   8.00 +-0%         0.10x
pageable, cu.copy       20.0 +-0%    19.2 +-10%        0.40x
page-locked             50.0 +-0%    40.0 +-0%         1.00x
  WRONG BYTES arrived
page-locked, mapped     25.0 +-0%                      0.50x
peer, GPU 0 <> 1        300 +-0%     200 +-0%          6.00x
peer, GPU 0 <> 2        100 +-0%                       2.00x
device to device        no memory
global, in a kernel                  1,234 +-0%        30.9x
shared, in a kernel     9,000 +-0%   8,000 +-0%         180x
"""
SWEEP = """\
GB/s to the device, or read
size       pageable    staged    locked    mapped      peer
───────────────────────────────────────────────────────────
1 MiB          5.00      20.0      50.0      25.0       300
4 MiB          5.00      20.0      50.0      25.0       300

GB/s from the device, or write
size       pageable    staged    locked    global
─────────────────────────────────────────────────
1 MiB          8.00      19.2      40.0     1,234
4 MiB          8.00      19.2      40.0     1,234

shared, in a kernel, at any size: read 9,000 ±0%, write 8,000 ±0% (GB/s)
device to device: no memory
pageable, cu.copy, 1 MiB, 4 MiB: a note
WRONG BYTES arrived: page-locked, from_device, 1 MiB
WRONG BYTES arrived: page-locked, from_device, 4 MiB
"""


def shown(
    told: dict[str, Any], width: int = 80, why: str | None = None, **style: bool
) -> list[str]:
    return list(report.lines(told, why, report.Style(width, **style)))


@pytest.mark.parametrize(
    ("width", "plain", "table"), [(80, False, WIDE), (60, True, NARROW)], ids=["80", "60"]
)
def test_one_size_is_a_table_with_a_word_on_each_rung(width: int, plain: bool, table: str) -> None:
    lines = shown(made(MIB), width, plain=plain)
    taught = [line for line in lines if line.startswith("  ") and "WRONG" not in line]
    taught = [line for line in taught if "device" not in line or "to device  " not in line]
    if width == 80:
        assert "\n".join(line for line in lines if line not in taught) + "\n" == HEAD + WIDE + TAIL
    else:
        start = next(i for i, line in enumerate(lines) if "to device" in line)
        kept = [line for line in lines[start:] if line not in taught]
        assert "\n".join(kept) + "\n" == table + TAIL
        assert [line for line in lines[:start] if len(line) > 60 or not line.isascii()] == []
    words = " ".join(line.strip() for line in taught)
    said = [
        word for rung in RUNGS for word in [rung.teaches, *["a note"] * (rung.name == "staged")]
    ]
    assert words.endswith(" ".join(said))


def test_several_sizes_are_a_table_each_way() -> None:
    lines = shown(made(MIB, 4 * MIB))
    start = lines.index("GB/s to the device, or read")
    assert "\n".join(lines[start:]) + "\n" == SWEEP + TAIL
    assert " ".join(map(str.strip, lines[2:start])).startswith("arrays  1 MiB, 4 MiB; the median")


def test_what_is_right_is_said_and_one_round_is_one() -> None:
    told = made(MIB, verified=True, rounds=1, notes=[])
    for each in told["rungs"]:
        each["verified"] = each["verified"] is not None or None
    lines = shown(told)
    assert lines[2].startswith("arrays  1 MiB; the median of 1 round, ")
    assert lines[-2:] == ["", "every byte is right"]
    assert not any("WRONG" in line for line in lines)


def test_a_simulated_driver_is_said_first() -> None:
    lines = shown(made(MIB, simulated=True), why="CUDRIVER_LIBRARY is sim")
    assert lines[:3] == [
        "SIMULATED DRIVER: CUDRIVER_LIBRARY is sim.",
        "No GPU takes part, so no rates are shown: only what was copied and verified, and",
        "by which path. The last column is another machine's: an NVIDIA H200 on 22",
    ]


SIMULATED = """\
                        to device     from device   path of            recorded,
                        or read       or write      cu.copy                 GB/s
────────────────────────────────────────────────────────────────────────────────
pageable, driver alone  1 MiB ✓       1 MiB ✓                               8.82
pageable, cu.copy       1 MiB ✓       1 MiB ✓       staged                  46.1
page-locked             1 MiB ✓       WRONG                                 55.4
page-locked, mapped     1 MiB ✓                                             51.3
peer                    3 copies ✓
device to device        no memory
global, in a kernel                   1 MiB ✓                              4,310
shared, in a kernel     ✓             ✓                                   33,014
"""


def test_the_simulated_driver_shows_what_was_copied_and_no_rates_of_its_own() -> None:
    told = made(MIB, simulated=True)
    told["rungs"][2]["path"] = told["rungs"][3]["path"] = "staged"
    lines = shown(told, why="x")
    taught = [line for line in lines if line.startswith("  ") and "device  " not in line]
    taught = [line for line in taught if "GB/s" not in line]
    start = next(number for number, line in enumerate(lines) if "to device" in line)
    kept = [line for line in lines[start:] if line not in taught]
    assert "\n".join(kept) + "\n" == SIMULATED + TAIL
    assert " ".join(map(str.strip, taught)) == " ".join(rung.teaches for rung in RUNGS)
    several = shown(made(MIB, 4 * MIB, simulated=True), 60, plain=True)
    assert f"{'pageable, cu.copy':24}{'2 sizes ok':12}{'2 sizes ok':12}{'46.1':>12}" in several
    assert [line for line in several if len(line) > 60 or not line.isascii()] == []


def test_colour_is_loud_for_errors_strong_for_heads_and_faint_for_words() -> None:
    lines = shown(made(MIB), colour=True)
    marked = {line for line in lines if "\x1b" in line}
    simulated = shown(made(MIB, simulated=True), why="x", colour=True)
    assert simulated[0] == "\x1b[1;31mSIMULATED DRIVER: x.\x1b[0m"
    assert "\x1b[1;31m  WRONG BYTES arrived\x1b[0m" in marked
    assert "\x1b[1;31mWRONG BYTES: see above\x1b[0m" in marked
    assert f"\x1b[1m{WIDE.splitlines()[0]}\x1b[0m" in marked
    assert f"\x1b[2m{'─' * 80}\x1b[0m" in marked
    assert "\x1b[2m  a note\x1b[0m" in marked
    assert not any("\x1b" in line for line in shown(made(MIB)))


@pytest.mark.parametrize("width", [60, 70, 80, 200])
def test_a_sweep_of_all_rungs_fits_its_width(width: int) -> None:
    told = made(MIB, 4 * MIB)
    told["rungs"] += [row("device", "copy", MIB, 1), row("global", "read", MIB, 2)]
    lines = shown(told, width)
    (head,) = [line for line in lines if line.startswith("size") and "device" in line]
    column = min(10, (width - 9) // 7)
    ends = [9 + column * number for number in range(2, 6)]  # a head stands above its figures
    figures = lines[lines.index(head) + 2]
    assert [{head[end - 1], figures[end - 1]} & {" "} for end in ends] == [set()] * 4
    assert len(head) == 9 + 7 * column
    assert " ".join(head.split()) == "size pageable staged locked mapped peer device global"


def test_a_rung_that_is_skipped_at_some_sizes_is_told() -> None:
    for skipped in (MIB, 4 * MIB):
        told = made(MIB, 4 * MIB)
        told["rungs"] = [
            each if each["rung"] != "device" or each["size"] == skipped
            else row("device", "copy", each["size"], 1)
            for each in told["rungs"]
        ]  # fmt: skip
        assert shown(told).count("device to device: no memory") == 1


# ---- the plot ------------------------------------------------------------------------------------


def test_marks_of_an_axis_and_powers_of_ten() -> None:
    assert [plot.tick(value) for value in (0.01, 0.5, 0.999, 1, 10, 10000)] == [
        "0.01", "0.5", "0.999", "1", "10", "10,000",
    ]  # fmt: skip
    powers = [plot.floor_log(value) for value in (0.01, 0.0999, 1, 9.99, 10, 1000)]
    assert powers == [-2, -2, 0, 0, 1, 3]


def test_bars_of_a_rung_that_was_not_measured_or_goes_one_way() -> None:
    told = made(MIB)
    assert plot.bar_pairs(told, "device") == []
    ((title, there, back),) = plot.bar_pairs(told, "global")
    assert (title, there, back["gb_per_s"]) == ("global, in a kernel", None, pytest.approx(1234.5))
    pairs = plot.bar_pairs(told, "peer")
    assert [(name, back is None) for name, _, back in pairs] == [
        ("peer, GPU 0 and 1", False),
        ("peer, GPU 0 and 2", True),
    ]


def texts(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.texts]


def test_bars_have_their_rates_whiskers_and_names() -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    figure = plot.bars(made(MIB))
    (axes,) = figure.axes
    assert texts(figure) == [
        "The memory ladder of NVIDIA H200",
        "arrays of 1 MiB, median of 3 rounds, whiskers from the slowest to the fastest",
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "pageable, driver alone", "pageable, cu.copy", "page-locked", "page-locked, mapped",
        "peer, GPU 0 and 1", "peer, GPU 0 and 2", "global, in a kernel", "shared, in a kernel",
    ]  # fmt: skip
    bars = [(patch.get_width(), patch.get_y() + patch.get_height() / 2) for patch in axes.patches]
    assert [width for width, _ in bars] == pytest.approx(
        [5, 8, 20, 19.2, 50, 40, 25, 300, 200, 100, 1234.5, 9000, 8000]
    )
    assert [y for _, y in bars] == pytest.approx(
        [-0.2, 0.2, 0.8, 1.2, 1.8, 2.2, 3, 3.8, 4.2, 5, 6, 6.8, 7.2]
    )
    assert [text.get_text() for text in axes.texts] == [
        *("5.00", "8.00", "20.0", "19.2", "50.0", "40.0", "25.0", "300", "200", "100"),
        *("1,234", "9,000", "8,000"),
    ]
    ends = [collection.get_segments()[0][:, 0].tolist() for collection in axes.collections]
    assert ends[0] == pytest.approx([4, 6])
    assert axes.get_xlim() == pytest.approx((1, 9000 * 3))
    assert axes.yaxis_inverted()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "to the device, or read", "from the device, or write", "within the device",
    ]  # fmt: skip
    low = made(MIB)
    low["rungs"][0].update(gb_per_s=1.4, lowest=1.4)  # its bar keeps a length
    assert plot.bars(low).axes[0].get_xlim()[0] == pytest.approx(0.1)
    colours = {patch.get_facecolor() for patch in axes.patches}
    assert len(colours) == 3


def test_a_sweep_has_a_line_a_rung_and_its_fastest_pair() -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    figure = plot.sweep(made(MIB, 4 * MIB, rounds=1))
    assert texts(figure)[1] == "median of 1 round, a line for each rung"
    there, back = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "to the device, or read", "from the device, or write",
    ]  # fmt: skip
    drawn = {
        name: [list(line.get_ydata()) for line in axes.lines]
        for name, axes in (("there", there), ("back", back))
    }
    assert drawn["there"] == [
        pytest.approx([rate, rate]) for rate in (5, 20, 50, 25, 300, 9000)
    ]  # of the peers the fastest
    assert drawn["back"] == [pytest.approx([rate, rate]) for rate in (8, 19.2, 40, 1234.5, 8000)]
    assert list(there.lines[0].get_xdata()) == [MIB, 4 * MIB]
    assert [label.get_text() for label in there.get_xticklabels()] == ["1 MiB", "4 MiB"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "global, in a kernel", "shared, in a kernel", "peer, fastest pair", "page-locked, mapped",
        "page-locked", "pageable, cu.copy", "pageable, driver alone",
    ]  # fmt: skip
    two = plot.sweep(made(MIB, 4 * MIB, device_count=2)).legends[0]
    assert "peer" in [text.get_text() for text in two.get_texts()]


def test_a_picture_is_the_same_file_again_and_no_date_is_in_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    pictures = []
    for name in ("a.svg", "b.SVG"):
        plot.draw(made(MIB), str(tmp_path / name))
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    assert b"The memory ladder of NVIDIA H200" in pictures[0]
    assert b"<dc:date>" not in pictures[0]


HAN = re.compile("[\u4e00-\u9fff]")


@pytest.fixture
def chinese():
    say.choose("zh")
    yield report.Style(say=say.say, columns=text.columns, break_up=text.wrap)
    say.choose(None)


def test_every_text_of_the_rungs_has_its_chinese(chinese):
    for rung in RUNGS:
        for told in (rung.title, rung.short, rung.teaches):
            assert HAN.search(say.say(told)), told
    assert HAN.search(say.say(report.RECORDED))


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("sizes", [(MIB,), (MIB, 4 * MIB)])
@pytest.mark.parametrize("simulated", [True, False])
def test_a_chinese_table_keeps_its_columns(width, sizes, simulated, chinese):
    style = dataclasses.replace(chinese, width=width)
    told = made(*sizes, simulated=simulated)
    lines = list(report.lines(told, "why", style))
    english = list(report.lines(told, "why", report.Style(width=width)))
    assert max(map(text.columns, lines)) <= width
    rows = [line for line in lines if re.search(r"页锁定，映射 +\S", line)]
    wanted = [line for line in english if re.search(r"page-locked, mapped +\S", line)]
    assert list(map(text.columns, rows)) == list(map(len, wanted))
    words = [line for line in lines if re.search("[a-z]{3,} [a-z]{3,}", line)]
    assert all("a note" in line or "no memory" in line.lower() for line in words)
