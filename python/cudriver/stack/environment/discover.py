"""Finds the Python environments of a machine: conda, venv, uv, pipx, pyenv, Jupyter kernels.

Only folder listings and small text files are read; nothing is run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping

from cudriver.stack.environment.interpreter import describe
from cudriver.stack.record import Record
from cudriver.stack.roots.asked import Asked
from cudriver.stack.roots.rootfs import Root, TooMuch
from cudriver.stack.tables import table
from cudriver.stack.text import quote

SYSTEM = ("/usr/local", "/usr")
RUNNING = "the running interpreter"
MAX_FOLDERS = 20_000  # listed below `projects`, so that a home on a slow network ends
NEVER = frozenset({"node_modules", "site-packages", "__pycache__", "proc", "sys", "dev"})


class Found(Record):
    """An environment and how it came to light."""

    prefix: str
    kind: str  # "conda", "venv", "uv", "pipx", "jupyter", "system"
    source: str  # what named it: a file, a folder, a variable
    python: str | None = None  # version, where the folder tells


def find_environments(
    root: str = "/", *, environ: Mapping[str, str] | None = None, home: str | None = None
) -> list[Found]:
    """Return the environments of a machine, each once, the active ones first.

    Parameters
    ----------
    root : str, optional
        Another file system's root. Variables and home of this process then count for nothing
        unless they are given, and neither does its interpreter.
    environ : mapping of str to str, optional
        Stands in for the process's environment variables.
    home : str, optional
        The home folder to search. The default is this user's; for another root, those of all users
        as far as they can be read.

    Returns
    -------
    list of Found
        The folder, the kind, and how it was found.

    Raises
    ------
    NotADirectoryError
        `root` is not a folder.

    Notes
    -----
    Reads folders and files only: those that variables, conda's lists and Jupyter's kernels name,
    the shelves of tools such as uv, pipx and pyenv, and, a few levels down, the home folder, /opt,
    /srv, /app, /workspace, /workspaces and /content. The working folder does not count.

    Examples
    --------
    >>> all(found.prefix.startswith("/") for found in stack.find_environments())
    True
    """
    if not os.path.isdir(root):
        raise NotADirectoryError(f"{root} is not a folder")
    files = Root(root)
    if environ is None:
        environ = os.environ if files.host else {}
    homes = [home] if home else _homes(files, environ)
    return list(_Search(files, environ, homes).run())


def named(root: str) -> dict[str, list[str]]:
    """The names that conda and kernels of Jupyter's have, and the environments under each."""
    files = Root(root)
    environ = os.environ if files.host else {}
    search = _Search(files, environ, _homes(files, environ))
    conda = [(prefix, base) for prefix, base in search._conda() if _is_environment(files, prefix)]
    own = [("base" if at == base else os.path.basename(at.rstrip("/")), at) for at, base in conda]
    prefixes = [*(prefix for prefix, _ in conda), *([sys.prefix] if files.host else [])]
    for _, name, prefix in search._kernels(prefixes):
        own.append((name, prefix))
    found: dict[str, dict[str, str]] = {}
    for name, prefix in own:
        found.setdefault(name, {})[files.resolve(prefix)] = prefix
    return {name: list(each.values()) for name, each in found.items()}


def prefix_of_python(files: Root, executable: str) -> str | None:
    """The environment that an interpreter belongs to: the folder above its bin."""
    folder, _, name = executable.rpartition("/")
    if not name.startswith("python") or not folder.endswith("/bin"):
        return None
    prefix = folder[: -len("/bin")] or "/"
    return prefix if files.is_dir(prefix) else None


def near(files: Root, folder: str) -> str | None:
    """An environment beside a folder that is none: what the folder is in, or the first in it. Of
    one that pip filled (--target) the command that looks at it.
    """
    if files.host and any(name.endswith(".dist-info") for name in files.names(folder)):
        return f"PYTHONPATH={quote(folder)} cudriver check"
    above, inside = os.path.dirname(folder), [f"{folder}/{name}" for name in files.names(folder)]
    places = (above, os.path.dirname(above), *sorted(inside))
    return next((path for path in places if _is_environment(files, path)), None)


def _is_environment(files: Root, path: str) -> bool:
    return files.is_file(f"{path}/pyvenv.cfg") or files.is_dir(f"{path}/conda-meta")


def _homes(files: Root, environ: Mapping[str, str]) -> list[str]:
    if files.host:
        return [environ.get("HOME") or os.path.expanduser("~")]
    return ["/root", *(f"/home/{name}" for name in files.names("/home"))]


class _Search:
    """One search: what was seen already, and the rules in order."""

    def __init__(self, files: Root, environ: Mapping[str, str], homes: list[str]) -> None:
        self.files = files
        self.environ = environ
        self.homes = homes
        self.seen: dict[str, str] = {}  # by where its links lead
        self.folders_left = MAX_FOLDERS

    def run(self) -> Iterator[Found]:
        for prefix, source in self._candidates():
            yield from self._look(prefix, source)
        for spec, _, prefix in self._kernels(list(self.seen.values())):
            yield from self._look(prefix, spec, "jupyter")

    def _candidates(self) -> Iterator[tuple[str, str]]:
        for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            if self.environ.get(variable):
                yield self.environ[variable], variable
        if self.files.host:
            yield sys.prefix, RUNNING
        yield from self._conda()
        for pattern in table("environments")["shelves"]:
            for folder in self._expand(pattern):
                for name in self.files.names(folder):
                    yield f"{folder}/{name}", folder
        for start, depth in table("environments")["projects"]:
            for folder in self._expand(start):
                yield from self._walk(folder, depth, folder)
        for prefix in SYSTEM:
            yield prefix, "system"

    def _expand(self, pattern: str) -> list[str]:
        """Folders for a pattern: `~` is each home, `$NAME/...` a variable."""
        if pattern.startswith("~"):
            return [home + pattern[1:] for home in self.homes]
        if pattern.startswith("$"):
            name, slash, rest = pattern[1:].partition("/")
            value = self.environ.get(name, "")
            return [value + slash + rest] if value.startswith("/") else []
        return [pattern]

    def _conda(self) -> Iterator[tuple[str, str]]:
        bases = [self.environ.get("MAMBA_ROOT_PREFIX", ""), self.environ.get("CONDA_ROOT", "")]
        if self.environ.get("CONDA_EXE"):
            bases.append(os.path.dirname(os.path.dirname(self.environ["CONDA_EXE"])))
        for pattern in table("environments")["conda"]:
            bases += self._expand(pattern)
        for home in self.homes:
            list_file = f"{home}/.conda/environments.txt"
            for line in (self.files.text(list_file) or "").splitlines():
                if line.startswith("/"):
                    yield line.strip(), list_file
        for base in filter(None, bases):
            yield base, base
            for name in self.files.names(f"{base}/envs"):
                yield f"{base}/envs/{name}", f"{base}/envs"
        shelves = self.environ.get("CONDA_ENVS_PATH") or self.environ.get("CONDA_ENVS_DIRS") or ""
        for shelf in filter(None, shelves.split(":")):
            for name in self.files.names(shelf):
                yield f"{shelf}/{name}", shelf

    def _walk(self, folder: str, depth: int, source: str) -> Iterator[tuple[str, str]]:
        """Folders with a pyvenv.cfg, at most `depth` levels down; environments are not entered."""
        if self.folders_left <= 0:
            return
        self.folders_left -= 1
        try:
            inside = self.files.folders(folder)
        except (OSError, ValueError):
            return
        for name in inside:
            if name in NEVER or (name.startswith(".") and name not in (".venv", ".env")):
                continue
            path = f"{folder.rstrip('/')}/{name}"
            if _is_environment(self.files, path):
                yield path, source
            elif depth > 1:
                yield from self._walk(path, depth - 1, source)

    def _kernels(self, prefixes: list[str]) -> Iterator[tuple[str, str, str]]:
        """The file, the name and the environment of each kernel that Jupyter would find, or one in
        these environments.
        """
        shared = (each for one in table("environments")["kernels"] for each in self._expand(one))
        for folder in (*shared, *(f"{prefix}/share/jupyter/kernels" for prefix in prefixes)):
            for name in self.files.names(folder):
                spec = f"{folder}/{name}/kernel.json"
                try:
                    first = json.loads(self.files.text(spec, 1 << 20) or "")["argv"][0]
                except (ValueError, KeyError, IndexError, TypeError, RecursionError):
                    continue
                known = isinstance(first, str) and first.startswith("/")
                if known and (prefix := prefix_of_python(self.files, first)):
                    yield spec, name, prefix

    def _look(self, prefix: str, source: str, kind: str | None = None) -> Iterator[Found]:
        """The environment at `prefix`, if there is one and it was not seen."""
        try:
            resolved = self.files.resolve(prefix)
        except (OSError, ValueError):
            return
        if resolved in self.seen:
            return
        self.seen[resolved] = prefix
        running = ".".join(map(str, sys.version_info[:3])) if source == RUNNING else None
        try:
            env = describe(Asked(self.files, prefix, {}))
        except (OSError, ValueError, TooMuch):  # its own check says what is wrong
            if running or self.files.is_file(f"{prefix}/pyvenv.cfg"):
                yield Found(prefix, kind or "unknown", source, running)
            return
        python = env.python or running
        bare = env.kind in ("system", "unknown") and not (env.executable and env.sites)
        old = (python or "2.").startswith("2.") and env.kind != "conda"
        if running or not (bare or old):
            yield Found(prefix, kind or env.kind, source, python)
