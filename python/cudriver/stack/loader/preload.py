"""What frameworks load by themselves before their own libraries, read from their sources.

torch/__init__.py first loads libtorch_global_deps.so for everybody. It then preloads CUDA libraries
from site-packages: since 2.6 always, where its own libcudart came along, and in every version where
that first load failed. Which libraries, in which order and from which folders differs by version,
so it is taken from the text of the very file, which is never run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cudriver.stack.facts import LoadFault
from cudriver.stack.loader.process import Load, Process
from cudriver.stack.loader.search import Search
from cudriver.stack.record import Record, fresh
from cudriver.stack.roots.rootfs import Root

SOURCE_LIMIT = 1 << 20  # bytes of a torch/__init__.py

_GLOBAL = "\nUSE_GLOBAL_DEPS = True"
_FUNCTIONS = ("_load_global_deps", "_preload_cuda_deps", "_preload_cuda_lib", "_get_cuda_dep_paths")
_PAIR = re.compile(
    r"""(?:\(\s*|cuda_libs\[)?['"](\w+)['"]\]?\s*[:,=]\s*['"](lib[\w.+-]+\.so[^'"]*)['"]"""
)
_CALL = re.compile(
    r"""_preload_cuda_(?:deps|lib)\(\s*(?:['"](\w+)['"],\s*['"]([^'"]+)['"](,\s*required=False)?)?"""
)
_EXTENSION = re.compile(r"_C(\.abi3|\.cpython-[^.]*)?\.so")  # whatever Python it is for
_NEXT = re.compile(r"^[^\s#)]", re.MULTILINE)  # what follows a function
_MAPS = re.compile(r"""['"]([^'"]+)['"] not in _maps""")


class Preload(Record):
    """One library that torch loads from sys.path: nvidia/FOLDER/lib/PATTERN."""

    folder: str
    pattern: str
    required: bool = True


class TorchPreloads(Record):
    """What a torch/__init__.py does about CUDA libraries."""

    always: list[Preload] = fresh(list)  # after libtorch_global_deps.so, errors are swallowed
    needs_mapped: str = ""  # ... and only where a mapped file's name contains this
    rescue: list[Preload] = fresh(list)  # where libtorch_global_deps.so failed
    shared: str = ""  # is looked into as well: "nvidia/cu13/lib"


def read_torch(text: str, cuda_major: int | None) -> TorchPreloads:
    """The preloads in the text of a torch/__init__.py; none where it has no such code."""
    functions = {name: _function(text, name) for name in _FUNCTIONS}
    found = TorchPreloads()
    main = functions["_load_global_deps"]
    attempt, _, rescue = main.partition("except OSError")
    shared = functions["_preload_cuda_deps"]
    listed = shared if "cuda_libs" in shared else rescue
    found.rescue = _pairs(listed, cuda_major) if "_preload_cuda_" in rescue else []
    maps = _MAPS.search(attempt)
    if maps is not None:
        found.needs_mapped = maps[1]
        for folder, pattern, optional in _CALL.findall(attempt[maps.end() :]):
            if folder:
                found.always.append(Preload(folder, pattern, not optional))
            else:
                found.always += _pairs(shared, cuda_major)
    paths = functions["_get_cuda_dep_paths"] or shared
    if cuda_major and ("f'cu{" in paths or 'f"cu{' in paths):
        found.shared = f"nvidia/cu{cuda_major}/lib"
    return found


def _function(text: str, name: str) -> str:
    """The text of a function at the top level, comment lines left out; "" where there is none."""
    start = text.find(f"\ndef {name}(") + 1
    if not start:
        return ""
    end = _NEXT.search(text, start + 1)
    lines = text[start : end.start() - 1 if end else None].split("\n")
    # Comments may name libraries too.
    return "\n".join(line for line in lines if not line.lstrip(" \t").startswith("#"))


def _pairs(text: str, cuda_major: int | None) -> list[Preload]:
    """The (folder, pattern) pairs of a list or dictionary, and the single calls after it."""
    found: list[Preload] = []
    for match in _PAIR.finditer(text):
        call = text[: match.start()].rstrip(" \n(").endswith(("_preload_cuda_lib", "_cuda_deps"))
        if call:
            end = text.find(")", match.end())
            found.append(
                Preload(match[1], match[2], "required=False" not in text[match.end() : end])
            )
        elif "cuda_libs[" in match[0] and (cuda_major or 0) < 12:
            continue  # libcufile, which CUDA 11 lacks
        else:
            found.append(Preload(match[1], match[2]))
    return found


def import_torch(
    process: Process, package: str, cuda_major: int | None, sys_path: Sequence[str]
) -> list[Load]:
    """`import torch` as far as the loader sees it: libtorch_global_deps.so, the preloads that
    torch/__init__.py of this very version makes, then torch._C. `package` is the torch folder,
    `sys_path` what sys.path will be (the site-packages folders do). Returns every dlopen made; the
    last one is torch._C's, unless an earlier one ended the import. What torch gets over is
    forgiven; where its rescue fails too, both failures stay, and the last is the one raised.
    """
    root = process.loader.root
    plan = read_torch(root.text(f"{package}/__init__.py", SOURCE_LIMIT) or "", cuda_major)
    folders = [*dict.fromkeys([*sys_path, package.rstrip("/").rpartition("/")[0]])]
    loads: list[Load] = []
    dependencies = f"{package}/lib/libtorch_global_deps.so"
    own = f"{package}/_utils_internal.py"  # says whether it is loaded, or need not be there
    if root.is_file(dependencies) or _GLOBAL in (root.text(own, SOURCE_LIMIT) or ""):
        first = process.dlopen(dependencies, everywhere=True)
        loads.append(first)
        if first.error is None:
            # /proc/self/maps has paths with links followed.
            mapped = [obj.real_path for obj in process.objects]
            if plan.needs_mapped and any(plan.needs_mapped in path for path in mapped):
                _preload(process, plan, plan.always, folders, loads)
                for load in loads:
                    load.faults = []
        elif not _rescue(process, plan, folders, loads):
            return loads
    for name in list(filter(_EXTENSION.fullmatch, root.names(package)))[:1]:
        loads.append(process.dlopen(f"{package}/{name}"))
    return loads


def _rescue(
    process: Process, plan: TorchPreloads, folders: Sequence[str], loads: list[Load]
) -> bool:
    """What torch does where its global dependencies do not load. False: the import ends."""
    first = loads[0]
    names = [preload.pattern.partition(".")[0] for preload in plan.rescue]
    if not any(name in (first.error or "") for name in names):
        return False
    missing = _preload(process, plan, plan.rescue, folders, loads)
    if missing is not None:
        # A ValueError of torch's own; its text goes on with sys.path.
        message = f"{missing.pattern} not found in the system path"
        fault = LoadFault("not found", first.name, message, missing.pattern)
        loads.append(Load(missing.pattern, Search(missing.pattern, first.name), faults=[fault]))
    if loads[-1].error is None:
        loads.append(process.dlopen(first.name, everywhere=True))
    if loads[-1].error is None:
        first.faults = []
        return True
    return False


def _preload(
    process: Process,
    plan: TorchPreloads,
    preloads: Sequence[Preload],
    folders: Sequence[str],
    loads: list[Load],
) -> Preload | None:
    """Loads one after the other, up to the first failure. Returns what is not there, if any."""
    for preload in preloads:
        path = _candidate(process.loader.root, preload, plan, folders)
        if path is None:
            if preload.required:
                return preload
            continue
        loads.append(process.dlopen(path))
        if loads[-1].error is not None:
            return None
    return None


def _candidate(
    root: Root, preload: Preload, plan: TorchPreloads, folders: Sequence[str]
) -> str | None:
    """The first match on sys.path. Of several in one folder torch takes glob's first."""
    for folder in folders:
        places = (f"nvidia/{preload.folder}/lib", plan.shared, f"{preload.folder}/lib")
        inside = (f"{folder}/{place}" for place in places if place)
        found = [path for place in inside for path in root.glob(place, preload.pattern)]
        if found:
            return found[0]
    return None
