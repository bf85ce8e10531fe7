"""Python programs that a test runs in a process of their own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap
import threading


def run(
    source: str, *arguments: str, timeout: float = 120, **environ: str | None
) -> subprocess.CompletedProcess[str]:
    """Runs `source` with this interpreter. Of `environ`, None takes a variable out."""
    env = dict(os.environ)
    for name, value in environ.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def output(source: str, *arguments: str, timeout: float = 120, **environ: str | None) -> str:
    """What a program that must end well, and quietly, prints."""
    done = run(source, *arguments, timeout=timeout, **environ)
    said = f"status {done.returncode}\n{done.stderr}{done.stdout}"
    assert (done.returncode, done.stderr) == (0, ""), said
    return done.stdout


class Terminal:
    """A terminal for programs to write to. It is read all along: a full one keeps its writers
    waiting, and what one read gives may end inside a character."""

    def __enter__(self) -> Terminal:
        self.master, self.slave = pty.openpty()
        self.pieces: list[bytes] = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        return self

    def read(self) -> None:
        while True:
            try:
                self.pieces.append(os.read(self.master, 65536))
            except OSError:  # Linux: the other end is closed
                return

    def __exit__(self, *exception: object) -> None:
        os.close(self.slave)
        self.reader.join()
        os.close(self.master)

    def shown(self) -> str:
        """What it shows, once it is left."""
        return b"".join(self.pieces).decode()


#: Two builds in one process: the installed one, and that in the folder of the argument.
TWO = """
    import sys

    import numpy as np

    import cudriver as first

    a, p = first.to_device(np.arange(100)), first.pinned_full(1000, 3.0)
    for name in [name for name in sys.modules if name.partition(".")[0] == "cudriver"]:
        del sys.modules[name]
    sys.path.insert(0, sys.argv[1])
    import cudriver as second

    assert second.__file__ != first.__file__
    assert second.is_pinned(p)
    b = second.device_empty(100, int)
    second.copy(b, a)
    assert (b.to_numpy() == np.arange(100)).all()
    with second.Context() as context:
        array, stream = first.to_device(p), first.Stream()
        first.copy_async(array, p, stream).wait()
        assert array.context.handle == context.handle
    array.close(), stream.close()
    memory = np.zeros(10000)
    one, other = first.pin(memory), second.pin(memory)
    one.close()
    assert second.is_pinned(memory)
    other.close()
    assert not second.is_pinned(memory)
    # Each has threads, slots and an allocator for NumPy of its own.
    large = np.arange(4 << 20, dtype="u1").reshape(1024, -1).T
    for one, other in ((first, second), (second, first)):
        there, back = one.to_device(large), np.zeros_like(large)
        other.copy_async(back, there, other.Stream()).wait()
        assert (back == large).all()
        with one.pinned_numpy():
            outer = np.zeros(1 << 20)
            with other.pinned_numpy():
                inner = np.zeros(1 << 20)
            again = np.zeros(1 << 20)
        assert all(one.is_pinned(x) and other.is_pinned(x) for x in (outer, inner, again))
    print("the end")
"""


#: A program's function that takes CAP_IPC_LOCK from it, which no limit of locked memory holds back.
UNPRIVILEGED = """
def unprivileged():
    import ctypes
    libc = ctypes.CDLL(None)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~(1 << 14)
    assert libc.capset(header, sets) == 0
"""
