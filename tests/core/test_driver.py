"""Finding, opening and refusing the driver library, in processes of their own: each has one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from program import output

ASK = """
import cudriver as cu
calls = cu.driver_version, cu.init, cu.device_count, cu.memory_info, lambda: cu.pinned_empty(8)
for ask in calls:
    try:
        ask()
    except Exception as error:
        print(type(error).__name__, getattr(error, "code", ""), str(error))
    else:
        print("fine")
print(cu.is_available())
"""


def lines(source: str, **environ: str | None) -> list[str]:
    return output(source, **environ).splitlines()


def compiled(tmp_path: Path, source: str) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler to make a library that is not a driver")
    (tmp_path / "library.c").write_text(source)
    library = tmp_path / "libother.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, tmp_path / "library.c"], check=True
    )
    return str(library)


#: What is no driver, or one that cannot be used: its text, source or profile of the simulator; how
#: each line of ASK begins, and what it says beside. PATH is the library's.
REFUSED: dict[str, tuple[str, str | None, str, list[str]]] = {
    "a file that is not there": (
        "none", None, "DriverNotFoundError",
        ["PATH", "No such file", "CUDRIVER_LIBRARY=sim"],
    ),
    "a file that is no library": ("text", "not a library", "DriverNotFoundError", ["PATH"]),
    "a library that is no driver": (
        "source", "int nothing;", "UnsupportedDriverError",
        ["PATH is not a CUDA driver library"],
    ),
    "a driver that lacks functions": (
        "source",
        "int cuDriverGetVersion(int *v) { *v = 12040; return 0; } int cuInit(void) { return 0; }",
        "UnsupportedDriverError",
        ["offers CUDA 12.4", "it lacks cuGetErrorName, cuGetErrorString, cuDeviceGet,", " more"],
    ),
    "a driver whose version fails": (
        "source", "int cuDriverGetVersion(int *v) { (void)v; return 999; }", "",
        ["cuDriverGetVersion failed with error 999"],
    ),
    "a stub": (
        "profile", "stub", "UnsupportedDriverError 34 ",
        ["CUDA_ERROR_STUB_LIBRARY (34)", "stubs folder"],
    ),
    "a driver that is too old": (
        "profile", "too_old", "UnsupportedDriverError", ["offers CUDA 10.2", "11.0 or newer"],
    ),
    "no device": (
        "profile", "no_device", "CudaError 100 cuInit(0): CUDA_ERROR_NO_DEVICE (100)",
        ["CUDA_VISIBLE_DEVICES"],
    ),
    "zero devices": ("devices", "0", "CudaError 100 cuInit(0): CUDA_ERROR_NO_DEVICE (100)", []),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_says_so(tmp_path: Path, name: str) -> None:
    kind, text, begins, says = REFUSED[name]
    path, environ = str(tmp_path / "libcuda.so.1"), {}
    if kind == "source":
        path = compiled(tmp_path, text or "")
    elif kind == "text":
        Path(path).write_text(text or "")
    elif kind != "none":
        path, environ = "sim", {f"CUDRIVER_SIM_{kind.upper()}": text}
    asked = lines(ASK, CUDRIVER_LIBRARY=path, **environ)
    assert asked.pop() == "False"
    if name.endswith(("device", "devices")):
        assert asked.pop(0) == "fine", "the version needs no device"
    for line in asked:
        assert line.startswith(begins)
        for part in says:
            assert part.replace("PATH", path) in line


def test_no_system_driver_says_how_the_loader_looked() -> None:
    program = """
        import ctypes
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            import cudriver as cu
            try:
                cu.init()
            except ImportError as error:
                assert isinstance(error, cu.DriverNotFoundError)
                assert isinstance(error, cu.CudaError)
                print(error)
    """
    said = output(program, CUDRIVER_LIBRARY=None, LD_LIBRARY_PATH="/nowhere/at/all")
    if not said:
        pytest.skip("this machine has a driver library in the loader's default folders")
    assert "libcuda.so.1" in said
    assert "LD_LIBRARY_PATH=/nowhere/at/all" in said
    assert "/etc/ld.so.cache" in said


@pytest.mark.parametrize("by", ["CUDRIVER_LIBRARY", "use_driver"])
def test_what_is_no_regular_file_is_refused_unopened(tmp_path: Path, by: str) -> None:
    """To open a pipe waits for a writer: without an end, here."""
    pipe, folder, end, link = (tmp_path / name for name in ("pipe", "folder", "end", "link"))
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(pipe)
    program = """
        import sys, cudriver as cu
        if sys.argv[1]:
            cu.use_driver(sys.argv[1])
        print(cu.is_available())
        try:
            cu.init()
        except cu.DriverNotFoundError as error:
            print(error)
    """
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(end))
        for path, kind in [
            (pipe, "a pipe (FIFO)"),
            (link, "a pipe (FIFO)"),
            (folder, "a directory"),
            (end, "a socket"),
            (Path(os.devnull), "a device"),
        ]:
            chosen = str(path) if by == "use_driver" else ""
            environ = None if chosen else str(path)
            said = output(program, chosen, timeout=20, CUDRIVER_LIBRARY=environ).splitlines()
            assert said[0] == "False"
            assert f"names is not a library: {path} is {kind}." in said[1]


def test_load_may_be_tried_again_after_a_failure(tmp_path: Path) -> None:
    program = """
        import sys, cudriver as cu
        try:
            cu.init()
        except cu.DriverNotFoundError:
            pass
        cu.use_driver("sim")
        print(cu.driver_is_simulated(), cu.device_count())
    """
    environ = {"CUDRIVER_LIBRARY": str(tmp_path / "none"), "CUDRIVER_SIM_DEVICES": "3"}
    assert output(program, **environ) == "True 3\n"


# ---- profiles of the simulated driver ------------------------------------------------------------


@pytest.mark.parametrize("version", ["11000", "11010", "11040", "11080", "12000", "12040", "13000"])
def test_everything_works_on_each_driver_version(version: str) -> None:
    """What the driver is too old for has a way round."""
    program = """
        import numpy as np, cudriver as cu
        print(cu.driver_version())
        with cu.Context() as ctx:
            source = np.arange(1 << 18)
            stream = cu.Stream()
            array = cu.to_device(source, stream=stream)
            stream.synchronize()
            strided = cu.device_zeros((64, 64))
            cu.copy(strided[::2, ::3], np.ones((32, 22)))
            pinned = cu.pinned_zeros(1000)
            cu.copy_async(cu.device_empty(1000), pinned, stream).wait()
            with cu.pin(source):
                cu.copy(array, source)
            event = cu.Event(timing=True).record(stream)
            stream.wait(event)
            stream.synchronize()
            assert (array.to_numpy() == source).all()
            assert strided.to_numpy().sum() == 32 * 22
            assert ctx.api_version > 3000 and len(cu.Device().uuid) == 40
            del array, strided, stream, event
        ctx.close()
        print(len(cu.live_allocations()))
    """
    said = lines(program, CUDRIVER_LIBRARY="sim", CUDRIVER_SIM_DRIVER_VERSION=version)
    assert said == [f"{version[:2]}.{int(version[2:]) // 10}", "1"]  # `pinned`


def test_a_library_that_cannot_be_opened_after_one_that_is_no_driver(tmp_path: Path) -> None:
    """Each is refused for a reason of its own."""
    damaged = tmp_path / "libcuda.so.1"
    damaged.write_text("not a library")
    program = """
        import sys, cudriver as cu
        for path in sys.argv[1:]:
            cu.use_driver(path)
            try:
                cu.init()
            except cu.CudaError as error:
                print(type(error).__name__, error)
    """
    other = compiled(tmp_path, "int nothing;")
    first, second = output(program, other, str(damaged)).splitlines()
    assert "exports no cuDriverGetVersion" in first
    assert second.startswith("DriverNotFoundError")
    assert f"could not be opened: {damaged}" in second


# ---- choosing ------------------------------------------------------------------------------------


def test_choice_by_call_and_by_environment() -> None:
    program = """
        import cudriver as cu
        cu.use_driver("/not/there")
        cu.use_driver("sim")
        print(cu.driver_is_simulated(), cu.driver_path().endswith("libcudriver_sim.so"))
        cu.init()
        try:
            cu.use_driver("/not/there")
        except cu.CudaError as error:
            print(error)
    """
    first, second = lines(program, CUDRIVER_LIBRARY="/not/there/either")
    assert first == "True True"
    assert "use_driver('/not/there')" in second
    assert "is in use already" in second
    assert "libcudriver_sim.so" in second


def test_the_driver_in_use_may_be_chosen_again(tmp_path: Path) -> None:
    program = f"""
        import os, cudriver as cu
        cu.use_driver("sim")
        cu.init()
        os.symlink(cu.driver_path(), {str(tmp_path / "same")!r})
        for choice in ("sim", cu.driver_path(), {str(tmp_path / "same")!r}, "auto"):
            cu.use_driver(choice)
        for choice in ("/not/there", os.__file__, ""):
            try:
                cu.use_driver(choice)
                print("replaced by", choice)
            except cu.CudaError:
                pass
        print(cu.driver_is_simulated(), cu.to_device(bytes(10)).nbytes)
    """
    assert lines(program) == ["True 10"]


def test_auto_takes_the_simulated_driver_where_there_is_no_other() -> None:
    program = """
        import cudriver as cu
        cu.use_driver("auto")
        print(cu.is_available(), cu.driver_is_simulated())
    """
    assert lines(program, CUDRIVER_LIBRARY="/not/there") == ["True True"]


def test_auto_keeps_a_driver_that_shows_a_device(tmp_path: Path) -> None:
    import cudriver

    if not cudriver.driver_is_simulated():
        pytest.skip("needs a driver library that works from any folder; the system's may not")
    library = tmp_path / "with a GPU"
    shutil.copy(cudriver.driver_path(), library)
    program = """
        import cudriver as cu
        cu.use_driver("auto")
        print(cu.is_available(), cu.driver_path())
    """
    assert lines(program, CUDRIVER_LIBRARY=str(library)) == [f"True {library}"]


@pytest.mark.parametrize("choice", ["sim", "auto"])
def test_a_driver_that_finds_no_gpu_can_be_replaced(tmp_path: Path, choice: str) -> None:
    import cudriver

    if not cudriver.driver_is_simulated():
        pytest.skip("needs a driver library that works from any folder; the system's may not")
    library = tmp_path / "without a GPU"
    shutil.copy(cudriver.driver_path(), library)
    program = f"""
        import os, cudriver as cu
        print(cu.driver_version(), cu.is_available(), cu.driver_path())
        del os.environ["CUDRIVER_SIM_PROFILE"]
        cu.use_driver({choice!r})
        print(cu.is_available(), cu.driver_path().endswith("libcudriver_sim.so"))
        print(cu.to_device(bytes(10)).nbytes)
    """
    environ = {"CUDRIVER_LIBRARY": str(library), "CUDRIVER_SIM_PROFILE": "no_device"}
    assert lines(program, **environ) == [f"13.0 False {library}", "True True", "10"]


def test_choice_by_path(tmp_path: Path) -> None:
    import cudriver

    if not cudriver.driver_is_simulated():
        pytest.skip("needs a driver library that works from any folder; the system's may not")
    library = tmp_path / "another name"
    shutil.copy(cudriver.driver_path(), library)
    program = "import os, cudriver as cu; cu.use_driver(os.fsencode({!r}));"
    program = program.format(str(library)) + "print(cu.driver_path(), cu.device_count() > 0)"
    assert output(program, CUDRIVER_LIBRARY=None) == f"{library} True\n"


def test_an_empty_path_is_no_library() -> None:
    """The loader takes it for the program itself, which lacks every function."""
    program = """
        import cudriver as cu
        cu.use_driver("")
        try:
            cu.init()
        except cu.DriverNotFoundError as error:
            print(error)
        cu.use_driver("sim")
        print(cu.driver_is_simulated())
    """
    first, second = lines(program)
    assert "is not a library: the path is empty. Correct the path" in first
    assert second == "True"


@pytest.mark.parametrize("bad", ["None", "3", "object()"])
def test_bad_choice(bad: str) -> None:
    program = f"""
        import cudriver as cu
        try:
            cu.use_driver({bad})
        except TypeError as error:
            print("TypeError")
    """
    assert output(program) == "TypeError\n"


def test_import_loads_neither_numpy_nor_the_driver() -> None:
    program = """
        import sys, cudriver, cudriver.stack
        assert "numpy" not in sys.modules and "cudriver._core" not in sys.modules
        import cudriver._core
        assert "numpy" not in sys.modules
        print(any("libcuda" in line or "cudriver_sim" in line for line in open("/proc/self/maps")))
    """
    assert output(program) == "False\n"


def test_version_and_path_need_no_initialisation(cu) -> None:
    program = """
        import cudriver as cu
        print(cu.driver_version(), *cu.driver_version(), cu.driver_path())
        print(cu.current_context(), cu.context_stack(), cu.is_pinned(b"bytes"))
        library = __import__("ctypes").CDLL(cu.driver_path())
        print(library.cuDeviceGetCount(__import__("ctypes").byref(__import__("ctypes").c_int())))
    """
    version = cu.driver_version()
    first, second, third = lines(program)
    assert first == f"{version.major}.{version.minor} {version[0]} {version[1]} {cu.driver_path()}"
    assert second == "None [] False"
    assert third == "3", "NOT_INITIALIZED: nothing of it has called cuInit"


def test_is_available_creates_no_context(cu) -> None:
    program = """
        import ctypes, cudriver as cu
        assert cu.is_available()
        flags, active = ctypes.c_uint(), ctypes.c_int()
        library = ctypes.CDLL(cu.driver_path())
        assert library.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
        print(active.value, cu.current_context(), cu.live_allocations())
    """
    if not cu.is_available():
        pytest.skip("no device")
    assert output(program) == "0 None []\n"


def test_init_twice_and_from_many_threads() -> None:
    program = """
        import threading, cudriver as cu
        gate, failures = threading.Barrier(16), []
        def begin():
            gate.wait()
            try:
                cu.init(); cu.device_count()
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=begin) for _ in range(16)]
        [t.start() for t in threads]; [t.join() for t in threads]
        cu.init()
        print(failures)
    """
    assert output(program) == "[]\n"


def test_simulated_driver_says_what_it_is(cu, sim) -> None:
    assert cu.driver_is_simulated() is True
    assert "simulated" in cu.Device(0).name
    assert "simulated" in repr(cu.Device(0))
    assert os.path.basename(cu.driver_path()) == "libcudriver_sim.so"
