"""The pytest plugin: docs/pytest.md.

pytest loads this file in every session, wherever cudriver is installed. It is therefore short, and
imports `cudriver.testing` only when that is used.
"""

from __future__ import annotations

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudriver.testing.running import RunningStack
    from cudriver.testing.simulated import SimulatedCuda

pytest.register_assert_rewrite("cudriver.testing.running")

MARKER = (
    "cuda(devices=1, memory=None): skip unless the driver shows so many devices, each with at "
    "least so much memory (bytes, or text such as '16 GiB')"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("cudriver").addoption(
        "--cuda-stack",
        choices=("error", "warn", "off"),
        default="off",
        help="check this environment's CUDA before the first test: 'error' ends the session where "
        "it cannot work, 'warn' shows the report and goes on (default: off)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    # A worker of pytest-xdist leaves the check to the session that started it.
    if config.getoption("--cuda-stack") != "off" and not hasattr(config, "workerinput"):
        from cudriver.testing.gate import Gate

        config.pluginmanager.register(Gate(config), "cudriver-gate")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None:
        from cudriver.testing.devices import require

        require(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    fixture = getattr(item, "funcargs", {}).get("simulated_cuda")
    if fixture is not None and call.excinfo is not None:
        fixture._explain(call.excinfo.value)


@pytest.fixture(scope="session")
def cuda_stack() -> RunningStack:
    """The check's report of the environment that the tests run in, as `cudriver check` has it."""
    from cudriver.testing.running import inspect

    return inspect()


@pytest.fixture
def simulated_cuda() -> SimulatedCuda:
    """The simulated driver: for a program in a process of its own, or for this process."""
    from cudriver.testing.simulated import SimulatedCuda

    return SimulatedCuda()


@pytest.fixture
def no_cuda_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if what the test made with cudriver is alive after it. Names the lines that made it."""
    from cudriver.testing.leaks import watch

    yield from watch(request)
