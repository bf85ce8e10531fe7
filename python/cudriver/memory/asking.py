"""Calls of the driver that the core need not make itself."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from cudriver import _core

if TYPE_CHECKING:
    from cudriver._core import Context, Event

ROOM = 256  # for what is written


def ask(
    context: Context | None, function: str, shown: str, written: str, *given: int | bytes | Event
) -> Any:
    """The value that a function writes where its first argument points.

    context: the one to make current. shown: the arguments that an error's message names.
    written: the value's format, as for `struct`.
    """
    value = bytearray(ROOM)
    _core._call(context, function, shown, (value, *given))
    return struct.unpack_from(written, value)[0]


def ask_two(
    context: Context | None, function: str, shown: str, written: str, *given: int
) -> tuple[Any, Any]:
    """The two values that a function writes where its last arguments point."""
    first, second = bytearray(ROOM), bytearray(ROOM)
    _core._call(context, function, shown, (*given, first, second))
    return struct.unpack_from(written, first)[0], struct.unpack_from(written, second)[0]
