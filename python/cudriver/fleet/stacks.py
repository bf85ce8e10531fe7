"""A report reduced to what may differ between nodes: a short value for each component.

Equal stacks are one object, so that a hundred thousand reports of three kinds take the memory of
three. Reports come from anywhere: whatever has another type than the schema says is shown as text.
"""

from __future__ import annotations

import marshal
from hashlib import blake2b
from sys import intern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Component = tuple[str, str]  # its kind, and a name among those of its kind
    Value = tuple[str, ...]  # what is shown, then what else tells two apart

DRIVER, KERNEL, OFFERS, LIBCUDA, GPUS = (
    "driver",
    "kernel module",
    "offers CUDA",
    "libcuda",
    "GPUs",
)
PYTHON, SYSTEM_TOOLKIT, OWN_TOOLKIT = "Python", "system toolkit", "environment's toolkit"
FRAMEWORK, BUILT_FOR, LIBRARY, LOADED = "framework", "built for", "library", "loaded"
VARIABLE, FINDING, VERDICT = "variable", "finding", "verdict"
KINDS = (
    *(DRIVER, KERNEL, OFFERS, LIBCUDA, GPUS, PYTHON, SYSTEM_TOOLKIT, OWN_TOOLKIT, FRAMEWORK),
    *(BUILT_FOR, LIBRARY, LOADED, VARIABLE, FINDING, VERDICT),
)
CUDA, CUDNN, NCCL = "CUDA ", "cuDNN ", "NCCL "  # what a framework's value says after its version
WITHOUT = "without CUDA"  # of a framework that is not here for CUDA
CAPABILITIES = "compute capability "

# Each process of a job has its own.
OF_A_PROCESS = frozenset((
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "NCCL_HOSTID"),
    *("NCCL_DEBUG_FILE", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"),
))  # fmt: skip
UNKNOWN = "unknown version"
LONGEST = 4096  # characters of a value; what is longer is told apart by its hash
MARSHAL = (
    2  # a version of the format in which equal values are equal bytes, wherever they came from
)
MOST_PARTS = 1000  # components of one report; a large environment has 150
OBJECTS = ("environment", "driver")
LISTS = ("toolkits", "frameworks", "libraries", "findings")
VERDICTS = ("consistent", "mismatch", "unknown")
APART = " \t\n:;,='\"()[]<>|"  # what stands before and after a path in a text


class Unusable(ValueError):
    """What is not a report of `cudriver check`, and why."""


class Stack:
    """What one or many nodes carry. Equal ones are the same object, as a Reducer makes them."""

    __slots__ = ("parts",)

    def __init__(self, parts: dict[Component, Value]) -> None:
        self.parts: dict[Component, Value] = parts

    def first(self, kind: str, name: str = "") -> str | None:
        """The value that is shown of a component; None where the node has none."""
        value = self.parts.get((kind, name))
        return value[0] if value else None

    def of_kind(self, kind: str) -> Iterator[tuple[str, Value]]:
        """The names and values of a kind."""
        return ((name, value) for (each, name), value in self.parts.items() if each == kind)

    def says(self, kind: str, name: str, what: str) -> str | None:
        """Of a value what follows a word: says(FRAMEWORK, "torch", CUDA) is "12.8"."""
        value = self.parts.get((kind, name), ())
        return next((text[len(what) :] for text in value[1:] if text.startswith(what)), None)


class Node:
    """One report: whose it is, and the stack that it tells of."""

    __slots__ = ("boot", "cudriver", "detail", "host", "hostname", "identity", "job", "prefix",
                 "rank", "ranks", "stack", "time")  # fmt: skip

    def __init__(self, report: dict[str, Any], stack: Stack, name: str) -> None:
        node = _object(report.get("node"))
        scheduler = _object(node.get("scheduler"))
        root = said(report["environment"].get("root"))
        self.stack: Stack = stack
        self.hostname: str = intern(said(node.get("host")))
        self.host: str = intern(root or _scheduled(node, scheduler) or self.hostname or name)
        self.prefix: str = intern(said(report["environment"].get("prefix")))
        self.boot: str = said(node.get("boot_id"))[:8]
        self.time: str = said(node.get("time"))
        self.cudriver: str = intern(said(node.get("cudriver")))
        self.rank: int | None = _count(node.get("rank"))
        self.ranks: int | None = _count(node.get("ranks"))
        # Two images, each in a job of its own: nobody has said that they work together.
        self.job: str = intern(f"image {root}" if root else said(node.get("job")))
        worker = said(scheduler.get("worker")) or said(scheduler.get("POD_NAME"))
        if self.rank is not None:
            self.detail: str = f" rank {self.rank}"
        else:
            self.detail = intern(f" {worker}" if worker else f":{self.prefix}")
        known = (self.host, self.prefix, self.job, self.rank, *map(said, scheduler.values()))
        self.identity: bytes = _digest(repr(known).encode("utf-8", "backslashreplace"))

    @property
    def verdict(self) -> str:
        """Verdict of its own check."""
        return self.stack.first(VERDICT) or "unknown"


class Reducer:
    """Makes nodes of reports, and keeps one of what is equal."""

    def __init__(self) -> None:
        self._by_report: dict[bytes, Stack] = {}
        self._packages: dict[bytes, dict[Component, Value]] = {}
        self._by_parts: dict[frozenset[tuple[Component, Value]], Stack] = {}
        self._values: dict[Value, Value] = {}
        self._components: dict[Component, Component] = {}

    def node(self, report: Any, name: str) -> Node:
        """The node of a report; `name` stands in for a host that it does not tell.

        Raises
        ------
        Unusable
            It is not a report of version 1.
        """
        check(report)
        # Nodes that differ in a variable, say, have the same packages: that half is kept apart.
        packages = _digest(_told_of_packages(report))
        key = packages + _digest(_told_of_node(report))
        stack = self._by_report.get(key)
        if stack is None:
            if packages not in self._packages:
                self._packages[packages] = dict(_package_parts(report))
            parts = self._packages[packages] | dict(_node_parts(report))
            if len(parts) > MOST_PARTS:
                raise Unusable(f"{len(parts)} components: no machine has so many")
            stack = self._by_report[key] = self.stack(parts)
        return Node(report, stack, name)

    def stack(self, parts: dict[Component, Value]) -> Stack:
        """The stack with these components."""
        shared = {
            self._components.setdefault(key, key): self._values.setdefault(value, value)
            for key, value in parts.items()
        }
        return self._by_parts.setdefault(frozenset(shared.items()), Stack(shared))


def _scheduled(node: dict[str, Any], scheduler: dict[str, Any]) -> str:
    """The machine's name as the scheduler lists it; "" where that is not told."""
    # Some mpirun hand on the variables of their own machine: Slurm's rank tells whose they are.
    if node.get("rank") is None or said(node["rank"]) == said(scheduler.get("SLURM_PROCID")):
        name = said(scheduler.get("SLURMD_NODENAME"))
        if name:
            return name
    # Outside of a pod, NODE_NAME may be anybody's.
    return said(scheduler.get("NODE_NAME")) if scheduler.get("POD_NAME") else ""


def check(report: Any) -> None:
    """Raises Unusable for what has not the form of a report of version 1."""
    if not isinstance(report, dict):
        raise Unusable(f"a JSON {type(report).__name__}, not a report")
    if "schema" not in report:
        raise Unusable("JSON without 'schema', not a report of cudriver check")
    if report["schema"] != 1:
        raise Unusable(f"schema {said(report['schema'])[:40]}: this cudriver reads schema 1")
    for names, kind, word in ((OBJECTS, dict, "object"), (LISTS, list, "list")):
        for name in names:
            if not isinstance(report.get(name), kind):
                raise Unusable(f"a report whose {name!r} is not a JSON {word}")


def said(value: Any) -> str:
    """A value of a report as text, never too long."""
    if isinstance(value, str):
        if len(value) <= LONGEST:
            return value
        return f"{value[:LONGEST]}... {_digest(value.encode('utf-8', 'surrogatepass')).hex()[:8]}"
    if value is None:
        return ""
    return repr(value)[:80] if isinstance(value, (int, float)) else f"<{type(value).__name__}>"


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _told_of_packages(report: dict[str, Any]) -> bytes:
    """What `_package_parts` looks at."""
    prefix = report["environment"].get("prefix")
    return marshal.dumps(
        [prefix, report["toolkits"], report["frameworks"], report["libraries"]], MARSHAL
    )


def _told_of_node(report: dict[str, Any]) -> bytes:
    """What `_node_parts` looks at, and as little else as is quick to leave out."""
    node, driver, env = _object(report.get("node")), report["driver"], report["environment"]
    drivers = [value for name, value in driver.items() if name != "devices"]
    devices = [(d.get("name"), d.get("compute_capability"), d.get("visible"))
               for d in _rows(driver.get("devices"))]  # fmt: skip
    findings = [(f.get("severity"), f.get("rule"), f.get("subject"), f.get("title"))
                for f in _rows(report["findings"])]  # fmt: skip
    return marshal.dumps(
        [report.get("verdict"), env.get("prefix"), env.get("python"), drivers, devices, findings,
         node.get("variables"), node.get("loaded")], MARSHAL,
    )  # fmt: skip


def _package_parts(report: dict[str, Any]) -> Iterator[tuple[Component, Value]]:
    """The components that are installed: toolkits, frameworks, libraries."""
    yield from _toolkits(report["toolkits"])
    for row in _rows(report["frameworks"]):
        name = said(row.get("name"))
        labelled = ((CUDA, row.get("cuda")), (CUDNN, row.get("cudnn")), (NCCL, row.get("nccl")))
        told = (label + said(value) for label, value in labelled if value)
        state = row.get("state", "works")
        shown = () if state == "works" else (WITHOUT if state is None else said(state),)
        yield (FRAMEWORK, name), (said(row.get("version")), *told, *shown)
        archs = row.get("archs")
        if archs and isinstance(archs, list):
            yield (BUILT_FOR, name), (" ".join(map(said, archs)),)
    yield from _files(LIBRARY, _rows(report["libraries"]), _prefix(report))


def _node_parts(report: dict[str, Any]) -> Iterator[tuple[Component, Value]]:
    """The other components: the machine, the process's variables, and what the check has found."""
    yield from _machine(report)
    prefix, node = _prefix(report), _object(report.get("node"))
    yield from _files(LOADED, _rows(node.get("loaded")), prefix)
    for name, value in _object(node.get("variables")).items():
        if name not in OF_A_PROCESS:
            yield (VARIABLE, said(name)), (_relative(said(value), prefix),)
    findings: dict[str, dict[str, str]] = {}
    for row in _rows(report["findings"]):
        if row.get("severity") in ("error", "warning"):
            rule = f"{said(row.get('rule'))} {said(row.get('subject'))}".rstrip()
            title = _relative(said(row.get("title")), prefix)
            findings.setdefault(rule, {})[title] = said(row["severity"])
    for rule, titles in findings.items():
        yield (FINDING, rule), ("; ".join(titles), min(titles.values()))  # an error goes first
    verdict = report.get("verdict")
    yield (VERDICT, ""), (verdict if verdict in VERDICTS else "unknown",)


def _machine(report: dict[str, Any]) -> Iterator[tuple[Component, Value]]:
    driver = report["driver"]
    yield (DRIVER, ""), (said(driver.get("release")) or "none", said(driver.get("error")))
    for kind, name in ((KERNEL, "kernel_release"), (OFFERS, "cuda")):
        if driver.get(name):
            yield (kind, ""), (said(driver[name]),)
    if driver.get("path"):  # its name ends in the release, which is told above
        yield (
            (LIBCUDA, ""),
            (said(driver["path"]).replace(said(driver.get("release")) or "\0", "*"),),
        )
    models: dict[str, int] = {}
    capabilities, visible = set(), 0
    devices = _rows(driver.get("devices"))
    for device in devices:
        model = said(device.get("name")) or "GPU"
        models[model] = models.get(model, 0) + 1
        capabilities.add(said(device.get("compute_capability")))
        visible += device.get("visible") is not False
    if models:
        counted = "; ".join(f"{count} x {model}" for model, count in sorted(models.items()))
        told = CAPABILITIES + " ".join(sorted(capabilities))
        hidden = (f"{visible} visible",) if visible < len(devices) else ()
        yield (GPUS, ""), (counted, told, *hidden)
    if report["environment"].get("python"):
        yield (PYTHON, ""), (said(report["environment"]["python"]),)


def _toolkits(rows: Any) -> Iterator[tuple[Component, Value]]:
    """The environment's by their versions; the system's by their folders, too."""
    for kind, origin in ((SYSTEM_TOOLKIT, "system"), (OWN_TOOLKIT, "environment")):
        found = [row for row in _rows(rows) if row.get("origin") == origin]
        if found:
            told = sorted({said(row.get("version")) or UNKNOWN for row in found})
            where = sorted(said(row.get("path")) for row in found) if origin == "system" else []
            yield (kind, ""), (", ".join(told), *where)


def _files(kind: str, rows: list[dict[str, Any]], prefix: str) -> Iterator[tuple[Component, Value]]:
    """Libraries by their names. What a package of the environment brought needs no path: that tells
    Python's version once more.
    """
    found: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        origin = said(row.get("provided_by")) or _relative(said(row.get("path")), prefix)
        found.setdefault(said(row.get("soname")), set()).add((said(row.get("version")), origin))
    for soname, files in found.items():
        versions = [version or UNKNOWN for version, _ in sorted(files)]
        yield (kind, soname), (" + ".join(versions), *(origin for _, origin in sorted(files)))


def _prefix(report: dict[str, Any]) -> str:
    return said(report["environment"].get("prefix")).rstrip("/")


def _relative(text: str, prefix: str) -> str:
    """The text with the environment's folder named, not spelled out: two may lie elsewhere. In
    /mnt/opt/env/lib the folder is not /opt/env, and in /opt/env2 it is another.
    """
    if len(prefix) < 2 or prefix not in text:
        return text
    told, *rest = text.split(prefix)
    for piece in rest:
        whole = told[-1:] in APART and piece[:1] in APART + "/"
        told += ("PREFIX" if whole else prefix) + piece
    return told


def _rows(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; nothing where it is none."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    plain = isinstance(value, int) and not isinstance(value, bool)
    return value if plain and 0 <= value < 1 << 31 else None
