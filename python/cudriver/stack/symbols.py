"""Versions and symbols: what ld.so checks between mapping objects and running them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudriver.stack.loader import LoadedObject
    from cudriver.stack.process import Fault


def check_versions(new: Sequence[LoadedObject], mapped: Sequence[LoadedObject]) -> list[Fault]:
    """The versions that the new objects need and their providers lack, in ld.so's order."""
    raise NotImplementedError


def check_symbols(
    new: Sequence[LoadedObject], scope: Sequence[LoadedObject], *, now: bool = True
) -> tuple[list[Fault], list[Fault]]:
    """The undefined symbols of the new objects (dependencies first, as ld.so relocates) that
    `scope` lacks: those that end the load, and those that a call would meet later (lazy binding).
    """
    raise NotImplementedError
