"""What type checkers and editors know of the package, and that the pages' Python passes them.

`make lint` runs this file: mypy and pyright come with the extra `dev`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from native_build import ROOT

pytestmark = pytest.mark.static

HERE = Path(__file__).parent
TYPED = HERE / "types_of_arrays.py"
CELL = re.compile(r"^```(?:python|\{code-cell\}.*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Programs that others copy: they annotate where it helps, but each call must be right.
EASY = ("--allow-untyped-defs", "--allow-untyped-calls", "--ignore-missing-imports")
EASY += ("--allow-subclassing-any",)  # what is not installed has no types


def mypy(*words: str | Path) -> str:
    """What it complains of."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, words)],
        cwd=words[-1] if isinstance(words[-1], Path) and words[-1].is_dir() else ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_the_type_of_the_items_is_known() -> None:
    assert mypy("--config-file", "", TYPED) == ""


def test_what_the_type_checker_knows_is_so_at_run_time() -> None:
    done = subprocess.run([sys.executable, TYPED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def code(page: Path) -> str:
    """Its Python, without a notebook's commands and settings."""
    cells = CELL.findall(page.read_text(encoding="utf-8"))
    return "\n".join(re.sub(r"^[:!%].*\n", "", cell, flags=re.MULTILINE) for cell in cells)


def pages() -> Iterable[Path]:
    yield from sorted(ROOT.glob("README*.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="no pages beside the tests")
def test_the_python_of_the_pages_passes_mypy(tmp_path: Path) -> None:
    for page in pages():
        if text := code(page):
            name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    assert len(list(tmp_path.iterdir())) > 20
    assert mypy("--config-file", "", *EASY, tmp_path) == ""


@pytest.mark.skipif(not (ROOT / "examples").is_dir(), reason="no examples beside the tests")
@pytest.mark.parametrize(
    "name", ["check_for_ci", "feed_model", "plot_bandwidth", "several_contexts"]
)
def test_an_example_passes_mypy(name: str) -> None:
    assert mypy("--config-file", "", *EASY, ROOT / "examples" / f"{name}.py") == ""


#: Where public names live; the rest is internal, and may be typed by inference.
PUBLIC = re.compile(
    r"cudriver\.(?!(_elf|cli|ladder)\.)"
    r"(?!stack\.(?!inspect|Report|report\.|model\.|find_environments))"
    r"(?!fleet\.(?!\w+$|report\.|result\.))(?!testing\.(?!simulated\.|running\.))"
)


def test_the_types_of_the_public_names_are_complete(tmp_path: Path) -> None:
    pytest.importorskip("basedpyright", reason="pyright is not installed")
    words = ["--verifytypes", "cudriver", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", *words],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    answer = json.loads(done.stdout)["typeCompleteness"]
    assert answer["exportedSymbolCounts"]["withKnownType"] > 1000
    unknown = [
        (symbol["name"], [each["message"] for each in symbol["diagnostics"]])
        for symbol in answer["symbols"]
        if symbol["isExported"] and not symbol["isTypeKnown"] and PUBLIC.match(symbol["name"])
    ]
    assert unknown == []
