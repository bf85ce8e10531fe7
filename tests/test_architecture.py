"""A file looks only downward: the layers of the C core and of the Python package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.static

ROOT = Path(__file__).resolve().parent.parent
CEXT, PACKAGE = ROOT / "cext", ROOT / "python" / "cudriver"

# A room of cext/ is the files whose names begin so (the longest name wins); it may include its own
# headers and those of the rooms on its right. What has no row is a Python type, and stands on all
# of them but `sim/` and `elf`.
PLAIN = {
    "cuda_": set(),
    "platform": set(),
    "layout": set(),
    "driver": {"cuda_", "platform"},
    "keeper": {"cuda_", "platform", "driver"},
    "hostmem": {"cuda_", "platform", "driver"},
    "staging": {"cuda_", "platform", "driver", "hostmem", "layout"},
    "ladder_kernels": {"cuda_", "driver"},
    "elf": set(),
    "sim/": {"cuda_"},
}
ABOVE = {
    "compat": set(),
    "state": {"compat", "cuda_"},
    "error": {"compat", "state", "cuda_", "driver"},
    "elf_module": {"compat", "elf"},
}
ROOMS = PLAIN | ABOVE
TYPES = {*ROOMS} - {"sim/", "elf", "elf_module"}

# A part of the package: the parts that it may import, at any place in its code.
PARTS = {
    "errors": set(),
    "_core": {"errors"},
    "stack": {"_elf"},
    "ladder": {"__init__", "_core", "errors"},
    "cli": {"__init__", "ladder", "stack", "_elf", "errors"},
}

FILES = {str(p.relative_to(CEXT)): p for p in sorted(CEXT.rglob("*.[ch]"))}


def room(name: str) -> str:
    return max((r for r in ROOMS if name.startswith(r)), key=len, default="types")


def includes(name: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"](.+?)[>"]', FILES[name].read_text(), re.M)


def own(name: str) -> list[str]:
    """The headers of cext/ that a file includes, as paths below it."""
    beside = str(Path(name).parent / "x")[:-1]
    return [p for h in includes(name) for p in (beside + h, h) if p in FILES]


def test_c_includes_look_downward() -> None:
    wrong = []
    for name in FILES:
        here = room(name)
        allowed = {here} | ROOMS.get(here, TYPES)
        wrong += [f"{name} includes {h}" for h in own(name) if room(h) not in allowed]
        wrong += [f"{name} includes {h}" for h in includes(name) if h.endswith(".c")]
        if here in PLAIN:
            wrong += [f"{name} includes {h}" for h in includes(name) if h == "Python.h"]
        if name != "numpy_api.h":
            wrong += [f"{name} includes {h}" for h in includes(name) if h.startswith("numpy/")]
        if name not in ("numpy_bridge.c", "pinned_numpy.c"):
            wrong += [f"{name} includes {h}" for h in includes(name) if h == "numpy_api.h"]
    assert wrong == []


def test_c_headers_have_no_cycle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        for header in own(name) if name not in done else []:
            visit(header, (*path, name))
        done.add(name)

    for name in FILES:
        visit(name, ())


def imports(path: Path) -> list[str]:
    """The parts of this package that a file imports."""
    package = ["cudriver", *path.relative_to(PACKAGE).parent.parts]
    modules = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from cudriver import stack` imports a part, `from cudriver import Device` a name.
            modules += [f"{base}.{n.name}" if is_part(base, n.name) else base for n in node.names]
    found = [module.split(".") for module in modules]
    return [parts[1] if len(parts) > 1 else "__init__" for parts in found if parts[0] == "cudriver"]


def is_part(base: str, name: str) -> bool:
    return base == "cudriver" and (name in PARTS or any(PACKAGE.glob(f"{name}.py*")))


@pytest.mark.parametrize("part", PARTS)
def test_python_imports_look_downward(part: str) -> None:
    paths = [*(PACKAGE / part).rglob("*.py"), PACKAGE / f"{part}.py", PACKAGE / f"{part}.pyi"]
    wrong = []
    for path in filter(Path.exists, paths):
        bad = {*imports(path)} - PARTS[part] - {part}
        wrong += [f"{path.relative_to(PACKAGE)} imports {name}" for name in sorted(bad)]
    assert wrong == []


def test_every_folder_of_the_package_has_its_part() -> None:
    folders = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    assert folders <= set(PARTS)
