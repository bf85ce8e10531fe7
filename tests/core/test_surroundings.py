"""What lies around the package: limits, other processes, a strict interpreter, a second copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import DRIVER, SANITIZER
from program import TWO, UNPRIVILEGED, output

LOCKED = (
    UNPRIVILEGED
    + """
import resource
import sys
code, limit, before, privileged = map(int, sys.argv[1:])
import numpy as np
import cudriver as cu
held = cu.pin(np.zeros(before, "u1"))
cu.use_driver("sim")
import ctypes
ctypes.CDLL(cu.driver_path()).cudriver_sim_fail(b"cuMemHostRegister_v2:*:%d" % code)
if limit:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
if not privileged:
    unprivileged()
for make in (lambda: cu.pinned_empty(1 << 20, "u1"), lambda: cu.pin(np.zeros(1 << 20, "u1"))):
    try:
        make()
    except cu.CudaError as error:
        print(error)
"""
)


@pytest.mark.skipif(DRIVER == "real", reason="the simulated driver is made to fail")
@pytest.mark.parametrize(
    ("code", "limit", "before", "named"),
    [
        (2, 65536, 0, True),
        (2, 65536, 65536, True),
        (2, 0, 0, False),
        (2, 65536, 65537, False),  # the driver locked more than that already: it obeys no limit
        (2, 2 << 20, 0, False),
        (1, 65536, 0, False),  # invalid value
        (700, 65536, 0, False),
    ],
)
def test_the_limit_of_locked_memory_is_named_where_it_can_be_the_cause(
    code: int, limit: int, before: int, named: bool
) -> None:
    lines = output(LOCKED, str(code), str(limit), str(before), "0").splitlines()
    assert len(lines) == 2
    for line in lines:
        said = f"this process may lock {limit} bytes (RLIMIT_MEMLOCK, `ulimit -l`)"
        assert (said in line) == named


@pytest.mark.skipif(DRIVER == "real", reason="the simulated driver is made to fail")
def test_no_limit_is_named_to_a_process_that_none_holds_back() -> None:
    if (
        not int(re.findall(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[0], 16) >> 14
        & 1
    ):
        pytest.skip("this process has not the capability IPC_LOCK")
    assert "RLIMIT" not in output(LOCKED, "2", "65536", "0", "1")


def reaches_the_end(*words: str, **environ: str) -> None:
    """The interpreter with these words ends well, and quietly."""
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")


STARTED = """
import multiprocessing
import sys

import numpy as np

import cudriver as cu


def child(queue):
    array = cu.to_device(cu.pinned_full(1000, 3.0))
    queue.put(float(array.to_numpy().sum()))


if __name__ == "__main__":
    stream, plain = cu.Stream(), np.full(5 << 20, 9, "u1")
    pinned, large = cu.pinned_full(1 << 20, 7, "u1"), cu.device_zeros(5 << 20, "u1")
    array = cu.device_zeros(1 << 20, "u1")
    transfers = [cu.copy_async(array, pinned, stream), cu.copy_async(large, plain, stream)]
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    transfers.append(cu.copy_async(pinned, array, stream))
    assert queue.get(timeout=100) == 3000
    process.join()
    assert process.exitcode == 0
    for transfer in transfers:
        transfer.wait()
    assert (array.to_numpy() == 7).all() and (pinned == 7).all()
    assert (large.to_numpy() == 9).all()
    print("the end")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_are_started_with_copies_in_flight(method: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(STARTED)
    reaches_the_end(str(path), method)


USE = """
import asyncio

import numpy as np

import cudriver as cu
from cudriver import stack


async def there(array, pinned, stream):
    asyncio.get_running_loop().slow_callback_duration = 60  # -X dev tells of slow ones
    await cu.copy_async(array, pinned, stream)


stream, pinned = cu.Stream(), cu.pinned_zeros(100000)
with cu.Context():
    assert cu.to_device(np.arange(10)).to_numpy().sum() == 45
with cu.pinned_numpy():
    np.zeros(1000000).sum()
cu.pin(np.zeros(10000))
cu.Event().record(stream)
asyncio.run(there(cu.device_empty(100000), pinned, stream))
try:
    cu.copy(pinned, np.zeros(3))
except ValueError:
    stack.Report
    print("the end")
"""


@pytest.mark.parametrize(
    ("options", "malloc"),
    [(("-X", "dev", "-W", "error"), None), ((), "debug")],
    ids=["dev", "malloc"],
)
def test_an_interpreter_that_is_strict(options: tuple[str, ...], malloc: str | None) -> None:
    reaches_the_end(*options, "-c", USE, **({} if malloc is None else {"PYTHONMALLOC": malloc}))


@pytest.mark.skipif(bool(SANITIZER), reason="a sanitizer tells of the globals that are there twice")
def test_two_copies_of_the_package(cu, tmp_path: Path) -> None:
    """One after the other in a process, on one driver."""
    shutil.copytree(Path(cu.__file__).parent, tmp_path / "cudriver")
    driver = cu.driver_path() if DRIVER == "sim" else None
    assert output(TWO, str(tmp_path), CUDRIVER_LIBRARY=driver) == "the end\n"
