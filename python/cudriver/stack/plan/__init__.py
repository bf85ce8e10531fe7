"""What to install, before there is an environment.

    from cudriver.stack import plan
    print(plan.make("torch", driver="535.104.05", gpus=["9.0"]))

Nothing is run: a plan is only printed.
"""

from __future__ import annotations

import os

from cudriver.stack.versions import cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudriver.stack.model import Driver, Facts
    from cudriver.stack.plan.question import Question
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
    from cudriver.stack.plan import answer, commands
    from cudriver.stack.plan.question import ask
    from cudriver.stack.plan.report import Plan

    if server is not None and server not in commands.FAMILIES:
        known = ", ".join(commands.FAMILIES)
        raise ValueError(f"{server!r} is no family of distributions; known are {known}")
    if server is not None and at is not None:
        raise ValueError("a new server has no environment yet: state server or at")
    if driver is None and server is None and os.uname().machine != "x86_64":
        raise ValueError(f"plans are known for x86_64 only; this machine is {os.uname().machine}")
    asked = ask(packages, driver, gpus, python, installer)
    facts = _facts(asked, at) if at is not None else None
    if facts is not None:
        asked = asked.change(driver=facts.driver, python=cut(facts.environment.python, 2))
        return Plan(asked, answer.add(asked, facts), [], lang)
    if driver is None and server is None:
        here = _here()
        here.devices = asked.driver.devices or here.devices
        asked = asked.change(driver=here)
    parts = answer.answer(asked)
    steps = answer.before(asked, parts, server, containers) if server is not None else []
    return Plan(asked, parts, steps, lang)


def _here() -> Driver:
    """This machine's driver and GPUs."""
    from cudriver.stack.collect import collect_machine

    return collect_machine().driver()


def _facts(asked: Question, at: str) -> Facts:
    from cudriver.stack.collect import collect

    return collect(at, assume_driver=asked.driver.release, assume_gpus=asked.gpus or None)
