"""What to install, before there is an environment.

    from cudriver.stack import plan
    print(plan.make("torch", driver="535.104.05", gpus=["9.0"]))

Nothing is run: a plan is only printed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cudriver.stack.tables import table
from cudriver.stack.versions import cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.plan.report import Plan

__all__ = ["make"]


def make(
    *packages: str,
    driver: str | None = None,
    gpus: Sequence[str] = (),
    python: str | None = None,
    installer: str = "uv",
    at: str | None = None,
    server: str | None = None,
    containers: bool = False,
    lang: str = "en",
) -> Plan:
    """Plan an environment, as `cudriver plan` does with these words, and return the Plan.

    `packages` are frameworks; `gpus` compute capabilities or names; what is not stated is this
    machine's. `at` is an environment to add to, `server` a family of distributions of a new
    server ("debian", "ubuntu", "rhel"), `lang` the language of text and page. Raises ValueError
    for what does not exist, and NotADirectoryError.
    """
    from cudriver.stack.collect import collect, collect_machine
    from cudriver.stack.plan import answer, question
    from cudriver.stack.plan.candidates import branch_for
    from cudriver.stack.plan.report import Plan

    asked = question.ask(packages, driver, gpus, python, installer)
    if branch_for(asked.driver) is None:
        told = " and ".join(asked.gpus)
        raise ValueError(f"no driver serves compute capability {told} in one machine")
    asked = asked.change(
        here=driver is None and server is None, family=server, containers=containers
    )
    if server is not None:
        question.one_of(table("plan")["families"], server, f"{server!r} is no family")
    elif containers:
        raise ValueError("--containers says what a new server runs: add --server FAMILY")
    if at is not None and (server or python):
        raise ValueError("--at is an environment that has its Python: no --server, no --python")
    if asked.here and os.uname().machine != "x86_64":
        raise ValueError(f"plans are known for x86_64 only; this machine is {os.uname().machine}")
    if at is not None:
        facts = collect(at, assume_driver=driver, assume_gpus=asked.gpus or None)
        asked = asked.change(driver=facts.driver, python=cut(facts.environment.python, 2))
        return Plan(asked, answer.add(asked, facts), [], lang)
    if asked.here:
        found = collect_machine().driver()
        found.devices = asked.driver.devices or found.devices
        asked = asked.change(driver=found)
    parts = answer.answer(asked)
    return Plan(asked, parts, answer.before(asked, parts), lang)


def constraints(name: str, python: str | None = None) -> str:
    """The versions of everything in a proven set, a line each, for an installer."""
    from cudriver.stack.plan.candidates import proven

    found = next((each for each in proven() if each.name == name), None)
    if found is None or (python and python not in found.pythons):
        known = f"; known are {', '.join(found.pythons)}" if found else ""
        raise ValueError(f"no set {name!r} is proven for Python {python or 'any'}{known}")
    return "".join(f"{each}=={version}\n" for each, version in found.versions(python).items())
