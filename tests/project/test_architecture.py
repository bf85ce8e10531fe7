"""A file looks only downward: the layers of the C core and of the Python package."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from native_build import CEXT, ROOT

pytestmark = [
    pytest.mark.static,
    pytest.mark.skipif(not CEXT.is_dir(), reason="no C sources beside the tests"),
]

PACKAGE = ROOT / "python" / "cudriver"

# A folder of cext/ and those that it may use; "." is module.c. The plain ones know no Python.
PLAIN = {
    "driver": set(),
    "hostmem": {"driver"},
    "engine": {"hostmem", "driver"},
    "sim": {"driver"},
}
FOLDERS = PLAIN | {
    "python": {*PLAIN} - {"sim"},
    "contexts": {"python", *PLAIN} - {"sim"},
    "arrays": {"contexts", "python", *PLAIN} - {"sim"},
    "pinned": {"arrays", "contexts", "python", *PLAIN} - {"sim"},
    "ladder": {"arrays", "contexts", "python", *PLAIN} - {"sim"},
    ".": {"ladder", "pinned", "arrays", "contexts", "python", *PLAIN} - {"sim"},
    "elf": set(),
    "sim/others": {"sim", "driver"},
}
# Beside module.c, for what knows Python: the module's state, and the differences between versions.
GROUND = {
    "state.h": {"pinned", "arrays", "contexts", "python", "ladder"},
    "compat.h": {"contexts", "arrays", "python", "elf"},
}
# What the other folders may include of a folder. Every header of those that are not named.
DOORS = {
    "engine": {"engine/engine.h", "engine/layout.h", "engine/tuning.h"},
    "hostmem": {"hostmem/hostmem.h"},
    "ladder": {"ladder/ladder.h"},
    "elf": set(),
    "sim": {"sim/sim.h", "sim/pool.h"},
    "sim/others": set(),
}
MODULES_MOST = 20  # in a folder; a .c and its .h are one

# A part of the package: the parts that it may import, at any place in its code.
PARTS = {
    "errors": set(),
    "_core": {"errors", "memory"},  # its stub names types of Python
    "_regular": set(),
    "stack": {"_elf", "_regular", "_version"},
    "ladder": {"__init__", "_core", "memory", "errors"},
    "fleet": {"_version", "stack"},
    "cli": {"__init__", "fleet", "ladder", "stack", "_elf", "errors"},
    "testing": {"__init__", "stack", "errors"},
    "memory": {"_core", "errors"},
    "typing": {"_core", "memory"},
    "weights": {"_core", "memory", "_regular"},
    "pytest_plugin": {"testing"},
    "conda_plugin": {"stack"},
    "rapids_plugin": {"stack"},
}

# A room of stack/ and the rooms that it may import. Its files outside of rooms are of the ground,
# which every room may use and which uses none, or they lie above all rooms.
ROOMS: dict[str, set[str]] = {
    "roots": set(),
    "elf": {"roots"},
    "loader": {"roots", "elf"},
    "machine": {"roots", "elf", "loader"},
    "environment": {"roots", "elf", "loader"},
    "load": {"roots", "elf", "loader", "machine", "environment"},
    "integrity": {"roots", "elf", "loader", "machine", "environment", "load"},
    # A rule takes its fixes from fixes/; a new environment is made as `cudriver plan` has it.
    "fixes": {"roots", "environment", "load", "planning"},
    "rules": {"roots", "machine", "environment", "load", "fixes"},
    "report": {"load", "fixes", "rules", "rulebook"},
}
STACK_GROUND = {
    "command",
    "evidence",
    "facts",
    "machine_facts",
    "names",
    "record",
    "say",
    "tables",
    "text",
    "versions",
}

# What annotations name, and nothing else: no part imports it at run time, so it may lie above all.
TYPES = "cudriver.typing"

FILES = {str(p.relative_to(CEXT)): p for p in sorted(CEXT.rglob("*.[ch]"))}


def folder(name: str) -> str:
    return str(Path(name).parent)


def includes(name: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"](.+?)[>"]', FILES[name].read_text(), re.M)


def own(name: str) -> set[str]:
    """The headers of cext/ that a file includes, as paths below it."""
    beside = {str(Path(name).parent / header) for header in includes(name)}
    return (beside | {*includes(name)}) & {*FILES}


def allowed(name: str, header: str) -> bool:
    here, there = folder(name), folder(header)
    if there == ".":
        return here == "." or here in GROUND[header]
    return there == here or (there in FOLDERS[here] and header in DOORS.get(there, {header}))


def test_every_folder_of_the_core_has_its_place() -> None:
    assert {folder(name) for name in FILES} == {*FOLDERS}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_the_core_is_small(name: str) -> None:
    modules = [file for file in FILES if folder(file) == name and file.endswith(".c")]
    assert len(modules) <= MODULES_MOST, modules


# A line of a path that README.md draws: a file, its function, and one that this calls.
DRAWN = re.compile(r"(\w+)/(\w+\.(c|py))\s+(\w+)(?: -> (\w+))?")


def drawn(readme: Path, package: Path = PACKAGE) -> Iterator[tuple[Path, str]]:
    """The functions of the paths, and the files where they are said to be."""
    for block in re.findall(r"^```\n(.*?)^```", readme.read_text(), re.M | re.S):
        for line in block.splitlines():
            if found := DRAWN.match(line):
                folder, name, kind, *functions = found.groups()
                path = (package if kind == "py" else CEXT) / folder / name
                yield from ((path, function) for function in functions if function)


def test_the_paths_in_the_readme_are_those_of_the_code() -> None:
    paths = [*drawn(CEXT / "README.md")]
    assert len(paths) > 60
    check = [*drawn(PACKAGE / "stack" / "README.md", PACKAGE / "stack")]
    assert len(check) > 6
    assert [
        f"{path.name} has no {function}"
        for path, function in [*paths, *check]
        if not re.search(rf"\b{function}\(", path.read_text())
    ] == []


def test_what_the_readme_of_the_stack_names_is_there() -> None:
    """Each file, and each function or table "of" or "in" one."""
    text = (PACKAGE / "stack" / "README.md").read_text()
    text = text.replace("CU999", "CU101").replace("`cu999`", "`cu101`")
    files = re.findall(r"`([\w/]+(?:\.(?:py|json|md)|/))`", text)
    assert len(files) > 40
    tops = (PACKAGE / "stack", ROOT)
    assert [f for f in files if "/" in f and not any((top / f).exists() for top in tops)] == []
    named = re.findall(r"`(\w+)`(?: and `(\w+)`)?(?: or `(\w+)`)? (?:of|in) `([\w/]+\.\w+)`", text)
    assert len(named) > 10
    for *names, file in named:
        code = (PACKAGE / "stack" / file).read_text()
        assert [name for name in filter(None, names) if not re.search(rf"\b{name}\b", code)] == []


def test_c_includes_look_downward() -> None:
    assert [(name, h) for name in FILES for h in own(name) if not allowed(name, h)] == []


def test_c_includes_keep_to_their_doors() -> None:
    wrong = []
    for name in FILES:
        wrong += [f"{name} includes {h}" for h in includes(name) if h.endswith(".c")]
        if name not in ("compat.h", "elf/python.h"):
            wrong += [f"{name} includes {h}" for h in includes(name) if h == "Python.h"]
        if name != "python/numpy_api.h":
            wrong += [f"{name} includes {h}" for h in includes(name) if h.startswith("numpy/")]
        if name not in ("python/numpy_bridge.c", "pinned/pinned_numpy.c"):
            wrong += [f"{name} includes {h}" for h in includes(name) if h.endswith("numpy_api.h")]
    assert wrong == []


def code(name: str) -> str:
    """A file without its comments and literals."""
    literal = r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])+'"
    return re.sub(rf"/\*.*?\*/|//[^\n]*|{literal}", " ", FILES[name].read_text(), flags=re.S)


def defines(text: str) -> Iterator[str]:
    """The functions and variables of a C file that others can name."""
    hidden = r"static|extern|typedef|_Static_assert|CUDRIVER_IN_PYTHON|#"
    for part in re.finditer(rf"^(?!{hidden})\w[^;{{}}=#]*([;{{=])", text, re.M):
        function = re.search(r"(\w+)\s*\(", part[0])
        variable = re.search(r"(\w+)\s*(?:\[[^]]*\]\s*)*[;=]$", part[0])
        if part[1] == "{" and function is not None:
            yield function[1]
        elif part[1] != "{" and function is None and variable is not None:
            yield variable[1]


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Sets of nodes that reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            new = edges[ahead.pop()] - seen
            seen |= new
            ahead += new
        return seen

    reach = {node: reached(node) for node in edges}
    found: Iterable[frozenset[str]] = {
        frozenset(other for other in reach[node] if node in reach[other]) for node in edges
    }
    return sorted((set(circle) for circle in found if circle), key=min)


def test_c_headers_have_no_circle() -> None:
    headers = {name: own(name) for name in FILES if name.endswith(".h")}
    assert circles(headers) == []


def uses_among(names: Iterable[str]) -> dict[str, set[str]]:
    """For each of these files the others that it takes functions and variables from."""
    texts = {name: code(name) for name in names}
    home = {symbol: name for name, text in texts.items() for symbol in defines(text)}
    return {
        name: {home[word] for word in re.findall(r"\w+", text) if word in home} - {name}
        for name, text in texts.items()
    }


@pytest.fixture(scope="module")
def uses() -> dict[str, set[str]]:
    """Those of the extensions, and of the simulated driver, which defines what they declare."""
    sources = [name for name in FILES if name.endswith(".c")]
    found = uses_among(name for name in sources if not name.startswith("sim/"))
    assert "driver/driver.c" in found["engine/execute.c"]
    found |= uses_among(name for name in sources if name.startswith("sim/"))
    assert "sim/state.c" in found["sim/capture.c"]
    return found


def test_c_files_use_what_is_below(uses: dict[str, set[str]]) -> None:
    for name, others in uses.items():
        assert {folder(other) for other in others} <= FOLDERS[folder(name)] | {folder(name)}, name


def test_c_files_have_no_circle(uses: dict[str, set[str]]) -> None:
    assert circles(uses) == []


def modules(top: Path) -> dict[str, Path]:
    """The Python modules below a package's folder, by name; a C module by its stub."""
    found = {}
    for path in [*top.rglob("*.py"), *top.rglob("*.pyi")]:
        parts = [top.name, *path.relative_to(top).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, known: dict[str, Path]) -> set[str]:
    """The modules of its own package that a module imports, anywhere, for types alone too."""
    package = name.split(".") if known[name].stem == "__init__" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(known[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {imported.name for imported in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from cudriver import stack` imports a module, `from cudriver import Device` a name.
            inner = {f"{base}.{n.name}" for n in node.names}
            found |= {module if module in known else base for module in inner}
    return (found & {*known}) - {name, TYPES}


@pytest.mark.parametrize("part", PARTS)
def test_python_imports_look_downward(part: str) -> None:
    known = modules(PACKAGE)
    wrong = []
    for name in known:
        if name.split(".")[1:2] != [part]:
            continue
        for other in sorted(imports(name, known)):
            there = other.split(".")[1] if "." in other else "__init__"
            wrong += [] if there in PARTS[part] | {part} else [f"{name} imports {other}"]
    assert wrong == []


def room(module: str) -> str:
    return module.removeprefix("cudriver.stack").removeprefix(".").partition(".")[0] or "__init__"


def test_every_folder_of_the_stack_is_a_room_of_its_readme() -> None:
    folders = {p.parent.name for p in (PACKAGE / "stack").glob("*/__init__.py")}
    assert folders == {*ROOMS, "planning"}
    told = re.findall(r"^\| `(\w+)/` \|", (PACKAGE / "stack" / "README.md").read_text(), re.M)
    assert sorted(told) == sorted(ROOMS)
    assert [
        n for n in told for below in ROOMS[n] & {*ROOMS} if told.index(below) > told.index(n)
    ] == []


def test_rooms_of_the_stack_look_downward() -> None:
    known = modules(PACKAGE)
    wrong = []
    for name in known:
        if name.startswith("cudriver.stack.") and (here := room(name)) in {*ROOMS, *STACK_GROUND}:
            below = STACK_GROUND | ROOMS.get(here, set()) | {here}
            others = {other for other in imports(name, known) if other.startswith("cudriver.stack")}
            wrong += [f"{name} imports {o}" for o in sorted(others) if room(o) not in below]
    assert wrong == []


def test_few_functions_of_the_stack_take_what_an_asked_has() -> None:
    """What is asked for is parsed once; a function that takes its parts apart knows too much."""
    parts = {"root", "env", "owners", "problems", "machine", "prefix", "environ"}
    found = []
    for path in (PACKAGE / "stack").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                taken = {a.arg for a in (*node.args.args, *node.args.kwonlyargs)} & parts
                found += [f"{path.name}: {node.name} {taken}"] * (len(taken) > 1)
    assert len(found) <= 11, found


@pytest.mark.parametrize("top", [PACKAGE, ROOT / "benchmarks"], ids=lambda top: str(top.name))
def test_python_modules_have_no_circle(top: Path) -> None:
    """A stub of C may name types of the Python that lies above it."""
    known = modules(top)
    code = [name for name in known if known[name].suffix == ".py"]
    assert circles({name: imports(name, known) & {*code} for name in code}) == []


def test_nothing_imports_the_types_of_annotations_at_run_time() -> None:
    for name, path in modules(PACKAGE).items():
        if path.suffix == ".py" and f"from {TYPES} import" in (text := path.read_text()):
            checked = re.search(r"^if TYPE_CHECKING:.*\n((?: +.*\n|\n)+)", text, re.MULTILINE)
            assert checked is not None, name
            assert text.count(TYPES) == checked[1].count(TYPES), name


def test_every_folder_of_the_package_has_its_part() -> None:
    folders = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    assert folders <= set(PARTS)


def test_every_file_of_tests_has_a_name_of_its_own() -> None:
    """pytest imports each by its name alone; processes that take a folder each would not see it."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
