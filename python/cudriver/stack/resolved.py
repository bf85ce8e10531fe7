"""The file that each CUDA library of an environment resolves to: `stack.which`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cudriver.stack.collect import ask, collect_libraries
from cudriver.stack.facts import Facts, Library, Missing
from cudriver.stack.record import Any, Record, jsonable
from cudriver.stack.report.outcome import promised


class Resolved(Record):
    """CUDA libraries that an environment's frameworks load, as `stack.which` returns them."""

    facts: Facts
    libraries: list[Library]  # found: soname, path, found_by, provided_by, shadowed, ...
    missing: list[Missing]  # not found: soname, needed_by, searched
    unknown: list[str]  # names that none answers to

    @property
    def exit_code(self) -> int:
        """Exit code of ``cudriver which``: 0 all found, 1 one is not, 3 none is in use here, or it
        could not be told.
        """
        if self.facts.unsure:
            return 3
        if self.missing or self.unknown:
            return 1
        return 0 if self.facts.libraries else 3

    def to_dict(self) -> dict[str, Any]:
        """What ``cudriver which --json`` prints, as jsonable data."""
        return {
            "schema": 1,
            "libraries": promised("libraries", self.libraries),
            "missing": jsonable(self.missing),
            "unknown": self.unknown,
        }


def which(
    *names: str,
    prefix: str | None = None,
    root: str = "/",
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """Tell which file each CUDA library resolves to, as ``cudriver which`` does.

    Parameters
    ----------
    *names : str
        ``"libcudnn.so.9"``, ``"libcudnn"`` or ``"cudnn"``. All libraries where none is named.
    prefix, root, environ : optional
        As `inspect` takes them.

    Returns
    -------
    Resolved
        ``libraries``: each with its ``soname``, ``path``, ``found_by`` (the loader's rule),
        ``provided_by`` and ``shadowed`` (what a later rule would have given); ``missing``: what is
        loaded and not found; ``unknown``: names that no library in use here answers to;
        ``exit_code`` and ``to_dict()`` as the command has them.

    Raises
    ------
    NotADirectoryError
        `prefix` or `root` is not a folder.

    Examples
    --------
    >>> stack.which("cudnn").missing
    []
    """
    return resolve(collect_libraries(ask(prefix, root=root, environ=environ)), names)


def resolve(facts: Facts, names: Sequence[str]) -> Resolved:
    """Of these facts what the names ask for."""
    libraries = [lib for lib in facts.libraries if wanted(lib.soname, lib.family, names)]
    missing: dict[str, Missing] = {}
    for each in facts.missing:
        if wanted(each.soname, "", names):
            missing.setdefault(each.soname, each)
    known = [*((lib.soname, lib.family) for lib in libraries), *((name, "") for name in missing)]
    unknown = [name for name in names if not any(wanted(*each, [name]) for each in known)]
    return Resolved(facts, libraries, [*missing.values()], unknown)


def wanted(soname: str, family: str, names: Collection[str]) -> bool:
    """Whether one of `names` means this library: its SONAME, its stem with or without lib."""
    stem = soname.partition(".so")[0]
    return not names or not {soname, stem, stem.removeprefix("lib"), family}.isdisjoint(names)
