"""Where an environment's Python finds modules."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from struct import error as StructError

from cudriver.stack.glibc import MACHINES
from cudriver.stack.model import Environment, FileFault
from cudriver.stack.rootfs import Root

SOURCE_LIMIT = 2 << 20  # bytes of one
_MOVED = re.compile(rb"__path__|\b(?:globals|vars)\(\)\.update\(")
_JOINS = re.compile(  # a package that adds folders of its name to its own
    rb"__path__ *\+?[=[]|__path__\.\w+\(|declare_namespace"
)
_MAKES = re.compile(  # what makes modules that no folder has
    rb"sys\.modules(?!\[__name__\](?!\s*=))|from sys import|meta_path|extend_path"
    rb"|(?:^|[^.\w])__path__(?: *\+?=|\.\w+\()",
    re.MULTILINE,
)
_SINCE_3_12 = frozenset(("annotationlib", "compression", "profiling"))  # of Python's own
_KNOWN = 3, 15  # the last Python of which that is known


class Place:
    """What an import of a module finds: a file, a folder of nothing but folders, or nothing where
    something should be.
    """

    __slots__ = ("fault", "folders", "gone", "path")

    def __init__(
        self, path: str, folders: list[str], fault: FileFault | None, gone: bool = False
    ) -> None:
        self.path: str = path  # "" of a namespace
        self.folders: list[str] = folders  # in which its submodules are looked for; [] of a module
        self.fault: FileFault | None = fault
        self.gone: bool = gone

    @property
    def source(self) -> bool:
        return self.path.endswith(".py") and not self.gone


class Places:
    """Finds modules as Python's own finder does."""

    def __init__(self, root: Root, env: Environment, faults: Collection[FileFault]) -> None:
        """faults: files that are not as their packages brought them."""
        self.root = root
        self.site_packages: list[str] = env.site_packages
        self.innermost: list[str] = sorted(env.site_packages, key=len, reverse=True)
        self.env = env
        self.machine: int = MACHINES.get(env.platform, 0)
        digits = (env.python or "").split(".")[:2]
        known = all(map(str.isdecimal, digits))
        self.version: tuple[int, ...] = tuple(map(int, digits)) if known else ()
        self.endings: tuple[str, ...] = (*env.extensions, ".py", ".pyc")
        self.faults: dict[str, FileFault] = {fault.file: fault for fault in faults}
        inside = tuple(f"{site}/" for site in self.site_packages)
        hidden = (pair for pair in self.faults.items() if pair[1].what == "hidden")
        self._hiding = [pair for pair in hidden if pair[0].startswith(inside)]
        self.majors: set[str] = set()  # of CUDA, for packages with a folder for each
        self.instead: dict[str, str] = {}  # by module, the folder that it is taken from
        self._places: dict[str, Place | None] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._children: dict[str, frozenset[str]] = {}
        self._zipped: set[str] | None = None

    def find(self, name: str) -> Place | None:
        """What `import name` finds; None where there is nothing, and never was."""
        if name not in self._places:
            above, _, last = name.rpartition(".")
            parent = self.find(above) if above else None
            folders = self.site_packages if not above else parent.folders if parent else []
            found = self._moved(parent, last) if parent is not None else None
            if name in self.instead:
                found = self._in([self.instead[name]], last)
            self._places[name] = found or self._in(folders, last)
        return self._places[name]

    def _in(self, folders: list[str], name: str) -> Place | None:
        """The first of some folders that has the module, else one that should have it."""
        portions: list[str] = []
        lost: Place | None = None
        for folder in folders:
            names, inner = self.names(folder), f"{folder}/{name}"
            below = self.names(inner) if name in names else frozenset()
            for base, stem, there in (
                (f"{inner}/__init__", "__init__", below),
                (inner, name, names),
            ):
                package = [inner] if stem == "__init__" else []
                for ending in self.endings:
                    fault = self.faults.get(base + ending)
                    missing = fault is not None and fault.what == "missing"
                    if f"{stem}{ending}" in there and not missing:
                        return Place(base + ending, package, fault)
                    if missing and lost is None:
                        lost = Place(base + ending, package, fault, gone=True)
            if below or (name in names and self.root.is_dir(inner)):
                portions.append(inner)
        if portions:
            return Place("", portions, lost.fault if lost else None)
        return lost

    def _moved(self, parent: Place, name: str) -> Place | None:
        """A module of a package that changes its __path__: in a folder below its own, of several
        that which is named by the CUDA release.
        """
        if not parent.folders or not parent.source:
            return None
        text = self.text(parent)
        moved = _MOVED.search(text)
        imported = rb"\b%s import\b" % re.escape(name).encode()
        if moved is None or re.search(imported, text[: moved.start()]):
            return None
        found = {}
        for folder in parent.folders:
            for below in sorted(self.names(folder)):
                place = self._in([f"{folder}/{below}"], name) if "." not in below else None
                if place is not None:
                    found[below] = place
        chosen = [found[f"cu{major}"] for major in self.majors if f"cu{major}" in found]
        apart = any(re.fullmatch(r"cu\d+", below) for below in found) and self.majors
        if not chosen and not apart and self._in(parent.folders, name) is None:
            chosen = list(found.values())
        return chosen[0] if len(chosen) == 1 else None

    def name(self, path: str) -> str:
        """The dotted name of what lies in a site-packages folder, or would, as it is imported; ""
        of anything else.
        """
        for module, folder in self.instead.items():
            own = f"{folder}/{module.rpartition('.')[2]}/"
            if path.startswith(own):
                return module + self._dotted(path).removeprefix(self._dotted(own))
        return self._dotted(path)

    def _dotted(self, path: str) -> str:
        for site in self.innermost:
            if path.startswith(f"{site}/"):
                folder, _, base = path[len(site) + 1 :].rpartition("/")
                return ".".join(filter(None, [*folder.split("/"), base.partition(".")[0]]))
        return ""

    def hidden(self, name: str) -> FileFault | None:
        """The folder that comes before that of a module's package, where it has no such module."""
        for module, folder in self.instead.items():
            if name.startswith(f"{module}."):
                name = self._dotted(folder) + name.removeprefix(module.rpartition(".")[0])
        for file, fault in self._hiding:
            first = next(site for site in self.innermost if file.startswith(f"{site}/"))
            package = file[len(first) + 1 :].replace("/", ".")
            if f"{name}.".startswith(f"{package}.") and not self._joins(package):
                above, _, last = name.replace(".", "/").rpartition("/")
                for site in self.site_packages[self.site_packages.index(first) + 1 :]:
                    folder = f"{site}/{above}".rstrip("/")
                    whole = Place(f"{folder}/__init__.py", [folder], None)
                    if self._in([folder], last) or self._moved(whole, last):
                        return fault
        return None

    def _joins(self, package: str) -> bool:
        """Whether a package adds folders of its name to its own."""
        place = self.find(package)
        source = self.text(place) if place is not None and place.source else b""
        return _JOINS.search(source) is not None

    def plain(self, name: str) -> bool:
        """Whether that is a package whose modules are what lies in its folder."""
        place = self.find(name)
        if place is None or not place.source or not place.folders:
            return False
        return not _MAKES.search(self.text(place))

    def may_be_own(self, name: str) -> bool:
        """Whether a module may be one that Python itself has."""
        names = sys.stdlib_module_names | _SINCE_3_12
        known = self.version and self.version <= max(_KNOWN, sys.version_info[:2])
        return not known or name in names or name.startswith("_")

    def elsewhere(self, name: str) -> bool:
        """Whether Python may find a module outside those folders: in a zip file, or by code of a
        .pth file.
        """
        if self._zipped is None:
            self._zipped = {top for path in self.env.zip_files for top in _zipped(self.root, path)}
        top = name.partition(".")[0]
        return top in self._zipped or not {"*", top}.isdisjoint(self.env.by_code)

    def children(self, name: str) -> frozenset[str]:
        """The names of what lies in a package's folders, or should."""
        place = self.find(name)
        if name not in self._children:
            folders = [*place.folders] if place is not None else []
            if place is not None and place.source and _MOVED.search(self.text(place)):
                folders += [f"{folder}/{name}" for folder in folders for name in self.names(folder)]
            bases = {base for folder in folders for base in self.names(folder)}
            for folder in folders:
                inside = (f[len(folder) + 1 :] for f in self.faults if f.startswith(f"{folder}/"))
                bases.update(file.partition("/")[0] for file in inside)
            self._children[name] = frozenset(base.partition(".")[0] for base in bases)
        return self._children[name]

    def names(self, folder: str) -> frozenset[str]:
        """The names in a folder; none if it is not a folder."""
        if folder not in self._names:
            try:
                self._names[folder] = self.root.listing(folder)
            except (OSError, ValueError):
                self._names[folder] = frozenset()
        return self._names[folder]

    def text(self, place: Place) -> bytes:
        source = self.root.raw(place.path, SOURCE_LIMIT + 1)
        return source if len(source) <= SOURCE_LIMIT else b""


def _zipped(root: Root, path: str) -> set[str]:
    """The names of modules and packages in a zip file; of any other file none."""
    from zipfile import BadZipFile, ZipFile

    try:
        with open(root.open(path), "rb") as file, ZipFile(file) as archive:
            names = archive.namelist()
    except (OSError, ValueError, BadZipFile, NotImplementedError, StructError):
        return set()
    root.take(sum(map(len, names)))
    files = [name for name in names if "/" in name or name.endswith((".py", ".pyc"))]
    return {re.split("[/.]", name)[0] for name in files}
