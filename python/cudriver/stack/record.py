"""A small stand-in for dataclasses: importing those costs a fifth of the time a check may take.

Facts are frozen: `class Driver(Record, frozen=True)`. Their author makes them in steps, by `put`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes 5 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any as Any
    from typing import ClassVar, TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T")
else:
    Any = object  # for the annotations of all modules

    def dataclass_transform(**_):
        return lambda cls: cls


class _Fresh:
    """The default of a field that every instance gets anew."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def fresh(make: Callable[[], T]) -> T:
    """A field's default, made anew for each instance: `names: list[str] = fresh(list)`."""
    return _Fresh(make)  # type: ignore[return-value]


def _refuse(record: Record, name: str, _: Any) -> None:
    raise AttributeError(f"{type(record).__name__}.{name} is a fact: it stays as it was found")


@dataclass_transform()
class Record:
    """Fields by annotation, in order, with defaults; compared and printed by value.

    A record has no fields but its own: none is derived from another.
    """

    _fields: tuple[str, ...] = ()
    _known: frozenset[str] = frozenset()
    _defaults: dict[str, Any] = {}  # noqa: RUF012
    _makers: tuple[tuple[str, Callable[[], Any]], ...] = ()  # of the defaults made anew

    def __init_subclass__(cls, *, frozen: bool = False) -> None:
        if frozen:
            type.__setattr__(cls, "__setattr__", _refuse)
        fields = tuple(name for name in cls.__annotations__ if not name.startswith("_"))
        given = {name: cls.__dict__[name] for name in fields if name in cls.__dict__}
        makers = {name: each.make for name, each in given.items() if isinstance(each, _Fresh)}
        cls._defaults = {name: each for name, each in given.items() if name not in makers}
        cls._fields, cls._known, cls._makers = fields, frozenset(fields), tuple(makers.items())

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Thousands are made in a check: all at once, and what is wrong looked for afterwards.
        fields, values = self._fields, self.__dict__
        values.update(self._defaults)
        for name, make in self._makers:
            values[name] = make()
        values.update(zip(fields, args, strict=False))
        values.update(kwargs)
        fits = len(values) == len(fields) >= len(args) + len(kwargs)
        if not (fits and self._known.issuperset(kwargs)):
            given = ", ".join([*map(repr, args), *kwargs])
            raise TypeError(f"{type(self).__name__}({', '.join(fields)}): {given} do not fit")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({shown})"

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists all the way down."""
        return {name: jsonable(getattr(self, name)) for name in self._fields}


def but(record: T, **changes: Any) -> T:
    """A copy of a record with other values in some fields."""
    made: T = object.__new__(type(record))
    made.__dict__.update(record.__dict__, **changes)
    return made


def put(record: Record, **fields: Any) -> None:
    """Writes fields of a frozen record. For its author alone, before anybody else has it."""
    record.__dict__.update(fields)


def jsonable(value: Any) -> Any:
    """A value as the dictionaries, lists and texts that JSON has."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    return value
