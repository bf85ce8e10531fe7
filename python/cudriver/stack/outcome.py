"""The outcome of a check as data: facts, findings and a verdict."""

from __future__ import annotations

from cudriver.stack.model import (
    CONSISTENT,
    ERROR,
    MISMATCH,
    SCHEMA,
    UNKNOWN,
    WARNING,
    Driver,
    Facts,
    Finding,
    Framework,
    Library,
    Toolkit,
    public,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from cudriver.stack.observe import Observation

EXIT_CODES = {CONSISTENT: 0, MISMATCH: 1, UNKNOWN: 3}

ENVIRONMENT_FIELDS = ("prefix", "kind", "python")
DRIVER_FIELDS = ("release", "kernel_release", "cuda", "path", "error")
DEVICE_FIELDS = (
    "index",
    "name",
    "uuid",
    "pci_bus_id",
    "compute_capability",
    "memory",
    "visible",
    "assumed",
)
TOOLKIT_FIELDS = ("origin", "kind", "version", "path")
FRAMEWORK_FIELDS = ("name", "version", "cuda", "cudnn", "nccl", "archs", "path", "modelled")
LIBRARY_FIELDS = ("soname", "version", "path", "provided_by", "found_by", "shadowed")


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
        """Installed packages that use CUDA."""
        return self.facts.frameworks

    @property
    def libraries(self) -> list[Library]:
        """The files that CUDA's libraries resolve to."""
        return self.facts.libraries

    @property
    def verdict(self) -> str:
        """Verdict: "consistent", "mismatch" or "unknown" (could not tell)."""
        from cudriver.stack.rules import verdict

        if self.strict and any(f.severity in (ERROR, WARNING) for f in self.findings):
            return MISMATCH
        if self.observation is not None and self.observation.differs:
            return MISMATCH
        told = verdict(self.findings, self.facts)
        return UNKNOWN if told == CONSISTENT and self.doubts else told

    @property
    def doubts(self) -> list[str]:
        """Why it could not be told whether all fits, where the verdict says so."""
        from cudriver.stack.rules import doubts

        why = doubts(self.findings, self.facts)
        strange = [f.name for f in self.frameworks if not f.modelled]
        if self.strict and strange and len(strange) < len(self.frameworks):
            why.append(f"how {', '.join(strange)} loads its libraries is not known")
        if self.observation is not None and self.observation.unanswered:
            why.append("the environment's Python gave --observe no answer")
        return why

    @property
    def exit_code(self) -> int:
        """Exit code of ``cudriver check``: 0 consistent, 1 mismatch, 3 could not tell."""
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data.

        Returns
        -------
        dict
            In the form that ``data/report.schema.json`` describes.
        """
        facts = self.facts
        data: dict[str, Any] = {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "environment": public(facts.environment, *ENVIRONMENT_FIELDS),
            "driver": {
                **public(facts.driver, *DRIVER_FIELDS),
                "devices": [public(device, *DEVICE_FIELDS) for device in facts.driver.devices],
            },
            "toolkits": [public(toolkit, *TOOLKIT_FIELDS) for toolkit in facts.toolkits],
            "frameworks": [public(framework, *FRAMEWORK_FIELDS) for framework in facts.frameworks],
            "libraries": [public(library, *LIBRARY_FIELDS) for library in facts.libraries],
            "findings": [finding.to_dict() for finding in self.findings],
            "problems": [problem.to_dict() for problem in facts.problems],
        }
        if facts.root != "/":
            data["environment"]["root"] = facts.root
        if self.observation is not None:
            data["observation"] = self.observation.to_dict()
        return data
