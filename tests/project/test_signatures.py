"""What help() and inspect say of the public names is what they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import cudriver as cu


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function and class, and the methods of objects of each type."""
    for name in cu.__all__:
        value = getattr(cu, name)
        if inspect.isbuiltin(value) or (inspect.isclass(value) and not is_plain(value)):
            yield name, value
    context = cu.Context()
    there = cu.device_empty(3)
    objects = (
        cu.Device(0),
        context,
        context.limits,
        cu.Stream(),
        cu.Event(),
        there,
        cu.copy_async(there, np.zeros(3), None),
        cu.pin(np.zeros(3)),
        cu.pinned_numpy(),
    )
    for thing in objects:
        for name in dir(thing):
            value = getattr(type(thing), name)
            if callable(value) and not name.startswith("__"):
                yield f"{type(thing).__name__}.{name}", getattr(thing, name)


def is_plain(value: type) -> bool:
    """Exceptions, named tuples and enumerations are Python's own or NumPy's kind of thing."""
    return issubclass(value, (Exception, tuple, cu.ContextFlags))


def test_every_name_has_a_signature_that_is_true() -> None:
    wrong = []
    for name, value in callables():
        try:
            parameters = inspect.signature(value).parameters.values()
        except ValueError as error:
            wrong.append(f"{name}: {error}")
            continue
        for parameter in parameters:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                continue
            before = [object()] * sum(p.kind is p.POSITIONAL_ONLY for p in parameters)
            known = refused_keyword(value, before, parameter.name)
            if known:
                wrong.append(f"{name}({parameter.name}=...): {known}")
    assert wrong == []


def refused_keyword(value: Callable[..., Any], before: list[object], name: str) -> str:
    """The message where a call refuses a keyword as such, else ''."""
    try:
        value(*before, **{name: object()})
    except Exception as error:
        text = str(error)
        if "keyword" in text or " takes two " in text:
            return text
    return ""


def test_dir_shows_the_public_names_only() -> None:
    assert dir(cu) == sorted(cu.__all__)
