"""Figures of speed in prose are those of benchmarks/hosts/, and the page is made of them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.static

page: Any = pytest.importorskip("benchmarks.page", reason="needs benchmarks/ beside tests/")
ROOT = Path(__file__).parents[2]
SWEPT = "any size, 4 KiB to 4 GiB, any path: {}".format
PINNED, PLAIN = "pinned array to or from device, 1 GiB: up", SWEPT("plain up, 64 MiB")
FEEDING = "feeding 8 plain batches of 36.8 MiB while the GPU computes for 77.6 ms"
TO = "plain NumPy array to device, 1-2 GiB: 1 GiB"
FROM = "device to plain NumPy array, 1-2 GiB: 1 GiB"
LOCKED = "page-locked 48 GiB with `pieces=True`; the longest wait of another process and thread"
LOCKING = f"{LOCKED}: wait of another process"
BESIDE = "page-locked copies of 4 KiB, 64 KiB, 1 and 16 MiB beside 1 GiB in the same direction"
BLOCKS = "blocks of 4 KiB to 1 MiB, as in vllm#48936: naive, batch, swap and Triton: 1 MiB up"
DISK = "the same, not in the page cache"
WHOLE = "pinned_empty, in one piece"
#: Rows and contestants that both languages quote.
LOCKS = [(LOCKING, WHOLE), (LOCKING, "cudriver"), (LOCKED, "cudriver"), (LOCKED, WHOLE)]
BATCH = [(BLOCKS, "cudriver"), (BLOCKS, "swap")]
FED = [(FEEDING, "cudriver"), (FEEDING, "PyTorch")]
READ = [(DISK, "cudriver"), (DISK, "safetensors, prefetch")]
#: File, a pattern with the figures, and the row and contestant of each.
QUOTED = [
    ("README.md", r"page-locked memory run at (\d+) GB/s", [(PINNED, "cudriver")]),
    ("README.zh-CN.md", r"四者都达到 (\d+) GB/s", [(PINNED, "cudriver")]),
    ("README.md", r"waits for ([\d.]+) ms, not for (\d+)\.",
     [(LOCKING, "cudriver"), (LOCKING, WHOLE)]),
    ("README.zh-CN.md", r"等 ([\d.]+) ms，而不是 (\d+) ms",
     [(LOCKING, "cudriver"), (LOCKING, WHOLE)]),
    ("docs/tutorial/feed.md", r"copy runs at (\d+) GB/s.*?64 MiB at (\d+) GB/s.*?at (\d+) GB",
     [(PINNED, "cudriver"), (PLAIN, "cudriver"), (PLAIN, "driver")]),
    ("docs/zh/tutorial/feed.md", r"direct）达到 (\d+) GB.*?staged）达到 (\d+) GB.*?都是 (\d+) GB",
     [(PINNED, "cudriver"), (PLAIN, "cudriver"), (PLAIN, "driver")]),
    ("docs/tutorial/feed.md", r"took ([\d.]+) ms\nin all.*?PyTorch takes ([\d.]+) ms", FED),
    ("docs/zh/tutorial/feed.md", r"一共用了 ([\d.]+) ms.*?用 ([\d.]+) ms", FED),
    ("docs/explanation/page-locking.md", r"1 GiB to the GPU \| (\S+) GB/s \| (\S+) GB/s \| (\S+) ",
     [(PINNED, "cudriver"), (TO, "cudriver"), (TO, "driver")]),
    ("docs/explanation/page-locking.md", r"from the GPU \| \S+ GB/s \| (\S+) GB/s \| (\S+) ",
     [(FROM, "cudriver"), (FROM, "driver")]),
    ("docs/explanation/design.md", r"moves a GiB at ([\d.]+) GB/s up and ([\d.]+) down",
     [(TO, "cudriver"), (FROM, "cudriver")]),
    ("docs/zh/explanation/design.md", r"上行 ([\d.]+) GB/s，下行 ([\d.]+)",
     [(TO, "cudriver"), (FROM, "cudriver")]),
    ("docs/explanation/design.md",
     r"waiting for (\d+) ms.*?for ([\d.]+) ms.*?at ([\d.]+) GB/s.*?of ([\d.]+),", LOCKS),
    ("docs/zh/explanation/design.md",
     r"要等 (\d+) 毫秒.*?只等 ([\d.]+) 毫.*?快：([\d.]+) GB.*?是 ([\d.]+)，", LOCKS),
    ("docs/performance.md", r"CUDA 13 for (\d+) GB/s.*?move at (\d+)\.", BATCH),
    ("docs/performance.md", r"rate of the disk: ([\d.]+) GB/s.*?reached ([\d.]+)\.", READ),
    ("docs/zh/performance.md", r"块\*\*要达到 (\d+) GB/s.*?为 (\d+)。", BATCH),
    ("docs/zh/performance.md", r"受磁盘速率限制：([\d.]+) GB/s.*?达到 ([\d.]+)。", READ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pattern", "rows"), QUOTED)
def test_prose_quotes_what_a_host_reached(
    name: str, pattern: str, rows: list[tuple[str, str]]
) -> None:
    found = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
    assert found, "the sentence is not there"
    for text, (row, who) in zip(found.groups(), rows, strict=True):
        known = page.values(row, who, page.hosts())
        assert min(known) * 0.98 <= float(text) <= max(known) * 1.02, (row, who, known)


#: What both READMEs say in words: a row, who is slower there, and how many times, on each host.
TIMES = [
    *((SWEPT(f"plain up, {size} MiB"), "driver", 2) for size in (4, 16, 64, 256)),
    *((SWEPT(f"plain up, {size} GiB"), "driver", 5) for size in (1, 4)),
    *((TO.replace(": 1", f": {size}"), who, 5) for size in (1, 2) for who in ("driver", "PyTorch")),
]


@pytest.mark.parametrize(("row", "who", "times"), TIMES)
def test_the_readme_promises_no_more_than_each_host_reached(row: str, who: str, times: int) -> None:
    ours, theirs = (page.values(row, each, page.hosts()) for each in ("cudriver", who))
    assert len(ours) == len(theirs) > 1
    assert min(a / b for a, b in zip(ours, theirs, strict=True)) >= times * 0.98


def test_a_small_copy_does_not_wait_for_a_big_one() -> None:
    """Nor is anything gained up to 1 MiB, as both READMEs say."""
    for way in ("up", "down"):
        ours, theirs = (
            page.values(f"{BESIDE}: {way}, 64 KiB", who, page.hosts())
            for who in ("cudriver", "driver")
        )
        assert max(ours) < min(theirs) / 100
    kept = [
        ours / theirs
        for size in ("4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB")
        for ours, theirs in zip(*(page.values(SWEPT(f"plain up, {size}"), who, page.hosts())
                                  for who in ("cudriver", "driver")), strict=True)
    ]  # fmt: skip
    found = f"{min(kept):.2f} {{}} {max(kept):.2f}"
    for language, to in (("en", "to"), ("zh", "到")):
        text = (page.DOCS[language] / "performance.md").read_text(encoding="utf-8")
        assert found.format(to) in text
    assert max(kept) < 1


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_pages_show_what_the_hosts_reached(language: str) -> None:
    docs, runs = page.DOCS[language], page.hosts()
    text = (docs / "performance.md").read_text(encoding="utf-8")
    assert page.tables(language, runs) in text, "python -m benchmarks.page"
    text = (docs / "howto" / "several-gpus.md").read_text(encoding="utf-8")
    assert page.table(page.TWO, language, runs) in text, "python -m benchmarks.page"


def test_a_published_host_has_passed_its_test() -> None:
    for run in page.hosts():
        assert run["numpy_import_ms"] <= page.NUMPY_MS


@pytest.mark.parametrize(("numpy_ms", "copy_gbs"), [(page.NUMPY_MS * 2, 9.0), (80.0, 1.0)])
def test_a_slow_host_is_refused_by_its_figures(numpy_ms: float, copy_gbs: float) -> None:
    said = page.refusal(numpy_ms, copy_gbs)
    assert f"{numpy_ms:.0f} ms" in said
    assert f"{copy_gbs:.1f} GB/s" in said
    assert page.refusal(80.0, 9.0) == ""


def test_a_run_is_kept_by_the_names_that_the_page_has() -> None:
    part = SimpleNamespace(label="1 GiB as 512 MiB", unit="GB/s", samples={"cudriver": [1]},
                           figure=lambda who: 46.3456)  # fmt: skip
    alone = SimpleNamespace(label="as 4 GiB", unit="GB/s", samples={"cudriver": [1], "CuPy": []},
                            figure=lambda who: None if who == "CuPy" else 2.0)  # fmt: skip
    rows = [SimpleNamespace(name="up", parts=[part]), SimpleNamespace(name="many", parts=[alone])]
    assert page.figures(rows) == {
        "up: 1 GiB": {"unit": "GB/s", "cudriver": 46.3},
        "many": {"unit": "GB/s", "cudriver": 2.0},
    }


def test_the_page_of_accuracy_has_the_figures_of_its_tables() -> None:
    tables = (ROOT / "docs" / "accuracy-tables.md").read_text(encoding="utf-8")
    right, false = re.findall(r"^\| precision .*\((\d+) right, (\d+) false\)", tables, re.M)[0]
    found, missed = re.findall(r"^\| recall .*\((\d+) found, (\d+) missed\)", tables, re.M)[0]
    pairs = re.findall(
        r"^\| (?:libraries|fixes that work) \|\D*(?:1\.000 \()?(\d+) of (\d+)", tables, re.M
    )
    chance, pasted = re.findall(r"^\| \*\*all\*\* (.*)$", tables, re.M)[::-1]
    faults = chance.split(" ")[0 if chance[0].isdigit() else 1]
    pairs += re.findall(r"(\d+) of (\d+):", chance)
    named, *_, wrong, _ = re.findall(r"(\d+) of (\d+):", pasted)
    pairs += [(faults, faults), named, wrong, (right, str(int(right) + int(false)))]
    assert chance.endswith("| 0 | 0 |")
    for page, of in ("accuracy.md", " of "), ("zh/accuracy.md", " / "):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert [pair for pair in pairs if of.join(pair) not in text] == []
        assert {missed, str(int(found) + int(missed))} <= {*re.findall(r"\d+", text)}
