"""The outcome of a check: facts, findings and a verdict, in every form that people read."""

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
    from collections.abc import Collection, Iterable
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


class Report:
    """The outcome of a check, as `cudriver.stack.inspect` returns it.

    Parameters
    ----------
    facts : Facts
        What was found in the environment.
    findings : iterable of Finding
        What does not fit, by rule.
    strict : bool, optional
        Whether warnings count as mismatches too, and a framework that is not modelled leaves the
        verdict open.
    observation : Observation, optional
        What a run of the environment's own Python has shown.

    Notes
    -----
    Read only. ``print`` shows it as the terminal does, a notebook as a table.

    Examples
    --------
    >>> report = stack.inspect(probe_driver=False)
    >>> report.to_dict()["verdict"] == report.verdict
    True
    """

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
        if self.strict and told == CONSISTENT and not all(f.modelled for f in self.frameworks):
            return UNKNOWN
        if told == CONSISTENT and self.observation is not None and self.observation.unanswered:
            return UNKNOWN
        return told

    @property
    def exit_code(self) -> int:
        """Exit code of ``cudriver check``: 0 consistent, 1 mismatch, 3 could not tell."""
        return EXIT_CODES[self.verdict]

    def restricted(self, select: Collection[str], ignore: Collection[str]) -> Report:
        """Return the same report with the findings of some rules only.

        Parameters
        ----------
        select : collection of str
            Beginnings of the rules to keep: ``"CU303"``, or ``"CU3"`` for all of its hundred. All
            rules if it is empty.
        ignore : collection of str
            Beginnings of the rules to leave out.

        Returns
        -------
        Report
            A new report about the same facts.
        """
        kept = [
            finding
            for finding in self.findings
            if (not select or finding.rule.startswith(tuple(select)))
            and not finding.rule.startswith(tuple(ignore))
        ]
        return Report(self.facts, kept, strict=self.strict, observation=self.observation)

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

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON, version 1.

        Parameters
        ----------
        indent : int or None, optional
            Spaces of a level; None for one line.

        Returns
        -------
        str
            Text of a file name that is not Unicode is escaped, never lost.
        """
        import json

        return json.dumps(self.to_dict(), indent=indent)

    def to_text(self, *, width: int = 80, colour: bool = False, verbose: bool = False) -> str:
        """Return the report as the terminal shows it.

        Parameters
        ----------
        width : int, optional
            Columns of the terminal.
        colour : bool, optional
            Whether to colour the text.
        verbose : bool, optional
            Whether to show libraries and notes, too.

        Returns
        -------
        str
            Lines of text.
        """
        from cudriver.stack.report_text import Style, render

        return render(self, Style(width=width, colour=colour), verbose=verbose)

    def to_html(self) -> str:
        """Return the report as a web page.

        Returns
        -------
        str
            A whole page: no script, nothing loaded from elsewhere.
        """
        from cudriver.stack.report_html import page

        return page([self])

    def _repr_html_(self) -> str:
        from cudriver.stack.report_html import fragment

        return fragment(self)

    def __str__(self) -> str:
        text = self.to_text().rstrip("\n")
        return text.encode("utf-8", "backslashreplace").decode()  # a path may hold any byte

    def __repr__(self) -> str:
        from cudriver.stack.text import clean

        findings = ", ".join(dict.fromkeys(f.rule for f in self.findings)) or "no findings"
        return f"<Report of {clean(self.prefix)}: {self.verdict}, {findings}>"
