"""The check as one of `conda doctor`'s: found and called as conda's plugin manager does.

conda is imitated: its marker and hook are pluggy's, as in conda 23.11 and later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType

import pluggy
import pytest
from samples import broken_findings, healthy

import cudriver.stack
from cudriver.stack.report import Report

MODULE = "cudriver.conda_plugin"


@dataclass
class CondaHealthCheck:
    name: str
    action: Callable[[str, bool], None]


class Specs:
    @pluggy.HookspecMarker("conda")
    def conda_health_checks(self): ...


@pytest.fixture
def check(monkeypatch):
    """The action of the one health check that the manager gets."""
    parts = {
        "conda": {},
        "conda.base": {},
        "conda.base.constants": {"OK_MARK": "✅", "X_MARK": "❌"},
        "conda.plugins": {"hookimpl": pluggy.HookimplMarker("conda")},
        "conda.plugins.types": {"CondaHealthCheck": CondaHealthCheck},
    }
    for name, values in parts.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    before = set(sys.modules)
    manager = pluggy.PluginManager("conda")
    manager.add_hookspecs(Specs)
    manager.register(import_module(MODULE))
    assert not {n for n in set(sys.modules) - before if n.startswith("cudriver")} - {MODULE}
    ((made,),) = (list(found) for found in manager.hook.conda_health_checks())
    yield made.action
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize("verbose", [False, 1])
def test_a_healthy_environment_gets_a_line_and_the_report_where_asked(
    check, verbose, monkeypatch, capsys
):
    asked = []
    report = Report(healthy(), [])
    monkeypatch.setattr(cudriver.stack, "inspect", lambda prefix: asked.append(prefix) or report)
    check("/home/ana/envs/train", verbose)
    shown = capsys.readouterr().out
    assert asked == ["/home/ana/envs/train"]
    if verbose:
        assert shown == "✅ CUDA:\n\n" + report.to_text(verbose=True) + "\n"
    else:
        assert shown == "✅ CUDA: consistent: torch works.\n\n"


def test_what_is_wrong_is_shown_whole(check, monkeypatch, capsys):
    report = Report(healthy(), broken_findings())
    monkeypatch.setattr(cudriver.stack, "inspect", lambda prefix: report)
    check("/x", False)
    assert capsys.readouterr().out == "❌ CUDA:\n\n" + report.to_text() + "\n"


def test_conda_finds_it():
    found = [e.value for e in entry_points(group="conda") if e.name == "cudriver"]
    if not found:  # tests/project/test_build.py wants it in the wheel
        pytest.skip("cudriver is not installed here, or was before it had this entry point")
    assert found == [MODULE]
