"""Work in a thread, beside what its caller does. (To import threading takes 1.5 ms.)"""

from __future__ import annotations

import _thread
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")


def start(work: Callable[[], T]) -> Callable[[], T]:
    """Starts `work`. What comes back waits for its end and returns its result; where no thread
    could do it, it does it itself.
    """
    results: list[T] = []
    done = _thread.allocate_lock()

    def run() -> None:
        try:
            results.append(work())
        except Exception:
            pass  # `join` meets it again, where it can be told
        finally:
            done.release()

    def join() -> T:
        with done:
            return results[0] if results else work()

    done.acquire()
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # no more threads can be had
        done.release()
    return join
