"""The choice of driver, and what tests share.

CUDRIVER_TEST_DRIVER=sim (the default) runs the suite on the simulated driver, `real` on the
system's. A test says what it needs by a fixture or a marker (`sim`, `two_devices`, `gpu`) and is
skipped, with the reason, where that is not to be had; never by a platform's name.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import cudriver

DRIVER = os.environ.get("CUDRIVER_TEST_DRIVER", "sim")
SANITIZER = os.environ.get("CUDRIVER_TEST_SANITIZER", "")
#: What depends on the interpreter, below tests/: calls of the core, types, packages, start-up. Not
#: copies, tables, ELF and reports, whose answers are those of the step `test`.
PYTHON = (
    *("core/*", "testing/*", "elf/test_elf_reader.py", "fleet/test_cli_fleet.py"),
    *("fleet/test_node.py", "project/test_types.py", "project/test_signatures.py"),
    *("project/test_docstrings.py", "stack/test_background.py", "stack/test_check_threads.py"),
    *("stack/test_cli*.py", "stack/test_collect_packages.py", "stack/test_discover.py"),
    *("stack/test_rapids.py", "stack/test_this_environment.py", "stack/test_versions.py"),
)
ANY_PYTHON = (
    *("core/test_cgroups.py", "core/test_cli_memory.py", "core/test_coherent.py"),
    *("core/test_copies_plan.py", "core/test_copy*.py", "core/test_fill.py"),
    *("core/test_foreign*.py", "core/test_numa.py", "core/test_shortage.py"),
    *("core/test_simulate.py", "core/test_weights_*.py"),
)
LACKING = {name for name in ("cc", "gcc", "readelf") if shutil.which(name) is None}


STDERR = pytest.StashKey[int]()  # that of the process, which a test's output does not go to


def named(value: object) -> str:
    """A parameter in a test's name, which is the same in each process: without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def pytest_configure(config: pytest.Config) -> None:
    """Before the first import of cudriver, and for the programs that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background jobs have it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if DRIVER not in ("sim", "real"):
        raise pytest.UsageError(f"CUDRIVER_TEST_DRIVER={DRIVER}: neither sim nor real")
    config.stash[STDERR] = os.dup(2)
    os.environ["LC_ALL"] = "C.UTF-8"  # not the developer's language
    os.environ.pop("COLUMNS", None)  # a terminal's width, which pipes must not have
    if DRIVER == "sim":
        os.environ["CUDRIVER_LIBRARY"] = "sim"
        os.environ.setdefault("CUDRIVER_SIM_DEVICES", "2")
    else:
        os.environ.pop("CUDRIVER_LIBRARY", None)

    _no_deadlines()


def _no_deadlines() -> None:
    """A property holds on a slow machine, too."""
    try:
        from hypothesis import settings
    except ModuleNotFoundError:
        return
    settings.register_profile("without deadlines", settings.default, deadline=None)
    settings.load_profile("without deadlines")


def pytest_sessionstart(session: pytest.Session) -> None:
    """A sanitizer's run that tests the ordinary build would pass and say nothing."""
    if SANITIZER:
        from cudriver import _core

        code = Path(_core.__file__).read_bytes()
        if f"__{SANITIZER}_".encode() not in code:
            raise pytest.UsageError(f"{_core.__file__} was not built for {SANITIZER}")


def pytest_report_header(config: pytest.Config) -> str:
    what = "the simulated driver" if DRIVER == "sim" else "the system's driver"
    return f"cudriver: {what}" + (f", built with {SANITIZER}" if SANITIZER else "")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """The tests are kept: to look for garbage among them takes a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _listed(item.path, PYTHON) and not _listed(item.path, ANY_PYTHON):
            item.add_marker(pytest.mark.python)
    if DRIVER == "sim":
        skip = pytest.mark.skip(reason="needs the real driver and a GPU: make test-gpu")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


@cache
def _listed(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(path.match(f"tests/{pattern}") for pattern in patterns)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """A test counts its golden blocks from one, also where it runs again in this process."""
    golden = sys.modules.get("golden")  # only the stack's tests import it
    if golden is not None:
        golden.seen.clear()
    with _without_compiler():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _without_compiler():
        yield
    if "cudriver._core" in sys.modules and (damaged := _damaged()) is not None:
        size = ctypes.c_size_t()
        block = damaged(ctypes.byref(size))
        assert block is None, f"written behind the {size.value} bytes of the block at {block:#x}"


@cache
def _damaged() -> Any:
    """The core's look at what lies behind blocks of the pool; None in a build without."""
    look = getattr(
        ctypes.CDLL(sys.modules["cudriver._core"].__file__), "cudriver_hostmem_damaged", None
    )
    if look is not None:
        look.restype = ctypes.c_void_p
    return look


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """On a GPU names what fails at once: time there is short, and a run may be cut."""
    report = yield
    terminal = item.config.pluginmanager.get_plugin("terminalreporter")
    if report.failed and DRIVER == "real" and terminal is not None:
        terminal.write_line(f"\n{report.outcome} ({report.when}): {report.nodeid}")
    return report


def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """What tears a test down that failed may hang, too: pytest ends its own limit here."""
    seconds = float(node.config.getini("faulthandler_timeout"))
    if isinstance(node, pytest.Item) and seconds > 0:
        faulthandler.dump_traceback_later(seconds, file=node.config.stash[STDERR], exit=True)


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Many tests build small libraries. Where nothing compiles or reads them, they are skipped."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename in LACKING:
            pytest.skip(f"no {error.filename} on this machine")
        raise


class Simulator:
    """The simulated driver's own functions (cext/sim/cudriver_sim.h), in the library that the
    extension has open: one file, so one set of globals."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        text, word = ctypes.c_char_p, ctypes.c_ulonglong
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "version": (ctypes.c_int, []),
            "has": (ctypes.c_int, [text]),
            "reset": (None, []),
            "set_devices": (ctypes.c_int, [ctypes.c_int]),
            "set_memory": (ctypes.c_int, [word]),
            "set_driver_version": (ctypes.c_int, [ctypes.c_int]),
            "set_latency": (ctypes.c_int, [word]),
            "set_late": (ctypes.c_int, [word]),
            "set_jitter": (ctypes.c_int, [word]),
            "set_bandwidth": (ctypes.c_int, [word]),
            "set_registration_limit": (ctypes.c_int, [word]),
            "set_profile": (ctypes.c_int, [text]),
            "fail": (ctypes.c_int, [text]),
            "fail_next": (ctypes.c_int, [text, ctypes.c_int]),
            "hold_call": (ctypes.c_int, [text, word]),
            "clear_faults": (None, []),
            "call_count": (ctypes.c_longlong, [text]),
            "reset_counts": (None, []),
            "live": (ctypes.c_longlong, [text]),
            "hold": (None, []),
            "step": (None, [word]),
            "release": (None, []),
            "poison": (ctypes.c_int, []),
        }
        self.path = path
        self._exchange = library.cuThreadExchangeStreamCaptureMode
        self._functions = {}
        for name, (result, arguments) in signatures.items():
            function = getattr(library, f"cudriver_sim_{name}")
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function

    def call(self, name: str, *arguments: object) -> Any:
        """cudriver_sim_NAME; -1, where that is its way to refuse, is a ValueError here."""
        encoded = [a.encode() if isinstance(a, str) else a for a in arguments]
        result = self._functions[name](*encoded)
        if result == -1:
            raise ValueError(f"cudriver_sim_{name}{arguments} refused")
        return result

    def put_back(self) -> None:
        """Resets knobs, faults, counters and this thread's capture mode, which stays changed where
        the call that restores it was made to fail."""
        self.reset()
        self._exchange(ctypes.byref(ctypes.c_int(0)))
        self.reset_counts()

    def settle(self) -> None:
        """Waits until no operation is pending in any context, or none has ended for ten seconds. A
        context's synchronize() leaves the others at work, and what it lets go is freed in stream
        order."""
        pending, until = 0, 0.0
        while (now := self.live("pending")) > 0:
            if now != pending:
                pending, until = now, time.monotonic() + 10
            if time.monotonic() > until:
                return
            time.sleep(0.001)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._functions:
            raise AttributeError(name)
        return lambda *arguments: self.call(name, *arguments)


def at_rest() -> bool:
    """Whether all other threads of this process sleep, in three looks: what is alive then, and is
    not wanted, has leaked. A thread that only waits for a processor does not sleep."""
    own = str(threading.get_native_id())
    for _ in range(3):
        time.sleep(0.02)
        for task in Path("/proc/self/task").iterdir():
            try:
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                return False
            if task.name != own and state != "S":
                return False
    return True


@pytest.fixture(scope="session")
def cu() -> Any:
    """The package, as `import cudriver as cu`."""
    import cudriver

    return cudriver


@pytest.fixture(scope="session")
def driver(cu: Any) -> ctypes.CDLL:
    """The driver's own functions, for work beside the package's."""
    cu.init()
    return ctypes.CDLL(cu.driver_path())


@pytest.fixture
def all_given_back() -> Iterator[None]:
    """Each tensor that a Lender lends by DLPack is given back."""
    import dlpackkit

    dlpackkit.alive.clear()
    yield
    gc.collect()
    assert dlpackkit.alive == set(), "tensors that were not given back"


@pytest.fixture(scope="session")
def simulator() -> Simulator | None:
    """The simulated driver's controls, or None on the real one."""
    if DRIVER != "sim":
        return None
    import cudriver

    return Simulator(cudriver.driver_path())


@pytest.fixture(scope="module", autouse=True)
def as_new() -> Iterator[None]:
    """Each file finds the simulated driver as a new process does, whichever files ran before it:
    what copies keep with a context goes with it, and the pool of page-locked memory is empty. Pins
    in cycles of garbage end: others' small arrays may lie in their pages. A registration that
    nobody undoes any more would make later arrays at its address page-locked. What is alive now
    belongs to no test of the file: gc.collect(), which hundreds call, need not look through it."""
    gc.collect()
    gc.freeze()
    if (failures := sys.modules.get("cudriver.memory.failures")) is not None:
        failures.found_again()  # what a test injects is no state of the process
        failures._told.clear()
    if (cu := _core_simulated()) is not None:
        _close_kept(cu)
    yield
    if (cu := _core_simulated()) is not None:
        stats = cu.host_memory_stats()
        known = stats.registered_bytes + stats.pinned_bytes
        assert Simulator(cu.driver_path()).live("registration_bytes") == known


def _core_simulated() -> Any:
    """The package if tests use its core here, on the simulated driver; else None."""
    used = DRIVER == "sim" and "cudriver._core" in sys.modules
    return sys.modules["cudriver"] if used else None


@pytest.fixture
def sim(simulator: Simulator | None) -> Iterator[Simulator]:
    """The simulated driver's controls: sim.live("streams"), sim.fail("cuMemAlloc_v2:1:2"), ...
    Its knobs, faults and counters are put back before and after, and nothing is under way
    before."""
    if simulator is None:
        pytest.skip("needs the simulated driver's controls")
    simulator.put_back()
    simulator.settle()
    yield simulator
    simulator.put_back()


@pytest.fixture
def held(cu: Any, sim: Simulator) -> Iterator[Simulator]:
    """Streams stand still until held.release()."""
    for make in (cu.pinned_zeros, cu.device_zeros):  # what is made at first use is made
        make(8 << 20, "u1")
    sim.settle()
    sim.hold()
    yield sim
    sim.release()
    sim.settle()  # work in flight keeps its memory


@pytest.fixture
def two_devices(cu: Any) -> tuple[cudriver.Device, cudriver.Device]:
    count = cu.device_count()
    if count < 2:
        pytest.skip(f"needs two devices; this driver shows {count}")
    return cu.Device(0), cu.Device(1)


# Not streams and events: the copy engine keeps some of its own with each context.
LIVE = ("contexts", "allocations", "host_allocs")


@pytest.fixture(scope="session")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of tests/fleet: two environments that do not fit together in one job. Here, because the
    tests import this file as `conftest`, so that no other may have its name."""
    from enginekit import FITS, OTHER, environment

    folder = tmp_path_factory.mktemp("environments")
    return environment(folder / "fits", FITS), environment(folder / "other", OTHER)


@pytest.fixture
def no_leaks(cu: Any, simulator: Simulator | None) -> Iterator[None]:
    """Nothing that the test made is alive after it: by the package's own account, and on the
    simulated driver by the driver's. The context that memory calls use by default is made first: it
    is kept on purpose, as those of other devices are, which are closed before and after."""
    cu.memory_info()
    _close_kept(cu, but=0)
    before = _alive(cu, simulator)
    yield
    _close_kept(cu, but=0)
    after = _alive(cu, simulator)
    assert after == before, "alive after the test, against before it"


@pytest.fixture
def same_stack(cu: Any, no_leaks: None) -> Iterator[None]:
    """The test leaves this thread's stack as it found it, and nothing alive."""
    before = cu.context_stack()
    yield
    assert cu.context_stack() == before


@pytest.fixture
def context(cu: Any) -> Iterator[Any]:
    context = cu.Context()
    yield context
    context.close()


def _close_kept(cu: Any, but: int | None = None) -> None:
    gc.collect()
    for row in cu.live_allocations():
        if row.kind == "primary context" and row.device != but:
            cu.Device(row.device).primary_context().close()
    cu.trim_host_memory()  # free page-locked memory keeps primary contexts, too


def _alive(cu: Any, simulator: Simulator | None) -> dict[str, object]:
    alive: dict[str, object] = {"live_allocations": len(cu.live_allocations())}
    if simulator is not None:
        alive.update({what: simulator.live(what) for what in LIVE})
    return alive
