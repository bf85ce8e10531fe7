"""Reports from anywhere: a result, never a crash, and nothing unescaped on a terminal or a page."""

from __future__ import annotations

import copy
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudriver.fleet import compare, read

EVIL = "\x1b[2J\x1b]0;owned\x07\u202e\x9b31m</style><script>alert(1)</script>\n\rgroup 9 \"'&"
SURROGATES = "\ud800 \udcff"  # alone: JSON may spell them, UTF-8 cannot
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=20)
    | st.just(EVIL),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a report, by the keys that lead there."""
    found = [path] if path else []
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            found += places(value[key], (*path, key))
    return found


SAMPLE = made.report("d1", rank=1, ranks=2)
for _rows in (SAMPLE["driver"]["devices"], SAMPLE["libraries"], SAMPLE["frameworks"][0]["archs"]):
    del _rows[1:]
SAMPLE["findings"] = [made.finding("error")]
SAMPLE["node"]["loaded"] = [{"soname": "libnccl.so.2", "version": "2.27.3", "path": "/x"}]
PLACES = places(SAMPLE)


class Page(HTMLParser):
    """The elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)


def assert_harmless(reports: list[Any]) -> None:
    """The comparison is made in every form, and steers neither terminal nor page."""
    found = compare(reports, nodes="d[0-3]", expect=9)
    assert found.status in ("consistent", "mismatch", "unknown")
    for width in (60, 200):
        text = found.to_text(width=width, verbose=True)
        assert not re.search(r"[^\n\x20-\x7e\xa0-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]", text)
    page = found.to_html()
    page.encode()
    str(found).encode()
    assert "<script" not in page
    assert Page(page).tags <= {
        "html", "head", "meta", "title", "style", "body", "section", "h1", "h2", "h3", "p", "span",
        "article", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "code", "details",
        "summary", "a", "h4", "ul", "li", "pre",
    }  # fmt: skip
    assert json.loads(found.to_json())["counts"] == found.counts


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_a_report_may_hold_anything_anywhere(place):
    told = [made.report("d0"), made.report("d2")]
    for value in (
        *(EVIL, SURROGATES, None, 3, [], {}, [EVIL], {EVIL: EVIL}, float("nan"), -(10**40), True),
    ):
        told.append(copy.deepcopy(SAMPLE))
        told[-1]["node"] |= {"host": f"d{len(told)}", "boot_id": str(len(told))}
        at: Any = told[-1]
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = value
    assert_harmless(told)


@settings(max_examples=60)
@given(st.lists(JSON, max_size=4), st.data())
def test_any_json_gives_a_result(values, data):
    told = copy.deepcopy(SAMPLE)
    for value in values:
        place = data.draw(st.sampled_from(PLACES))
        at: Any = told
        try:
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = value
        except (KeyError, IndexError, TypeError):
            pass  # an earlier value has taken the place of its parent
    assert_harmless([*values, json.dumps(told), made.report("d0"), *map(json.dumps, values)])


LINE = json.dumps(made.report("d0"), separators=(",", ":"))


@pytest.mark.parametrize(
    ("line", "reports", "broken"),
    [
        (f"3: {LINE}", 1, 0),
        (f"[1,3]<stdout>: {LINE}", 1, 0),
        (f"[pod/check-x7/check] {LINE}\r", 1, 0),
        (f"{LINE}{LINE.replace('d0', 'd1')}", 2, 0),
        (f"0: {LINE[:400]}1: {LINE}", 1, 1),
        (LINE[:-1], 0, 1),
        (LINE[:9], 0, 1),
        ('{"schema":' * 100_000, 0, 1),
        ('{"schema":1,"a":' + "[" * 1_000_000, 0, 1),
        ("[" * 1_000_000 + '{"schema":1', 0, 0),
        ('{"schema":' + "9" * 5000 + "}", 0, 1),
        (LINE.replace('"schema":1', '"schema":1,"schema":1'), 1, 0),
        (LINE.replace('"schema":1', '"schema":2'), 0, 1),
        (LINE.replace('"index":0', '"index":NaN'), 1, 0),
        (LINE.replace("580.65.06", "\\ud800"), 1, 0),
        (LINE.replace("580.65.06", "5" * 3_000_000), 1, 0),
        ('{"schema":1}', 0, 1),
        ("srun: job 71 queued", 0, 0),
        ("{'a': 1} {not json", 0, 0),
        ("", 0, 0),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_line_is_a_report_or_broken_or_something_else(line, reports, broken):
    stream = io.BytesIO(line.encode() + b"\n" + b"\xff\xfe\x00 not text\n")
    told = list(read.lines(stream, "pipe"))
    found = compare(told)
    assert (found.counts["reports"], found.counts["broken"]) == (reports, broken)
    assert [f.rule for f in found.findings if f.rule == "FL604"] == ["FL604"] * bool(broken)
    assert_harmless(told)


def test_a_line_without_an_end_takes_no_memory(monkeypatch):
    monkeypatch.setattr(read, "LINE_LIMIT", 1 << 16)
    stream = io.BytesIO(b'{"schema":1,' + b"x" * 1_000_000 + b"\n" + LINE.encode() + b"\n")
    found = compare(read.lines(stream, "pipe"))
    assert (found.counts["reports"], found.counts["broken"]) == (1, 1)


def test_a_report_of_more_parts_than_a_machine_has_is_refused():
    told = made.report("d9")
    told["node"]["variables"] = {f"NCCL_{number}": "1" for number in range(2000)}
    found = compare([told, made.report("d0")])
    assert (found.counts["reports"], found.counts["broken"]) == (1, 1)


def test_long_values_are_told_apart_by_their_ends():
    values = [f"/opt/{'x' * 10_000}{number}" for number in range(2)]
    reports = [made.report("d0"), made.report("d1")]
    for told, value in zip(reports, values, strict=True):
        told["node"]["variables"]["LD_LIBRARY_PATH"] = value
    found = compare(reports)
    assert len(found.groups) == 2
    assert len(found.to_text()) < 40_000
