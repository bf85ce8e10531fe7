"""A short soak; the long one is `python tests/soak.py 10000000`."""

from __future__ import annotations

import os

import pytest

from native_build import TESTS
from program import run

ROUNDS = 20_000


def test_short_soak() -> None:
    if os.environ.get("CUDRIVER_TEST_SANITIZER"):
        pytest.skip("a sanitizer keeps freed memory on purpose: make test")
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import soak
        print(soak.soak(int(sys.argv[2]), quiet=True))
    """
    done = run(program, str(TESTS), str(ROUNDS), timeout=500)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{}\n", "")
