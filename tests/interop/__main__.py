"""Runs the table of test_interop.py and prints it as markdown.

    PYTHONPATH=tests python -m interop [--results FILE] [PYTEST ARGUMENTS]

CUDRIVER_TEST_DRIVER=real asks the GPU. With --results, cells are kept in FILE, and those that an
earlier run has found stay where this one could not try them: a library that needs another NumPy,
say, has a run of its own. Exit status: pytest's.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from interop import libraries, test_interop

WORKS, CANNOT, NOT_TRIED, FAILED = "works", "cannot", "not tried", "FAILED"
ORDER = (WORKS, CANNOT, NOT_TRIED, FAILED)  # of a cell's tests, the last counts
PACKAGES = {
    "NumPy": ("numpy",),
    "PyTorch": ("torch",),
    "CuPy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "JAX": ("jax",),
    "Numba": ("numba-cuda",),
    "cuda-core": ("cuda-core",),
}
Cell = tuple[str, str]  # what, why


class Plugin:
    """Hears what becomes of each cell."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Cell]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        report = yield
        name = getattr(item, "originalname", "")
        if name in test_interop.ROWS:
            library = item.callspec.params["library"][0].name
            self.add(name, library, self.judge(report))
        return report

    def judge(self, report: Any) -> Cell:
        if hasattr(report, "wasxfail") and report.skipped:
            return CANNOT, report.wasxfail
        if report.skipped:
            return NOT_TRIED, report.longrepr[2].removeprefix("Skipped: ")
        return (WORKS, "") if report.passed else (FAILED, "")

    def add(self, name: str, library: str, cell: Cell) -> None:
        row = self.found.setdefault(name, {})
        if ORDER.index(cell[0]) >= ORDER.index(row.get(library, (WORKS, ""))[0]):
            row[library] = cell


def versions() -> dict[str, str]:
    found = {}
    for library, names in PACKAGES.items():
        for name in names:
            try:
                found[library] = version(name)
                break
            except PackageNotFoundError:
                continue
    return found


def merged(found: dict[str, dict[str, Cell]], path: Path | None) -> dict[str, Any]:
    """This run's cells and versions, and of earlier ones what it could not try."""
    kept: dict[str, Any] = {"cells": {}, "versions": {}}
    if path is not None and path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
    for name, row in found.items():
        for library, cell in row.items():
            if cell[0] != NOT_TRIED or library not in kept["cells"].get(name, {}):
                kept["cells"].setdefault(name, {})[library] = cell
                kept["versions"][library] = versions().get(library, "")
    if path is not None:
        path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return kept


def table(kept: dict[str, Any]) -> str:
    """Rows of tests and columns of libraries; the reasons stand below, by number."""
    names = [library.name for library in libraries.LIBRARIES]
    heads = [f"{name} {kept['versions'].get(name, '')}".strip() for name in names]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(names) + 1) + "|"]
    reasons: dict[str, int] = {}
    for row, title in test_interop.ROWS.items():
        texts = []
        for name in names:
            what, why = kept["cells"].get(row, {}).get(name, (NOT_TRIED, "it is not installed"))
            if (row, name) in test_interop.CANNOT and what != FAILED:
                what, why = CANNOT, test_interop.CANNOT[row, name]
            if why:
                why = why if what == CANNOT else f"{name}: {why}"
                what += f" ({reasons.setdefault(why, len(reasons) + 1)})"
            texts.append(what)
        lines.append(f"| {title} | " + " | ".join(texts) + " |")
    notes = [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join([*lines, "", "Why not:", "", *notes])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m interop", allow_abbrev=False)
    parser.add_argument("--results", type=Path, help="where cells are kept between runs")
    options, rest = parser.parse_known_args()
    plugin = Plugin()
    status = pytest.main([str(Path(test_interop.__file__)), "-q", *rest], plugins=[plugin])
    print("\n" + table(merged(plugin.found, options.results)))
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
