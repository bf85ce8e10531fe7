"""Whether imports reach a file that is not as its package brought it, by the packages' sources.

Read only where there is such a file. What counts runs whatever happens: the statements of a
module's own level, those of functions, of unknown conditions and of a `try` that survives left out.
"""

from __future__ import annotations

import ast
import heapq
import re
import sys

from cudriver.stack.collect.records import whole
from cudriver.stack.elfbits import ElfBits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudriver.stack.model import Environment, FileFault, Framework
    from cudriver.stack.rootfs import Root

MODULES = 600  # that are read; PyTorch's import reads 1,500, those nearest to the files first
SOURCE_LIMIT = 2 << 20  # bytes of one
_NUMPY = (b"numpy._core._multiarray_umath", b"numpy.core._multiarray_umath")
_DOTTED = re.compile(rb"(?<=\0)[A-Za-z_]\w*(?:\.\w+)+(?=\0)")
_CAUGHT = frozenset(("ImportError", "ModuleNotFoundError", "Exception", "BaseException"))
_FALSE = frozenset(("TYPE_CHECKING", "__NUMPY_SETUP__"))


class Place:
    """Where Python finds a module."""

    __slots__ = ("fault", "package", "path")

    def __init__(self, path: str, package: bool, fault: FileFault | None) -> None:
        self.path: str = path
        self.package: bool = package
        self.fault: FileFault | None = fault


class Reach:
    """Follows imports from those of the frameworks, and marks the faults that they meet."""

    def __init__(self, root: Root, env: Environment, faults: list[FileFault]) -> None:
        self.root = root
        self.site_packages: list[str] = env.site_packages
        digits = (env.python or "").split(".")[:2]
        self.version: tuple[int, ...] = (
            tuple(map(int, digits)) if all(map(str.isdecimal, digits)) else ()
        )
        own = f".cpython-{''.join(digits)}-{env.platform}-linux-gnu.so"
        self.endings: tuple[str, ...] = (own, ".abi3.so", ".so", ".py")
        self.faults: dict[str, FileFault] = {fault.file: fault for fault in faults}
        self.libraries: list[tuple[Framework, str]] = []  # extension modules that imports reach
        self._near = self._prefixes()
        self._places: dict[str, Place | None] = {}
        self._trees: dict[str, ast.Module | None] = {}
        self._bodies: dict[str, list[ast.stmt]] = {}  # by module, the imports that run
        self._compiled: dict[str, list[str]] = {}  # by extension module, what it imports
        self._unreadable: dict[str, str] = {}  # by file, what Python says of its source
        self._seen: set[str] = set()
        self.met: list[FileFault] = []  # in the order in which the imports meet them

    def _prefixes(self) -> set[str]:
        """The dotted names of the packages that the files lie in."""
        found: set[str] = set()
        for path in self.faults:
            for site in self.site_packages:
                if path.startswith(f"{site}/"):
                    parts = path[len(site) + 1 :].split("/")
                    parts[-1] = parts[-1].partition(".")[0]
                    parts[0] = parts[0].removesuffix(".libs")
                    found.update(".".join(parts[:n]) for n in range(1, len(parts) + 1))
        return found

    def run(self, frameworks: list[Framework]) -> None:
        """Marks each fault that the import of one of the frameworks meets."""
        roots = [f for f in frameworks if f.modelled and not f.fails and f.blocked is None]
        self._look([framework.module for framework in roots])
        for self._framework in roots:
            try:
                self._import(self._framework.module)
            except RecursionError:
                return  # what is made of that many modules is not looked at further

    def _look(self, modules: list[str]) -> None:
        """Reads modules, from these on, those nearest to the files first."""
        queue: list[tuple[int, int, str]] = []
        known: set[str] = set()

        def add(module: str) -> None:
            parts = module.split(".")
            for name in (".".join(parts[:n]) for n in range(1, len(parts) + 1)):
                if name not in known and self._place(name) is not None:
                    known.add(name)
                    heapq.heappush(queue, (-self._nearness(name), len(known), name))

        for module in modules:
            add(module)
        while queue and len(self._bodies) < MODULES:
            name = heapq.heappop(queue)[2]
            place = self._place(name)
            if place is not None and place.path.endswith(".so"):
                self._compiled[name] = [n for n in self._imported_by(place.path) if self._place(n)]
                for other in self._compiled[name]:
                    add(other)
            tree = self._tree(place) if place and place.path.endswith(".py") else None
            if place is None or tree is None:
                continue
            self._bodies[name] = list(running(tree.body, self.version))
            for statement in self._bodies[name]:
                if isinstance(statement, ast.Import):
                    for alias in statement.names:
                        add(alias.name)
                elif isinstance(statement, ast.ImportFrom):
                    module = _module(name, place.package, statement)
                    for alias in statement.names:
                        add(f"{module}.{alias.name}")

    def _imported_by(self, path: str) -> list[str]:
        """The modules that an extension module imports when it is imported: NumPy's core, where it
        is compiled with NumPy's C interface, and those whose C interface Cython binds.
        """
        try:
            with ElfBits(self.root.open(path)) as file:
                data = file.section(".rodata", SOURCE_LIMIT * 8) or b""
        except (OSError, ValueError):
            return []
        found = [name for name in _NUMPY if b"\0%s\0" % name in data]
        if b"__pyx_capi__\0" in data:
            found += _DOTTED.findall(data)
        return [name.decode() for name in dict.fromkeys(found)]

    def _nearness(self, name: str) -> int:
        """How many parts of a module's name are those of a package with such a file."""
        while name and name not in self._near:
            name = name.rpartition(".")[0]
        return len(name.split(".")) if name else 0

    def _place(self, name: str) -> Place | None:
        """The module's file: one that is there, else one that should be."""
        if name not in self._places:
            path = name.replace(".", "/")
            candidates = [
                (f"{site}/{path}{middle}", f"{site}/{path}{middle}{ending}", bool(middle))
                for site in self.site_packages
                for middle in ("/__init__", "")
                for ending in self.endings
            ]
            found = None
            for there in (True, False):
                for _, file, package in candidates if found is None else ():
                    fault = self.faults.get(file)
                    if there:
                        folder, _, base = file.rpartition("/")
                        hit = base in self.root.names(folder) if self._folder(folder) else False
                    else:
                        hit = fault is not None and fault.what == "missing"
                    if hit:
                        found = Place(file, package, fault)
                        break
            self._places[name] = found
        return self._places[name]

    def _folder(self, folder: str) -> bool:
        """Whether a folder is there, by what its own folder lists."""
        if folder in self.site_packages:
            return True
        above, _, name = folder.rpartition("/")
        return name in self.root.names(above)

    def _import(self, name: str) -> bool:
        """`import a.b.c`: each of the three. Whether they are there."""
        parts = name.split(".")
        for number in range(1, len(parts) + 1):
            part = ".".join(parts[:number])
            place = self._place(part)
            if place is None or part in self._seen:
                continue
            fault = place.fault
            if fault is not None and fault.what == "missing" and not self._namespace(place):
                self._meet(fault, f"No module named '{part}'")
                return False
            self._seen.add(part)
            self._execute(part, place)
        return True

    def _execute(self, name: str, place: Place) -> None:
        if place.path.endswith(".so") and self._nearness(name):
            self.libraries.append((self._framework, place.path))
            damaged = place.fault is not None and place.fault.what in ("size", "hash")
            if place.fault is not None and damaged and not whole(self.root, place.path):
                self._meet(place.fault, "")
        if place.fault is not None and place.path in self._unreadable:
            self._meet(place.fault, self._unreadable[place.path])
        for module in self._compiled.get(name, ()):
            self._import(module)
        for statement in self._bodies.get(name, ()):
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    self._import(alias.name)
            elif isinstance(statement, ast.ImportFrom):
                module = _module(name, place.package, statement)
                source = self._place(module) if module and self._import(module) else None
                if source is not None:
                    for alias in statement.names:
                        self._from(module, source, alias.name)

    def _meet(self, fault: FileFault, says: str) -> None:
        """Keeps what the first import that meets it says."""
        if fault.framework is None:
            fault.framework, fault.says = self._framework.name, says
            self.met.append(fault)

    def _namespace(self, place: Place) -> bool:
        """Whether the folder of a package without its __init__.py is there, or a folder of an
        extension module's name: Python takes either for a package of nothing.
        """
        folder = place.path.rpartition("/")[0]
        if not place.package:
            folder = f"{folder}/{place.path.rpartition('/')[2].partition('.')[0]}"
        return self._folder(folder) and bool(self.root.names(folder))

    def _from(self, module: str, source: Place, name: str) -> None:
        """`from module import name`"""
        place = self._place(f"{module}.{name}") if name != "*" else None
        fault = place.fault if place is not None else source.fault
        if place is None:
            empty = fault is not None and fault.what == "size" and source.path.endswith(".py")
            nothing = fault is not None and (fault.what == "missing" or empty)
            if fault is not None and nothing and name != "*" and name[:2] != "__":
                self._meet(fault, f"cannot import name '{name}' from '{module}'")
        elif not self._binds(module, source, name):
            if fault is not None and fault.what == "missing" and not self._namespace(place):
                self._meet(fault, f"cannot import name '{name}' from")
            else:
                self._import(f"{module}.{name}")

    def _binds(self, module: str, source: Place, name: str) -> bool:
        """Whether a package's own source may give that name a value other than its submodule."""
        tree = self._tree(source) if source.path.endswith(".py") else None
        left: list[ast.AST] = [tree] if tree else []
        while left:
            node = left.pop()
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
                if getattr(node, "name", "") == name:
                    return True
                continue
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                return True
            # `from . import name` and `from package import name` take the submodule.
            if isinstance(node, ast.ImportFrom) and node.module not in (None, module):
                bound = {alias.asname or alias.name for alias in node.names}
                if name in bound:
                    return True
            left += ast.iter_child_nodes(node)
        return False

    def _tree(self, place: Place) -> ast.Module | None:
        """A module's source; None where it cannot be read, or has no statements."""
        if place.path not in self._trees:
            tree = None
            try:
                source = self.root.read(place.path, SOURCE_LIMIT)
                if b"\0" in source:
                    self._unreadable[place.path] = "source code string cannot contain null bytes"
                tree = ast.parse(source)
            except SyntaxError as error:
                # The words and the grammar are those of the Python that runs this.
                if self.version == sys.version_info[:2]:
                    self._unreadable[place.path] = error.msg
            except (OSError, ValueError, RecursionError, MemoryError):
                pass
            self._trees[place.path] = tree
        return self._trees[place.path]


def _module(name: str, package: bool, statement: ast.ImportFrom) -> str:
    """The module that a `from` names, which may be relative to the one that says it."""
    parts = name.split(".") if statement.level else []
    if statement.level and len(parts) + package < statement.level:
        return ""
    parts = parts[: len(parts) - statement.level + package] if statement.level else []
    return ".".join([*parts, *filter(None, [statement.module])])


def running(body: list[ast.stmt], version: tuple[int, ...]) -> Iterator[ast.stmt]:
    """The imports among statements that run whatever happens, and whose failure nobody catches."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If):
            known = decided(node.test, version)
            if known is not None:
                yield from running(node.body if known else node.orelse, version)
        elif isinstance(node, ast.Try):
            if all(map(_goes_on_raising, node.handlers)):
                yield from running(node.body, version)
            yield from running(node.finalbody, version)
        elif isinstance(node, ast.With):
            if not any("suppress" in ast.dump(item.context_expr) for item in node.items):
                yield from running(node.body, version)
        elif isinstance(node, ast.ClassDef):
            yield from running(node.body, version)
        elif isinstance(node, ast.Raise):
            return


def _goes_on_raising(handler: ast.ExceptHandler) -> bool:
    """Whether a handler ends in an exception, or is for others than an import's."""
    if isinstance(handler.body[-1], ast.Raise):
        return True
    if handler.type is None:
        return False
    names = {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)}
    return bool(names) and not names & (_CAUGHT | {"OSError"}) and names <= _BUILTIN_ERRORS


_BUILTIN_ERRORS = frozenset(("NameError", "AttributeError", "KeyError", "ValueError", "TypeError"))


def decided(test: ast.expr, version: tuple[int, ...]) -> bool | None:
    """Whether a condition holds on Linux in that Python; None where that is not known."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = decided(test.operand, version)
        return None if inner is None else not inner
    name = test.id if isinstance(test, ast.Name) else getattr(test, "attr", "")
    if name in _FALSE:
        return False
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = ast.unparse(test.left), test.comparators[0]
        operator = type(test.ops[0]).__name__
        try:
            value = ast.literal_eval(right)
        except ValueError:
            return None
        if left == "sys.platform" and operator in ("Eq", "NotEq"):
            return bool((value == "linux") == (operator == "Eq"))
        plain = isinstance(value, tuple) and all(isinstance(each, int) for each in value)
        if left == "sys.version_info" and plain and version and len(value) < 3:
            return {"GtE": version >= value, "Lt": version < value}.get(operator)
    return None
