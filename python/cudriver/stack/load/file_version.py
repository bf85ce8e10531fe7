"""A library's own version: from its file name, from its code, from the package that owns it."""

from __future__ import annotations

import os
import re
from struct import unpack

from cudriver.stack.elf import parts
from cudriver.stack.facts import Distribution, Evidence
from cudriver.stack.loader.glibc import AARCH64, X86_64
from cudriver.stack.names import majors_of, row_of, split
from cudriver.stack.record import Any
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.tables import toolkit_of
from cudriver.stack.versions import cut, major

_HASH = r"-[0-9a-f]{8}\Z"
_ITS_OWN = ("lib", "cuda-", "cudnn", "nccl")  # conda's names that start so are a library's own
CODE_LIMIT = 2048  # bytes of a version function that are looked at
# mov dword [reg], imm32; mov dword [reg+8], imm32; mov dword [rsp+8], imm32; mov r32, imm32
_X86_CONSTANT = re.compile(
    rb"(?s)(?:\xc7[\x00-\x03\x06\x07]|\xc7[\x40-\x43\x45-\x47].|\xc7\x44\x24.|[\xb8-\xbf])(....)"
)


def own_version(
    root: Root, path: str, soname: str, owner: Distribution | None
) -> tuple[str | None, Evidence | None]:
    """The version of the library at `path`, and what says so."""
    real = root.resolve(path)
    stem, number = split(os.path.basename(real))
    row = row_of(soname)
    if number.count(".") >= 2 or (stem == "libnvrtc-builtins" and "." in number):
        return number, Evidence(path, None, os.path.basename(real))
    coded, owned = _coded(root, real, row, split(soname)[1]), _owned(owner, row)
    if coded is None and owned and owner:
        return owned, owner.evidence
    if coded is None:
        # auditwheel's hash in a name goes with the SONAME's number, which is not a version.
        named = number if number.count(".") and not re.search(_HASH, stem) else None
        return named, Evidence(path, None, os.path.basename(real))
    version, shown = coded
    agrees = owned and f"{owned}.".startswith(f"{version}.")
    if agrees and row.get("code") not in ("cudnn", "nccl"):
        version = owned or version  # the package tells more numbers
    return version, Evidence(real, None, shown)


def _owned(owner: Distribution | None, row: dict[str, Any]) -> str | None:
    """A package's version, where that is its library's: NVIDIA's are, torch's is not."""
    if owner is None or not row:
        return None
    stem = re.sub(r"-cu\d+(?:-libs)?\Z", "", owner.name)
    if stem in (row.get("wheel"), row.get("conda")) or stem.startswith(_ITS_OWN):
        version = owner.version.split("+")[0]
        short = row.get("code") in ("cudnn", "nccl") or row["family"] == "cudnn"
        return cut(version, 3) if short else version
    return None


def _coded(
    root: Root, real: str, row: dict[str, Any], soname_number: str
) -> tuple[str, str] | None:
    """What the library's version symbol holds, and that in words."""
    symbol, code = row.get("symbol"), row.get("code")
    if not symbol or not code:
        return None
    file = parts.opened(root, real)
    raw = parts.symbol(file, symbol, CODE_LIMIT) if file else None
    if file is None or not raw:
        return None
    numbers = [unpack("<I", raw)[0]] if len(raw) == 4 else constants(raw, file.machine)
    wanted = major(soname_number)
    if code == "pair":
        for at, number in enumerate(numbers[:-1]):
            if number == wanted and numbers[at + 1] < 100:
                return f"{number}.{numbers[at + 1]}", f"{symbol}: {number}.{numbers[at + 1]}"
        return None
    for number in numbers:
        version = decode(number, code)
        if version and (len(raw) == 4 or wanted is None or major(version) == wanted):
            return version, f"{symbol}: {number}"
    return None


def constants(code: bytes, machine: int) -> list[int]:
    """The 32-bit constants that a function stores or moves, in order."""
    if machine == X86_64:
        return [unpack("<I", m[1])[0] for m in _X86_CONSTANT.finditer(code)]
    if machine != AARCH64:
        return []
    found: list[int] = []
    registers: dict[int, int] = {}
    size = len(code) // 4
    for word in unpack(f"<{size}I", code[: 4 * size]):
        register, value = word & 31, word >> 5 & 0xFFFF
        if word & 0xFFE00000 == 0x52800000:  # movz w, #value
            registers[register] = len(found)
            found.append(value)
        elif word & 0xFFE00000 == 0x72A00000 and register in registers:  # movk w, #value, lsl 16
            found[registers[register]] |= value << 16
    return found


def decode(number: int, code: str) -> str | None:
    """A version from its library's own encoding; None for a number that cannot be one."""
    if code == "cudnn" and 5 << 16 <= number < 64 << 16:  # cudnn_graph_version: 0x090a02
        return f"{number >> 16}.{number >> 8 & 0xFF}.{number & 0xFF}"
    # The least number that is written with ten thousand a major; a thousand below.
    least = {"cudnn": 90_000, "nccl": 20_000, "ten_thousand": 0, "thousand": 1_000_000}.get(code)
    if least is None or not 100 <= number < 1_000_000:
        return None
    scale = 10_000 if number >= least else 1_000
    return f"{number // scale}.{number % scale // 100}.{number % 100}"


def cuda_of(soname: str, version: str | None, owner: Distribution | None) -> str | None:
    """The CUDA release that a library belongs to: "12.8.1", "12.8" or "12"; None: not told."""
    row = row_of(soname)
    family = row.get("family", "")
    if family in ("cudart", "nvrtc", "nvjitlink") and version and version.count("."):
        return cut(version, 2)
    component = row.get("component")
    if component:
        release = toolkit_of(component, version)
        if release:
            return release
    tag = re.search(r"-cu(\d+)", owner.name) if owner else None
    if tag:
        return tag[1]
    built = re.search(r"cuda_?(\d+)", owner.build) if owner and owner.build else None
    if built:
        return built[1] if len(built[1]) <= 2 else f"{built[1][:2]}.{built[1][2:]}"
    majors = majors_of(soname)
    return majors[0] if len(majors) == 1 else None
