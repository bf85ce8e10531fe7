"""An environment inspected, from its facts to a report: `stack.inspect`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cudriver.stack.collect import ask, collect, collect_machine, recollect
from cudriver.stack.machine.driver import assumed
from cudriver.stack.report import Report
from cudriver.stack.rules import cu6, judge
from cudriver.stack.rules.cu2 import LEVELS


def inspect(
    prefix: str | None = None,
    *,
    root: str = "/",
    environ: Mapping[str, str] | None = None,
    probe_driver: bool = True,
    assume_driver: str | None = None,
    assume_gpus: Sequence[str] | None = None,
    match: str | None = None,
    match_level: str = "minor",
    needs: Sequence[str] = (),
    expect: Sequence[str] = (),
) -> Report:
    """Inspect an environment from outside: which CUDA it really uses, and whether it fits.

    Parameters
    ----------
    prefix : str, optional
        The environment's folder. The default is the running interpreter's.
    root : str, optional
        Another file system's root. `prefix` is then a path inside it, and nothing of this machine
        is looked at.
    environ : mapping of str to str, optional
        Stands in for the process's environment variables. For another root the default is none.
    probe_driver : bool, optional
        Whether to ask NVML, in a child process.
    assume_driver : str, optional
        A driver release such as ``"535.104.05"``, for a machine that is not this one.
    assume_gpus : sequence of str, optional
        Compute capabilities such as ``["9.0"]``, for a machine that is not this one.
    match : {"system"}, optional
        Require that the environment's toolkit equals the system's.
    match_level : {"minor", "major", "exact"}, optional
        How much of the two versions must be equal.
    needs : sequence of str, optional
        Packages that must be here and use CUDA: ``["torch", "jax"]``. A build without CUDA is then
        an error.
    expect : sequence of str, optional
        Requirements that must be met to the letter: ``["torch==2.8.0+cu128"]``.

    Returns
    -------
    Report
        Facts, findings and a verdict. Whatever else goes wrong is a part of it.

    Raises
    ------
    NotADirectoryError
        `prefix` or `root` is not a folder.
    ValueError
        An assumed driver release or compute capability does not exist, `match` or `match_level`
        has another value than those above, or `needs` or `expect` has what is no name and no
        requirement.

    Notes
    -----
    Nothing of the environment is run, and libcuda is not loaded into this process.

    Examples
    --------
    >>> report = stack.inspect(probe_driver=False)
    >>> report.verdict in ("consistent", "mismatch", "unknown")
    True
    """
    if match not in (None, "system"):
        raise ValueError(f"match={match!r}: it is 'system' or None")
    if match_level not in LEVELS:
        raise ValueError(f"match_level={match_level!r}: it is one of {', '.join(LEVELS)}")
    for name, value in (("needs", needs), ("expect", expect)):
        if isinstance(value, str):
            raise TypeError(f"{name}={value!r}: it is a list")
    asked = ask(
        prefix,
        root=root,
        environ=environ,
        probe=probe_driver,
        assumed=assumed(assume_driver, assume_gpus),
        match=match,
        match_level=match_level,
        needs=list(map(cu6.needed, needs)),
        expects=list(map(cu6.expected, expect)),
    )
    machine = collect_machine(asked, [asked.prefix])
    facts = collect(asked, machine)
    return Report(facts, judge(facts, None, lambda changes: recollect(facts, machine, changes)))
