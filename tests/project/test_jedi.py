"""Editors that read the sources, by jedi (Spyder, vim, pylsp), know the public names."""

from __future__ import annotations

import importlib

import pytest

jedi = pytest.importorskip("jedi", reason="jedi is not installed")

pytestmark = pytest.mark.static


def completed(code: str) -> set[str]:
    """What jedi offers at the end of the code."""
    lines = code.split("\n")
    return {each.name for each in jedi.Script(code).complete(len(lines), len(lines[-1]))}


@pytest.mark.parametrize(
    "module", ["cudriver", "cudriver.stack", "cudriver.fleet", "cudriver.typing"]
)
def test_every_public_name_is_completed(module: str) -> None:
    """The package's names are found by `__getattr__` at run time: nothing defines them in it."""
    names = set(importlib.import_module(module).__all__)
    names = {name for name in names if not name.startswith("__")}
    assert names - completed(f"import {module} as it\nit.") == set()


@pytest.mark.parametrize(
    ("call", "members"),
    [
        ("cu.Stream()", {"record", "synchronize", "wait"}),
        ("cu.device_zeros(3)", {"fill", "reshape", "to_numpy"}),
        ("cu.to_device(3)", {"fill", "T"}),
        ("cu.copy_async(a, b)", {"done", "wait"}),
        ("cu.current_context()", {"push", "synchronize"}),
        ("cu.Device(0)", {"name", "primary_context"}),
        ("cu.memory_info()", {"free", "total"}),
        ("cu.stack.inspect()", {"verdict", "to_json"}),
        ("cu.stack.plan('torch')", {"status", "to_json"}),
        ("cu.stack.which()", {"libraries", "missing"}),
        ("cu.fleet.compare([])", {"exit_code", "to_html"}),
    ],
)
def test_what_a_call_returns_is_known(call: str, members: set[str]) -> None:
    assert members - completed(f"import cudriver as cu\na = b = None\n{call}.") == set()
