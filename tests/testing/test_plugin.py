"""The pytest plugin, in sessions of its own: the marker, the fixtures, the check at the start."""

from __future__ import annotations

import doctest
import inspect
import json
import re
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cudriver.stack.facts import Environment, Evidence, Facts, Finding, Framework
from cudriver.stack.record import put
from cudriver.testing import devices, running, simulated
from cudriver.testing.running import RunningStack
from cudriver.testing.simulated import SimulatedCuda

pytest_plugins = ["pytester"]

Session = Callable[..., pytest.RunResult]
QUIET = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Runs pytest on this source, in a process of its own; on the simulated driver by default."""

    def run(source: str, *arguments: str, **environ: str | None) -> pytest.RunResult:
        environ = {"PYTEST_ADDOPTS": None, "CUDRIVER_LIBRARY": "sim", **environ}
        for name, value in environ.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_subprocess(*QUIET, "-rs", *arguments)

    return run


def test_a_session_that_uses_nothing_imports_nothing(session: Session) -> None:
    source = """
        import json, sys

        def test_it():
            print("SEEN", json.dumps(sorted(sys.modules)))
    """

    def imported(*arguments: str) -> set[str]:
        result = session(source, "-s", *arguments)
        result.assert_outcomes(passed=1)
        line = next(line for line in result.outlines if "SEEN " in line)
        return {*json.JSONDecoder().raw_decode(line.partition("SEEN ")[2])[0]}

    ours = {"cudriver", "cudriver._version", "cudriver.pytest_plugin"}
    assert imported() - imported("-p", "no:cudriver") == ours


MARKED = """
    import pytest, sys

    @pytest.mark.cuda
    def test_one(): pass

    @pytest.mark.cuda(devices=2, memory="1 GiB")
    def test_two(): pass

    @pytest.mark.cuda(devices=3)
    def test_three(): pass

    @pytest.mark.cuda(memory="16 GiB")
    def test_all_of_the_memory(): pass

    @pytest.mark.cuda(devices=4, memory="1024 MiB")
    def test_four(): pass

    @pytest.mark.cuda(memory="16385 MiB")
    def test_a_little_more(): pass

    @pytest.mark.cuda(memory="16777217k")
    def test_still_less(): pass

    @pytest.mark.cuda(memory="20 GB")
    def test_large(): pass

    @pytest.mark.cuda(devices=9)
    class TestBoth:
        @pytest.mark.cuda(memory=5)
        def test_both(self): pass

    def test_nothing_was_loaded_here():
        assert "cudriver._core" not in sys.modules
"""


def test_a_marked_test_needs_the_devices(session: Session) -> None:
    simulated = {"CUDRIVER_SIM_DEVICES": "2", "CUDRIVER_SIM_MEMORY": str(16 << 30)}
    result = session(MARKED, "--strict-markers", **simulated)
    result.assert_outcomes(passed=4, skipped=6)
    text = result.stdout.str().replace("\n", "")
    for needed in (
        "3 CUDA devices",
        "4 CUDA devices with 1 GiB of memory",
        "a CUDA device with 20 GiB of memory",
        "9 CUDA devices",
    ):
        assert f"needs {needed}; " in text
    assert "libcudriver_sim.so shows 2 (16 GiB, 16 GiB)" in text


def test_the_devices_are_asked_without_imports_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "cudriver", "numpy", "json", "argparse", "sitecustomize":
        (tmp_path / f"{name}.py").write_text(f"open('imported-{name}', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDRIVER_LIBRARY", "sim")
    monkeypatch.setenv("CUDRIVER_SIM_DEVICES", "3")
    memories, words = devices.shown.__wrapped__()
    assert (len(memories), list(tmp_path.glob("imported-*"))) == (3, []), words


def test_a_marked_test_says_why_there_is_no_driver(session: Session, tmp_path: Path) -> None:
    missing = str(tmp_path / "libnothing.so")
    result = session(MARKED, CUDRIVER_LIBRARY=missing)
    result.assert_outcomes(passed=1, skipped=9)
    assert missing in result.stdout.str().replace("\n", "")


def test_a_marker_that_cannot_be_right_is_an_error(session: Session) -> None:
    source = """
        import pytest

        @pytest.mark.cuda(2)
        def test_position(): pass

        @pytest.mark.cuda(gpus=2)
        def test_keyword(): pass

        @pytest.mark.cuda(devices=0)
        def test_devices(): pass

        @pytest.mark.cuda(memory="much")
        def test_memory(): pass
    """
    result = session(source)
    result.assert_outcomes(errors=4)
    text = result.stdout.str()
    assert "takes devices= and memory= only, not argument 2" in text
    assert "takes devices= and memory= only, not keyword 'gpus'" in text
    assert "devices is a number from 1 on, not 0" in text
    assert "memory is bytes, or text as '16 GiB', not 'much'" in text
    assert "Traceback" not in text


# ---- no_cuda_leaks -------------------------------------------------------------------------------

LEAKS = """
    import ctypes

    import cudriver as cu
    import pytest
    from cudriver.testing import leaks

    pytestmark = pytest.mark.usefixtures("no_cuda_leaks")
    kept = []
    simulator = ctypes.CDLL(cu.driver_path())
    finish_work = leaks._finish_work

    @pytest.fixture(autouse=True)
    def release():
        yield
        simulator.cudriver_sim_release()

    @pytest.fixture
    def array():
        return cu.device_empty(10)

    def test_clean():
        node = [cu.pinned_empty(100), cu.Stream(), cu.Event()]
        node.append(node)  # only a cycle keeps it

    def test_fixture_values_are_over(array):
        array.fill(1)

    def finish(left):
        simulator.cudriver_sim_set_latency(ctypes.c_ulonglong(300_000))
        simulator.cudriver_sim_release()
        finish_work(left)
        simulator.cudriver_sim_set_latency(ctypes.c_ulonglong(0))

    leaks._finish_work = finish  # until then a copy is under way
    there = cu.device_empty(1 << 20, "u1")

    def start(array):
        memory, stream = cu.pinned_zeros(1 << 20, "u1"), cu.Stream()
        array.device.primary_context().synchronize()  # the array can be used
        simulator.cudriver_sim_hold()
        cu.copy_async(array, memory, stream)

    def test_copy_in_flight():
        start(cu.device_empty(1 << 20, "u1"))

    def test_copy_in_flight_of_host_memory_alone():
        start(there)

    def test_leak():
        kept.append(cu.device_empty(1000, "u1"))  # line 24
        kept.append(cu.pinned_empty(2000, "u1"))

    def test_what_was_alive_before_is_none():
        kept[0].fill(0)

    def test_replaced():
        kept.pop(0).close()
        kept.append(cu.device_empty(1000, "u1"))

    def test_failed():
        array = cu.pinned_empty(3)
        assert array is None
"""


def test_leaks_are_named_with_their_lines(session: Session) -> None:
    result = session(LEAKS)
    result.assert_outcomes(passed=7, failed=1, errors=2)
    source = inspect.cleandoc(LEAKS).splitlines()
    first = next(n for n, line in enumerate(source, 1) if "# line" in line)
    again = next(n for n, line in enumerate(source, 1) if "kept.pop" in line) + 1
    lines = [line.strip() for line in result.outlines]
    at = lines.index("alive after the test: 2 objects that cudriver made in it")
    assert [line.rpartition("/")[2] for line in lines[at + 1 : at + 3]] == [
        f"test_it.py:{first}",
        f"test_it.py:{first + 1}",
    ]
    assert lines[at + 1].startswith("device array, 1000 bytes, device 0, made at /")
    assert lines[at + 2].startswith("host memory, 2000 bytes, made at /")
    at = lines.index("alive after the test: 1 object that cudriver made in it")
    assert lines[at + 1].endswith(f"test_it.py:{again}")


def test_work_that_nobody_can_wait_for_is_given_time(session: Session) -> None:
    result = session("""
        import ctypes
        import threading

        import cudriver as cu
        import numpy as np
        import pytest

        pytestmark = pytest.mark.usefixtures("no_cuda_leaks")
        simulator = ctypes.CDLL(cu.driver_path())
        kept = []

        def test_copy_in_flight_in_a_context_that_was_dropped():
            with cu.Context():
                array, memory = cu.device_empty(1 << 20, "u1"), cu.pinned_zeros(1 << 20, "u1")
                cu.synchronize()
                simulator.cudriver_sim_hold()
                threading.Timer(0.3, simulator.cudriver_sim_release).start()
                cu.copy_async(array, memory, cu.Stream())

        def test_pins_that_were_dropped():
            for _ in range(20):
                cu.pin_async(np.empty(1 << 20, "u1"))

        def test_leak():
            kept.append(cu.Context())
    """)
    result.assert_outcomes(passed=3, errors=1)
    lines = [line.strip() for line in result.outlines]
    at = lines.index("alive after the test: 1 object that cudriver made in it")
    assert lines[at + 1].startswith("context, 0 bytes, device 0, made at /")


# ---- simulated_cuda ------------------------------------------------------------------------------


def test_a_program_runs_on_the_simulated_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDRIVER_LIBRARY", "/nowhere/libcuda.so.1")
    monkeypatch.setenv("CUDRIVER_SIM_DEVICES", "7")
    program = """
        import sys, cudriver as cu
        try:
            cu.pinned_empty(10)
        except cu.OutOfMemoryError:
            print(cu.device_count(), cu.Device(0).total_memory, *sys.argv[1:])
    """
    knobs = {"devices": 3, "memory": "1G", "fail": "cuMemHostRegister_v2:*:2"}
    done = SimulatedCuda().run(program, "a", "b", **knobs)
    first = SimulatedCuda().run("import cudriver as cu; print(cu.device_count())")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"3 {1 << 30} a b\n", "")
    assert first.stdout == "1\n"
    script = "import os; print(os.environ['CUDRIVER_LIBRARY'], os.environ['CUDRIVER_SIM_DEVICES'])"
    done = SimulatedCuda().run(script, environ={"CUDRIVER_LIBRARY": "/x"}, devices=5)
    assert done.stdout == "/x 5\n"
    with pytest.raises(TypeError, match="no setting 'gpus'; it has bandwidth, devices"):
        SimulatedCuda().run("", gpus=3)


USED = """
    import cudriver as cu

    def test_here(simulated_cuda):
        simulated_cuda.use()
        assert cu.driver_is_simulated()
        simulated_cuda.use()

    def test_program(simulated_cuda):
        done = simulated_cuda.run("print(1)")
        assert done.stdout == "1\\n"
"""


def test_this_process_takes_the_simulated_driver_where_there_is_none(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDRIVER_LIBRARY", raising=False)
    memories, words = devices.shown.__wrapped__()
    if memories:
        pytest.skip(f"needs a machine without a GPU: {words}")
    session(USED, CUDRIVER_LIBRARY=None).assert_outcomes(passed=2)


def test_an_error_says_that_use_was_not_called(session: Session) -> None:
    source = """
        import pytest
        import cudriver as cu

        def test_forgotten(simulated_cuda):
            cu.device_zeros(3)

        def test_used(simulated_cuda):
            with pytest.raises(cu.DriverNotFoundError):
                simulated_cuda.use()
            cu.device_zeros(3)

        def test_of_something_else(simulated_cuda):
            assert simulated_cuda.run("print(1)").stdout == "2"

        def test_without():
            cu.device_zeros(3)
    """
    result = session(source, CUDRIVER_LIBRARY="/nowhere/libcuda.so.1")
    result.assert_outcomes(failed=4)
    said = "the fixture simulated_cuda alone chooses no driver: call simulated_cuda.use() first"
    at = [number for number, line in enumerate(result.outlines) if said in line]
    assert len(at) == 1
    assert "test_forgotten" in [line for line in result.outlines[: at[0]] if line[:2] == "__"][-1]


@pytest.mark.parametrize("library", ["", None])  # both mean the system's driver
def test_a_real_device_is_left_to_the_other_tests(
    monkeypatch: pytest.MonkeyPatch, library: str | None
) -> None:
    monkeypatch.delenv("CUDRIVER_LIBRARY", raising=False)
    if library is not None:
        monkeypatch.setenv("CUDRIVER_LIBRARY", library)
    monkeypatch.setattr(devices, "shown", lambda: ([1 << 30], "libcuda.so.1 shows 1 (1 GiB)"))
    with pytest.raises(pytest.skip.Exception, match="stays for the other tests: libcuda"):
        SimulatedCuda().use()


@pytest.mark.parametrize("library", ["/opt/libcuda.so.1", "", None])
def test_another_driver_in_use_is_named(
    cu: Any, monkeypatch: pytest.MonkeyPatch, library: str | None
) -> None:
    cu.device_count()  # initialises the driver: from now on it is in use
    path = cu.driver_path()
    monkeypatch.setattr(cu, "driver_is_simulated", lambda: False)
    monkeypatch.setattr(devices, "shown", lambda: ([], "no driver"))
    monkeypatch.delenv("CUDRIVER_LIBRARY", raising=False)
    if library is not None:
        monkeypatch.setenv("CUDRIVER_LIBRARY", library)
    with pytest.raises(pytest.skip.Exception, match=f"process uses {re.escape(path)} already"):
        SimulatedCuda().use()


# ---- cuda_stack ----------------------------------------------------------------------------------


def test_the_report_is_that_of_the_running_environment(session: Session) -> None:
    source = """
        import sys

        def test_it(cuda_stack):
            assert cuda_stack.prefix == sys.prefix
            assert cuda_stack.verdict in ("consistent", "mismatch", "unknown")

        def test_same(cuda_stack, request):
            assert request.getfixturevalue("cuda_stack") is cuda_stack
    """
    session(source).assert_outcomes(passed=2)


@pytest.fixture
def checked(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Runs one test in this process, in an environment that has an error or is healthy."""
    error = Finding("CU301", "error", "libx.so is not found", [Evidence("/a")])
    asked = []

    def run(*arguments: str, broken: bool = True, looks: bool = True) -> pytest.RunResult:
        def inspect() -> RunningStack:
            asked.append(1)
            return RunningStack(Facts(Environment("/srv/envs/a", "venv")), [error] * broken)

        monkeypatch.setattr(running, "inspect", inspect)
        monkeypatch.delitem(sys.modules, "cudriver.testing.gate", raising=False)
        pytester.makepyfile("def test_it(): pass")
        result = pytester.runpytest_inprocess(*QUIET, *arguments)
        assert bool(asked) == looks
        return result

    return run


def test_workers_leave_the_check_to_the_session_that_started_them(
    session: Session, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        import cudriver.stack

        inspect = cudriver.stack.inspect

        def counted():
            with open("checks", "a") as file:
                file.write("once\\n")
            return inspect()

        cudriver.stack.inspect = counted
        """
    )
    source = """
        def test_one(): pass
        def test_two(): pass
    """
    session(source, "-n", "2", "--cuda-stack=warn").assert_outcomes(passed=2)
    assert (pytester.path / "checks").read_text() == "once\n"


def test_an_error_ends_the_session(checked: Session) -> None:
    result = checked("--cuda-stack=error")
    assert result.ret == 1
    said = result.stdout.str() + result.stderr.str()
    assert "passed" not in said
    assert "CUDA cannot work here" in said
    assert "error CU301  libx.so is not found" in said
    assert "Traceback" not in said


def test_a_warning_shows_the_report(checked: Session) -> None:
    result = checked("--cuda-stack=warn")
    result.assert_outcomes(passed=1)
    assert "cuda stack: mismatch" in result.outlines
    assert "error CU301  libx.so is not found" in result.outlines


@pytest.mark.parametrize("option", [["--cuda-stack=off"], []])
def test_off_looks_at_nothing(checked: Session, option: list[str]) -> None:
    result = checked(*option, looks=False)
    result.assert_outcomes(passed=1)
    assert "stack" not in result.stdout.str()


@pytest.mark.parametrize("option", ["error", "warn"])
def test_a_healthy_environment_is_a_line_of_the_header(checked: Session, option: str) -> None:
    result = checked(f"--cuda-stack={option}", broken=False)
    result.assert_outcomes(passed=1)
    assert [line for line in result.outlines if line.startswith("cuda stack: ")]
    assert "/srv/envs/a" not in result.stdout.str()


# ---- compare_with_pytorch ------------------------------------------------------------------------


class Torch(types.ModuleType):
    """As much of PyTorch as is asked."""

    def __init__(self, folder: Path, **says: Any) -> None:
        super().__init__("torch")
        values = {"driver": 13000, "cuda": "12.8", "cudnn": 91002, "nccl": (2, 27, 3)}
        values |= {"archs": "sm_90 sm_80", **says}
        self.__file__ = str(folder / "torch" / "__init__.py")
        self._C = types.SimpleNamespace(
            _cuda_getDriverVersion=lambda: values["driver"],
            _cuda_getArchFlags=lambda: values["archs"],
        )
        self.version = types.SimpleNamespace(cuda=values["cuda"])
        cudnn = types.SimpleNamespace(version=lambda: values["cudnn"])
        self.backends = types.SimpleNamespace(cudnn=cudnn)
        nccl = types.SimpleNamespace(version=lambda: values["nccl"])
        self.cuda = types.SimpleNamespace(nccl=nccl)


def compare(
    tmp_path: Path, torch: Torch, mapped: Sequence[str] = (), **known: Any
) -> dict[str, tuple[Any, Any]]:
    """What differs between a report and this PyTorch: {name: (by the check, by PyTorch)}."""
    about = {"cuda": "12.8", "cudnn": "9.10.2", "nccl": "2.27.3", "archs": ["sm_80", "sm_90"]}
    about |= {"path": str(tmp_path / "torch"), **known}
    facts = Facts(Environment("/srv/envs/a", "venv"))
    put(facts.driver, path="/usr/lib/libcuda.so.1", cuda="13.0")
    facts.frameworks.append(Framework("torch", "2.8.0", **about))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", torch)
        patch.setattr(running, "_mapped", lambda: mapped)
        rows = list(running._rows(facts, torch))
        different = {row.name: (row.predicted, row.observed) for row in rows if not row.agrees}
        if different:
            with pytest.raises(AssertionError):
                RunningStack(facts, []).compare_with_pytorch()
        else:
            RunningStack(facts, []).compare_with_pytorch()
    return different


def test_what_pytorch_says_agrees(tmp_path: Path) -> None:
    assert compare(tmp_path, Torch(tmp_path)) == {}


def test_what_one_side_does_not_know_is_left_out(tmp_path: Path) -> None:
    assert compare(tmp_path, Torch(tmp_path, driver=0, cudnn=None, archs=""), nccl=None) == {}


@pytest.mark.parametrize(
    ("says", "name", "values"),
    [
        ({"driver": 12080}, "driver's CUDA", ("13.0", "12.8")),
        ({"cuda": "12.6"}, "torch.version.cuda", ("12.8", "12.6")),
        ({"cuda": None}, "torch.version.cuda", ("12.8", "(CPU only)")),
        ({"cudnn": 8907}, "torch.backends.cudnn.version()", ("9.10.2", "8.9.7")),
        ({"nccl": (2, 28, 9)}, "torch.cuda.nccl.version()", ("2.27.3", "2.28.9")),
        ({"archs": "sm_90"}, "architectures", ("sm_80 sm_90", "sm_90")),
    ],
)
def test_each_value_is_compared(
    tmp_path: Path, says: dict[str, Any], name: str, values: tuple[str, str]
) -> None:
    assert compare(tmp_path, Torch(tmp_path, **says)) == {name: values}


def test_another_pytorch_than_the_environments_differs(tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert set(compare(tmp_path, Torch(other))) == {"torch"}


def test_each_mapped_library_is_compared(tmp_path: Path) -> None:
    mapped = ["/opt/lib/libcublas.so.12", "/usr/lib/libm.so.6"]
    answer = compare(tmp_path, Torch(tmp_path), mapped)
    assert answer == {"libcublas.so.12": ("(not predicted)", "/opt/lib/libcublas.so.12")}


def test_differences_are_a_diff(session: Session) -> None:
    source = """
        import sys
        from cudriver.stack.load.observe import Row
        from cudriver.testing import running

        def rows(facts, torch):
            return [Row("same", "1", "1"), Row("CUDA", "12.8", "13.0"), Row("unknown", None, "1")]

        def test_it(cuda_stack, monkeypatch):
            monkeypatch.setattr(running, "_rows", rows)
            monkeypatch.setitem(sys.modules, "torch", sys)
            cuda_stack.compare_with_pytorch()
    """
    result = session(source)
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "E         {'CUDA': '12.8'} != {'CUDA': '13.0'}" in text
    assert "check's files (left) and PyTorch at run time (right)" in text
    assert "unknown" not in text.partition("AssertionError")[2]
    assert "running.py" not in text


def test_without_pytorch_the_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    report = RunningStack(Facts(Environment("/srv/envs/a", "venv")), [])
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(pytest.skip.Exception, match="not installed in /srv/envs/a"):
        report.compare_with_pytorch()


def test_the_examples_run() -> None:
    for module in (running, simulated):
        tried = doctest.testmod(module, extraglobs={"sys": sys})
        assert (tried.failed, tried.attempted > 0) == (0, True)
