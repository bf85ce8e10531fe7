"""Types that users see, and nobody makes."""

from __future__ import annotations

from typing import Any, TypeVar

_T = TypeVar("_T")

HOME = "cudriver.typing"


def public(kind: type[_T]) -> type[_T]:
    """Show a named tuple as of ``cudriver.typing``, where what functions return has its name."""
    plain: Any = kind.__repr__
    kind.__module__ = HOME
    setattr(kind, "__repr__", lambda self: f"{HOME}.{plain(self)}")  # noqa: B010
    return kind
