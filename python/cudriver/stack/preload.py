"""What frameworks load by themselves before their own libraries, read from their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudriver.stack.process import Load, Process


def import_torch(process: Process, package: str, sys_path: Sequence[str]) -> list[Load]:
    """`import torch` as far as the loader sees it: global dependencies, the preloads that
    torch/__init__.py of this very version names, then torch._C. `package` is the torch folder.
    """
    raise NotImplementedError


def import_extension(process: Process, path: str) -> Load:
    """`import` of one extension module: dlopen with RTLD_NOW and RTLD_LOCAL."""
    return process.dlopen(path)
