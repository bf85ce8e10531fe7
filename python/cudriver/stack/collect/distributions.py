"""Installed distributions: .dist-info and .egg-info folders, and what conda-meta says.

Names and versions come from the folders' names. METADATA is opened for all, but read closely only
where it speaks of CUDA: an environment has hundreds of packages, and a dozen matter.
"""

from __future__ import annotations

import re

from cudriver.stack.markers import Markers, environment, normal
from cudriver.stack.model import Distribution, Environment, Evidence, Problem, Requirement
from cudriver.stack.rootfs import Root

HEAD = 512 << 10  # bytes of METADATA that are read; headers are at its start
CONDA_LIMIT = 64 << 20
CONDA_HEAD = 64 << 10

_INFO = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._]*?)-(?P<version>[^-]+)(?:-py[\d.]+)?\Z")
_REQUIRES = re.compile(
    r"\s*(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*"
    r"(?:\[(?P<extras>[^\]]*)\])?\s*(?P<specifier>[^;@]*)"
    r"(?:;\s*(?P<marker>.*))?\Z"
)
_CONDA_NAME = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-(?P<build>[^-]+)\.json\Z")
# A requirement whose name has one of these is of interest.
_SPEAKS = re.compile(
    rb"^Requires-Dist:\s*(?:nvidia-|cuda|torch|triton|jax|tensorrt|cupy|onnxruntime"
    rb"|tensorflow|numba)",
    re.MULTILINE | re.IGNORECASE,
)
# Beginnings of names, not patterns: each pattern costs its compilation in every run.
_CUDA_NAMES = (
    *("nvidia-", "cuda", "cupy", "cutensor", "torch", "triton", "pytorch", "jax", "tensorflow"),
    *("tensorrt", "onnxruntime", "numba", "flash-attn", "xformers", "vllm", "bitsandbytes"),
    *("deepspeed", "apex", "transformer-engine"),
)
_CONDA_NAMES = (
    *("cuda", "cudnn", "cupti", "cupy", "cutensor", "gds-tools", "jax", "libcu", "libnpp", "libnv"),
    *("libtorch", "nccl", "numba", "nvidia", "onnxruntime", "pytorch", "tensorflow", "tensorrt"),
    *("torch", "triton"),
)


def matters(name: str) -> bool:
    """Whether a (normalised) distribution has to do with CUDA by its name."""
    return name.startswith(_CUDA_NAMES)


def conda_matters(name: str) -> bool:
    """The same of a conda package."""
    return name.startswith(_CONDA_NAMES)


def collect(root: Root, env: Environment, problems: list[Problem]) -> list[Distribution]:
    """Every installed distribution; of two with one name, the one that Python imports."""
    markers = Markers(environment(env.python or "3.12", env.platform))
    found: dict[str, Distribution] = {}
    for folder in env.site_packages:
        for name in root.names(folder):
            if name.endswith((".dist-info", ".egg-info")):
                dist = _read(root, folder, name, markers, problems)
                if dist is not None:
                    found.setdefault(dist.name, dist)
    if env.kind == "conda":
        for dist in _conda(root, env.prefix, problems):
            _merge(found, dist)
    return list(found.values())


def _merge(found: dict[str, Distribution], conda: Distribution) -> None:
    """A conda package of Python code has a .dist-info too: one distribution, with conda's build."""
    known = found.get(conda.name) or found.get("torch" if conda.name == "pytorch" else "")
    if known is None:
        found[conda.name] = conda
        return
    if known.kind == "wheel" and known.installer in ("conda", None):
        known.build, known.channel, known.installer = conda.build, conda.channel, "conda"
        known.conda_name = conda.name
    if conda.name not in found:
        found[conda.name] = conda


def _read(
    root: Root, folder: str, entry: str, markers: Markers, problems: list[Problem]
) -> Distribution | None:
    path = f"{folder}/{entry}"
    stem, _, suffix = entry.rpartition(".")
    match = _INFO.match(stem)
    kind = "wheel" if suffix == "dist-info" else "egg"
    metadata = f"{path}/METADATA" if kind == "wheel" else f"{path}/PKG-INFO"
    if match and not matters(normal(match["name"])) and kind == "egg":
        return Distribution(normal(match["name"]), match["version"], kind, path, folder)
    try:
        raw = root.read(metadata, HEAD)
    except (OSError, ValueError) as error:
        if kind == "wheel":
            problems.append(Problem(metadata, f"cannot be read: {_reason(error)}"))
        raw = b""
    if not match:
        match = _from_headers(raw)
        if match is None:
            if raw:
                problems.append(Problem(metadata, "has no Name and Version"))
            return None
    dist = Distribution(normal(match["name"]), match["version"], kind, path, folder)
    if matters(dist.name) or _SPEAKS.search(raw):
        installer = root.text(f"{path}/INSTALLER", 256)
        dist.installer = (
            (installer or "").strip().splitlines()[0] if installer and installer.strip() else None
        )
        _headers(dist, metadata, raw, markers, problems)
    return dist


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _from_headers(raw: bytes) -> re.Match[str] | None:
    head = raw[:65536].decode("utf-8", "replace")
    name = re.search(r"^Name:\s*(\S+)", head, re.MULTILINE)
    version = re.search(r"^Version:\s*(\S+)", head, re.MULTILINE)
    if not name or not version:
        return None
    return _INFO.match(f"{name[1].replace('-', '_')}-{version[1].replace('-', '_')}")


def _headers(
    dist: Distribution, file: str, raw: bytes, markers: Markers, problems: list[Problem]
) -> None:
    """Name, Version and Requires-Dist, with the lines they stand on."""
    body = re.search(rb"\r?\n\r?\n", raw)
    head = raw[: body.start()] if body else raw
    if len(raw) == HEAD and not body:
        problems.append(
            Problem(file, f"its headers go on past {HEAD} bytes; the rest was not read")
        )
    if b"\0" in head:
        problems.append(Problem(file, "is not text"))
        return
    named = False
    for number, line in enumerate(head.decode("utf-8", "replace").splitlines(), 1):
        key, _, value = line.partition(":")
        if key == "Requires-Dist":
            _require(dist, file, number, value, markers, problems)
        elif key == "Version" and value.strip():
            dist.version, dist.line = value.strip(), number
        elif key == "Name" and value.strip():
            named = True
    if raw and not named:
        problems.append(Problem(file, "has no Name", 1))


def _require(
    dist: Distribution,
    file: str,
    number: int,
    text: str,
    markers: Markers,
    problems: list[Problem],
) -> None:
    match = _REQUIRES.match(text) if len(text) < 4096 else None
    if match is None:
        if "@" not in text:  # a direct reference says nothing about versions
            problems.append(
                Problem(file, f"a requirement that cannot be read: {text.strip()[:80]}", number)
            )
        return
    marker = match["marker"]
    extra = ""
    if marker:
        applies = markers.holds(marker)
        if applies is None:
            problems.append(
                Problem(file, f"a marker that cannot be read: {marker.strip()[:80]}", number)
            )
            return
        if not applies:
            # Kept with its extra: only a distribution that asks for the extra makes it count.
            wanted = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", marker)
            if not wanted or not markers.holds(marker, wanted[1]):
                return
            extra = normal(wanted[1])
    extras = [normal(e.strip()) for e in (match["extras"] or "").split(",") if e.strip()]
    dist.requires.append(
        Requirement(
            name=normal(match["name"]),
            specifier=match["specifier"].strip().removeprefix("(").removesuffix(")").strip(),
            evidence=Evidence(file, number, text.strip()),
            extras=extras,
            extra=extra,
        )
    )


def _conda(root: Root, prefix: str, problems: list[Problem]) -> list[Distribution]:
    found = []
    folder = f"{prefix}/conda-meta"
    for entry in root.names(folder):
        match = _CONDA_NAME.match(entry)
        if match is None:
            continue
        name = normal(match["name"])
        dist = Distribution(name, match["version"], "conda", f"{folder}/{entry}", prefix)
        dist.build, dist.installer = match["build"], "conda"
        if conda_matters(name):
            _conda_record(root, dist, problems)
        found.append(dist)
    return found


def _conda_record(root: Root, dist: Distribution, problems: list[Problem]) -> None:
    """Channel and dependencies. The file list, which can be megabytes, comes after what we want."""
    try:
        raw = root.read(dist.path, CONDA_LIMIT)
    except (OSError, ValueError) as error:
        problems.append(Problem(dist.path, f"cannot be read: {_reason(error)}"))
        return
    record = conda_json(raw, dist.path, problems)
    if record is None:
        return
    channel = record.get("channel")
    if isinstance(channel, str):
        dist.channel = channel.rstrip("/").removesuffix("/linux-64").rpartition("/")[2] or channel
    depends = record.get("depends")
    for text in depends if isinstance(depends, list) else []:
        if not isinstance(text, str):
            continue
        words = text.split()
        if words and conda_matters(normal(words[0])):
            line = _line_of(raw, text)
            dist.requires.append(
                Requirement(
                    normal(words[0]),
                    words[1] if len(words) > 1 else "",
                    Evidence(dist.path, line, text),
                    build=words[2] if len(words) > 2 else None,
                )
            )


def conda_json(raw: bytes, path: str, problems: list[Problem]) -> dict[str, object] | None:
    """A conda-meta record, or None and a problem. RecursionError: nested without end."""
    import json

    try:
        record = json.loads(raw)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        problems.append(Problem(path, f"is not JSON: {getattr(error, 'msg', None) or error}", line))
        return None
    if not isinstance(record, dict):
        problems.append(Problem(path, "is not a JSON object"))
        return None
    return record


def _line_of(raw: bytes, text: str) -> int | None:
    at = raw.find(f'"{text}"'.encode())
    return raw.count(b"\n", 0, at) + 1 if at >= 0 else None


def active(dist: Distribution, extras: list[str]) -> list[Requirement]:
    """The requirements that count when a distribution is asked for with these extras."""
    return [r for r in dist.requires if not r.extra or r.extra in extras]
