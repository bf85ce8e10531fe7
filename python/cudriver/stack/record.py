"""A small stand-in for dataclasses: importing those costs a fifth of the time a check may take."""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes 5 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_):
        return lambda cls: cls


class _Fresh:
    """The default of a field that every instance gets anew."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def fresh(make: Callable[[], T]) -> T:
    """A field's default, made anew for each instance: `names: list[str] = fresh(list)`."""
    return _Fresh(make)  # type: ignore[return-value]


@dataclass_transform()
class Record:
    """Fields by annotation, in order, with defaults; compared and printed by value."""

    _fields: tuple[str, ...] = ()
    _defaults: dict[str, Any] = {}  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        stated = cls.__annotations__  # from Python 3.10 on a class's own, {} where it has none
        own = [name for name in stated if not name.startswith("_")]
        cls._fields = cls._fields + tuple(n for n in own if n not in cls._fields)
        cls._defaults = dict(cls._defaults)
        for name in own:
            if name in cls.__dict__:
                cls._defaults[name] = cls.__dict__[name]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fields = self._fields
        if len(args) > len(fields):
            raise TypeError(f"{type(self).__name__} takes {len(fields)} values, {len(args)} given")
        values = self.__dict__
        values.update(zip(fields, args, strict=False))
        for name in fields[len(args) :]:
            if name in kwargs:
                values[name] = kwargs.pop(name)
            elif name in self._defaults:
                default = self._defaults[name]
                values[name] = default.make() if isinstance(default, _Fresh) else default
            else:
                raise TypeError(f"{type(self).__name__} needs {name!r}")
        if kwargs:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(map(repr, kwargs))}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in self._fields)})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists all the way down."""
        return {name: _plain(getattr(self, name)) for name in self._fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
