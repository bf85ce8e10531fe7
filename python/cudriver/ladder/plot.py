"""The report drawn, by matplotlib: bars for one size, lines over the size for a sweep."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cudriver.ladder.result import number, show_size
from cudriver.ladder.rungs import BACK, BY_NAME, RUNGS

FORMATS = (".png", ".svg")
MISSING = "a plot needs matplotlib: pip install matplotlib, or conda install matplotlib"

THERE, BACK_AGAIN, WITHIN = "#0072b2", "#e69f00", "#7f7f7f"
#: Okabe and Ito's, which people with any colour vision can tell apart; from the slowest rung on.
COLOURS = (
    "#000000", "#e69f00", "#0072b2", "#56b4e9", "#009e73", "#d55e00", "#cc79a7", "#8a7a00",
)  # fmt: skip
MARKERS = "osD^vPX*"
GREY = "#555555"
MOST_PAIRS = 3
STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.8,
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "svg.hashsalt": "cudriver",  # the same picture is the same file
}


def is_possible() -> bool:
    """Whether matplotlib is installed."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def draw(report: dict[str, Any], path: str) -> None:
    """Writes the report's picture; the format goes by the name's end. OSError where it cannot."""
    matplotlib = import_module("matplotlib")
    with matplotlib.rc_context(STYLE):
        figure = sweep(report) if len(report["sizes"]) > 1 else bars(report)
        metadata = {"Date": None} if path.lower().endswith(".svg") else {}
        figure.savefig(path, dpi=160, metadata=metadata)


def new_figure(report: dict[str, Any], width: float, height: float, title: str) -> Any:
    """A figure with its title."""
    figure = import_module("matplotlib.figure").Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", rect=(0.01, 0.01, 0.98, 0.99 - 0.72 / height))
    top = 1 - 0.14 / height
    figure.text(
        0.015, top, f"The memory ladder of {report['device']['name']}",
        va="top", size=14, weight="bold",
    )  # fmt: skip
    figure.text(0.015, top - 0.34 / height, title, va="top", size=10, color=GREY)
    return figure


def bars(report: dict[str, Any]) -> Any:
    """A pair of bars a rung, the slowest above."""
    rows = [pair for rung in RUNGS for pair in bar_pairs(report, rung.name)]
    count = report["rounds"]
    figure = new_figure(
        report, 9, 1.9 + 0.5 * len(rows),
        f"arrays of {show_size(report['sizes'][0])}, median of {count} "
        f"round{'s' * (count > 1)}, whiskers from the slowest to the fastest",
    )  # fmt: skip
    axes = figure.add_subplot()
    highest = max(row["highest"] for _, *pair in rows for row in pair if row)
    lowest = min(row["lowest"] for _, *pair in rows for row in pair if row)
    labels = set()
    for place, (_, *pair) in enumerate(rows):
        alone = None in pair
        for row, offset, colour, label in zip(
            pair, (-0.2, 0.2), (THERE, BACK_AGAIN),
            ("to the device, or read", "from the device, or write"), strict=True,
        ):  # fmt: skip
            if row is None:
                continue
            rate, y = row["gb_per_s"], place + offset
            if alone:
                y, colour, label = place, WITHIN, "within the device"
            axes.barh(
                y, rate, height=0.38, color=colour, label=None if label in labels else label,
                xerr=[[rate - row["lowest"]], [row["highest"] - rate]],
                error_kw={"ecolor": "#333333", "elinewidth": 1, "capsize": 2},
            )  # fmt: skip
            labels.add(label)
            axes.annotate(
                number(rate), (row["highest"], y), xytext=(5, 0), textcoords="offset points",
                va="center", size=9, color="#222222",
            )  # fmt: skip
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(10 ** floor_log(lowest / 1.5), highest * 3)
    axes.set_xlabel("rate in GB/s (1e9 bytes a second), logarithmic")
    axes.xaxis.set_major_formatter(lambda value, _: tick(value))
    axes.grid(axis="x")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def bar_pairs(report: dict[str, Any], name: str) -> list[tuple[str, Any, Any]]:
    """(label, there, back) for a rung; of many pairs of peers the fastest and the slowest."""
    rows = [row for row in report["rungs"] if row["rung"] == name and row["gb_per_s"]]
    title = BY_NAME[name].title
    if name != "peer":
        there = next((row for row in rows if row["direction"] not in BACK), None)
        back = next((row for row in rows if row["direction"] in BACK), None)
        return [(title, there, back)] if rows else []
    ways = {tuple(row["devices"]): row for row in rows}
    pairs = [
        (f"peer, GPU {a} and {b}", row, ways.get((b, a))) for (a, b), row in ways.items() if a < b
    ]
    if len(pairs) > MOST_PAIRS:
        pairs.sort(key=lambda pair: -pair[1]["gb_per_s"])
        fastest, slowest = pairs[0], pairs[-1]
        return [
            (f"fastest {fastest[0]}", *fastest[1:]),
            (f"slowest {slowest[0]}", *slowest[1:]),
        ]
    return pairs


def sweep(report: dict[str, Any]) -> Any:
    """The rate over the size, a line a rung, the two ways beside each other."""
    count = report["rounds"]
    figure = new_figure(
        report, 11, 5.6, f"median of {count} round{'s' * (count > 1)}, a line for each rung"
    )
    panels = figure.subplots(1, 2, sharey=True)
    lines: dict[str, Any] = {}
    for axes, back, title in zip(
        panels, (False, True), ("to the device, or read", "from the device, or write"), strict=True
    ):
        for rung, colour, marker in zip(RUNGS, COLOURS, MARKERS, strict=True):
            rows = [
                row
                for row in report["rungs"]
                if row["rung"] == rung.name
                and row["gb_per_s"]
                and ((row["direction"] in BACK) == back)
            ]
            if not rows:
                continue
            if not rung.sized:
                line = axes.axhline(rows[0]["gb_per_s"], color=colour, linestyle=(0, (4, 2)))
            else:
                best: dict[int, float] = {}
                for row in rows:  # several pairs of peers: the fastest
                    best[row["size"]] = max(best.get(row["size"], 0.0), row["gb_per_s"])
                line = axes.plot(
                    list(best), list(best.values()), color=colour, marker=marker, markersize=5,
                    linewidth=1.6,
                )[0]  # fmt: skip
            label = rung.title
            if rung.name == "peer" and report["device_count"] > 2:
                label += ", fastest pair"
            lines.setdefault(label, line)
        axes.set_title(title, size=10.5, loc="left")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = report["sizes"]
        axes.set_xticks(ticks, [show_size(size) for size in ticks], rotation=35, ha="right")
        axes.minorticks_off()
        axes.set_xlabel("size of the array in bytes, logarithmic")
        axes.yaxis.set_major_formatter(lambda value, _: tick(value))
        axes.grid()
    panels[0].set_ylabel("rate in GB/s (1e9 bytes a second), logarithmic")
    # The legend in the order of the lines, fastest above.
    names = list(reversed(lines))
    figure.legend([lines[name] for name in names], names, loc="outside right center", frameon=False)
    return figure


def tick(value: float) -> str:
    """A mark of a logarithmic axis: 0.01, 1, 10,000."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def floor_log(value: float) -> int:
    """The power of ten at or below `value`."""
    from math import floor, log10

    return floor(log10(value))
