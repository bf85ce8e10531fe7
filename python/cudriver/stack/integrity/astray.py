"""What keeps Python from an environment's packages: another interpreter, a module in front of the
standard library's or where programs are started, code that ends every start or moves sys.path.
"""

from __future__ import annotations

import _ast
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress

from cudriver.stack.environment.interpreter import ADDS, looks_outside, pyvenv
from cudriver.stack.facts import (
    ELSEWHERE,
    ENDS,
    MOVES,
    NOEXEC,
    STARTED,
    STDLIB,
    Astray,
    Environment,
    Evidence,
    Facts,
)
from cudriver.stack.integrity.listed import LEFT_OUT, Wheels, top_modules
from cudriver.stack.record import Record
from cudriver.stack.roots.asked import Asked
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.tables import table
from cudriver.stack.versions import cut

_LIMIT = 1 << 20  # bytes of a module
_ENDS = {"sys.exit", "os._exit", "os.abort"}
_LATER = {"exit", "quit"}  # `site` makes them after it has read the .pth files
_EXITING = re.compile(r"exit|quit|abort", re.IGNORECASE)
# What writes before the end of sys.path; what adds to its end hides nothing, nor does a list of
# eggs, which has them all.
_MOVING = re.compile(
    r"^(?!.*sys\.__plen)[^#\n]*\bsys\.path(?:\.insert\((?!\s*len\()|(?:\[.*?\])?\s*=(?!=)).*",
    re.MULTILINE,
)
_DEFINED = re.compile(r"^(?:async def|def|class)[ \t]+([A-Za-z]\w*)", re.MULTILINE)
# It may have any name.
_ANY = re.compile(r"\bimport[ \t]*\*|\b__getattr__|\bexec\(|\bglobals\(\)|\bsys\.modules\b")
# Frozen into Python, or imported before its path is set: none is looked for on it.
_EARLY = "abc builtins codecs encodings genericpath importlib io ntpath os posixpath site stat sys"


def astray(asked: Asked, facts: Facts, wheels: Wheels) -> Iterator[Astray]:
    """The faults of an environment's path."""
    root, env = asked.root, facts.environment
    look = _Look(root, env)
    yield from look.elsewhere()
    for folder in env.sites:
        for name in root.names(folder):
            text = (root.text(f"{folder}/{name}", _LIMIT) or "") if name.endswith(".pth") else ""
            for number, line in enumerate(text.splitlines(), 1):
                if line.startswith(("import ", "import\t")):
                    moves = _MOVING.match(line) and not ADDS.fullmatch(line)
                    ends = _ends(line, _ENDS)
                    what = ENDS if ends else MOVES if moves else ""
                    file = f"{folder}/{name}"
                    if what:
                        evidence = Evidence(file, number, line.strip()[:200])
                        yield Astray(what, file, evidence, ends)
    users = env.user_base and looks_outside(pyvenv(root, env.prefix))
    for name in ("sitecustomize.py", "usercustomize.py")[: 2 if users else 1]:
        # The standard library comes before all but PYTHONPATH, and Debian's has a sitecustomize.
        hidden = root.is_file(f"{look.library()}/{name}")
        files = (f"{folder}/{name}" for folder in (env.pythonpath if hidden else env.site_packages))
        file = next(filter(root.is_file, files), "")
        text = (root.text(file, _LIMIT) or "") if file else ""
        if ends := _ends(text, _ENDS | _LATER):
            yield Astray(ENDS, file, Evidence(file, None, "ends Python where it is imported"), ends)
        elif moving := _MOVING.search(text):
            yield Astray(MOVES, file, Evidence.found(file, text, moving))
    for folder in env.site_packages if root.host else ():
        with suppress(OSError):
            if os.statvfs(folder).f_flag & os.ST_NOEXEC:
                yield Astray(NOEXEC, folder, Evidence(folder, None, "is mounted with noexec"))
    for folder in env.in_front:
        yield from look.before_the_library(folder, [f.name for f in facts.frameworks])
    if asked.started and not env.variables.get("PYTHONSAFEPATH"):
        yield from look.before_all(asked.started, wheels)


class _Look(Record):
    root: Root
    env: Environment

    def elsewhere(self) -> Iterator[Astray]:
        """An interpreter that does not look into the environment it lies in."""
        root, env = self.root, self.env
        named = f"{env.prefix}/lib/python{cut(env.python, 2)}"  # and what is free-threaded
        libraries = (f"{path}/site-packages" for path in (named, f"{named}t"))
        own = next(filter(root.is_dir, libraries), None)
        target = root.resolve(env.executable) if env.executable else ""
        stated = re.fullmatch(r"python(\d\.\d+)(t?)", os.path.basename(target))
        if stated is None or own is None or env.kind == "conda":
            return
        if env.kind == "system" and env.prefix in ("/", "/usr", "/usr/local"):
            return  # the system's own Python looks below /usr/local, too
        base = os.path.dirname(os.path.dirname(target))
        theirs = (f"{base}/{lib}/{own.split('/')[-2]}/site-packages" for lib in ("lib", "lib64"))
        if root.resolve(own) in map(root.resolve, (*env.pythonpath, *theirs)):
            return
        evidence = Evidence(env.executable or "", None, f"is {target}")
        if env.kind == "system":
            inside = target.startswith(f"{env.prefix.rstrip('/')}/")
            library = f"/python{stated[1]}{stated[2]}/os.py"
            alone = any(root.is_file(f"{env.prefix}/{lib}{library}") for lib in ("lib", "lib64"))
            text = root.text(f"{env.prefix}/pyvenv.cfg", 64 << 10)  # empty, it is there
            if not (inside or alone or (text is not None and "\ufffd" not in text)):
                yield Astray(ELSEWHERE, own, evidence, f"{env.prefix}/pyvenv.cfg is not there")
        elif cut(env.python, 2) != stated[1]:
            yield Astray(ELSEWHERE, own, evidence, f"it is Python {stated[1]}")

    def library(self) -> str:
        """The folder of the standard library."""
        base = self.env.base_prefix or ("/usr" if self.env.prefix == "/" else self.env.prefix)
        return f"{base}/lib/python{cut(self.env.python, 2)}"

    def before_the_library(self, folder: str, frameworks: list[str]) -> Iterator[Astray]:
        """Modules of a folder of PYTHONPATH that stand before those of the standard library. Of
        what one lacks, a name that the import of a framework is known to want comes first.
        """
        root, rows = self.root, map(table("environments")["wanted"].get, frameworks)
        known = {name for row in rows for name in row or ()}
        for name in root.names(folder):
            stem, dot, ending = name.partition(".")
            if stem not in sys.stdlib_module_names or stem in _EARLY.split() or stem[0] == "_":
                continue
            file = f"{folder}/{name}"
            package = not dot and root.is_file(f"{file}/__init__.py")
            real = f"{self.library()}/{stem}"
            theirs = next(filter(root.is_file, (f"{real}.py", f"{real}/__init__.py")), None)
            if theirs is None or (ending != "py" and not package):
                continue
            first = f"{file}/__init__.py" if package else file
            if root.resolve(first) == root.resolve(theirs):
                continue  # the folder is the standard library's own
            mine = root.text(first, _LIMIT) or ""
            wanted = {*_DEFINED.findall(root.text(theirs, _LIMIT) or "")}
            wanted |= {name.partition(".")[2] for name in known if name.startswith(f"{stem}.")}
            wanted = wanted.difference(re.findall(r"\w+", mine))
            order = sorted(wanted, key=lambda name: (f"{stem}.{name}" not in known, name))
            lacks = "" if _ANY.search(mine) else next(iter(order), "")
            yield Astray(STDLIB, file, Evidence(file, None, f"comes before {theirs}"), lacks)

    def before_all(self, folder: str, wheels: Wheels) -> Iterator[Astray]:
        """Modules where programs are started, which stand before those of the library and before
        what these wheels brought.
        """
        root, env = self.root, self.env
        if root.resolve(folder) in map(root.resolve, (*env.site_packages, self.library())):
            return
        brought = (name for _, raw in wheels for name in top_modules(raw))
        hidden = {re.split("[/.]", name)[0] for name in brought if not LEFT_OUT.match(name)}
        hidden.update(*map(table("environments").__getitem__, ("needed", "imported")))
        for name in root.names(folder) if env.python else ():
            stem, file = name.partition(".")[0], f"{folder}/{name}"
            if stem in hidden:
                first = f"{file}/__init__.py" if stem == name else file
                module = name[len(stem) :] in ("", *env.modules)
                if module and root.is_file(first):
                    yield Astray(STARTED, file, Evidence(file, None, f"comes before any {stem}"))


def _parsed(text: str) -> list[_ast.stmt]:
    """The statements of code; [] where it is none."""
    try:
        tree = compile(text, "", "exec", _ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []
    assert isinstance(tree, _ast.Module)
    return tree.body


def _ends(text: str, calls: set[str]) -> str:
    """What ends Python in this code whatever happens: a statement of its own, in no condition."""
    for node in _parsed(text) if _EXITING.search(text) else ():
        called = node.value if isinstance(node, _ast.Expr) else None
        if isinstance(called, _ast.Call) and _dotted(called.func) in calls:
            return _dotted(called.func)
        raised = node.exc if isinstance(node, _ast.Raise) else None
        raised = raised.func if isinstance(raised, _ast.Call) else raised
        if isinstance(raised, _ast.Name) and raised.id == "SystemExit":
            return raised.id
    return ""


def _dotted(node: _ast.expr) -> str:
    if isinstance(node, _ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, _ast.Name) else ""
