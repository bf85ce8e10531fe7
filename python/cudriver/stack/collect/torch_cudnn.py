"""The cuDNN that a PyTorch was compiled against, which can be older than the one its wheel pins.

torch.backends.cudnn refuses a run-time version below that. The three numbers are constants in a
function of libtorch_python.so; reading them takes a few milliseconds, so it is done only where the
cuDNN in use is older than the pin.
"""

from __future__ import annotations

from struct import unpack_from

from cudriver.stack.elfbits import ElfBits
from cudriver.stack.rootfs import Root

FUNCTION = "_ZN12_GLOBAL__N_117getCompileVersionEv"
CODE_LIMIT = 96  # bytes
X86_64 = 62

# std::tuple<size_t, size_t, size_t> lies in memory last element first: patch, minor, major.
_STORE_AT = {b"\x48\xc7\x07": 0, b"\x48\xc7\x47\x08": 1, b"\x48\xc7\x47\x10": 2}
_LOAD_PAIR = (b"\x66\x0f\x6f\x05", b"\x0f\x28\x05")  # movdqa, movaps from %rip + displacement


def compiled_against(root: Root, library: str) -> str | None:
    """ "9.8.0" for a libtorch_python.so; None where its code does not tell."""
    try:
        with ElfBits(root.open(library)) as file:
            found = file.local_symbol(FUNCTION, CODE_LIMIT)
            if found is None or file.machine != X86_64:
                return None
            numbers = _numbers(file, *found)
    except (OSError, ValueError):
        return None
    patch, minor, major = numbers
    if major is None or minor is None or patch is None:
        return None
    if not (5 <= major < 100 and minor < 1000 and patch < 1000):
        return None
    return f"{major}.{minor}.{patch}"


def _numbers(file: ElfBits, code: bytes, address: int) -> list[int | None]:
    """What the function stores at offsets 0, 8 and 16 of its result."""
    numbers: list[int | None] = [None, None, None]
    for start, slot in _STORE_AT.items():
        at = code.find(start)
        if at >= 0 and len(code) >= at + len(start) + 4:
            numbers[slot] = unpack_from("<i", code, at + len(start))[0]
    for start in _LOAD_PAIR:
        at = code.find(start)
        if at >= 0 and len(code) >= at + len(start) + 4:
            after = at + len(start) + 4
            (displacement,) = unpack_from("<i", code, at + len(start))
            pair = file.memory(address + after + displacement, 16)
            if pair is not None and len(pair) == 16:
                numbers[0], numbers[1] = unpack_from("<QQ", pair)
            break
    return numbers
