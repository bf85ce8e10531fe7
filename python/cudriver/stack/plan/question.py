"""What a plan is asked for, and the sentences that it answers with."""

from __future__ import annotations

import re

from cudriver.stack.collect.driver import assumed, capability
from cudriver.stack.model import Driver
from cudriver.stack.record import Record, fresh
from cudriver.stack.tables import table
from cudriver.stack.versions import major

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

INSTALLERS = ("uv", "pip", "conda", "pixi")
BRANCHES = range(300, 2000)


class Line:
    """A sentence, written in English and shown in the reader's language, with its values."""

    def __init__(self, template: str, **values: Any) -> None:
        self.template, self.values = template, values

    def text(self, lang: str = "en") -> str:
        """The sentence; what has no translation is English."""
        known = table("plan_zh")["lines"] if lang == "zh" else {}
        filled: str = known.get(self.template, self.template).format(**self.values)
        return filled


class Question(Record):
    """A question that has been read. No GPU, no driver release, no Python: anything will do."""

    packages: list[str]
    driver: Driver = fresh(Driver)
    python: str | None = None
    installer: str = "uv"
    majors: set[int] = fresh(set)  # of CUDA, that an environment already has; none: any
    adding: bool = False  # to that environment

    @property
    def gpus(self) -> list[str]:
        """The compute capabilities of the GPUs, each once."""
        known = (device.compute_capability for device in self.driver.devices)
        return list(dict.fromkeys(filter(None, known)))

    def change(self, **values: object) -> Question:
        """The same question, but for these fields."""
        return Question(**{**{name: getattr(self, name) for name in self._fields}, **values})

    def on(self, release: str | None) -> Question:
        """The same question for the same GPUs under another driver; None: under any."""
        driver = assumed(release, self.gpus)
        return self.change(driver=driver)


def ask(
    packages: Sequence[str], driver: str | None, gpus: Sequence[str], python: str | None, tool: str
) -> Question:
    """A question from words. Raises ValueError, with one sentence, for what does not exist."""
    if tool not in INSTALLERS:
        raise ValueError(f"{tool!r} is no installer; known are {', '.join(INSTALLERS)}")
    stated = assumed(driver, [number for name in gpus for number in gpu(name)])
    if driver is not None and major(driver) not in BRANCHES:
        raise ValueError(f"NVIDIA has no driver branch {major(driver)}; one looks like 580")
    names = list(dict.fromkeys(map(framework, packages)))
    if not names:
        raise ValueError(f"no package; known are {', '.join(table('plan')['frameworks'])}")
    return Question(names, stated, python and _python(python), tool)


def framework(name: str) -> str:
    """The framework that a package's name stands for."""
    known = table("plan")
    plain = re.split(r"[\[=<>~! ]", name.strip().lower().replace("_", "-"), maxsplit=1)[0]
    plain = known["aliases"].get(plain, plain)
    if plain not in known["frameworks"]:
        told = ", ".join(known["frameworks"])
        raise ValueError(f"{name!r} is no package that a plan knows; known are {told}")
    return str(plain)


def gpu(name: str) -> list[str]:
    """The compute capability of a GPU: "9.0", "H100", or an architecture's name that has one."""
    if re.fullmatch(r"(sm_)?\d+(\.\d)?[af]?", name.strip()):
        return [capability(name)]
    plain = re.sub(r"nvidia|geforce|tesla|quadro|[\s_-]", "", name.lower())
    for row in table("plan")["gpus"]:
        if plain == row["name"].lower().replace(" ", ""):
            return [row["capability"]]
    rows = [r for r in table("driver")["architectures"] if r["first_branch"] or r["last_branch"]]
    same = [row["capability"] for row in rows if plain == row["name"].lower().split(" (")[0]]
    if len(same) > 1:
        raise ValueError(f"{name!r} is several architectures ({', '.join(same)}): state which")
    if not same:
        raise ValueError(f"no GPU {name!r} is known here; state its compute capability, as 9.0")
    return same


def _python(text: str) -> str:
    """ "3.12" from "3.12" or "3.12.4"."""
    match = re.fullmatch(r"(\d+\.\d+)(\.\d+)?", text.strip(), re.ASCII)
    known = table("plan")["pythons"]
    if match is None or match[1] not in known:
        raise ValueError(f"no framework has wheels for Python {text}; known are {', '.join(known)}")
    return match[1]
