"""Environments of absurd sizes: the work grows with the size, and what was left out is said."""

import pytest
from facts import facts, wheel
from synth import Prefix

from cudriver.stack import inspect
from cudriver.stack.collect import records
from cudriver.stack.rules import cu4_pins, judge, verdict


@pytest.fixture
def compared(monkeypatch):
    """Counts the specifiers that are compared or met by a version."""
    calls = []
    for name in ("_compatible", "satisfies"):
        usual = getattr(cu4_pins, name)
        monkeypatch.setattr(
            cu4_pins, name, lambda *words, usual=usual: calls.append(words) or usual(*words)
        )
    return calls


def hub(count: int, own: bool):
    """Packages that pin the next ones, and `own`: one package, each in a version of its own."""
    dists = [
        wheel(
            f"nvidia-p{i}", "1.0",
            *(f"nvidia-p{(i + k) % count}=={k}.0" for k in (1, 2, 3)),
            *[f"nvidia-hub=={i}.0"] * own,
        )
        for i in range(count)
    ]  # fmt: skip
    return facts(distributions=[*dists, wheel("nvidia-hub", "1.0")])


@pytest.mark.parametrize("own", [False, True])
def test_pins_are_compared_in_linear_time(compared, own):
    found = {}
    for count in (500, 1000):
        compared.clear()
        of = hub(count, own)
        findings = [*cu4_pins.cu402(of), *cu4_pins.cu407(of)]
        assert findings
        found[count] = len(compared)
    assert found[1000] < 2.5 * found[500]


def test_pins_that_were_not_compared_are_said_and_leave_the_verdict_open():
    of = hub(100, own=True)
    rules = {"CU407": cu4_pins.cu407}
    findings = judge(of, rules)
    titles = [finding.title for finding in findings]
    assert any("100 packages pin nvidia-hub exactly" in title for title in titles)
    assert len(findings) <= cu4_pins.CLASHES + 2
    assert verdict(findings, of) == "unknown"
    assert not any("compared" in f.title for f in judge(hub(20, own=True), rules))


def test_a_record_of_a_million_lines_is_read_up_to_its_limit(tmp_path, monkeypatch):
    prefix = Prefix(tmp_path / "env", root=tmp_path).venv()
    for name in ("nvidia-a", "nvidia-b"):
        record = prefix.dist(name, "1.0") / "RECORD"
        lines = (f"x/lib{number}.so,sha256=abc,100\n" for number in range(1_000_000))
        record.write_text("".join(lines))
    made = []
    entry = records.Entry
    monkeypatch.setattr(records, "Entry", lambda *words: made.append(1) or entry(*words))
    report = inspect("/env", root=str(tmp_path))
    assert len(made) == 2 * records.LIBRARIES
    assert [p.text for p in report.facts.problems] == [
        "lists more than 10000 shared libraries; the rest was not read"
    ] * 2
    assert report.facts.unsure
