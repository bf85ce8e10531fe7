"""Types in signatures: those of the stub for what is written in C, and names that readers know."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.python import PyAttribute
from sphinx.pycode import ModuleAnalyzer

import cudriver
from cudriver import typing

STUB = Path(cudriver.__file__).parent / "_core.pyi"
# What the annotations say in one word or with the type of an item, and how the site says it.
NAMES = {
    **{name: f"~cudriver.typing.{name}" for name in typing.__all__},
    "HostArrayT": "~cudriver.typing.HostArray",
    "type[ScalarT]": "DTypeLike",
    "np.dtype[ScalarT]": "DTypeLike",
    "type[float]": "DTypeLike",
    "Literal['float64']": "DTypeLike",
    "ArrayLike": "~numpy.typing.ArrayLike",
    "DTypeLike": "~numpy.typing.DTypeLike",
    "NDArray": "~numpy.ndarray",
    "SupportsIndex": "int",
    "SupportsInt": "int",
    "np.dtype": "~numpy.dtype",
}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions and methods of the stub by their names ("Event.record"), with overloads."""
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
    annotation = re.sub(r"^'(.*)'$", r"\1", annotation)
    for name, shown in NAMES.items():
        annotation = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", shown, annotation)
    annotation = re.sub(r"(ndarray|DeviceArray|numpy\.dtype)\[[\w.]+\]", r"\1", annotation)
    return annotation


def either(shown: str | None, annotation: ast.expr) -> str:
    """What is shown already, or this type: each once, None last."""
    both = [*(shown or "").split(" | "), *known(ast.unparse(annotation)).split(" | ")]
    kinds = dict.fromkeys(filter(None, both))
    return " | ".join(sorted(kinds, key="None".__eq__))


def typed(args: str, overloads: list[ast.FunctionDef]) -> tuple[str, str]:
    """The arguments with the types of the stub, and the type of the result."""
    types: dict[str, str] = {}
    for function in overloads:
        given = function.args
        for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs):
            if arg.annotation is not None:
                types[arg.arg] = either(types.get(arg.arg), arg.annotation)
    args = re.sub(r"<class '(\w+)'>", r"\1", args)  # a default
    (shown,) = ast.parse(f"def f{args}: ...").body
    assert isinstance(shown, ast.FunctionDef)
    for arg in (*shown.args.posonlyargs, *shown.args.args, *shown.args.kwonlyargs):
        if arg.arg in types:
            arg.annotation = ast.parse(types[arg.arg], mode="eval").body
        elif arg.annotation is not None:  # of a function in Python
            arg.annotation = ast.parse(known(ast.unparse(arg.annotation)), mode="eval").body
    result = None
    for function in overloads:
        result = either(result, function.returns) if function.returns else result
    return f"({ast.unparse(shown.args)})", result or ""


def add_types(
    _app: Sphinx, what: str, name: str, _obj: Any, _options: Any, args: str, returns: str
) -> tuple[str, str] | None:
    """The signature that autodoc shows."""
    if not args:
        return None
    overloads = [node for key, node in functions() if f"cudriver.{key}" == name]
    args, result = typed(args, overloads)
    result = result or known(returns or "")
    return args, "" if what == "class" else result.replace("Self", name.split(".")[1])


def properties() -> dict[str, str]:
    """The types of the stub's properties by their names ("Context.device")."""
    return {
        name: known(ast.unparse(function.returns)).replace("Self", name.partition(".")[0])
        for name, function in functions()
        if function.returns and "property" in map(ast.unparse, function.decorator_list)
    }


class Attribute(PyAttribute):
    """An attribute. Of one that is written in C only the stub knows the type."""

    def handle_signature(self, sig: str, signode: nodes.Element) -> tuple[str, str]:
        kind = properties().get(sig)
        if kind is not None:
            self.options.setdefault("type", kind)
        return super().handle_signature(sig, signode)


def forget_overloads(_app: Sphinx) -> None:
    """Lets autodoc show one signature of a Python function, not each overload as it is written."""
    for module in ("memory.pinned", "memory.copies", "memory.making", "memory.dlpack"):
        analyzer = ModuleAnalyzer.for_module(f"cudriver.{module}")  # which Sphinx keeps
        analyzer.analyze()
        analyzer.overloads.clear()


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("builder-inited", forget_overloads)
    app.connect("autodoc-process-signature", add_types)
    app.add_directive_to_domain("py", "attribute", Attribute, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
