"""The outcome of a check as data: facts, findings and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cudriver.stack.facts import (
    CONSISTENT,
    ERROR,
    MISMATCH,
    NOT_KNOWN,
    SCHEMA,
    UNKNOWN,
    WARNING,
    WORKS,
    Facts,
    Finding,
    Framework,
    Library,
)
from cudriver.stack.machine_facts import Driver, Toolkit
from cudriver.stack.record import Any, Record, but, jsonable
from cudriver.stack.rules.verdict import answered, questions, states
from cudriver.stack.tables import table
from cudriver.stack.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from cudriver.stack.load.observe import Observation

    T = TypeVar("T", bound="Outcome")

EXIT_CODES = {CONSISTENT: 0, MISMATCH: 1, UNKNOWN: 3}


class Outcome:
    """What `Report` is without its forms: what renderers read."""

    def __init__(
        self,
        facts: Facts,
        findings: Iterable[Finding],
        *,
        strict: bool = False,
        observation: Observation | None = None,
    ) -> None:
        self.facts = facts
        self.findings: list[Finding] = list(findings)
        self.strict = strict
        self.observation = observation

    def redacted(self: T) -> T:
        """Return the same outcome for other people's eyes.

        Returns
        -------
        Report
            With the home folder as ``~``, and this user's and this host's name as ``user`` and
            ``host``, in every text. `to_markdown` does so by itself.
        """
        from cudriver.stack.report.redaction import redacted

        facts, findings, seen = redacted((self.facts, self.findings, self.observation))
        return type(self)(facts, findings, strict=self.strict, observation=seen)

    @property
    def prefix(self) -> str:
        """The environment's folder, inside `facts.root`."""
        return self.facts.environment.prefix

    @property
    def driver(self) -> Driver:
        """The NVIDIA driver, and its devices."""
        return self.facts.driver

    @property
    def toolkits(self) -> list[Toolkit]:
        """CUDA toolkits of the system and of the environment."""
        return self.facts.toolkits

    @property
    def frameworks(self) -> list[Framework]:
        """Installed packages that use CUDA, each with its `state`."""
        found = states(self.findings, self.facts, strict=self.strict)
        if self.observation is not None and self.observation.unanswered:
            found = {n: NOT_KNOWN if state == WORKS else state for n, state in found.items()}
        return [but(f, state=found[f.name]) for f in self.facts.frameworks]

    @property
    def summary(self) -> str:
        """The verdict and the states, for a line of a log: "mismatch: torch works, jax fails"."""
        shown = [f"{f.name} {f.state}" for f in self.frameworks if f.state is not None]
        return self.verdict + (f": {', '.join(shown)}" if shown else "")

    @property
    def libraries(self) -> list[Library]:
        """The files that CUDA's libraries resolve to."""
        return self.facts.libraries

    @property
    def verdict(self) -> str:
        """Verdict: "consistent", "mismatch" or "unknown" (could not tell)."""
        bad = (ERROR, WARNING) if self.strict else (ERROR,)
        differs = self.observation is not None and self.observation.differs
        if differs or any(finding.severity in bad for finding in self.findings):
            return MISMATCH
        return UNKNOWN if self.doubts else CONSISTENT

    @property
    def doubts(self) -> list[str]:
        """Why it could not be told whether all fits, where the verdict says so."""
        asked = list(questions(self.findings, self.facts, self.strict))
        why = [each.text for each in asked if not answered(each, self.facts)]
        if self.observation is not None and self.observation.unanswered:
            why.append("the environment's Python gave --observe no answer")
        here = self.facts.root == "/" and self.facts.environment.executable is not None
        if any(each.import_tells for each in asked) and here and self.observation is None:
            command = f"cudriver check --observe {quote(self.prefix)}"
            why.append(f"the real imports tell: {command}")
        return why

    @property
    def exit_code(self) -> int:
        """Exit code of ``cudriver check``: 0 all that is here for CUDA can use it, 1 something
        cannot, 3 could not tell.
        """
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data.

        Returns
        -------
        dict
            In the form that ``data/report.schema.json`` describes.
        """
        facts = self.facts
        data: dict[str, Any] = {"schema": SCHEMA, "verdict": self.verdict}
        for name in ("environment", "driver", "toolkits", "frameworks", "libraries"):
            data[name] = promised(name, getattr(self if name == "frameworks" else facts, name))
        data["findings"], data["problems"] = jsonable(self.findings), jsonable(facts.problems)
        data["driver"]["conda_cuda"] = facts.conda_cuda
        if facts.root != "/":
            data["environment"]["root"] = facts.root
        if self.observation is not None:
            data["observation"] = self.observation.to_dict()
        return data


def exit_code(reports: Sequence[Outcome]) -> int:
    """The worst: a mismatch, then what could not be told, then 0."""
    codes = {report.exit_code for report in reports}
    return next((code for code in (1, 3) if code in codes), 0)


def promised(name: str, value: Any) -> Any:
    """A part of the report as plain data: what the schema says of it, and no more."""
    return _shaped(value, table("report.schema")["properties"][name])


def _shaped(value: Any, shape: dict[str, Any]) -> Any:
    if isinstance(value, list) and "items" in shape:
        return [_shaped(each, shape["items"]) for each in value]
    if not isinstance(value, Record) or "properties" not in shape:
        return jsonable(value)
    members = shape["properties"].items()
    return {n: _shaped(getattr(value, n), part) for n, part in members if hasattr(value, n)}
