"""SharedMemory: one region for many processes. Its oracle is the standard library's, and mmap."""

from __future__ import annotations

import contextlib
import gc
import mmap
import multiprocessing
import os
import pickle
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import DRIVER
from cudriver.memory import shared_files
from forking import let_threads_rest
from graphkit import eventually
from parallel import together
from program import UNPRIVILEGED, output, run

REGISTER = "cuMemHostRegister_v2"
SHM = Path("/dev/shm")
SIZE = 100_000

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]


@pytest.fixture
def name() -> Iterator[str]:
    """A name of nobody else's, which the test may leave behind."""
    name = f"cudriver-test-{uuid.uuid4().hex}"
    yield name
    with contextlib.suppress(FileNotFoundError):
        (SHM / name).unlink()


@pytest.fixture
def memory(cu, name: str) -> Iterator[Any]:
    memory = cu.SharedMemory(name, create=True, size=SIZE)
    yield memory
    gc.collect()
    with contextlib.suppress(BufferError):  # a test that failed holds it
        memory.close()


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No file descriptor or mapping is left when the test ends. Other threads may have some for
    a moment.
    """

    def seen() -> Counter[str]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        found = Counter({"mapped": maps.count("/dev/shm/") + maps.count("memfd:")})
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the list itself
                found[os.readlink(f"/proc/self/fd/{number}")] += 1
        return found

    os.close(DupFd(1).detach())  # multiprocessing's server begins here, whose socket stays
    before = seen()
    yield
    assert eventually(lambda: not seen() - before)


def named(cu: Any, name: str, **options: Any) -> Any:
    return cu.SharedMemory(name, create=True, size=SIZE, **options)


def nameless(cu: Any, name: str, **options: Any) -> Any:
    return cu.SharedMemory.anonymous(SIZE, **options)


FORMS = pytest.mark.parametrize("make", [named, nameless])


# ---- as multiprocessing.shared_memory ------------------------------------------------------------


STANDARD = """
    import sys
    from multiprocessing import resource_tracker, shared_memory

    import cudriver as cu

    def opened(kind, name, **more):
        memory = kind(name, **more)
        if kind is not cu.SharedMemory and not more:  # it would unlink what others use
            resource_tracker.unregister(memory._name, "shared_memory")
        return memory

    kinds = {"ours": cu.SharedMemory, "theirs": shared_memory.SharedMemory}
    maker, opener = (kinds[name] for name in sys.argv[1:])
    first = maker(create=True, size=5000)
    second = opened(opener, first.name)
    assert (second.name, second.size) == (first.name, 5000) and "/" not in first.name
    assert bytes(first.buf) == bytes(5000)
    first.buf[:5] = b"hello"
    second.buf[-1] = 255
    assert (bytes(second.buf[:5]), first.buf[4999]) == (b"hello", 255)
    for kind in kinds.values():
        try:
            kind(first.name, create=True, size=10)
        except FileExistsError as error:
            pass
        else:
            raise AssertionError(kind)
    first.close()
    assert bytes(second.buf[:5]) == b"hello"
    first.unlink() if maker is cu.SharedMemory else second.unlink()
    if maker is not opener and maker is not cu.SharedMemory:
        resource_tracker.unregister(first._name, "shared_memory")
    second.close()
    for kind in kinds.values():
        try:
            kind(first.name)
        except FileNotFoundError:
            pass
        else:
            raise AssertionError(kind)
    try:
        first.unlink() if maker is cu.SharedMemory else second.unlink()
    except FileNotFoundError:
        print("the end")
"""


@pytest.mark.parametrize(
    "who", [("ours", "ours"), ("ours", "theirs"), ("theirs", "ours")], ids="-".join
)
def test_it_is_the_standard_librarys(who: tuple[str, str]) -> None:
    assert output(STANDARD, *who) == "the end\n"


@FORMS
def test_a_region_is_zero_and_of_its_size(cu, name: str, make: Callable[..., Any]) -> None:
    with make(cu, name) as memory:
        assert (memory.size, memory.closed) == (SIZE, False)
        assert memory.name == (name if make is named else None)
        assert bytes(memory.buf) == bytes(SIZE)
        assert (memory.buf.format, memory.buf.readonly, memory.buf.nbytes) == ("B", False, SIZE)
    assert (memory.size, memory.closed) == (SIZE, True)


def test_its_memory_is_reserved_at_once(cu, memory) -> None:
    """Else the process that touches it last is killed (SIGBUS) where memory has run out."""
    assert os.stat(SHM / memory.name).st_blocks * 512 >= SIZE


def test_names_are_given_with_or_without_a_slash(cu, name: str) -> None:
    with cu.SharedMemory(f"/{name}", create=True, size=10) as memory:
        assert memory.name == name
        with cu.SharedMemory(f"/{name}") as other:
            assert other.name == name
    one, two = (cu.SharedMemory(create=True, size=10, pin=False) for _ in range(2))
    assert one.name != two.name
    for memory in (one, two):
        memory.unlink()
        memory.close()


# ---- arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "offset"),
    [(5, "f8", 0), ((3, 4), "i2", 16), ((), "c16", 99_984), (0, "u1", SIZE), ((2, 0), "f4", 8),
     ([SIZE], "u1", 0), (3, "f8", 1), (2, [("a", "i4"), ("b", "u1")], 100), (7, "S3", 0)],
)  # fmt: skip
def test_arrays_are_where_numpy_has_them(memory, shape: Any, dtype: Any, offset: int) -> None:
    memory.buf[:] = np.random.default_rng(1).bytes(SIZE)
    right = np.ndarray(shape, dtype, bytes(memory.buf), offset)
    array = memory.array(shape, dtype, offset)
    assert (array.shape, array.dtype, array.tobytes()) == (
        right.shape, right.dtype, right.tobytes(),
    )  # fmt: skip
    assert array.flags.writeable
    array[...] = np.zeros((), dtype)
    assert not bytes(memory.buf)[offset : offset + array.nbytes].strip(b"\0")


def test_array_takes_no_other_dtype_by_default(memory) -> None:
    assert memory.array(3).dtype == np.float64
    assert memory.array(3, "S").dtype == np.empty(3, "S").dtype


@FORMS
def test_an_array_keeps_the_region_and_its_page_lock(cu, name: str, make: Any) -> None:
    memory = make(cu, name)
    view = memory.array((10, 100), np.float32)[3:5]
    view[...] = 7
    del memory
    gc.collect()
    assert cu.is_pinned(view)
    assert cu.explain_copy(cu.device_empty(view.shape, "f4"), view).path == "direct"
    assert (cu.to_device(view).to_numpy() == 7).all()
    before = cu.host_memory_stats().pins
    del view
    assert cu.host_memory_stats().pins == before - 1


HOLDERS = {
    "an array": lambda memory: memory.array(3),
    "a view": lambda memory: memory.array((4, 5))[1:, ::2],
    "a memoryview": lambda memory: memory.buf,
    "a slice of it": lambda memory: memory.buf[3:5],
    "an array of it": lambda memory: np.ndarray(3, np.float64, memory.buf),
    "a tensor": lambda memory: np.frombuffer(memory.buf, np.int16)[1:],
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_it_is_not_closed_under_what_uses_it(cu, memory, holder: str) -> None:
    """The standard library unmaps it under an ndarray of its buf."""
    held = HOLDERS[holder](memory)
    with pytest.raises(BufferError, match="alive"):
        memory.close()
    assert not memory.closed
    np.asarray(held)[...] = 1
    assert memory.buf[31] in (0, 1, 0x3F)
    assert cu.is_pinned(memory.buf)
    del held
    memory.close()
    memory.close()
    assert memory.closed


def test_a_closed_one_says_so(cu, memory) -> None:
    memory.close()
    assert repr(memory) == f"<SharedMemory {memory.name!r} of {SIZE} bytes, closed>"
    for late in (lambda: memory.buf, lambda: memory.array(1), memory.pin, memory.__enter__,
                 lambda: pickle.dumps(memory)):  # fmt: skip
        with pytest.raises(ValueError, match="closed"):
            late()
    memory.unlink()


def test_a_finalizer_that_closes_one_which_is_gone_closes_no_other_file() -> None:
    """Of a cycle any finalizer may come first; the older object's does with a GIL."""
    program = """
        import gc, os
        import cudriver as cu

        class Loader:
            def __del__(self):
                opened.append(os.open("/dev/null", os.O_RDONLY))
                self.memory.close()

        opened, memory, loader = [], cu.SharedMemory.anonymous(4096, pin=False), Loader()
        loader.memory, loader.itself, memory.user = memory, loader, loader
        del memory, loader
        gc.collect()
        print(len(opened), os.fstat(opened[0]).st_size)
        """
    assert output(program) == "1 0\n"


def test_a_finalizer_closes_one_while_another_is_used() -> None:
    """Wherever in array() the collector runs: it may run where a lock is held."""
    program = """
        import gc
        import cudriver as cu

        class Loader:
            def __init__(self):
                self.memory, self.itself = cu.SharedMemory.anonymous(4096, pin=False), self

            def __del__(self):
                self.memory.close()
                closed.append(self.memory.closed)

        closed, memory = [], cu.SharedMemory.anonymous(4096, pin=False)
        memory.array(1, "u1")
        gc.collect()
        for count in range(100):
            gc.disable()
            Loader()
            gc.set_threshold(gc.get_count()[0] + count)
            gc.enable()
            memory.array(1, "u1")
        gc.collect()
        print(len(closed), all(closed))
        """
    assert output(program, timeout=60) == "100 True\n"


@pytest.mark.threads
def test_threads_that_use_and_close_it_meet_no_unmapped_memory(cu) -> None:
    for _ in range(30):
        memory = cu.SharedMemory.anonymous(SIZE, pin=False)

        def use(memory: Any = memory) -> None:
            for _ in range(20):
                with contextlib.suppress(ValueError):
                    memory.array(SIZE, "u1")[-1] += 1

        def close(memory: Any = memory) -> None:
            with contextlib.suppress(BufferError):
                memory.close()

        together(use, use, close)


# ---- page-locking --------------------------------------------------------------------------------


@FORMS
def test_it_is_locked_when_it_is_asked_for(cu, name: str, make: Any) -> None:
    before = cu.host_memory_stats().pinned_bytes
    with make(cu, name, pin=False) as memory:
        assert not cu.is_pinned(memory.buf)
        memory.pin()
        memory.pin()
        assert cu.is_pinned(memory.buf)
        assert cu.host_memory_stats().pinned_bytes == before + SIZE
    assert cu.host_memory_stats().pinned_bytes == before


def test_it_may_be_locked_beside_other_work(cu) -> None:
    with cu.SharedMemory.anonymous(SIZE, pin=False) as memory:
        with cu.pin_async(memory.buf) as pinning:
            pinning.wait()
            assert cu.is_pinned(memory.buf)
        del pinning
        memory.array(10)[:] = 5
        assert not cu.is_pinned(memory.buf)


@FORMS
@pytest.mark.parametrize("fault", ["driver", "init", "file"])
def test_what_fails_leaves_nothing(
    cu, sim, name: str, make: Any, fault: str, nothing_left, monkeypatch: pytest.MonkeyPatch
) -> None:
    cu.memory_info()
    if fault == "driver":
        sim.fail(f"{REGISTER}:1:999")
    elif fault == "init":
        monkeypatch.setattr(cu._core, "init", lambda: 1 / 0)
    else:
        monkeypatch.setattr(os, "ftruncate", lambda file, size: 1 / 0)
    with pytest.raises((cu.CudaError, ZeroDivisionError)):
        make(cu, name)
    assert not (SHM / name).exists()
    assert cu.host_memory_stats().pinned_bytes == 0


@pytest.mark.skipif(DRIVER == "real", reason="the simulated driver is made to fail")
def test_a_limit_of_locked_memory_is_named() -> None:
    program = f"""{UNPRIVILEGED}
import os, resource
import cudriver as cu
cu.init()
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
unprivileged()
try:
    cu.SharedMemory("cudriver-test-limit", create=True, size=1 << 20)
except cu.OutOfMemoryError as error:
    print(error)
print(os.path.exists("/dev/shm/cudriver-test-limit"))
"""
    said = output(program, CUDRIVER_SIM_FAIL=f"{REGISTER}:*:2")
    assert "this process may lock 65536 bytes (RLIMIT_MEMLOCK, `ulimit -l`)" in said
    assert said.endswith("False\n")


# ---- other processes -----------------------------------------------------------------------------


def fill(memory: Any, part: int, answers: Any) -> None:
    """A child's work: its row; then what the device says of it."""
    import cudriver as cu

    row = memory.array((2, 1000), np.int32)[part]
    row[...] = part + 1
    memory.pin()
    answers.put((part, (cu.is_pinned(row), int(cu.to_device(row).to_numpy().sum()))))


@pytest.mark.parametrize(
    ("make", "method"),
    [(named, "fork"), (nameless, "fork"), (named, "spawn"), (nameless, "spawn"),
     (nameless, "forkserver")],
)  # fmt: skip
def test_processes_fill_it_and_lock_it_at_once(name: str, make: Any, method: str) -> None:
    """In a process that has not used CUDA, so that children can."""
    program = """
        import multiprocessing, sys
        import numpy as np
        import cudriver as cu
        import test_shared_memory as test

        name, form, method = sys.argv[1:]
        if __name__ == "__main__":
            memory = getattr(test, form)(cu, name, pin=False)
            context = multiprocessing.get_context(method)
            answers = context.Queue()
            children = [context.Process(target=test.fill, args=(memory, i, answers))
                        for i in range(2)]
            for child in children:
                child.start()
            print(sorted(answers.get(timeout=100) for _ in children))
            for child in children:
                child.join()
            rows = memory.array((2, 1000), np.int32)
            print((rows == np.arange(1, 3)[:, None]).all(), [c.exitcode for c in children])
            memory.pin()
            print(int(cu.to_device(rows).to_numpy().sum()))
            if form == "named":
                memory.unlink()
    """
    here = Path(__file__).parent
    folders = f"{here}:{here.parent}:{os.environ.get('PYTHONPATH', '')}"
    said = output(program, name, make.__name__, method, PYTHONPATH=folders)
    right = [(part, (True, 1000 * (part + 1))) for part in range(2)]
    assert said == f"{right}\nTrue {[0] * 2}\n3000\n"


def mark(end: Any) -> None:
    """A child's work: the first byte of what it receives."""
    memory = end.recv() if hasattr(end, "recv") else end.get()
    memory.buf[0] += 1


@FORMS
def test_it_travels_through_a_pipe_and_a_queue(cu, name: str, make: Any) -> None:
    context = multiprocessing.get_context("spawn")
    memory = make(cu, name)
    here, there = context.Pipe()
    queue = context.SimpleQueue()
    children = [context.Process(target=mark, args=(end,)) for end in (there, queue)]
    for child, send in zip(children, (here.send, queue.put), strict=True):
        child.start()
        send(memory)
        child.join()
        assert child.exitcode == 0
    assert memory.buf[0] == 2


@FORMS
def test_a_pickled_one_is_the_same_memory_and_not_locked(cu, name: str, make: Any) -> None:
    with make(cu, name) as memory:
        memory.buf[7] = 3
        copy = pickle.loads(pickle.dumps(memory))
        assert (copy.name, copy.size, copy.buf[7]) == (memory.name, SIZE, 3)
        copy.buf[8] = 4
        assert memory.buf[8] == 4
        assert not cu.is_pinned(copy.buf)
        copy.pin()
        assert (cu.is_pinned(copy.buf), cu.is_pinned(memory.buf)) == (True, True)
        copy.close()
        assert cu.is_pinned(memory.buf)


@FORMS
def test_a_child_forked_after_cuda_fills_it_and_is_told_of_the_rest(
    cu, name: str, make: Any
) -> None:
    with make(cu, name) as memory:
        let_threads_rest()
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                memory.array(100, "u1")[:] = 9
                try:
                    memory.pin()
                except cu.ForkedProcessError:
                    memory.close()
                    status = 0
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert (cu.to_device(memory.array(100, "u1")).to_numpy() == 9).all()


def test_a_fork_in_the_middle_of_page_locking(cu, sim) -> None:
    memory = cu.SharedMemory.anonymous(SIZE, pin=False)
    cu.memory_info()
    before = sim.call_count(REGISTER)
    sim.hold_call(REGISTER, 1)
    locking = threading.Thread(target=memory.pin)
    locking.start()
    while sim.call_count(REGISTER) == before:
        time.sleep(0.001)
    let_threads_rest()
    child = os.fork()
    if child == 0:
        memory.array(1, "u1")[0] = 5
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    sim.clear_faults()
    locking.join()
    assert cu.is_pinned(memory.buf)
    assert memory.buf[0] == 5
    memory.close()


def test_another_program_maps_it_for_reading(cu, memory) -> None:
    memory.array(100)[:] = np.arange(100)
    program = """
        import sys
        import numpy as np
        import cudriver as cu

        with cu.SharedMemory(sys.argv[1], read_only=True) as memory:
            array = memory.array(100)
            print(array.flags.writeable, memory.buf.readonly, cu.is_pinned(array))
            print(int(cu.to_device(array).to_numpy().sum()))
            for write in (lambda: cu.copy(array, cu.device_zeros(100)),
                          lambda: array.fill(1), lambda: memory.buf.__setitem__(0, 1)):
                try:
                    write()
                except (ValueError, TypeError):
                    print("refused")
            del array, write
    """
    assert output(program, memory.name) == "False True True\n4950\n" + "refused\n" * 3
    assert memory.array(100)[99] == 99


KILLED = """
    import ctypes, os, sys, threading
    import cudriver as cu

    form, name, when = sys.argv[1:]
    sim = ctypes.CDLL(cu.driver_path())
    cu.memory_info()
    if when == "locking":
        sim.cudriver_sim_hold_call(b"cuMemHostRegister_v2", ctypes.c_ulonglong(1))
    make = (lambda: cu.SharedMemory(name, create=True, size=100000)) if form == "named" else (
        lambda: cu.SharedMemory.anonymous(100000))
    def done():
        global memory
        made = make()
        os.write(1, b"done")
        memory = made  # what the other thread waits for
    sim.cudriver_sim_call_count.restype = ctypes.c_longlong
    before = sim.cudriver_sim_call_count(b"cuMemHostRegister_v2")
    threading.Thread(target=done).start()
    while when == "locking" and sim.cudriver_sim_call_count(b"cuMemHostRegister_v2") == before:
        pass
    while when == "after" and "memory" not in globals():
        pass
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(DRIVER == "real", reason="needs the simulated driver, held")
@FORMS
@pytest.mark.parametrize("when", ["locking", "after"])
def test_what_a_killed_process_leaves(name: str, make: Any, when: str) -> None:
    """Only a name that was given, which the page on it says."""
    done = run(KILLED, make.__name__, name, when)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert ("done" in done.stdout) == (when == "after")
    assert (SHM / name).exists() == ((make, when) == (named, "after"))


# ---- bad input -----------------------------------------------------------------------------------


def test_arguments_that_do_not_fit_are_refused(cu, name: str, nothing_left) -> None:
    kind = cu.SharedMemory
    for error, words, bad in [
        (ValueError, "needs the name", lambda: kind()),
        (ValueError, "positive number of bytes, not 0", lambda: kind(name, create=True)),
        (ValueError, "not -5", lambda: kind(create=True, size=-5)),
        (ValueError, "not 0", lambda: kind.anonymous(0)),
        (TypeError, "float", lambda: kind(create=True, size=1.5)),
        (TypeError, "str", lambda: kind.anonymous("5")),
        (TypeError, "is a string, not b'x'", lambda: kind(b"x", create=True, size=5)),
        (TypeError, "is a string, not 5", lambda: kind(5)),
        (ValueError, "name of shared memory", lambda: kind("", create=True, size=5)),
        (ValueError, "name of shared memory", lambda: kind("..", create=True, size=5)),
        (ValueError, "name of shared memory", lambda: kind("a/b")),
        (ValueError, "name of shared memory", lambda: kind("a\0b")),
        (ValueError, "name of shared memory", lambda: kind("x" * 256)),
        (FileNotFoundError, name, lambda: kind(name)),
        (ValueError, "not read-only", lambda: kind(create=True, size=5, read_only=True)),
        (ValueError, "new region", lambda: kind(name, huge=True)),
        (cu.OutOfMemoryError, "leave", lambda: kind(create=True, size=1 << 55)),
        (cu.OutOfMemoryError, "leave", lambda: kind.anonymous(1 << 70)),
    ]:
        with pytest.raises(error, match=words):
            bad()


def test_arrays_that_do_not_fit_are_refused(memory) -> None:
    for error, words, arguments in [
        (ValueError, "80 bytes at offset 99928", (10, "f8", 99_928)),
        (ValueError, "offset -8", (1, "f8", -8)),
        (ValueError, "offset 100001", (0, "f8", SIZE + 1)),
        (ValueError, "not in a region of 100000", ((1 << 40, 1 << 40), "f8")),
        (ValueError, "at least 0", (-1,)),
        (TypeError, "shape", ("3",)),
        (TypeError, "shape", ((True, 2),)),
        (TypeError, "Python objects", (3, object)),
        (TypeError, "float", (3, "u1", 1.5)),
    ]:
        with pytest.raises(error, match=words):
            memory.array(*arguments)


def test_an_existing_one_has_at_least_the_size_that_is_asked(cu, memory) -> None:
    cu.SharedMemory(memory.name, size=SIZE).close()
    with pytest.raises(ValueError, match=f"has {SIZE} bytes, not {SIZE + 1}"):
        cu.SharedMemory(memory.name, size=SIZE + 1)


@pytest.mark.parametrize("thing", ["fifo", "folder", "link", "empty"])
def test_what_is_no_region_is_refused(cu, name: str, thing: str, nothing_left) -> None:
    """Somebody else may put anything there: nothing waits, and nothing outside is opened."""
    path = SHM / name
    try:
        {
            "fifo": lambda: os.mkfifo(path),
            "folder": path.mkdir,
            "link": lambda: path.symlink_to(__file__),
            "empty": path.touch,
        }[thing]()
        for read_only in (False, True):
            with pytest.raises((OSError, ValueError), match=name):
                cu.SharedMemory(name, read_only=read_only)
        with pytest.raises(FileExistsError):
            cu.SharedMemory(name, create=True, size=5)
    finally:
        path.rmdir() if thing == "folder" else path.unlink()


def test_a_name_that_is_taken_meanwhile(
    cu, name: str, nothing_left, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = shared_files.make

    def slow(*arguments: Any) -> int:
        (SHM / name).write_bytes(b"another's")
        return make(*arguments)

    monkeypatch.setattr(shared_files, "make", slow)
    with pytest.raises(FileExistsError, match=name):
        named(cu, name)
    assert (SHM / name).read_bytes() == b"another's"
    (SHM / name).unlink()


class Room:
    f_bavail, f_frsize, f_blocks, f_bsize = 16, 4096, 16384, 4096


def test_a_small_dev_shm_is_named(
    cu, name: str, nothing_left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As containers have it."""
    monkeypatch.setattr(os, "statvfs", lambda folder: Room)
    words = f"{SIZE} bytes; /dev/shm has 65536 bytes left .*--shm-size.*anonymous"
    with pytest.raises(cu.OutOfMemoryError, match=words):
        named(cu, name)
    nameless(cu, name).close()
    cu.SharedMemory(name, create=True, size=65536).unlink()


def test_memory_that_runs_out_meanwhile(
    cu, name: str, nothing_left, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, begin: int, size: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    for make in (named, nameless):
        with pytest.raises(cu.OutOfMemoryError, match="No space left"):
            make(cu, name)


# ---- huge pages ----------------------------------------------------------------------------------


def free_huge_pages() -> int:
    folder = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
    try:
        free, promised = (int((folder / f"{n}_hugepages").read_text()) for n in ("free", "resv"))
    except OSError:
        return 0
    return free - promised


@pytest.mark.skipif(free_huge_pages() < 2, reason="no huge pages are reserved")
def test_huge_pages_are_used_where_they_are_reserved(cu) -> None:
    free = free_huge_pages()
    with cu.SharedMemory.anonymous(3 << 20, huge=True) as memory:
        assert memory.size == 4 << 20
        assert free_huge_pages() == free - 2
        assert cu.is_pinned(memory.buf)
        memory.buf[-1] = 1
    assert free_huge_pages() == free


def test_huge_pages_that_are_not_reserved(
    cu, nothing_left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hugepages-2048kB"
    folder.mkdir()
    monkeypatch.setattr(shared_files, "HUGE_PAGES", str(tmp_path))
    monkeypatch.setattr(shared_files, "numbers", lambda path: {"Hugepagesize:": 2048})
    for total, free, promised in ((0, 0, 0), (10, 4, 2)):
        for count, number in (("nr", total), ("free", free), ("resv", promised)):
            (folder / f"{count}_hugepages").write_text(f"{number}\n")
        with pytest.raises(cu.OutOfMemoryError) as refused:
            cu.SharedMemory.anonymous((5 << 20) + 1, huge=True)
        said = f"3 huge pages of 2048 KiB are needed, {free - promised} are free. `echo "
        said += f"{total + 3 - (free - promised)} | sudo tee {folder}/nr_hugepages`"
        assert said in str(refused.value)
    (folder / "free_hugepages").write_text("9\n")  # so says the file, but they are gone
    if free_huge_pages() < 3 and Path("/sys/kernel/mm/hugepages").exists():
        with pytest.raises(cu.OutOfMemoryError, match="refuses the mapping"):
            cu.SharedMemory.anonymous((5 << 20) + 1, huge=True)


def test_huge_pages_with_a_name_need_a_file_system(
    cu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_files, "huge_folders", list)
    with pytest.raises(cu.OutOfMemoryError, match="mount -t hugetlbfs"):
        cu.SharedMemory(create=True, size=5, huge=True)
    monkeypatch.setattr(shared_files, "huge_page", lambda named: 0)
    with pytest.raises(cu.OutOfMemoryError, match="has no huge pages"):
        cu.SharedMemory.anonymous(5, huge=True)


def test_huge_pages_with_a_name_lie_in_their_file_system(
    cu, name: str, nothing_left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in memory stands for a mount of huge pages: another program finds the name there."""
    folder = SHM / f"{name}-huge"
    folder.mkdir()
    try:
        monkeypatch.setattr(shared_files, "huge_folders", lambda: [str(folder)])
        monkeypatch.setattr(shared_files, "rounded", lambda size, named: 8192)
        with cu.SharedMemory(name, create=True, size=5000, huge=True) as memory:
            assert (memory.size, [p.name for p in folder.iterdir()]) == (8192, [name])
            memory.buf[5] = 1
            with cu.SharedMemory(name) as other:
                assert (other.buf[5], other.size) == (1, 8192)
            with pytest.raises(FileExistsError):
                cu.SharedMemory(name, create=True, size=5)
            memory.unlink()
        assert [*folder.iterdir()] == []
    finally:
        folder.rmdir()


def test_without_memfd_a_nameless_file_of_dev_shm_serves(
    cu, nothing_left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python that was built with an old glibc."""
    monkeypatch.delattr(os, "memfd_create")
    with cu.SharedMemory.anonymous(SIZE) as memory:
        assert cu.is_pinned(memory.buf)
        other = pickle.loads(pickle.dumps(memory))
        other.buf[0] = 1
        assert memory.buf[0] == 1
        other.close()


def test_a_kernel_without_transparent_huge_pages(cu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    cu.SharedMemory.anonymous(SIZE).close()


# ---- its ends ------------------------------------------------------------------------------------


def test_a_with_block_ends_while_its_arrays_live_on(cu, nothing_left) -> None:
    with cu.SharedMemory.anonymous(SIZE) as memory:
        array = memory.array(10)
        array[:] = 3
        with pytest.raises(BufferError, match="arrays or memoryviews of it are alive"):
            memory.close()
    assert memory.closed
    with pytest.raises(ValueError, match="is closed"):
        memory.array(10)
    assert cu.is_pinned(array)
    assert cu.to_device(array).to_numpy().tolist() == [3] * 10
    pins = cu.host_memory_stats().pins
    del array
    gc.collect()
    assert cu.host_memory_stats().pins == pins - 1
    memory.close()


def test_ctrl_c_as_it_gets_its_name_leaves_none(cu, monkeypatch, nothing_left) -> None:
    link = os.link
    given: list[str] = []  # other processes have names there, too

    def interrupted(*args: Any, **options: Any) -> None:
        link(*args, **options)
        given.append(os.path.basename(args[1]))
        assert given[-1] in os.listdir("/dev/shm")
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", interrupted)
    for name in (None, f"cu_test_{os.getpid()}"):
        with pytest.raises(KeyboardInterrupt):
            cu.SharedMemory(name, create=True, size=SIZE)
    assert len(given) == 2
    assert not {*given} & {*os.listdir("/dev/shm")}


def test_a_name_that_somebody_else_has_is_left_alone(cu, name: str, nothing_left) -> None:
    """Also where the name was taken after it was found to be free."""
    from cudriver.memory import shared_files

    memory = cu.SharedMemory(name, create=True, size=SIZE)
    file = shared_files.new_file("/dev/shm", True, False)
    given: list[str] = []
    with pytest.raises(FileExistsError):
        shared_files.give_name(file, name, False, given)
    shared_files.take_names(file, given)
    os.close(file)
    assert os.path.exists(f"/dev/shm/{name}")
    memory.unlink()
    memory.close()


def test_without_proc_it_says_so(cu, monkeypatch, nothing_left) -> None:
    def link(*args: Any, **options: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    exists = os.path.exists
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os.path, "exists", lambda p: "/proc/" not in str(p) and exists(p))
    with pytest.raises(OSError, match="gets its name by /proc, which is not mounted"):
        cu.SharedMemory(create=True, size=SIZE, pin=False)


def test_a_region_with_holes_is_not_filled_beyond_what_is_left(cu, name: str, nothing_left) -> None:
    """As multiprocessing makes one; page-locking it takes all of its memory."""
    path = f"/dev/shm/{name}"
    with open(path, "wb") as file:
        os.ftruncate(file.fileno(), 1 << 42)
    try:
        with pytest.raises(cu.OutOfMemoryError, match=f"{1 << 42} bytes"):
            cu.SharedMemory(name)
        assert os.stat(path).st_blocks == 0
        with cu.SharedMemory(name, pin=False) as memory, pytest.raises(cu.OutOfMemoryError):
            memory.pin()
        with pytest.MonkeyPatch.context() as patch:  # stat() counts no blocks of huge pages
            patch.setattr(shared_files, "SHM", "/none")
            patch.setattr(shared_files, "huge_folders", lambda: ["/dev/shm"])
            shared_files.check_filled(name)
        os.truncate(path, SIZE)
        with cu.SharedMemory(name) as memory:
            assert cu.is_pinned(memory.buf)
    finally:
        os.unlink(path)


def test_a_pickled_one_is_opened_in_the_same_way(cu, name: str, nothing_left) -> None:
    with cu.SharedMemory(name, create=True, size=SIZE) as maker:
        for read_only, pieces in ((False, True), (True, False)):
            with cu.SharedMemory(name, read_only=read_only, pieces=pieces) as memory:
                again = pickle.loads(pickle.dumps(memory))
                assert again.array(3).flags.writeable is not read_only
                assert again._pieces is pieces
                again.close()
        maker.unlink()
