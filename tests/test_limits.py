"""What the system limits: the error names the limit where it may be the reason."""

from __future__ import annotations

import pytest

from conftest import DRIVER
from program import output

PROGRAM = """
    import resource
    import sys
    limit = int(sys.argv[1])
    if limit:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
    import numpy as np
    import cudriver as cu
    for make in (lambda: cu.pinned_empty(1 << 20, "u1"), lambda: cu.pin(np.zeros(1 << 20, "u1"))):
        try:
            make()
        except cu.OutOfMemoryError as error:
            print(error)
"""


@pytest.mark.skipif(DRIVER == "real", reason="the simulated driver is made to fail")
@pytest.mark.parametrize(("limit", "named"), [(65536, True), (0, False)])
def test_the_limit_of_locked_memory_is_named(limit: int, named: bool) -> None:
    fail = "cuMemHostRegister_v2:*:2"
    lines = output(PROGRAM, str(limit), CUDRIVER_SIM_FAIL=fail).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert ("this process may lock 65536 bytes (RLIMIT_MEMLOCK, `ulimit -l`)" in line) == named
