"""Reads cuda_abi.h, cuda_errors.h and attributes.py as lists of declarations.

The reader knows just the forms that those files use and refuses every other one, so that nothing
which is declared there goes uncompared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@dataclass
class Struct:
    tag: str
    members: list[tuple[str, str]]  # (name, type as written with the array length, e.g. "char[16]")


@dataclass
class Enum:
    tag: str | None
    enumerators: list[str]


@dataclass
class Function:
    name: str
    arguments: str
    since: int


@dataclass
class Declarations:
    types: list[str] = field(default_factory=list)  # typedefs that are neither struct nor enum
    tags: list[str] = field(default_factory=list)  # of structures within others
    structs: dict[str, Struct] = field(default_factory=dict)
    enums: dict[str, Enum] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)  # enumerators without a type's name
    macros: list[str] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    attributes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    def enumerators(self) -> list[str]:
        return [*self.constants, *(e for enum in self.enums.values() for e in enum.enumerators)]

    def typedefs(self) -> list[str]:
        return [*self.types, *self.structs, *self.enums]


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def read(folder: Path) -> Declarations:
    text = without_comments((folder / "cuda_abi.h").read_text())
    text = text.replace("\\\n", " ")
    found = Declarations()
    code = []
    for line in text.splitlines():
        if line.startswith(("#define CUDRIVER_CALLED(X)", "#define CUDRIVER_ASKED(X)")):
            found.functions += functions(line.split("(X)", 1)[1])
        elif match := re.fullmatch(r"#define (CU_\w+)\s+\S+\s*", line):
            found.macros.append(match[1])
        elif not line.startswith("#"):
            code.append(line)
    for declaration in statements("\n".join(code)):
        add(found, declaration)
    attributes = entries(folder / "attributes.py", r'"(\w+)": (\d+),', r":")
    errors = entries(folder / "cuda_errors.h", r'X\((\d+), (\w+), "[^"]*"\)')
    found.attributes = {name.upper(): int(value) for name, value in attributes}
    found.errors = {name: int(code) for code, name in errors}
    return found


def entries(path: Path, pattern: str, mark: str = r"\bX\(") -> list[tuple[str, str]]:
    """The entries of a list: every mark of the file is one."""
    text = without_comments(path.read_text())
    found = re.findall(pattern, text)
    count = len(re.findall(mark, text))
    if not found or len(found) != count:
        raise ValueError(f"{path.name}: {count} entries, of which {len(found)} were understood")
    return found


def functions(text: str) -> list[Function]:
    found = [
        Function(name, arguments, int(since))
        for name, arguments, since in re.findall(r"X\((\w+), (\([^()]*\)), (\d+)\)", text)
    ]
    if not found or len(found) != len(re.findall(r"\bX\(", text)):
        raise ValueError("cuda_abi.h: a function of the list was not understood")
    return found


def statements(code: str) -> list[str]:
    """Splits at the semicolons outside braces, and joins white space."""
    found, start, depth = [], 0, 0
    for at, character in enumerate(code):
        depth += (character == "{") - (character == "}")
        if character == ";" and depth == 0:
            found.append(" ".join(code[start:at].split()))
            start = at + 1
    if rest := code[start:].strip():
        raise ValueError(f"cuda_abi.h: not understood: {rest}")
    return found


def add(found: Declarations, text: str) -> None:
    if match := re.fullmatch(r"typedef struct (\w+) \{(.*)\} (\w+)", text):
        found.structs[match[3]] = Struct(match[1], [member(m) for m in statements(match[2])])
    elif match := re.fullmatch(r"typedef union (\w+) \{(.*)\} (\w+)", text):
        found.structs[match[3]] = Struct(match[1], members(match[2], found.tags))
    elif match := re.fullmatch(r"typedef enum (\w+) \{(.*)\} (\w+)", text):
        found.enums[match[3]] = Enum(match[1], enumerators(match[2]))
    elif match := re.fullmatch(r"enum \{(.*)\}", text):
        found.constants += enumerators(match[1])
    elif match := re.fullmatch(
        r"typedef [^(){}]*?\b(\w+)|typedef void \(\*(\w+)\)\([^()]*\)", text
    ):
        found.types.append(match[1] or match[2])
    else:
        raise ValueError(f"cuda_abi.h: not understood: {text}")


def enumerators(text: str) -> list[str]:
    found = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"(\w+) = \w+", part)
        if match is None:
            raise ValueError(f"cuda_abi.h: not understood: {part}")
        found.append(match[1])
    return found


def members(text: str, tags: list[str]) -> list[tuple[str, str]]:
    """Those of a union, and of the structures and nameless unions in it: "one.other"."""
    found = []
    for part in statements(text):
        if match := re.fullmatch(r"struct (\w+) \{(.*)\} (\w+)", part):
            tags.append(match[1])
            found += [(f"{match[3]}.{name}", kind) for name, kind in members(match[2], tags)]
        elif match := re.fullmatch(r"union \{(.*)\}", part):
            found += members(match[1], tags)
        else:
            found.append(member(part))
    return found


def member(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"(.*?)(\w+)((?:\[\d+\])?)", text)
    if match is None or "," in text or "(" in text:
        raise ValueError(f"cuda_abi.h: not understood: {text}")
    return match[2], match[1].strip() + match[3]
