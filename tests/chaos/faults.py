"""One random fault: drawn from a seed, planted in a copy whose files are hard links."""

from __future__ import annotations

import os
import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from corpus.workshop import Workshop, site_packages

PAGE = 4096
MACHINE = slice(18, 20)  # of an ELF header
AARCH64 = (183).to_bytes(2, "little")
SMALL = 60_000_000  # bytes of a distribution of which another version is downloaded

# What may befall a file, and how often beside the others. As root nothing is unreadable but a link
# that leads to itself.
FILE = {
    "delete": 3, "empty": 3, "truncate": 3, "zero head": 2, "zero tail": 2, "zero page": 1,
    "link to itself": 1, "broken link": 1, "folder": 1,
}  # fmt: skip
LIBRARY = {**FILE, "other machine": 2, "library path": 1}
DISTRIBUTION = {
    "uninstall": 3, "half uninstall": 2, "no dist-info": 1, "no RECORD": 1, "other version": 2,
    "python path": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Known:
    """What is known of a healthy environment."""

    opened: tuple[str, ...]  # files that imports and first uses open, from the prefix on
    owners: dict[str, tuple[str, str]]  # file: distribution, version
    required: frozenset[str]  # distributions that another one requires
    files: dict[str, tuple[str, ...]]  # distribution: files, those of its dist-info last
    sizes: dict[str, int]  # distribution: bytes


@dataclass(frozen=True)
class Fault:
    """What is done, and to what: a file or a distribution."""

    seed: int
    kind: str
    target: str  # a file, from the prefix on; or a distribution
    owner: str  # the file's distribution; "" for none
    number: int  # where a file is cut, and what else is left to chance
    brings: tuple[str, ...] = ()  # a distribution's shared libraries

    @property
    def words(self) -> tuple[str, ...]:
        """Words of which a finding has one if it names the cause."""
        name = os.path.basename(self.target)
        # A package without its first file is known by its folder.
        folder = os.path.basename(os.path.dirname(self.target)) if "__init__" in name else ""
        return tuple(word for word in (name, self.owner, folder, *self.brings) if word)


@dataclass
class Planted:
    """A broken copy."""

    prefix: Path
    environ: dict[str, str] = field(default_factory=dict)


def survey(prefix: Path, opened: list[str]) -> Known:
    """Who owns what, by the RECORD files."""
    site = site_packages(prefix)
    owners: dict[str, tuple[str, str]] = {}
    files: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    required: set[str] = set()
    for record in sorted(site.glob("*.dist-info/RECORD")):
        stem = record.parent.name.removesuffix(".dist-info")
        name, _, version = stem.partition("-")
        name = name.lower().replace("_", "-")
        listed = [line.rsplit(",", 2)[0].strip('"') for line in record.read_text().splitlines()]
        places = [os.path.normpath(site / path) for path in listed]
        inside = [os.path.relpath(p, prefix) for p in places if os.path.isfile(p)]
        inside.sort(key=lambda path: (".dist-info/" in path, path))
        files[name] = tuple(inside)
        sizes[name] = sum(os.path.getsize(prefix / path) for path in inside)
        metadata = record.with_name("METADATA").read_text("utf-8").split("\n\n")[0]
        # Not for an extra, of which nobody can tell whether it was asked for.
        asks = r"^Requires-Dist: ([\w.-]+)(?!.*\bextra\b)"
        wanted = re.findall(asks, metadata, re.MULTILINE)
        required.update(re.sub(r"[-_.]+", "-", each).lower() for each in wanted)
        owners.update(dict.fromkeys(inside, (name, version)))
    return Known(tuple(sorted(opened)), owners, frozenset(required), files, sizes)


def draw(environment: str, seed: int, known: Known) -> Fault:
    """The fault of a seed. The same seed draws the same fault from the same environment."""
    chance = random.Random(f"{environment} {seed}")
    libraries = [path for path in known.opened if ".so" in os.path.basename(path)]
    modules = [path for path in known.opened if path.endswith(".py")]
    others = [p for p in known.opened if p in known.owners and not p.endswith((".py", ".pyc"))]
    others = [path for path in others if path not in libraries]
    used = sorted({known.owners[path][0] for path in known.opened if path in known.owners})
    # Of what nothing opens, the check must not say that an import ends there.
    opened = set(known.opened)
    idle = [p for p in known.owners if p.endswith((".py", ".so")) and p not in opened]
    idle = [path for path in idle if known.owners[path][0] in used]
    pools = [(libraries, LIBRARY, 9), (modules, FILE, 7), (others, FILE, 1), (idle, FILE, 3)]
    pools = [(pool, kinds, weight) for pool, kinds, weight in pools if pool]
    pools.append((used, DISTRIBUTION, 4))
    pool, kinds, _ = chance.choices(pools, [weight for _, _, weight in pools])[0]
    kind = chance.choices(list(kinds), list(kinds.values()))[0]
    target = chance.choice(pool)
    if kind == "other version" and known.sizes[target] > SMALL:
        kind = "uninstall"
    if kind == "uninstall" and target not in known.required:
        kind = "half uninstall"  # whether anybody wants it, nobody can tell
    owner = known.owners.get(target, ("", ""))[0]
    number = chance.randrange(1 << 30)
    names = {os.path.basename(path) for path in known.files.get(target, ())}
    brings = tuple(sorted(name for name in names if ".so" in name))
    return Fault(seed, kind, target, owner, number, brings)


def plant(shop: Workshop, prefix: Path, known: Known, fault: Fault) -> Planted:
    """A copy with the fault in it. Raises InstallError."""
    target = prefix.with_name(f"{prefix.name}@{fault.seed}")
    shop.remove(target)
    shop.run("cp", "-al", prefix, target)
    result = Planted(target)
    if fault.target in known.files:
        _plant_in_distribution(shop, result, known, fault)
    elif fault.kind == "library path":
        folder = target.with_name(target.name + ".side")
        folder.mkdir()
        copy = folder / os.path.basename(fault.target)
        copy.write_bytes(damaged(fault, (target / fault.target).read_bytes()))
        result.environ["LD_LIBRARY_PATH"] = str(folder)
    else:
        _plant_in_file(target / fault.target, fault)
    return result


def _plant_in_file(path: Path, fault: Fault) -> None:
    """The file is unlinked first: it has other names, in the cache and elsewhere."""
    content, mode = path.read_bytes(), path.stat().st_mode
    path.unlink()
    if fault.kind == "delete":
        return
    if fault.kind == "folder":
        path.mkdir()
    elif fault.kind == "link to itself":
        path.symlink_to(path.name)
    elif fault.kind == "broken link":
        path.symlink_to(f"{path.name}.{fault.number}")
    else:
        path.write_bytes(damaged(fault, content))
        path.chmod(mode)


def damaged(fault: Fault, content: bytes) -> bytes:
    """The file's bytes after the fault."""
    size = len(content)
    at = fault.number % max(size, 1)
    if fault.kind == "empty":
        return b""
    if fault.kind in ("truncate", "library path"):
        return content[:at]
    if fault.kind == "zero head":
        return bytes(min(size, PAGE)) + content[PAGE:]
    if fault.kind == "zero tail":
        return content[:at] + bytes(size - at)
    if fault.kind == "zero page":
        at -= at % PAGE
        return content[:at] + bytes(min(PAGE, size - at)) + content[at + PAGE :]
    if fault.kind == "other machine":
        return content[: MACHINE.start] + AARCH64 + content[MACHINE.stop :]
    raise ValueError(f"{fault.kind!r} is not damage")


def _plant_in_distribution(shop: Workshop, planted: Planted, known: Known, fault: Fault) -> None:
    prefix, name = planted.prefix, fault.target
    files = known.files[name]
    metadata = [path for path in files if ".dist-info/" in path]
    python = prefix / "bin" / "python"
    if fault.kind == "uninstall":
        shop.run(shop.uv, "pip", "uninstall", "--quiet", "--python", python, name)
    elif fault.kind == "half uninstall":
        own = [path for path in files if path not in metadata]
        for path in own[: 1 + fault.number % max(len(own), 1)]:
            (prefix / path).unlink()
    elif fault.kind == "no dist-info":
        shutil.rmtree(prefix / os.path.dirname(metadata[0]))
    elif fault.kind == "no RECORD":
        (prefix / next(path for path in metadata if path.endswith("/RECORD"))).unlink()
    elif fault.kind == "other version":
        version = known.owners[files[0]][1]
        shop.install(prefix, [f"{name}<{version}"])
    elif fault.kind == "python path":
        # Half of the package in a folder that comes first.
        folder = prefix.with_name(prefix.name + ".side")
        site = site_packages(prefix)
        own = [prefix / path for path in files if path not in metadata]
        own = [path for path in own if path.is_relative_to(site)]
        for path in own[: 1 + fault.number % max(len(own), 1)]:
            copy = folder / path.relative_to(site)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        planted.environ["PYTHONPATH"] = str(folder)
