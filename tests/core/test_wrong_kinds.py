"""No function of the extensions takes an object for another: runs wrong_kinds.py."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from storm import canaries

HERE = Path(__file__).parent


def test_every_function_refuses_every_wrong_kind(sim: object) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / "wrong_kinds.py"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parent), *pythonpath()])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def pythonpath() -> list[str]:
    return [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]


def test_a_byte_of_a_static_object_is_seen() -> None:
    before = canaries.look()
    assert canaries.changed(before) == []
    digit = (ctypes.c_char * 1).from_address(id(200) + canaries.HEADER + 2 * canaries.WORD)
    was = digit.raw
    digit.raw = b"\xc9"
    try:
        seen = canaries.changed(before)
    finally:
        digit.raw = was
    assert seen == ["200"]
    assert canaries.changed(before) == []
