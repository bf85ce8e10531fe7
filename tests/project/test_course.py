"""The course's form: both languages run the same code, and each chapter has what it promises.

`make docs` executes the chapters; their own asserts check what they claim.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from native_build import ROOT

pytestmark = pytest.mark.static

ENGLISH = ROOT / "docs" / "course"
CHINESE = ROOT / "docs" / "zh" / "course"
CHAPTERS = sorted(path.name for path in ENGLISH.glob("0*.md"))
CELL = re.compile(
    r"^```\{code-cell\} ipython3\n(---\n.*?^---\n)?(.*?)^```$", re.MULTILINE | re.DOTALL
)
# What the settings say about a figure, each in its language.
TEXTS = re.compile(r"(?<=    alt: ).*|(?<=    caption: ).*")


def cells(path: Path) -> list[tuple[str, str]]:
    """The settings and the code of each cell."""
    return CELL.findall(path.read_text(encoding="utf-8"))


def meaning(code: str) -> str:
    """The code without comments and docstrings; a shell's line as it stands."""
    code = re.sub(r"^(\w+ = )?!(.*)$", lambda line: f"{line[1] or ''}{line[2]!r}", code, flags=re.M)
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body[:1] = []
    return ast.dump(tree)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_has_three_exercises_whose_solutions_are_folded_and_checked(chapter: str) -> None:
    text = (ENGLISH / chapter).read_text(encoding="utf-8")
    for heading in ("After this chapter you can", "## What goes wrong", "## Exercises"):
        assert heading in text
    solutions = [code for settings, code in cells(ENGLISH / chapter) if "hide-cell" in settings]
    assert len(solutions) == len(re.findall(r"^\*\*\d\.\*\*", text, re.MULTILINE)) == 3
    assert all(code.startswith("# Solution") and "assert " in code for code in solutions)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_both_languages_run_the_same_code(chapter: str) -> None:
    english, chinese = cells(ENGLISH / chapter), cells(CHINESE / chapter)
    assert len(english) == len(chinese) > 10
    for (settings, one), (same, other) in zip(english, chinese, strict=True):
        assert TEXTS.sub("", settings) == TEXTS.sub("", same)
        assert meaning(one) == meaning(other)


def test_every_chapter_is_in_both_indexes() -> None:
    for folder in (ENGLISH, CHINESE):
        index = (folder / "index.md").read_text(encoding="utf-8")
        for chapter in CHAPTERS:
            assert f"\n{chapter[:-3]}\n" in index
            assert f'"{chapter[:-3]}.ipynb"' in index
