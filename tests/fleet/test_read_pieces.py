"""Lines as `srun --label` prints them: cut after 1,024 bytes, and mixed with other tasks'."""

from __future__ import annotations

import io
import itertools
import json
import random
from typing import Any

import made
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudriver.fleet import compare, read
from cudriver.fleet.read import BEGINNING, Broken, Other, Told, lines


def report(task: int) -> str:
    """A report of many pieces, some of which end in a brace."""
    rows = [{"soname": f"lib{task}", "path": "x" * (number % 97)} for number in range(400)]
    return json.dumps({"schema": 1, "task": task, "libraries": rows}, separators=(",", ":"))


def labelled(task: int, text: str) -> list[str]:
    cut = range(0, len(text), 1024)
    return [f"{task}: {text[start : start + 1024]}\n" for start in cut]


def mixed(*queues: list[str]) -> str:
    """The pieces of each in their order, those of several in any."""
    turns = [number for number, queue in enumerate(queues) for _ in queue]
    random.Random(5).shuffle(turns)
    return "".join(queues[number].pop(0) for number in turns)


def test_pieces_of_several_tasks_become_their_reports():
    said = mixed(*(labelled(task, report(task)) for task in range(4)), ["srun: job 3 queued\n"] * 3)
    told = [item for item in lines(io.BytesIO(said.encode()), "-") if isinstance(item, Told)]
    assert {item.name: item.value for item in told} == {
        str(task): json.loads(report(task)) for task in range(4)
    }


def test_a_report_without_its_end_is_told_beside_the_others():
    said = mixed(labelled(0, report(0)), labelled(1, report(1))[:-1], labelled(2, report(2)))
    found = list(lines(io.BytesIO(said.encode()), "-"))
    assert sorted(item.name for item in found if isinstance(item, Told)) == ["0", "2"]
    assert len([item for item in found if isinstance(item, Broken)]) == 1
    # The same task's next report does not begin in the middle of it.
    again = said + "".join(labelled(1, report(1)))
    found = list(lines(io.BytesIO(again.encode()), "-"))
    assert sorted(item.name for item in found if isinstance(item, Told)) == ["0", "1", "2"]
    assert len([item for item in found if isinstance(item, Broken)]) == 1


TEXT = st.text('{}"\\\u00e9 a', max_size=6)
VALUE = st.recursive(TEXT, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner))


@given(st.lists(VALUE, max_size=3), st.data())
def test_a_line_may_be_cut_anywhere(values, data):
    """In an escape, in a character of several bytes, beside a brace that is not a brace."""
    value = {"schema": 1, "a": ["}", "\\", '\\"{', values], "z": '"}}}}'}
    raw = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    cuts = data.draw(st.sets(st.integers(len(BEGINNING), len(raw) - 1), max_size=20))
    cuts |= data.draw(st.sampled_from([set(), {*range(len(BEGINNING), len(raw))}]))
    said = b"".join(
        b"7: " + raw[start:end] + b"\n"
        for start, end in itertools.pairwise([0, *sorted(cuts), len(raw)])
    )
    (told,) = lines(io.BytesIO(said), "-")
    assert isinstance(told, Told)
    assert (told.name, told.value) == ("7", value)


def test_lines_that_a_program_passes_are_put_together_too():
    reports = [made.report(f"d{number}") for number in range(3)]
    queues = [labelled(n, json.dumps(told)) for n, told in enumerate(reports)]
    assert min(map(len, queues)) > 1
    for said in (mixed(*queues), json.dumps(reports[0], indent=2)):
        found = compare(said.splitlines(keepends=True))
        assert (found.status, found.counts["broken"]) == ("consistent", 0)
    assert compare([reports[0], json.dumps(reports[1]), reports[2]]).counts["nodes"] == 3


class Work:
    """Counts the characters that are looked at, and the values that are decoded."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.characters = self.values = 0
        self._text, self._decoder = read.text, read._DECODER
        patch.setattr(read, "text", self.text)
        patch.setattr(read, "_DECODER", self)

    def text(self, line: str, *place: str) -> Any:
        self.characters += len(line)
        return self._text(line, *place)

    def raw_decode(self, line: str, start: int) -> Any:
        self.values += 1
        return self._decoder.raw_decode(line, start)


def test_pieces_that_all_end_in_a_brace_are_decoded_once(monkeypatch):
    work = Work(monkeypatch)
    said = ['3: {"schema":1,"a":[{}\n', *['3: ,{"b":1}\n'] * 5000]
    for end, kind in (["3: ]}\n"], Told), ([], Broken):
        work.characters = work.values = 0
        text = "".join(said + end)
        assert [type(item) for item in lines(io.BytesIO(text.encode()), "-")] == [kind]
        assert work.values == 1
        assert work.characters <= len(text)


def test_pieces_without_an_end_are_kept_to_a_limit(monkeypatch):
    monkeypatch.setattr(read, "LINE_LIMIT", 1 << 16)
    work = Work(monkeypatch)
    said = '3: {"schema":1,"a":"\n' + f"3: {'x' * 1024}\n" * 1000
    found = [type(item) for item in lines(io.BytesIO(said.encode()), "-")]
    assert found[0] is Broken
    assert {*found[1:]} == {Other}
    assert work.characters <= len(said)


@pytest.mark.parametrize(
    "line", ['{"schema"' * 50_000, '{"schema":1,' * 50_000, '{"schema":[' * 100 + "1," * 500_000]
)
def test_a_damaged_line_is_looked_at_a_few_times(line, monkeypatch):
    work = Work(monkeypatch)
    found = list(lines(io.BytesIO(line.encode() + b"\n" + b'{"schema":1}\n'), "-"))
    assert 1 < work.values <= read.DAMAGED_LIMIT + 1
    assert all(isinstance(item, Broken) for item in found[:-1])
    assert isinstance(found[-1], Told)


@pytest.mark.parametrize(
    ("length", "kind"), [(read.LABEL_LIMIT, Told), (read.LABEL_LIMIT + 1, Other)]
)
def test_a_label_may_be_so_long(length, kind):
    (item,) = lines(io.BytesIO(b"x" * length + b'{"schema":1}'), "-")
    assert type(item) is kind


@pytest.mark.parametrize(("length", "kind"), [(64, Told), (65, Broken)])
def test_a_line_may_be_so_long(length, kind, monkeypatch):
    monkeypatch.setattr(read, "LINE_LIMIT", 64)
    (item,) = lines(io.BytesIO(b'{"schema":"' + b"x" * (length - 14) + b'"}\n'), "-")
    assert type(item) is kind
