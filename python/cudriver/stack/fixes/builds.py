"""PyTorch's builds and what each has code for, as the table of architectures has them."""

from __future__ import annotations

from cudriver.stack.tables import table
from cudriver.stack.versions import cut


def builds_for(platform: str) -> list[dict[str, str]]:
    """PyTorch's builds for Linux on a machine ("x86_64", "aarch64"), oldest first."""
    return [r for r in table("architectures")["torch"] if f"linux {platform}" in r["platform"]]


def archs_of(row: dict[str, str]) -> list[str]:
    """The list of one of PyTorch's builds, as its binary would tell it."""
    numbers = row["archs"].replace("+PTX", "").replace(".", "").split(";")
    ptx = [f"compute_{numbers[-1]}"] if "+PTX" in row["archs"] else []
    return [f"sm_{number}" for number in numbers] + ptx


def torch_archs(version: str, cuda: str | None, platform: str) -> list[str]:
    """What a build of PyTorch has code for, as its table tells; [] where that is not known."""
    rows = (r for r in builds_for(platform) if r["torch"] == cut(version, 2) and r["cuda"] == cuda)
    return next(map(archs_of, rows), [])
