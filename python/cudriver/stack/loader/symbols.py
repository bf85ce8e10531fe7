"""Versions and symbols: what ld.so checks between mapping objects and running them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cudriver import _elf
from cudriver.stack.facts import LoadFault
from cudriver.stack.loader.search import LoadedObject

Find = Callable[[str], "LoadedObject | None"]


def check_versions(new: Sequence[LoadedObject], find: Find) -> list[LoadFault]:
    """The versions that the new objects need and their providers lack, in ld.so's order."""
    faults: list[LoadFault] = []
    for obj in new:
        for need in obj.elf.version_needs:
            provider = find(need.library)
            # A provider without any versions is taken as it is, until a symbol is looked up.
            if provider is None or need.weak or not provider.elf.has_versions:
                continue
            if need.version in provider.elf.versions or need.version == provider.elf.base_version:
                continue
            text = f"{provider.path}: version `{need.version}' not found (required by {obj.path})"
            faults.append(LoadFault("version", obj.path, text, need.version, provider.path))
    return faults


def relocation_order(searchlist: Sequence[LoadedObject]) -> list[LoadedObject]:
    """Dependencies first, as ld.so (2.35 and later) sorts a breadth-first list."""
    members = {id(obj) for obj in searchlist}
    done: set[int] = set()
    order: list[LoadedObject] = []
    for start in reversed(searchlist):
        if id(start) in done:
            continue
        done.add(id(start))
        # A stack of its own: chains of dependencies may be longer than Python's.
        stack = [(start, _dependencies(start))]
        while stack:
            obj, left = stack[-1]
            for child in left:
                if id(child) in members and id(child) not in done:
                    done.add(id(child))
                    stack.append((child, _dependencies(child)))
                    break
            else:
                stack.pop()
                order.append(obj)
    return order


def _dependencies(obj: LoadedObject) -> Iterator[LoadedObject]:
    return (child for _, child in obj.needed if child is not None)


def check_symbols(
    new: Sequence[LoadedObject], scope: Sequence[LoadedObject], find: Find, *, now: bool = True
) -> tuple[list[LoadFault], list[LoadFault]]:
    """The undefined symbols of the new objects (in relocation order) that `scope` lacks: those
    that end the load, and those that a call would meet later (lazy binding). The symbols of a
    library that has lost its versions are taken as they are.
    """
    elves = tuple(obj.elf for obj in scope)
    answers = _elf.missing([(obj.elf, elves) for obj in new])
    faults: list[LoadFault] = []
    later: list[LoadFault] = []
    damaged: set[str] = set()
    for obj, answer in zip(new, answers, strict=True):
        if isinstance(answer, _elf.ElfError):
            if answer.errno is not None:  # it could not be read, which says nothing about it
                raise answer
            # A file that several environments share was read under its name in the first of them.
            path = next(o.path for o in (obj, *scope) if o.elf.shown == answer.filename)
            if path not in damaged:
                damaged.add(path)
                faults.append(LoadFault("damaged", path, f"{path}: {answer.reason}"))
            continue
        for reference in answer:
            lazy = reference.lazy and not now and not obj.elf.bind_now
            provider = find(reference.library) if reference.library is not None else None
            elf = provider.elf if provider else None
            if elf and not elf.has_symbol_versions and elf.find(reference.name):
                continue
            name, version = reference.name, reference.version
            message = f"{obj.path}: undefined symbol: {name}"
            message += f", version {version}" if version is not None else ""
            where = provider.path if provider is not None else reference.library
            fault = LoadFault("symbol", obj.path, message, name, where, lazy)
            (later if lazy else faults).append(fault)
    return faults, later
