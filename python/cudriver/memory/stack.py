"""Which threads have pushed which contexts, for the core."""

from __future__ import annotations

import threading
import weakref

from cudriver._core import Context


class Pushed(list[Context]):
    """What a thread has pushed, and keeps alive: the last at the end. It ends with the thread."""

    def __init__(self) -> None:
        super().__init__()
        self.thread: int = threading.get_ident()


_all: dict[int, weakref.ref[Pushed]] = {}  # by id: threads end at once


def new() -> Pushed:
    """For the calling thread, which the core keeps beside its Python state."""
    pushed, pop = Pushed(), _all.pop
    key = id(pushed)
    _all[key] = weakref.ref(pushed, lambda _: pop(key, None))
    return pushed


def correct(pushed: Pushed, stack: list[Context]) -> None:
    """Forget what the thread has pushed and is not on its stack any more: another library popped
    it.
    """
    for context in pushed[::-1]:
        if pushed.count(context) > stack.count(context):
            del pushed[len(pushed) - 1 - pushed[::-1].index(context)]


def holder(context: Context) -> int:
    """A thread that has pushed the context, by its number; 0: none has."""
    everywhere = [pushed for ref in _all.copy().values() if (pushed := ref()) is not None]
    return next((pushed.thread for pushed in everywhere if context in pushed), 0)
