"""The course's form: both languages run the same code, and each chapter has what it promises.

`make docs` executes the chapters; their own asserts check what they claim.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from native_build import CEXT, ROOT, shared
from simkit import used

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


@pytest.fixture
def driver_without_gpu(tmp_path: Path) -> Path:
    """The folder of a libcuda.so.1 that tells its version and whose cuInit finds no GPU."""
    if not CEXT.is_dir():
        pytest.skip("no C sources beside the tests")
    answers = dict.fromkeys(used(), "(void) { return 3; }")
    answers["cuInit"] = "(unsigned flags) { return flags == 0 ? 100 : 1; }"
    answers["cuDriverGetVersion"] = "(int *version) { *version = 13000; return 0; }"
    source = tmp_path / "driver.c"
    source.write_text("".join(f"int {name}{answer}\n" for name, answer in answers.items()))
    return shared(tmp_path / "libcuda.so.1", [source]).parent


@pytest.mark.parametrize("chapter", [1, 2])
def test_a_chapter_begins_with_the_simulated_driver_where_no_gpu_is(
    chapter: int, driver_without_gpu: Path
) -> None:
    code = [code for _, code in cells(ENGLISH / CHAPTERS[chapter - 1]) if code[0] != "!"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDRIVER_")}
    places = {"LD_LIBRARY_PATH": str(driver_without_gpu), "PYTHONPATH": str(ENGLISH)}
    command = [sys.executable, "-c", "".join(code[: 3 - chapter])]
    done = subprocess.run(command, capture_output=True, text=True, env=kept | places, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "simulated: True" in done.stdout
    assert chapter == 2 or "cuDeviceGetCount before cuInit: 3" in done.stdout
