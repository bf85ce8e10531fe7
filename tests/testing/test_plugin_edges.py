"""The plugin at its edges: what a marker's words mean, what a device's memory is called, leaks."""

from __future__ import annotations

import builtins
import io
import json
import os
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import cudriver as cu
from cudriver.stack.facts import Environment, Facts, Framework
from cudriver.stack.record import put
from cudriver.testing import devices, leaks, running
from cudriver.testing.gate import Gate
from cudriver.testing.simulated import KNOBS, SimulatedCuda
from cudriver.typing import Allocation

GIB = 1 << 30

# ---- the marker ----------------------------------------------------------------------------------


def item(*marks: pytest.MarkDecorator) -> Any:
    """A test with these marks, the nearest first."""
    return types.SimpleNamespace(
        nodeid="test_it.py::test_it", iter_markers=lambda name: [each.mark for each in marks]
    )


@pytest.mark.parametrize(
    ("memory", "count"),
    [
        (None, 0), (0, 0), (7, 7), ("7", 7), ("7b", 7), ("1k", 1024), ("1 KB", 1024),
        ("1KiB", 1024), (" 1.5 m ", 3 << 19), ("2g", 2 * GIB), ("0.5 TiB", 1 << 39),
        ("16 GiB", 16 * GIB),
    ],
)  # fmt: skip
def test_memory_is_bytes_or_text(memory: object, count: int) -> None:
    marker = pytest.mark.cuda(memory=memory)
    assert devices._wish(item(), marker.args, marker.kwargs) == (1, count)


@pytest.mark.parametrize(
    "memory", ["", " ", "g", "-1", -1, 1.5, "1.g", ".5g", "1 p", "1gg", "1bi", "1e9", []]
)
def test_memory_that_is_neither_is_an_error(memory: object) -> None:
    marker = pytest.mark.cuda(memory=memory)
    text = r"test_it: @pytest\.mark\.cuda: memory is bytes, or text as '16 GiB', not "
    with pytest.raises(pytest.fail.Exception, match=text) as caught:
        devices._wish(item(), marker.args, marker.kwargs)
    assert str(caught.value).endswith(f"not {memory!r}")


@pytest.mark.parametrize("count", [0, -1, 1.0, "2", None, True])
def test_devices_that_are_no_number_are_an_error(count: object) -> None:
    with pytest.raises(pytest.fail.Exception, match=f"a number from 1 on, not {count!r}"):
        devices._wish(item(), (), {"devices": count})


def test_of_several_wrong_words_the_first_is_named() -> None:
    for args, kwargs, what in (
        ((), {"z": 1, "a": 2, "devices": 1}, "keyword 'a'"),
        (("x", 2), {"a": 1}, "argument 'x'"),
    ):
        with pytest.raises(pytest.fail.Exception, match=f"memory= only, not {what}"):
            devices._wish(item(), args, kwargs)


@pytest.mark.parametrize(
    ("marks", "reason"),
    [
        ([pytest.mark.cuda], None),
        ([pytest.mark.cuda(devices=2)], None),
        ([pytest.mark.cuda(devices=2, memory=GIB)], None),
        ([pytest.mark.cuda(devices=2, memory=GIB + 1)], "2 CUDA devices with 1 GiB of memory"),
        ([pytest.mark.cuda(memory=GIB + 1)], None),
        ([pytest.mark.cuda(memory=2 * GIB + 1)], "a CUDA device with 2 GiB of memory"),
        ([pytest.mark.cuda(devices=3)], "3 CUDA devices"),
        ([pytest.mark.cuda, pytest.mark.cuda(devices=4)], "4 CUDA devices"),
        ([pytest.mark.cuda(devices=5), pytest.mark.cuda(devices=4)], "5 CUDA devices"),
    ],
)
def test_each_device_has_the_memory_and_every_marker_counts(
    monkeypatch: pytest.MonkeyPatch, marks: list[pytest.MarkDecorator], reason: str | None
) -> None:
    monkeypatch.setattr(devices, "shown", lambda: ([2 * GIB, GIB], "x shows 2"))
    said = None
    try:
        devices.require(item(*marks))
    except pytest.skip.Exception as skipped:  # else this test would be skipped
        said = str(skipped)
    assert said == (reason and f"needs {reason}; x shows 2")


def test_a_marker_that_is_wrong_is_an_error_before_devices_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "shown", pytest.fail)
    with pytest.raises(pytest.fail.Exception, match="devices is a number"):
        devices.require(item(pytest.mark.cuda, pytest.mark.cuda(devices=0)))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 MiB"), (1 << 20, "1 MiB"), (1000 << 20, "1,000 MiB"), (GIB - 1, "1,024 MiB"),
        (GIB, "1 GiB"), (3 * GIB // 2, "1.5 GiB"), (150120 << 20, "147 GiB"),
    ],
)  # fmt: skip
def test_memory_in_words(count: int, text: str) -> None:
    assert devices._size(count) == text


def answered(**answer: Any) -> str:
    return json.dumps({"error": None, "driver": {"path": "/x"}, "devices": [], **answer})


@pytest.mark.parametrize(
    ("stdout", "memories", "words"),
    [
        (answered(), [], "/x shows 0 (none)"),
        (answered(devices=[{"total_memory": GIB}]), [GIB], "/x shows 1 (1 GiB)"),
        (
            answered(devices=[{"total_memory": GIB}, {"total_memory": 1 << 20}]),
            [GIB, 1 << 20],
            "/x shows 2 (1 GiB, 1 MiB)",
        ),
        (answered(error="no libcuda"), [], "no libcuda"),
        ("", [], f"`{sys.executable} -m cudriver devices --json` gave no answer: Expecting value"),
    ],
)
def test_what_the_child_answers(
    monkeypatch: pytest.MonkeyPatch, stdout: str, memories: list[int], words: str
) -> None:
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: types.SimpleNamespace(stdout=stdout, returncode=0)
    )
    found = devices.shown.__wrapped__()
    assert found[0] == memories
    assert found[1].startswith(words)
    assert stdout == "" or found[1] == words


def test_the_driver_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(*_: Any, **__: Any) -> Any:
        asked.append(1)
        return types.SimpleNamespace(stdout=answered(), returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    before = devices.shown.cache_info().currsize
    first = devices.shown()
    assert devices.shown() is first
    assert len(asked) == 1 - before
    if not before:
        devices.shown.cache_clear()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (subprocess.TimeoutExpired("x", 1), "the driver gave no answer within 120 s"),
        (OSError(8, "Exec format error"), "gave no answer: [Errno 8] Exec format error"),
    ],
)
def test_a_child_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def fails(*_: Any, timeout: float, **__: Any) -> None:
        assert timeout == 120
        raise error

    monkeypatch.setattr(subprocess, "run", fails)
    found, said = devices.shown.__wrapped__()
    assert found == []
    assert said.endswith(words)


# ---- no_cuda_leaks -------------------------------------------------------------------------------


def test_a_leak_in_words() -> None:
    stream = Allocation("stream", 0, 5, 1, "/a.py:3")
    memory = Allocation("host memory", 80, 6, None, None)
    assert leaks._text(Counter([stream])) == (
        "alive after the test: 1 object that cudriver made in it\n"
        "  stream, 0 bytes, device 1, made at /a.py:3"
    )
    assert leaks._text(Counter([memory, stream, memory])) == (
        "alive after the test: 3 objects that cudriver made in it\n"
        "  host memory, 80 bytes\n  host memory, 80 bytes\n"
        "  stream, 0 bytes, device 1, made at /a.py:3"
    )


class Request:
    def __init__(self) -> None:
        self.session = types.SimpleNamespace(testsfailed=3)
        self.node = types.SimpleNamespace(funcargs={})


def watched(request: Request) -> Any:
    watch = leaks.watch(request)  # type: ignore[arg-type]
    next(watch)
    return watch


def test_what_goes_while_the_test_runs_is_no_leak_and_contexts_are_kept() -> None:
    try:
        array = cu.pinned_empty(10)
        watch = watched(request := Request())
        del array
        stream = cu.Stream()
        contexts = [device.primary_context() for device in cu.devices()]
        request.node.funcargs["stream"] = stream
        del stream
        assert next(watch, "over") == "over"
        del contexts
        watch = watched(Request())
        kept = cu.Event()
        with pytest.raises(pytest.fail.Exception, match=r"1 object .*\n  event, 0 bytes, device 0"):
            next(watch)
        watch = watched(request)
        other = cu.Event()
        request.session.testsfailed += 1  # its traceback may keep things
        assert next(watch, "over") == "over"
        del kept, other
    finally:
        cu.trace_allocations(enabled=False)


def test_a_context_that_cannot_be_waited_for_hides_no_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited = []

    class Broken:
        def __init__(self, ordinal: int) -> None:
            self.ordinal = ordinal

        def primary_context(self) -> Any:
            waited.append(self.ordinal)
            raise cu.CudaError("broken")

    monkeypatch.setattr(cu, "Device", Broken)
    rows = [Allocation("stream", 0, 1, ordinal, None) for ordinal in (0, 1, None)]
    leaks._finish_work(Counter(rows))
    assert {0, 1} <= {*waited}
    waited.clear()
    kept = Allocation("primary context", 0, 1, 1, None)
    monkeypatch.setattr(cu, "live_allocations", lambda: [kept])
    leaks._finish_work(Counter([Allocation("host memory", 8, 1, None, None)]))
    assert waited == [1]


# ---- simulated_cuda ------------------------------------------------------------------------------


def test_a_program_has_no_input_and_a_limit_of_time() -> None:
    done = SimulatedCuda().run("""
        import sys
        print(sys.stdin.read() == "", file=sys.stderr)
        sys.exit(3)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "True\n")
    with pytest.raises(subprocess.TimeoutExpired):
        SimulatedCuda().run("import time; time.sleep(60)", timeout=0.1)


def test_the_settings_are_those_that_the_driver_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CUDRIVER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDRIVER_SIM_PROFILE", "stub")
    monkeypatch.setenv("CUDRIVER_TRACE", "0")
    show = "import os; print(*sorted(n for n in os.environ if n.startswith('CUDRIVER_')))"
    assert SimulatedCuda().run(show).stdout.split() == ["CUDRIVER_LIBRARY", "CUDRIVER_TRACE"]
    given = dict.fromkeys(KNOBS, 1)
    names = SimulatedCuda().run(show, environ={"CUDRIVER_X": "1"}, **given).stdout.split()
    assert {*names} == {
        "CUDRIVER_LIBRARY", "CUDRIVER_TRACE", "CUDRIVER_X",
        *(f"CUDRIVER_SIM_{name}" for name in (
            "PROFILE", "DEVICES", "MEMORY", "DRIVER_VERSION", "LATENCY_US", "LATE_US", "JITTER_US",
            "BANDWIDTH", "FAIL",
        )),
    }  # fmt: skip
    number = "import os; print(os.environ['CUDRIVER_SIM_DEVICES'])"
    environ = {"CUDRIVER_SIM_DEVICES": "9"}  # beside what is given for all goes before it
    assert SimulatedCuda().run(number, environ=environ, devices=5).stdout == "9\n"
    with pytest.raises(TypeError) as caught:
        SimulatedCuda().run("", zeta=1, gpus=1, devices=2)
    assert str(caught.value) == (
        "the simulated driver has no setting 'gpus'; it has bandwidth, devices, driver_version, "
        "fail, jitter_us, late_us, latency_us, memory, profile"
    )


# ---- the check at the start ----------------------------------------------------------------------


class Lines:
    def __init__(self) -> None:
        self.written: list[str] = []

    def section(self, title: str, **_: Any) -> None:
        self.written.append(title)

    def write_line(self, line: str) -> None:
        self.written.append(line)


@pytest.mark.parametrize("option", ["error", "warn"])
@pytest.mark.parametrize("verdict", ["consistent", "mismatch", "unknown"])
def test_only_a_mismatch_ends_or_is_shown(
    monkeypatch: pytest.MonkeyPatch, option: str, verdict: str
) -> None:
    told = f"{verdict}: torch works"
    report = types.SimpleNamespace(
        verdict=verdict, summary=told, exit_code=7, to_text=lambda: "the report"
    )
    monkeypatch.setitem(Gate.pytest_sessionstart.__globals__, "inspect", lambda: report)
    config: Any = types.SimpleNamespace(getoption=lambda name: option)
    gate, lines = Gate(config), Lines()
    assert gate.pytest_report_header() is None  # before it was looked at
    gate.pytest_terminal_summary(lines)  # type: ignore[arg-type]
    if (option, verdict) == ("error", "mismatch"):
        with pytest.raises(pytest.exit.Exception) as caught:
            gate.pytest_sessionstart()
        assert caught.value.returncode == 7
        assert str(caught.value) == "--cuda-stack=error: CUDA cannot work here\n\nthe report"
    else:
        gate.pytest_sessionstart()
    assert gate.pytest_report_header() == f"cuda stack: {told}"
    gate.pytest_terminal_summary(lines)  # type: ignore[arg-type]
    shown = (option, verdict) == ("warn", "mismatch")
    assert lines.written == (["CUDA stack", "the report"] if shown else [])


# ---- compare_with_pytorch ------------------------------------------------------------------------


def torch(folder: Path, **native: Any) -> Any:
    def cudnn() -> int:
        raise RuntimeError("not built")

    return types.SimpleNamespace(
        __file__=str(folder / "torch" / "__init__.py"),
        _C=types.SimpleNamespace(**native),
        version=types.SimpleNamespace(cuda=native.pop("built", None)),
        backends=types.SimpleNamespace(cudnn=types.SimpleNamespace(version=cudnn)),
        cuda=types.SimpleNamespace(),
    )


def rows(facts: Facts, module: Any, patch: pytest.MonkeyPatch) -> list[tuple[Any, Any, Any]]:
    patch.setattr(running, "_mapped", list)
    return [(row.name, row.predicted, row.observed) for row in running._rows(facts, module)]


def test_what_is_asked_of_a_pytorch_that_has_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = Facts(Environment("/srv", "venv"))
    path = str(tmp_path / "torch")
    assert rows(facts, torch(tmp_path), monkeypatch) == [("torch", "(not found)", path)]
    nowhere = torch(tmp_path)
    nowhere.__file__ = None  # a folder of that name without a file
    assert [name for name, *_ in rows(facts, nowhere, monkeypatch)] == ["torch"]
    facts.frameworks.append(Framework("torch", "2", path=path, variant="cpu"))
    same = ("torch", path, path)
    plain = ("torch.version.cuda", "(CPU only)", "(CPU only)")
    assert rows(facts, torch(tmp_path), monkeypatch) == [same, plain]
    for number, seen in ((12090, "12.9"), (13000, "13.0"), (11040, "11.4"), (0, None)):
        module = torch(tmp_path, _cuda_getDriverVersion=lambda number=number: number)
        driver = ("driver's CUDA", "(no driver)", seen)
        assert rows(facts, module, monkeypatch) == [same, driver, plain]
    facts.frameworks[0] = Framework("torch", "2", path=path, variant="rocm")
    assert rows(facts, torch(tmp_path), monkeypatch) == [same]
    facts.frameworks[0] = Framework(
        "torch", "2", path=path, variant="cuda", cuda="12.8", archs=["sm_90", "sm_80"], nccl="2.1"
    )
    module = torch(tmp_path)
    module.version.cuda = "12.8"
    assert rows(facts, module, monkeypatch) == [
        same,
        ("torch.version.cuda", "12.8", "12.8"),
        ("torch.backends.cudnn.version()", None, None),
        ("torch.cuda.nccl.version()", "2.1", None),
        ("architectures", "sm_80 sm_90", None),
    ]


def test_a_pytorch_that_is_reached_by_a_link_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    (real / "torch").mkdir(parents=True)
    link.symlink_to("real")
    facts = Facts(Environment("/srv", "venv"))
    path = str(real / "torch")
    for known, seen in ((link, real), (real, link)):
        put(facts, frameworks=[Framework("torch", "2", path=str(known / "torch"), variant="rocm")])
        assert rows(facts, torch(seen), monkeypatch) == [("torch", path, path)]


def test_a_pytorch_that_does_not_import_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("import a_package_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    report = running.RunningStack(Facts(Environment("/srv", "venv")), [])
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_missing"):
        report.compare_with_pytorch()


def test_the_files_that_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/b.so\n"
        "7f01-7f02 r--p 00000000 08:01 12 /usr/lib/b.so\n"
        "7f02-7f03 rw-p 00000000 00:00 0 \n"
        "7f03-7f04 rw-p 00000000 00:00 0 [heap]\n"
        "7f04-7f05 r--p 00000000 08:01 13 /srv/a folder/a.so (deleted)\n"
    )
    monkeypatch.setattr(builtins, "open", lambda name, *_, **__: io.StringIO(maps))
    assert running._mapped() == ["/usr/lib/b.so", "/srv/a folder/a.so (deleted)"]
    monkeypatch.undo()
    assert os.path.realpath(cu._core.__file__) in running._mapped()
