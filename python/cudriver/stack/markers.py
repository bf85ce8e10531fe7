"""Environment markers of requirements, for another interpreter than this one.

The shapes that CUDA packages use (== and != on names, any comparison on python_version,
and, or, parentheses) are decided here; for the rest `packaging` is imported. A test holds the
two to the same answers.
"""

from __future__ import annotations

import re

from cudriver.stack.versions import satisfies

_TOKEN = re.compile(
    r"""\s*(?:(?P<word>[a-z_]+(?:\.[a-z_]+)?)|(?P<text>"[^"]*"|'[^']*')"""
    r"""|(?P<sign>===|~=|==|!=|<=|>=|<|>|\(|\)))"""
)
_RUN = re.compile(r"[-_.]+")
_LIKE_A_VERSION = re.compile(r"\s*v?[0-9]")
_VERSIONS = {"python_version", "python_full_version"}
_NAMES = {
    "extra",
    "implementation_name",
    "os_name",
    "platform_machine",
    "platform_python_implementation",
    "platform_system",
    "sys_platform",
}


class _Unsure(Exception):
    """A shape that is left to packaging."""


def normal(name: str) -> str:
    """A distribution's or extra's name in the form in which names are compared."""
    if "_" in name or "." in name or "--" in name:
        name = _RUN.sub("-", name)
    return name.lower()


def environment(python: str, machine: str) -> dict[str, str]:
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
        self._tokens: dict[str, list[tuple[str, str]]] = {}

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
            tokens = self._tokens.get(text)
            if tokens is None:
                tokens = self._tokens[text] = _tokens(text)
            return _Parser(tokens, variables).whole()
        except (_Unsure, RecursionError):
            return _by_packaging(text, variables)


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) of each. Raises _Unsure where there is something else, or too many."""
    tokens: list[tuple[str, str]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None or len(tokens) > 500:
            raise _Unsure
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]], variables: dict[str, str]) -> None:
        self.tokens = tokens
        self.variables = variables
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self) -> tuple[str, str]:
        if self.at >= len(self.tokens):
            raise _Unsure
        self.at += 1
        return self.tokens[self.at - 1]

    def whole(self) -> bool:
        answer = self.either()
        if self.at != len(self.tokens):
            raise _Unsure
        return answer

    def either(self) -> bool:
        answer = self.both()
        while self.peek() == "or":
            self.take()
            answer = self.both() or answer
        return answer

    def both(self) -> bool:
        answer = self.one()
        while self.peek() == "and":
            self.take()
            answer = self.one() and answer
        return answer

    def one(self) -> bool:
        if self.peek() == "(":
            self.take()
            answer = self.either()
            if self.take()[1] != ")":
                raise _Unsure
            return answer
        left, operator, right = self.take(), self.take()[1], self.take()
        if left[0] != "word" or right[0] != "text":
            raise _Unsure
        return self.compare(left[1], operator, right[1][1:-1])

    def compare(self, name: str, operator: str, value: str) -> bool:
        mine = self.variables.get(name, "")
        if name in _VERSIONS and operator != "===":
            answer = satisfies(mine, operator + value)
            if answer is None:
                raise _Unsure
            return answer
        if name not in _NAMES or operator not in ("==", "!="):
            raise _Unsure
        if _LIKE_A_VERSION.match(value):
            raise _Unsure  # packaging compares what looks like a version as one
        if name == "extra":
            mine, value = normal(mine), normal(value)
        return (mine == value) is (operator == "==")


def _by_packaging(text: str, variables: dict[str, str]) -> bool | None:
    from packaging.markers import InvalidMarker, Marker
    from packaging.markers import UndefinedComparison as NotComparable
    from packaging.markers import UndefinedEnvironmentName as NoSuchVariable

    try:
        return bool(Marker(text).evaluate(dict(variables)))
    except (InvalidMarker, NotComparable, NoSuchVariable, ValueError, RecursionError):
        return None
