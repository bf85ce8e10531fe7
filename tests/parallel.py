"""Threads of a test, whose failures are the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def together(*bodies: Callable[[], Any]) -> list[Any]:
    """Runs the bodies in threads that start at once; what they return. Raises what one raised."""
    gate = threading.Barrier(len(bodies))
    results: list[Any] = [None] * len(bodies)
    failures: list[BaseException] = []

    def run(number: int, body: Callable[[], Any]) -> None:
        gate.wait()
        try:
            results[number] = body()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=work) for work in enumerate(bodies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def in_thread(body: Callable[[], Any]) -> Any:
    """The same with one, in a fresh thread: nothing of the driver's is current there."""
    return together(body)[0]
