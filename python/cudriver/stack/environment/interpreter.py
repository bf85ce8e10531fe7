"""What kind of environment a prefix is, its Python, and the folders on that Python's path."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

from cudriver.stack.facts import Environment, Evidence, Problem
from cudriver.stack.loader.files import machine_at
from cudriver.stack.loader.glibc import PLATFORMS
from cudriver.stack.roots.rootfs import Root, TooMuch
from cudriver.stack.tables import table
from cudriver.stack.versions import cut

_CODE = re.compile(r"^import[ \t].*", re.MULTILINE)
_FINDER = re.compile(r"import[ \t]+(\w*editable\w*)(?!.*(?:sys\.path|addsitedir))")
_PATHS = re.compile(r"sys\.path|addsitedir|editable")
_MAPPED = re.compile(r"^(?:MAPPING|NAMESPACES)\b.*|\.map_module\(.*", re.MULTILINE)
_LIB_PYTHON = re.compile(r"python(\d+)\.(\d+)(t?)\Z")
_PTH_LIMIT = 64 << 10
PATH_MOST = 1000  # folders on a Python's path


def pyvenv(root: Root, prefix: str) -> dict[str, str]:
    """The keys of pyvenv.cfg, in lower case; {} where there is none."""
    text = root.text(f"{prefix}/pyvenv.cfg", 64 << 10) or ""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip().lower(): value.strip() for key, sign, value in pairs if sign}


def describe(
    root: Root, prefix: str, variables: dict[str, str], problems: list[Problem]
) -> Environment:
    """The environment at `prefix`, a folder inside the root."""
    prefix = prefix.rstrip("/") or "/"
    settings = pyvenv(root, prefix)
    conda = root.is_dir(f"{prefix}/conda-meta")
    env = Environment(prefix=prefix, kind=_kind(root, prefix, settings, conda))
    env.variables = {n: variables[n] for n in table("environments")["variables"] if n in variables}
    env.executable = _executable(root, prefix)
    if settings and env.executable is None:
        env.gone = _gone(root, f"{prefix}/bin/python")
    env.python, threaded = _python(root, prefix, settings, env.executable)
    env.installer = _installer(root, env, settings)
    env.managed = not settings and _managed(root, env)
    if settings.get("home"):
        env.base_prefix = settings.get("base-prefix") or os.path.dirname(settings["home"])
    env.platform = _machine(root, env)
    taken: set[tuple[int, int]] = set()
    for path in env.stated:
        _add(root, path, env, taken)
    for folder in _folders(root, env, settings, threaded):
        _add(root, folder, env, taken)
        _add_named(root, folder, env, taken, problems)
    return env


def _kind(root: Root, prefix: str, settings: dict[str, str], conda: bool) -> str:
    if conda:
        return "conda"
    if settings:
        if root.is_file(f"{prefix}/pipx_metadata.json"):
            return "pipx"
        return "uv" if "uv" in settings else "venv"
    if prefix in ("/", "/usr", "/usr/local") or _executable(root, prefix):
        return "system"
    return "unknown"


def _executable(root: Root, prefix: str) -> str | None:
    names = root.names(f"{prefix}/bin")
    for name in (
        "python",
        "python3",
        *[n for n in names if n.startswith("python3.") and n[8:].isdigit()],
    ):
        if name in names and root.is_file(f"{prefix}/bin/{name}"):
            return os.path.join(prefix, "bin", name)
    return None


def _gone(root: Root, path: str) -> Evidence | None:
    """A venv's link to a Python that was removed or replaced by a newer one."""
    link = root.readlink(path)
    if link is None or root.size(path) is not None or os.path.dirname(path) in root.unlisted:
        return None
    try:
        target = root.resolve(path)
    except OSError:
        target = link
    return Evidence(path, None, f"links to {target}, which is not there")


def _python(
    root: Root, prefix: str, settings: dict[str, str], executable: str | None
) -> tuple[str | None, str]:
    """The version, as exactly as files tell it, and "t" for a free-threaded build."""
    stated = settings.get("version_info") or settings.get("version") or ""
    exact = cut(stated, 3)
    found = [m for name in root.names(f"{prefix}/lib") if (m := _LIB_PYTHON.match(name))]
    if exact and "." in exact:
        short = cut(exact, 2)
        threaded = any(m[3] and f"{m[1]}.{m[2]}" == short for m in found)
        return exact, "t" if threaded else ""
    for name in root.names(f"{prefix}/conda-meta"):
        conda = re.match(r"python-(\d+\.\d+\.\d+)", name)
        if conda:
            return conda[1], "t" if re.search(r"_cp\d+t\.json\Z", name) else ""
    if executable:
        target = os.path.basename(root.resolve(executable))
        named = re.fullmatch(r"python(\d+\.\d+)(t?)", target)
        if named:
            return _patch_level(root, prefix, named[1]), named[2]
    if found:
        newest = max(found, key=lambda m: (int(m[1]), int(m[2])))
        return _patch_level(root, prefix, f"{newest[1]}.{newest[2]}"), newest[3]
    return None, ""


def _patch_level(root: Root, prefix: str, short: str) -> str:
    """ "3.12" made exact by the header that a Python keeps beside itself, if it is there."""
    header = root.text(f"{prefix}/include/python{short}/patchlevel.h", 64 << 10) or ""
    match = re.search(r'define PY_VERSION\s+"(\d+\.\d+\.\d+)', header)
    return match[1] if match else short


def _installer(root: Root, env: Environment, settings: dict[str, str]) -> str:
    if env.kind == "conda":
        if "/.pixi/envs/" in env.prefix:
            return "pixi"
        history = root.text(f"{env.prefix}/conda-meta/history", 256 << 10) or ""
        commands = re.findall(r"^# cmd: (\S+)", history, re.MULTILINE)
        if commands and any(name in commands[-1] for name in ("mamba", "micromamba")):
            return "micromamba" if "micromamba" in commands[-1] else "mamba"
        base = re.match(r"(.+)/envs/[^/]+\Z", env.prefix)
        home = base[1] if base else env.prefix
        return "mamba" if root.is_file(f"{home}/bin/mamba") else "conda"
    if env.kind == "pipx":
        return "pipx"
    return "uv" if "uv" in settings else "pip"


def _managed(root: Root, env: Environment) -> bool:
    """Whether the marker of PEP 668 lies in the standard library's folder."""
    short = ".".join((env.python or "").split(".")[:2])
    prefix = "/usr" if env.prefix == "/" else env.prefix
    folders = (f"{prefix}/{lib}/python{short}" for lib in ("lib", "lib64"))
    return any(root.is_file(f"{folder}/EXTERNALLY-MANAGED") for folder in folders)


def _machine(root: Root, env: Environment) -> str:
    """Of the interpreter's own file: an image may be for another machine than this one."""
    machine = machine_at(root, root.resolve(env.executable)) if env.executable else None
    if machine is not None:
        return PLATFORMS.get(machine, "unknown")
    return os.uname().machine if root.host else "x86_64"


def _folders(root: Root, env: Environment, settings: dict[str, str], threaded: str) -> list[str]:
    """The folders whose .pth files that Python reads, in its order."""
    variables, prefix = env.variables, env.prefix
    short = ".".join((env.python or "").split(".")[:2])
    name = f"python{short}{threaded}"
    shared = settings.get("include-system-site-packages", "").lower() == "true"
    folders: list[str] = []
    user: list[str] = []
    home = f"{variables['HOME']}/.local" if variables.get("HOME") else ""
    home = variables.get("PYTHONUSERBASE") or home
    if home and (not settings or shared) and not variables.get("PYTHONNOUSERSITE"):
        user.append(f"{home}/lib/{name}/site-packages")
    own = _of_prefix(root, prefix, name)
    if short:  # a venv's own folder comes before the user's, a base Python's after it
        folders += own + user if settings else user + own
    if short and shared and env.base_prefix:
        folders += _of_prefix(root, env.base_prefix, name)
    kept: list[str] = []
    seen: set[str] = set()
    for folder in folders:
        if root.is_dir(folder) and (true := root.resolve(folder)) not in seen:
            seen.add(true)
            kept.append(folder)
    return kept


def _of_prefix(root: Root, prefix: str, name: str) -> list[str]:
    if prefix in ("/", "/usr"):
        local = [f"/usr/local/{lib}/{name}/site-packages" for lib in ("lib", "lib64")]
        debian = root.is_dir("/usr/lib/python3/dist-packages")
        if prefix == "/usr" and debian and root.is_file(f"/usr/local/bin/{name}"):
            local = []  # those are that Python's own
        return [
            *local,
            f"/usr/local/lib/{name}/dist-packages",
            f"/usr/lib64/{name}/site-packages",
            f"/usr/lib/{name}/site-packages",
            "/usr/lib/python3/dist-packages",
        ]
    return [f"{prefix}/{lib}/{name}/site-packages" for lib in ("lib", "lib64")]


def _add_named(
    root: Root, folder: str, env: Environment, taken: set[tuple[int, int]], problems: list[Problem]
) -> None:
    """Adds what the .pth files of a folder name. Lines that run code are not run."""
    for name in root.names(folder):
        if not name.endswith(".pth"):
            continue
        text = root.text(f"{folder}/{name}", _PTH_LIMIT)
        if text is None:
            problems.append(Problem(f"{folder}/{name}", "cannot be read"))
            continue
        env.by_code += _found_by_code(root, folder, text)
        for line in text.splitlines():
            entry = line.strip()
            if not entry or entry.startswith(("#", "import ", "import\t")) or "\0" in entry:
                continue
            _add(root, os.path.normpath(os.path.join(folder, entry)), env, taken)


def _found_by_code(root: Root, folder: str, text: str) -> Iterator[str]:
    """The modules that code of a .pth file finds, by their names' first parts; "*": it may find
    any. Those of an editable install stand in a file beside it.
    """
    for line in _CODE.findall(text):
        finder = _FINDER.match(line)
        source = root.text(f"{folder}/{finder[1]}.py") if finder else None
        names = re.findall(r"['\"]([\w.]+)['\"]", " ".join(_MAPPED.findall(source or "")))
        if names or _PATHS.search(line):
            yield from [name.partition(".")[0] for name in names] or "*"


def _add(root: Root, path: str, env: Environment, taken: set[tuple[int, int]]) -> None:
    """Adds what is there to the path, a folder or a zip file, once by whatever path."""
    try:
        about = root.stat(path)
    except (OSError, ValueError):
        return
    known = env.site_packages if stat.S_ISDIR(about.st_mode) else env.zip_files
    if (about.st_dev, about.st_ino) not in taken:
        if len(known) == PATH_MOST:
            raise TooMuch(
                f"its .pth files name more than {PATH_MOST} folders; the check was stopped"
            )
        taken.add((about.st_dev, about.st_ino))
        known.append(path)
