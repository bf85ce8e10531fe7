"""Makes environments with uv, breaks copies of them, and keeps the disk in bounds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from corpus.plan import Environment, Fault

BATCH = 20  # packages that are cleared from the cache before it is measured again
INSTALL_LIMIT = 1500  # seconds
AS_OF = "2026-11-20"  # what packages require is resolved as on this day
LFS_POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


class InstallError(Exception):
    """An environment or a fault could not be made."""


def clean_environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's variables without those that steer loading or Python."""
    unwanted = ("LD_", "CUDA", "PYTHON", "VIRTUAL_ENV", "CONDA", "CUDRIVER_", "XLA_", "TF_", "UV_")
    environ = {n: v for n, v in os.environ.items() if not n.startswith(unwanted)}
    environ.update(PYTHONNOUSERSITE="1", **(extra or {}))
    return environ


def call(
    words: Iterable[object], environ: Mapping[str, str], cwd: Path, limit: float
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, without input. Raises subprocess.TimeoutExpired."""
    return subprocess.run(
        [str(word) for word in words],
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit,
        check=False,
    )


def used(folder: Path) -> int:
    """Bytes below a folder; a file with two names counts once."""
    words = ["du", "--summarize", "--block-size=1", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # files may vanish
    return int(done.stdout.split()[0])


class Workshop:
    """Folders and tools. `limit` is in bytes, for the cache of wheels; environments are hard links
    into it, and one is there at a time.
    """

    def __init__(self, folder: Path, limit: int, cache: Path | None = None) -> None:
        self.folder = folder
        self.limit = limit
        self.cache = cache or folder / "uv"
        self.keeps_truth = False
        self.recent = self.cache.with_suffix(".json")  # when an environment had a package last
        folder.mkdir(parents=True, exist_ok=True)
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
        if uv is None:
            raise InstallError("uv is not there: pip install uv")
        self.uv = uv

    def environ(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """For installers: clean, with our cache, and uv on PATH. What pip is told, uv is told."""
        environ = clean_environ(extra)
        environ["PATH"] = f"{Path(self.uv).parent}:{environ.get('PATH', '')}"
        environ.update(UV_CACHE_DIR=str(self.cache), UV_LINK_MODE="hardlink", UV_NO_PROGRESS="1")
        environ.update(UV_SYSTEM_CERTS="1", UV_NO_CONFIG="1", UV_PYTHON_DOWNLOADS="never")
        environ.update(PIP_NO_CACHE_DIR="1", UV_HTTP_TIMEOUT="180")
        if "PIP_FIND_LINKS" in environ:
            environ["UV_FIND_LINKS"] = environ["PIP_FIND_LINKS"].replace(" ", ",")
        return environ

    def run(self, *words: object, limit: float = INSTALL_LIMIT) -> str:
        """An installer's output. Raises InstallError with the end of it where that fails."""
        try:
            done = call(words, self.environ(), self.folder, limit)
        except subprocess.TimeoutExpired as error:
            raise InstallError(f"{words[1]} {words[2]}: still running after {limit:g} s") from error
        if done.returncode != 0:
            lines = [line.strip() for line in (done.stderr or done.stdout).splitlines()]
            raise InstallError(" ".join(lines[-8:])[-600:])
        return done.stdout

    def prefix(self, wanted: Environment) -> Path:
        """Where an environment is made."""
        return self.folder / "environments" / wanted.name

    def make(self, wanted: Environment) -> Path:
        """Installs an environment anew and returns its prefix."""
        prefix = self.prefix(wanted)
        self.remove(prefix)
        prefix.parent.mkdir(parents=True, exist_ok=True)
        base = interpreter(wanted.python)
        if wanted.installer == "pip":
            self.run(base, "-m", "venv", prefix)
        else:
            self.run(self.uv, "venv", "--quiet", "--seed", "--python", base, prefix)
        python = prefix / "bin" / "python"
        if wanted.installer == "pip":
            self.run(python, "-m", "pip", "install", "--quiet", *wanted.packages)
        else:
            words: list[object] = [self.uv, "pip", "install", "--quiet", "--python", python]
            if not any("+" in package for package in wanted.packages):
                words += ["--exclude-newer", AS_OF]  # a local build has no date
            if wanted.override:
                overrides = prefix / "overrides.txt"
                overrides.write_text("\n".join(wanted.override) + "\n")
                words += ["--override", overrides]
            self.run(*words, *wanted.packages)
            if wanted.no_deps:
                self.install(prefix, wanted.no_deps)
        known = self._recent()
        known.update(dict.fromkeys(distributions(prefix), time.time()))
        self.recent.write_text(json.dumps(known))
        return prefix

    def install(self, prefix: Path, packages: Iterable[str]) -> None:
        """Puts these in, and nothing that they require."""
        python = prefix / "bin" / "python"
        words = (self.uv, "pip", "install", "--quiet", "--no-deps", "--python", python)
        self.run(*words, *packages)

    def break_copy(self, prefix: Path, fault: Fault) -> tuple[Path, dict[str, str], Path]:
        """A copy of hard links with the fault in it: (prefix, variables, working folder)."""
        target = prefix.with_name(f"{prefix.name}@{fault.name}")
        self.remove(target)
        self.run("cp", "-al", prefix, target)
        site = site_packages(target)
        if fault.uninstall:
            words = (self.uv, "pip", "uninstall", "--quiet", "--python", target / "bin" / "python")
            self.run(*words, *fault.uninstall)
        if fault.install:
            self.install(target, fault.install)
        side = target.with_name(target.name + ".side")
        if fault.side:
            python = target / "bin" / "python"
            words = (self.uv, "pip", "install", "--quiet", "--no-deps", "--python", python)
            self.run(*words, "--target", side, *fault.side)
        plant(site, fault)
        values = {"prefix": str(target), "site": str(site), "side": str(side)}
        environ = {name: value.format(**values) for name, value in fault.environ.items()}
        return target, environ, Path(fault.cwd.format(**values) or target)

    def kept_truth(self, key: str) -> Path | None:
        """The file for an environment's truth, where that is kept. It holds for the same child."""
        if not self.keeps_truth:
            return None
        child = Path(__file__).with_name("child.py").read_bytes()
        folder = self.folder / "truth"
        folder.mkdir(exist_ok=True)
        return folder / f"{key}-{hashlib.sha256(child).hexdigest()[:8]}.json"

    def remove(self, prefix: Path) -> None:
        """An environment and what was put beside it."""
        shutil.rmtree(prefix, ignore_errors=True)
        shutil.rmtree(prefix.with_name(prefix.name + ".side"), ignore_errors=True)

    def prune(self) -> None:
        """Clears what was used longest ago from the cache until it is well within the limit."""
        if used(self.cache) <= self.limit:
            return
        known = self._recent()
        oldest = sorted(known, key=lambda name: known[name])
        for start in range(0, len(oldest) // 2, BATCH):  # the newest half is in use, or will be
            names = oldest[start : start + BATCH]
            self.run(self.uv, "cache", "clean", "--quiet", *names)
            for name in names:
                del known[name]
            self.recent.write_text(json.dumps(known))
            if used(self.cache) <= self.limit * 0.8:
                return
        if used(self.cache) > self.limit:
            self.run(self.uv, "cache", "clean", "--quiet")
            self.recent.write_text("{}")

    def _recent(self) -> dict[str, float]:
        try:
            known: dict[str, float] = json.loads(self.recent.read_text())
        except (OSError, ValueError):
            known = {}
        return known


def interpreter(version: str) -> str:
    """The newest CPython of that minor version. Raises InstallError."""
    known = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    found = str(known[-1]) if known else shutil.which(f"python{version}")
    if found is None:
        raise InstallError(f"python{version} is not here")
    return found


def site_packages(prefix: Path) -> Path:
    """The folder of the packages."""
    found = sorted(prefix.glob("lib/python3.*/site-packages"))
    if not found:
        raise InstallError(f"{prefix} has no site-packages")
    return found[0]


def distributions(prefix: Path) -> dict[str, str]:
    """What is installed: name: version, from the names of the dist-info folders."""
    found = {}
    for info in site_packages(prefix).glob("*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        found[name.lower().replace("_", "-")] = version
    return found


def plant(site: Path, fault: Fault) -> None:
    """Changes files. Each is unlinked first: it has other names, in the cache and elsewhere."""
    for path in _files(site, fault.delete):
        _unlink(path)
    for path in _files(site, fault.half):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[: len(content) // 2])
    for path in _files(site, fault.empty):
        path.unlink()
        path.write_bytes(b"")
    for path in _files(site, fault.pointer):
        path.unlink()
        path.write_text(LFS_POINTER)
    for path in _files(site, fault.folder):
        _unlink(path)
        path.mkdir()
    for source, target in fault.copy.items():
        (found,) = _files(site, (source,))
        if found.is_dir():
            shutil.copytree(found, site / target)
        else:
            shutil.copy2(found, site / target)
    for name, target in fault.link.items():
        path = site / name
        _unlink(path)
        path.symlink_to(target)


def _files(site: Path, patterns: Iterable[str]) -> list[Path]:
    found = []
    for pattern in patterns:
        matching = sorted(site.glob(pattern))
        if not matching:
            raise InstallError(f"nothing matches {pattern} in {site}")
        found += matching
    return found


def _unlink(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
