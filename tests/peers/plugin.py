"""For pytest in the peers' environment: expects what left_out.py says, and that it is all there."""

from __future__ import annotations

import pytest
from left_out import LEFT_OUT, NOT_TRIED


@pytest.fixture
def initialize_from_pytest_config(request: pytest.FixtureRequest) -> None:
    """The tests of numba-cuda ask for it; its own is in a conftest.py that the wheel lacks."""
    request.cls._dump_failed_filechecks = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files = {item.path.stem for item in items}
    unseen = {name: why for name, why in LEFT_OUT.items() if name.split("::")[0] in files}
    for item in items:
        name = f"{item.path.stem}::{item.nodeid.split('::', 1)[1]}"
        reason = unseen.pop(name, None)
        if reason is not None:
            run = reason not in NOT_TRIED
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True, run=run))
    if unseen:
        raise pytest.UsageError(f"left_out.py names tests that are not there: {sorted(unseen)}")
