"""What the package index tells of releases: `make tables` writes releases.json from it.

The index is the one that pip is set to. Names of files tell the Pythons, the METADATA of one wheel
of a release what it requires; no wheel is downloaded, nothing is installed.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.parser import HeaderParser
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from corpus import derived
from corpus.plan import tomllib

PACKAGES = Path(__file__).with_name("packages.toml")
JSON = "application/vnd.pypi.simple.v1+json"
PYTHONS = [f"3.{minor}" for minor in range(7, 16)]
MACHINE = {
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
}


class File:
    """One file of a release: a wheel for this platform, or the source."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.name, self.url, self.size = told["filename"], told["url"], int(told["size"])
        self.date = str(told["upload-time"])[:10]
        self.takes = SpecifierSet(told.get("requires-python") or "")
        self.wheel = self.name.endswith(".whl")
        self.tags: list[Any] = []
        if self.wheel:
            on_linux = f"linux.*{MACHINE['platform_machine']}"
            _, self.version, _, tags = parse_wheel_filename(self.name)
            self.tags = [t for t in tags if t.platform == "any" or re.search(on_linux, t.platform)]
        else:
            self.version = parse_sdist_filename(self.name)[1]

    def serves(self, python: str) -> bool:
        """Whether it is a wheel for a Python, "3.12" or "3.14t"."""
        number, free = python.rstrip("t"), python.endswith("t")
        plain = number.replace(".", "")
        if not self.takes.contains(f"{number}.20"):
            return False
        for tag in self.tags:
            exact = tag.interpreter == f"cp{plain}" and tag.abi in (
                f"cp{plain}{'t' * free}",
                f"cp{plain}m",
            )
            lasting = not free and tag.abi == "abi3" and int(tag.interpreter[3:]) <= int(plain[1:])
            any_ = tag.abi == "none" and re.fullmatch(r"(py|cp)\d+", tag.interpreter)
            if exact or lasting or any_:
                return True
        return False


def fetch(url: str, accept: str = "*/*", part: tuple[int, int] | None = None) -> bytes:
    """What stands at an address, or a part of it."""
    asked = urllib.request.Request(url, headers={"Accept": accept})
    if part:
        asked.add_header("Range", f"bytes={part[0]}-{part[1] - 1}")
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return bytes(answer.read())


@cache
def index() -> str:
    """The address of the index."""
    from pip._internal.models.index import PyPI

    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    named = subprocess.run(command, capture_output=True, text=True, check=False)
    return (named.stdout.strip() or str(PyPI.simple_url)).rstrip("/")


@cache
def files(project: str) -> dict[Version, list[File]]:
    """The files of each release that were not withdrawn."""
    found: dict[Version, list[File]] = {}
    for told in json.loads(fetch(f"{index()}/{project}/", JSON))["files"]:
        try:
            file = File(told)
        except ValueError:  # a name of before the rules
            continue
        if not told.get("yanked") and (file.tags or not file.wheel):
            found.setdefault(file.version, []).append(file)
    return dict(sorted(found.items()))


class Remote(io.RawIOBase):
    """A file at an address, of which only what is read is fetched."""

    def __init__(self, file: File) -> None:
        self.file, self.at = file, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, to: int, whence: int = 0) -> int:
        self.at = to + (0, self.at, self.file.size)[whence]
        return self.at

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        end = min(self.at + len(into), self.file.size)
        found = fetch(self.file.url, part=(self.at, end)) if end > self.at else b""
        into[: len(found)] = found
        self.at += len(found)
        return len(found)


def metadata(wheel: File) -> str:
    """A wheel's METADATA: the index has most apart, of the others it is read in place."""
    try:
        return fetch(f"{wheel.url}.metadata").decode()
    except urllib.error.HTTPError:
        with zipfile.ZipFile(io.BufferedReader(Remote(wheel), 1 << 18)) as opened:
            (name,) = (
                n
                for n in opened.namelist()
                if n.endswith(".dist-info/METADATA") and n.count("/") == 1
            )
            return opened.read(name).decode()


@cache
def requirements(project: str, version: Version) -> list[Requirement]:
    """What a release requires, as one of its wheels tells."""
    wheel = next((file for file in files(project)[version] if file.wheel), None)
    if wheel is None:
        return []
    lines = HeaderParser().parsestr(metadata(wheel)).get_all("Requires-Dist", [])
    return [Requirement(line) for line in lines]


def newest(project: str, specifier: SpecifierSet) -> Version | None:
    """The newest release with wheels that a requirement takes."""
    known = [v for v, own in files(project).items() if any(file.wheel for file in own)]
    return max(specifier.filter(known), default=None)


@cache
def declared() -> list[dict[str, Any]]:
    """packages.toml."""
    return list(tomllib.loads(PACKAGES.read_text(encoding="utf-8"))["package"])


def closure(package: dict[str, Any], ask: str, python: str) -> dict[str, Any]:
    """What a release requires on a Python: of each project the specifier, of those that are
    followed the version.
    """
    found: dict[str, Any] = {}
    todo = [Requirement(ask)]
    while todo:
        asked = todo.pop()
        found.setdefault(asked.name, asked.specifier)
        if asked.name not in (package["project"], *package.get("follows", ())):
            continue
        version = newest(asked.name, asked.specifier)
        if version is None:
            continue
        found[asked.name] = version
        for each in requirements(asked.name, version):
            wanted = [{"extra": extra} for extra in (*asked.extras, "")]
            place = {**MACHINE, "python_version": python, "python_full_version": f"{python}.0"}
            if each.marker is None or any(each.marker.evaluate({**place, **e}) for e in wanted):
                todo.append(each)
    return found


def brought(needed: dict[str, Any], pattern: str) -> tuple[str, bool] | None:
    """The newest version of a library that a requirement takes, and whether it takes one only."""
    for name, specifier in needed.items():
        if re.fullmatch(pattern, name) and isinstance(specifier, SpecifierSet):
            version = newest(name, specifier)
            if version is not None:
                exact = re.search(r"==\d+\.\d+", str(specifier)) is not None
                return f"{version.major}.{version.minor}", exact
    return None


def stated(package: dict[str, Any], version: Version) -> str | None:
    """The CUDA that packages.toml states for a release."""
    rows = (r for r in package.get("cuda", ()) if "below" not in r or version < Version(r["below"]))
    return next((str(row["cuda"]) for row in rows), None)


def releases(package: dict[str, Any]) -> list[Version]:
    """The newest patch of each of the newest series."""
    series: dict[tuple[int, ...], Version] = {}
    for version, own in files(package["project"]).items():
        if not version.is_prerelease and (package.get("source") or any(f.wheel for f in own)):
            series[version.release[: 3 if package.get("patches") else 2]] = version
    return sorted(series.values())[-package["series"] :]


def pythons(needed: dict[str, Any]) -> list[str]:
    """The Pythons that everything which is followed or pinned has wheels for, free-threaded ones
    last. What is pinned and has no wheels at all is built for any.
    """
    known = {n: v for n, v in needed.items() if isinstance(v, Version)}
    for name, specifier in needed.items():
        pin = re.fullmatch(r"===?([^*,]+)", str(specifier)) if name not in known else None
        version = Version(pin[1]) if pin else None
        if version is not None and any(f.wheel for f in files(name).get(version, ())):
            known[name] = version
    names = [*PYTHONS, *(f"{python}t" for python in PYTHONS[6:])]
    return [
        python
        for python in names
        if all(any(f.serves(python) for f in files(name)[v]) for name, v in known.items())
    ]


def beside(project: str, framework: str, version: Version) -> Version | None:
    """The newest release of a project that takes a version of a framework."""
    number = version.minor + 15 if version.major == 2 else version.minor + 1
    close = [v for v in files(project) if not v.is_prerelease and v.release[:2] == (0, number)]
    for each in [*reversed(close), *reversed(list(files(project)))][:8]:
        asked = [r for r in requirements(project, each) if r.name == framework]
        if asked[0].specifier.contains(version) if asked else each in close:
            return each
    return None


def row(package: dict[str, Any], version: Version, ask: str) -> dict[str, Any] | None:
    """A release as a row of the table; None where it brings no CUDA."""
    asked = ask.format(version)
    if version not in files(package["project"]):
        return None
    serves = [p for p in PYTHONS if any(f.serves(p) for f in files(package["project"])[version])]
    if not serves:
        return None
    needed = closure(package, asked, serves[-1])
    runtime = brought(needed, r"nvidia-cuda-runtime(-cu\d+)?|cuda-toolkit")
    cudnn = brought(needed, r"nvidia-cudnn-cu\d+")
    told = {"packages": [asked], "frameworks": {package["framework"]: str(version)}}
    told |= {"date": min(file.date for file in files(package["project"])[version])}
    told |= {"cudnn": cudnn and cudnn[0], "pythons": pythons(needed)}
    if package["project"] == "torch":
        other = package.get("beside") and beside(package["beside"], "torch", version)
        told["packages"] += [f"{package['beside']}=={other}"] * bool(other)
    elif "torch" in needed:
        return {**told, "torch": str(needed["torch"])}
    if runtime is not None:
        named = {re.sub(r".*-cu", "", n) for n in needed if re.fullmatch(r"nvidia-.*-cu\d+", n)}
        toolkit = runtime[0]
        if len(named) == 1 and toolkit.partition(".")[0] not in named:
            toolkit = named.pop()
        exact = runtime[1] and package["project"] == "torch"
        return {**told, "cuda": toolkit if exact else toolkit.partition(".")[0], "toolkit": toolkit}
    cuda = stated(package, version)
    if cuda is None:
        return None
    bare = {} if package["project"] == "torch" else {"brings": False}
    return {**told, "cuda": cuda, "toolkit": cuda, **bare}


def on_torch(package: dict[str, Any], told: dict[str, Any], lines: list[Any]) -> Iterator[Any]:
    """The rows of what is installed beside PyTorch: with the one that it requires, with the one
    that built it, or with each line of PyTorch.
    """
    takes = SpecifierSet(told["torch"])
    pinned = re.search(
        r"(?:==|>=)\s*([\d.]+)" if package.get("built") else r"==\s*([\d.]+)", str(takes)
    )
    chosen = [line for line in lines if takes.contains(line["frameworks"]["torch"])]
    if pinned:
        torch = next(each for each in declared() if each["project"] == "torch")
        known = [v for v in files("torch") if v == Version(pinned[1])]
        chosen = [made for v in known if (made := row(torch, v, torch["asks"][0]))]
    else:
        best: dict[str, Any] = {}
        for line in sorted(chosen, key=lambda x: Version(x["frameworks"]["torch"])):
            best[line["cuda"].partition(".")[0]] = line
        chosen = list(best.values())
    for line in chosen:
        both = [p for p in told["pythons"] if p in line["pythons"]]
        packages = [*told["packages"], *([] if "==" in str(takes) else line["packages"][:1])]
        frameworks = {**told["frameworks"], **line["frameworks"]}
        more = {name: line[name] for name in ("cuda", "toolkit", "cudnn")}
        own = {name: value for name, value in told.items() if name != "torch"}
        yield {**own, "packages": packages, "frameworks": frameworks, "pythons": both, **more}


def compiled(package: dict[str, Any], lines: list[Any]) -> Iterator[Any]:
    """What is compiled where it is installed, beside the newest PyTorch of each CUDA."""
    version = releases(package)[-1]
    made = {"packages": [], "frameworks": {package["framework"]: str(version)}, "torch": ">=2.1"}
    made |= {"date": min(file.date for file in files(package["project"])[version])}
    made |= {"pythons": PYTHONS, "source": [package["asks"][0].format(version)]}
    yield from on_torch({}, made, lines)


def draw() -> list[dict[str, Any]]:
    """Every row of releases.json."""
    wheels = [p for p in declared() if not p.get("source")]
    jobs = [(p, version, ask) for p in wheels for version in releases(p) for ask in p["asks"]]
    with ThreadPoolExecutor(6) as pool:
        made = list(zip(jobs, pool.map(lambda job: row(*job), jobs), strict=True))
    lines = [r for (p, _, _), r in made if r and p["project"] == "torch"]
    rows = []
    for (package, _, _), each in made:
        if each is not None:
            rows += on_torch(package, each, lines) if "torch" in each else [each]
    for package in declared():
        if package.get("source"):
            rows += compiled(package, lines)
    return beside_arm([each for each in rows if each["pythons"]])


def beside_arm(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the Pythons for which everything has wheels of CUDA for aarch64, too."""
    MACHINE["platform_machine"] = "aarch64"
    for kept in (files, requirements):
        kept.cache_clear()
    with ThreadPoolExecutor(6) as pool:
        return [each | {"arm": arm} for each, arm in zip(rows, pool.map(on_arm, rows), strict=True)]


def on_arm(told: dict[str, Any]) -> list[str]:
    """The Pythons of a row that can have it on aarch64, of the same CUDA major."""
    asked = Requirement(told["packages"][0])
    names = {Requirement(ask.format("1")).name: p for p in declared() for ask in p["asks"]}
    package = names[asked.name]
    version = next(iter(asked.specifier.filter(files(package["project"]))), None)
    known = told["pythons"]
    wheels = (
        package.get("arm", True)
        and version
        and any(f.wheel for f in files(package["project"])[version])
    )
    if version is None or not wheels:
        return []
    needed = closure(package, str(asked), [p for p in known if not p.endswith("t")][-1])
    runtime = brought(needed, r"nvidia-cuda-runtime(-cu\d+)?|cuda-toolkit")
    torch = told["frameworks"].get("torch")
    cuda = runtime[0] if runtime else ""
    if torch and package["project"] != "torch":
        known, cuda = on_arm({**told, "packages": [f"torch=={torch}"]}), told["cuda"]
    elif not runtime and not torch:
        cuda = stated(package, version) or ""
    here = pythons(needed) if cuda.partition(".")[0] == told["cuda"].partition(".")[0] else []
    return [python for python in known if python in here]


def save(rows: list[dict[str, Any]], path: Path = derived.RELEASES) -> None:
    """Writes the file, a release a line, and prints what is new in it and what is gone."""
    before = path.read_text().splitlines() if path.exists() else []
    about = (
        "Written by make tables: what the package index tells of releases, for Linux on x86_64; "
        "arm: the Pythons that can have it on aarch64, too."
    )
    head = f'{{"about": {json.dumps(about)}, "drawn": "{time.strftime("%Y-%m-%d")}", "releases": ['
    lines = [head, *(f"{json.dumps(each)}," for each in rows[:-1]), json.dumps(rows[-1]), "]}"]
    path.write_text("\n".join(lines) + "\n")
    for sign, some, others in (("-", before, lines), ("+", lines, before)):
        known = {line.rstrip(",") for line in others}
        print("".join(f"{sign} {line}\n" for line in some if line.rstrip(",") not in known), end="")


def main() -> None:
    """Draws the tables anew and prints what changed."""
    save(draw())
    derived.main()


if __name__ == "__main__":
    main()
