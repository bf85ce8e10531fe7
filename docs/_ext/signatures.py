"""Types in signatures: those of the stub for what is written in C, and names that readers know."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import cudriver

STUB = Path(cudriver.__file__).parent / "_core.pyi"
# What the annotations call by a name of their own, and how the site says it.
NAMES = {
    "_AnyEvent": "Event",
    "_AnyStream": "Stream",
    "_Array": "DeviceArray | ArrayLike",
    "_CacheConfig": "str",
    "_DeviceLike": "Device | int | str",
    "_Float64": "DTypeLike",
    "_HostArray": "ArrayLike",
    "_HostArrayT": "ArrayLike",
    "_Index": "int | slice | None",
    "_Lender": "Any",
    "_Order": "Literal['C', 'F']",
    "_OrderLike": "Literal['C', 'F', 'K', 'A']",
    "_Shape": "int | Sequence[int]",
    "ArrayLike": "numpy.typing.ArrayLike",
    "DTypeLike": "numpy.typing.DTypeLike",
    "NDArray": "numpy.ndarray",
    "SupportsIndex": "int",
    "SupportsInt": "int",
    "np.dtype": "numpy.dtype",
}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Each function and method of the stub by its name ("Event.record"), overloads in their order."""
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    made = member.name in ("__new__", "__init__")
                    yield node.name if made else f"{node.name}.{member.name}", member


def known(annotation: str) -> str:
    """An annotation in names that readers know."""
    annotation = re.sub(r"\b_Typed\[\w+\]", "DTypeLike", annotation)
    annotation = re.sub(r"(NDArray|DeviceArray)\[[\w.]+\]", r"\1", annotation)
    for name, shown in NAMES.items():
        annotation = re.sub(rf"(?<![\w.]){re.escape(name)}\b", shown, annotation)
    return annotation


def typed(args: str, overloads: list[ast.FunctionDef]) -> tuple[str, str]:
    """The arguments with the types of the stub, and the type of the result.

    The last overload is the most general one.
    """
    types: dict[str, str] = {}
    for function in overloads:
        given = function.args
        for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs):
            if arg.annotation is not None:
                types[arg.arg] = known(ast.unparse(arg.annotation))
    (shown,) = ast.parse(f"def f{args}: ...").body
    assert isinstance(shown, ast.FunctionDef)
    for arg in (*shown.args.posonlyargs, *shown.args.args, *shown.args.kwonlyargs):
        if arg.arg in types:
            arg.annotation = ast.parse(types[arg.arg], mode="eval").body
    returns = overloads[-1].returns
    return f"({ast.unparse(shown.args)})", known(ast.unparse(returns)) if returns else ""


def add_types(
    _app: Sphinx, what: str, name: str, _obj: Any, _options: Any, args: str, returns: str
) -> tuple[str, str] | None:
    """The signature that autodoc shows."""
    if not args:
        return None
    overloads = [node for key, node in functions() if f"cudriver.{key}" == name]
    if not overloads:
        return known(args.replace("'", "")), known((returns or "").replace("'", ""))
    args, returns = typed(args, overloads)
    return args, "" if what == "class" else returns.replace("Self", name.split(".")[1])


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("autodoc-process-signature", add_types)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
