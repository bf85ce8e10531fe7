"""A child process with a time limit. (The subprocess module takes 25 ms to import, signal 1.)"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

OUTPUT_LIMIT = 1 << 20  # bytes
REAP = 0.25  # seconds that a killed child gets; one that hangs in the kernel is left to init


class Child:
    """`program` with its standard output to be read. Its standard error goes nowhere."""

    def __init__(self, program: list[str], environ: Mapping[str, str], limit: float) -> None:
        """Raises OSError where it cannot be started. limit: seconds from now."""
        self.limit = limit
        self.deadline: float = time.monotonic() + limit
        self.pid: int = 0
        reader, writer = os.pipe()
        try:
            self.pid = os.posix_spawn(
                program[0],
                program,
                dict(environ),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, writer, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setpgroup=0,
            )
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self.reader = reader

    def join(self) -> tuple[str, str | None]:
        """Its output, and how it failed ("crashed (SIGSEGV)"), or None."""
        output, timed_out = self._read()
        os.close(self.reader)
        if timed_out:
            self._kill()
            self._reap(REAP)
            return output, f"gave no answer within {self.limit:g} s"
        status = self._reap(max(0.0, self.deadline - time.monotonic()) + REAP)
        if status is None:
            self._kill()
            self._reap(REAP)
            return output, f"did not end within {self.limit:g} s"
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            return output, f"crashed ({signal_name(-code)})"
        return output, f"ended with exit code {code}" if code else None

    def _read(self) -> tuple[str, bool]:
        import select

        poller = select.poll()
        poller.register(self.reader, select.POLLIN)
        pieces: list[bytes] = []
        size = 0
        while size < OUTPUT_LIMIT:
            left = self.deadline - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                return b"".join(pieces).decode("utf-8", "replace"), True
            piece = os.read(self.reader, 65536)
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces).decode("utf-8", "replace"), False

    def _kill(self) -> None:
        import signal
        from contextlib import suppress

        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            with suppress(OSError):  # it may have left its group, or be gone
                os.kill(self.pid, signal.SIGKILL)

    def _reap(self, patience: float) -> int | None:
        """The wait status, or None where it has not ended in time."""
        until = time.monotonic() + patience
        pause = 0.0005
        while True:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return 0  # somebody else reaps this process's children
            if pid:
                return status
            if time.monotonic() >= until:
                return None
            time.sleep(pause)
            pause = min(pause * 2, 0.02)


def signal_name(number: int) -> str:
    """ "SIGSEGV"; "signal 36" for one that has no name."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def interpreter() -> str | None:
    """This process's own Python, to run a script of ours with."""
    return sys.executable or None


def ourselves(*words: str) -> list[str]:
    """The command line of `cudriver` with this process's Python; -P: nothing is imported from the
    working folder.
    """
    home = os.path.abspath(__file__)
    for _ in "cudriver", "stack", "collect", "child.py":
        home = os.path.dirname(home)
    # Our own folder comes last, so that it hides no other module.
    program = (
        f"import sys; sys.path.append({home!a}); "
        "from cudriver.cli import program; sys.exit(program())"
    )
    return [sys.executable, "-P", "-c", program, *words]
