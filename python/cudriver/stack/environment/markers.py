"""Environment markers of requirements, for another interpreter than this one.

The shapes that CUDA packages use (comparisons joined by `and`, `or` and parentheses) are decided
here; for the rest `packaging` is imported. A test holds the two to the same answers.
"""

from __future__ import annotations

import re

from cudriver.stack.tables import table
from cudriver.stack.versions import cut, satisfies

_RUN = re.compile(r"[-_.]+")
_LIKE_A_VERSION = re.compile(r"\s*v?[0-9]")
_VERSIONS = {"python_version", "python_full_version"}
# One comparison, its value without escapes.
_TERM = re.compile(r"""\s*(\w+)\s*(==|!=|<=|>=|<|>)\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*""", re.ASCII)
_AND, _OR = re.compile(r"\sand\s"), re.compile(r"\sor\s")
_GROUP = re.compile(r"\(([^()]*)\)")  # innermost parentheses; a plain comparison replaces them
_ANSWERS = {True: " os_name == 'posix' ", False: " os_name != 'posix' "}
# What is left to packaging: on Linux nobody knows them from outside.
_OTHERS = {"implementation_version", "platform_release", "platform_version"}


class _Unsure(Exception):
    """A shape that is left to packaging."""


def normal(name: str) -> str:
    """A distribution's or extra's name in the form in which names are compared."""
    if "_" in name or "." in name or "--" in name:
        name = _RUN.sub("-", name)
    return name.lower()


def versions_of(text: str) -> str:
    """The versions that a requirement allows, of what stands between its name and its marker:
    "[extra] (>=1,<2)" gives ">=1,<2".
    """
    return text.rpartition("]")[2].strip().removeprefix("(").removesuffix(")").strip()


def marker_values(python: str, machine: str) -> dict[str, str]:
    """Marker variables of CPython `python` ("3.12.1") on Linux, for a `machine` ("x86_64")."""
    versions = dict.fromkeys(("implementation_version", "python_full_version"), python)
    own = {"platform_machine": machine, "python_version": cut(python, 2) or python}
    return {**table("environments")["markers"], **versions, **own}


class Markers:
    """Decides markers for one environment, remembering texts that it has seen."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables
        self._known: dict[tuple[str, str], bool | None] = {}

    def holds(self, text: str, extra: str = "") -> bool | None:
        """Whether the marker is true, with this extra asked for; None where it is not a marker."""
        key = (text, extra)
        if key not in self._known:
            variables = {**self.variables, "extra": extra}
            try:
                whole = text
                while group := _GROUP.search(whole):
                    answer = _ANSWERS[_decide(group[1], variables)]
                    whole = f"{whole[: group.start()]}{answer}{whole[group.end() :]}"
                self._known[key] = _decide(whole, variables)
            except _Unsure:
                self._known[key] = _by_packaging(text, variables)
        return self._known[key]


def markers_of(python: str | None, machine: str) -> Markers:
    """Markers as CPython `python` decides them; where that is not known, as one of 3.12."""
    return Markers(marker_values(python or "3.12", machine))


def _decide(text: str, variables: dict[str, str]) -> bool:
    """Whether comparisons without parentheses hold. Raises _Unsure."""
    parts = [_AND.split(part) for part in _OR.split(text)]
    return any(map(all, [[_holds(term, variables) for term in terms] for terms in parts]))


def _holds(term: str, variables: dict[str, str]) -> bool:
    """Raises _Unsure."""
    found = _TERM.fullmatch(term)
    if found is None:
        raise _Unsure
    name, sign, double, single = found.groups()
    mine, value = variables.get(name, ""), double or single or ""
    if name in _VERSIONS:
        answer = satisfies(mine, sign + value)
        if answer is None:
            raise _Unsure
        return answer
    if name in _OTHERS or name not in variables or sign not in ("==", "!="):
        raise _Unsure
    if _LIKE_A_VERSION.match(value):
        raise _Unsure  # packaging compares what looks like a version as one
    if name == "extra":
        mine, value = normal(mine), normal(value)
    return (mine == value) is (sign == "==")


def _by_packaging(text: str, variables: dict[str, str]) -> bool | None:
    from packaging.markers import InvalidMarker, Marker
    from packaging.markers import UndefinedComparison as NotComparable
    from packaging.markers import UndefinedEnvironmentName as NoSuchVariable

    try:
        return bool(Marker(text).evaluate(dict(variables)))
    except (InvalidMarker, NotComparable, NoSuchVariable, ValueError, RecursionError):
        return None
