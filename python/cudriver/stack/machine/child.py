"""A child process with a time limit. (The subprocess module takes 25 ms to import, signal 1.)"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

OUTPUT_LIMIT = 1 << 20  # bytes
REAP = 0.25  # seconds that a killed child gets; one that hangs in the kernel is left to init
PAUSE = 0.2  # seconds between two looks whether it has ended: its own children may keep the pipe


class Child:
    """`program` with what it writes to a descriptor, its standard output by default, to be read.
    Its other output goes nowhere.
    """

    def __init__(
        self,
        program: list[str],
        environ: Mapping[str, str],
        limit: float,
        *,
        descriptor: int = 1,
        most: int = OUTPUT_LIMIT,
    ) -> None:
        """Raises OSError where it cannot be started. limit: seconds from now. most: bytes."""
        self.limit, self.most = limit, most
        self.deadline: float = time.monotonic() + limit
        self.pid: int = 0
        self._status: int | None = None  # None: it runs
        reader, writer = os.pipe()
        others = {1, 2} - {descriptor}
        try:
            self.pid = os.posix_spawn(
                program[0],
                program,
                dict(environ),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, writer, descriptor),
                    *((os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_WRONLY, 0) for n in others),
                ],
                setpgroup=0,
            )
        except (OSError, ValueError):
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self.reader = reader

    def join(self) -> tuple[bytes, str | None]:
        """Its output, and how it failed ("crashed (SIGSEGV)"), or None. What has run out of time is
        killed with what it has started.
        """
        raw, closed = b"", False
        try:
            raw, closed = self._read()
        finally:
            os.close(self.reader)
            self._wait(self.deadline + REAP if closed else 0)
            code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
            if code is None:
                self._kill()
        if code is None:
            return raw, f"{'did not end' if closed else 'gave no answer'} within {self.limit:g} s"
        if code < 0:
            import signal

            names = {each.value: each.name for each in signal.Signals}
            return raw, f"crashed ({names.get(-code, f'signal {-code}')})"
        return raw, f"ended with exit code {code}" if code else None

    def _read(self) -> tuple[bytes, bool]:
        import select

        poller = select.poll()
        poller.register(self.reader, select.POLLIN)
        raw, ended = b"", False
        while len(raw) < self.most and not ended:
            left = self.deadline - time.monotonic()
            if left <= 0:
                return raw, False
            if poller.poll(min(left, PAUSE) * 1000):
                piece = os.read(self.reader, 65536)
                raw, ended = raw + piece, not piece
            else:
                ended = self._ended()
        return raw, True

    def _kill(self) -> None:
        import signal
        from contextlib import suppress

        for kill in (os.killpg, os.kill):  # it may have left its group, or be gone
            with suppress(OSError):
                kill(self.pid, signal.SIGKILL)
        self._wait(time.monotonic() + REAP)

    def _wait(self, until: float) -> None:
        """Waits for its end."""
        while not self._ended() and time.monotonic() < until:
            time.sleep(0.002)

    def _ended(self) -> bool:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0  # somebody else reaps this process's children
            if pid:
                self._status = status
        return self._status is not None


def ourselves(*words: str) -> list[str]:
    """The command line of `cudriver` with this process's Python; -P: nothing is imported from the
    working folder.
    """
    home = os.path.abspath(f"{__file__}/../../../..")
    # Our own folder comes last, so that it hides no other module.
    start = "from cudriver.cli import program; sys.exit(program())"
    program = f"import sys; sys.path.append({home!a}); {start}"
    return [sys.executable, "-P", "-c", program, *words]
