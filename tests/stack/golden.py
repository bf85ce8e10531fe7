"""What is shown, word by word: tests/stack/golden/report.txt has a block for each report that a
test shows, facts.txt one for each environment that a test collects; what rules say stands in
tests/stack/cases. `make golden` writes them anew; the diff is for people to read.
"""

import os
from collections import Counter
from functools import cache
from pathlib import Path

import casekit
from cudriver.stack.facts import Finding

FOLDER = Path(__file__).with_name("golden")

seen: Counter[tuple[str, str]] = Counter()  # blocks of the test that is running


def assert_words_as_before(stem: str, text: str) -> None:
    """Compares with the block of the test that is running."""
    path, _, name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].partition("::")
    test = f"{os.path.basename(path)}::{name}"
    seen[stem, test] += 1
    number = seen[stem, test]
    key = f"{test} ({number})" if number > 1 else test
    if casekit.WRITING:
        FOLDER.mkdir(exist_ok=True)
        with open(FOLDER / f"{stem}.txt", "a", encoding="utf-8") as file:
            file.write(f"{chr(10) if file.tell() else ''}== {key}\n{text}\n")
    else:
        known = blocks(stem)
        assert key in known, f"{key} is not in {stem}.txt: make golden"
        assert text == known[key], f"meant so? make golden, and read the diff of {stem}.txt"


def render(finding: Finding) -> str:
    """All of a finding that a person or a program gets to see."""
    about = f" of {finding.subject}" if finding.subject else ""
    about += f" because of {finding.because}" if finding.because else ""
    lines = [f"{finding.severity}{about}: {finding.title}"]
    for evidence in finding.evidence:
        line = "" if evidence.line is None else f":{evidence.line}"
        lines.append(f"    {evidence.file}{line}  {evidence.value}".rstrip())
    if finding.predicts is not None:
        lines.append(f"  says {finding.predicts}")
    lines += [f"  $ {command}" for command in finding.fix]
    lines += [f"  advice: {finding.advice}"] * bool(finding.advice)
    return "\n".join(lines)


@cache
def blocks(stem: str) -> dict[str, str]:
    """What is in a file, by test."""
    path = FOLDER / f"{stem}.txt"
    if not path.exists():
        return {}
    whole = path.read_text(encoding="utf-8")
    parts = whole.removeprefix("== ").rstrip("\n").split("\n\n== ")
    return {key: text for key, _, text in (part.partition("\n") for part in parts)}
