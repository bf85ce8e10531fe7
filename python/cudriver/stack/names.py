"""The names of CUDA's libraries, and what the table says of them."""

from __future__ import annotations

import re
from functools import cache

from cudriver.stack.record import Any
from cudriver.stack.tables import table

DRIVER_CALL = r"cu(?!File)[A-Z]"  # a function of libcuda; cuFile's are like it
_SONAME = re.compile(r"(lib[A-Za-z0-9_-]+)\.(?:alt\.)?so(?:\.([0-9][0-9.]*))?")
# And what they go on to.
_FAMILIES = ("libcudnn", "libcutensor", "libnpp", "libnvinfer", "libcudss", "libnvcomp")


def is_cuda_library(name: str) -> bool:
    """Whether a SONAME is a CUDA library's. (A pattern of them all takes 1 ms to compile.)"""
    stem, so, number = name.partition(".so")
    if not so or not stem.startswith("lib"):
        return False
    if number and (number[0] != "." or number == "." or number.strip(".0123456789")):
        return False
    if stem[-9:-8] == "-" and not stem[-8:].strip("0123456789abcdef"):
        stem = stem[:-9]  # auditwheel's hash: a copy that a package brings along
    return stem in _known() or (stem.startswith(_FAMILIES) and stem.replace("_", "").isalnum())


@cache
def _known() -> frozenset[str]:
    """What needs one of these uses CUDA."""
    return frozenset((*table("libraries")["libraries"], *table("libraries")["others"]))


def split(soname: str) -> tuple[str, str]:
    """("libcublas", "12") from "libcublas.so.12"; the second is "" where there is none."""
    found = _SONAME.fullmatch(soname)
    return (found[1], found[2] or "") if found else (soname, "")


def describe(stem: str) -> dict[str, Any]:
    """The row of a CUDA library in libraries.json; {} for any other library."""
    row: dict[str, Any] = table("libraries")["libraries"].get(stem, {})
    return row


def library_of(symbol: str) -> str | None:
    """The library that a function's name belongs to, by its prefix: "libcublas.so"."""
    prefixes: dict[str, str] = table("libraries")["prefixes"]
    known = (each for each in prefixes if symbol.startswith(each))
    return prefixes.get(max(known, key=len, default=""))


def row_of(soname: str) -> dict[str, Any]:
    """The same, for libcublas.so.12."""
    return describe(split(soname)[0])


def majors_of(soname: str) -> list[str]:
    """The CUDA majors whose library has that SONAME: ["12"] of libcublas.so.12."""
    sonames: dict[str, str] = row_of(soname).get("sonames", {})
    return [major for major, name in sonames.items() if name == soname]


def unsuffixed(wheel: str) -> str:
    """nvidia-cublas for nvidia-cublas-cu12."""
    stem, _, number = wheel.rpartition("-cu")
    return stem if number.isdigit() and stem else wheel


def is_pattern(text: str) -> bool:
    """Whether glob would not take it as it is."""
    return any(sign in text for sign in "*?[")


def matches(name: str, pattern: str) -> bool:
    """Whether glob takes the name. Nearly all patterns have one "*", or end in "*[0-9]": no
    expression is compiled for these.
    """
    head, star, tail = pattern.partition("*")
    digit = tail == "[0-9]"
    if is_pattern(head + ("" if digit else tail)):
        from fnmatch import fnmatchcase

        return fnmatchcase(name, pattern)
    if not star:
        return name == pattern
    if digit:
        return name.startswith(head) and name[len(head) :][-1:] in tuple("0123456789")
    fixed = len(head) + len(tail)
    return len(name) >= fixed and name.startswith(head) and name.endswith(tail)
