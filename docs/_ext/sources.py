"""Source links beside signatures: to pages of the Python and C files that they are from."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import cudriver

ROOT = Path(__file__).parent.parent.parent
# A row of a method table: the C function, and the key of its docstring, "Event_record".
CAST = r"(?:\(PyCFunction\)(?:\(void \(\*\)\(void\)\))?|CUDRIVER_FAST\()?"
ROW = re.compile(rf'\{{"\w+", {CAST}(\w+)[^{{}}]*\bDOC_(\w+)')
TYPE = re.compile(r"Py_tp_doc, DOC_(\w+)")


@functools.cache
def in_c() -> dict[str, tuple[Path, int]]:
    """Where the C sources have each name that they document: file and line."""
    found = {}
    for file in sorted((ROOT / "cext").rglob("*.c")):
        text = file.read_text(encoding="utf-8")

        def line(at: int, text: str = text) -> int:
            return text.count("\n", 0, at) + 1

        for row in ROW.finditer(text):
            begin = re.search(rf"^[^\n#/].*\b{row[1]}\(", text, re.MULTILINE)
            found[row[2]] = file, line(begin.start() if begin else row.start())
        for slot in TYPE.finditer(text):
            found[slot[1]] = file, line(slot.start())
    return found


def locate(module: str, name: str) -> tuple[Path, int] | None:
    """The file and the line of a name, or None for what has none of its own."""
    if module == "cudriver" and name.replace(".", "_") in in_c():
        return in_c()[name.replace(".", "_")]
    value: Any = importlib.import_module(module)
    homes = [
        home for home, names in cudriver._HOMES.items() if module == "cudriver" and name in names
    ]
    if homes and isinstance(getattr(value, name), type):  # it says that its module is "cudriver"
        file = inspect.getsourcefile(importlib.import_module(f"cudriver.{homes[0]}")) or ""
        before = re.split(rf"^class {name}\b", Path(file).read_text(encoding="utf-8"), flags=re.M)[
            0
        ]
        return Path(file), before.count("\n") + 1
    try:
        for part in name.split("."):
            value = inspect.getattr_static(value, part, None) or getattr(value, part)
        value = inspect.unwrap(value.fget if isinstance(value, property) else value)
        file = inspect.getsourcefile(value)
        return (Path(file), inspect.getsourcelines(value)[1]) if file else None
    except (AttributeError, OSError, TypeError):
        return None


def page(file: Path) -> str:
    """The page of a source file."""
    parts = file.parts
    start = "cext" if "cext" in parts else "cudriver"
    return "source/" + "/".join(parts[len(parts) - 1 - parts[::-1].index(start) :])


def add_links(app: Sphinx, document: nodes.document) -> None:
    """Adds a link to each signature whose source is known."""
    if app.builder.format != "html":
        return
    files = app.env.__dict__.setdefault("source_files", {})
    for signature in document.findall(addnodes.desc_signature):
        name = signature.get("fullname")
        place = locate(signature["module"], name) if name and signature.get("module") else None
        if place is None:
            continue
        files[page(place[0])] = str(place[0])
        target = app.builder.get_relative_uri(app.env.docname, page(place[0]))
        link = nodes.reference("", "", internal=True, refuri=f"{target}#L-{place[1]}")
        link += nodes.inline("", "[源码]" if app.config.language == "zh_CN" else "[source]")
        link["classes"].append("viewcode-link")
        signature += link


def write_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file that a link leads to."""
    for name, file in sorted(app.env.__dict__.get("source_files", {}).items()):
        text = Path(file).read_text(encoding="utf-8")
        lexer = "c" if file.endswith(".c") else "python"
        highlighter = app.builder.highlighter  # type: ignore[attr-defined]
        code = highlighter.highlight_block(text, lexer, linenos="inline", lineanchors="L")
        title = name.removeprefix("source/")
        yield name, {"title": title, "body": f"<h1>{title}</h1>\n{code}"}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("doctree-read", add_links)
    app.connect("html-collect-pages", write_pages)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
