"""What the sources of modules say. Nothing is run."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import zlib
from collections.abc import Collection, Iterator

from cudriver.stack.collect.places import Place, Places
from cudriver.stack.collect.running import decided
from cudriver.stack.collect.sources import (
    bindings,
    bound_anywhere,
    bound_names,
    called,
    ends_too_early,
    from_module,
    joined_texts,
    last_name,
    statements,
)
from cudriver.stack.elfbits import ElfBits
from cudriver.stack.model import Environment, FileFault
from cudriver.stack.rootfs import Root

PARSED_LIMIT = 96 << 20  # bytes of all sources: what is beyond is not followed
HELD_LIMIT = 8 << 20  # bytes of sources whose trees are kept: those take a hundred times as much
STRINGS_LIMIT = 16 << 20  # bytes of an extension module's read-only data
STREAMS = 64  # compressed texts of one extension module
_DYNAMIC = re.compile(
    rb"\bglobals\(\)|\bsys\.modules\[__name__|^[ \t]*(?:exec\((?!\w[\w.]*,)|(?:vars|locals)\()"
    rb"|lazy_loader",
    re.MULTILINE,
)
# What Python 3.12 added to the grammar of types.
_TYPE_PARAMETERS = re.compile(
    rb"^([ \t]*(?:class|type|(?:async )?def) \w+)\[(?:[^][\n]|\[[^][\n]*\])*\]", re.MULTILINE
)
_TYPE_ALIAS = re.compile(rb"^([ \t]*)type (\w+ = )", re.MULTILINE)  # evaluated when asked for

_GLOBAL = re.compile(rb"^[ \t]+global[ \t]+([\w, ]+)", re.MULTILINE)

OWN = frozenset(  # names that every module has
    (
        *("__builtins__", "__cached__", "__file__", "__loader__", "__name__"),
        *("__package__", "__path__", "__spec__", *dir(type(re))),
    )
)


class Modules(Places):
    """Finds modules, and reads their sources."""

    def __init__(self, root: Root, env: Environment, faults: Collection[FileFault]) -> None:
        """faults: files that are not as their packages brought them."""
        super().__init__(root, env, faults)
        self.known: dict[str, bool] = {"TYPE_CHECKING": False, "__NUMPY_SETUP__": False}
        self._trees: dict[str, ast.Module | None] = {}
        self._parsed = self._held = 0  # bytes of sources
        self._broken: dict[str, str] = {}
        self._dynamic: dict[str, bool] = {}
        self._anywhere: dict[str, frozenset[str]] = {}  # by file, names that it binds
        self._every: dict[str, set[str]] = {}
        self._stars: dict[str, list[str]] = {}
        self._bound: dict[tuple[str, str], dict[str, list[int]] | None] = {}

    def says(self, fault: FileFault) -> str:
        """What Python says of the import of a module that is gone, or that it cannot compile, or of
        the use of a package whose first file is gone or empty; "" where that is not known.
        """
        name = self.name(fault.file)
        package = name.removesuffix(".__init__")
        place = self.find(package) if name else None
        if place is None:
            return ""
        if package != name and "." not in package and (not place.path or fault.what == "size"):
            return f"module '{package}' has no attribute"
        if place.path != fault.file or not place.path.endswith((".py", *self.endings[:-3])):
            return ""  # a library that is no extension module
        return f"No module named '{package}'" if place.gone else self.broken(place) or ""

    def tree(self, place: Place) -> ast.Module | None:
        """A module's source; None where it cannot be read, or is none."""
        if place.path not in self._trees:
            tree = self._trees[place.path] = self._parse(place) if place.source else None
            if tree is not None and place.fault is not None:
                self._note_cut(place, tree)
            return tree
        return self._trees[place.path]

    def body(self, place: Place | None) -> list[ast.stmt]:
        """The statements of a module's source; none where it cannot be read."""
        tree = self.tree(place) if place is not None else None
        return tree.body if tree is not None else []

    def _note_cut(self, place: Place, tree: ast.Module) -> None:
        """Notes what Python says of a source that was cut and still compiles."""
        cut = last_name(tree)
        unknown = cut and self.nowhere(cut, place, tree)
        says = f"name '{cut}' is not defined" if unknown else self._cut_import(place, tree)
        if says:
            self._broken[place.path] = says

    def _parse(self, place: Place) -> ast.Module | None:
        source = self.text(place)
        if not source and self.root.size(place.path):
            return None  # it cannot be read, or is too large
        self._parsed += len(source)
        self._held += len(source)
        if self._parsed > PARSED_LIMIT:
            return None
        if self._held > HELD_LIMIT:
            self._trees.clear()
            self._held = len(source)
        try:
            if b"\0" in source:
                self._broken[place.path] = "source code string cannot contain null bytes"
                return None
            return self._compile(source)
        except SyntaxError as error:
            # The words and the grammar are those of the Python that runs this: another one knows
            # more, or less. But where a source ends too early, none takes it.
            here = sys.version_info[:2]
            last = (error.lineno or 0) > source.rstrip().count(b"\n")
            if (
                self.version == here
                or (self.version and self.version < here and last)
                or ends_too_early(source, error)
                or (last and _is_cut(place.fault, source))
            ):
                self._broken[place.path] = error.msg
        except (ValueError, RecursionError, MemoryError):
            pass
        return None

    def _compile(self, source: bytes) -> ast.Module:
        try:
            return ast.parse(source)
        except SyntaxError:
            if self.version <= sys.version_info[:2]:
                raise
        return ast.parse(_TYPE_ALIAS.sub(rb"\1\2lambda: ", _TYPE_PARAMETERS.sub(rb"\1", source)))

    def _cut_import(self, place: Place, tree: ast.Module) -> str:
        """What Python says of a source that was cut within a name which it imports."""
        last = tree.body[-1] if tree.body and self.version else None
        if not isinstance(last, (ast.Import, ast.ImportFrom)) or not _is_cut(
            place.fault, self.text(place)
        ):
            return ""
        name = last.names[-1].name
        if isinstance(last, ast.Import):
            top = name.partition(".")[0]
            known = top in sys.stdlib_module_names or self.find(top) is not None
            return "" if known or self.elsewhere(top) else f"No module named '{top}'"
        module = self._from(place, last)
        source = self.find(module)
        if source is None or not source.source or self.find(f"{module}.{name}") is not None:
            return ""
        bound = re.search(rb"\b%s\b|import \*" % re.escape(name).encode(), self.text(source))
        return "" if bound else f"cannot import name '{name}' from"

    def _from(self, place: Place, statement: ast.ImportFrom) -> str:
        """The module that a `from` of a source names."""
        package = place.path.endswith("/__init__.py")
        return from_module(self.name(place.path).removesuffix(".__init__"), package, statement)

    def nowhere(self, name: str, place: Place, tree: ast.Module) -> bool:
        """Whether nothing gives a name of a source a value: nor what it imports all names of."""
        if place.path not in self._anywhere:
            self._anywhere[place.path] = frozenset(bound_anywhere(tree))
        if name in self._anywhere[place.path] or name in OWN or hasattr(builtins, name):
            return False
        sources = [(module, self.find(module)) for module in self.stars(place)]
        return not self._is_dynamic(place) and all(
            source is not None
            and source.source
            and not self.binds(source, name)
            and self.find(f"{module}.{name}") is None
            for module, source in sources
        )

    def broken(self, place: Place) -> str | None:
        """What Python says of a source that it cannot compile."""
        self.tree(place)
        return self._broken.get(place.path)

    def decide(self, test: ast.expr) -> bool | None:
        """Whether a condition of a source holds; None where that is not known."""
        return decided(test, self.version, self.known)

    def binds(self, place: Place, name: str, above: frozenset[str] = frozenset()) -> bool:
        """Whether a module's source may give that name a value, if by taking all from another."""
        if name in OWN:
            return True
        bound = self._bound_in(place, "")
        if bound is None or place.gone:
            return True
        if "*" not in bound or self._is_dynamic(place) or name in bound:
            return self._is_dynamic(place) or name in bound
        return any(self._may_bring(each, name, above | {place.path}) for each in self.stars(place))

    def stars(self, place: Place) -> list[str]:
        """The modules from which one takes all."""
        if "*" not in (self._bound_in(place, "") or ()):
            return []
        if place.path not in self._stars:
            nodes = statements(self.body(place))
            froms = (node for node in nodes if isinstance(node, ast.ImportFrom))
            self._stars[place.path] = [
                self._from(place, node) for node in froms if node.names[0].name == "*"
            ]
        return self._stars[place.path]

    def _may_bring(self, module: str, name: str, above: frozenset[str]) -> bool:
        """Whether all that is taken from a module may have a name."""
        place = self.find(module)
        if place is None:
            return not self.plain(module.rpartition(".")[0])
        return place.path not in above and (not place.source or self.binds(place, name, above))

    def only_in(self, place: Place, name: str, lines: range) -> bool:
        """Whether a module's source gives the name a value, and in these lines alone."""
        bound = self._bound_in(place, "") or {}
        if name not in bound or self._is_dynamic(place):
            return False
        return all(line in lines for line in bound[name] + bound.get("*", []))

    def set_later(self, place: Place) -> list[str]:
        """The names of a module that its functions set."""
        found = _GLOBAL.findall(self.text(place))
        return [name for names in found for name in names.decode().replace(" ", "").split(",")]

    def _is_dynamic(self, place: Place) -> bool:
        """Whether a source may bind names that do not stand in it."""
        if place.path not in self._dynamic:
            bound, text = self._bound_in(place, "") or (), self.text(place)
            self._dynamic[place.path] = "__getattr__" in bound or bool(_DYNAMIC.search(text))
        return self._dynamic[place.path]

    def submodule_only(self, module: str, place: Place, name: str) -> bool:
        """Whether nothing in a package's own source gives the name another value than its submodule
        of that name.
        """
        bound = self._bound_in(place, module)
        return bound is None or name not in bound

    def handles(self, place: Place, name: str) -> bool:
        """Whether a package's own source gives the name a value where an import has failed."""
        nodes = statements(self.body(place))
        handlers = (node for node in nodes if isinstance(node, ast.ExceptHandler))
        return any(name in bound_names(each.body, "") for each in handlers)

    def brings(self, place: Place, name: str) -> bool:
        """Whether an attribute of a package is a submodule, which its __getattr__ imports."""
        bound = self._bound_in(place, "")
        return bound is not None and "__getattr__" in bound and bound.keys().isdisjoint((name, "*"))

    def lazily(self, module: str, place: Place, name: str) -> str | None:
        """The submodule that a package's __getattr__ imports for a name, by a table of its source:
        {"name": (..., ".module")}, or attach("package", ["name"]).
        """
        body = self.body(place) if self.brings(place, name) else []
        for node in statements(body):
            call = called(node) if isinstance(node, ast.Assign) else None
            if call is not None and len(call.args) == 2 and "attach" in ast.unparse(call.func):
                package, names = (ast.walk(each) for each in call.args)
                within = next(
                    (str(e.value) for e in package if isinstance(e, ast.Constant)), module
                )
                if name in (each.value for each in names if isinstance(each, ast.Constant)):
                    return f"{within}.{name}"
        if not body or b"import_module(" not in self.text(place):
            return None
        for node in body:
            value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
            pairs = (
                zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
            )
            for key, said in pairs:
                if isinstance(key, ast.Constant) and key.value == name:
                    for each in said.elts if isinstance(said, ast.Tuple) else [said]:
                        text = each.value if isinstance(each, ast.Constant) else None
                        if isinstance(text, str) and self.find(f"{module}.{text.lstrip('.')}"):
                            return f"{module}.{text.lstrip('.')}"
        return None

    def every(self, place: Place) -> set[str]:
        """The names that stand in what a module's __all__ is made of: those that it lists, and
        those of sets that are joined with it.
        """
        if place.path not in self._every:
            values: dict[str, ast.expr] = {}
            for node in statements(self.body(place)):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    values.setdefault(node.targets[0].id, node.value)
            self._every[place.path] = set(joined_texts(values, "__all__"))
        return self._every[place.path]

    def _bound_in(self, place: Place, module: str) -> dict[str, list[int]] | None:
        """The names that a source may give a value, each with the lines that do; None where it
        cannot be parsed. Kept: trees are not.
        """
        key = place.path, module
        if key not in self._bound:
            found: dict[str, list[int]] = {}
            for name, line in bindings(self.body(place), module):
                found.setdefault(name, []).append(line)
            self._bound[key] = None if self.tree(place) is None else found
        return self._bound[key]

    # ---- extension modules ----

    def strings(self, path: str) -> bytes:
        """The texts in an extension module: what it is compiled with, those that Cython compressed
        last.
        """
        with ElfBits(self.root, path) as file:
            data = file.section(".rodata", STRINGS_LIMIT) or b""
        self.root.take(len(data))
        return data + b"\0" + b"\0".join(_inflated(data)) if b"cython_runtime" in data else data


def _is_cut(fault: FileFault | None, source: bytes) -> bool:
    """Whether a source is shorter than the line of RECORD that is a fault's evidence says."""
    stated = fault.evidence.value.rpartition(",")[2] if fault is not None else ""
    return stated.isdecimal() and len(source) < int(stated)


def _inflated(data: bytes) -> Iterator[bytes]:
    """The zlib streams in some bytes."""
    tried = 0
    for match in re.finditer(rb"x[\x01\x5e\x9c\xda]", data):
        try:
            text = zlib.decompressobj().decompress(data[match.start() :], 1 << 20)
        except zlib.error:
            continue
        if len(text) > 64:
            yield text
            tried += 1
        if tried == STREAMS:
            return
