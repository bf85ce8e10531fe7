"""Versions and specifiers by PEP 440.

`packaging` decides. Its import costs 60 ms, so plain numbers ("12.8.93", "==12.8.*"), which is
nearly all that CUDA packages use, are settled here; a test holds the two to the same answers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from operator import eq, ge, gt, le, lt, ne

_SPACE = " \t\n\r\f\v"
_SIGNS = {"==": eq, "!=": ne, "<=": le, ">=": ge, "~=": None, "<": lt, ">": gt}  # longest first
_LOCAL = r"\+[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*\Z"


def numbers(text: str) -> tuple[int, ...] | None:
    """The numbers of a version that is nothing but numbers and dots, else None."""
    parts = text.split(".")
    if len(parts) > 8 or not text.isascii():
        return None
    for part in parts:
        if not part.isdigit() or len(part) > 9:
            return None
    return tuple(map(int, parts))


def _padded(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    size = max(len(a), len(b))
    return a + (0,) * (size - len(a)), b + (0,) * (size - len(b))


def compare(a: str, b: str) -> int:
    """-1, 0 or 1. Raises ValueError where one of them is not a version."""
    left, right = numbers(a), numbers(b)
    if left is not None and right is not None:
        left, right = _padded(left, right)
        return (left > right) - (left < right)
    from packaging.version import Version

    first, second = Version(a), Version(b)
    return (first > second) - (first < second)


def newer(a: str, b: str) -> bool:
    """a > b; False where one of them is not a version."""
    try:
        return compare(a, b) > 0
    except ValueError:
        return False


@lru_cache(maxsize=4096)  # the rules about pins ask the same of every package
def satisfies(version: str, specifier: str) -> bool | None:
    """Whether a version meets a specifier (pre-releases allowed); None: one is unreadable."""
    if not specifier.strip():
        return True
    quick = _quickly(version, specifier)
    return _by_packaging(version, specifier) if quick is None else quick


def _quickly(version: str, specifier: str) -> bool | None:
    """The answer where every clause is plain numbers. A local part ("+cu128") does not count
    against clauses that have none.
    """
    number = numbers(re.sub(_LOCAL, "", version) if "+" in version else version)
    if number is None:
        return None
    answer = True
    for clause in specifier.split(","):
        text = clause.strip(_SPACE)
        operator = next((sign for sign in _SIGNS if text.startswith(sign)), "")
        stated = text[len(operator) :].lstrip(_SPACE)
        if operator in (">=", "<"):
            # No release lies between 2.9.dev0, also written 2.9dev0, and 2.9.
            stated = stated.removesuffix(".dev0").removesuffix("dev0")
        wildcard = stated.endswith(".*")
        wanted = numbers(stated[:-2] if wildcard else stated)
        if not operator or wanted is None:
            return None
        if wildcard and operator not in ("==", "!="):
            return None
        if operator == "~=" and len(wanted) < 2:
            return None
        answer = answer and _holds(number, operator, wanted, wildcard)
    return answer


def _holds(number: tuple[int, ...], sign: str, wanted: tuple[int, ...], wildcard: bool) -> bool:
    left, right = _padded(number, wanted)
    compared = _SIGNS[sign]
    stem = wanted if wildcard else wanted[:-1]
    same = left[: len(stem)] == stem
    if compared is None:
        return same and left >= right
    return same is (sign == "==") if wildcard else bool(compared(left, right))


def _by_packaging(version: str, specifier: str) -> bool | None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except (InvalidSpecifier, ValueError):
        return None


def cut(version: str | None, parts: int) -> str | None:
    """The first numbers of a version: cut("12.8.93", 2) is "12.8"."""
    if not version:
        return None
    public = version.partition("+")[0]  # "2.8.0+cu128"
    if numbers(public) is not None:
        return ".".join(public.split(".")[:parts])
    first = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return ".".join(first[0].split(".")[:parts]) if first else None


def major(version: str | None) -> int | None:
    """The first number of a version."""
    head = cut(version, 1)
    return int(head) if head and len(head) < 10 else None


def minor(version: str | None) -> tuple[int, int] | None:
    """The first two numbers of a version; None where it has fewer."""
    head = cut(version, 2)
    found = numbers(head) if head else None
    return (found[0], found[1]) if found and len(found) == 2 else None


def from_code(code: int) -> str:
    """A CUDA version from the API's own number: 12080 is "12.8"."""
    return f"{code // 1000}.{code % 1000 // 10}"
