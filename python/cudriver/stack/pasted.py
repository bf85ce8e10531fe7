"""What a pasted line says beyond its rule: whose a symbol is, what is missing and who brings it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache

from cudriver.stack.names import describe, library_of, majors_of, split
from cudriver.stack.record import Any
from cudriver.stack.rulebook import FOLDER
from cudriver.stack.tables import driver_floor, table
from cudriver.stack.versions import newer

ANSWERS = "answers.json"
Answers = Iterator[tuple[str, dict[str, str]]]  # the keys of sentences, and their values


def answer(line: str, lang: str = "en") -> list[str]:
    """What this line says by itself, in sentences; nothing where the rule's page says all."""
    sentences = _known()["sentences"]
    for pattern, read in _READERS:
        if found := re.search(pattern, line, re.IGNORECASE):
            answers = [(read, found.groupdict())] if isinstance(read, str) else read(found)
            lines = [sentences[key][lang].format(**values) for key, values in answers]
            if lines:
                return lines
    return []


@cache
def _known() -> dict[str, Any]:
    with open(os.path.join(FOLDER, ANSWERS), encoding="utf-8") as file:
        known: dict[str, Any] = json.load(file)
    return known


def _symbol(found: re.Match[str]) -> Answers:
    symbol = found["symbol"]
    needer = os.path.basename(found["needer"] or "") or "the extension"
    for pattern, key in _OTHERS:
        if re.match(pattern, symbol):
            yield key, {"symbol": symbol, "needer": needer}
            return
    stem = (library_of(symbol) or "").removesuffix(".so")
    if not stem:
        return
    yield "symbol", {"symbol": symbol, "library": stem}
    if since := re.search(r"_(\d+)_(\d+)$", symbol):
        yield "since", {"library": stem, "cuda": f"{since[1]}.{since[2]}"}
    row = describe(stem)
    if row["wheel"] in _known()["overlap"]:
        yield "overlap", {"wheel": row["wheel"]}
        yield "look", {"wheel": row["wheel"]}
    else:
        yield "owner", {"wheels": _wheels(row["wheel"]), "conda": row["conda"]}


_OTHERS = [
    (r"_Z\w*?(3c10|2at|5torch|6caffe2|4c10d)|(aoti_)?torch_|c10::|at::|torch::", "torch-symbol"),
    (r"_?Py[A-Z_]", "python-symbol"),
    (r"iJIT_", "mkl-symbol"),
    (r"GOMP_|omp_|__kmpc_", "openmp-symbol"),
    (r"cu[A-Z](?!\w*(FFT|DNN))", "driver-symbol"),
]


def _version(found: re.Match[str]) -> Answers:
    kind, _, number = found["version"].partition("_")
    needer = os.path.basename((found["needer"] or "").strip()) or "the library"
    if kind.upper() == "GLIBC":
        names = _known()["glibc"]
        enough = [names[release] for release in names if not newer(number, release)]
        values = {"needer": needer, "version": number}
        if enough:
            yield "glibc", {**values, "distributions": ", ".join(enough[:3])}
        else:
            yield "glibc-new", values
        if here := glibc():
            key = "glibc-older" if newer(number, here) else "glibc-here"
            yield key, {"here": f"glibc {here}"}
    elif gcc := _known()["libstdc++"].get(found["version"].upper()):
        yield "libstdc++", {"version": found["version"], "gcc": gcc}


def glibc() -> str | None:
    """The release of this machine's C library; None where it is another one."""
    try:
        name, _, release = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, ValueError, OSError):
        return None
    return release if name == "glibc" else None


def _library(found: re.Match[str]) -> Answers:
    library = found["library"].rstrip(".")
    stem, number = split(library.replace("*[0-9]", ""))
    if stem in ("libcuda", "libnvcuvid", "libnvoptix") or stem.startswith("libnvidia-"):
        yield "driver-library", {"library": library}
    elif stem in ("libtorch_cuda_cu", "libtorch_cuda_cpp"):
        yield "old-torch-library", {"library": library}
    elif stem.startswith(("libtorch", "libc10")):
        yield "torch-library", {"library": library}
    elif python := re.match(r"libpython(\d\.\d+)", library):
        yield "python-library", {"library": library, "version": python[1]}
    elif row := describe(stem) or describe("libcudnn" * stem.startswith("libcudnn")):
        majors, values = majors_of(library), {"library": library, "conda": row["conda"]}
        if number and majors:
            cuda, wheels = "/".join(majors), _wheels(row["wheel"], majors[-1])
            yield "cuda-library", {**values, "cuda": cuda, "wheels": wheels}
        else:
            yield "a-library", {**values, "wheels": _wheels(row["wheel"])}
    else:
        start = re.split(r"[.\d]", library)[0].removesuffix("_cxx").rstrip("_")
        package = _known()["libraries"].get("libmkl" if start.startswith("libmkl") else start)
        if package:
            yield "other-library", {"library": library, "package": package}


def _loaded(found: re.Match[str]) -> Answers:
    """JAX's names: "Unable to load cuSPARSE. Is it installed?"."""
    for stem, row in table("libraries")["libraries"].items():
        if stem.lower() == f"lib{found['name'].lower()}":
            wheels = _wheels(row["wheel"])
            yield "a-library", {"library": stem, "wheels": wheels, "conda": row["conda"]}


def _wheels(wheel: str, cuda: str | None = None) -> str:
    """The wheel for a CUDA major, or those for 12 and 13: "nvidia-cublas-cu12 / nvidia-cublas"."""
    suffixed = wheel in _known()["suffixed"]
    newest = f"{wheel}-cu13" if suffixed else wheel
    names = {"11": f"{wheel}-cu11", "12": f"{wheel}-cu12", "13": newest}
    return names[cuda] if cuda in names else f"{names['12']} / {newest}"


def _module(found: re.Match[str]) -> Answers:
    module = found["module"]
    if found["shadow"]:
        yield "shadow", {"name": module.partition(".")[0]}
        return
    modules = _known()["modules"]
    parts = module.split(".")
    starts = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    if package := next((modules[start] for start in starts if start in modules), None):
        yield "module", {"module": module, "package": package}
    elif module not in sys.stdlib_module_names and re.fullmatch(r"[a-z]\w*", module, re.IGNORECASE):
        yield "missing", {"module": module}
    if module == "torch":
        yield "build-torch", {}


def _name(found: re.Match[str]) -> Answers:
    module = found["module"]
    package = module.partition(".")[0]
    if package == "google" and "protobuf" in module:
        yield "protobuf", {}
    else:
        package = _known()["modules"].get(package, package)
        yield "name", {"name": found["name"], "module": module, "package": package}


def _ptx(found: re.Match[str]) -> Answers:
    cuda = _known()["ptx"]
    asked, known = found["asked"], found["known"]
    if asked in cuda and known in cuda:
        values = {"asked": asked, "known": known}
        yield "ptx", {**values, "asked_cuda": cuda[asked], "known_cuda": cuda[known]}


def _gpu(found: re.Match[str]) -> Answers:
    number = int(found["gpu"].replace(".", ""))
    capability = f"{number // 10}.{number % 10}"
    known = table("architectures")
    first = (row["toolkit"] for row in known["toolkits"] if number in row["archs"])
    if capability in known["names"] and (toolkit := next(first, None)):
        name = known["names"][capability]
        yield "gpu", {"capability": capability, "name": name, "toolkit": toolkit}


def _driver(found: re.Match[str]) -> Answers:
    number = int(found["code"])
    cuda, major = f"{number // 1000}.{number % 1000 // 10}", number // 1000
    floor = driver_floor(str(major + 1))
    if floor:
        values = {"major": str(major), "next": str(major + 1), "floor": floor}
        yield "driver-offers", {"cuda": cuda, **values}
    else:
        yield "driver-offers-most", {"cuda": cuda}


def _image(found: re.Match[str]) -> Answers:
    major = found["cuda"].partition(".")[0]
    if floor := driver_floor(major):
        yield "image", {"cuda": found["cuda"], "major": major, "floor": floor}


def _jax(found: re.Match[str]) -> Answers:
    yield "jax", {"major": found["major"] or "12"}


_SO = r"(?P<library>lib[\w+.-]{1,80}?\.so[\d.]{0,20}(?:\*\[0-9\])?)"
_ALLOWED = r"cannot open shared object file(?!: (?:Permission|Operation))"
# What a line has, and the key of its sentence, with the groups as values; or who answers.
_READERS: list[tuple[str, str | Callable[[re.Match[str]], Answers]]] = [
    (
        r"(?:(?P<needer>[\w./+-]{1,400}\.so[\w.]{0,20}): ?)?(?:undefined symbol:? |"
        r"(?:not|Cannot) load symbol )'?(?P<symbol>[\w:]{1,1000})",
        _symbol,
    ),
    (
        r"(?P<needer>)symbol (?P<symbol>\w{1,1000}),? version [\w.]{1,60} not defined in file",
        _symbol,
    ),
    (
        r"version [`'](?P<version>\w+_[\d.]{1,20})' not found"
        r"(?: \(required by (?P<needer>[^)]{1,400})\))?",
        _version,
    ),
    (r"Error: " + _SO + ": " + _ALLOWED, _library),
    (
        _SO + r"(?: or [\w.]{1,80})?(?:\"|')?"
        r"(?:: " + _ALLOWED + r"|: no such|[,}]| is not found| cannot found| not found)",
        _library,
    ),
    (r"(?:Missing dependency: |grep '|finding \"|failed to load )" + _SO, _library),
    (r"grep '(?P<library>libnvrtc|lib[\w-]{1,40})'", _library),
    (r"Unable to load (?P<name>\w{1,20})\. Is it installed", _loaded),
    (r"No module named '(?P<module>[\w.]{1,200})'(?P<shadow>; '\w+' is not a package)?", _module),
    (r"numpy\.(_?core)\.multiarray failed|_ARRAY_API not found|using NumPy 1\.x", "numpy"),
    (r"Descriptors cannot|Protobuf Gencode|'MessageFactory'", "protobuf"),
    (
        r"cannot import name '?(?P<name>\w{1,100})'? from '(?!partially)(?P<module>[\w.]{1,200})'",
        _name,
    ),
    (r"PJRT API version|(?:jax_?cuda|xla_cuda)(?P<major>\d\d).{0,80}not compatible", _jax),
    (r"module '(?P<module>[\w.]{1,200})' has no attribute '(?P<name>\w{1,100})'", _name),
    (r"bad magic number|marshal data too short", "bytecode"),
    (r"\.version (?P<asked>[\d.]{1,5}); current version is '?(?P<known>[\d.]{1,5}\d)", _ptx),
    (r"\b(?:sm|compute)_(?P<gpu>\d{2,3})[af]?\b", _gpu),
    (r"capability (?:\(CC\) )?(?P<gpu>\d{1,2}\.\d)", _gpu),
    (r"found version (?P<code>\d{4,5})\)", _driver),
    (r"unsatisfied condition: cuda>=(?P<cuda>\d{1,2}\.\d)", _image),
    (
        r"CUDA version \(?(?P<here>[\d.]{1,6}\d)\)? (?:mismatches|does not match) "
        r"the version .{0,60}(?:compiled with|compile PyTorch) \(?(?P<torch>[\d.]{1,6}\d)",
        "nvcc",
    ),
    (r"\b__cuda\b", "__cuda"),
    (r"unresolvable CDI devices", "cdi"),
]
