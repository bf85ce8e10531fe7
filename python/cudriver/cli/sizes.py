"""Sizes of memory, as people write them on a command line."""

from __future__ import annotations

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SUFFIXES = {"K": KIB, "M": MIB, "G": GIB}
SMALLEST, LARGEST = 4 * KIB, 1 << 40


def parse_size(text: str, multiple: int = 16) -> int:
    """Bytes of `64K`, `1.5M`, `2G`; a bare number is MiB."""
    word = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = SUFFIXES.get(word[-1:], 0)
    try:
        size = round(float(word[:-1] if unit else word) * (unit or MIB))
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a size like 512M, 2G or 64K, nor a number of MiB"
        ) from None
    if not SMALLEST <= size <= LARGEST or size % multiple:
        raise ValueError(f"a size is a multiple of {multiple} bytes from 4K to 1024G")
    return size


def parse_sweep(text: str) -> list[int]:
    """`1M,64M,1G`, or `64K:1G` for 64K, 256K, 1M ... and 1G; in order, each once."""
    if ":" not in text:
        return sorted({parse_size(part) for part in text.split(",")})
    low, high = map(parse_size, text.split(":", 1))
    if low > high:
        raise ValueError("the smaller comes first")
    sizes = []
    while low < high:
        sizes.append(low)
        low *= 4
    return [*sizes, high]
