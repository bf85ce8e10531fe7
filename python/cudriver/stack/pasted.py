"""What a pasted line says beyond its rule: whose a symbol is, what is missing and who brings it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

from cudriver.stack.names import describe, library_of, majors_of, split
from cudriver.stack.tables import driver_floor, table
from cudriver.stack.versions import newer

ANSWERS = "rules/answers"
Answers = Iterator[tuple[str, dict[str, str]]]  # the keys of sentences, and their values


def answer(line: str, lang: str = "en") -> list[str]:
    """What this line says by itself, in sentences; nothing where the rule's page says all."""
    known = table(ANSWERS)
    for pattern, name in known["readers"]:
        for part, text in known["parts"].items():
            pattern = pattern.replace(part, text)
        if found := re.search(pattern, line, re.IGNORECASE):
            read = _READERS.get(name)
            answers = read(found) if read else [(name, found.groupdict())]
            lines = [known["sentences"][key][lang].format(**values) for key, values in answers]
            if lines:
                return lines
    return []


def _symbol(found: re.Match[str]) -> Answers:
    symbol = found["symbol"]
    needer = os.path.basename(found["needer"] or "") or "the extension"
    for pattern, key in table(ANSWERS)["symbols"]:
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
    if row["wheel"] in table(ANSWERS)["overlap"]:
        yield "overlap", {"wheel": row["wheel"]}
        yield "look", {"wheel": row["wheel"]}
    else:
        yield "owner", {"wheels": _wheels(row["wheel"]), "conda": row["conda"]}


def _version(found: re.Match[str]) -> Answers:
    kind, _, number = found["version"].partition("_")
    needer = os.path.basename((found["needer"] or "").strip()) or "the library"
    if kind.upper() == "GLIBC":
        names = table(ANSWERS)["glibc"]
        enough = [names[release] for release in names if not newer(number, release)]
        values = {"needer": needer, "version": number}
        if enough:
            yield "glibc", {**values, "distributions": ", ".join(enough[:3])}
        else:
            yield "glibc-new", values
        if here := glibc():
            key = "glibc-older" if newer(number, here) else "glibc-here"
            yield key, {"here": f"glibc {here}"}
    elif gcc := table(ANSWERS)["libstdc++"].get(found["version"].upper()):
        yield "libstdc++", {"version": found["version"], "gcc": gcc}


def glibc() -> str | None:
    """The release of this machine's C library; None where it is another one."""
    from platform import libc_ver

    name, release = libc_ver()
    return release if name == "glibc" else None


def _library(found: re.Match[str]) -> Answers:
    library = found["library"].rstrip(".")
    stem, number = split(library.replace("*[0-9]", ""))
    for pattern, key in table(ANSWERS)["names"]:
        if named := re.match(pattern, library):
            yield key, {"library": library, **named.groupdict()}
            return
    if row := describe(stem) or describe("libcudnn" * stem.startswith("libcudnn")):
        majors, values = majors_of(library), {"library": library, "conda": row["conda"]}
        if number and majors:
            cuda, wheels = "/".join(majors), _wheels(row["wheel"], majors[-1])
            yield "cuda-library", {**values, "cuda": cuda, "wheels": wheels}
        else:
            yield "a-library", {**values, "wheels": _wheels(row["wheel"])}
    else:
        start = re.split(r"[.\d]", library)[0].removesuffix("_cxx").rstrip("_")
        package = table(ANSWERS)["libraries"].get("libmkl" if start.startswith("libmkl") else start)
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
    suffixed = wheel in table(ANSWERS)["suffixed"]
    newest = f"{wheel}-cu13" if suffixed else wheel
    names = {"11": f"{wheel}-cu11", "12": f"{wheel}-cu12", "13": newest}
    return names[cuda] if cuda in names else f"{names['12']} / {newest}"


def _module(found: re.Match[str]) -> Answers:
    module = found["module"]
    if found["shadow"]:
        yield "shadow", {"name": module.partition(".")[0]}
        return
    modules = table(ANSWERS)["modules"]
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
        package = table(ANSWERS)["modules"].get(package, package)
        yield "name", {"name": found["name"], "module": module, "package": package}


def _ptx(found: re.Match[str]) -> Answers:
    cuda = table(ANSWERS)["ptx"]
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


_EVERY = (_symbol, _version, _library, _loaded, _module, _name, _ptx, _gpu, _driver, _image, _jax)
_READERS = {f"{each.__name__[1:]}()": each for each in _EVERY}
