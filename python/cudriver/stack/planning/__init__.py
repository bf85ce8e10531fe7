"""What to install, before there is an environment.

    from cudriver import stack
    print(stack.plan("torch", driver="535.104.05", gpus=["9.0"]))

Nothing is run: a plan is only printed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from cudriver.stack.collect import ask, collect_machine
from cudriver.stack.fixes.fix import branch_for
from cudriver.stack.inspecting import inspect
from cudriver.stack.machine.driver import assumed
from cudriver.stack.planning import answer
from cudriver.stack.planning.candidates import sets
from cudriver.stack.planning.gpus import gpu, sold_for
from cudriver.stack.planning.question import Question, one_of
from cudriver.stack.planning.report import Plan
from cudriver.stack.record import but
from cudriver.stack.tables import table
from cudriver.stack.versions import cut

__all__ = ["plan"]


def plan(
    *packages: str,
    driver: str | None = None,
    gpus: Sequence[str] = (),
    python: str | None = None,
    installer: str = "uv",
    at: str | None = None,
) -> Plan:
    """Plan an environment, as ``cudriver plan`` does. What is not stated is this machine's.

    Parameters
    ----------
    *packages : str
        Frameworks: ``"torch"``, ``"jax"``, ...
    driver : str, optional
        A driver release such as ``"535.104.05"``.
    gpus : sequence of str, optional
        Compute capabilities or names: ``["9.0"]``, ``["H100"]``.
    python : str, optional
        ``"3.12"``. The default is the newest that a set has.
    installer : {"uv", "pip", "conda", "pixi"}, optional
        Whose commands.
    at : str, optional
        An environment to add to.

    Returns
    -------
    Plan
        It prints itself, in a notebook too. Nothing is installed.

    Raises
    ------
    ValueError
        A value is not known here, or two do not go together.
    NotADirectoryError
        `at` is not a folder.

    Examples
    --------
    >>> stack.plan("torch", driver="580.95.05", gpus=["H100"], python="3.12").exit_code
    0
    """
    known, names = table("plan"), []
    for name in packages or [""]:
        plain = name.strip().lower().replace("_", "-")
        names.append(known["aliases"].get(plain, plain))
        wrong = f"{name!r} is not a package that a plan knows" if name else "no package is named"
        if re.search(r"[=<>~!\[@]", name):
            wrong = f"{name!r} is more than a name: a plan chooses versions and extras"
        one_of(known["frameworks"], names[-1], wrong)
    one_of(known["make"], installer, f"{installer!r} is not an installer")
    stated, version = assumed(driver, list(map(gpu, gpus))), None
    if python is not None:
        version = re.sub(r"\A(3\.\d+)\.\w+\Z", r"\1", python) or "''"
        one_of(known["pythons"], version, f"no framework has wheels for Python {version}")
    asked = Question(list(dict.fromkeys(names)), stated, version, installer, here=driver is None)
    asked = but(asked, centre=_centre(gpus), arm=any(arm for _, arm in map(sold_for, gpus)))
    if branch_for(stated) is None:
        raise ValueError(f"no driver serves compute capabilities {', '.join(asked.gpus)} together")
    if at is not None and python:
        raise ValueError("--at is an environment that has its Python: no --python")
    if asked.here and os.uname().machine != "x86_64":
        raise ValueError(f"plans are known for x86_64 only; this machine is {os.uname().machine}")
    if at is not None:
        report = inspect(at, assume_driver=driver, assume_gpus=asked.gpus or None)
        facts = report.facts
        if facts.environment.executable is None:
            raise ValueError(f"{at} has no Python: it is not an environment")
        asked = but(asked, driver=facts.driver, python=cut(facts.environment.python, 2))
        says, steps = answer.checked(at, report.findings)
        return Plan(asked, answer.add(asked, facts), says, steps)
    if asked.here:
        found = collect_machine(ask()).driver()
        names = [device.name for device in found.devices if device.name]
        asked = but(asked, driver=but(found, devices=stated.devices or found.devices))
        asked = but(asked, centre=_centre(gpus or names))
    return Plan(asked, answer.answer(asked))


def _centre(names: Sequence[str]) -> bool | None:
    """Whether GPUs are all for data centres; None where one is not known."""
    known = [centre for centre, _ in map(sold_for, names)]
    return None if None in known or not known else all(known)


def constraints(name: str, python: str | None = None) -> str:
    """The versions of everything in a proven set, a line each, for an installer."""
    known = {each.name: each for each in sets("proven")}
    one_of(known, name, f"no set {name!r} is proven")
    found = known[name]
    one_of(found.pythons, python or found.pythons[-1], f"{name} is not proven for Python {python}")
    return "".join(f"{each}=={version}\n" for each, version in found.versions(python).items())
