"""Environment markers of requirements, for another interpreter than this one.

The shapes that CUDA packages use (== and != on names, any comparison on python_version,
and, or, parentheses) are decided here; for the rest `packaging` is imported. A test holds the
two to the same answers.
"""

from __future__ import annotations

import _ast
import re
from functools import lru_cache

from cudriver.stack.versions import satisfies

_RUN = re.compile(r"[-_.]+")
_LIKE_A_VERSION = re.compile(r"\s*v?[0-9]")
_VERSIONS = {"python_version", "python_full_version"}
_SIGNS: dict[type[_ast.cmpop], str] = {
    _ast.Eq: "==", _ast.NotEq: "!=", _ast.Lt: "<", _ast.LtE: "<=", _ast.Gt: ">", _ast.GtE: ">=",
}  # fmt: skip
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
    short = ".".join(python.split(".")[:2])
    return {
        "implementation_name": "cpython",
        "implementation_version": python,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": python,
        "python_version": short,
        "sys_platform": "linux",
        "extra": "",
    }


# What most requirements of an extra say, and nothing else.
_EXTRA = re.compile(r"""\s*extra\s*==\s*(['"])([A-Za-z][\w.-]*)\1\s*\Z""", re.ASCII)


class Markers:
    """Decides markers for one environment, remembering texts that it has seen."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables
        self._known: dict[tuple[str, str], bool | None] = {}

    def holds(self, text: str, extra: str = "") -> bool | None:
        """Whether the marker is true, with this extra asked for; None where it is not a marker."""
        key = (text, extra)
        if key not in self._known:
            self._known[key] = self._decide(text, extra)
        return self._known[key]

    def _decide(self, text: str, extra: str) -> bool | None:
        lone = _EXTRA.match(text)
        if lone is not None and not _LIKE_A_VERSION.match(lone[2]):
            return normal(extra) == normal(lone[2])
        variables = {**self.variables, "extra": extra}
        try:
            return _holds(_parsed(text), variables)
        except (_Unsure, RecursionError):
            return _by_packaging(text, variables)


def markers_of(python: str | None, machine: str) -> Markers:
    """Markers as CPython `python` decides them; where that is not known, as one of 3.12."""
    return Markers(marker_values(python or "3.12", machine))


@lru_cache(maxsize=1024)  # the same for each extra
def _parsed(text: str) -> _ast.expr:
    """The marker's tree: what is decided here is written as Python writes it. Raises _Unsure."""
    if "#" in text or "\\" in text:  # a comment, an escape: no marker has them
        raise _Unsure
    try:
        tree = compile(text.strip(), "", "eval", _ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError, MemoryError):
        raise _Unsure from None
    assert isinstance(tree, _ast.Expression)
    return tree.body


def _holds(node: _ast.expr, variables: dict[str, str]) -> bool:
    """Raises _Unsure."""
    if isinstance(node, _ast.BoolOp):
        answers = [_holds(each, variables) for each in node.values]
        return all(answers) if isinstance(node.op, _ast.And) else any(answers)
    if not isinstance(node, _ast.Compare) or len(node.ops) != 1:
        raise _Unsure
    name, sign, value = node.left, _SIGNS.get(type(node.ops[0])), node.comparators[0]
    if sign is None or not isinstance(name, _ast.Name) or not isinstance(value, _ast.Constant):
        raise _Unsure
    text = value.value
    # Neither a prefix nor two in a row: a marker has none of them.
    if not isinstance(text, str) or value.end_col_offset != value.col_offset + len(text) + 2:
        raise _Unsure
    return _compare(variables, name.id, sign, text)


def _compare(variables: dict[str, str], name: str, sign: str, value: str) -> bool:
    mine = variables.get(name, "")
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
