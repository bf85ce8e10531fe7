"""`cuda_stack.compare_with_pytorch()` with PyTorch itself, in a session of its own."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


def test_the_check_agrees_with_pytorch(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed in this environment")
    monkeypatch.delenv("CUDRIVER_LIBRARY", raising=False)
    pytester.makepyfile("def test_it(cuda_stack): cuda_stack.compare_with_pytorch()")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
