"""Writes a C file of static assertions for one official header and has the compiler judge it.

Our declarations are renamed while cuda_abi.h is read, so that both stand side by side. What a
header does not have is left out of its file; `check` then asks that some header has it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from abi.declarations import Declarations, Function, read
from abi.headers import Header

# Members that came later and took their bytes from `reserved`: the size of the structure stayed.
TAKEN_FROM_RESERVED = {"CUmemPoolProps": {"maxSize", "usage", "gpuDirectRDMACapable"}}
# Names that CUDA 12 gave to another value: ours is today's; the old one is the same name with _V1.
MOVED_IN_12 = {"CAN_USE_64_BIT_STREAM_MEM_OPS", "CAN_USE_STREAM_WAIT_VALUE_NOR"}
ATTRIBUTE = "CU_DEVICE_ATTRIBUTE_"


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc").split()[0]) or shutil.which("gcc")


def run(arguments: list[str], source: str) -> subprocess.CompletedProcess[str]:
    cc = compiler()
    assert cc is not None
    return subprocess.run(
        [cc, "-std=gnu11", "-x", "c", *arguments, "-"],
        input=source,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )


class Official:
    """What one official header declares, by name."""

    def __init__(self, header: Header) -> None:
        self.header = header
        include = ["-I", str(header.directory)]
        source = "#include <cuda.h>\n#include <cudaTypedefs.h>\n"
        expanded = run(["-E", "-P", *include], source)
        macros = run(["-E", "-dM", *include], source)
        assert expanded.returncode == 0, expanded.stderr
        self.names = set(re.findall(r"[A-Za-z_]\w*", expanded.stdout))
        self.text = expanded.stdout
        self.names |= set(re.findall(r"^#define (\w+)", macros.stdout, re.M))
        self.functions = set(re.findall(r"\bCUresult\s+(cu\w+)\s*\(", expanded.stdout))
        self.typedefs = set(re.findall(r"\(\s*\*\s*(PFN_\w+)\)\s*\(", expanded.stdout))
        # The versions of a function, the ones behind #if included: cuda.h names them v1, v2, ...
        self.versions: dict[str, set[int]] = {}
        pattern = r"\(CUDAAPI \*PFN_(\w+)_v(\d+)\)"
        for base, version in re.findall(pattern, header.text("cudaTypedefs.h")):
            self.versions.setdefault(base, set()).add(int(version))

    def attributes(self) -> set[str]:
        names = {n.removeprefix(ATTRIBUTE) for n in self.names if n.startswith(ATTRIBUTE)}
        return names - {"MAX"}

    def has_attribute(self, name: str) -> bool:
        moved = self.header.version < 12000 and name in MOVED_IN_12
        return ATTRIBUTE + name in self.names and not moved

    def members(self, tag: str) -> set[str]:
        """The names in the body of a structure that holds no other."""
        match = re.search(rf"\bstruct {tag} \{{([^{{}}]*)\}}", self.text)
        return set(re.findall(r"\w+", match[1])) if match else set()

    def errors(self) -> set[str]:
        return {n for n in self.names if n.startswith("CUDA_ERROR_")} | {"CUDA_SUCCESS"}


def base_and_generation(name: str) -> tuple[str, int]:
    base, _, suffix = name.partition("_v")
    return (base, int(suffix)) if suffix else (name, 1)


def typedef_name(function: Function) -> str:
    return f"PFN_{base_and_generation(function.name)[0]}_v{function.since}"


def source(ours: Declarations, official: Official) -> str:
    """The C file for one header."""
    tags = [s.tag for s in ours.structs.values()] + [e.tag for e in ours.enums.values() if e.tag]
    tags += ours.tags
    renamed = sorted({*ours.typedefs(), *ours.enumerators(), *tags})
    lines = ["#include <stddef.h>", "#include <stdint.h>"]
    lines += [f"#define {name} ours_{name}" for name in renamed]
    lines += ['#include "cuda_abi.h"', '#include "cuda_errors.h"']
    lines += [f"#undef {name}" for name in renamed]
    for name in ours.macros:
        lines += [f"enum {{ ours_{name} = {name} }};", f"#undef {name}"]
    lines += ["#include <cuda.h>", "#include <cudaTypedefs.h>"]
    lines += [f"#undef {function.name}" for function in ours.functions]  # cuda.h maps some of them
    lines += [
        '#define TRUE(what, ...) _Static_assert(__VA_ARGS__, "abi: " what);',
        "#define SAME(what, a, ...) TRUE(what, __builtin_types_compatible_p(a, __VA_ARGS__))",
        "#define ONE(...) + 1",
    ]

    def has(name: str) -> bool:
        if name.startswith(ATTRIBUTE):
            return official.has_attribute(name.removeprefix(ATTRIBUTE))
        return name in official.names

    for name in filter(has, ours.types):
        lines.append(f'SAME("{name}: type", ours_{name}, {name})')
    for name in filter(has, ours.enums):
        lines.append(f'TRUE("{name}: size", sizeof(ours_{name}) == sizeof({name}))')
        lines.append(f'TRUE("{name}: sign", ((ours_{name})-1 < 0) == (({name})-1 < 0))')
    for name in filter(has, [*ours.enumerators(), *ours.macros]):
        lines.append(f'TRUE("{name}: value", (long long)ours_{name} == (long long){name})')
    for name in filter(has, ours.structs):
        later = TAKEN_FROM_RESERVED.get(name, set()) - official.members(ours.structs[name].tag)
        lines.append(f'TRUE("{name}: size", sizeof(ours_{name}) == sizeof({name}))')
        lines.append(f'TRUE("{name}: alignment", _Alignof(ours_{name}) == _Alignof({name}))')
        for member, kind in ours.structs[name].members:
            if member in later or (later and member == "reserved"):
                continue
            where = f"{name}.{member}"
            lines.append(
                f'TRUE("{where}: offset", offsetof(ours_{name}, {member}) == '
                f"offsetof({name}, {member}))"
            )
            lines.append(
                f'SAME("{where}: type", __typeof__((({name} *)0)->{member}), __typeof__({kind}))'
            )
    for function in ours.functions:
        name, pointer = function.name, typedef_name(function)
        kind = f"__typeof__(CUresult (*){function.arguments})"
        if name in official.functions:
            lines.append(f'SAME("{name}: signature", {kind}, __typeof__(&{name}))')
        if pointer in official.typedefs:
            lines.append(f'SAME("{name}: signature of {pointer}", {kind}, {pointer})')
    for name, value in ours.attributes.items():
        if official.has_attribute(name):
            lines.append(f'TRUE("attribute {name}: value", {ATTRIBUTE}{name} == {value})')
    for name, value in ours.errors.items():
        if has(name):
            lines.append(f'TRUE("error {name}: value", {name} == {value})')
    for macro, entries in (
        ("CUDRIVER_FUNCTIONS", ours.functions),
        ("CUDRIVER_ERRORS", ours.errors),
    ):
        lines.append(f'TRUE("{macro}: not all of it was read", {macro}(ONE) == {len(entries)})')
    return "\n".join(lines) + "\n"


def differences(folder: Path, ours: Declarations, official: Official) -> list[str]:
    include = ["-iquote", str(folder), "-I", str(official.header.directory)]
    done = run(["-fsyntax-only", "-fmax-errors=0", *include], source(ours, official))
    found = []
    for line in done.stderr.splitlines():
        if match := re.search(r'error: static assertion failed: "abi: (.*)"', line):
            found.append(f"{match[1]} differs from {official.header}")
        elif "error:" in line:
            found.append(f"{line.split('error: ', 1)[1]} in {official.header}")
    if done.returncode != 0 and not found:
        found.append(done.stderr)
    return found


def since_problems(ours: Declarations, officials: Iterable[Official]) -> list[str]:
    """The nth name of a function (cuCtxCreate, _v2, ...) came with its nth PFN_..._vNNNNN."""
    versions: dict[str, set[int]] = {}
    for official in officials:
        for base, seen in official.versions.items():
            versions.setdefault(base, set()).update(seen)
    found = []
    for function in ours.functions:
        base, generation = base_and_generation(function.name)
        known = sorted(versions.get(base, ()))
        if len(known) < generation:
            found.append(f"{function.name}: cudaTypedefs.h knows {base} of {known} only")
        elif known[generation - 1] != function.since:
            found.append(f"{function.name}: since {known[generation - 1]}, not {function.since}")
    return found


def absent(ours: Declarations, officials: list[Official]) -> list[str]:
    """What no header has under our name, and what the headers have that our lists do not."""
    names = set().union(*(official.names for official in officials))
    declared = set().union(*(official.functions for official in officials))
    errors = set().union(*(official.errors() for official in officials))
    # CUDA 12 renamed attributes; the names to have are those of the newest header.
    attributes = max(officials, key=lambda official: official.header.version).attributes()
    wanted = [*ours.typedefs(), *ours.enumerators(), *ours.macros]
    found = [f"{name}: in no official header" for name in wanted if name not in names]
    found += [f"{f.name}: in no official header" for f in ours.functions if f.name not in declared]
    for what, have, official in (
        ("attribute", set(ours.attributes), attributes),
        ("error", set(ours.errors), errors),
    ):
        found += [f"{what} {name}: in no official header" for name in sorted(have - official)]
        found += [f"{what} {name}: missing in our list" for name in sorted(official - have)]
    return found


def check(folder: Path, officials: list[Official]) -> list[str]:
    """Every difference between our headers in `folder` and the official ones; none when right."""
    ours = read(folder)
    found = [d for official in officials for d in differences(folder, ours, official)]
    return found + since_problems(ours, officials) + absent(ours, officials)
