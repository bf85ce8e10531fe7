"""What the site adds to the pages: types, links to sources and to other documentation, search."""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import cudriver as cu
from native_build import ROOT

pytest.importorskip("sphinx.application", reason="needs the docs extra")
pytestmark = [
    pytest.mark.static,
    pytest.mark.skipif(not (ROOT / "cext").exists(), reason="needs a checkout"),
]

NAMES = [name for name in cu.__all__ if callable(getattr(cu, name))]
METHODS = [
    f"{kind}.{name}"
    for kind in ("Context", "Device", "DeviceArray", "Event", "Stream", "Transfer")
    for name in dir(getattr(cu, kind))
    if not name.startswith("_")
]


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports one of docs/_ext."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    yield __import__
    for name in ("elsewhere", "signatures", "sources"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", [*NAMES, *METHODS])
def test_a_signature_leads_to_its_source(name: str, extension: Any) -> None:
    place = extension("sources").locate("cudriver", name)
    assert place is not None
    file, line = place
    shown = file.read_text(encoding="utf-8").splitlines()[line - 1]
    last = name.rpartition(".")[2]
    if file.suffix == ".py":
        assert re.search(rf"(class|def) {last}\b|@|def \w+", shown)
    else:
        assert re.match(r"(static |PyObject |int )|.*(Py_tp_doc|\{\")", shown), shown


def test_signatures_have_types_and_no_private_names(extension: Any) -> None:
    signatures = extension("signatures")
    overloads: dict[str, list[Any]] = {}
    for name, function in signatures.functions():
        overloads.setdefault(name, []).append(function)
    for name in NAMES:
        if name in overloads and inspect.isbuiltin(getattr(cu, name)):
            shown = str(inspect.signature(getattr(cu, name)))
            args, result = signatures.typed(shown, overloads[name])
            (parsed,) = ast.parse(f"def f{args}: ...").body
            assert isinstance(parsed, ast.FunctionDef)
            given = parsed.args
            assert result
            assert all(a.annotation for a in (*given.posonlyargs, *given.args, *given.kwonlyargs))
            assert not re.search(r"\b_[A-Z]", args + result), name


def test_properties_that_are_written_in_c_have_types(extension: Any) -> None:
    types = extension("signatures").properties()
    assert types["Context.device"] == "Device"
    assert types["DeviceArray.dtype"] == "~numpy.dtype"
    assert types["DeviceArray.T"] == "DeviceArray"
    for name in METHODS:
        kind, _, last = name.partition(".")
        if inspect.isgetsetdescriptor(getattr(getattr(cu, kind), last)):
            assert name in types
            assert not re.search(r"\b_[A-Z]", types[name]), name


def test_the_drivers_functions_that_docstrings_name_are_links(extension: Any) -> None:
    links = extension("elsewhere").LINKS
    stub = (ROOT / "python" / "cudriver" / "_core.pyi").read_text(encoding="utf-8")
    named = set(re.findall(r"``(cu[A-Z]\w+)``", stub))
    assert len(named) > 20
    assert named - set(links) == set()
    assert all(link.startswith("https://") for link in links.values())


def test_the_inventories_can_be_read(extension: Any, tmp_path: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    for site, path in extension("elsewhere").inventories(tmp_path).values():
        with open(path, "rb") as file:
            read = InventoryFile.load(file, site, lambda base, page: base + page)
        assert read.data if hasattr(read, "data") else read


SITE = ROOT / "build" / "docs"


@pytest.mark.skipif(not (SITE / "zh" / "index.html").exists(), reason="the site is not built")
def test_every_link_of_the_site_leads_somewhere() -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in SITE.rglob("*.html")}
    names = {path: {*re.findall(r' (?:id|name)="([^"]*)"', text)} for path, text in pages.items()}
    lost = []
    for page, text in pages.items():
        shown = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
        for link in {*re.findall(r' (?:href|src)="([^"]*)"', shown)}:
            if re.match("(https?|mailto|data|javascript):", link):
                continue
            name, _, place = unquote(unescape(link)).partition("#")
            path = Path(os.path.normpath(page.parent / name.partition("?")[0])) if name else page
            path = path / "index.html" if path.is_dir() else path
            if not path.exists() or (place and path in names and place not in names[path]):
                lost.append((str(page.relative_to(SITE)), link))
    assert lost == []
