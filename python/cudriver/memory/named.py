"""Named tuples that users see."""

from __future__ import annotations

from typing import Any, TypeVar

_T = TypeVar("_T")


def public(kind: type[_T]) -> type[_T]:
    """Show a type as one of ``cudriver.typing``, where what functions return has its name."""
    plain: Any = kind.__repr__
    kind.__module__ = "cudriver.typing"
    setattr(kind, "__repr__", lambda self: f"cudriver.typing.{plain(self)}")  # noqa: B010
    return kind
