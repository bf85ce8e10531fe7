"""What kind of environment a prefix is, its Python, and the folders on that Python's path."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

from cudriver.stack.elf.parts import opened
from cudriver.stack.facts import Environment, Evidence
from cudriver.stack.loader.files import machine_at
from cudriver.stack.loader.glibc import PLATFORMS
from cudriver.stack.record import put
from cudriver.stack.roots.asked import Asked
from cudriver.stack.roots.rootfs import Root, TooMuch
from cudriver.stack.tables import table
from cudriver.stack.versions import cut

_CODE = re.compile(r"^import[ \t].*", re.MULTILINE)
_FINDER = re.compile(r"import[ \t]+(\w*editable\w*)(?!.*(?:sys\.path|addsitedir))")
_PATHS = re.compile(r"sys\.path|addsitedir|editable")
# What puts a folder on the path: where, and which.
ADDS = re.compile(
    r"""import[ \t][\w ,]+;\s*sys\.path\.(append\(|insert\(0,\s*)(['"])(/[^'"\\]*)\2\)\s*;?\s*"""
)
_MAPPED = re.compile(r"^(?:MAPPING|NAMESPACES)\b.*|\.map_module\(.*", re.MULTILINE)
_LIB_PYTHON = re.compile(r"python(\d+)\.(\d+)(t?)\Z")
_PTH_LIMIT = 64 << 10
PATH_MOST = 1000  # folders on a Python's path


def pyvenv(root: Root, prefix: str) -> dict[str, str]:
    """The keys of pyvenv.cfg, in lower case; {} where there is none."""
    text = root.text(f"{prefix}/pyvenv.cfg", 64 << 10) or ""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip().lower(): value.strip() for key, sign, value in pairs if sign}


def looks_outside(settings: dict[str, str]) -> bool:
    """Whether Python looks for packages of the user's own and, of a venv, for its base's."""
    return settings.get("include-system-site-packages", "true").lower() == "true"


def describe(asked: Asked) -> Environment:
    """The environment that is asked for."""
    return _Reader(asked).env


class _Reader:
    """Makes the facts about the environment in one folder."""

    def __init__(self, asked: Asked) -> None:
        self.root: Root = asked.root
        self.prefix: str = asked.prefix.rstrip("/") or "/"
        self.settings: dict[str, str] = pyvenv(self.root, self.prefix)
        self._taken: set[tuple[int, int]] = set()
        env = self.env = Environment(prefix=self.prefix, kind=self._kind(), by=asked.by)
        known = table("environments")["variables"]
        put(env, variables={n: asked.variables[n] for n in known if n in asked.variables})
        put(env, executable=self._executable())
        if self.settings and env.executable is None:
            put(env, gone=self._gone(f"{self.prefix}/bin/python"))
        python, threaded = self._python()
        put(env, python=python)
        put(env, installer=self._installer(), managed=not self.settings and self._managed())
        if home := self.settings.get("home"):
            put(env, base_prefix=self.settings.get("base-prefix") or os.path.dirname(home))
        put(env, platform=self._machine(), libc=self._libc())
        for path in env.pythonpath:
            self._add(path)
        put(env, sites=self._folders(threaded))
        for folder in env.sites:
            self._add(folder)
            self._add_named(folder)

    def _kind(self) -> str:
        if self.root.is_dir(f"{self.prefix}/conda-meta"):
            return "conda"
        if self.settings:
            if self.root.is_file(f"{self.prefix}/pipx_metadata.json"):
                return "pipx"
            return "uv" if "uv" in self.settings else "venv"
        if self.prefix in ("/", "/usr", "/usr/local") or self._executable():
            return "system"
        return "unknown"

    def _executable(self) -> str | None:
        names = self.root.names(f"{self.prefix}/bin")
        numbered = (name for name in names if name.startswith("python3.") and name[8:].isdigit())
        for name in ("python", "python3", *numbered):
            if name in names and self.root.is_file(f"{self.prefix}/bin/{name}"):
                return os.path.join(self.prefix, "bin", name)
        return None

    def _gone(self, path: str) -> Evidence | None:
        """What a venv has in the place of its Python: a link to one that was removed or replaced by
        a newer one, or nothing beside its scripts.
        """
        root, link = self.root, self.root.readlink(path)
        there, beside = root.regular(path)[0] is not None, root.names(os.path.dirname(path))
        if there or os.path.dirname(path) in root.unlisted or not beside:
            return None
        if link is None:
            return Evidence(path, None, "is not there")
        try:
            target = root.resolve(path)
        except OSError:
            target = link
        return Evidence(path, None, f"links to {target}, which is not there")

    def _python(self) -> tuple[str | None, str]:
        """The version, as exactly as files tell it, and "t" for a free-threaded build."""
        stated = self.settings.get("version_info") or self.settings.get("version") or ""
        exact = cut(stated, 3)
        names = self.root.names(f"{self.prefix}/lib")
        found = [m for name in names if (m := _LIB_PYTHON.match(name))]
        linked = self._linked()
        short = cut(exact, 2)
        if exact and linked and linked[0] != short and self._filled("".join(linked)):
            return linked  # upgraded in place
        if exact and "." in exact:
            threaded = any(m[3] and f"{m[1]}.{m[2]}" == short for m in found)
            return exact, "t" if threaded else ""
        for name in self.root.names(f"{self.prefix}/conda-meta"):
            conda = re.match(r"python-(\d+\.\d+\.\d+)", name)
            if conda:
                return conda[1], "t" if re.search(r"_cp\d+t\.json\Z", name) else ""
        if linked:
            return linked
        if found:
            newest = max(found, key=lambda m: (int(m[1]), int(m[2])))
            return f"{newest[1]}.{newest[2]}", newest[3]
        return None, ""

    def _linked(self) -> tuple[str, str] | None:
        """The release that the name of the interpreter tells, links followed, as `_python()`."""
        target = self.root.resolve(self.env.executable) if self.env.executable else ""
        named = re.fullmatch(r"python(\d+\.\d+)(t?)", os.path.basename(target))
        return (named[1], named[2]) if named else None

    def _filled(self, release: str) -> bool:
        """Whether packages are installed here for a release of Python."""
        names = self.root.names(f"{self.prefix}/lib/python{release}/site-packages")
        return any(name.endswith((".dist-info", ".egg-info")) for name in names)

    def _installer(self) -> str:
        if self.env.kind == "conda":
            if "/.pixi/envs/" in self.env.prefix:
                return "pixi"
            history = self.root.text(f"{self.env.prefix}/conda-meta/history", 256 << 10) or ""
            commands = re.findall(r"^# cmd: (\S+)", history, re.MULTILINE)
            if commands and any(name in commands[-1] for name in ("mamba", "micromamba")):
                return "micromamba" if "micromamba" in commands[-1] else "mamba"
            base = re.match(r"(.+)/envs/[^/]+\Z", self.env.prefix)
            home = base[1] if base else self.env.prefix
            return "mamba" if self.root.is_file(f"{home}/bin/mamba") else "conda"
        if self.env.kind == "pipx":
            return "pipx"
        return "uv" if "uv" in self.settings else "pip"

    def _managed(self) -> bool:
        """Whether the marker of PEP 668 lies in the standard library's folder."""
        short = ".".join((self.env.python or "").split(".")[:2])
        prefix = "/usr" if self.env.prefix == "/" else self.env.prefix
        folders = (f"{prefix}/{lib}/python{short}" for lib in ("lib", "lib64"))
        return any(self.root.is_file(f"{folder}/EXTERNALLY-MANAGED") for folder in folders)

    def _machine(self) -> str:
        """Of the interpreter's own file: an image may be for another machine than this one."""
        program = self.env.executable
        machine = machine_at(self.root, self.root.resolve(program)) if program else None
        if machine is not None:
            return PLATFORMS.get(machine, "unknown")
        return os.uname().machine if self.root.host else "x86_64"

    def _libc(self) -> str | None:
        """The C library whose loader the interpreter names."""
        file = opened(self.root, self.env.executable) if self.env.executable else None
        musl = file is not None and "/ld-musl-" in (file.interpreter or "")
        return None if file is None else "musl" if musl else "gnu"

    def _folders(self, threaded: str) -> list[str]:
        """The folders whose .pth files that Python reads, in its order."""
        if self.env.python is None:
            return []
        name, shared = f"python{cut(self.env.python, 2)}{threaded}", looks_outside(self.settings)
        own, base = self._of_prefix(self.prefix, name), self.env.user_base
        user = [f"{base}/lib/{name}/site-packages"] * bool(base and shared)
        # A venv's own folder comes before the user's, a base Python's after it.
        folders = own + user if self.settings else user + own
        if shared and self.env.base_prefix:
            folders += self._of_prefix(self.env.base_prefix, name)
        found: dict[str, str] = {}  # by where its links lead
        for folder in filter(self.root.is_dir, folders):
            found.setdefault(self.root.resolve(folder), folder)
        return [*found.values()]

    def _of_prefix(self, prefix: str, name: str) -> list[str]:
        """Where a Python below that prefix looks for packages."""
        if prefix in ("/", "/usr"):
            local = [f"/usr/local/{lib}/{name}/site-packages" for lib in ("lib", "lib64")]
            debian = self.root.is_dir("/usr/lib/python3/dist-packages")
            if prefix == "/usr" and debian and self.root.is_file(f"/usr/local/bin/{name}"):
                local = []  # those are that Python's own
            return [
                *local,
                f"/usr/local/lib/{name}/dist-packages",
                f"/usr/lib64/{name}/site-packages",
                f"/usr/lib/{name}/site-packages",
                "/usr/lib/python3/dist-packages",
            ]
        return [f"{prefix}/{lib}/{name}/site-packages" for lib in ("lib", "lib64")]

    def _add_named(self, folder: str) -> None:
        """Adds what the .pth files of a folder name. Lines that run code are not run."""
        for name in self.root.names(folder):
            if not name.endswith(".pth"):
                continue
            text = self.root.text(f"{folder}/{name}", _PTH_LIMIT)
            if text is None:
                self.root.note(f"{folder}/{name}", "cannot be read")
                continue
            self.env.by_code.extend(_found_by_code(self.root, folder, text))
            for number, line in enumerate(text.splitlines(), 1):
                entry = line.strip()
                if added := ADDS.fullmatch(line):
                    path, front = os.path.normpath(added[3]), added[1] != "append("
                    if self._add(path, front) and front:
                        self.env.inserted.insert(0, Evidence(f"{folder}/{name}", number, path))
                if not entry or entry.startswith(("#", "import ", "import\t")) or "\0" in entry:
                    continue
                self._add(os.path.normpath(os.path.join(folder, entry)))

    def _add(self, path: str, front: bool = False) -> bool:
        """Adds what is there to the path, a folder or a zip file, once by whatever path."""
        try:
            about = self.root.stat(path)
        except (OSError, ValueError):
            return False
        known = self.env.site_packages if stat.S_ISDIR(about.st_mode) else self.env.zip_files
        new = (about.st_dev, about.st_ino) not in self._taken
        if new:
            if len(known) == PATH_MOST:
                raise TooMuch(f"{PATH_MOST} folders are named by its .pth files")
            self._taken.add((about.st_dev, about.st_ino))
            known.insert(0 if front else len(known), path)
        return new


def _found_by_code(root: Root, folder: str, text: str) -> Iterator[str]:
    """The modules that code of a .pth file finds, by their names' first parts; "*": it may find
    any. Those of an editable install stand in a file beside it.
    """
    for line in _CODE.findall(text):
        finder = _FINDER.match(line)
        source = root.text(f"{folder}/{finder[1]}.py") if finder else None
        names = re.findall(r"['\"]([\w.]+)['\"]", " ".join(_MAPPED.findall(source or "")))
        if names or (_PATHS.search(line) and not ADDS.fullmatch(line)):
            yield from [name.partition(".")[0] for name in names] or "*"
