"""The interpreter's static objects, by their bytes: who writes beside an object may hit these, and
no sanitizer sees that."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

WORD = ctypes.sizeof(ctypes.c_void_p)
HEADER = object.__basicsize__ - WORD  # bytes that count references, before the object's type
TYPE_WORDS = 50  # of a PyTypeObject, from its own type on
#: The interpreter writes these itself: flags, cache, subclasses, weak references, version.
TYPE_OWN = [20, 43, 44, 45, 47]

VALUES = [None, True, False, Ellipsis, NotImplemented, (), b"", *range(-5, 257)]
TYPES = sorted({type(value) for value in VALUES} | {object, type, str, dict, list}, key=repr)


def _words(at: int, count: int) -> Any:
    """Memory behind an object's header, as words."""
    memory = (ctypes.c_char * (count * WORD)).from_address(at + HEADER)
    return np.frombuffer(memory, np.uint64)


def _views() -> list[tuple[str, Any]]:
    hash(()), hash(b"")  # they keep their hashes
    found = [
        (repr(value), _words(id(value), -(-value.__sizeof__() // WORD) - HEADER // WORD))
        for value in VALUES
    ]
    words = np.delete(np.arange(TYPE_WORDS), TYPE_OWN)
    for kind in TYPES:
        whole = _words(id(kind), TYPE_WORDS)
        cuts = np.split(words, np.flatnonzero(np.diff(words) > 1) + 1)
        found += [(repr(kind), whole[cut[0] : cut[-1] + 1]) for cut in cuts]
    return found


_VIEWS = _views()


def look() -> list[bytes]:
    """What they are now."""
    return [view.tobytes() for _, view in _VIEWS]


def changed(before: list[bytes]) -> list[str]:
    """The names of those that are not what they were."""
    now = look()
    if now == before:
        return []
    pairs = zip(_VIEWS, before, now, strict=True)
    return sorted({name for (name, _), was, found in pairs if was != found})
